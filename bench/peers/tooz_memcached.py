import os
import sys

from tooz import coordination

import worker


class Lock:
    def __init__(self, server, name):
        coordinator = coordination.get_coordinator("memcached://" + server, b"%d" % os.getpid())
        coordinator.start()
        self.lock = coordinator.get_lock(name.encode())
        self.acquire = self.lock.acquire
        self.refresh = self.lock.heartbeat
        self.release = self.lock.release

    def attempt(self):
        return self.lock.acquire(blocking=False)


worker.work(Lock(*sys.argv[1:]))
