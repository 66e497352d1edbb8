"""P1 and P2: durable writes of many clients, against a peer and against a bare file."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale
from atomlog.consumers.bench.stopwatch import rss_bytes, stopwatch
from atomlog.consumers.machine import Machine
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import START, Tail

CLIENTS: Final = 50
SPACE: Final = "bench"
TEXT: Final = "Gyokuro is shaded for three weeks before it is picked, and brewed at 55 °C for two minutes; number "
TEXT_BYTES: Final = 200
MIB: Final = 1024 * 1024
PAGE_BYTES: Final = 1024 * 1024
WRITES: Final[Mapping[Scale, int]] = {"smoke": 100, "small": 2_000, "normal": 10_000, "large": 50_000}
BATCHES: Final[Mapping[Scale, int]] = {"smoke": 10, "small": 100, "normal": 500, "large": 2_000}
BATCH: Final = 50


def text(number: int) -> str:
    """A text of `TEXT_BYTES` bytes, each another."""
    begin = f"{TEXT}{number}. "
    return begin + "x" * (TEXT_BYTES - len(begin.encode()))


def batch(first: int, changes: int) -> dict[str, Any]:
    """A batch of atoms, as a caller gives it. `first` numbers its first text and makes its idempotency key."""
    return {
        "space": SPACE,
        "idempotency_key": f"bench-{first}",
        "changes": [
            {"op": "create", "schema": "source", "value": {"text": text(number)}}
            for number in range(first, first + changes)
        ],
    }


async def write_all(store: AsyncStore, batches: Iterable[Mapping[str, Any]], clients: int = CLIENTS) -> None:
    """Write them, `clients` at a time: each client sends its next batch when its last one is answered."""
    waiting = iter(batches)

    async def client() -> None:
        for one in waiting:
            await store.write(one)

    await asyncio.gather(*(client() for _ in range(clients)))


async def written(machine: Machine, directory: str) -> int:
    """How many revisions stand in effective batches of the log: a fresh look at its files."""
    config = StoreConfig.load(machine.files, directory)
    log = EmbeddedLog(
        files=machine.files,
        workers=machine.workers,
        clock=machine.clock,
        directory=directory,
        log_id=config.log_id,
        partitions=config.partitions,
        settings=Settings(),
    )
    tail, found = Tail(log, config.genesis(0), START), 0
    while records := await tail.poll(bytes_max=PAGE_BYTES):
        found += sum(len(one.batch().revisions) for one in records if one.kind == "Batch")
    await log.close()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Our side of P1 and P2, and what they share. `changes` of one batch; `warm` batches before the clock starts."""

    id: str
    title: str
    base_name: str
    goals: Sequence[Goal]
    notes: str
    peers: Sequence[str]
    counts: Mapping[Scale, int]
    changes: int
    unit: str = "revisions/s"
    measure: Measure = "rate"

    def prepare(self, bench: Bench) -> None: ...

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._ours(bench, bench.scratch()))

    def base(self, bench: Bench) -> Sample:
        raise NotImplementedError

    def warm(self, bench: Bench) -> int:
        return max(CLIENTS // self.changes, self.counts[bench.scale] // 10)

    def batches(self, bench: Bench) -> list[dict[str, Any]]:
        count = self.warm(bench) + self.counts[bench.scale]
        return [batch(number * self.changes, self.changes) for number in range(count)]

    async def _ours(self, bench: Bench, directory: str) -> Sample:
        """Nothing is followed in this process: projections are consumers in processes of their own."""
        batches, warm = self.batches(bench), self.warm(bench)
        async with AsyncStore.open(directory, machine=bench.machine, projections=(), follow=False) as store:
            await write_all(store, batches[:warm])
            with stopwatch(bench.machine.clock) as took:
                await write_all(store, batches[warm:])
            resident = rss_bytes() / MIB
        found = await written(bench.machine, directory) - warm * self.changes
        units = self.counts[bench.scale] * self.changes
        return Sample(units=units, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=found, figures={"rss_mib": resident})


class SavedAggregates(Writes):
    """P1's base."""

    def base(self, bench: Bench) -> Sample:
        from atomlog.consumers.bench.peers import save_aggregates  # installed by `make bench` only

        warm = self.warm(bench)
        texts = [text(number) for number in range(warm + self.counts[bench.scale])]
        return save_aggregates(bench.machine, bench.scratch(), texts, warm=warm, clients=CLIENTS)


class InsertedEvents(Writes):
    """P2's base: what eventsourcing's recorder is given has the size of our text."""

    def base(self, bench: Bench) -> Sample:
        from atomlog.consumers.bench.peers import insert_events

        warm = self.warm(bench)
        count = warm + self.counts[bench.scale]
        batches = [[text(first * BATCH + one).encode() for one in range(BATCH)] for first in range(count)]
        return insert_events(bench.machine, bench.scratch(), batches, warm=warm)


class BareFile(Writes):
    """P2's limit: the bytes that our log holds after these batches, appended and synced batch by batch."""

    def prepare(self, bench: Bench) -> None:
        asyncio.run(self._ours(bench, f"{bench.directory}/encoded"))

    def base(self, bench: Bench) -> Sample:
        files, count = bench.machine.files, self.counts[bench.scale]
        log = f"{bench.directory}/encoded/log/0"
        encoded = b"".join(files.read(f"{log}/{name}") for name in files.list(log) if name.endswith(".seg"))
        size = len(encoded) // (count + self.warm(bench))
        parts = [encoded[first * size : (first + 1) * size] for first in range(count)]
        path = f"{bench.scratch()}/bare"
        file = files.open(path, write=True, create=True)
        with stopwatch(bench.machine.clock) as took:
            for part in parts:
                file.append(part)
                file.sync()
        file.close()
        checked = len(files.read(path)) // size * self.changes
        figures = {"bytes_revision": size / self.changes}
        return Sample(
            units=count * self.changes, wall_s=took.wall_s, cpu_s=took.cpu_s, checked=checked, figures=figures
        )


_SEALED: Final = "Every check and sealing on; projections are followed elsewhere."
WRITE_RUNGS: Final[tuple[Rung, ...]] = (
    SavedAggregates(
        id="P1",
        title=f"Durable writes of one revision by {CLIENTS} concurrent clients",
        base_name="eventsourcing Application.save on SQLite",
        goals=(Goal(text="≥ 40 ×", of="ratio", value=40, better="higher"),),
        notes=f"{_SEALED} The peer saves an aggregate with one event of the same text, from {CLIENTS} threads.",
        peers=("eventsourcing",),
        counts=WRITES,
        changes=1,
    ),
    InsertedEvents(
        id="P2",
        title=f"Durable batches of {BATCH} revisions by {CLIENTS} concurrent clients",
        base_name="eventsourcing recorder insert_events on SQLite",
        goals=(Goal(text="≥ 3.5 ×", of="ratio", value=3.5, better="higher"),),
        notes=f"{_SEALED} The peer's recorder inserts {BATCH} encoded events a transaction, one transaction at a time.",
        peers=("eventsourcing",),
        counts=BATCHES,
        changes=BATCH,
    ),
    BareFile(
        id="P2-file",
        title=f"Durable batches of {BATCH} revisions by {CLIENTS} concurrent clients",
        base_name="the same bytes in a bare file, fdatasync a batch",
        goals=(Goal(text="≥ 0.3 ×", of="ratio", value=0.3, better="higher"),),
        notes=f"{_SEALED} The base has nothing to encode: it appends what our log held after the same batches.",
        peers=(),
        counts=BATCHES,
        changes=BATCH,
    ),
)
