"""An inbox partition is worked through: each request once, in order, each outcome told, whatever happens between."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from atomlog.consumers.cluster.inbox.admin import InboxAdmin
from atomlog.consumers.cluster.inbox.outcomes import OUTCOME_BYTES_MAX, place_of
from atomlog.consumers.cluster.inbox.registry import Registration
from atomlog.consumers.cluster.inbox.requests import InboxRequest
from atomlog.consumers.cluster.inbox.worker import InboxWorker, Moved, Surroundings
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import FetchedRecord, KafkaRecord
from atomlog.kernel.model import ChangeResult, Outcome, WriteReceipt, WriteResult
from atomlog.kernel.owner import Owner
from atomlog.kernel.settings import Settings
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, decode_batch
from atomlog.schemas.record import Record
from tests.consumers.cluster.fake_kafka import FakeBroker, lost
from tests.kernel.owner.support import claimed
from tests.support.kernel_world import Bench, SteppingClock, batch, create, memory_bench

PREFIX: Final = "t"
DONE: Final = WriteResult(
    results=(ChangeResult(alias=None, atom=b"\1" * 16, revision=b"\2" * 16),),
    receipt=WriteReceipt(space="notes", partition=0, position=1, term=1, chain=bytes(16)),
    replayed=False,
)


SETTINGS: Final = Settings(inbox_give_up_ms=1_000, metadata_refresh_ms=10**9)


class PatientClock(SteppingClock):
    """A sleep of many hours does not end, and lets no time pass for the others."""

    async def sleep(self, seconds: float) -> None:
        if seconds > 10_000:
            await asyncio.Event().wait()
        await super().sleep(seconds)


class OwnerWrites:
    """Requests go to an owner of this process."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner

    async def write(self, request: InboxRequest, principal: str) -> WriteResult:
        return await self.owner.write(request.parsed, principal)

    async def outcome(self, space: str, key: str, principal: str) -> Outcome:
        return await self.owner.outcome(space, key, principal)


class ScriptedWrites:
    """Answers by a script: a function of the request's offset and how often it came."""

    def __init__(self, answer: Callable[[int, int], Awaitable[WriteResult]]) -> None:
        self._answer = answer
        self.tries: list[int] = []
        self.known = Outcome(state="never", term=1)

    async def write(self, request: InboxRequest, principal: str) -> WriteResult:
        assert request.parsed.inbox is not None
        offset = request.parsed.inbox.offset
        self.tries.append(offset)
        return await self._answer(offset, self.tries.count(offset))

    async def outcome(self, space: str, key: str, principal: str) -> Outcome:
        return self.known


@dataclass
class World:
    broker: FakeBroker
    one: Registration
    clock: SteppingClock = field(default_factory=PatientClock)
    settings: Settings = SETTINGS
    events: list[Mapping[str, Any]] = field(default_factory=list)
    works_here: bool = True

    @classmethod
    async def made(cls, **settings: int) -> "World":
        broker = FakeBroker()
        broker.make(f"{PREFIX}.atoms", 1, {"min.insync.replicas": "2"}, replication=3)
        admin = InboxAdmin(client=broker.client(), prefix=PREFIX, clock=SteppingClock())
        one = await admin.create("alice", partitions=2, rights=frozenset({"write", "mark-source"}))
        world = cls(broker, one)
        world.settings = replace(world.settings, **settings)
        return world

    def worker(self, writes: Any, partition: int = 0) -> InboxWorker:
        around = Surroundings(
            client=self.broker.client(),
            writes=writes,
            partitions=1,
            settings=self.settings,
            clock=self.clock,
            say=self.events.append,
        )
        return InboxWorker(around, self.one, partition, lambda: self.works_here)

    def ask(self, *values: bytes | None, partition: int = 0, **more: Any) -> None:
        self.broker.put(self.one.topic, partition, *values, **more)

    def outcomes(self, partition: int = 0) -> list[FetchedRecord]:
        return self.broker.values(self.one.results, partition)

    def told(self, partition: int = 0) -> list[int]:
        return [place.offset for one in self.outcomes(partition) if (place := place_of(one)) is not None]

    async def work(self, writes: Any, until: int, partition: int = 0) -> None:
        """Run a worker until so many outcomes stand there, then kill it."""
        working = asyncio.create_task(self.worker(writes, partition).run())
        try:
            while len(self.outcomes(partition)) < until and not working.done():
                await asyncio.sleep(0.001)
            if working.done():
                await working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def request(name: str, *, key: str | None = None, space: str = "notes", **more: Any) -> bytes:
    raw = batch(key or "", create(name, **more), space=space)
    if key is None:
        del raw["idempotency_key"]
    return json.dumps(raw).encode()


async def batches(bench: Bench) -> list[Batch]:
    found = await bench.log.read(0, 0, bytes_max=1 << 24)
    return [
        decode_batch(codec.unwrap(one.record.value)[1])
        for one in found
        if isinstance(one.record, Record) and one.record.kind == "Batch"
    ]


def body(record: FetchedRecord) -> dict[str, Any]:
    return dict(json.loads(record.value or b""))


async def test_each_request_is_carried_out_once_and_told_in_order_with_poison_in_between() -> None:
    world, bench = await World.made(), memory_bench()
    world.ask(request("a"), b"\xc3\x01rubbish", request("b"), None, b"[" * 10_000, request("c", key="mine"))
    await world.work(OwnerWrites(await claimed(bench)), until=6)
    assert world.told() == [0, 1, 2, 3, 4, 5]
    oks = [dict(one.headers)["atomlog.ok"] for one in world.outcomes()]
    assert oks == [b"true", b"false", b"true", b"false", b"false", b"true"]
    written = await batches(bench)
    assert [(one.principal, one.inbox and one.inbox.offset) for one in written] == [
        ("alice", 0),
        ("alice", 2),
        ("alice", 5),
    ]
    assert {one.inbox.topic for one in written if one.inbox} == {world.one.id_text}
    assert body(world.outcomes()[3])["error"]["code"] == "INVALID_INPUT"


@pytest.mark.parametrize("seed", range(12))
async def test_killed_at_any_moment_each_is_carried_out_once_and_every_outcome_is_the_same_bytes(seed: int) -> None:
    world, bench = await World.made(), memory_bench()
    count = 40
    for n in range(count):
        world.ask(request(f"a{n}", key=f"k{n // 2}") if n % 4 == 3 else b"poison" if n % 7 == 5 else request(f"a{n}"))
    writes = OwnerWrites(await claimed(bench))
    steps = [1 + (seed * 31 + n * 17) % 23 for n in range(8)]
    for ticks in steps:
        working = asyncio.create_task(world.worker(writes).run())
        for _ in range(ticks):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    world.broker.lost_answers = 1
    while left := count - 1 - max(world.told(), default=-1):
        await world.work(writes, until=len(world.outcomes()) + min(5, left))  # some may stand there twice
    assert sorted(set(world.told())) == list(range(count))
    for offset in range(count):
        same = {one.value for one in world.outcomes() if (place := place_of(one)) and place.offset == offset}
        assert len(same) == 1, f"offset {offset} has different outcomes"
    origins = [one.inbox.offset for one in await batches(bench) if one.inbox]
    assert len(origins) == len(set(origins))
    accepted = {place.offset for one in world.outcomes() if body(one)["ok"] and (place := place_of(one))}
    repeated = {place.offset for one in world.outcomes() if body(one).get("replayed") and (place := place_of(one))}
    assert accepted - repeated == set(origins)


async def test_the_same_key_in_two_records_is_one_write_and_the_second_is_a_repeat() -> None:
    world, bench = await World.made(), memory_bench()
    world.ask(request("a", key="k"), request("a", key="k"), request("b", key="k"))
    await world.work(OwnerWrites(await claimed(bench)), until=3)
    first, second, third = map(body, world.outcomes())
    assert (first["replayed"], second["replayed"], third["ok"]) == (False, True, False)
    assert first["receipt"] == second["receipt"]
    assert third["error"]["code"] == "IDEMPOTENCY_MISMATCH"
    assert len(await batches(bench)) == 1


async def test_a_request_that_needs_an_earlier_one_waits_for_it() -> None:
    """The earlier one is held up: the later one is refused first, which does not count."""
    world, bench = await World.made(), memory_bench()
    writes = OwnerWrites(await claimed(bench))
    held = asyncio.Event()
    refusals: list[str] = []

    class Held:
        async def write(self, one: InboxRequest, principal: str) -> WriteResult:
            assert one.parsed.inbox is not None
            if one.parsed.inbox.offset == 1:
                await held.wait()
            try:
                return await writes.write(one, principal)
            except AtomlogError as error:
                refusals.append(error.code)
                held.set()
                raise

        outcome = writes.outcome

    slot = {"role": "about", "target": "key:a"}
    world.ask(request("the first of its space"), request("a"), request("b", slots=[slot]))
    await world.work(Held(), until=3)
    assert refusals == ["REFERENCE_UNAVAILABLE"]
    assert [body(one)["ok"] for one in world.outcomes()] == [True, True, True]


async def test_the_first_requests_of_a_space_do_not_overtake_each_other() -> None:
    """The owner draws a key for a new space, and only the first request waits for that."""
    world, bench = await World.made(), memory_bench()
    for n in range(40):
        world.ask(request(f"a{n}", space=f"s{n % 8}"))
    await world.work(OwnerWrites(await claimed(bench)), until=40)
    written = [(one.space, one.inbox.offset) for one in await batches(bench) if one.inbox]
    assert len(written) == 40
    for space in {space for space, _ in written}:
        offsets = [offset for one, offset in written if one == space]
        assert offsets == sorted(offsets)


async def test_an_outcome_whose_answer_was_lost_is_sent_again_as_the_same_bytes() -> None:
    world, bench = await World.made(), memory_bench()
    world.broker.lost_answers = 2
    world.ask(request("a"), b"poison")
    await world.work(OwnerWrites(await claimed(bench)), until=6)
    assert world.told() == [0, 1] * 3
    assert len({one.value for one in world.outcomes()}) == 2


@pytest.mark.parametrize("code", ["IN_DOUBT", "NOT_OWNER", "OVERLOADED", "KAFKA_UNAVAILABLE", "CORRUPT"])
async def test_what_says_nothing_of_the_request_is_tried_again(code: str) -> None:
    async def answer(offset: int, tries: int) -> WriteResult:
        if tries < 4:
            raise fail(code, "not now", retry_after_ms=1)
        return DONE

    world, writes = await World.made(), ScriptedWrites(answer)
    world.ask(request("a"))
    await world.work(writes, until=1)
    assert writes.tries == [0, 0, 0, 0]
    assert body(world.outcomes()[0])["ok"] is True


@pytest.mark.parametrize("failure", [RuntimeError("bug"), fail("CORRUPT", "a broken blob"), fail("IN_DOUBT", "hm")])
async def test_a_request_that_fails_by_itself_is_given_up_and_the_next_ones_go_on(failure: Exception) -> None:
    async def answer(offset: int, tries: int) -> WriteResult:
        if offset == 0:
            raise failure
        return DONE

    world, writes = await World.made(), ScriptedWrites(answer)
    world.ask(request("a"), request("b"))
    await world.work(writes, until=2)
    first, second = map(body, world.outcomes())
    assert "given up, and nothing of it is written" in first["error"]["message"]
    assert second["ok"] is True


async def test_nothing_is_given_up_while_nobody_can_tell_whether_it_was_written() -> None:
    async def answer(offset: int, tries: int) -> WriteResult:
        raise fail("IN_DOUBT", "hm")

    world, writes = await World.made(), ScriptedWrites(answer)
    writes.known = Outcome(state="unknown")
    world.ask(request("a"))
    working = asyncio.create_task(world.worker(writes).run())
    while len(writes.tries) < 20:
        await asyncio.sleep(0.001)
    assert world.outcomes() == []
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_whoever_lost_the_partition_tells_nothing_more() -> None:
    world = await World.made()

    async def answer(offset: int, tries: int) -> WriteResult:
        world.works_here = False
        raise fail("NOT_FOUND", "no")

    world.ask(request("a"))
    with pytest.raises(Moved):
        await world.worker(ScriptedWrites(answer)).run()
    assert world.outcomes() == []


async def test_a_refusal_that_waited_longer_than_a_lease_is_decided_again() -> None:
    world = await World.made(lease_ms=5_000)
    first_done = asyncio.Event()

    async def answer(offset: int, tries: int) -> WriteResult:
        if offset == 0:
            await first_done.wait()
        if offset == 1 and tries == 1:
            raise fail("NOT_FOUND", "not yet")
        return DONE

    writes = ScriptedWrites(answer)
    other_space = json.dumps(batch("k", create("b"), space="elsewhere")).encode()
    world.ask(request("a"), other_space)

    async def partition_apart() -> None:
        while writes.tries != [0, 1]:
            await asyncio.sleep(0.001)
        world.clock.us += 6_000_000
        first_done.set()

    around = Surroundings(
        client=world.broker.client(),
        writes=writes,
        partitions=64,
        settings=world.settings,
        clock=world.clock,
        say=world.events.append,
    )
    working = asyncio.create_task(InboxWorker(around, world.one, 0, lambda: True).run())
    await partition_apart()
    while len(world.outcomes()) < 2:
        await asyncio.sleep(0.001)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert writes.tries == [0, 1, 1]
    assert [body(one)["ok"] for one in world.outcomes()] == [True, True]


async def test_requests_that_expired_unseen_are_named_to_operator_and_principal() -> None:
    world, bench = await World.made(), memory_bench()
    writes = OwnerWrites(await claimed(bench))
    world.ask(request("a"), request("b"), request("c"), request("d"))
    world.broker.expire(world.one.topic, 0, 1)
    await world.work(writes, until=4)
    assert world.told() == [0, 1, 2, 3]
    lost_ones = body(world.outcomes()[0])["error"]
    assert (lost_ones["code"], lost_ones["details"][0]["first"], lost_ones["details"][0]["last"]) == (
        "REQUEST_EXPIRED",
        0,
        0,
    )
    assert [(one["event"], one["first"], one["last"]) for one in world.events] == [("inbox_gap", 0, 0)]
    world.ask(request("e"), request("f"))
    world.broker.expire(world.one.topic, 0, 6)
    await world.work(writes, until=5)
    assert world.told()[4:] == [5]
    assert world.events[-1]["first"] == 4


async def test_outcomes_that_expired_are_no_gap() -> None:
    world, bench = await World.made(), memory_bench()
    world.ask(request("a"), request("b"))
    await world.work(OwnerWrites(await claimed(bench)), until=2)
    world.broker.expire(world.one.topic, 0, 2)
    world.broker.expire(world.one.results, 0, 2)
    world.ask(request("c"))
    await world.work(ScriptedWrites(_done), until=1)
    assert (world.told(), world.events) == ([2], [])


async def _done(offset: int, tries: int) -> WriteResult:
    return DONE


async def test_late_outcomes_of_a_stopped_kernel_do_not_move_the_position_back() -> None:
    world = await World.made()
    for _ in range(20):
        world.ask(request("a"))
    await world.work(ScriptedWrites(_done), until=20)
    late = [KafkaRecord(key=one.key, value=one.value, headers=one.headers) for one in world.outcomes()[:9]]
    world.broker.write(world.one.results, 0, late)
    world.broker.put(world.one.results, 0, *[b"rubbish"] * 5_000)
    world.ask(request("b"))
    writes = ScriptedWrites(_done)
    await world.work(writes, until=20 + 9 + 5_000 + 1)
    assert writes.tries == [20]


@pytest.mark.parametrize("which", ["topic", "results"])
async def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(which: str) -> None:
    world = await World.made()
    name = getattr(world.one, which)
    facts = world.broker.found[name].facts
    world.broker.make(name, facts.partitions, facts.settings)
    with pytest.raises(AtomlogError, match="was deleted and made anew; `atomlog inbox create alice`") as caught:
        await world.worker(ScriptedWrites(_done)).run()
    assert caught.value.code == "LOG_DIVERGED"


async def test_a_topic_that_is_made_anew_under_a_worker_is_noticed() -> None:
    world = await World.made(metadata_refresh_ms=1)
    working = asyncio.create_task(world.worker(ScriptedWrites(_done)).run())
    for _ in range(20):
        await asyncio.sleep(0.001)
    facts = world.broker.found[world.one.topic].facts
    world.broker.make(world.one.topic, facts.partitions, facts.settings)
    with pytest.raises(AtomlogError, match="made anew"):
        await working


async def test_partitions_that_were_not_registered_are_said_to_be_read_by_nobody() -> None:
    world = await World.made()
    found = world.broker.found[world.one.topic]
    found.facts = replace(found.facts, partitions=3)
    for partition in (0, 1):
        world.ask(request("a"), partition=partition)
        await world.work(ScriptedWrites(_done), until=1, partition=partition)
    (said,) = world.events
    assert (said["event"], said["error"]["code"]) == ("inbox_failed", "LOG_MISMATCH")
    assert "has 3 partitions, 2 are registered" in said["error"]["message"]


async def test_records_of_a_transaction_ask_for_nothing_and_unreadable_ones_are_told_so() -> None:
    world = await World.made()
    world.ask(request("a"))
    world.ask(None, problem="a control record")
    world.ask(None, problem="compressed")
    world.ask(request("b"))
    await world.work(ScriptedWrites(_done), until=3)
    assert world.told() == [0, 2, 3]
    assert "cannot be read: compressed" in body(world.outcomes()[1])["error"]["message"]


async def test_an_outcome_that_the_topic_does_not_take_is_told_in_the_fewest_bytes() -> None:
    world = await World.made()

    def refuse_big(topic: str, partition: int, records: Sequence[KafkaRecord]) -> None:
        if sum(len(one.value or b"") for one in records) > 100:
            raise fail("BOUND_EXCEEDED", "too big")

    world.broker.on_send = refuse_big
    world.ask(request("a"), request("b"), key=b"known by")
    await world.work(ScriptedWrites(_done), until=2)
    assert world.told() == [0, 1]
    assert [dict(one.headers)["atomlog.ok"] for one in world.outcomes()] == [b"true", b"true"]
    assert [(one.value, dict(one.headers)["atomlog.cut"]) for one in world.outcomes()] == [(b"", b"all")] * 2


async def test_outcomes_are_told_in_groups_that_a_broker_takes() -> None:
    world = await World.made()
    sizes: list[int] = []
    world.broker.on_send = lambda topic, partition, records: sizes.append(sum(len(one.value or b"") for one in records))
    details = [{"path": "p", "code": "NOT_FOUND", "message": "m" * (OUTCOME_BYTES_MAX // 2)}]

    async def answer(offset: int, tries: int) -> WriteResult:
        raise fail("NOT_FOUND", "no", details=details)

    world.ask(*[request("a")] * 5)
    await world.work(ScriptedWrites(answer), until=5)
    assert world.told() == [0, 1, 2, 3, 4]
    assert max(sizes) < 1024 * 1024


async def test_no_more_than_the_bound_is_under_way_and_each_partition_has_its_own_outcomes() -> None:
    world = await World.made(inbox_requests_max=4)
    running = most = 0

    async def answer(offset: int, tries: int) -> WriteResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return DONE

    world.ask(*[request("a")] * 30, partition=1)
    await world.work(ScriptedWrites(answer), until=30, partition=1)
    assert (world.told(1), world.told(0)) == (list(range(30)), [])
    assert 1 < most <= 4


async def test_brokers_that_are_away_for_a_while_hold_up_and_lose_nothing() -> None:
    world = await World.made()
    away = 5

    def fail_often(topic: str, partition: int, records: Sequence[KafkaRecord]) -> None:
        nonlocal away
        away -= 1
        if away > 0:
            raise lost()

    world.broker.on_send = fail_often
    world.ask(request("a"), request("b"))
    await world.work(ScriptedWrites(_done), until=2)
    assert world.told() == [0, 1]
