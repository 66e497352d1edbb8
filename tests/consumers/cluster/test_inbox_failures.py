"""What keeps an inbox from working is said once, ends nothing else, and is over when it is over."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from atomlog.consumers.cluster.inbox.admin import InboxAdmin
from atomlog.consumers.cluster.inbox.inboxes import Inboxes
from atomlog.consumers.cluster.inbox.outcomes import place_of
from atomlog.consumers.cluster.inbox.worker import Surroundings
from atomlog.kernel.errors import fail
from atomlog.kernel.model import WriteResult
from tests.consumers.cluster.fake_kafka import FakeBroker
from tests.consumers.cluster.test_inbox_worker import DONE, PREFIX, SETTINGS, PatientClock, ScriptedWrites, request
from tests.support.commands import until


async def _done(offset: int, tries: int) -> WriteResult:
    return DONE


def around(broker: FakeBroker, events: list[Any]) -> Surroundings:
    return Surroundings(
        client=broker.client(),
        writes=ScriptedWrites(_done),
        partitions=1,
        settings=SETTINGS,
        clock=PatientClock(),
        say=events.append,
    )


async def test_a_failure_is_said_once_and_the_inbox_works_when_it_is_over() -> None:
    broker, events = FakeBroker(), list[Any]()
    broker.make(f"{PREFIX}.atoms", 1, {})
    admin = InboxAdmin(client=broker.client(), prefix=PREFIX, clock=PatientClock())
    alice = await admin.create("alice", partitions=1, rights=frozenset())
    bob = await admin.create("bob", partitions=1, rights=frozenset())
    tries = 0

    def refuse(topic: str, *_: Any) -> None:
        nonlocal tries
        if topic == alice.results:
            tries += 1
            if tries < 6:
                raise fail("ACCESS_DENIED", "no right to write there") if tries % 2 else RuntimeError("a bug")

    broker.on_send = refuse
    broker.put(alice.topic, 0, request("a"))
    broker.put(bob.topic, 0, request("b"))
    running = asyncio.create_task(Inboxes(around(broker, events), PREFIX, lambda _: True).run())
    for one in (bob, alice):
        await until(partial(broker.values, one.results), f"{one.principal} is told")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert tries == 6
    assert [place.offset for one in broker.values(alice.results) if (place := place_of(one))] == [0]
    said = [(one["principal"], one["error"]["code"]) for one in events]
    assert said == [("alice", "ACCESS_DENIED"), ("alice", "CORRUPT")] * 2 + [("alice", "ACCESS_DENIED")]


async def test_registrations_that_cannot_be_read_are_said_once_and_end_nothing() -> None:
    broker, events = FakeBroker(), list[Any]()
    broker.make(f"{PREFIX}.atoms", 1, {})
    admin = InboxAdmin(client=broker.client(), prefix=PREFIX, clock=PatientClock())
    alice = await admin.create("alice", partitions=1, rights=frozenset())
    surroundings = around(broker, events)
    broken = True
    topics = surroundings.client.topics

    async def sometimes(names: Any) -> Any:
        if broken:
            raise fail("KAFKA_UNAVAILABLE", "nobody is there")
        return await topics(names)

    surroundings.client.topics = sometimes  # type: ignore[method-assign]
    running = asyncio.create_task(Inboxes(surroundings, PREFIX, lambda _: True).run())
    await until(lambda: events, "it is said")
    for _ in range(50):
        await asyncio.sleep(0.001)
    broken = False
    broker.put(alice.topic, 0, request("a"))
    await until(lambda: broker.values(alice.results), "it works again")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert [(one["event"], one["part"]) for one in events] == [("inbox_failed", "registrations")]
