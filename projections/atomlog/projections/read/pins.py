"""Open recall cursors pin the manifest of vectors that their rows were found with.

The rows themselves are fixed in the cursor; the pin keeps the shards they came from, so that the same search can be
made again while the cursor is open. A pin lasts as long as the cursor may, and as long as this process.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from atomlog.kernel.ports import Clock

if TYPE_CHECKING:  # numpy and hnswlib come with them, which only a recall needs
    from atomlog.projections.vectors import Vectors

PINS_MAX: Final = 1_000  # cursors of one process; beyond them the oldest pin goes first


class Pins:
    """Pins of the one `Vectors` that is searched; when a rebuilt one takes over, they go with the old one."""

    def __init__(self, clock: Clock, ttl_ms: int) -> None:
        self._clock = clock
        self._ttl_us = ttl_ms * 1_000
        self._vectors: Vectors | None = None
        self._held: deque[tuple[int, int]] = deque()  # (until on the monotonic clock, generation)

    def hold(self, vectors: "Vectors") -> None:
        """Pin the current manifest until the cursor that is about to be given out expires."""
        if self._vectors is not vectors:
            self._held.clear()
            self._vectors = vectors
        self.release(self._clock.monotonic_us())
        vectors.pin(vectors.generation)
        self._held.append((self._clock.monotonic_us() + self._ttl_us, vectors.generation))

    def release(self, now_us: int) -> None:
        """Give up what has expired."""
        while self._held and (self._held[0][0] <= now_us or len(self._held) >= PINS_MAX):
            _, generation = self._held.popleft()
            if self._vectors is not None:
                self._vectors.unpin(generation)
