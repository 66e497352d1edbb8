"""The client against the broker of the run: what it finds and makes, what it is refused, that it ends in time."""

import asyncio
import socket
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient, KafkaConfig, KafkaRecord, NewTopic
from tests.kernel.kafka.support import Place, proxied, run
from tests.support.kafka import SharedBroker

MANY = [KafkaRecord(key=b"%d" % n, value=b"v" * 50_000) for n in range(40)]


async def code(call: Awaitable[object]) -> str:
    """The code of the error it ends with; it must end soon enough for a person."""
    with pytest.raises(AtomlogError) as raised:
        async with asyncio.timeout(30):
            await call
    return raised.value.code


def test_a_topic_is_made_once_and_told_as_it_is(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        new = NewTopic(name=f"{kafka_prefix}.x", partitions=3, replication=1, settings={"retention.ms": "77777"})
        assert await client.topics([new.name]) == {new.name: None}
        assert await client.create_topics([new]) == {new.name: True}
        assert await client.create_topics([new]) == {new.name: False}
        facts = (await client.topics([new.name, place.topic]))[new.name]
        assert facts is not None
        assert (facts.name, facts.partitions, facts.replication) == (new.name, 3, 1)
        assert facts.settings["retention.ms"] == "77777"
        assert len(facts.topic_id) == 16
        assert any(facts.topic_id)

    run(kafka.address, kafka_prefix, body)


def test_what_brokers_do_not_make_is_refused(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        for new in (
            NewTopic(name=f"{kafka_prefix}.r", partitions=1, replication=9),
            NewTopic(name=f"{kafka_prefix}.s", partitions=1, replication=1, settings={"no.such.setting": "1"}),
            NewTopic(name="no/name", partitions=1, replication=1),
        ):
            assert await code(client.create_topics([new])) == "INVALID_INPUT"

    run(kafka.address, kafka_prefix, body)


def test_a_stream_gives_what_was_sent_in_order_from_any_position(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        producer = await client.producer()
        for at in range(0, 40, 10):
            assert await producer.send(place.topic, 1, MANY[at : at + 10]) == at
        assert await client.bounds(place.topic, 1) == (0, 40)
        assert await client.bounds(place.topic, 0) == (0, 0)
        for position in (0, 7, 39):
            stream = await client.stream(place.topic, 1, position)
            found: list[FetchedRecord] = []
            while stream.position < 40:
                found += await stream.next(200_000, 5)
            assert [(r.offset, r.key, r.value) for r in found] == [
                (n, MANY[n].key, MANY[n].value) for n in range(position, 40)
            ]
            assert await stream.next(200_000, 0) == []
            await stream.close()

    run(kafka.address, kafka_prefix, body)


def test_a_stream_waits_for_what_comes(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        stream = await client.stream(place.topic, 0, 0)
        waiting = asyncio.create_task(stream.next(1_000, 60))
        await client.end(place.topic, 0)
        await (await client.producer()).send(place.topic, 0, MANY[:1])
        assert [r.key for r in await waiting] == [b"0"]

    run(kafka.address, kafka_prefix, body)


def test_compaction_leaves_gaps_that_a_stream_steps_over(kafka: SharedBroker, kafka_prefix: str) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "max.compaction.lag.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
    }

    async def body(place: Place) -> None:
        client = await place.client()
        topic = f"{kafka_prefix}.compact"
        await client.create_topics([NewTopic(name=topic, partitions=1, replication=1, settings=settings)])
        producer = await client.producer()
        found: list[int] = [0]
        sent = 0
        while len(found) == sent or not sent:  # until the broker has cleaned something away
            sent = await producer.send(topic, 0, [KafkaRecord(key=b"same", value=b"%d" % sent)]) + 1
            stream, found = await client.stream(topic, 0, 0), []
            while stream.position < sent:
                found += [r.offset for r in await stream.next(1 << 20, 5)]
            await stream.close()
        assert found == sorted(found)
        assert found[-1] == sent - 1

    run(kafka.address, kafka_prefix, body)


def test_a_topic_that_is_not_there_is_never_made_by_asking(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        topic = f"{kafka_prefix}.absent"
        producer, stream = await client.producer(), await client.stream(topic, 0, 0)
        calls = (producer.send(topic, 0, MANY[:1]), stream.next(1_000, 1), client.bounds(topic, 0))
        assert await asyncio.gather(*map(code, calls)) == ["STORE_NOT_FOUND"] * 3
        assert await client.topics([topic]) == {topic: None}
        assert await code(client.end(place.topic, 9)) == "LOG_MISMATCH"

    run(kafka.address, kafka_prefix, body)


def test_a_group_that_is_too_large_is_refused_before_or_by_the_broker(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        new = NewTopic(
            name=f"{kafka_prefix}.small", partitions=1, replication=1, settings={"max.message.bytes": "20000"}
        )
        await client.create_topics([new])
        for bytes_max in (20_000, 1_000_000):
            producer = await client.producer(bytes_max=bytes_max)
            assert await code(producer.send(new.name, 0, MANY[:1])) == "BOUND_EXCEEDED"
            assert await producer.send(new.name, 0, [KafkaRecord(value=b"small")]) >= 0
        assert await client.end(new.name, 0) == 2

    run(kafka.address, kafka_prefix, body)


def test_nobody_at_the_address_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free = taken.getsockname()[1]
    for address in (f"127.0.0.1:{free}", "no-such-host.invalid:9092"):

        async def start(address: str) -> None:
            client = KafkaClient(KafkaConfig(bootstrap=(address,)), timeout_s=5)
            with pytest.raises(AtomlogError) as raised:
                await client.start()
            assert raised.value.code == "KAFKA_UNAVAILABLE"
            assert address in raised.value.message
            await client.close()

        asyncio.run(start(address))


def test_one_address_of_several_is_enough(kafka: SharedBroker) -> None:
    async def start() -> None:
        client = KafkaClient(KafkaConfig(bootstrap=("127.0.0.1:1", kafka.address)), timeout_s=20)
        await client.start()
        assert await client.cluster_id()
        await client.close()

    asyncio.run(start())


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x63"])
def test_somebody_else_at_the_address_is_no_broker(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async def start() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = KafkaClient(KafkaConfig(bootstrap=(f"127.0.0.1:{port}",)), timeout_s=5)
        assert await code(client.start()) == "KAFKA_UNAVAILABLE"
        await client.close()
        server.close()

    asyncio.run(start())


def test_a_silent_broker_is_given_up_in_time_and_closing_does_not_wait_for_it(
    kafka: SharedBroker, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(place: Place) -> None:
        async with proxied(monkeypatch, place) as proxy:
            client = await place.client()
            producer, stream = await client.producer(), await client.stream(place.topic, 0, 0)
            await producer.send(place.topic, 0, MANY[:1])
            await stream.next(1_000, 5)
            proxy.swallows_requests = True
            calls: list[Coroutine[Any, Any, object]] = [
                client.cluster_id(),
                client.topics([place.topic]),
                client.bounds(place.topic, 0),
            ]
            calls += [stream.next(1_000, 0.1), producer.send(place.topic, 0, MANY[:1]), client.start()]
            tasks = [asyncio.create_task(code(call)) for call in calls]
            assert set(await asyncio.gather(*tasks)) == {"KAFKA_UNAVAILABLE"}
            hanging = asyncio.create_task(code(producer.send(place.topic, 0, MANY[:1])))
            waiting = asyncio.create_task(code(stream.next(1_000, 60)))
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await client.close()
                await asyncio.gather(hanging, waiting)
            assert await code(client.cluster_id()) == "INVALID_INPUT"

    run(kafka.address, kafka_prefix, body, timeout_s=1.0)
