"""What the operating system knows of processes. Only this module of the consumers asks it."""

import gc
import os
import sys
from typing import Final

from atomlog.kernel.system import process_id

__all__ = ["SAFE_PATH", "absolute", "interpreter", "make_no_cycles", "process_id", "processors"]

GARBAGE_EVERY: Final = 100_000  # objects more than went; Python's own is 700
SAFE_PATH: Final = "-P"  # of the interpreter: modules in the working directory are nobody's business


def processors() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_no_cycles() -> None:
    """Let the garbage collector look rarely: for a process that only replays.

    What a replay makes goes by its reference counts. Looking for cycles among tens of thousands of rows that wait to
    be written takes a tenth to a fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_EVERY)


def interpreter() -> str:
    """The path of the running Python, to start another process of this program with."""
    return sys.executable


def absolute(path: str) -> str:
    """A path that means the same whatever directory a process works in."""
    if path.startswith("/"):
        return path
    return os.path.join(os.getcwd(), path.removeprefix("./"))  # `..` stays: it may lead through a link
