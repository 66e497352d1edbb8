"""P3: how fast the log becomes an index, against the log's records put into RocksDB as they are.

Both sides read the same log in the same steps and check its chain; both write to a RocksDB with the options of the
product. The base keeps one row a record: its value under its position.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from atomlog.consumers.applier import PartitionApplier
from atomlog.consumers.bench.corpus import Corpus
from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale
from atomlog.consumers.bench.stopwatch import peak_rss_bytes, stopwatch
from atomlog.consumers.machine import Machine
from atomlog.consumers.parts import Parts, open_parts, projection_kind
from atomlog.consumers.processes import make_no_cycles
from atomlog.consumers.rebuild_job import REPLAY_BYTES
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.kv import prefix_end, u64
from atomlog.kernel.rocks import RocksKv, open_primary
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import START, Tail
from atomlog.schemas import codec
from atomlog.schemas.batch import decode_batch

MIB: Final = 1024 * 1024
REVISIONS: Final[Mapping[Scale, int]] = {"smoke": 500, "small": 5_000, "normal": 50_000, "large": 200_000}
RECORD: Final = b"L"  # of the base's rows


async def write_corpus(directory: str, revisions: int, machine: Machine) -> None:
    """A store whose log has as many revisions, or some more. No projection is built."""
    corpus = Corpus()
    async with AsyncStore.open(directory, machine=machine, projections=(), follow=False) as store:
        while corpus.revisions < revisions:
            corpus.accept(await store.write(corpus.next_write()))


@asynccontextmanager
async def opened_log(directory: str, machine: Machine) -> AsyncIterator[Parts]:
    """A store opened to replay its log, as the process of a rebuild opens it."""
    config = StoreConfig.load(machine.files, directory)
    parts = open_parts(directory, config, settings=Settings(), read_only=True, machine=machine)
    try:
        yield parts
    finally:
        await parts.close()


async def pass_through(store: str, directory: str, machine: Machine) -> Sample:
    """Every effective record's value under its position, read in the steps of a rebuild; units are revisions."""
    async with opened_log(store, machine) as parts:
        kv = open_primary(f"{directory}/db", block_cache_bytes=parts.settings.block_cache_bytes)
        with stopwatch(machine.clock) as took:
            tail = Tail(parts.log, parts.config.genesis(0), START)
            while records := await tail.poll(bytes_max=REPLAY_BYTES):
                kv.write([(RECORD + u64(record.position), record.record.value) for record in records])
            kv.sync()
        found = _revisions_in(kv)
        kv.close()
    return Sample(units=found, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=found)


def _revisions_in(kv: RocksKv) -> int:
    values = (value for _, value in kv.scan(RECORD, prefix_end(RECORD)))
    batch = codec.current("Batch").fingerprint
    bodies = (body for fingerprint, body in map(codec.unwrap, values) if fingerprint == batch)
    return sum(len(decode_batch(body).revisions) for body in bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """`name` of the projection."""

    id: str
    name: str
    goals: Sequence[Goal]
    title: str
    unit: str = "revisions/s"
    measure: Measure = "rate"
    base_name: str = "the same records put into RocksDB, one row each"
    peers: Sequence[str] = ()
    notes: str = (
        "One process; reading the log and checking its chain is in both, and so is syncing at the end. "
        "The garbage collector is set as in the process of a rebuild."
    )

    def prepare(self, bench: Bench) -> None:
        asyncio.run(write_corpus(f"{bench.directory}/store", REVISIONS[bench.scale], bench.machine))

    def ours(self, bench: Bench) -> Sample:
        make_no_cycles()
        return asyncio.run(self._ours(bench))

    def base(self, bench: Bench) -> Sample:
        make_no_cycles()
        sample = asyncio.run(pass_through(f"{bench.directory}/store", bench.scratch(), bench.machine))
        return replace(sample, units=REVISIONS[bench.scale])

    async def _ours(self, bench: Bench) -> Sample:
        async with opened_log(f"{bench.directory}/store", bench.machine) as parts:
            return await applied(bench, parts, self.name, REVISIONS[bench.scale])


async def applied(bench: Bench, parts: Parts, name: str, units: int) -> Sample:
    """Everything in partition 0, which has so many revisions, applied to a projection of its own."""
    end = await parts.log.end(0)
    projection = projection_kind(parts, name).open_primary(bench.scratch())
    applier = PartitionApplier(parts.context, projection, 0)
    with stopwatch(bench.machine.clock) as took:
        while applier.position < end:
            await applier.advance(lambda: end, bytes_max=REPLAY_BYTES)
        projection.sync()
    peak = peak_rss_bytes() / MIB
    projection.verify(0)  # every row that was counted is there
    found = units if projection.checkpoint(0).position == end else 0
    figures = {"peak_rss_mib": peak, "rows_revision": projection.rows(0) / units}
    projection.close()
    return Sample(units=units, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=found, figures=figures)


REPLAY_RUNGS: Final[tuple[Rung, ...]] = tuple(
    Replay(
        id=f"P3-{name}",
        name=name,
        title=f"Replay of the log into {name}",
        goals=(Goal(text=f"≥ {goal} ×", of="ratio", value=goal, better="higher"),),
    )
    for name, goal in (("ids", 0.4), ("relations", 0.25), ("postings", 0.25))
)
