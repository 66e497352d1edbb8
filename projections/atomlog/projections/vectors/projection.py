"""The vectors projection: rows by the log; embedding, shards and search over them."""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from numpy.typing import ArrayLike

from atomlog.kernel import jsontext
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.kv import Staged, prefix_end, u16, u32
from atomlog.kernel.model import Positions
from atomlog.kernel.ordinals import Ordinals
from atomlog.kernel.ports import Files, Kv, Workers
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import Checkpoint, EffectiveRecord
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.base import KvProjection, batch_of
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.encoders import Encoder
from atomlog.projections.slices import is_retired, mentioned, slice_revision
from atomlog.projections.vectors.blocks import Blocks
from atomlog.projections.vectors.cache import EmbeddingCache
from atomlog.projections.vectors.columns import ColumnsByPartition
from atomlog.projections.vectors.embedding import Embedder
from atomlog.projections.vectors.layout import (
    BUILT_FOR,
    FAILED,
    NEVER,
    OPEN_ROW,
    ORDINALS,
    ORDINALS_MAX,
    QUEUE,
    RETRY,
    ROW,
    VECTOR,
    Row,
    Trouble,
    Work,
    death_key,
    in_space,
    ordinal_of,
    row_key,
    space_tag,
)
from atomlog.projections.vectors.sealing import Place, Sealer
from atomlog.projections.vectors.search import EXACT_ROWS_MAX, SearchResult
from atomlog.projections.vectors.searching import Searcher
from atomlog.projections.vectors.shelf import Shelf
from atomlog.schemas.revision import ATOM, PREVIOUS, REVISION, ZERO16

TROUBLES_LISTED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledRow:
    """A revision without a vector in a space, and why."""

    partition: int
    space: str
    atom: bytes
    revision: bytes
    trouble: Trouble


class Vectors(KvProjection):
    """Nearest atoms in each declared vector space.

    `apply` only registers rows; vectors come by `step`, which the follower calls in the background and which never
    holds positions back. A position that is not applied yet can be searched as of: it sees what there is.
    """

    name = "vectors"
    content = (ROW,)

    def __init__(
        self,
        kv: Kv,
        partitions: int,
        *,
        spaces: Sequence[VectorSpace],
        shard_rows: int,
        directory: str,
        files: Files,
        workers: Workers,
        settings: Settings,
        content: ContentOpener | None = None,
        encoders: Mapping[str, Encoder] | None = None,
        cache: Kv | None = None,
        exact_rows_max: int = EXACT_ROWS_MAX,
    ) -> None:
        """`directory` is for shards alone. For `step`: `content` opens revisions, `encoders` by space id, `cache` is
        the store of embeddings, which the caller closes. Rows of a space without an encoder wait.

        With a `kv` that only reads, everything but `apply`, `step` and `retry_failed` works.

        Raises:
            CORRUPT: it was built for other spaces or another `shard_rows` and must be rebuilt.
            INVALID_INPUT: an encoder is for another space than the one it is given for.
        """
        super().__init__(kv, partitions)
        self.spaces: Mapping[str, VectorSpace] = {space.id: space for space in spaces}
        self._content = content
        self._encoders = _checked(encoders or {})
        self._workers = workers
        self._built_for = jsontext.canonical({"shard_rows": shard_rows, "spaces": sorted(self.spaces)})
        self._check_built_for(shard_rows)
        self._cache = None if cache is None else EmbeddingCache(cache)
        self._ordinals = Ordinals(kv, ORDINALS)
        self._shelf = Shelf(files, directory, shard_rows=shard_rows, writable=kv.writable)
        self._columns = ColumnsByPartition(kv)
        self._blocks = Blocks(kv, shard_rows)
        self._embedder = Embedder(kv, list(spaces), self._cache, settings)
        self._sealer = Sealer(
            kv=kv,
            shelf=self._shelf,
            blocks=self._blocks,
            columns=self._columns,
            embedder=self._embedder,
            files=files,
            workers=workers,
            spaces=list(spaces),
            partitions=partitions,
            shard_rows=shard_rows,
            dead_share_max=settings.shard_dead_share_max,
            applied=lambda partition: self.checkpoint(partition).position - 1,
        )
        self._searcher = Searcher(
            kv=kv,
            shelf=self._shelf,
            blocks=self._blocks,
            columns=self._columns,
            embedder=self._embedder,
            shard_rows=shard_rows,
            exact_rows_max=exact_rows_max,
        )
        self._turn = 0
        self._stepping = False

    # --- search -------------------------------------------------------------------------------------------

    def search(
        self,
        space: str,
        query: ArrayLike,
        k: int,
        at: Positions,
        allowed: Mapping[int, Bitmap] | None = None,
        *,
        generation: int | None = None,
    ) -> SearchResult:
        """The k nearest atoms of the partitions in `at`, alive as of its positions; fewer when there are fewer.

        `query`: `dim` finite numbers; one of all zeros finds nothing under cosine. `allowed`: atom ordinals by
        partition, None = all. `generation`: a pinned manifest, None = the current one. Scores: see `scoring`.

        Raises:
            INVALID_INPUT: an undeclared space, a query that is no vector of it, k < 1.
            CONSISTENCY_UNAVAILABLE: a position below the floor.
            CURSOR_EXPIRED: the generation is not kept any more.
        """
        return self._searcher.search(self._space(space), query, k, at, allowed, generation)

    @property
    def generation(self) -> int:
        """Of the current manifest; 0 before the first shard."""
        return self._shelf.current.generation

    @property
    def pins(self) -> Mapping[int, int]:
        """Pinned manifest generation → how often."""
        return dict(self._shelf.pins)

    def pin(self, generation: int) -> None:
        """Keep a manifest generation searchable until as many `unpin`. CURSOR_EXPIRED when it is gone."""
        self._shelf.pin(generation)

    def unpin(self, generation: int) -> None:
        self._shelf.unpin(generation)

    def floors(self) -> Mapping[int, int]:
        return {partition: self._shelf.current.floor(partition) for partition in range(self.partitions)}

    # --- background work ----------------------------------------------------------------------------------

    async def step(self) -> bool:
        """One bounded piece of background work: a batch of embeddings, or a shard and those that fit beside it.

        True: something got further, call again at once. False: nothing to do, or nothing that can be done now
        (an encoder is down: `outages`; rows wait for another try): call again after a pause. One call at a time; a
        second one returns False.
        """
        self._require_writable()
        if self._stepping:
            return False
        self._stepping = True
        try:
            place = await self._sealer.due()
            return await self._embed() if place is None else await self._seal(place)
        finally:
            self._stepping = False

    async def _seal(self, place: Place) -> bool:
        """Build a shard. A worker is at its graph for long, and lets go of the interpreter: embedding goes on."""
        building = asyncio.ensure_future(self._sealer.build(place))
        try:
            while not building.done() and await self._embed():
                await asyncio.sleep(0)  # what is cached is embedded without a pause
            await building
        finally:
            building.cancel()
            await asyncio.wait({building})
        return True

    async def load(self) -> None:
        """Verify and load every current shard beside the event loop, so that no search has to."""
        for entry in self._shelf.missing():
            if space := self.spaces.get(entry.space):
                self._shelf.put(entry, await self._workers.run(self._shelf.reader(entry, space)))

    def retry_failed(self) -> int:
        """Try again what failed or had no key; how many rows. Not for what was erased."""
        self._require_writable()
        places = ((partition, space) for partition in range(self.partitions) for space in self.spaces.values())
        return sum(self._embedder.retry_failed(partition, space) for partition, space in places)

    # --- state --------------------------------------------------------------------------------------------

    @property
    def outages(self) -> Mapping[str, str]:
        """Space id → why its encoder is down, as of the last `step`."""
        return self._embedder.outages

    @property
    def faults(self) -> Mapping[str, str]:
        """Path of a shard file → what is wrong with it, until it was built anew; its rows are searched exactly."""
        return self._shelf.faults

    @property
    def incidents(self) -> Sequence[str]:
        """Damaged files that were found, and their repair; the last hundred, oldest first."""
        fault = None if self._cache is None else self._cache.fault
        return (*self._shelf.incidents, *([] if fault is None else [fault]))

    def work(self, partition: int, space: str) -> Work:
        return self._embedder.work(partition, self._space(space))

    def unembedded(self, space: str) -> int:
        """Rows that should have a vector in a space and have none, dead ones included."""
        works = {partition: self.work(partition, space) for partition in range(self.partitions)}
        return sum(self.rows(partition) - work.cursor + work.troubled for partition, work in works.items())

    def troubles(self, space: str, *, limit: int = TROUBLES_LISTED) -> list[TroubledRow]:
        """Rows without a vector that were looked at, with the last error of each."""
        return list(islice(self._troubles(self._space(space)), limit))

    # --- projection ---------------------------------------------------------------------------------------

    def digest(self, partition: int) -> bytes:
        """SHA-256 over the rows and every (space, ordinal, vector). Equal only when embedding is equally far."""
        digest = hashlib.sha256(super().digest(partition))
        for space in self._spaces_by_tag():
            prefix = in_space(VECTOR, partition, space_tag(space.id))
            for key, vector in self.kv.scan(prefix, prefix_end(prefix)):
                digest.update(key + vector)
        return digest.digest()

    def verify(self, partition: int) -> int:
        """Also counts the vectors and reads every shard file. Blocks."""
        counted = super().verify(partition)
        for space in self._spaces_by_tag():
            prefix = in_space(VECTOR, partition, space_tag(space.id))
            vectors = sum(1 for _ in self.kv.scan(prefix, prefix_end(prefix)))
            kept = self.work(partition, space.id).embedded
            if vectors != kept:
                message = f"vectors: partition {partition} has {vectors} vectors of {space.id}, {kept} were counted"
                raise fail("CORRUPT", f"{message} while running; rebuild it")
        for entry in self._shelf.current.shards:
            if entry.partition == partition:
                self._shelf.verify(entry)
        return counted

    def sync(self) -> None:
        super().sync()
        if self._cache is not None:
            self._cache.sync()

    def close(self) -> None:
        self._shelf.close()
        super().close()

    def catch_up(self) -> None:
        """The manifest first: the rows of its shards were durable before it."""
        if not self.kv.writable:
            self._shelf.reload()
        super().catch_up()

    def _effects_of_all(
        self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint, staged: Staged
    ) -> None:
        if self.kv.get(BUILT_FOR) != self._built_for:
            staged.put(BUILT_FOR, self._built_for)
        changes = [(record.position, revision) for record in records for revision in batch_of(record).revisions]
        puts: list[tuple[bytes, bytes]] = []
        mentions = (mentioned(revision, slice_revision(revision)) for _, revision in changes)
        atom_ordinals = self._ordinals.assign(partition, chain.from_iterable(mentions), puts)
        staged.put_all(puts)
        next_ordinal = self.rows(partition)
        for position, revision in changes:
            atom_ordinal = atom_ordinals[revision[ATOM]]
            if revision[PREVIOUS] != ZERO16:
                self._close_row(partition, atom_ordinal, position, staged)
            if not is_retired(revision):
                self._open_row(partition, next_ordinal, atom_ordinal, position, revision, staged)
                next_ordinal += 1

    def _close_row(self, partition: int, atom_ordinal: int, position: int, staged: Staged) -> None:
        open_key = OPEN_ROW + u16(partition) + u32(atom_ordinal)
        number = staged.get(open_key)
        if number is None:
            return
        ordinal = int.from_bytes(number, "big")
        row = Row.from_bytes(staged.get(row_key(partition, ordinal)))
        closed = Row(row.atom_ordinal, row.born, position, row.atom, row.revision)
        staged.put(row_key(partition, ordinal), closed.to_bytes())
        staged.put(death_key(partition, position, ordinal), b"")
        staged.delete(open_key)
        self._sealer.touch(partition, ordinal)

    def _open_row(
        self, partition: int, ordinal: int, atom_ordinal: int, position: int, revision: bytes, staged: Staged
    ) -> None:
        if ordinal >= ORDINALS_MAX:
            raise fail("CORRUPT", f"vectors: partition {partition} has {ordinal} rows, more than ordinals can number")
        row = Row(atom_ordinal, position, NEVER, revision[ATOM], revision[REVISION])
        staged.insert(row_key(partition, ordinal), row.to_bytes())
        staged.put(OPEN_ROW + u16(partition) + u32(atom_ordinal), u32(ordinal))
        if self.spaces:
            staged.put(QUEUE + u16(partition) + u32(ordinal), revision)

    async def _embed(self) -> bool:
        """A batch of the next place that gets further, each in its turn."""
        places = [(partition, space) for partition in range(self.partitions) for space in self.spaces.values()]
        for offset in range(len(places) if self._content else 0):
            turn = (self._turn + offset) % len(places)
            partition, space = places[turn]
            encoder = self._encoders.get(space.id)
            if encoder is None or self._content is None:
                continue
            if await self._embedder.advance(partition, space, encoder, self._content, self.rows(partition)):
                self._turn = turn + 1
                return True
        return False

    def _troubles(self, space: VectorSpace) -> Iterator[TroubledRow]:
        for partition in range(self.partitions):
            for tag in (RETRY, FAILED):
                prefix = in_space(tag, partition, space_tag(space.id))
                for key, raw in self.kv.scan(prefix, prefix_end(prefix)):
                    row = Row.from_bytes(self.kv.get(row_key(partition, ordinal_of(key))))
                    yield TroubledRow(
                        partition=partition,
                        space=space.id,
                        atom=row.atom,
                        revision=row.revision,
                        trouble=Trouble.from_bytes(raw),
                    )

    def _space(self, space: str) -> VectorSpace:
        found = self.spaces.get(space)
        if found is None:
            raise invalid("space", f"{space!r} is no vector space of this store; declared: {', '.join(self.spaces)}")
        return found

    def _spaces_by_tag(self) -> list[VectorSpace]:
        return sorted(self.spaces.values(), key=lambda space: space_tag(space.id))

    def _require_writable(self) -> None:
        if not self.kv.writable:
            raise fail("STORE_READ_ONLY", f"{self.name} is open beside its follower and only reads")

    def _check_built_for(self, shard_rows: int) -> None:
        raw = self.kv.get(BUILT_FOR)
        if raw is None or not any(self.rows(partition) for partition in range(self.partitions)):
            return
        built = jsontext.loads(raw)
        added = sorted(self.spaces.keys() - set(built["spaces"]))
        if built["shard_rows"] != shard_rows or added:
            told = f"{shard_rows} rows a shard and the spaces {', '.join(self.spaces)}"
            had = f"{built['shard_rows']} rows and {', '.join(built['spaces'])}"
            way_out = "put the right store.json back, or rebuild vectors"
            raise fail("CORRUPT", f"vectors was built for {had}, store.json declares {told}; {way_out}")


def _checked(encoders: Mapping[str, Encoder]) -> Mapping[str, Encoder]:
    for space, encoder in encoders.items():
        if encoder.space.id != space:
            raise invalid("encoders", f"the encoder given for {space} is one of {encoder.space.id}")
    return encoders
