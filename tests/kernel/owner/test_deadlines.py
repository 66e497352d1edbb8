"""Deadlines: as asyncio.timeout, for many callers with one timer."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from atomlog.kernel.deadlines import Deadlines

SOON = 0.01
NEVER = 3_600.0


async def hang() -> None:
    await asyncio.Event().wait()


async def within(deadlines: Deadlines, work: Callable[[], Awaitable[None]]) -> None:
    with deadlines.begin():
        await work()


async def test_what_takes_too_long_ends_with_a_timeout_each_and_all() -> None:
    deadlines = Deadlines(SOON)
    tasks = [asyncio.create_task(within(deadlines, hang)) for _ in range(3)]
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in ended] == [TimeoutError] * 3


async def test_a_caller_that_is_done_is_left_alone_although_an_earlier_one_still_runs() -> None:
    deadlines = Deadlines(SOON)
    first = asyncio.create_task(within(deadlines, hang))

    async def passes() -> None:
        with deadlines.begin():
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await first
        await asyncio.sleep(2 * SOON)  # past its own deadline: a cancellation that came now would be of nobody

    await passes()


async def test_a_cancellation_from_outside_stays_one() -> None:
    task = asyncio.create_task(within(Deadlines(NEVER), hang))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_from_outside_counts_although_the_deadline_has_passed_as_well() -> None:
    deadlines = Deadlines(NEVER)
    task = asyncio.create_task(within(deadlines, hang))
    await asyncio.sleep(0)
    deadlines._running[0].expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_inside_goes_through() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await within(Deadlines(NEVER), fails)


async def test_nothing_is_kept_of_what_is_over_and_no_timer_runs_for_it() -> None:
    deadlines = Deadlines(NEVER)
    release = asyncio.Event()

    async def waits() -> None:
        await release.wait()

    first = asyncio.create_task(within(deadlines, waits))
    await asyncio.sleep(0)
    for _ in range(100):
        with deadlines.begin():
            await asyncio.sleep(0)
    release.set()
    await first
    assert not deadlines._running
    assert deadlines._timer is None


async def test_what_is_over_lets_go_of_its_task_although_an_earlier_one_still_runs() -> None:
    deadlines = Deadlines(NEVER)
    first = asyncio.create_task(within(deadlines, hang))
    await asyncio.sleep(0)

    async def nothing() -> None: ...

    later = asyncio.create_task(within(deadlines, nothing))
    await later
    kept = weakref.ref(later)
    del later
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_the_timer_goes_on_to_the_next_caller() -> None:
    deadlines = Deadlines(SOON)
    with pytest.raises(TimeoutError):
        await within(deadlines, hang)
    with pytest.raises(TimeoutError):
        await within(deadlines, hang)
