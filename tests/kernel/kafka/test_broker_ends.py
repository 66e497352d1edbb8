"""A broker that is killed, stopped for a while, or comes back with an older disk; one node of the test's own."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.log.kafka import KafkaLog
from deploy.kafka.brokers import Brokers
from tests.kernel.kafka.support import MUCH, Place, numbers, records, run
from tests.support.kafka import own_brokers


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with own_brokers(tmp_path_factory.mktemp("own")) as brokers:
        brokers.start()
        yield brokers


async def settled(call: Awaitable[object]) -> str:
    """ "done", or the code of its error."""
    try:
        await call
    except AtomlogError as error:
        return error.code
    return "done"


async def append_at_last(log: KafkaLog, number: int) -> None:
    """As an owner does it: after each unknown outcome with a new producer."""
    while await settled(log.append(0, records(number))) != "done":
        await log.renew(0)


async def off_loop(call: object) -> None:
    await asyncio.get_running_loop().run_in_executor(None, call)  # type: ignore[arg-type]


def test_a_killed_broker_comes_back_and_nothing_that_was_acknowledged_is_gone(
    brokers: Brokers, kafka_prefix: str
) -> None:
    async def body(place: Place) -> None:
        log, reader = await place.log(), await place.log()
        await log.append(0, records(1, 2))
        assert await reader.wait(0, 1, 10)
        waiting = asyncio.create_task(settled(reader.wait(0, 2, 120)))
        await off_loop(brokers.node(1).kill)
        for call in (log.append(0, records(3)), log.end(0), reader.read(0, 2, bytes_max=1)):
            assert await settled(call) == "KAFKA_UNAVAILABLE"
        await log.renew(0)
        await off_loop(lambda: brokers.restart(1))
        assert await waiting in ("KAFKA_UNAVAILABLE", "done")
        await append_at_last(log, 4)
        found = await reader.read(0, 0, bytes_max=MUCH)
        while 4 not in numbers(found):
            found = [*found, *await reader.read(0, len(found), bytes_max=MUCH)]
        assert [n for n in numbers(found) if n != 3] == [1, 2, 4]

    run(brokers.bootstrap, kafka_prefix, body, timeout_s=2.0)


def test_a_broker_that_stands_still_is_waited_for_until_the_deadline(brokers: Brokers, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, records(1))
        brokers.node(1).pause()
        try:
            calls = (log.append(0, records(2)), log.end(0), log.wait(0, 1, 60), log.check())
            assert await asyncio.gather(*map(settled, calls)) == ["KAFKA_UNAVAILABLE"] * 4
            async with asyncio.timeout(20):
                await log.close()
        finally:
            brokers.node(1).resume()
        later = await place.log_at_last()
        await append_at_last(later, 3)
        found = numbers(await later.read(0, 0, bytes_max=MUCH))
        assert found[0] == 1

    run(brokers.bootstrap, kafka_prefix, body, timeout_s=2.0)


def test_a_disk_that_was_rolled_back_is_another_history(brokers: Brokers, kafka_prefix: str, tmp_path: Path) -> None:
    node = brokers.node(1)

    async def body(place: Place) -> None:
        log, follower = await place.log(), await place.log()
        await log.append(0, records(1, 2))
        await off_loop(node.stop)
        await off_loop(lambda: node.copy_disk(tmp_path / "image"))
        await off_loop(lambda: brokers.restart(1))
        await append_at_last(log, 3)
        assert await follower.wait(0, 2, 30)
        end = await follower.end(0)
        await off_loop(node.kill)
        await off_loop(lambda: node.put_disk(tmp_path / "image"))
        await off_loop(lambda: brokers.restart(1))
        for handle in (follower, await place.log()):
            with pytest.raises(AtomlogError) as raised:
                while True:
                    if await settled(handle.end(0)) == "done":
                        await handle.read(0, end, bytes_max=1)
            assert (raised.value.code, raised.value.details[0]["wanted"]) == ("LOG_DIVERGED", end)
            assert await settled(handle.wait(0, end, 1)) == "LOG_DIVERGED"

    run(brokers.bootstrap, kafka_prefix, body, timeout_s=3.0)
