"""Runs a broker that does not outlive those who use it: `python guard.py LOCK DATA command…`.

Users hold shared locks (flock) on the file LOCK. A watcher beside the broker waits for the exclusive lock: it gets it
when the last user has let go or has died, however it died. Then the broker is killed and the directory DATA removed.
The command replaces this process, so the caller's child is the broker itself.
"""

import fcntl
import os
import shutil
import signal
import sys
import time

LOOK_EVERY_S = 0.2


def main(lock: str, data: str, command: list[str]) -> None:
    broker = os.getpid()
    if os.fork() == 0:
        os.setsid()  # a signal for the broker's group is not for its watcher
        watch(broker, lock, data)
        os._exit(0)
    os.execv(command[0], command)


def watch(broker: int, lock: str, data: str) -> None:
    """Until the broker has ended, or has no users and was killed. It has ended when it is no longer the parent."""
    descriptor = os.open(lock, os.O_RDWR)
    while os.getppid() == broker:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_EVERY_S)
            continue
        os.kill(broker, signal.SIGKILL)  # a stopped one, too
        while os.getppid() == broker:
            time.sleep(0.01)
        shutil.rmtree(data, ignore_errors=True)
        return  # the lock is given back with the process: who waits for it starts a broker of its own


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
