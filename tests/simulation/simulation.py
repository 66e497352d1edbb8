"""One simulation: made from a seed, run to its end, checked. Start at `simulate`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.log.faults import Fault, ReadFault
from atomlog.kernel.log.memory import MemoryLogServer
from tests.simulation.checks import check, check_outcomes, check_projections
from tests.simulation.clients import Client, Told
from tests.simulation.loop import SimulatedLoop
from tests.simulation.node import INDEXES, Node
from tests.simulation.ports import EIO, ENOSPC, KILLED, KILLED_AFTER, POWER, SHORT, Calls, Killed
from tests.simulation.trace import Trace
from tests.simulation.worlds import BrokerWorld, EmbeddedWorld, World
from tests.support.kernel_world import create

STEPS_MAX: Final = 100_000
PEACE_SECONDS_MAX: Final = 300.0  # of virtual time, and more than every time-out together: beyond it nothing moves
RESTART_SECONDS: Final = 0.3
STARTS_MAX: Final = 20  # that fail one after the other in peace


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens in a simulation. `faults`: what becomes of calls, by number, beside what chaos draws."""

    seed: int
    world: str
    nodes: int
    clients: int
    ops: int
    chaos: int
    spread: int
    names: tuple[str, ...] = INDEXES
    faults: dict[int, str] = field(default_factory=dict)
    first_work_then_peace: bool = False  # else there is peace as soon as chaos has ended, and clients go on in it


def plan_of(seed: int) -> Plan:
    """What this seed stands for."""
    chance = Random(f"plan {seed}")
    names = (*INDEXES, "vectors") if chance.random() < 0.1 else INDEXES
    return Plan(
        seed=seed,
        world=chance.choice(("embedded", "broker")),
        nodes=chance.choice((2, 3)),
        clients=chance.choice((2, 3, 4)),
        ops=chance.choice((2, 4, 6)),
        chaos=chance.choice((0, 5, 15, 30)),
        spread=chance.choice((1, 2, 4, 100)),
        names=names if chance.random() < 0.8 else ("ids",),
    )


@dataclass(kw_only=True)
class Ended:
    """What came out. `error` is what was wrong."""

    plan: Plan
    trace: Trace
    calls: Calls
    steps: int
    seconds: float
    batches: int = 0
    error: BaseException | None = None


def simulate(plan: Plan) -> Ended:
    """Run a plan to its end; whatever goes wrong is in `error`."""
    trace, chance = Trace(), Random(plan.seed)
    loop = SimulatedLoop(  # type: ignore[abstract]  # no sockets, no threads, no subprocesses: using one is an error
        chance, trace.add, spread=plan.spread, steps_max=STEPS_MAX
    )
    simulation = Simulation(plan, loop, chance, trace)
    error, batches = None, 0
    try:
        batches = loop.run(simulation.run())
    except (Exception, Killed) as found:
        error = found
    if error is None and loop.errors:
        error = AssertionError("; ".join(loop.errors))
    trace.add(f"ended with {error!r}")
    return Ended(
        plan=plan,
        trace=trace,
        calls=simulation.calls,
        steps=loop.steps,
        seconds=loop.time(),
        batches=batches,
        error=error,
    )


class Simulation:
    def __init__(self, plan: Plan, loop: SimulatedLoop, chance: Random, trace: Trace) -> None:
        self.plan = plan
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.calls = Calls(trace.add)
        self.told = Told()
        self.is_peace = False
        self.is_over = False
        self.nodes: list[Node | None] = [None] * plan.nodes
        self.world: World = (EmbeddedWorld if plan.world == "embedded" else BrokerWorld)(
            loop, chance, self.calls, plan.nodes
        )
        self.calls.count = 0  # what made the store is not counted
        self.calls.made = []
        self.calls.faults = dict(plan.faults)

    async def run(self) -> int:
        """How many batches count in the end."""
        keepers = [self.loop.create_task(self._keep(place)) for place in range(self.plan.nodes)]
        first = self._client(0)
        begun = self.loop.create_task(self._begin(first))
        chaos = self.loop.create_task(self._chaos())
        letting_go = self.loop.create_task(self._let_go())
        await self._unless_failed(begun, keepers)
        clients = [self.loop.create_task(self._client(n + 1).run(self.plan.ops)) for n in range(self.plan.clients)]
        await self._unless_failed(chaos, [*keepers, *clients])
        if self.plan.first_work_then_peace:
            await self._unless_failed(asyncio.gather(*clients), keepers)
            await self._unless_failed(self.loop.create_task(self._close_all_once()), keepers)
        self._make_peace()
        try:
            async with asyncio.timeout(PEACE_SECONDS_MAX):
                await self._unless_failed(asyncio.gather(*clients), keepers)
                await self._at_rest(keepers)
                return await self._finish(keepers, letting_go)
        except TimeoutError:
            raise AssertionError("nothing fails any more, and it does not come to an end") from None

    async def _begin(self, client: Client) -> None:
        """What others refer to; under another key where a client heard `never` and gave up."""
        for what in (create("group", schema="collection", text="a group"), create("counter", text="counter")):
            tries = 1
            while not await client.insist(f"{what['key']} {tries}", "notes", (what,)):
                tries += 1

    def _client(self, number: int) -> Client:
        return Client(number, self.chance, self.told, self._up, lambda: self.is_peace)

    def _up(self) -> list[Node]:
        return [node for node in self.nodes if node is not None and node.is_up and not node.process.is_dead]

    async def _unless_failed(self, work: "asyncio.Future[Any]", others: Sequence["asyncio.Task[Any]"]) -> None:
        """Until `work` is done; what goes wrong in one of the others ends it."""
        while not work.done():
            await asyncio.wait((work, *(one for one in others if not one.done())), return_when=asyncio.FIRST_COMPLETED)
            for one in others:
                if one.done():
                    one.result()
        work.result()

    # ---- processes that are started again and again

    async def _keep(self, place: int) -> None:
        """A process at this place, and another one when it is gone or does not go on."""
        life, failures = 0, 0
        while True:
            life += 1
            node = self.world.node(place, life, self.plan.names)
            try:
                await node.process.ask(node.start)
                failures = 0
                self.nodes[place] = node
                await self._watch(node)
            except (ConnectionError, AtomlogError, OSError) as error:
                self.trace.add(f"{node.process.name} does not start: {error!r}")
                failures += self.is_peace
                assert failures < STARTS_MAX, f"{node.process.name} does not start, though nothing fails: {error!r}"
            except Exception as error:
                raise AssertionError(f"{node.process.name}: {error!r}") from error
            if self.is_over:
                return
            node.process.kill()
            await asyncio.sleep(RESTART_SECONDS * self.chance.random())

    async def _watch(self, node: Node) -> None:
        """Until it is dead, or stands still for a reason that only a new start helps against."""
        while not node.process.is_dead and not self.is_over:
            trouble = await node.process.ask(node.trouble)
            if self.is_peace and node.process.failed_stores:
                trouble = f"{node.process.failed_stores} take nothing more"
            if trouble is not None:
                self.trace.add(f"{node.process.name} is started anew: {trouble}")
                await self._close(node)
                return
            await asyncio.sleep(0.2)

    async def _close(self, node: Node) -> None:
        """End it as a program ends, once. Where that fails it is killed, as a supervisor would."""
        if not node.is_up:
            return
        node.is_up = False
        try:
            async with asyncio.timeout(60):
                await node.process.ask(node.close)
        except (OSError, AtomlogError, TimeoutError) as error:
            self.trace.add(f"{node.process.name} does not close: {error!r}")
            if self.is_over and not node.process.failed_stores:
                raise AssertionError(f"{node.process.name} does not close, though nothing fails") from error
        node.process.kill()

    # ---- what happens to them

    async def _chaos(self) -> None:
        for _ in range(self.plan.chaos):
            await asyncio.sleep(self.chance.choice((0.0005, 0.005, 0.05, 0.3)) * self.chance.random())
            nodes = self._up()
            if nodes:
                await self._something(self.chance.choice(nodes))

    async def _something(self, node: Node) -> None:
        chance, calls, server = self.chance, self.calls, self.world.server
        match chance.randrange(16):
            case 0 | 1:
                node.process.kill()
            case 2:
                node.process.machine.cut_power()
            case 3:
                await self._close(node)
            case 4:
                await self._stop_for_a_while(node)
            case 5 | 6 | 7:
                fault = chance.choice((EIO, EIO, ENOSPC, SHORT, KILLED, KILLED, KILLED_AFTER, POWER))
                calls.faults[calls.count + chance.randint(1, 30)] = fault
            case 8 if server is None:
                many = chance.randint(2, 20)  # a disk that is full for a while
                calls.faults |= dict.fromkeys(range(calls.count + 1, calls.count + 1 + many), ENOSPC)
            case 9 | 10 if server is not None:
                self.loop.create_task(self._claim(node))
            case 11 if server is not None and server.in_flight:
                number = chance.choice(server.in_flight).number
                if chance.random() < 0.5:
                    server.deliver(number)
                else:
                    server.drop(number)
            case 12 if server is not None:
                server.script_reads(chance.choice(list(ReadFault)))
            case 13 if server is not None:
                self.loop.create_task(self._release(node))
            case 8 | 14 if server is not None:
                await self._left_behind(node, server)
            case _ if server is not None:
                server.script(*chance.choices(list(Fault), k=chance.randint(1, 3)))
            case _:
                pass

    async def _stop_for_a_while(self, node: Node) -> None:
        """SIGSTOP, and on again after longer than some time-outs."""
        node.process.is_stopped = True
        await asyncio.sleep(self.chance.choice((0.01, 0.5, 5.0)))
        self.loop.resume(node.process)

    async def _left_behind(self, node: Node, server: MemoryLogServer) -> None:
        """An owner that does not see for a while that another one has taken its place."""
        server.script_reads(*[ReadFault.STALLS] * 4, reader=node.process.name)
        others = [one for one in self._up() if one is not node]
        if others:
            self.loop.create_task(self._claim(self.chance.choice(others)))
        await asyncio.sleep(self.chance.choice((0.01, 0.1)))

    async def _claim(self, node: Node) -> None:
        try:
            await node.process.ask(node.claim)
        except (OSError, AtomlogError) as error:
            self.trace.add(f"{node.process.name} does not claim: {error!r}")

    async def _release(self, node: Node) -> None:
        try:
            await node.process.ask(node.release)
        except (OSError, AtomlogError, TimeoutError) as error:
            self.trace.add(f"{node.process.name} does not release: {error!r}")

    async def _let_go(self) -> None:
        """A log that hangs goes on now and then, and where nobody owns it somebody is told to claim it."""
        server = self.world.server
        while server is not None and not self.is_over:
            await asyncio.sleep(0.05 + self.chance.random())
            server.let_go()
            nodes = self._up()
            if nodes and not any(node.owner and node.owner.phase == "owner" for node in nodes):
                await self._claim(nodes[0])

    # ---- the end

    async def _close_all_once(self) -> None:
        """Everybody is closed and started again while calls may still fail."""
        for place, node in enumerate(self.nodes):
            if node is not None and node.is_up:
                await self._close(node)
            while (again := self.nodes[place]) is node or again is None or not again.is_up:
                await asyncio.sleep(0.05)

    def _make_peace(self) -> None:
        self.trace.add("peace")
        self.is_peace = True
        self.calls.faults = {}
        if self.world.server is not None:
            self.world.server.heal()
            self.world.server.deliver()

    async def _at_rest(self, keepers: Sequence["asyncio.Task[Any]"]) -> None:
        """The fixed point: every process is up and everything it follows has come to the end of the log."""
        while True:
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
            if len(self._up()) == self.plan.nodes and await self._have_arrived():
                return
            await asyncio.sleep(0.1)

    async def _have_arrived(self) -> bool:
        for node in self._up():
            try:
                if node.process.failed_stores or not await node.process.ask(node.has_arrived):
                    return False
            except ConnectionError:
                return False  # it is being started anew
        return True

    async def _finish(self, keepers: Sequence["asyncio.Task[Any]"], letting_go: "asyncio.Task[Any]") -> int:
        """Ask, check, close everything; and nothing is left."""
        node = await self._asked_again()
        await self._at_rest(keepers)
        batches = await node.process.ask(partial(check, node, self.told))
        for one in self._up():
            await one.process.ask(partial(check_projections, one, self.plan.names))
        self.is_over = True
        for one in self._up():
            await self._close(one)
        await asyncio.gather(*keepers)
        await letting_go
        self._check_nothing_is_left()
        for counted in batches:
            self.trace.add(f"position {counted.position} {counted.batch.request_key.hex()} {counted.texts}")
        return len(batches)

    async def _asked_again(self) -> Node:
        """The process that said of every key what is known of it: one that owns the log, or comes to."""
        while True:
            for node in self._up():
                try:
                    if self.world.server is not None:
                        await node.process.ask(node.claim)
                    if await node.process.ask(partial(check_outcomes, node, self.told)):
                        return node
                except (ConnectionError, AtomlogError) as error:
                    self.trace.add(f"{node.process.name} cannot say: {error!r}")
            await asyncio.sleep(0.1)

    def _check_nothing_is_left(self) -> None:
        for node in self.nodes:
            assert node is not None
            assert not node.process.open_files, [file._path for file in node.process.open_files]
            assert not node.process.open_stores, node.process.name
            tasks = [repr(task.get_coro()) for task in node.process.tasks if not task.done()]
            assert not tasks, f"{node.process.name} left {tasks}"
