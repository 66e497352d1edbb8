"""The log while connections to the broker are cut, slow or silent; through a proxy, on the broker of the run."""

import asyncio

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.ports import LogRecord
from tests.kernel.kafka.support import MUCH, Place, Proxy, numbers, proxied, record, records, run
from tests.support.kafka import SharedBroker

TIMEOUT_S = 2.0


async def code_of(call: asyncio.Task[object]) -> str:
    with pytest.raises(AtomlogError) as raised:
        async with asyncio.timeout(30):
            await call
    return raised.value.code


def append(log: KafkaLog, *which: int) -> asyncio.Task[object]:
    return asyncio.create_task(log.append(0, records(*which)))


async def sent(proxy: Proxy) -> None:
    """Something left for the broker."""
    proxy.requested.clear()
    await proxy.requested.wait()


async def follow(log: KafkaLog, count: int) -> list[LogRecord]:
    found: list[LogRecord] = []
    while len(found) < count:
        try:
            if await log.wait(0, len(found), 60):
                found += await log.read(0, len(found), bytes_max=MUCH)
        except AtomlogError as error:
            assert error.code == "KAFKA_UNAVAILABLE"
    return found


def test_when_an_answer_is_lost_the_outcome_is_unknown_and_nothing_is_sent_twice(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        witness = await place.log()
        async with proxied(monkeypatch, place) as proxy:
            log = await place.log()
            for turn in range(3):
                await log.append(0, records(10 * turn))  # connected
                proxy.swallows_answers = True
                appending = append(log, 10 * turn + 1)
                assert await witness.wait(0, 2 * turn + 1, 20)  # it is there, and nobody told
                proxy.swallows_answers = False
                proxy.cut()
                assert await code_of(appending) == "KAFKA_UNAVAILABLE"
                await log.renew(0)
            await log.append(0, records(99))
            assert numbers(await follow(witness, 7)) == [0, 1, 10, 11, 20, 21, 99]
            assert await witness.end(0) == 7

    run(kafka.address, kafka_prefix, body, timeout_s=20)


def test_an_append_that_is_not_answered_ends_at_the_deadline(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        witness = await place.log()
        async with proxied(monkeypatch, place) as proxy:
            log = await place.log()
            await log.append(0, records(0))
            proxy.swallows_requests = True
            assert await code_of(append(log, 1)) == "KAFKA_UNAVAILABLE"
            proxy.swallows_requests = False
            await log.renew(0)
            await log.append(0, records(2))
            assert numbers(await follow(witness, 2)) == [0, 2]

    run(kafka.address, kafka_prefix, body, timeout_s=TIMEOUT_S)


def test_a_cancelled_append_closes_its_connection_and_the_next_one_opens_another(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        async with proxied(monkeypatch, place) as proxy:
            log = await place.log()
            await log.append(0, records(0))
            proxy.swallows_requests = True
            before = proxy.connections
            appending = append(log, 1)
            await sent(proxy)
            appending.cancel()
            await asyncio.gather(appending, return_exceptions=True)
            proxy.swallows_requests = False
            await log.append(0, records(2))
            assert proxy.connections == before + 1
            assert numbers(await follow(log, 2)) == [0, 2]

    run(kafka.address, kafka_prefix, body)


def test_a_follower_goes_on_after_its_connections_were_cut_and_misses_nothing(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        writer = await place.log()
        async with proxied(monkeypatch, place) as proxy:
            logs = [await place.log(), await place.log()]
            following = [asyncio.create_task(follow(log, 40)) for log in logs]
            for n in range(20):
                await writer.append(0, records(n, 100 + n))
                if n % 5 == 2:
                    proxy.cut()
            wanted = [number for n in range(20) for number in (n, 100 + n)]
            for found in await asyncio.gather(*following):
                assert numbers(found) == wanted
                assert [entry.position for entry in found] == list(range(40))

    run(kafka.address, kafka_prefix, body)


def test_a_reader_of_a_silent_broker_is_told_in_time_and_reads_on_when_it_answers_again(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        async with proxied(monkeypatch, place) as proxy:
            log = await place.log()
            await log.append(0, records(0))
            assert await log.wait(0, 0, 10)
            proxy.swallows_answers = True
            calls = (log.end(0), log.read(0, 0, bytes_max=1), log.wait(0, 1, 60), log.wait(0, 5, 60))
            codes = await asyncio.gather(*(code_of(asyncio.create_task(call)) for call in calls))
            assert codes[0] == codes[2] == codes[3] == "KAFKA_UNAVAILABLE"
            proxy.swallows_answers = False
            proxy.cut()
            await log.append(0, records(1))
            assert numbers(await follow(log, 2)) == [0, 1]

    run(kafka.address, kafka_prefix, body, timeout_s=TIMEOUT_S)


def test_closing_a_log_whose_broker_is_silent_ends_everything_at_once(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        async with proxied(monkeypatch, place) as proxy:
            log = await place.log()
            await log.append(0, records(0))
            proxy.swallows_requests = True
            appending, ending = append(log, 1), asyncio.create_task(log.end(0))
            waiting = asyncio.create_task(log.wait(0, 7, 600))
            await sent(proxy)
            async with asyncio.timeout(15):  # far below the time-out of the calls
                await log.close()
                found = await asyncio.gather(appending, ending, waiting, return_exceptions=True)
            assert all(isinstance(one, AtomlogError) for one in found), found

    run(kafka.address, kafka_prefix, body, timeout_s=60)


def test_readers_from_the_start_and_at_the_end_get_the_same(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        late = await place.log()
        early = asyncio.create_task(follow(log, 1_200))
        for at in range(0, 1_200, 30):
            await log.append(0, [record(n, size=30_000) for n in range(at, at + 30)])
        others = [asyncio.create_task(follow(late, 1_200)) for _ in range(3)]
        for found in (await early, *await asyncio.gather(*others)):
            assert numbers(found) == list(range(1_200))

    run(kafka.address, kafka_prefix, body)
