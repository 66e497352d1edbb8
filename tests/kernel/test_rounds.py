"""Questions that callers share: who asks while one is on its way gets the answer to the next."""

import asyncio
from collections.abc import Callable

import pytest

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.rounds import Rounds


class Questions:
    """Each question waits until it is answered by hand."""

    def __init__(self) -> None:
        self.open: list[asyncio.Future[int]] = []
        self.rounds = Rounds(self._question, lambda: fail("NOT_OWNER", "closed"))

    async def _question(self) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.open.append(future)
        return await future

    def ask(self, count: int = 1) -> "list[asyncio.Task[int]]":
        return [asyncio.create_task(self.rounds.ask()) for _ in range(count)]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never holds")


async def test_who_asks_while_a_question_is_on_its_way_shares_the_next_one() -> None:
    asked = Questions()
    early = asked.ask(2)
    await until(lambda: len(asked.open) == 1)
    late = asked.ask(3)
    await asyncio.sleep(0)
    asked.open[0].set_result(7)
    assert await asyncio.gather(*early) == [7, 7]
    await until(lambda: len(asked.open) == 2)
    asked.open[1].set_result(8)
    assert await asyncio.gather(*late) == [8, 8, 8]
    assert len(asked.open) == 2


async def test_a_question_that_fails_fails_for_its_own_callers_alone() -> None:
    asked = Questions()
    early = asked.ask(2)
    await until(lambda: len(asked.open) == 1)
    late = asked.ask()
    await asyncio.sleep(0)
    asked.open[0].set_exception(fail("KAFKA_UNAVAILABLE", "away"))
    found = await asyncio.gather(*early, return_exceptions=True)
    assert [one.code for one in found if isinstance(one, AtomlogError)] == ["KAFKA_UNAVAILABLE"] * 2
    await until(lambda: len(asked.open) == 2)
    asked.open[1].set_result(9)
    assert await late[0] == 9


async def test_who_gives_up_ends_the_question_for_nobody_else() -> None:
    asked = Questions()
    first, second = asked.ask(2)
    await until(lambda: len(asked.open) == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    asked.open[0].set_result(5)
    assert await second == 5


async def test_closing_tells_everybody_who_waits() -> None:
    asked = Questions()
    waiting = asked.ask()
    await until(lambda: len(asked.open) == 1)
    waiting += asked.ask()
    await asyncio.sleep(0)
    await asked.rounds.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one.code for one in found if isinstance(one, AtomlogError)] == ["NOT_OWNER"] * 2
