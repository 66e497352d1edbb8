"""Rows of one range of ordinals in memory, for exact search: the tail, and shards whose file is not at hand."""

from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import u32
from atomlog.kernel.ports import Kv
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.vectors.layout import LATE, VECTOR, Work, in_space, ordinal_of, space_tag
from atomlog.projections.vectors.scoring import Doubles, Matrix, norms_of

BLOCKS_BYTES_MAX: Final = 512 * 1024 * 1024
F32: Final = np.dtype("<f4")

Place = tuple[int, str, int]  # partition, space id, range


class Block:
    """Vectors with their ordinals, in the order in which they came."""

    def __init__(
        self, space: VectorSpace, partition: int, start: int, stop: int, *, beside: NDArray[np.uint32] | None = None
    ) -> None:
        """Rows with start ≤ ordinal < stop; with `beside`, the ordinals of a shard, only what came late for it."""
        self.space = space
        self._known = frozenset(() if beside is None else beside.tolist())
        self._seen = start if beside is None else stop  # ordinals below were looked for
        self._late = 0
        self._start, self._stop = start, stop
        self._tag, self._late_tag = (in_space(tag, partition, space_tag(space.id)) for tag in (VECTOR, LATE))
        self._ordinals: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)
        self._rows: Matrix = np.empty((0, space.dim), dtype=np.float32)
        self._norms: Doubles | None = None
        self._count = 0

    @property
    def ordinals(self) -> NDArray[np.uint32]:
        return self._ordinals[: self._count]

    @property
    def rows(self) -> Matrix:
        return self._rows[: self._count]

    @property
    def norms(self) -> Doubles | None:
        """The length of each row; None under cosine, where it is 1."""
        if self.space.metric == "cosine":
            return None
        if self._norms is None or len(self._norms) != self._count:
            self._norms = norms_of(self.rows)
        return self._norms

    @property
    def size_bytes(self) -> int:
        return self._rows.nbytes + self._ordinals.nbytes

    def refresh(self, kv: Kv, work: Work) -> None:
        """Take over the vectors that came since the last time."""
        until = min(work.cursor, self._stop)
        if until > self._seen:
            found = kv.scan(self._tag + u32(self._seen), self._tag + u32(until))
            self._add([(ordinal_of(key), value) for key, value in found])
            self._seen = until
        if work.late != self._late:
            keys = kv.scan(self._late_tag + u32(self._start), self._late_tag + u32(self._stop))
            new = sorted({ordinal_of(key) for key, _ in keys} - self._known - set(self.ordinals.tolist()))
            values = kv.get_many([self._tag + u32(ordinal) for ordinal in new])
            self._add([(ordinal, value) for ordinal, value in zip(new, values, strict=True) if value is not None])
            self._late = work.late

    def _add(self, found: list[tuple[int, bytes]]) -> None:
        if not found:
            return
        count = self._count + len(found)
        if count > len(self._ordinals):
            room = min(max(count, 2 * self._count, 256), self._stop - self._start)
            self._ordinals = np.concatenate((self.ordinals, np.empty(room - self._count, dtype=np.uint32)))
            self._rows = np.concatenate((self.rows, np.empty((room - self._count, self.space.dim), dtype=np.float32)))
        self._ordinals[self._count : count] = [ordinal for ordinal, _ in found]
        if any(len(value) != F32.itemsize * self.space.dim for _, value in found):
            raise fail("CORRUPT", f"vectors: a row of {self.space.id} has another size than its space; rebuild vectors")
        joined = np.frombuffer(b"".join(value for _, value in found), dtype=F32)
        self._rows[self._count : count] = joined.reshape(len(found), self.space.dim)
        self._count = count


class Blocks:
    """The blocks in memory, the least recently used dropped beyond a size."""

    def __init__(self, kv: Kv, shard_rows: int, bytes_max: int = BLOCKS_BYTES_MAX) -> None:
        self._kv = kv
        self._shard_rows = shard_rows
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[Place, Block] = OrderedDict()

    def get(self, partition: int, space: VectorSpace, shard_range: int, work: Work) -> Block:
        """The block of a range, up to date."""
        place = partition, space.id, shard_range
        block = self._blocks.pop(place, None)
        if block is None:
            start = shard_range * self._shard_rows
            block = Block(space, partition, start, start + self._shard_rows)
        self._blocks[place] = block
        block.refresh(self._kv, work)
        self._shrink()
        return block

    def drop(self, partition: int, space: VectorSpace, shard_range: int) -> None:
        self._blocks.pop((partition, space.id, shard_range), None)

    def _shrink(self) -> None:
        size = sum(block.size_bytes for block in self._blocks.values())
        while size > self._bytes_max and len(self._blocks) > 1:
            _, dropped = self._blocks.popitem(last=False)
            size -= dropped.size_bytes
