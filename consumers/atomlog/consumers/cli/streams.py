"""The three standard streams of a process, which its parent may have closed.

A closed one leaves its number free, and the next file that is opened gets it: a segment of the log would then be
"standard error" to every library that writes there. So each is taken before anything else is opened.
"""

import errno
import os
import sys
from typing import Final

_IN, _OUT, _ERR = range(3)
# Using a closed input or output fails as it does for every other program; what was only said goes nowhere.
_MODES: Final = {_IN: os.O_WRONLY, _OUT: os.O_RDONLY, _ERR: os.O_WRONLY}


def take_standard_streams() -> None:
    """Open those that are closed, so that no file of a store can stand in their place."""
    for number, mode in _MODES.items():
        if not _is_open(number):
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = sys.__stdin__ = open(_IN, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = sys.__stdout__ = open(_OUT, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = sys.__stderr__ = open(_ERR, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115


def leave_standard_output() -> None:
    """Where nobody takes any more, what is still buffered must not raise again while Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return False
    return True
