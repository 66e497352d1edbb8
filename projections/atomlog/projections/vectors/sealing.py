"""Which shard is to be built next, and building it beside the event loop and beside embedding."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from atomlog.kernel.kv import prefix_end, u32
from atomlog.kernel.ports import Files, Kv, Workers
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.vectors.blocks import Block, Blocks
from atomlog.projections.vectors.columns import ColumnsByPartition
from atomlog.projections.vectors.embedding import Embedder
from atomlog.projections.vectors.hnsw import Effort, Parameters
from atomlog.projections.vectors.layout import LATE, NEVER, RETRY, in_space, ordinal_of, space_tag
from atomlog.projections.vectors.manifest import ShardEntry
from atomlog.projections.vectors.shards import Plan, Shard, build_shard, floor_of
from atomlog.projections.vectors.shelf import Shelf

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """The range [range · shard_rows, (range + 1) · shard_rows) of one space in one partition."""

    partition: int
    space: VectorSpace
    range: int


class Sealer:
    """Seals full ranges, renews shards of which too much is dead, and mends damaged ones. Not for two tasks at once."""

    def __init__(
        self,
        *,
        kv: Kv,
        shelf: Shelf,
        blocks: Blocks,
        columns: ColumnsByPartition,
        embedder: Embedder,
        files: Files,
        workers: Workers,
        spaces: Iterable[VectorSpace],
        partitions: int,
        shard_rows: int,
        dead_share_max: float,
        applied: Callable[[int], int],
    ) -> None:
        """`applied(partition)` is the last position whose effects the store has."""
        self._kv = kv
        self._shelf = shelf
        self._blocks = blocks
        self._columns = columns
        self._embedder = embedder
        self._files = files
        self._workers = workers
        self._places = [(partition, space) for partition in range(partitions) for space in spaces]
        self._spaces = {space.id: space for space in spaces}
        self._shard_rows = shard_rows
        self._dead_share_max = dead_share_max
        self._applied = applied
        self._touched = {(entry.partition, entry.range) for entry in shelf.current.shards}
        self._late_seen: dict[tuple[int, str], int] = {}

    def touch(self, partition: int, ordinal: int) -> None:
        """A row died: its range may have to be renewed."""
        self._touched.add((partition, ordinal // self._shard_rows))

    async def due(self) -> Place | None:
        """Where a shard is to be built next."""
        return self._damaged() or self._full() or await self._worn()

    def _damaged(self) -> Place | None:
        for entry in self._shelf.current.shards:
            if self._shelf.is_faulty(entry) and entry.space in self._spaces:
                return Place(entry.partition, self._spaces[entry.space], entry.range)
        return None

    def _full(self) -> Place | None:
        """A range of which every row has found its end."""
        sealed = self._shelf.current.places
        for partition, space in self._places:
            work = self._embedder.work(partition, space)
            for number in range(work.cursor // self._shard_rows):
                if (partition, space.id, number) not in sealed:
                    place = Place(partition, space, number)
                    if not work.retrying or not self._retries(place):
                        return place
        return None

    async def _worn(self) -> Place | None:
        """A shard of which too many rows are dead, or that too many came late for."""
        self._touch_late()
        while self._touched:
            partition, number = self._touched.pop()
            for space in self._spaces.values():
                entry = self._shelf.current.places.get((partition, space.id, number))
                place = Place(partition, space, number)
                if entry is not None and await self._is_worn(place, entry):
                    self._touched.add((partition, number))  # for the other spaces, and for this one again
                    return place
        return None

    def _touch_late(self) -> None:
        for partition, space in self._places:
            late = self._embedder.work(partition, space).late
            if self._late_seen.get((partition, space.id), 0) != late:
                self._late_seen[partition, space.id] = late
                prefix = in_space(LATE, partition, space_tag(space.id))
                for key, _ in self._kv.scan(prefix, prefix_end(prefix)):
                    self.touch(partition, ordinal_of(key))

    async def _is_worn(self, place: Place, entry: ShardEntry) -> bool:
        limit = self._dead_share_max * entry.count
        start, stop = self._bounds(place)
        died = self._columns.get(place.partition).died(start, stop)
        many_dead = int(((died > entry.floor) & (died != NEVER)).sum()) > limit
        work = self._embedder.work(place.partition, place.space)
        if not many_dead and not work.late:
            return False
        ordinals = np.empty(0, dtype=np.uint32)
        if entry.graph is not None:
            shard = await self._loaded(place, entry)
            if shard is None:
                return True
            ordinals = shard.ordinals
        if many_dead and floor_of(died[ordinals - start], self._dead_share_max) > entry.floor:
            return True
        late = Block(place.space, place.partition, start, stop, beside=ordinals)
        late.refresh(self._kv, work)
        return late.ordinals.size > limit and not self._retries(place)

    async def _loaded(self, place: Place, entry: ShardEntry) -> Shard | None:
        if entry in self._shelf.missing():
            self._shelf.put(entry, await self._workers.run(self._shelf.reader(entry, place.space)))
        return self._shelf.shard(entry, place.space)

    def _retries(self, place: Place) -> bool:
        """Whether a row of the range is still to be tried again."""
        start, stop = self._bounds(place)
        prefix = in_space(RETRY, place.partition, space_tag(place.space.id))
        return any(True for _ in self._kv.scan(prefix + u32(start), prefix + u32(stop)))

    async def build(self, place: Place) -> None:
        """1 files, 2 the rows they come from, 3 the manifest: each durable before the next; then go over to it.

        Rows may come into the store meanwhile. One of the range itself comes late, whether the shard has it or not.
        """
        shelf, effort = self._shelf, Effort()
        generation = shelf.next_generation()
        plan = self._plan(place, generation)
        entry = await self._beside(lambda: build_shard(self._kv, self._files, shelf.directory, plan, effort), effort)
        await self._beside(self._kv.sync, effort)
        manifest, commit = shelf.committer(entry, generation)
        await self._beside(commit, effort)
        loaded = None if entry.graph is None else await self._beside(shelf.reader(entry, place.space), effort)
        shelf.advance(manifest)
        if loaded is not None:
            shelf.put(entry, loaded)
        self._blocks.drop(place.partition, place.space, place.range)

    async def _beside(self, call: Callable[[], T], effort: Effort) -> T:
        """A call in a worker. It ends before this task does, cancelled or not: the store may be closed next."""
        running = asyncio.ensure_future(self._workers.run(call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            effort.given_up = True
            await asyncio.wait({running})
            raise

    def _plan(self, place: Place, generation: int) -> Plan:
        start, stop = self._bounds(place)
        tag = space_tag(place.space.id).hex()
        died: NDArray[np.int64] = self._columns.get(place.partition).died(start, stop)
        return Plan(
            space=place.space,
            partition=place.partition,
            range=place.range,
            start=start,
            died=died,
            position=self._applied(place.partition),
            dead_share_max=self._dead_share_max,
            parameters=Parameters(),
            name=f"{place.partition:05d}-{tag}-{place.range:06d}-{generation:08d}",
        )

    def _bounds(self, place: Place) -> tuple[int, int]:
        start = place.range * self._shard_rows
        return start, start + self._shard_rows
