"""What the operating system knows of processes. Only this module of the consumers asks it."""

import os
import sys
from typing import Final

from atomlog.kernel.system import process_id

__all__ = ["SAFE_PATH", "absolute", "interpreter", "process_id", "processors"]

SAFE_PATH: Final = "-P"  # of the interpreter: modules in the working directory are nobody's business


def processors() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interpreter() -> str:
    """The path of the running Python, to start another process of this program with."""
    return sys.executable


def absolute(path: str) -> str:
    """A path that means the same whatever directory a process works in."""
    if path.startswith("/"):
        return path
    return os.path.join(os.getcwd(), path.removeprefix("./"))  # `..` stays: it may lead through a link
