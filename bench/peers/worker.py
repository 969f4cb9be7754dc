"""A worker in Python: what ../worker.h describes, for a lock of some library."""

import os
import random
import sys
import time


def work(lock):
    """`lock` has attempt, acquire (which waits for ever), refresh, release."""
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "compete":
            answer = compete(lock, words[0], *map(float, words[1:]))
        elif command == "run":
            answer = run(lock, float(words[0]))
        else:
            method = {"acquire": lock.attempt, "refresh": lock.refresh, "release": lock.release}
            answer = "no" if method[command]() is False else "ok"
        print(answer, flush=True)


def run(lock, seconds):
    cycles = 0
    start, cpu = time.monotonic(), time.process_time()
    end = start
    while end - start < seconds:
        lock.attempt()
        lock.release()
        cycles += 1
        end = time.monotonic()
    return "%d %.9f %.9f" % (cycles, end - start, time.process_time() - cpu)


def compete(lock, path, start, stop, hold, pause):
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    time.sleep(max(0, start - time.monotonic()))
    while True:
        asked = time.monotonic()
        if asked >= stop:
            return "ok"
        os.write(journal, b"asked %.9f\n" % asked)
        lock.acquire()
        got = time.monotonic()
        time.sleep(hold)
        os.write(journal, b"held %.9f %.9f\n" % (got, time.monotonic()))
        lock.release()
        time.sleep(pause * random.random())
