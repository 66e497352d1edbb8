"""An index query that comes in pages, as one stream that can be left anywhere and gone on with later.

Its place is the opaque key of the index's page and how many items of that page were taken. Positions are fixed, so
the same page comes back, whatever was written since.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
Fetch = Callable[[bytes | None, int], tuple[list[T], bytes | None]]
"""(after, limit) → (items, the key after them or None at the end). Only the last page may be shorter than `limit`."""

CHUNK_MIN: Final = 16
CHUNK_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class Place:
    """`after`: where the index's page begins, None = at the start. `taken`: items of it that are behind."""

    after: bytes | None = None
    taken: int = 0

    def to_json(self) -> list[Any]:
        return [None if self.after is None else self.after.hex(), self.taken]

    @classmethod
    def from_json(cls, value: list[Any]) -> "Place":
        after, taken = value
        return cls(None if after is None else bytes.fromhex(after), taken)


class Stream(Generic[T]):
    """`peek` shows the next item, `take` passes it, `place` is where a later stream goes on."""

    def __init__(self, fetch: Fetch[T], place: Place, *, chunk: int) -> None:
        self._fetch = fetch
        self._chunk = min(max(chunk, CHUNK_MIN), CHUNK_MAX)
        self._items: list[T] = []
        self._after = place.after
        self._next_after = place.after
        self._taken = 0
        self._passed = 0  # items before the first one held here, when nothing follows them
        self._ended = False
        self.scanned = 0
        if place.taken:
            # Pass what was taken by a page of exactly that size: its key is where the next one begins.
            self._next_after = fetch(place.after, place.taken)[1]
            if self._next_after is None:
                self._ended, self._passed = True, place.taken
        self._load()

    @property
    def place(self) -> Place:
        return Place(self._after, self._passed + self._taken)

    def peek(self) -> T | None:
        if self._taken == len(self._items):
            self._load()
        return self._items[self._taken] if self._taken < len(self._items) else None

    def take(self) -> None:
        self._taken += 1
        self.scanned += 1

    def _load(self) -> None:
        """The next page that has items, if there is one."""
        while not self._ended and self._taken == len(self._items):
            self._after, self._taken = self._next_after, 0
            self._items, self._next_after = self._fetch(self._after, self._chunk)
            self._ended = self._next_after is None
