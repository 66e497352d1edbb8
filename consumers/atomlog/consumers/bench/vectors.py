"""P4: how fast the log becomes an index of vectors, against hnswlib alone with the same vectors.

Embeddings are in the cache, as in a rebuild: what is left is opening the content, looking embeddings up, keeping rows
and building graphs of the same size with the same parameters.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import hnswlib
import numpy as np
from numpy.typing import NDArray

from atomlog.consumers.applier import PartitionApplier
from atomlog.consumers.bench.corpus import Corpus
from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale
from atomlog.consumers.bench.replay import MIB, opened_log
from atomlog.consumers.bench.stopwatch import peak_rss_bytes, stopwatch
from atomlog.consumers.parts import Parts, projection_kind
from atomlog.consumers.processes import make_no_cycles
from atomlog.consumers.rebuild_job import REPLAY_BYTES
from atomlog.consumers.store import AsyncStore
from atomlog.projections.vectors import Vectors
from atomlog.projections.vectors.hnsw import Parameters

SHARD_ROWS: Final[Mapping[Scale, int]] = {"smoke": 25, "small": 500, "normal": 6_000, "large": 50_000}
SHARDS: Final = 4
QUERIES: Final = 100
NEAREST: Final = 10
SAME_SCORE: Final = 1e-6  # scores are float32
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedVectors:
    id: str = "P4"
    title: str = "Replay of the log into vectors, embeddings cached"
    unit: str = "vectors/s"
    measure: Measure = "rate"
    base_name: str = "hnswlib add_items of the same vectors, one thread"
    goals: Sequence[Goal] = (
        Goal(text="≥ 0.9 ×", of="ratio", value=0.9, better="higher"),
        Goal(text="recall@10 ≥ 0.99", of="recall_at_10", value=0.99, better="higher"),
    )
    peers: Sequence[str] = ()
    notes: str = (
        f"{SHARDS} shards of 512 dimensions, each full, so that every row is in a graph; M and ef_construction are the "
        "product's. Recall is that of the product's search against all rows."
    )

    def prepare(self, bench: Bench) -> None:
        """A store of texts, its embedding cache, and the vectors in a file for the base."""
        asyncio.run(self._prepare(bench))

    def ours(self, bench: Bench) -> Sample:
        make_no_cycles()
        return asyncio.run(self._ours(bench))

    def base(self, bench: Bench) -> Sample:
        rows: Rows = np.load(f"{bench.directory}/rows.npy")
        size, graphs = SHARD_ROWS[bench.scale], []
        with stopwatch(bench.machine.clock) as took:
            for first in range(0, len(rows), size):
                graphs.append(_graph(rows[first : first + size], first))
        found = sum(graph.get_current_count() for graph in graphs)
        return Sample(units=len(rows), wall_s=took.wall_s, cpu_s=took.cpu_s, checked=found)

    async def _prepare(self, bench: Bench) -> None:
        store, count = f"{bench.directory}/store", SHARDS * SHARD_ROWS[bench.scale]
        corpus = Corpus()
        await AsyncStore.init(store, shard_rows=SHARD_ROWS[bench.scale], machine=bench.machine)
        async with AsyncStore.open(store, machine=bench.machine, projections=(), follow=False) as opened:
            for _ in range(0, count, 50):
                await opened.write(corpus.texts(50))
        texts = [corpus.text() for _ in range(QUERIES)]
        async with opened_log(store, bench.machine) as parts:
            built = bench.scratch()
            (await _built(parts, built)).close()
            (encoder,) = parts.encoders.values()
            np.save(f"{bench.directory}/queries.npy", [await encoder.encode_query(text) for text in texts])
            np.save(f"{bench.directory}/rows.npy", _rows_of(bench, f"{built}/shards", encoder.space.dim))

    async def _ours(self, bench: Bench) -> Sample:
        queries: Rows = np.load(f"{bench.directory}/queries.npy")
        rows: Rows = np.load(f"{bench.directory}/rows.npy")
        async with opened_log(f"{bench.directory}/store", bench.machine) as parts:
            with stopwatch(bench.machine.clock) as took:
                projection = await _built(parts, bench.scratch())
            (space,) = parts.spaces
            found = projection.work(0, space).embedded
            figures = {
                "peak_rss_mib": peak_rss_bytes() / MIB,
                "recall_at_10": _recall(projection, space, queries, rows),
            }
            projection.close()
        return Sample(units=len(rows), wall_s=took.wall_s, cpu_s=took.cpu_s, checked=found, figures=figures)


async def _built(parts: Parts, directory: str) -> Vectors:
    """Replayed and embedded, every shard sealed and everything durable: what a rebuild does before it compares."""
    kind = projection_kind(parts, "vectors")
    projection = kind.open_primary(directory)
    assert isinstance(projection, Vectors)
    applier, end = PartitionApplier(parts.context, projection, 0), await parts.log.end(0)
    while applier.position < end:
        await applier.advance(lambda: end, bytes_max=REPLAY_BYTES)
    while await projection.step():
        pass
    projection.sync()
    return projection


def _graph(rows: Rows, first: int) -> Any:
    parameters = Parameters()
    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(len(rows), M=parameters.links, ef_construction=parameters.build_width, random_seed=100)
    index.add_items(rows, np.arange(first, first + len(rows)), num_threads=1)
    return index


def _rows_of(bench: Bench, directory: str, dim: int) -> Rows:
    """The rows of all shards: what stands in their files before the ordinals."""
    files, size = bench.machine.files, SHARD_ROWS[bench.scale] * dim * 4
    names = [name for name in files.list(directory) if name.endswith(".rows")]
    joined = b"".join(files.read(f"{directory}/{name}")[:size] for name in names)
    return np.frombuffer(joined, dtype="<f4").reshape(-1, dim)


def _recall(projection: Vectors, space: str, queries: Rows, rows: Rows) -> float:
    """Of the 10 nearest of each query by looking at all rows, the share that the search finds."""
    at = {0: projection.checkpoint(0).position - 1}
    found = 0
    for query in queries:
        scores = np.sort(rows @ (query / np.linalg.norm(query)))
        hits = projection.search(space, query, NEAREST, at).hits
        nearest = float(scores[-NEAREST]) - SAME_SCORE
        found += sum(1 for hit in hits if hit.score >= nearest)
    return found / (NEAREST * len(queries))


VECTOR_RUNGS: Final[tuple[Rung, ...]] = (ReplayedVectors(),)
