"""Reading one partition, over a client that is made up: gaps, an end that is told late, questions that are shared."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import KafkaClient, Page
from atomlog.kernel.kafka.values import FetchedRecord
from atomlog.kernel.log.kafka_reading import PartitionReader
from atomlog.schemas import record as wire
from tests.kernel.kafka.support import MUCH, numbers, record


def fetched(*offsets: int, size: int = 40) -> list[FetchedRecord]:
    return [
        FetchedRecord(
            offset=n, timestamp_ms=0, key=None, value=record(n, size=size).value, headers=wire.headers(record(n))
        )
        for n in offsets
    ]


class Lane:
    async def close(self) -> None: ...


@dataclass
class Client:
    """Gives `pages` in turn, then empty ones; `ends` in turn, each when the test lets it."""

    pages: list[Page | AtomlogError] = field(default_factory=list)
    ends: list[asyncio.Future[int]] = field(default_factory=list)
    end_now: int = 0
    timeout_s: float = 0.3
    asked: list[tuple[int, float]] = field(default_factory=list)
    asked_end: int = 0

    def lane(self) -> Lane:
        return Lane()

    async def end(self, topic: str, partition: int) -> int:
        self.asked_end += 1
        return await self.ends.pop(0) if self.ends else self.end_now

    async def page(self, topic: str, partition: int, position: int, *, wait_s: float, **_: Any) -> Page:
        self.asked.append((position, wait_s))
        await asyncio.sleep(0)
        if not self.pages:
            await asyncio.sleep(wait_s)
            return Page(records=[], after=position, end=self.end_now)
        page = self.pages.pop(0)
        if isinstance(page, AtomlogError):
            raise page
        return page


def page(records: Sequence[FetchedRecord], *, end: int, after: int | None = None) -> Page:
    return Page(records=records, after=records[-1].offset + 1 if after is None else after, end=end)


def run(client: Client, body: Callable[[PartitionReader], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        reader = PartitionReader(cast(KafkaClient, client), "t", 0, 1)
        await body(reader)
        await reader.close()

    asyncio.run(whole())


async def refused(call: Coroutine[Any, Any, object]) -> AtomlogError:
    with pytest.raises(AtomlogError) as raised:
        await call
    return raised.value


@pytest.mark.parametrize(
    ("found", "wanted", "there"),
    [
        (page(fetched(2, 3), end=4), 0, 2),
        (page(fetched(0, 1, 3), end=4), 2, 3),
        (page([], end=4, after=3), 0, 3),
        (page(fetched(0), end=4, after=3), 1, 3),
    ],
)
def test_a_position_that_is_missing_is_named(found: Page, wanted: int, there: int) -> None:
    async def body(reader: PartitionReader) -> None:
        error = await refused(reader.read(0, MUCH))
        detail = error.details[0]
        assert (error.code, detail["wanted"], detail["first"]) == ("LOG_DIVERGED", wanted, there)

    run(Client(pages=[found]), body)


def test_what_was_durable_is_waited_for_when_a_new_leader_does_not_give_it_out_yet() -> None:
    client = Client(end_now=3, pages=[page([], end=1, after=2), page([], end=2, after=2), page(fetched(2), end=3)])

    async def body(reader: PartitionReader) -> None:
        assert await reader.end() == 3
        assert numbers(await reader.read(2, MUCH)) == [2]
        assert [wait_s > 0 for _, wait_s in client.asked] == [False, True, True]

    run(client, body)


def test_what_was_durable_and_is_never_given_out_ends_at_the_deadline() -> None:
    client = Client(end_now=3)

    async def body(reader: PartitionReader) -> None:
        await reader.end()
        assert (await refused(reader.read(2, MUCH))).code == "KAFKA_UNAVAILABLE"

    run(client, body)


def test_who_asks_for_the_end_is_never_told_what_was_asked_before() -> None:
    async def body(reader: PartitionReader) -> None:
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        client.ends, client.end_now = [first], 9
        early = asyncio.create_task(reader.end())
        while not client.asked_end:
            await asyncio.sleep(0)
        late = [asyncio.create_task(reader.end()) for _ in range(50)]
        await asyncio.sleep(0)
        first.set_result(4)
        assert await early == 4
        assert set(await asyncio.gather(*late)) == {9}
        assert client.asked_end == 2

    client = Client()
    run(client, body)


def test_who_gives_up_asking_takes_no_answer_from_the_others() -> None:
    async def body(reader: PartitionReader) -> None:
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        client.ends = [first]
        asking = [asyncio.create_task(reader.end()) for _ in range(2)]
        await asyncio.sleep(0)
        asking[0].cancel()
        first.set_result(4)
        assert await asking[1] == 4

    client = Client()
    run(client, body)


def test_readers_near_one_another_share_what_was_fetched() -> None:
    client = Client(pages=[page(fetched(*range(100)), end=100)])

    async def body(reader: PartitionReader) -> None:
        found = await asyncio.gather(*(reader.read(0, MUCH) for _ in range(5)))
        assert all(numbers(one) == list(range(100)) for one in found)
        assert numbers(await reader.read(40, 1)) == [40]
        assert len(client.asked) == 1

    run(client, body)


def test_all_who_wait_are_told_of_an_error_and_the_next_one_asks_anew() -> None:
    client = Client(end_now=0, pages=[fail("KAFKA_UNAVAILABLE", "x"), page(fetched(0), end=1)])

    async def body(reader: PartitionReader) -> None:
        waits = await asyncio.gather(*(reader.wait(0, 60) for _ in range(3)), return_exceptions=True)
        assert [getattr(one, "code", one) for one in waits] == ["KAFKA_UNAVAILABLE"] * 3
        assert await reader.wait(0, 60)
        assert numbers(await reader.read(0, MUCH)) == [0]

    run(client, body)


def test_who_waits_at_a_position_after_the_end_is_told_that_the_log_was_rolled_back() -> None:
    diverged = fail("LOG_DIVERGED", "x")
    client = Client(end_now=1)

    async def body(reader: PartitionReader) -> None:
        waiting = asyncio.create_task(refused(reader.wait(3, 0.05)))
        while not client.asked:
            await asyncio.sleep(0)
        client.pages = [diverged]
        assert (await waiting).code == "LOG_DIVERGED"

    run(client, body)
