"""One run: a schedule of faults, and at the end everything held against the log."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.settings import Settings
from tests.chaos import check
from tests.chaos.cluster import CONSUMERS, PARTITIONS, SETTINGS, Cluster
from tests.chaos.faults import FAULTS, possible
from tests.chaos.faults import PARTITIONS as PARTITION_FAULTS
from tests.chaos.reading import Seen, look, read_on, reads_were_true, receipts_replay
from tests.chaos.records import read_log
from tests.processes.clients import Told
from tests.support.commands import atomlog

TERMS_A_FAULT: int = 4  # of one partition, at most


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A seed, and the faults in their order. In a file it runs again. `kills`: see `Cluster`."""

    seed: str
    faults: Sequence[str]
    kills: int = 5

    @classmethod
    def drawn(cls, seed: str, count: int) -> "Schedule":
        """Of the faults that this machine can try."""
        return cls(seed=seed, faults=random.Random(seed).choices(possible(), k=count))

    @property
    def divided(self) -> bool:
        """Whether it needs a network in parts."""
        return not set(PARTITION_FAULTS).isdisjoint(self.faults)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path) -> "Schedule":
        return cls(**json.loads(path.read_text("utf-8")))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run saw. `seconds`: fault → how long after it every client was answered again. `voids`: by reason."""

    seed: str
    seconds: Mapping[str, float]
    acknowledged: int
    refused: int
    reads: int
    voids: Mapping[str, int]
    unreadable: int
    terms: Mapping[int, int]


async def run(folder: Path, schedule: Schedule, say: Callable[[str], None] = lambda _: None) -> Report:
    """AssertionError when something does not hold; the folder has the schedule, the journals and every log."""
    schedule.save(folder / "schedule.json")
    seconds: dict[str, float] = {}
    say("starting")
    async with Cluster(folder, schedule.seed, divided=schedule.divided, kills=schedule.kills) as cluster:
        async with _reading(cluster) as seen:
            for name in schedule.faults:
                say(name)
                await FAULTS[name](cluster)
                taken = await cluster.live(f"after {name}")
                seconds[name] = max(taken, seconds.get(name, 0.0))
            say("checking")
            told = await cluster.stop_clients()
        return await _checked(cluster, schedule, told, seen, seconds)


@asynccontextmanager
async def _reading(cluster: Cluster) -> AsyncIterator[list[Seen]]:
    """Somebody reads replica a all the time; what was seen."""
    seen: list[Seen] = []
    directory = str(await cluster.kernels.directory("replica-a"))
    settings = Settings.from_environment(SETTINGS)
    async with await AsyncStore.open(directory, create=False, follow=False, settings=settings) as store:
        atoms = sorted({made["atom"] for made in cluster.shared.values()})
        reading = asyncio.create_task(read_on(store, atoms, cluster.seed, seen))
        try:
            yield seen
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        seen.extend([await look(store, atom) for atom in atoms])


async def _checked(
    cluster: Cluster, schedule: Schedule, told: Sequence[Told], seen: Sequence[Seen], seconds: Mapping[str, float]
) -> Report:
    # 1. One more change of hands: what is void by now has lost its keys after it.
    for partition in range(PARTITIONS):
        owner = await cluster.owner(partition)
        await cluster.move(partition, next(kernel for kernel in cluster.running.values() if kernel is not owner))
    store_directory = str(await cluster.kernels.directory("replica-a"))
    async with await AsyncStore.open(store_directory, create=False, follow=False) as store:
        # 2. The log, read without the program, against what everybody was told.
        log = await read_log(cluster.bootstrap, cluster.topic, store.config.log_id, PARTITIONS)
        check.acknowledged_once(log, told)
        check.one_chain_per_atom(log)
        refused = check.refusals_rest_on_the_log(log, told)
        check.bounded_terms(log, TERMS_A_FAULT * (len(schedule.faults) + 2))
        reads_were_true(log, seen)
        # 3. Keys, receipts, indexes.
        await store.wait_until_current(60.0)
        unreadable = await check.keys_of_voids_are_destroyed(log, store._parts.keys)
        await check.voids_cannot_be_opened(log, store._parts.content)
        await receipts_replay(store, seen)
    await _replicas_agree(cluster)
    return Report(
        seed=schedule.seed,
        seconds=seconds,
        acknowledged=sum(one.result is not None for one in told),
        refused=refused,
        reads=len(seen),
        voids=dict(log.model.voids),
        unreadable=unreadable,
        terms={partition: len(positions) for partition, positions in log.terms.items()},
    )


async def _replicas_agree(cluster: Cluster) -> None:
    digests: dict[str, Any] = {}
    for replica in ("replica-a", "replica-b"):
        directory = str(await cluster.kernels.directory(replica))
        async with await AsyncStore.open(directory, create=False, follow=False) as store:
            await store.wait_until_current(60.0)
        verified = await atomlog("verify", *PROJECTIONS, "--json", "--store", directory, environment=SETTINGS)
        assert verified.code == 0, verified.out + verified.err
        reports = [json.loads(line) for line in verified.out.splitlines()]
        digests[replica] = {
            (report["name"], partition, report["positions"][partition]): digest
            for report in reports
            for partition, digest in report["digests"].items()
        }
    assert digests["replica-a"].keys() == digests["replica-b"].keys(), f"{CONSUMERS} stand at other positions"
    check.replicas_agree(digests)
