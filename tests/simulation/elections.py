"""Nodes that keep one partition of a log that all may append to: real owners, elections and reports, no Kafka."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeVar

from atomlog.consumers.cluster.control import Control
from atomlog.consumers.cluster.election import Election
from atomlog.consumers.cluster.keeper import Keeper
from atomlog.consumers.cluster.reports import NodeReport
from atomlog.kernel.commit_rule import INITIAL, Effective, Genesis, fold
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.owner import Owner
from atomlog.kernel.settings import Settings
from tests.simulation.loop import SimulatedLoop
from tests.simulation.ports import Calls, Machine, Process
from tests.support.kernel_world import LOG_ID, Bench, batch, create, write

SETTINGS: Final = Settings(write_timeout_ms=3_000, key_wait_ms=200)
LEASE_S: Final = SETTINGS.lease_ms / 1_000
BACKOFF_S: Final = SETTINGS.standby_backoff_ms / 1_000
STEPS_MAX: Final = 400_000

T = TypeVar("T")


class ControlTopic:
    """Everything that was published, for everybody; nothing at all while it is broken."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.is_broken = False

    def reader(self) -> "ControlReader":
        return ControlReader(self)


class ControlReader:
    """One node's side of it."""

    def __init__(self, topic: ControlTopic) -> None:
        self._topic = topic
        self._position = len(topic.values)

    async def publish(self, key: bytes, value: bytes) -> None:
        await asyncio.sleep(0.001)
        self._check()
        self._topic.values.append(value)

    async def next(self) -> Sequence[bytes]:
        await asyncio.sleep(0.01)
        self._check()
        found = self._topic.values[self._position :]
        self._position += len(found)
        return found

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._topic.is_broken:
            raise ConnectionError("the control topic is away")


@dataclass(kw_only=True)
class World:
    loop: SimulatedLoop
    chance: Random
    server: MemoryLogServer
    control: ControlTopic
    keys: MemoryKeyStore
    nodes: "dict[str, ElectingNode]"

    def node(self, name: str, *, clock_off_s: int = 0, **options: Any) -> "ElectingNode":
        """A node that starts now."""
        found = self.nodes[f"sim:{name}"] = ElectingNode(self, name, clock_off_s, **options)
        found.start()
        return found

    def owners(self) -> "list[ElectingNode]":
        """Those that believe that they own the partition, and run."""
        return [one for one in self.nodes.values() if one.runs and one.keeper and one.keeper.owner.phase == "owner"]

    async def an_owner(self, but: "ElectingNode | None" = None) -> "ElectingNode":
        """Wait for one."""
        while not (found := [one for one in self.owners() if one is not but]):
            await asyncio.sleep(0.01)
        return found[0]

    def claims(self) -> list[int]:
        """Terms of the effective Claims, in order."""
        state, terms = INITIAL, []
        genesis = Genesis(log_id=LOG_ID, partition=0, partitions=1)
        for entry in self.server.records(0):
            verdict = fold(state, entry.record, genesis, entry.position)
            if isinstance(verdict, Effective):
                state = verdict.state
                if entry.record.kind == "Claim":
                    terms.append(state.term)
        return terms


class ElectingNode:
    """A process that keeps the partition as `atomlog kernel` does."""

    def __init__(self, world: World, name: str, clock_off_s: int, *, preferred: bool = True) -> None:
        self.world = world
        self.endpoint = f"sim:{name}"
        self.process = Process(Machine(world.loop, world.chance, Calls(lambda text: None)), name, 1)
        self.process.clock._skew_us = clock_off_s * 1_000_000
        self.events: list[Mapping[str, Any]] = []
        self.trouble: str | None = None
        self.endpoint_is_dead = False
        self.keeper: Keeper | None = None
        self._preferred = preferred

    @property
    def runs(self) -> bool:
        return not self.process.is_dead and not self.process.is_stopped

    @property
    def owner(self) -> Owner:
        assert self.keeper is not None
        return self.keeper.owner

    def start(self) -> None:
        self.world.loop.create_task(self._run(), context=self.process.context)

    def stop(self) -> None:
        """SIGSTOP."""
        self.process.is_stopped = True

    def resume(self) -> None:
        """SIGCONT."""
        self.world.loop.resume(self.process)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    async def write(self, key: str) -> str:
        """What became of a write that this node was asked for, from outside."""

        async def work() -> str:
            try:
                await write(self.owner, batch(key, create(key)))
            except AtomlogError as error:
                return error.code
            return "accepted"

        return str(await self.process.ask(work))

    async def _run(self) -> None:
        process, world = self.process, self.world
        bench = Bench(
            log=MemoryLog(world.server, name=process.name),
            keys=world.keys,
            heads=MemoryKv(),
            settings=SETTINGS,
            seed=process.name,
        )
        kernel = replace(
            bench.world(),
            clock=process.clock,
            randomness=process.randomness,
            workers=process.workers,
            endpoint=self.endpoint,
            say=self.events.append,
        )
        owner = Owner(kernel, 0)
        await owner.start()
        control = Control(
            world.control.reader(),
            process.clock,
            every_ms=SETTINGS.heartbeat_ms,
            report=self._report,
            on_event=self.events.append,
        )
        election = Election(SETTINGS, process.randomness, endpoint=self.endpoint, preferred=self._preferred)
        self.keeper = Keeper(
            owner,
            0,
            election,
            log=kernel.log,
            clock=process.clock,
            settings=SETTINGS,
            trouble=lambda: self.trouble,
            heartbeat=control.reports.heartbeat_us,
            probe=self._probe,
            on_event=self.events.append,
        )
        async with asyncio.TaskGroup() as running:
            running.create_task(control.run())
            running.create_task(self.keeper.run())

    async def _report(self) -> NodeReport:
        assert self.keeper is not None
        return NodeReport(
            node=self.endpoint.encode().ljust(16)[:16],
            name=self.process.name,
            role="kernel",
            endpoint=self.endpoint,
            pid=1,
            at_us=self.process.clock.now_us(),
            partitions=(self.keeper.report(),),
            disk_free_bytes=1,
            disk_reserve_bytes=0,
        )

    async def _probe(self, partition: int, claim: Mapping[str, Any]) -> bool:
        """As a call over TLS: a dead process refuses, a stopped one does not answer."""
        await asyncio.sleep(0.002)
        asked = self.world.nodes[claim["endpoint"]]
        if asked.process.is_dead or asked.endpoint_is_dead or asked.keeper is None:
            raise ConnectionError("nobody is there")
        while asked.process.is_stopped:
            await asyncio.sleep(0.05)
        return asked.keeper.serves and asked.owner.is_own(bytes.fromhex(claim["owner"]))


def electing(seed: int, scenario: Callable[[World], Coroutine[Any, Any, T]]) -> T:
    """Run a scenario with its own loop, log and control topic; everything in it is drawn from the seed."""
    chance = Random(seed)
    loop = SimulatedLoop(  # type: ignore[abstract]  # no sockets, no threads, no subprocesses: using one is an error
        chance, lambda text: None, spread=4, steps_max=STEPS_MAX
    )
    server = MemoryLogServer(log_id=LOG_ID, partitions=1)
    world = World(loop=loop, chance=chance, server=server, control=ControlTopic(), keys=MemoryKeyStore(), nodes={})
    found = loop.run(scenario(world))
    assert not loop.errors, loop.errors
    return found


async def seconds(loop: SimulatedLoop, work: Awaitable[T]) -> tuple[T, float]:
    """What it gives, and the virtual time that it took."""
    began = loop.time()
    found = await work
    return found, loop.time() - began
