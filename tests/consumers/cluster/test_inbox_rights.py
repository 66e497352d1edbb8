"""On a broker that asks who you are: the commands that `inbox create` prints, run, and what each user may do then."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from atomlog.consumers.cluster.inbox.admin import InboxAdmin, access_commands
from atomlog.consumers.cluster.inbox.registry import registry_topic
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient, KafkaRecord, NewTopic
from atomlog.kernel.system import SystemClock
from tests.consumers.cluster.test_inbox_kafka import outcomes, working
from tests.consumers.cluster.test_inbox_worker import OwnerWrites, batches, body, request
from tests.deploy.secured import logged_in
from tests.kernel.owner.support import claimed
from tests.support.kafka_security import SecureBrokers, secure_brokers
from tests.support.kernel_world import memory_bench

USERS = {"kernel": "k-secret", "alice": "a-secret", "bob": "b-secret"}
PREFIX = "atomlog"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBrokers]:
    with secure_brokers(tmp_path_factory.mktemp("secure"), users=USERS) as brokers:
        yield brokers


async def send(client: KafkaClient, topic: str, value: bytes) -> None:
    producer = await client.producer()
    try:
        await producer.send(topic, 0, [KafkaRecord(key=b"k", value=value)])
    finally:
        await producer.close()


async def denied(act: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(AtomlogError) as refused:
        await act()
    assert refused.value.code == "ACCESS_DENIED"


@pytest.mark.kafka
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("own-broker")
async def test_the_principal_alone_may_write_to_its_inbox_and_the_kernel_may_answer(secure: SecureBrokers) -> None:
    bench, events = memory_bench(), list[Any]()
    async with logged_in(secure, "admin") as admin:
        await admin.create_topics([NewTopic(name=f"{PREFIX}.atoms", partitions=1, replication=1)])
        inboxes = InboxAdmin(client=admin, prefix=PREFIX, clock=SystemClock())
        alice = await inboxes.create("alice", partitions=1, rights=frozenset({"mark-source"}))
        bob = await inboxes.create("bob", partitions=1, rights=frozenset())
    for command in access_commands(alice, PREFIX, (secure.bootstrap,), "kernel"):
        program, *arguments = shlex.split(command)
        assert program == "kafka-acls.sh"
        await asyncio.to_thread(secure.acls, *arguments[2:])  # the tool is told where the brokers are
    async with logged_in(secure, "alice") as as_alice, logged_in(secure, "kernel") as as_kernel:
        await denied(lambda: send(as_alice, bob.topic, request("x")))
        await denied(lambda: send(as_alice, alice.results, b"forged"))
        await denied(lambda: send(as_alice, registry_topic(PREFIX), b"forged"))
        async with logged_in(secure, "bob") as as_bob:
            await denied(lambda: send(as_bob, alice.topic, request("x")))
            await denied(lambda: outcomes(as_bob, alice, bool))
        async with working(as_kernel, PREFIX, OwnerWrites(await claimed(bench)), events):
            await send(as_alice, alice.topic, request("a"))
            (told,) = await outcomes(as_alice, alice, bool)
            while not events:
                await asyncio.sleep(0.01)
    assert body(told)["ok"] is True
    assert [one.principal for one in await batches(bench)] == ["alice"]
    failed = {(one["event"], one["principal"], one["error"]["code"]) for one in events}
    assert failed == {("inbox_failed", "bob", "ACCESS_DENIED")}, "bob's topics were never opened to the kernel"
