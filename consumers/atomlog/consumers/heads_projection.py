"""The head state seen as a projection, so that it is rebuilt and verified like the others.

Nobody follows for it: the process that holds the log applies to it as part of writing. What it counts on the way
(void records by reason) is not in the records that are applied, so it is asked for.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.heads import Heads, HeadView
from atomlog.kernel.kv import prefix_end, u16, u32
from atomlog.kernel.ports import Kv
from atomlog.kernel.tail import Checkpoint, EffectiveRecord
from atomlog.projections.base import Quarantined, read_all

CONTENT: Final = (b"d", b"h", b"i", b"r", b"s", b"u", b"v", b"x")  # every keyspace but the place itself
NO_VOIDS: Final[Mapping[str, int]] = {}


class HeadsProjection:
    """`Projection` over the kernel's head state."""

    name = "heads"
    skips_poison = False

    def __init__(self, kv: Kv, partitions: int) -> None:
        self.kv = kv
        self.voids_of: Callable[[int], Mapping[str, int]] = lambda partition: NO_VOIDS
        self._heads = Heads(kv, partitions)
        self._view = HeadView(kv, partitions)
        self._partitions = partitions

    @property
    def partitions(self) -> int:
        return self._partitions

    def checkpoint(self, partition: int) -> Checkpoint:
        return self._view.place(partition).checkpoint

    def apply(self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint) -> None:
        self._heads.apply(partition, records, after, self.voids_of(partition))

    def quarantine(self, partition: int, position: int, error: str, after: Checkpoint) -> None:
        """A Repair lets the head state pass a record by; it keeps no list of these, the log does."""
        self._heads.apply(partition, [], after, self.voids_of(partition))

    def quarantined(self) -> Sequence[Quarantined]:
        return []

    def rows(self, partition: int) -> int:
        return sum(1 for _ in self._pairs(partition))

    def digest(self, partition: int) -> bytes:
        """SHA-256 over `u32 length ‖ key ‖ u32 length ‖ value` of every pair but the place, in key order."""
        digest = hashlib.sha256()
        for key, value in self._pairs(partition):
            digest.update(b"".join((u32(len(key)), key, u32(len(value)), value)))
        return digest.digest()

    def verify(self, partition: int) -> int:
        return self.rows(partition)

    def read_all(self) -> None:
        read_all(self.kv)

    def floors(self) -> Mapping[int, int]:
        """Heads answer for now only."""
        return {partition: self.checkpoint(partition).position - 1 for partition in range(self._partitions)}

    def sync(self) -> None:
        self.kv.sync()

    def catch_up(self) -> None:
        self.kv.catch_up()

    def close(self) -> None:
        self.kv.close()

    def _pairs(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        if not 0 <= partition < self._partitions:
            raise fail("INVALID_INPUT", f"heads have no partition {partition}")
        for tag in CONTENT:
            prefix = tag + u16(partition)
            yield from self.kv.scan(prefix, prefix_end(prefix))
