import sys

import redis

import worker


class Lock:
    def __init__(self, server, name):
        host, port = server.split(":")
        self.lock = redis.Redis(host=host, port=int(port)).lock(name, timeout=16)
        self.acquire = self.lock.acquire
        self.refresh = self.lock.reacquire
        self.release = self.lock.release

    def attempt(self):
        return self.lock.acquire(blocking=False)


worker.work(Lock(*sys.argv[1:]))
