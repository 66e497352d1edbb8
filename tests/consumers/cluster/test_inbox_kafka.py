"""Inboxes on a real broker: making and removing them, and what any producer may put there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from atomlog.consumers.cluster.inbox.admin import InboxAdmin
from atomlog.consumers.cluster.inbox.inboxes import Inboxes
from atomlog.consumers.cluster.inbox.outcomes import place_of
from atomlog.consumers.cluster.inbox.registry import (
    Follower,
    Registration,
    read_registrations,
    registration_record,
    registry_topic,
)
from atomlog.consumers.cluster.inbox.worker import Surroundings, Writes
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient, KafkaRecord, NewTopic
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock
from tests.consumers.cluster.test_inbox_worker import OwnerWrites, batches, body, request
from tests.kernel.owner.support import claimed
from tests.support.kafka import SharedBroker
from tests.support.kernel_world import memory_bench

RIGHTS = frozenset({"mark-source"})


@asynccontextmanager
async def connected(kafka: SharedBroker) -> AsyncIterator[KafkaClient]:
    client = KafkaClient(KafkaConfig(bootstrap=(kafka.bootstrap,)), timeout_s=20)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def with_log(client: KafkaClient, prefix: str) -> InboxAdmin:
    """The topic of a log alone: nobody writes there."""
    settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    await client.create_topics([NewTopic(name=f"{prefix}.atoms", partitions=1, replication=1, settings=settings)])
    return InboxAdmin(client=client, prefix=prefix, clock=SystemClock())


@asynccontextmanager
async def working(client: KafkaClient, prefix: str, writes: Writes, events: list[Any]) -> AsyncIterator[None]:
    around = Surroundings(
        client=client, writes=writes, partitions=1, settings=Settings(), clock=SystemClock(), say=events.append
    )
    running = asyncio.create_task(Inboxes(around, prefix, lambda _: True).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def outcomes(
    client: KafkaClient, one: Registration, until: Callable[[Sequence[FetchedRecord]], bool]
) -> list[Any]:
    stream = await client.stream(one.results, 0, 0)
    found: list[FetchedRecord] = []
    while not until(found):
        found += await stream.next(1 << 20, 1.0)
    await stream.close()
    return found


async def test_an_inbox_is_made_listed_changed_and_removed(kafka: SharedBroker, kafka_prefix: str) -> None:
    async with connected(kafka) as client:
        admin = await with_log(client, kafka_prefix)
        assert await admin.all() == []
        made = await admin.create("alice", partitions=2, rights=frozenset())
        facts = await client.topics(made.topics)
        for name, retention_ms in zip(made.topics, ("43200000", "86400000"), strict=True):
            found = facts[name]
            assert found is not None
            assert (found.partitions, found.settings["retention.ms"]) == (2, retention_ms)
            assert (found.settings["message.timestamp.type"], found.settings["cleanup.policy"]) == (
                "LogAppendTime",
                "delete",
            )
        with pytest.raises(AtomlogError, match="is there and has 2"):
            await admin.create("alice", partitions=7, rights=RIGHTS)
        again = await admin.create("alice", partitions=None, rights=RIGHTS)
        assert (again.topic_id, again.partitions, again.rights) == (
            made.topic_id,
            2,
            frozenset({"write", "mark-source"}),
        )
        other = await admin.create("bob", partitions=1, rights=frozenset())
        assert await admin.all() == [again, other]
        assert await admin.delete("alice") == again
        assert await admin.all() == [other]
        with pytest.raises(AtomlogError, match="there is no inbox of 'alice'"):
            await admin.delete("alice")


async def test_wrong_names_counts_rights_and_stores_are_refused(kafka: SharedBroker, kafka_prefix: str) -> None:
    async with connected(kafka) as client:
        lone = InboxAdmin(client=client, prefix=kafka_prefix, clock=SystemClock())
        for arguments, code in (
            (("A b", 1, RIGHTS), "INVALID_INPUT"),
            (("local", 1, RIGHTS), "INVALID_INPUT"),
            (("a", 0, RIGHTS), "INVALID_INPUT"),
            (("a", 1, frozenset({"purge"})), "INVALID_INPUT"),
            (("a", 1, RIGHTS), "STORE_NOT_FOUND"),
        ):
            with pytest.raises(AtomlogError) as caught:
                await lone.create(arguments[0], partitions=arguments[1], rights=arguments[2])
            assert caught.value.code == code
        assert await lone.all() == []


async def test_a_topic_that_an_inbox_cannot_work_with_is_refused_by_its_settings(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with connected(kafka) as client:
        admin = await with_log(client, kafka_prefix)
        await client.create_topics([NewTopic(name=f"{kafka_prefix}.results.alice", partitions=3, replication=1)])
        with pytest.raises(AtomlogError) as caught:
            await admin.create("alice", partitions=1, rights=RIGHTS)
        assert caught.value.code == "STORE_UNSAFE"
        named = {one["message"].split()[0] for one in caught.value.details}
        assert {"compression.type", "message.timestamp.type", "partitions"} <= named
        assert await admin.all() == []


async def test_registrations_are_followed_and_what_is_none_is_passed_by(kafka: SharedBroker, kafka_prefix: str) -> None:
    async with connected(kafka) as client:
        admin = await with_log(client, kafka_prefix)
        follower = Follower(client, kafka_prefix, SystemClock())
        await follower.step(0.01)
        assert list(follower.registrations) == []
        alice = await admin.create("alice", partitions=1, rights=RIGHTS)
        producer = await client.producer()
        junk = [
            KafkaRecord(key=b"other", value=b"junk"),
            KafkaRecord(key=b"inbox:eve", value=b"\xc3\x01junk"),
            KafkaRecord(key=b"inbox:\xff", value=None),
            registration_record(replace(alice, principal="local")),
        ]
        await producer.send(registry_topic(kafka_prefix), 0, junk)
        bob = await admin.create("bob", partitions=1, rights=RIGHTS)
        while list(follower.registrations) != [alice, bob]:
            await follower.step(1.0)
        assert follower.registrations.unreadable == 3
        await admin.delete("alice")
        while list(follower.registrations) != [bob]:
            await follower.step(1.0)
        await follower.close()
        assert list(await read_registrations(client, kafka_prefix)) == [bob]
        await producer.close()


async def test_whatever_a_producer_may_send_has_an_outcome_and_holds_nobody_up(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    bench, events = memory_bench(), list[Any]()
    async with connected(kafka) as client:
        one = await (await with_log(client, kafka_prefix)).create("alice", partitions=1, rights=RIGHTS)
        writes = OwnerWrites(await claimed(bench))
        async with working(client, kafka_prefix, writes, events):
            for compression in (None, "gzip"):
                async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type=compression) as sending:
                    name = compression or "plain"
                    await sending.send_and_wait(one.topic, request(name), key=b"k", headers=[("trace", b"7")])
                    await sending.send_and_wait(one.topic, b"\xff" * 100)
                    await sending.send_and_wait(one.topic, None, key=b"tombstone")
            transactional = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=kafka_prefix)
            async with transactional as sending, sending.transaction():
                await sending.send(one.topic, request("in a transaction"))
            while (await client.bounds(one.topic, 0))[1] < 8:  # its end is written a moment later
                await asyncio.sleep(0.01)
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as sending:
                await sending.send_and_wait(one.topic, request("last"))
            told = await outcomes(client, one, lambda found: len(found) >= 8)
    places = [place.offset for record in told if (place := place_of(record)) is not None]
    assert places == [0, 1, 2, 3, 4, 5, 6, 8]  # 7 is the end of the transaction
    assert [body(record)["ok"] for record in told] == [True, False, False, True, False, False, True, True]
    assert (told[0].key, dict(told[0].headers)["trace"]) == (b"k", b"7")
    assert len(await batches(bench)) == 4
    assert events == []


async def test_a_topic_that_is_made_anew_is_said_and_the_other_inboxes_go_on(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    bench, events = memory_bench(), list[Any]()
    async with connected(kafka) as client:
        admin = await with_log(client, kafka_prefix)
        alice = await admin.create("alice", partitions=1, rights=RIGHTS)
        bob = await admin.create("bob", partitions=1, rights=RIGHTS)
        kafka_admin = await _admin_client(kafka)
        await kafka_admin.delete_topics([alice.topic])
        while (await client.topics([alice.topic]))[alice.topic] is not None:
            await asyncio.sleep(0.05)
        async with working(client, kafka_prefix, OwnerWrites(await claimed(bench)), events):
            producer = await client.producer()
            await producer.send(bob.topic, 0, [KafkaRecord(value=request("a"))])
            await outcomes(client, bob, lambda found: len(found) == 1)
            while not events:
                await asyncio.sleep(0.01)
            assert (events[0]["event"], events[0]["principal"]) == ("inbox_failed", "alice")
            assert "is gone" in events[0]["error"]["message"]
            anew = await admin.create("alice", partitions=1, rights=RIGHTS)
            assert anew.topic_id != alice.topic_id
            await producer.send(anew.topic, 0, [KafkaRecord(value=request("b"))])
            told = await outcomes(client, anew, lambda found: len(found) == 1)
            assert body(told[0])["inbox"]["registration"] == anew.id_text
            await producer.close()
        await kafka_admin.close()


async def _admin_client(kafka: SharedBroker) -> Any:

    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    return admin
