"""What one run of a decoder costs, without a clock: lines of the program executed, and bytes allocated at the peak."""

import sys
import tracemalloc
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

_OURS: Final = "/atomlog/"


class TooMuchWork(BaseException):
    """More lines than allowed. No `Exception`, so that no handler of the program takes it for its own."""


class Lines:
    """Runs calls under a trace of the program's own lines."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self._count = 0
        self._most = 0

    def run(self, call: Callable[[], Any], most: int) -> tuple[int, bool]:
        """(lines executed, whether one of them was never seen before); TooMuchWork beyond `most`."""
        self._count, self._most = 0, most
        known = len(self.seen)
        former = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(former)
        return self._count, len(self.seen) > known

    @property
    def count(self) -> int:
        return self._count

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if _OURS in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._count += 1
            if self._count > self._most:
                raise TooMuchWork(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            self.seen.add((frame.f_code, frame.f_lineno))
        return self._line


def peak_bytes(call: Callable[[], Any]) -> int:
    """What Python's allocator held at most during a call, beyond what it held before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
