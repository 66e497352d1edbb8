"""Three brokers, kernels, consumers and clients, each a process, and proxies between them and the brokers.

Clients keep journals (`tests.processes.clients`): what they asked, what they were told. They go on when they are
killed, and stop when they are asked to.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from atomlog.consumers.cluster.founding import NodeRequest
from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from deploy.kafka.brokers import Brokers
from deploy.kafka.node import NodeSpec
from tests.acceptance.writing import collection
from tests.chaos.clocks import CLOCK_FILE, ClockFile, shifting_zygote
from tests.chaos.networks import WITHIN, Network
from tests.chaos.proxy import Proxy
from tests.cluster.kernels import Kernel, Kernels
from tests.processes.clients import STOP, Journal, Told
from tests.support.commands import atomlog, until
from tests.support.kafka import own_brokers
from tests.support.zygote import COMMAND, Forked

PARTITIONS: Final = 2
CLIENTS: Final = 8
STORE_CLIENTS: Final = (0, 2, 4, 6)  # through the store; the others through the inbox
PRINCIPAL: Final = "crew"
KERNELS: Final = ("k1", "k2")
CONSUMERS: Final = {"left": ("ids", "relations", "postings", "vectors"), "ids": ("ids",), "rest": PROJECTIONS[1:]}
DIRECTORIES: Final = {"left": "replica-a", "ids": "replica-b", "rest": "replica-b"}  # of the consumers
OTHERS: Final = "rest"  # the network namespace of clients and consumers
PLACES: Final = ("b1", "b2", "b3", *KERNELS, OTHERS)
# A process that cannot begin for one of these ends, and is started again, as by a supervisor.
PASSING: Final = ("KAFKA_UNAVAILABLE", "STORE_LOCKED")
START_AGAIN_S: Final = 0.5
LIVE_S: Final = 90.0  # at this scale clients are answered again within so long after a fault is over
# Bounds of the test: leases and time-outs of a second or two instead of many.
SETTINGS: Final = {
    "ATOMLOG_LEASE_MS": "2500",
    "ATOMLOG_HEARTBEAT_MS": "400",
    "ATOMLOG_STANDBY_BACKOFF_MS": "800",
    "ATOMLOG_KAFKA_TIMEOUT_MS": "4000",
    "ATOMLOG_WRITE_TIMEOUT_MS": "12000",
    "ATOMLOG_NODE_CALL_TIMEOUT_MS": "12000",
    "ATOMLOG_METADATA_REFRESH_MS": "3000",
    "ATOMLOG_REPORT_MS": "400",
}


@dataclass(kw_only=True)
class Client:
    """One process of several clients."""

    target: str
    numbers: Sequence[int]
    process: Forked


class Cluster:
    """`async with Cluster(folder, seed) as cluster`: everything runs; nothing is left when it is over.

    `divided`: each broker and each kernel has a network of its own, so that faults may part them. `kills`: how often a
    fault kills that does so again and again.
    """

    def __init__(self, folder: Path, seed: str, *, divided: bool = False, kills: int = 5) -> None:
        self.folder = folder
        self.seed = seed
        self.kills = kills
        self.chance = random.Random(seed)
        self.prefix = "chaos"
        self.network = Network(PLACES) if divided else None
        self.proxies = [Proxy() for _ in range(3)]
        self.brokers: Brokers
        self.kernels: Kernels
        self.running: dict[str, Kernel] = {}
        self.consumers: dict[str, Forked] = {}
        self.clients: dict[str, Client] = {}
        self.clocks = {name: ClockFile(folder / f"{name}.clock") for name in KERNELS}
        self.shared: dict[int, dict[str, Any]] = {}  # client → the result that made the atom it revises
        self.first: list[Told] = []
        self.failures: list[str] = []  # processes that ended by themselves
        self._forked: list[Forked] = []
        self._watching: list[asyncio.Task[None]] = []

    @property
    def topic(self) -> str:
        return f"{self.prefix}.atoms"

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()
        for number, kernel in enumerate(self.kernels.running):
            lines = [json.dumps(event) for event in kernel.events]
            (self.folder / f"{kernel.name}-{number}.events").write_text("\n".join(lines) + "\n", "utf-8")

    # -- processes

    async def start_kernel(self, name: str) -> Kernel:
        """Returns before it keeps anything."""
        clock = {CLOCK_FILE: str(self.clocks[name].path)}
        kernel = self.running[name] = await self.kernels.start(name, environment={**SETTINGS, **clock})
        self._watch(name, kernel.process, lambda: self.running[name].process, self.start_kernel)
        return kernel

    async def start_consumer(self, name: str) -> None:
        """What it says goes to `<name>.log`."""
        directory = await self.kernels.directory(DIRECTORIES[name])
        process = self.consumers[name] = await self.follow(name, CONSUMERS[name], directory)
        self._watch(name, process, lambda: self.consumers[name], self.start_consumer)

    async def follow(self, name: str, projections: Sequence[str], directory: Path, **settings: str) -> Forked:
        """A consumer of projections of a node."""
        command = ("consume", *projections, "--wait", "--store", str(directory), "--listen", f"{self.host(OTHERS)}:0")
        return await self.fork(OTHERS, COMMAND, *command, log=self.folder / f"{name}.log", settings=settings, says=True)

    async def start_clients(self, name: str, target: str, numbers: Sequence[int]) -> None:
        spaces = {number: self.space(number) for number in numbers}
        shared = {number: self.shared[number] for number in numbers}
        where = str(await self.kernels.directory("clients")) if "store" in name else self.bootstrap
        arguments = (where, str(self.folder), list(numbers), self.seed, _texts(spaces), _texts(shared))
        process = await self.fork(OTHERS, target, *arguments, log=self.folder / f"{name}.log")
        self.clients[name] = Client(target=target, numbers=numbers, process=process)

    async def fork(
        self,
        place: str,
        target: str,
        *arguments: Any,
        log: Path,
        settings: Mapping[str, str] | None = None,
        says: bool = False,
    ) -> Forked:
        """A process in one of `PLACES`, which are all the same where the network is not divided."""
        entering = (WITHIN, self.network.place(place)) if self.network is not None else ()
        process = await shifting_zygote().fork(
            *(*entering, target, *arguments), log=log, environment={**SETTINGS, **(settings or {})}, logs_stdout=says
        )
        self._forked.append(process)
        return process

    def host(self, place: str) -> str:
        """The address of one of `PLACES`."""
        return "127.0.0.1" if self.network is None else self.network.address(place)

    async def owner(self, partition: int) -> Kernel:
        return await self.kernels.owner(partition, among=list(self.running.values()))

    async def move(self, partition: int, to: Kernel) -> None:
        """`atomlog move owner`, again while one of them is only just reached again."""
        asked = ("move", "owner", "--store", str(to.directory), "--partition", str(partition), "--to", to.name)

        async def moved() -> bool:
            return (await atomlog(*asked, environment=SETTINGS)).code == 0

        await until(moved, f"partition {partition} is moved to {to.name}; see {self.folder}")

    def space(self, number: int) -> str:
        """Two clients share a space, and its atom: they meet each other's conflicts."""
        return f"space-{number // 2}"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.outside}:{proxy.port}" for proxy in self.proxies)

    @property
    def outside(self) -> str:
        """Where the proxies listen."""
        return "127.0.0.1" if self.network is None else self.network.host

    # -- what clients are told

    async def live(self, what: str) -> float:
        """Until every client has been told something more: the seconds that took; the test fails after `LIVE_S`."""
        loop = asyncio.get_running_loop()
        begun, before = loop.time(), self._answers()
        while True:
            now = self._answers()
            assert not self.failures, "; ".join(self.failures)
            if all(now[number] >= before[number] + 2 for number in range(CLIENTS)):
                return loop.time() - begun
            waiting = [number for number in range(CLIENTS) if now[number] < before[number] + 2]
            assert loop.time() - begun < LIVE_S, f"{what}: clients {waiting} are not answered; see {self.folder}"
            await asyncio.sleep(0.1)

    def written(self) -> int:
        """How many batches were written as far as clients know: not those that an owner remembers from before."""
        journals = [self.folder / f"{number}.journal" for number in range(CLIENTS)]
        return sum(path.read_bytes().count(b'"replayed": false') for path in journals if path.exists())

    async def answers(self, count: int) -> None:
        """Until clients have been told of so many more."""
        wanted = sum(self._answers().values()) + count
        await until(lambda: sum(self._answers().values()) >= wanted, f"{count} more answers; see {self.folder}")

    async def stop_clients(self) -> list[Told]:
        """They finish what they began. Everything that was told."""
        (self.folder / STOP).touch()
        for name, client in self.clients.items():
            code = await client.process.wait()
            assert code == 0, f"{name} ended with {code}:\n{(self.folder / f'{name}.log').read_text()[-4_000:]}"
        assert not self.failures, "; ".join(self.failures)
        told = [told for number in range(CLIENTS) for told in Journal(self.folder, number).told()]
        return [*self.first, *told]

    # -- inside

    def _watch(
        self, name: str, process: Forked, now: Callable[[], Forked], again: Callable[[str], Awaitable[object]]
    ) -> None:
        """Start it again if it ends by itself because the brokers are away; any other end is a failure."""

        async def watching() -> None:
            code = await process.wait()
            if code <= 0 or now() is not process:
                return  # it was killed, or told to end
            last = (self.folder / f"{name}.log").read_text("utf-8").splitlines()[-1:]
            if not any(passing in line for passing in PASSING for line in last):
                self.failures.append(f"{name} ended with {code}: {last}")
                return
            await asyncio.sleep(START_AGAIN_S)
            if now() is process:
                await again(name)

        self._watching.append(asyncio.create_task(watching()))

    def _answers(self) -> dict[int, int]:
        """Client → lines of its journal: two for each batch."""
        paths = {number: self.folder / f"{number}.journal" for number in range(CLIENTS)}
        return {number: path.read_bytes().count(b"\n") if path.exists() else 0 for number, path in paths.items()}

    async def _start(self) -> None:
        if self.network is not None:
            await asyncio.to_thread(self.network.start)
        for proxy in self.proxies:
            await proxy.start(self.outside)
        self.brokers = own_brokers(self.folder / "brokers", count=3, shape=self._behind)
        await asyncio.to_thread(self.brokers.start)
        self.kernels = _Kernels(self.folder, self, self.prefix)
        for name in KERNELS:
            await self.start_kernel(name)
        await self.kernels.kept(*self.running.values())
        for partition in range(PARTITIONS):
            await self.owner(partition)
        for name in CONSUMERS:
            await self.start_consumer(name)
        made = await atomlog(
            "inbox",
            "create",
            PRINCIPAL,
            "--partitions",
            "2",
            "--store",
            str(await self.kernels.directory("k1")),
            "--right",
            "mark-source",
            environment=SETTINGS,
        )
        assert made.code == 0, made.err
        await self._make_shared()
        half = len(STORE_CLIENTS) // 2
        await self.start_clients("store-1", "tests.chaos.store_clients:main", STORE_CLIENTS[:half])
        await self.start_clients("store-2", "tests.chaos.store_clients:main", STORE_CLIENTS[half:])
        others = [number for number in range(CLIENTS) if number not in STORE_CLIENTS]
        await self.start_clients("inbox-1", "tests.chaos.inbox_clients:main", others[:half])
        await self.start_clients("inbox-2", "tests.chaos.inbox_clients:main", others[half:])
        await self.live("at the start")

    async def _make_shared(self) -> None:
        directory = str(await self.kernels.directory("clients"))
        async with await AsyncStore.open(directory, create=False, projections=(), follow=False) as store:
            for number in range(0, CLIENTS, 2):
                batch = {"space": self.space(number), "idempotency_key": "first", "changes": [collection("shared")]}
                made = (await store.write(batch)).to_dict()
                self.first.append(Told(batch=batch, result=made, refused=None))
                self.shared[number] = self.shared[number + 1] = made["results"][0]

    def _behind(self, spec: NodeSpec) -> NodeSpec:
        """A broker that clients reach through its proxy."""
        proxy, place = self.proxies[spec.id - 1], f"b{spec.id}"
        proxy.target = (self.host(place), spec.port)
        prefix = () if self.network is None else self.network.prefix(place)
        return replace(spec, host=self.host(place), prefix=prefix, advertised=f"{self.outside}:{proxy.port}")

    async def _close(self) -> None:
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if hasattr(self, "kernels"):
            await self.kernels.__aexit__()
        for process in self._forked:
            await _killed(process)
        if hasattr(self, "brokers"):
            await asyncio.to_thread(self.brokers.close)
        for proxy in self.proxies:
            await proxy.close()
        if self.network is not None:
            await asyncio.to_thread(self.network.close)


class _Kernels(Kernels):
    """Nodes of a store that may lose a broker."""

    def __init__(self, root: Path, cluster: Cluster, prefix: str) -> None:
        super().__init__(root, cluster, prefix, partitions=PARTITIONS)
        self._cluster = cluster
        self._request = NodeRequest(
            bootstrap=cluster.bootstrap, prefix=prefix, partitions=PARTITIONS, blobs=str(root / "blobs")
        )

    def host(self, name: str) -> str:
        return self._cluster.host(name)

    async def fork(self, name: str, *command: str, log: Path, environment: Mapping[str, str]) -> Forked:
        return await self._cluster.fork(name, COMMAND, *command, log=log, settings=environment)


async def _killed(process: Forked) -> None:
    if process.returncode is None:
        await process.killed()


def _texts(found: dict[int, Any]) -> dict[str, Any]:
    """Keys of JSON are text."""
    return {str(number): one for number, one in found.items()}
