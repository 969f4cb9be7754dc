import sys

from flufl.lock import Lock as FileLock
from flufl.lock import TimeOutError

import worker


class Lock:
    def __init__(self, directory, name):
        self.lock = FileLock(directory + "/" + name)
        self.acquire = self.lock.lock
        self.refresh = self.lock.refresh
        self.release = self.lock.unlock

    def attempt(self):
        try:
            self.lock.lock(timeout=0)
        except TimeOutError:
            return False


worker.work(Lock(*sys.argv[1:]))
