"""The in-memory log's scripted faults: what the caller is told, and what stands in the log."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from atomlog.kernel.log.faults import Fault, LogFault, ReadFault
from atomlog.kernel.log.memory import AWAIT_POINTS, MemoryLog, MemoryLogServer
from atomlog.schemas.record import Record
from tests.kernel.log.support import LOG_ID, MUCH, records, refused


class World:
    def __init__(self) -> None:
        self.server = MemoryLogServer(log_id=LOG_ID, partitions=2)
        self.a = MemoryLog(self.server, name="a")
        self.b = MemoryLog(self.server, name="b")

    def stored(self, partition: int = 0) -> list[int]:
        found = self.server.records(partition)
        assert [entry.position for entry in found] == list(range(len(found)))
        return [int.from_bytes(entry.record.value[:8], "big") for entry in found if isinstance(entry.record, Record)]


def run(body: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        await body(World())

    asyncio.run(whole())


async def lost(call: Awaitable[Any]) -> None:
    with pytest.raises(LogFault):
        await call


@pytest.mark.parametrize(
    ("fault", "is_acknowledged", "stored", "in_flight"),
    [
        (Fault.NONE, True, [1, 2, 3], 0),
        (Fault.ERROR_BEFORE, False, [], 0),
        (Fault.LOST_NOT_APPLIED, False, [], 0),
        (Fault.LOST_APPLIED, False, [1, 2, 3], 0),
        (Fault.DELAYED, False, [], 1),
        (Fault.DUPLICATED, True, [1, 2, 3, 1, 2, 3], 0),
        (Fault.DUPLICATED_LATER, True, [1, 2, 3], 1),
        (Fault.TORN, False, [1], 0),
    ],
)
def test_a_fault_answers_and_applies_as_it_says(
    fault: Fault, is_acknowledged: bool, stored: list[int], in_flight: int
) -> None:
    async def body(world: World) -> None:
        world.server.script(fault)
        append = world.a.append(0, records(1, 2, 3))
        await (append if is_acknowledged else lost(append))
        assert world.stored() == stored
        assert len(world.server.in_flight) == in_flight
        await world.a.append(0, records(4))  # the script is used up
        assert world.stored() == [*stored, 4]

    run(body)


def test_a_delayed_append_arrives_when_it_is_delivered_even_after_a_renew() -> None:
    async def body(world: World) -> None:
        world.server.script(Fault.DELAYED, Fault.DELAYED)
        await lost(world.a.append(0, records(1)))
        await lost(world.a.append(0, records(2, 3)))
        await world.a.renew(0)
        await world.a.append(0, records(4))
        first, second = world.server.in_flight
        assert (first.producer, first.partition, second.record_count) == ("a", 0, 2)
        world.server.deliver(second.number)
        assert world.stored() == [4, 2, 3]
        world.server.deliver()
        assert world.stored() == [4, 2, 3, 1]

    run(body)


def test_what_is_dropped_never_arrives() -> None:
    async def body(world: World) -> None:
        world.server.script(Fault.DELAYED)
        await lost(world.a.append(0, records(1)))
        world.server.drop()
        world.server.deliver()
        assert world.stored() == []

    run(body)


def test_a_reordered_append_follows_the_next_one_of_another_producer_on_its_partition() -> None:
    async def body(world: World) -> None:
        world.server.script(Fault.REORDERED, producer="a")
        held = asyncio.create_task(world.a.append(0, records(1, 2)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await world.b.append(1, records(9))
        await MemoryLog(world.server, name="a").append(0, records(7))  # the same producer: not another
        assert not held.done()
        await world.b.append(0, records(3))
        await held
        assert world.stored() == [7, 3, 1, 2]
        assert not world.server.in_flight

    run(body)


def test_a_reordered_append_whose_caller_gave_up_still_arrives() -> None:
    async def body(world: World) -> None:
        world.server.script(Fault.REORDERED)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await world.a.append(0, records(1))
        await world.b.append(0, records(2))
        assert world.stored() == [2, 1]

    run(body)


@pytest.mark.parametrize(("fault", "stored"), [(Fault.HANGS_APPLIED, [1]), (Fault.HANGS_NOT_APPLIED, [])])
def test_a_hanging_append_answers_nothing_until_it_is_let_go_or_cancelled(fault: Fault, stored: list[int]) -> None:
    async def body(world: World) -> None:
        world.server.script(fault, fault)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await world.a.append(0, records(1))
        assert world.stored() == stored
        again = asyncio.create_task(world.a.append(0, records(1)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not again.done()
        world.server.let_go()
        await lost(again)
        assert world.stored() == stored * 2

    run(body)


def test_a_script_for_one_producer_leaves_the_others_alone() -> None:
    async def body(world: World) -> None:
        world.server.script(Fault.ERROR_BEFORE, producer="a")
        await world.b.append(0, records(1))
        await lost(world.a.append(0, records(2)))
        assert world.stored() == [1]

    run(body)


def test_read_faults_fail_or_stall_one_call() -> None:
    async def body(world: World) -> None:
        await world.a.append(0, records(1))
        world.server.script_reads(ReadFault.ERROR, ReadFault.ERROR, ReadFault.ERROR)
        await lost(world.a.read(0, 0, bytes_max=MUCH))
        await lost(world.a.wait(0, 0, 60))
        await lost(world.a.end(0))
        world.server.script_reads(ReadFault.STALLS, reader="b")
        stalled = asyncio.create_task(world.b.read(0, 0, bytes_max=MUCH))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stalled.done()
        assert len(await world.a.read(0, 0, bytes_max=MUCH)) == 1
        world.server.let_go()
        assert len(await stalled) == 1

    run(body)


def test_a_log_that_was_rolled_back_is_noticed_by_who_stood_after_it() -> None:
    async def body(world: World) -> None:
        await world.a.append(0, records(1, 2, 3))
        world.server.roll_back(0, 1)
        assert await world.a.end(0) == 1
        with refused("LOG_DIVERGED", "position 3"):
            await world.b.read(0, 3, bytes_max=MUCH)

    run(body)


async def everything(world: World) -> None:
    """Calls that pass every await point."""
    log, server = world.a, world.server
    server.script(Fault.NONE, Fault.REORDERED, Fault.HANGS_APPLIED, producer="a")
    await log.acquire(0)
    waiting = asyncio.create_task(log.wait(0, 0, 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await log.append(0, records(1))
    await waiting
    held = asyncio.create_task(log.append(0, records(2)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await world.b.append(0, records(3))
    await held
    hanging = asyncio.create_task(log.append(0, records(4)))
    for _ in range(3):
        await asyncio.sleep(0)
    server.let_go()
    await asyncio.gather(hanging, return_exceptions=True)
    server.script_reads(ReadFault.STALLS)
    stalled = asyncio.create_task(log.read(0, 0, bytes_max=MUCH))
    for _ in range(3):
        await asyncio.sleep(0)
    server.let_go()
    await stalled
    await log.end(0)
    await log.renew(0)


def test_every_await_is_announced_in_the_same_order_each_time() -> None:
    async def body(world: World) -> list[str]:
        points: list[str] = []
        world.a.on_await = points.append
        await everything(world)
        return points

    first, second = asyncio.run(body(World())), asyncio.run(body(World()))
    assert first == second
    assert set(first) == set(AWAIT_POINTS)


@pytest.mark.parametrize(
    ("point", "stored"), [("append.send", []), ("append.reply", [1]), ("append.held", [9, 1]), ("append.stall", [])]
)
def test_a_call_may_be_cancelled_or_broken_at_every_await(point: str, stored: list[int]) -> None:
    faults = {"append.held": Fault.REORDERED, "append.stall": Fault.HANGS_NOT_APPLIED}

    async def body(world: World, *, cancels: bool) -> None:
        def strike(name: str) -> None:
            if name == point:
                world.a.on_await = None
                if not cancels:
                    raise LogFault("struck")
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

        world.a.on_await = strike
        world.server.script(faults.get(point, Fault.NONE))
        append = asyncio.create_task(world.a.append(0, records(1)))
        (answer,) = await asyncio.gather(append, return_exceptions=True)
        assert isinstance(answer, asyncio.CancelledError if cancels else LogFault)
        if point == "append.held":
            await world.b.append(0, records(9))
        assert world.stored() == stored
        await world.a.append(0, records(5))
        assert world.stored() == [*stored, 5]

    for cancels in (True, False):
        run(lambda world, cancels=cancels: body(world, cancels=cancels))  # type: ignore[misc]


def test_two_appends_at_once_on_a_partition_are_a_mistake_of_the_caller() -> None:
    async def body(world: World) -> None:
        first = asyncio.create_task(world.a.append(0, records(1)))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="under way"):
            await world.a.append(0, records(2))
        await world.a.append(1, records(3))
        await first

    run(body)
