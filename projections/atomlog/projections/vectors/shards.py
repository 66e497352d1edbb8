"""One shard on disk: a file of rows and a graph over them, written once, verified before they are loaded.

The rows file is count · dim float32 little-endian, then count ordinals u32 little-endian, ascending; it is mapped
into memory, which the `Files` port does not offer. The graph file is hnswlib's own.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import u16, u32
from atomlog.kernel.ports import Files, Kv
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.vectors.blocks import F32
from atomlog.projections.vectors.hnsw import Effort, Graph, Parameters
from atomlog.projections.vectors.layout import NEVER, ROW, VECTOR, Row, in_space, space_tag
from atomlog.projections.vectors.manifest import ShardEntry, ShardFile
from atomlog.projections.vectors.scoring import Doubles, Matrix, norms_of

U32: Final = np.dtype("<u4")
_CHUNK_BYTES: Final = 1024 * 1024
_CHUNK_ROWS: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A shard to be built. `died[i]` is when the row `start + i` died, as of `position`."""

    space: VectorSpace
    partition: int
    range: int
    start: int
    died: NDArray[np.int64]
    position: int
    dead_share_max: float
    parameters: Parameters
    name: str  # of its files, new for each build


@dataclass(slots=True, kw_only=True)
class Shard:
    """A loaded shard. `ordinals` ascend."""

    entry: ShardEntry
    space: VectorSpace
    graph: Graph
    rows: Matrix
    ordinals: NDArray[np.uint32]
    _norms: Doubles | None = field(default=None, init=False)

    @property
    def norms(self) -> Doubles | None:
        """The length of each row; None under cosine, where it is 1."""
        if self._norms is None and self.space.metric != "cosine":
            self._norms = norms_of(self.rows)
        return self._norms


def floor_of(died: NDArray[np.int64], dead_share_max: float) -> int:
    """The position at which rows were last to be dropped; −1 = never.

    Rows are dropped at the first position at which more than the share of those not yet dropped is dead, again and
    again. So what a shard holds follows from the log, not from when somebody got round to building it.
    """
    positions, counts = np.unique(died[died != NEVER], return_counts=True)
    floor, base, dead = -1, len(died), 0
    for position, count in zip(positions.tolist(), counts.tolist(), strict=True):
        dead += count
        if dead > dead_share_max * base:
            floor, base, dead = position, base - dead, 0
    return floor


def build_shard(kv: Kv, files: Files, directory: str, plan: Plan, effort: Effort) -> ShardEntry:
    """Write the files of a shard, durably, and say what they are. Blocks; only point reads of the store.

    GivenUp soon after the effort was given up.
    """
    ordinals, rows, revisions = _collect(kv, plan)
    died = plan.died[ordinals - plan.start]
    floor = floor_of(died, plan.dead_share_max)
    kept = died > floor
    ordinals, rows = ordinals[kept], rows[kept]
    revisions = [revision for revision, stays in zip(revisions, kept.tolist(), strict=True) if stays]
    _check_rows(plan.space, rows, plan.name)
    graph_file = rows_file = None
    if len(rows):
        rows_file = _write_rows(files, directory, f"{plan.name}.rows", rows, ordinals)
        graph_file = _write_graph(files, directory, f"{plan.name}.hnsw", plan, rows, ordinals, effort)
        files.sync_directory(directory)
    return ShardEntry(
        partition=plan.partition,
        space=plan.space.id,
        range=plan.range,
        count=len(rows),
        dim=plan.space.dim,
        floor=floor,
        position=plan.position,
        links=plan.parameters.links,
        build_width=plan.parameters.build_width,
        content_sha256=_content_digest(ordinals, revisions, rows),
        graph=graph_file,
        rows=rows_file,
    )


def load_shard(files: Files, directory: str, entry: ShardEntry, space: VectorSpace) -> Shard:
    """Verify both files, then load them. CORRUPT naming the file; FileNotFoundError."""
    assert entry.graph is not None
    assert entry.rows is not None
    for file in entry.files:
        verify_file(files, directory, file)
    rows, ordinals = _map_rows(f"{directory}/{entry.rows.name}", entry)
    graph = Graph.load(space.metric, entry.dim, entry.count, f"{directory}/{entry.graph.name}")
    return Shard(entry=entry, space=space, graph=graph, rows=rows, ordinals=ordinals)


def verify_file(files: Files, directory: str, expected: ShardFile) -> None:
    """CORRUPT naming the file when its bytes are not those that were written; FileNotFoundError."""
    found = _describe(files, directory, expected.name)
    if found != expected:
        message = (
            f"{directory}/{expected.name} is not what was written (SHA-256 {found.sha256[:16]}…, {found.size_bytes}"
        )
        raise fail("CORRUPT", f"{message} bytes); it is built anew from the rows")


def _collect(kv: Kv, plan: Plan) -> tuple[NDArray[np.uint32], Matrix, list[bytes]]:
    """The rows of the range that have a vector: ordinals, vectors, revisions."""
    vectors = in_space(VECTOR, plan.partition, space_tag(plan.space.id))
    ordinals: list[int] = []
    parts: list[bytes] = []
    revisions: list[bytes] = []
    stop = plan.start + len(plan.died)
    for first in range(plan.start, stop, _CHUNK_ROWS):
        chunk = range(first, min(first + _CHUNK_ROWS, stop))
        found = kv.get_many([vectors + u32(ordinal) for ordinal in chunk])
        have = [(ordinal, vector) for ordinal, vector in zip(chunk, found, strict=True) if vector is not None]
        ordinals += [ordinal for ordinal, _ in have]
        parts += [vector for _, vector in have]
        stored = kv.get_many([ROW + u16(plan.partition) + u32(ordinal) for ordinal, _ in have])
        revisions += [Row.from_bytes(raw).revision for raw in stored]
    rows = np.frombuffer(b"".join(parts), dtype=F32).reshape(len(parts), plan.space.dim)
    return np.array(ordinals, dtype=np.uint32), rows, revisions


def _check_rows(space: VectorSpace, rows: Matrix, name: str) -> None:
    """The last gate before an index: numbers that are not finite, or no direction under cosine, break searches."""
    finite = np.isfinite(rows).all(axis=1)
    directed = rows.any(axis=1) if space.metric == "cosine" else np.ones(len(rows), dtype=np.bool_)
    wrong = np.flatnonzero(~(finite & directed))
    if wrong.size:
        message = f"shard {name}: row {int(wrong[0])} is not finite, or all zeros under {space.metric}"
        raise fail("CORRUPT", f"{message}; rebuild vectors")


def _write_rows(files: Files, directory: str, name: str, rows: Matrix, ordinals: NDArray[np.uint32]) -> ShardFile:
    temporary = f"{directory}/{name}.tmp"
    file = files.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        for start in range(0, len(rows), _CHUNK_ROWS):
            file.append(rows[start : start + _CHUNK_ROWS].astype(F32).tobytes())
        file.append(ordinals.astype(U32).tobytes())
        file.sync()
    finally:
        file.close()
    files.replace(temporary, f"{directory}/{name}")
    return _describe(files, directory, name)


def _write_graph(
    files: Files,
    directory: str,
    name: str,
    plan: Plan,
    rows: Matrix,
    ordinals: NDArray[np.uint32],
    effort: Effort,
) -> ShardFile:
    temporary = f"{directory}/{name}.tmp"
    Graph.build(plan.space.metric, rows, ordinals, plan.parameters, effort).save(temporary)
    file = files.open(temporary, write=True)
    try:
        file.sync()
    finally:
        file.close()
    files.replace(temporary, f"{directory}/{name}")
    return _describe(files, directory, name)


def _map_rows(path: str, entry: ShardEntry) -> tuple[Matrix, NDArray[np.uint32]]:
    mapped = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    split = entry.count * entry.dim * F32.itemsize
    rows: Matrix = mapped[:split].view(F32).reshape(entry.count, entry.dim)
    ordinals: NDArray[np.uint32] = mapped[split:].view(U32)
    return rows, ordinals


def _content_digest(ordinals: NDArray[np.uint32], revisions: Sequence[bytes], rows: Matrix) -> str:
    digest = hashlib.sha256()
    for ordinal, revision, row in zip(ordinals.tolist(), revisions, rows, strict=True):
        digest.update(u32(ordinal) + revision + row.astype(F32).tobytes())
    return digest.hexdigest()


def _describe(files: Files, directory: str, name: str) -> ShardFile:
    digest = hashlib.sha256()
    file = files.open(f"{directory}/{name}", write=False)
    try:
        at, size = 0, file.size()
        while chunk := file.read_at(at, _CHUNK_BYTES):
            digest.update(chunk)
            at += len(chunk)
    finally:
        file.close()
    return ShardFile(name=name, size_bytes=size, sha256=digest.hexdigest())
