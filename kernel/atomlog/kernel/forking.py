"""What a forked child must not take over from the process that it was forked from.

A file lock and a listening socket live as long as any process has the open file, so a child that never heard of the
store would keep it locked, and let others wait for answers, after its parent is gone. And a child has none of its
parent's threads, for which libraries wait when a process ends.
"""

import ctypes
import os
from typing import Final

_ours: Final[set[int]] = set()
_registered = False


def keep_from_children(descriptor: int) -> None:
    """In a child that is forked from now on, this number is an open file that is nothing."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_in_child)
    _ours.add(descriptor)


def forget(descriptor: int) -> None:
    """The descriptor is closed next, so its number may soon mean something else."""
    _ours.discard(descriptor)


def _in_child() -> None:
    """The number stays taken: objects that have it would otherwise close a file of the child's own later."""
    if not _ours:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _ours:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _ours.clear()
    _end_without_waiting()


def _end_without_waiting() -> None:
    """When the child ends, after Python has: leave before handlers that join the parent's threads (RocksDB's crashes).

    Handlers run in reverse order, so this one, registered last, is the first.
    """
    library = ctypes.CDLL(None)
    on_exit = getattr(library, "on_exit", None)  # of glibc
    if on_exit is not None:
        on_exit(library._exit, None)
