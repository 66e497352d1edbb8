"""Losing, doubting and taking back a partition in the middle of something: who is told what, and what stays true."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from atomlog.kernel.content import ContentOpener, Opened
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.faults import Fault, ReadFault
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.ports import KeyPageOutline, LogRecord
from atomlog.kernel.results import read_effective
from atomlog.schemas.revision import NO_INPUTS, Inputs
from tests.kernel.owner.support import (
    HASTY,
    PATIENT,
    VOIDS_OF_ONE_RECORD,
    GatedKeyStore,
    claimed,
    code_of,
    creates,
    going_on,
    kinds,
    server,
    settle,
    verdicts,
)
from tests.support.kernel_world import QUICK, Bench, batch, create, memory_bench, outcome, sharing, write
from tests.support.sealed import FaultyKeyStore


async def test_a_doubt_while_keys_are_made_leaves_no_record_of_the_old_term() -> None:
    log = server()
    keys = GatedKeyStore()
    owner = await claimed(memory_bench(log, keys=keys, settings=QUICK))
    await write(owner, batch("k0", create("a0")))
    log.script(Fault.HANGS_NOT_APPLIED)
    small = asyncio.create_task(write(owner, batch("k1", create("a1"))))
    await settle()
    keys.gate.clear()
    big = asyncio.create_task(write(owner, batch("k2", *creates("b", 900))))
    while not keys.waiting:
        await asyncio.sleep(0)
    log.let_go()
    while kinds(log).count("Claim") < 2:
        await asyncio.sleep(0)
    await settle()
    keys.gate.set()
    assert (await small).replayed is False
    assert (await big).replayed is False
    assert verdicts(log)[1] == {}
    assert verdicts(log)[0].count("Batch") == 3
    await owner.close()


async def test_a_new_space_keeps_its_digest_key_although_its_first_write_met_a_doubt() -> None:
    log = server()
    bench = memory_bench(log, settings=PATIENT)
    owner = await claimed(bench)
    await write(owner, batch("k0", create("a0")))
    log.script(Fault.HANGS_NOT_APPLIED)
    appending = asyncio.create_task(write(owner, batch("k1", create("a1"))))
    await settle()
    decided = asyncio.create_task(write(owner, batch("k2", create("a2"))))
    await settle()
    requests = [batch(f"k{n}", create(f"b{n}"), space="elsewhere") for n in range(3)]
    queued = [asyncio.create_task(write(owner, request)) for request in requests]
    await settle()
    await going_on(log, appending, decided, *queued)
    assert "KeysDestroyed" in kinds(log), "the keys of the ended term are gone"
    for request, first in zip(requests, queued, strict=True):
        again = await write(owner, request)
        assert again.replayed
        assert again.results == (await first).results
    assert await code_of(write(owner, batch("k9", create("b9"), space="elsewhere"))) == "accepted"
    await owner.close()
    anew = await claimed(bench)
    assert (await write(anew, requests[0])).replayed
    await anew.close()


async def test_an_owner_in_doubt_does_not_claim_over_a_successor() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    await settle()
    log.script_reads(*[ReadFault.STALLS] * 2, reader="one")
    second = await claimed(sharing(one, log, seed="two"))
    log.script(Fault.LOST_NOT_APPLIED, producer="one")
    asked = asyncio.create_task(code_of(write(first, batch("k", create("a")))))
    while first.phase != "claiming":
        await asyncio.sleep(0)
    await going_on(log, asked)
    assert await asked == "IN_DOUBT"
    await settle()
    assert verdicts(log)[0].count("Claim") == 2
    assert (first.phase, second.phase) == ("standby", "owner")
    assert await code_of(write(second, batch("k", create("a")))) == "accepted"
    await first.close()
    await second.close()


async def test_of_two_who_decide_to_claim_at_the_same_time_one_does() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first, second = await one.owner(), await sharing(one, log, seed="two").owner()
    seen = first.place().checkpoint.state.chain
    assert await code_of(first.claim(after=seen)) == "accepted"
    assert await code_of(second.claim(after=seen)) == "NOT_OWNER"
    assert (first.phase, second.phase) == ("owner", "standby")
    assert kinds(log).count("Claim") == 1
    await first.close()
    await second.close()


async def test_who_decided_to_claim_does_not_when_the_owner_has_written_since() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first, second = await claimed(one), await sharing(one, log, seed="two").owner()
    await settle()
    seen = second.place().checkpoint.state.chain
    await write(first, batch("k", create("a")))
    assert await code_of(second.claim(after=seen)) == "NOT_OWNER"
    assert await code_of(second.claim(after=second.place().checkpoint.state.chain)) == "accepted"
    await first.close()
    await second.close()


async def test_heads_know_that_the_owner_gave_its_term_up_until_the_next_claim() -> None:
    log = server()
    bench = memory_bench(log, settings=PATIENT)
    owner = await claimed(bench)
    assert "released" not in owner.place().claim
    await owner.release("tea time")
    assert owner.place().claim["released"] == "tea time"
    with pytest.raises(AtomlogError, match="owned by nobody") as refused:
        await write(owner, batch("k", create("a")))
    assert refused.value.details[0]["released"] == "tea time"
    await owner.claim()
    assert "released" not in owner.place().claim
    await owner.close()


class GatedOutlines(FaultyKeyStore):
    """Says which pages there are at once before the Claim, and after it only when the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.is_before_the_claim = True

    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        if not self.is_before_the_claim:
            self.asked.set()
            await self.gate.wait()
        self.is_before_the_claim = False
        return await super().outlines(partition)


async def test_a_partition_lost_while_keys_are_taken_is_not_claimed() -> None:
    log = server()
    keys = GatedOutlines()
    one = memory_bench(log, seed="one", keys=keys, settings=PATIENT)
    first = await one.owner()
    claiming = asyncio.create_task(code_of(first.claim()))
    await keys.asked.wait()
    second = await claimed(sharing(one, log, seed="two", keys=keys.inner))
    await settle()
    keys.gate.set()
    assert await claiming == "NOT_OWNER"
    assert first.phase == "standby"
    await first.close()
    await second.close()


async def test_who_lost_a_partition_while_keys_were_taken_leaves_the_keys_of_the_successor() -> None:
    log = server()
    keys = GatedOutlines()
    one = memory_bench(log, seed="one", keys=keys, settings=PATIENT)
    first = await one.owner()
    claiming = asyncio.create_task(code_of(first.claim()))
    await keys.asked.wait()
    two = sharing(one, log, seed="two", keys=keys.inner)
    second = await claimed(two)
    made = await write(second, batch("k", create("a", text="by the successor")))
    await settle()
    keys.gate.set()
    assert await claiming == "NOT_OWNER"
    assert await code_of(write(first, batch("k1", create("a1")))) == "NOT_OWNER"
    await assert_opens(two, made.receipt.position, "by the successor")
    await first.close()
    await second.close()


async def test_a_partition_lost_while_unused_keys_are_given_up_is_not_claimed_and_destroys_none() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    before = await claimed(one)
    await write(before, batch("k0", create("a0")))
    await before.close()
    first = await sharing(one, log, seed="first").owner()
    log.script(Fault.NONE, Fault.REORDERED, producer="first")
    claiming = asyncio.create_task(code_of(first.claim()))
    while not log.in_flight:
        await asyncio.sleep(0)
    pages = {page: await one.keys.get(page) for page in await pages_of(one)}
    log.script(Fault.NONE, Fault.HANGS_NOT_APPLIED, producer="second")  # before it destroys any itself
    second = await sharing(one, log, seed="second").owner()
    seconds = asyncio.create_task(code_of(second.claim()))
    assert await claiming == "NOT_OWNER"
    assert {page: await one.keys.get(page) for page in pages} == pages
    await going_on(log, seconds)
    await first.close()
    await second.close()


async def pages_of(bench: Bench) -> list[bytes]:
    return [outline.page for outline in await bench.keys.outlines(0)]


async def assert_opens(bench: Bench, position: int, text: str) -> None:
    content: ContentOpener = bench.world().content
    (revision,) = (await read_effective(bench.log, 0, position)).batch().revisions
    opened = await content.open(revision)
    assert isinstance(opened, Opened)
    assert opened.text == text


# The KeysDestroyed of a take-over, when the owner claims again.
@pytest.mark.parametrize("fault", VOIDS_OF_ONE_RECORD, ids=lambda fault: fault.name)
async def test_each_fault_of_giving_up_keys_ends_with_an_owner_and_every_write_once(fault: Fault) -> None:
    log = server()
    bench = memory_bench(log, settings=HASTY)
    before = await claimed(bench)
    await write(before, batch("k0", create("a0")))
    await before.close()
    log.script(Fault.NONE, fault)
    owner = await bench.owner()
    if await code_of(owner.claim()) != "accepted":
        assert owner.phase == "standby"
        assert await code_of(write(owner, batch("k1", create("a1")))) == "accepted", "the last Claim is its own"
    await write(owner, batch("k1", create("a1")))
    log.let_go()
    log.deliver()
    await settle()
    assert verdicts(log)[0].count("Batch") == 2
    assert verdicts(log)[1] == VOIDS_OF_ONE_RECORD[fault]
    await owner.close()


@pytest.mark.parametrize("fault", [Fault.HANGS_APPLIED, Fault.HANGS_NOT_APPLIED], ids=lambda fault: fault.name)
async def test_a_claim_that_hangs_ends_in_doubt_and_the_next_one_succeeds(fault: Fault) -> None:
    log = server()
    owner = await memory_bench(log, settings=HASTY).owner()
    log.script(fault)
    assert await code_of(owner.claim()) == "IN_DOUBT"
    await owner.claim()
    assert await code_of(write(owner, batch("k", create("a")))) == "accepted"
    assert verdicts(log)[1] == {}
    await owner.close()


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST_APPLIED, Fault.LOST_NOT_APPLIED, Fault.DELAYED])
async def test_a_fault_of_a_fence_ends_with_the_same_refusal(fault: Fault) -> None:
    log = server()
    owner = await claimed(memory_bench(log, settings=PATIENT))
    log.script(fault)
    wrong = {"op": "retire", "atom": format_id(b"\x07" * 16), "expected": format_id(b"\x08" * 16)}
    assert await code_of(write(owner, batch("k", wrong))) == "NOT_FOUND"
    log.deliver()
    await settle()
    assert verdicts(log)[1] == ({"stale_term": 1} if fault is Fault.DELAYED else {})
    await owner.close()


async def test_a_release_goes_behind_what_is_on_its_way_and_a_successor_claims_at_once() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    await write(first, batch("k", create("a")))
    log.script(Fault.HANGS_APPLIED)
    refusal = asyncio.create_task(code_of(write(first, batch("x", *creates("x", 1_001)))))
    await settle()
    releasing = asyncio.create_task(first.release("planned"))
    await settle()
    late = asyncio.create_task(code_of(write(first, batch("late", create("late")))))
    await going_on(log, refusal, releasing, late)
    assert await refusal == "BOUND_EXCEEDED"
    assert await late in ("NOT_OWNER", "IN_DOUBT", "accepted")
    await releasing
    assert first.phase == "standby"
    assert verdicts(log)[1] == {}
    assert verdicts(log)[0][-1] == "Release"
    assert await code_of(write(first, batch("k2", create("b")))) == "NOT_OWNER"
    second = await claimed(sharing(one, log, seed="two"))
    assert await code_of(write(second, batch("k2", create("b")))) == "accepted"
    await first.close()
    await second.close()


class SlowReceipts:
    """Answers only when the gate opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def flush(self) -> None:
        pass

    async def inputs(self, receipts: Sequence[bytes], path: str) -> Inputs:
        await self.gate.wait()
        return NO_INPUTS

    async def row(self, receipt: bytes, handle: str) -> tuple[bytes, bytes]:
        await self.gate.wait()
        return bytes(16), bytes(16)


CITED: dict[str, Any] = {"provenance": {"kind": "generated", "receipts": [format_id(b"\x09" * 16)]}}


async def test_a_write_in_preparation_when_the_partition_is_lost_is_told_at_once() -> None:
    log = server()
    receipts = SlowReceipts()
    one = memory_bench(log, seed="one", receipts=receipts, settings=PATIENT)
    first = await claimed(one)
    asked = asyncio.create_task(code_of(write(first, batch("k", create("a", schema="summary", **CITED)))))
    await settle()
    second = await claimed(sharing(one, log, seed="two"))
    await settle()
    receipts.gate.set()
    assert await asked == "NOT_OWNER"
    await first.close()
    await second.close()


async def test_a_write_in_preparation_when_the_store_is_closed_is_told_at_once() -> None:
    receipts = SlowReceipts()
    owner = await claimed(memory_bench(receipts=receipts, settings=replace(PATIENT, write_timeout_ms=400)))
    asked = asyncio.create_task(code_of(write(owner, batch("k", create("a", schema="summary", **CITED)))))
    await settle()
    await owner.close()
    receipts.gate.set()
    assert await asked in ("NOT_OWNER", "IN_DOUBT")


class OwnLog(MemoryLog):
    """As the embedded log: nobody else can append."""

    @property
    def exclusive(self) -> bool:
        return True


def own_bench(log: MemoryLogServer) -> Bench:
    return Bench(log=OwnLog(log, name="one"), settings=HASTY)


async def test_never_is_not_said_while_the_log_holds_what_is_not_applied() -> None:
    log = server()
    owner = await own_bench(log).owner()
    await write(owner, batch("k0", create("a0")))
    await settle()
    log.script_reads(*[ReadFault.STALLS] * 2)
    log.script(Fault.LOST_APPLIED)
    assert await code_of(write(owner, batch("k", create("a")))) == "IN_DOUBT"
    assert kinds(log).count("Batch") == 2
    while owner.phase != "standby":  # it cannot be claimed either: nothing is read
        await asyncio.sleep(0.01)
    assert (await outcome(owner, "k")).state == "unknown"
    asking = asyncio.create_task(outcome(owner, "k"))
    await going_on(log, asking)
    assert (await asking).state in ("accepted", "unknown")
    await settle()
    assert (await outcome(owner, "k")).state == "accepted"
    await owner.close()


async def test_a_question_joins_the_write_it_is_about_and_learns_nothing_when_that_is_in_doubt() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    await write(first, batch("k0", create("a0")))
    log.script(Fault.REORDERED, producer="one")
    late = asyncio.create_task(code_of(write(first, batch("k", create("a")))))
    while not log.in_flight:
        await asyncio.sleep(0)
    asking = asyncio.create_task(outcome(first, "k"))
    await settle()
    second = await claimed(sharing(one, log, seed="two"))
    assert await late == "IN_DOUBT"
    assert (await asking).state == "unknown"
    await first.close()
    await second.close()


class HeldFrom(MemoryLog):
    """One record a read, and none from position `held` on while the gate is closed."""

    def __init__(self, log: MemoryLogServer, *, name: str) -> None:
        super().__init__(log, name=name)
        self.held = 1 << 60
        self.gate = asyncio.Event()

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        if position >= self.held:
            await self.gate.wait()
        return (await super().read(partition, position, bytes_max=bytes_max))[:1]


async def test_a_source_in_a_group_that_is_half_read_back_can_be_cited() -> None:
    log = server()
    slow = HeldFrom(log, name="one")
    owner = await claimed(replace(memory_bench(log, seed="one", settings=PATIENT), log=slow))
    await settle()
    slow.held = len(log.records(0)) + 1
    both = [asyncio.create_task(write(owner, batch(f"k{n}", create(f"a{n}", text="cited")))) for n in range(2)]
    made = (await both[0]).results[0]
    assert not both[1].done()
    origin = {"source": format_id(made.atom), "revision": format_id(made.revision), "start": 0, "end": 5}
    citing = asyncio.create_task(code_of(write(owner, batch("k", create("e", schema="extract", origins=[origin])))))
    await settle()
    slow.gate.set()
    assert await citing == "accepted"
    await both[1]
    await owner.close()


async def test_three_groups_in_flight_are_decided_on_each_other_and_read_back_one_by_one() -> None:
    """A chain of revisions, each on the head of the one before, none of them read back yet."""
    log = server()
    slow = HeldFrom(log, name="one")
    bench = replace(memory_bench(log, seed="one", settings=PATIENT), log=slow)
    owner = await claimed(bench)
    made = await write(owner, batch("k0", create("a")))
    await settle()
    slow.held = len(log.records(0))
    atom, writes = made.results[0].atom, []
    for n in range(1, 4):
        head = owner._preparer.view.head(0, atom)
        assert head is not None
        change = {
            "op": "revise",
            "atom": "key:a",
            "expected": format_id(head.clear.revision_id),
            "value": {"text": f"{n}"},
        }
        writes.append(asyncio.create_task(write(owner, batch(f"k{n}", change))))
        while kinds(log).count("Batch") < n + 1:
            await asyncio.sleep(0)
    assert len(owner._unread) == 3
    slow.gate.set()
    results = await asyncio.gather(*writes)
    assert [result.receipt.position for result in results] == sorted({r.receipt.position for r in results})
    head = owner._settled.head(0, keyed_id("notes", "notes", "a"))
    assert head is not None
    assert head.clear.revision_id == results[-1].results[0].revision
    assert len(owner._unread) == 0
    assert owner._preparer.view.layers == []
    await owner.close()


async def test_two_groups_share_the_digest_key_of_a_new_space_also_when_the_first_is_refused() -> None:
    log = server()
    slow = HeldFrom(log, name="one")
    bench = replace(memory_bench(log, seed="one", settings=PATIENT), log=slow)
    owner = await claimed(bench)
    await settle()
    refused = batch("k0", {"op": "retire", "atom": "key:none", "expected": format_id(b"\x08" * 16)}, space="new")
    assert await code_of(write(owner, refused)) == "NOT_FOUND"
    slow.held = len(log.records(0))
    requests = [batch(f"k{n}", create(f"a{n}"), space="new") for n in range(1, 4)]
    writes = []
    for n, request in enumerate(requests):
        writes.append(asyncio.create_task(write(owner, request)))
        while kinds(log).count("Batch") < n + 1:
            await asyncio.sleep(0)
    slow.gate.set()
    results = await asyncio.gather(*writes)
    batches = [(await read_effective(bench.log, 0, result.receipt.position)).batch() for result in results]
    assert len({found.digest_key_id for found in batches}) == 1
    assert [result.results for result in results] == [(await write(owner, one)).results for one in requests]
    await owner.close()


async def test_times_rise_strictly_over_terms_restarts_and_lost_heads() -> None:
    log = server()
    bench = memory_bench(log, settings=PATIENT)
    times: list[int] = []
    for life in range(4):
        bench = replace(bench, seed=f"life {life}", heads=MemoryKv() if life % 2 else bench.heads)
        owner = await claimed(bench)
        for n in range(2):
            await write(owner, batch(f"k{life}-{n}", create(f"a{life}-{n}")))
            times.append(owner.place().recorded_at_us)
            bench.clock.us -= 5_000_000
        await owner.close()
    assert times == sorted(set(times))


async def test_a_clock_that_is_behind_warns_at_a_claim_and_far_behind_does_not_claim() -> None:
    bench = memory_bench(settings=PATIENT)
    owner = await claimed(bench)
    await write(owner, batch("k", create("a")))
    await owner.close()
    bench.clock.us -= 10_000_000
    again = await claimed(bench)
    assert "clock_behind" in [event["event"] for event in bench.events]
    await again.close()
    bench.clock.us -= 60_000_000
    late = await bench.owner()
    with pytest.raises(AtomlogError) as refused:
        await late.claim()
    assert refused.value.code == "CLOCK_SKEW"
    await late.close()
