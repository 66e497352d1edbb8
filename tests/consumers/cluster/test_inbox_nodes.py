"""Inboxes of several nodes: each partition has one kernel, requests reach the owners, and all of it moves with them."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster.inbox.admin import InboxAdmin
from atomlog.consumers.cluster.inbox.node import inboxes_of
from atomlog.consumers.cluster.inbox.outcomes import place_of
from atomlog.consumers.cluster.inbox.registry import Registration
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import partition_of
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, decode_batch
from atomlog.schemas.record import Record
from tests.consumers.cluster.fake_kafka import FakeBroker
from tests.consumers.cluster.nodes import Cluster, Running
from tests.consumers.cluster.test_inbox_worker import body, request
from tests.support.commands import until
from tests.support.kernel_world import SteppingClock

PREFIX = "t"
SPACES = ("notes", "default", "c", "d", "e")


def working(running: Running, broker: FakeBroker) -> "asyncio.Task[None]":
    inboxes = inboxes_of(running.node, running.parts, broker.client(), PREFIX)
    return asyncio.create_task(inboxes.run())


async def registered(broker: FakeBroker, partitions: int) -> Registration:
    broker.make(f"{PREFIX}.atoms", 1, {})
    admin = InboxAdmin(client=broker.client(), prefix=PREFIX, clock=SteppingClock())
    return await admin.create("alice", partitions=partitions, rights=frozenset({"mark-source"}))


def batches(cluster: Cluster, partition: int) -> list[Batch]:
    records = [entry.record for entry in cluster.server.records(partition)]
    return [
        decode_batch(codec.unwrap(one.value)[1]) for one in records if isinstance(one, Record) and one.kind == "Batch"
    ]


def told(broker: FakeBroker, one: Registration, partition: int) -> list[int]:
    return [place.offset for record in broker.values(one.results, partition) if (place := place_of(record)) is not None]


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def test_requests_for_every_partition_reach_their_owners_with_principal_record_and_rights(tmp_path: Path) -> None:
    cluster, broker = Cluster(tmp_path, partitions=2), FakeBroker()
    one = await registered(broker, partitions=1)
    try:
        first = await cluster.node("one", preferred=[0])
        second = await cluster.node("two", preferred=[1])
        await until(lambda: first.owns(0) and second.owns(1), "each owns its partition")
        tasks = working(first, broker), working(second, broker)
        for n in range(30):
            broker.put(one.topic, 0, request(f"a{n}", space=SPACES[n % len(SPACES)]))
        await until(lambda: len(told(broker, one, 0)) == 30, "all are told")
        await ended(*tasks)
    finally:
        await cluster.close()
    assert told(broker, one, 0) == list(range(30))
    written = {partition: batches(cluster, partition) for partition in (0, 1)}
    assert all(written.values()), "both partitions were written to"
    for partition, found in written.items():
        for batch in found:
            assert batch.inbox is not None
            assert (batch.principal, batch.inbox.topic) == ("alice", one.id_text)
            assert batch.space == SPACES[batch.inbox.offset % len(SPACES)]
            assert partition_of(batch.space, 2) == partition
    assert sorted(batch.inbox.offset for found in written.values() for batch in found if batch.inbox) == list(range(30))


async def test_an_inbox_moves_with_its_owner_and_each_request_is_carried_out_once(tmp_path: Path) -> None:
    cluster, broker = Cluster(tmp_path, partitions=1), FakeBroker()
    one = await registered(broker, partitions=2)
    count = 120
    try:
        first = await cluster.node("one")
        await cluster.owner()
        second = await cluster.node("two")
        tasks = working(first, broker), working(second, broker)
        for n in range(count):
            broker.put(one.topic, n % 2, request(f"a{n}"))
            if n == 20:
                await until(lambda: len(told(broker, one, 0)) >= 3, "some are told")
                moving = asyncio.create_task(first.end())
            await asyncio.sleep(0.002)
        await moving
        await cluster.owner(but=first)
        await until(lambda: {*told(broker, one, 0), *told(broker, one, 1)} >= {*range(count // 2)}, "all are told")
        await until(lambda: len(set(told(broker, one, 1))) == len(set(told(broker, one, 0))) == count // 2, "all")
        await ended(*tasks)
    finally:
        await cluster.close()
    origins = [(batch.inbox.partition, batch.inbox.offset) for batch in batches(cluster, 0) if batch.inbox]
    assert sorted(set(origins)) == [(partition, n) for partition in (0, 1) for n in range(count // 2)]
    for partition in (0, 1):
        for offset in range(count // 2):
            records = [
                record
                for record in broker.values(one.results, partition)
                if (place := place_of(record)) and place.offset == offset
            ]
            assert len({record.value for record in records}) == 1
            assert body(records[0])["ok"] is True


async def test_a_node_that_owns_nothing_takes_no_request(tmp_path: Path) -> None:
    cluster, broker = Cluster(tmp_path, partitions=1), FakeBroker()
    one = await registered(broker, partitions=1)
    try:
        first = await cluster.node("one")
        await cluster.owner()
        second = await cluster.node("two")
        task = working(second, broker)
        broker.put(one.topic, 0, request("a"))
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert told(broker, one, 0) == []
        other = working(first, broker)
        await until(lambda: told(broker, one, 0) == [0], "the owner takes it")
        await ended(task, other)
    finally:
        await cluster.close()


@pytest.mark.parametrize(
    "sent",
    [
        {"inbox": "x"},
        {"inbox": {"topic": "x"}},
        {"inbox": {"topic": "x", "partition": True, "offset": 1}, "rights": []},
        {"inbox": {"topic": "x", "partition": 0, "offset": 1}, "rights": "write"},
        {"inbox": {"topic": "x", "partition": 0, "offset": 1}},
    ],
)
async def test_an_origin_that_is_none_is_refused(tmp_path: Path, sent: Any) -> None:
    cluster = Cluster(tmp_path, partitions=1)
    batch = {"space": "s", "idempotency_key": "k", "changes": [{"op": "create", "schema": "note", "value": 1}]}
    try:
        node = await cluster.node("one")
        with pytest.raises(AtomlogError) as caught:
            await cluster.ask(node, "write", batch=batch, **sent)
        assert caught.value.code == "INVALID_INPUT"
    finally:
        await cluster.close()
