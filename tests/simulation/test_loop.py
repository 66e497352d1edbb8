"""The loop of the simulation: time that jumps, an order from the seed, processes that end anywhere."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from tests.simulation.loop import Life, SimulatedLoop, Stuck


def loop_of(seed: int = 1, *, spread: int = 1, steps_max: int = 10_000) -> SimulatedLoop:
    chance, trace = Random(seed), list[str]()
    return SimulatedLoop(chance, trace.append, spread=spread, steps_max=steps_max)  # type: ignore[abstract]


def order_of(loop: SimulatedLoop) -> list[int]:
    seen: list[int] = []

    async def mark(number: int) -> None:
        seen.append(number)

    async def all_of_them() -> None:
        await asyncio.gather(*(mark(number) for number in range(20)))

    loop.run(all_of_them())
    return seen


def test_time_jumps_to_the_next_timer_and_an_hour_takes_no_time() -> None:
    loop = loop_of()
    loop.run(asyncio.sleep(3_600))
    assert 3_600 <= loop.time() < 3_601


def test_with_a_spread_of_one_the_order_is_that_of_asyncio() -> None:
    assert order_of(loop_of()) == list(range(20))


def test_the_order_is_drawn_from_the_seed_and_from_nothing_else() -> None:
    assert order_of(loop_of(1, spread=100)) == order_of(loop_of(1, spread=100)) != order_of(loop_of(2, spread=100))
    assert sorted(order_of(loop_of(1, spread=100))) == list(range(20))


def test_nothing_of_a_dead_process_runs_again_not_even_its_last_words() -> None:
    loop, life = loop_of(), Life("process")
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            said.append("went on")
        finally:
            said.append("last words")

    async def scenario() -> None:
        loop.create_task(work(), context=loop.born(life))
        await asyncio.sleep(0.5)
        life.is_dead = True
        await asyncio.sleep(10)
        assert said == []

    loop.run(scenario())


def test_a_stopped_process_goes_on_where_it_stood() -> None:
    loop, life = loop_of(), Life("process")
    said: list[float] = []

    async def work() -> None:
        await asyncio.sleep(1)
        said.append(loop.time())

    async def scenario() -> None:
        loop.create_task(work(), context=loop.born(life))
        await asyncio.sleep(0.5)
        life.is_stopped = True
        await asyncio.sleep(10)
        assert not said
        loop.resume(life)
        await asyncio.sleep(0.1)
        assert said
        assert said[0] > 10

    loop.run(scenario())


def test_what_is_begun_in_a_process_belongs_to_it() -> None:
    loop, life = loop_of(), Life("process")

    async def child() -> None:
        await asyncio.Event().wait()

    async def parent() -> None:
        asyncio.create_task(child())  # noqa: RUF006 -- the process keeps it

    async def scenario() -> None:
        loop.create_task(parent(), context=loop.born(life))
        await asyncio.sleep(1)
        assert [task.done() for task in life.tasks] == [True, False]

    loop.run(scenario())


def waits_for_nothing() -> Coroutine[Any, Any, Any]:
    return asyncio.Event().wait()


async def never_ends() -> None:
    while True:
        await asyncio.sleep(0)


@pytest.mark.parametrize("work", [waits_for_nothing, never_ends])
def test_a_deadlock_and_an_endless_loop_are_errors(work: Any) -> None:
    with pytest.raises(Stuck):
        loop_of(steps_max=500).run(work())


def test_an_error_that_nobody_waited_for_is_kept() -> None:
    loop = loop_of()

    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    loop.run(scenario())
    assert "ZeroDivisionError" in loop.errors[0]


def test_threads_and_sockets_are_errors() -> None:
    async def in_a_thread() -> None:
        await asyncio.to_thread(print)

    async def over_a_socket() -> None:
        await asyncio.open_unix_connection("nowhere")

    for work in (in_a_thread, over_a_socket):
        with pytest.raises(NotImplementedError):
            loop_of().run(work())
