"""P10: opening a large store, and building its projections anew, with the memory that both take."""

import asyncio
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale
from atomlog.consumers.bench.replay import MIB, pass_through, write_corpus
from atomlog.consumers.bench.stopwatch import rss_bytes, stopwatch
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.processes import make_no_cycles
from atomlog.consumers.rebuild import first_error, rebuild
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.rocks import open_primary

REVISIONS: Final[Mapping[Scale, int]] = {"smoke": 500, "small": 5_000, "normal": 200_000, "large": 1_000_000}
INDEXES: Final = ("ids", "relations", "postings")
STORES: Final = (*INDEXES, "heads")


async def write_indexed(directory: str, bench: Bench) -> None:
    """A store with its indexes built, and closed again."""
    await write_corpus(directory, REVISIONS[bench.scale], bench.machine)
    error = first_error(await rebuild(directory, INDEXES, processes=1))
    if error is not None:
        raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Everything but vectors."""

    id: str = "P10"
    title: str = "Opening a store for writing and reading"
    unit: str = "s/open"
    measure: Measure = "time"
    base_name: str = "opening its four RocksDBs"
    goals: Sequence[Goal] = (
        Goal(text="≤ 1 s", of="ours", value=1, better="lower"),
        Goal(text="RSS ≤ 500 MiB", of="rss_mib", value=500, better="lower"),
    )
    peers: Sequence[str] = ()
    notes: str = (
        f"A store of {REVISIONS['large']:,} revisions in `make bench-large`, {REVISIONS['normal']:,} otherwise. It "
        "opens with ids, relations and postings and is caught up; resident memory is that of the process then."
    )

    def prepare(self, bench: Bench) -> None:
        asyncio.run(write_indexed(f"{bench.directory}/store", bench))

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._ours(bench))

    async def _ours(self, bench: Bench) -> Sample:
        with stopwatch(bench.machine.clock) as took:
            store = await AsyncStore.open(f"{bench.directory}/store", machine=bench.machine, projections=INDEXES)
        resident = rss_bytes() / MIB
        lags = [lag for one in (await store.status()).to_dict()["projections"] for lag in one["partitions"]]
        ready = all(lag["lag_records"] == 0 for lag in lags)
        await store.close()
        figures = {"rss_mib": resident}
        return Sample(units=1, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=int(ready), figures=figures)

    def base(self, bench: Bench) -> Sample:
        files, store = bench.machine.files, f"{bench.directory}/store"
        paths = [_current(GenerationDirectory(files, store, name, lambda event: None)) for name in STORES]
        with stopwatch(bench.machine.clock) as took:
            opened = [open_primary(path, block_cache_bytes=MIB) for path in paths]
        for kv in opened:
            kv.close()
        return Sample(units=1, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """Ids, relations and postings, a process each, two at a time where there are two cores."""

    id: str = "P10-rebuild"
    title: str = "Rebuilding ids, relations and postings and comparing them with the live ones"
    unit: str = "revisions/s"
    measure: Measure = "rate"
    base_name: str = "the same records put into one RocksDB by one process"
    goals: Sequence[Goal] = (Goal(text="peak RSS ≤ 500 MiB a process", of="peak_rss_mib", value=500, better="lower"),)
    peers: Sequence[str] = ()
    notes: str = (
        "The peak is that of the largest process. It holds the write buffers and block caches of two RocksDBs (the new "
        "one and the live one), 1 MiB of log as rows, and 20,000 remembered ordinals: nothing that grows with the log."
    )

    def prepare(self, bench: Bench) -> None:
        asyncio.run(write_indexed(f"{bench.directory}/store", bench))

    def ours(self, bench: Bench) -> Sample:
        with stopwatch(bench.machine.clock) as took:
            reports = asyncio.run(rebuild(f"{bench.directory}/store", INDEXES))
        equal = all(report.equal for report in reports) and len(reports) == len(INDEXES)
        units = REVISIONS[bench.scale]
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MIB
        return Sample(
            units=units,
            wall_s=took.wall_s,
            cpu_s=took.cpu_s,
            checked=units if equal else 0,
            figures={"peak_rss_mib": peak},
        )

    def base(self, bench: Bench) -> Sample:
        make_no_cycles()
        sample = asyncio.run(pass_through(f"{bench.directory}/store", bench.scratch(), bench.machine))
        return replace(sample, units=REVISIONS[bench.scale])


def _current(directory: GenerationDirectory) -> str:
    generation = directory.current()
    assert generation is not None
    return f"{generation.directory}/db"


OPENING_RUNGS: Final[tuple[Rung, ...]] = (Open(), Rebuild())
