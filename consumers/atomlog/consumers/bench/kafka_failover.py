"""P8: how long writing stands still when the owner of a partition is killed, and whether anything told is lost."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.consumers.bench.kafka_nodes import effective, make_nodes, opened_node, requests
from atomlog.consumers.bench.kernel_process import KernelProcess
from atomlog.consumers.bench.ladder import Bench, Goal, KafkaRung, Measure, Sample, Scale
from atomlog.consumers.bench.stopwatch import cpu_seconds
from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.parts import Parts
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.model import WriteResult
from atomlog.schemas.revision import REVISION

KILLS: Final[Mapping[Scale, int]] = {"smoke": 2, "small": 5, "normal": 20, "large": 50}
LEASE_MS: Final[Mapping[Scale, int]] = {"smoke": 1_000, "small": 2_000, "normal": 5_000, "large": 5_000}
BACKOFF_MS: Final[Mapping[Scale, int]] = {"smoke": 500, "small": 1_000, "normal": 1_000, "large": 1_000}
HEARTBEAT_MS: Final[Mapping[Scale, int]] = {"smoke": 300, "small": 1_000, "normal": 1_000, "large": 1_000}
NODES: Final = ("one", "two")
CLIENTS: Final = 4
REQUESTS_MAX: Final = 1_000_000
BETWEEN_S: Final = 0.5  # of ordinary writing before each kill
PAUSE_S: Final = 0.02  # of a client between two writes: what is measured is not how much can be written
ASK_S: Final = 5.0
AGAIN: Final = ("IN_DOUBT", "NOT_OWNER", "KAFKA_UNAVAILABLE", "OVERLOADED")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOver:
    """Two kernels of one partition; the one that owns is killed and started again."""

    id: str = "P8"
    title: str = "Fail-over: SIGKILL of the owner until the next acknowledged write"
    nodes: int = 1
    unit: str = "s/fail-over"
    measure: Measure = "time"
    base_name: str = "the lease alone"
    goals: Sequence[Goal] = (
        Goal(text="worst ≤ lease + 2 s", of="worst_over_lease_s", value=2, better="lower"),
        Goal(text="nothing acknowledged lost", of="lost", value=0, better="lower"),
    )
    peers: Sequence[str] = ()
    notes: str = (
        f"{KILLS['normal']} kills a round, two kernels with their default settings, {CLIENTS} clients that go on "
        "writing while one is killed. Measured is one write that begins with the kill, its client's retries included. "
        "Then the log is read from the beginning: every acknowledged revision must stand once, at the position that "
        "was told. There is no CPU time of this: its column has the same ratio by the clock."
    )

    def prepare(self, bench: Bench) -> None:
        asyncio.run(make_nodes(bench, (*NODES, "client")))

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._ours(bench))

    def base(self, bench: Bench) -> Sample:
        lease_s = LEASE_MS[bench.scale] / 1_000
        return Sample(units=1, wall_s=lease_s, cpu_s=lease_s, checked=1)

    async def _ours(self, bench: Bench) -> Sample:
        client, began_s = f"{bench.directory}/client", cpu_seconds()
        async with AsyncExitStack() as closing:
            pair = _Pair(bench)
            closing.push_async_callback(pair.close)
            await pair.start()
            store = await closing.enter_async_context(
                AsyncStore.open(client, machine=bench.machine, projections=(), follow=False)
            )
            parts = await closing.enter_async_context(opened_node(client, bench.machine))
            assert parts.shared is not None
            connections = parts.shared.connections()
            closing.push_async_callback(connections.close)
            load = _Load(bench, store)
            await load.write()
            clients = [asyncio.create_task(load.run()) for _ in range(CLIENTS)]
            try:
                seconds = [await self._kill(bench, pair, connections, load) for _ in range(KILLS[bench.scale])]
            finally:
                load.is_over = True
                await asyncio.gather(*clients)
            lost, doubled = await held_against(parts, load.told)
        wall_s, lease_s = sum(seconds), LEASE_MS[bench.scale] / 1_000
        figures = {
            "worst_s": max(seconds),
            "worst_over_lease_s": max(seconds) - lease_s,
            "least_s": min(seconds),
            "acknowledged": len(load.told),
            "lost": lost,
            "doubled": doubled,
            "cpu_s": cpu_seconds() - began_s,
        }
        units = len(seconds)
        checked = units if lost == doubled == 0 else 0
        return Sample(units=units, wall_s=wall_s, cpu_s=wall_s, checked=checked, seconds=seconds, figures=figures)

    async def _kill(self, bench: Bench, pair: "_Pair", connections: Connections, load: "_Load") -> float:
        """Seconds until a write that begins with the kill is acknowledged. Both kernels are there again on return."""
        clock = bench.machine.clock
        await clock.sleep(BETWEEN_S)
        owner = await pair.owner(connections)
        pair.running[owner].kill_now()
        began_us = clock.monotonic_us()
        await load.write()
        took_s = (clock.monotonic_us() - began_us) / 1_000_000
        await pair.again(owner)
        return took_s


@dataclass(slots=True)
class _Pair:
    """The kernels by the names of their nodes."""

    bench: Bench
    running: dict[str, KernelProcess] = field(default_factory=dict)

    async def start(self) -> None:
        for name in NODES:
            await self._start(name)

    async def again(self, name: str) -> None:
        await self.running[name].kill()
        await self._start(name)

    async def owner(self, connections: Connections) -> str:
        """Which of them serves the partition; asked until one does."""
        while True:
            for name, kernel in self.running.items():
                with suppress(OSError, AtomlogError):
                    places = await connections.ask(kernel.endpoint, "places", ASK_S)
                    owner = (places["0"]["owner"] or {}).get("owner", "")
                    found = await connections.ask(kernel.endpoint, "probe", ASK_S, partition=0, owner=owner)
                    if found["serves"]:
                        return name
            await self.bench.machine.clock.sleep(PAUSE_S)

    async def close(self) -> None:
        for kernel in self.running.values():
            await kernel.kill()

    async def _start(self, name: str) -> None:
        scale = self.bench.scale
        settings = {
            "ATOMLOG_LEASE_MS": str(LEASE_MS[scale]),
            "ATOMLOG_STANDBY_BACKOFF_MS": str(BACKOFF_MS[scale]),
            "ATOMLOG_HEARTBEAT_MS": str(HEARTBEAT_MS[scale]),
        }
        environment = {**self.bench.machine.environment, **settings}
        self.running[name] = await KernelProcess.start(f"{self.bench.directory}/{name}", name, environment=environment)
        await self.running[name].keeps()


class _Load:
    """Writes one batch after the other and remembers what it was told."""

    def __init__(self, bench: Bench, store: AsyncStore) -> None:
        self.told: list[WriteResult] = []
        self.is_over = False
        self._clock = bench.machine.clock
        self._store = store
        self._token = bench.machine.randomness.token(8).hex()
        self._number = 0

    async def run(self) -> None:
        while not self.is_over:
            await self.write()
            await self._clock.sleep(PAUSE_S)

    async def write(self) -> None:
        """The next batch, sent with the same key until it is accepted."""
        self._number += 1
        (batch,) = requests(f"{self._token}-{self._number}", 1)
        while True:
            try:
                self.told.append(await self._store.write(batch))
                return
            except AtomlogError as error:
                if error.code not in AGAIN:
                    raise
                await self._clock.sleep(PAUSE_S)


async def held_against(parts: Parts, told: Sequence[WriteResult]) -> tuple[int, int]:
    """Acknowledged revisions that do not stand where it was said, and revisions that stand more than once."""
    standing: Counter[tuple[int, bytes]] = Counter()
    times: Counter[bytes] = Counter()
    for record in await effective(parts, 0):
        for revision in record.batch().revisions:
            standing[record.position, _id(revision)] += 1
            times[_id(revision)] += 1
    promised: list[tuple[int, bytes]] = [
        (result.receipt.position, change.revision) for result in told for change in result.results
    ]
    lost = sum(1 for one in promised if not standing[one])
    return lost, sum(count - 1 for count in times.values())


def _id(revision: Any) -> bytes:
    return bytes(revision[REVISION])


FAIL_OVER_RUNGS: Final[tuple[KafkaRung, ...]] = (FailOver(),)
