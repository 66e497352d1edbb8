"""Which lines belong together: consecutive lines with the same `batch`, and each line without one on its own.

A line whose batch cannot be read may belong to the batch before it or to the one after it: both are refused, so that
nothing is written of the batch it was meant for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from atomlog.consumers.imports.lines import BadLine, Line
from atomlog.kernel.errors import fail

KEPT_BYTES_MAX: Final = 4 * 1024 * 1024  # of a run held in memory; a longer one is read again
ERRORS_MAX: Final = 100  # of a run; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where a line begins: its byte offset and its number."""

    offset: int
    number: int


START: Final = Mark(offset=0, number=1)

Item = Line | BadLine
Read = Callable[[Mark], Iterator[tuple[Item, Mark]]]
"""Reads lines from a mark on; with each comes the mark after it. It must give the same lines every time."""


@dataclass(slots=True, kw_only=True)
class Run:
    """The lines of one batch. `lines` is None when they are too many to be kept: read them again from `start`."""

    batch: str | None
    start: Mark
    first: int
    last: int
    count: int = 0
    size_bytes: int = 0
    lines: list[Line] | None
    errors: list[BadLine]
    error_count: int = 0

    def add(self, item: Item) -> None:
        self.last = max(self.last, item.number)
        self.count += 1
        self.size_bytes += item.size_bytes
        if isinstance(item, BadLine):
            self.refuse(item)
        elif self.lines is not None:
            self.lines.append(item)
        if self.size_bytes > KEPT_BYTES_MAX and self.count > 1:
            self.lines = None

    def refuse(self, bad: BadLine) -> None:
        self.error_count += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(bad)

    def again(self, read: Read) -> Iterator[Line]:
        """The lines of a run without errors. INVALID_INPUT when the source has changed since."""
        if self.lines is not None:
            yield from self.lines
            return
        items = read(self.start)
        for _ in range(self.count):
            item, _mark = next(items, (None, None))
            if not isinstance(item, Line) or item.batch != self.batch:
                raise fail("INVALID_INPUT", f"the source changed while it was read, at or before line {self.last}")
            yield item


def runs(read: Read) -> Iterator[Run]:
    """All runs from the beginning, in order."""
    items = _Ahead(read(START))
    doubtful: BadLine | None = None  # the line before, when it may belong to what comes next
    while (first := items.take()) is not None:
        run = _new_run(first, items.before)
        if run.batch is not None and doubtful is not None:
            run.refuse(doubtful)
        doubtful = _doubtful(first)
        while run.batch is not None and (item := items.peek()) is not None:
            if _doubtful(item) is None and item.batch != run.batch:
                break
            doubtful = _doubtful(item)
            run.add(item)
            items.take()
        yield run


class _Ahead:
    """An iterator with one item of foresight. `before` is the mark of the item taken last."""

    def __init__(self, items: Iterator[tuple[Item, Mark]]) -> None:
        self._items = items
        self._next: tuple[Item, Mark] | None = None
        self._mark = START
        self.before = START

    def peek(self) -> Item | None:
        if self._next is None:
            self._next = next(self._items, None)
        return None if self._next is None else self._next[0]

    def take(self) -> Item | None:
        item = self.peek()
        if self._next is not None:
            self.before, self._mark = self._mark, self._next[1]
            self._next = None
        return item


def _new_run(first: Item, start: Mark) -> Run:
    run = Run(batch=first.batch, start=start, first=first.number, last=first.number, lines=[], errors=[])
    run.add(first)
    return run


def _doubtful(item: Item) -> BadLine | None:
    """The line itself when its batch is not known."""
    return item if isinstance(item, BadLine) and not item.batch_known else None
