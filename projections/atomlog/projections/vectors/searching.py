"""Search over what a store has: sealed shards, the tail behind them, and late rows beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atomlog.kernel.errors import fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.kv import prefix_end
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Kv
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.vectors.blocks import Block, Blocks
from atomlog.projections.vectors.columns import ColumnsByPartition, Mask
from atomlog.projections.vectors.embedding import Embedder
from atomlog.projections.vectors.layout import (
    FAILED,
    RETRY,
    Ending,
    Row,
    Trouble,
    Work,
    in_space,
    ordinal_of,
    row_key,
    space_tag,
)
from atomlog.projections.vectors.manifest import Manifest, ShardEntry
from atomlog.projections.vectors.scoring import query_row
from atomlog.projections.vectors.search import Found, Hit, SearchResult, Source, candidates
from atomlog.projections.vectors.shelf import Shelf

_LATE_BLOCKS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What of one partition is searched. `eligible` by ordinal."""

    partition: int
    work: Work
    eligible: Mask


class Searcher:
    def __init__(
        self,
        *,
        kv: Kv,
        shelf: Shelf,
        blocks: Blocks,
        columns: ColumnsByPartition,
        embedder: Embedder,
        shard_rows: int,
        exact_rows_max: int,
    ) -> None:
        self._kv = kv
        self._shelf = shelf
        self._blocks = blocks
        self._columns = columns
        self._embedder = embedder
        self._shard_rows = shard_rows
        self._exact_rows_max = exact_rows_max
        self._late: dict[tuple[int, str, int, str], Block] = {}
        self._troubled: dict[tuple[int, str], tuple[int, NDArray[np.int64]]] = {}

    def search(
        self,
        space: VectorSpace,
        query: ArrayLike,
        k: int,
        at: Positions,
        allowed: Mapping[int, Bitmap] | None,
        generation: int | None,
    ) -> SearchResult:
        """1 what is eligible, 2 candidates of every source, 3 the k best of all."""
        if k < 1:
            raise invalid("k", f"{k} rows cannot be asked for; 1 or more can")
        row = query_row(space, query)
        manifest = self._shelf.manifest(generation)
        scopes = self._scopes(space, at, allowed, manifest)
        unembedded = sum(self._unembedded(space, scope) for scope in scopes)
        if row is None:
            return SearchResult(hits=(), approximate=False, unembedded=unembedded)
        exact = sum(int(scope.eligible.sum()) for scope in scopes) <= self._exact_rows_max
        found = {
            scope.partition: candidates(
                space.metric, self._sources(space, scope, manifest), scope.eligible, row, k, exact=exact
            )
            for scope in scopes
        }
        approximate = any(one.approximate for one in found.values())
        return SearchResult(hits=self._best(found, k), approximate=approximate, unembedded=unembedded)

    def _scopes(
        self, space: VectorSpace, at: Positions, allowed: Mapping[int, Bitmap] | None, manifest: Manifest
    ) -> list[_Scope]:
        scopes: list[_Scope] = []
        for partition, position in sorted(at.items()):
            if position < 0 or (allowed is not None and partition not in allowed):
                continue
            floor = manifest.floor(partition, space.id)
            if position < floor:
                message = f"vectors of {space.id} can be searched as of positions ≥ {floor} of partition {partition}"
                raise fail("CONSISTENCY_UNAVAILABLE", f"{message}, not as of {position}; read as of a later one")
            members = None if allowed is None else allowed[partition]
            eligible = self._columns.get(partition).eligible(position, members)
            work = self._embedder.work(partition, space)
            scopes.append(_Scope(partition=partition, work=work, eligible=eligible))
        return scopes

    def _sources(self, space: VectorSpace, scope: _Scope, manifest: Manifest) -> list[Source]:
        """Ranges without a shard, and those whose shard cannot be read, are blocks of rows."""
        sources: list[Source] = []
        for number in range(math.ceil(scope.work.cursor / self._shard_rows)):
            start, stop = number * self._shard_rows, (number + 1) * self._shard_rows
            if not scope.eligible[start:stop].any():
                continue
            entry = manifest.places.get((scope.partition, space.id, number))
            if entry is None or scope.work.cursor < stop:
                sources.append(_of_block(self._blocks.get(scope.partition, space, number, scope.work)))
            else:
                sources += self._of_shard(space, scope, entry)
        return sources

    def _of_shard(self, space: VectorSpace, scope: _Scope, entry: ShardEntry) -> list[Source]:
        found: list[Source] = []
        ordinals = np.empty(0, dtype=np.uint32)
        if entry.graph is not None:
            shard = self._shelf.shard(entry, space)
            if shard is None:
                return [_of_block(self._blocks.get(scope.partition, space, entry.range, scope.work))]
            ordinals = shard.ordinals
            found.append(Source(ordinals=ordinals, rows=shard.rows, norms=shard.norms, graph=shard.graph))
        if scope.work.late:
            late = self._late_block(space, scope, entry, ordinals)
            if late.ordinals.size:
                found.append(_of_block(late))
        return found

    def _late_block(self, space: VectorSpace, scope: _Scope, entry: ShardEntry, beside: NDArray[np.uint32]) -> Block:
        key = (scope.partition, space.id, entry.range, entry.content_sha256)
        if key not in self._late:
            if len(self._late) >= _LATE_BLOCKS_MAX:
                self._late.clear()
            start = entry.range * self._shard_rows
            self._late[key] = Block(space, scope.partition, start, start + self._shard_rows, beside=beside)
        self._late[key].refresh(self._kv, scope.work)
        return self._late[key]

    def _unembedded(self, space: VectorSpace, scope: _Scope) -> int:
        """Eligible rows that should have a vector and have none."""
        waiting = int(scope.eligible[scope.work.cursor :].sum())
        if not scope.work.troubled:
            return waiting
        key = scope.partition, space.id
        version, ordinals = self._troubled.get(key, (-1, np.empty(0, dtype=np.int64)))
        if version != scope.work.version:
            ordinals = np.array(self._troubles(space, scope.partition), dtype=np.int64)
            self._troubled[key] = scope.work.version, ordinals
        return waiting + int(scope.eligible[ordinals].sum())

    def _troubles(self, space: VectorSpace, partition: int) -> list[int]:
        prefixes = [in_space(tag, partition, space_tag(space.id)) for tag in (RETRY, FAILED)]
        return [
            ordinal_of(key)
            for prefix in prefixes
            for key, raw in self._kv.scan(prefix, prefix_end(prefix))
            if Trouble.from_bytes(raw).ending != Ending.PURGED
        ]

    def _best(self, found: Mapping[int, Found], k: int) -> tuple[Hit, ...]:
        """The k of highest score over all partitions, equal ones by atom id."""
        scores = [one.scores for one in found.values()]
        every = np.concatenate(scores) if scores else np.empty(0, dtype=np.float32)
        least = np.partition(every, every.size - k)[every.size - k] if every.size > k else -np.inf
        hits = [hit for partition, one in found.items() for hit in self._hits(partition, one, least)]
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.atom))[:k])

    def _hits(self, partition: int, found: Found, least: float) -> Sequence[Hit]:
        chosen = found.scores >= least
        keys = [row_key(partition, ordinal) for ordinal in found.ordinals[chosen].tolist()]
        rows = [Row.from_bytes(raw) for raw in self._kv.get_many(keys)]
        return [
            Hit(atom=row.atom, revision=row.revision, partition=partition, score=score)
            for row, score in zip(rows, found.scores[chosen].tolist(), strict=True)
        ]


def _of_block(block: Block) -> Source:
    return Source(ordinals=block.ordinals, rows=block.rows, norms=block.norms, graph=None)
