"""The write path on the in-memory log: what is acknowledged counts, what is refused was refused rightly."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.faults import Fault, ReadFault
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.owner import Owner
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.results import read_effective
from tests.kernel.owner.support import HASTY, VOIDS_OF_ONE_RECORD, claimed, code_of, revise, server, settle, verdicts
from tests.support.kernel_world import (
    Bench,
    batch,
    create,
    member,
    memory_bench,
    outcome,
    run,
    sharing,
    write,
)


def test_a_write_is_acknowledged_only_after_the_own_tail_has_read_it_back() -> None:
    async def scenario() -> None:
        log = server()
        owner = await claimed(memory_bench(log))
        await settle()
        log.script_reads(ReadFault.STALLS, ReadFault.STALLS)  # the wait that goes on now, and the read after it
        writing = asyncio.create_task(write(owner, batch("k", create("a"))))
        while not any(entry.record.kind == "Batch" for entry in log.records(0)):
            await asyncio.sleep(0)
        await settle()
        assert not writing.done(), "the record is in the log, and nobody has read it back"
        while not writing.done():
            log.let_go()
            await asyncio.sleep(0.001)
        assert (await writing).receipt.position == len(log.records(0)) - 1
        await owner.close()

    run(scenario())


def test_a_record_behind_a_successors_claim_is_never_acknowledged() -> None:
    async def scenario() -> None:
        log = server()
        one = memory_bench(log, seed="one")
        first = await claimed(one)
        log.script(Fault.REORDERED, producer="one")
        late = asyncio.create_task(code_of(write(first, batch("k", create("a")))))
        while not log.in_flight:
            await asyncio.sleep(0)
        second = await claimed(sharing(one, log, seed="two"))
        assert await late == "IN_DOUBT"
        assert verdicts(log)[1] == {"stale_term": 1}
        assert (await write(second, batch("k", create("a")))).replayed is False
        await first.close()
        await second.close()

    run(scenario())


def test_nothing_is_appended_between_a_doubt_and_the_next_claim() -> None:
    async def scenario() -> None:
        log = server()
        owner = await claimed(memory_bench(log))
        log.script(Fault.LOST_NOT_APPLIED)
        first = asyncio.create_task(write(owner, batch("k0", create("a0"))))
        await settle(3)
        rest = [asyncio.create_task(write(owner, batch(f"k{n}", create(f"a{n}")))) for n in range(1, 6)]
        results = await asyncio.gather(first, *rest)
        kinds, voids = verdicts(log)
        assert voids == {}, "a group after the lost one would leave a gap in seq"
        assert kinds.count("Claim") == 2
        assert kinds.count("Batch") == 6
        assert len({result.receipt.position for result in results}) == 6
        await owner.close()

    run(scenario())


class OneByOne(MemoryLog):
    """Gives one record a read, so that its reader may stand just before a successor's Claim."""

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        return (await super().read(partition, position, bytes_max=bytes_max))[:1]


async def stale_owner(log: MemoryLogServer) -> tuple[Owner, Owner, Bench]:
    """An owner that wrote `a` and stopped reading, and a successor that revised it."""
    one = memory_bench(log, seed="one")
    first = await claimed(one)
    await write(first, batch("k1", create("a")))
    await settle()
    log.script_reads(*[ReadFault.STALLS] * 2, reader="one")
    second = await claimed(sharing(one, log, seed="two"))
    return first, second, one


def test_a_refusal_of_an_owner_that_lost_its_term_is_not_given_as_one() -> None:
    async def scenario() -> None:
        log = server()
        first, second, _ = await stale_owner(log)
        a = keyed_id("notes", "notes", "a")
        head = second._settled.head(0, a)
        assert head is not None
        newer = await write(second, batch("k2", revise("a", head.clear.revision_id, "by the successor")))
        # To the old owner the right head looks wrong: it has not read the successor's records.
        asked = asyncio.create_task(
            code_of(write(first, batch("k3", revise("a", newer.results[0].revision, "on top of it"))))
        )
        while not asked.done():
            await asyncio.sleep(0.001)
            log.let_go()
        assert await asked == "IN_DOUBT"
        assert await asked != "REVISION_CONFLICT"
        await first.close()
        await second.close()

    run(scenario())


def test_a_refusal_does_not_rest_on_an_overlay_entry_before_a_successors_claim() -> None:
    """The entry it rests on is effective; the refusal came after, when the term was lost already."""

    async def scenario() -> None:
        log = server()
        one = replace(memory_bench(log, seed="one"), log=OneByOne(log, name="one"))
        first = await claimed(one)
        await settle()
        # `a` reaches the log, the owner does not read it back: it is in the overlay only.
        log.script_reads(*[ReadFault.STALLS] * 3, reader="one")
        creating = asyncio.create_task(code_of(write(first, batch("k1", create("a")))))
        while not any(entry.record.kind == "Batch" for entry in log.records(0)):
            await asyncio.sleep(0)
        second = await claimed(sharing(one, log, seed="two"))
        head = second._settled.head(0, keyed_id("notes", "notes", "a"))
        assert head is not None
        newer = await write(second, batch("k2", revise("a", head.clear.revision_id, "by the successor")))
        asked = asyncio.create_task(
            code_of(write(first, batch("k3", revise("a", newer.results[0].revision, "on top of it"))))
        )
        await settle()
        while not (asked.done() and creating.done()):
            log.let_go()
            await asyncio.sleep(0.001)
        assert await creating == "accepted"
        assert await asked == "IN_DOUBT"
        await first.close()
        await second.close()

    run(scenario())


def test_a_refusal_on_a_shared_log_waits_for_a_fence_and_names_the_head() -> None:
    async def scenario() -> None:
        log = server()
        owner = await claimed(memory_bench(log))
        made = await write(owner, batch("k1", create("a")))
        with pytest.raises(AtomlogError) as refused:
            await write(owner, batch("k2", revise("a", b"\x01" * 16, "x")))
        assert refused.value.code == "REVISION_CONFLICT"
        assert refused.value.details[0]["head"] == format_id(made.results[0].revision)
        assert refused.value.details[0]["path"] == "changes[0].expected"
        assert verdicts(log)[0] == ["Claim", "Batch", "Fence"]
        await owner.close()

    run(scenario())


# What a fault of one append leaves behind: void records by reason, after everything in flight has arrived.
VOIDS_OF_A_BATCH = {
    Fault.NONE: {},
    Fault.ERROR_BEFORE: {},
    Fault.LOST_NOT_APPLIED: {},
    Fault.LOST_APPLIED: {},
    Fault.DELAYED: {"stale_term": 2},
    Fault.DUPLICATED: {"seq_repeated": 2},
    Fault.DUPLICATED_LATER: {"seq_repeated": 2},
    Fault.TORN: {},
    Fault.HANGS_NOT_APPLIED: {},
    Fault.HANGS_APPLIED: {},
}
VOIDS_OF_A_CLAIM = {
    Fault.NONE: {},
    Fault.ERROR_BEFORE: {},
    Fault.LOST_NOT_APPLIED: {},
    Fault.LOST_APPLIED: {"claim_lost": 1},
    Fault.DELAYED: {"claim_lost": 1},
    Fault.DUPLICATED: {"claim_lost": 1},
    Fault.DUPLICATED_LATER: {"claim_lost": 1},
    Fault.TORN: {},
}


@pytest.mark.parametrize("fault", VOIDS_OF_A_BATCH, ids=lambda fault: fault.name)
def test_each_fault_of_a_batch_leaves_the_expected_voids_and_every_write_once(fault: Fault) -> None:
    async def scenario() -> None:
        log = server()
        bench = memory_bench(log, settings=HASTY)
        owner = await claimed(bench)
        log.script(fault)
        requests = [batch(f"k{n}", create(f"a{n}")) for n in range(2)]
        first = await asyncio.gather(*(code_of(write(owner, request)) for request in requests))
        assert set(first) <= {"accepted", "IN_DOUBT"}
        for request in requests:  # whoever was in doubt asks again with the same key
            await write(owner, request)
        log.let_go()
        log.deliver()
        await settle()
        assert verdicts(log)[1] == VOIDS_OF_A_BATCH[fault]
        assert verdicts(log)[0].count("Batch") == 2
        assert dict(owner.place().voids) == VOIDS_OF_A_BATCH[fault], "the owner counts what a new reader counts"
        await owner.close()

    run(scenario())


@pytest.mark.parametrize("fault", VOIDS_OF_A_CLAIM, ids=lambda fault: fault.name)
def test_each_fault_of_a_claim_leaves_the_expected_voids(fault: Fault) -> None:
    async def scenario() -> None:
        log = server()
        owner = await memory_bench(log, settings=HASTY).owner()
        log.script(fault)
        await owner.claim()
        await write(owner, batch("k", create("a")))
        log.deliver()
        await settle()
        assert verdicts(log) == (["Claim", "Batch"], VOIDS_OF_A_CLAIM[fault])
        await owner.close()

    run(scenario())


# A Fence that a refusal waits for. REORDERED needs a second producer: see above.
@pytest.mark.parametrize("fault", VOIDS_OF_ONE_RECORD, ids=lambda fault: fault.name)
def test_each_fault_of_a_fence_leaves_the_expected_voids_and_no_wrong_answer(fault: Fault) -> None:
    async def scenario() -> None:
        log = server()
        owner = await claimed(memory_bench(log, settings=HASTY))
        await write(owner, batch("k", create("a")))
        log.script(fault)
        refused = batch("k2", revise("a", b"\x01" * 16, "on a head that never was"))
        answers = [await code_of(write(owner, refused))]
        while answers[-1] == "IN_DOUBT" and len(answers) < 20:  # who is in doubt asks again
            answers.append(await code_of(write(owner, refused)))
        assert answers[-1] == "REVISION_CONFLICT"
        log.let_go()
        log.deliver()
        await settle()
        kinds, voids = verdicts(log)
        assert voids == VOIDS_OF_ONE_RECORD[fault]
        assert kinds.count("Batch") == 1
        assert "Fence" in kinds
        await owner.close()

    run(scenario())


class Killed(BaseException):
    """The process ends here."""


AWAITS = 30  # at least those of this life on the log; a test below counts them


def test_the_life_that_is_ended_at_each_await_has_no_more_of_them() -> None:
    async def scenario() -> None:
        bench = memory_bench()
        points: list[str] = []
        bench.log.on_await = points.append  # type: ignore[attr-defined]
        owner = await claimed(bench)
        for n in range(3):
            await write(owner, batch(f"k{n}", create(f"a{n}"), create(f"b{n}")))
        assert 20 < len(points) <= AWAITS
        await owner.close()

    run(scenario())


@pytest.mark.parametrize("step", range(1, AWAITS + 1))
def test_a_process_that_ends_at_any_await_leaves_each_batch_once(step: int) -> None:
    """Ends at the n-th await on the log; a new process on what is left gets the same requests again."""

    async def scenario() -> None:
        log = server()
        bench = memory_bench(log, settings=HASTY)
        awaits = 0
        dead = asyncio.Event()

        def on_await(point: str) -> None:
            nonlocal awaits
            awaits += 1
            if awaits == step:
                dead.set()
                raise Killed(point)
            if dead.is_set():
                raise Killed(point)

        bench.log.on_await = on_await  # type: ignore[attr-defined]
        requests = [batch(f"k{n}", create(f"a{n}"), create(f"b{n}")) for n in range(3)]

        async def life() -> None:
            owner = await bench.owner()
            await owner.claim()
            for request in requests:
                await write(owner, request)

        outside = asyncio.all_tasks()
        living = asyncio.ensure_future(life())
        await asyncio.wait([living, asyncio.ensure_future(dead.wait())], return_when=asyncio.FIRST_COMPLETED)
        left = asyncio.all_tasks() - outside
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        after = await claimed(sharing(bench, log, seed="after"))
        for request in requests:
            await write(after, request)
        kinds, voids = verdicts(log)
        assert kinds.count("Batch") == 3
        assert voids == {}
        await after.close()

    # What the killed tasks raise is the point of the test, not an error of it.
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        loop.run_until_complete(asyncio.wait_for(scenario(), 30))
    finally:
        loop.close()


def test_the_same_request_twice_at_once_is_written_once() -> None:
    async def scenario() -> None:
        log = server()
        owner = await claimed(memory_bench(log))
        results = await asyncio.gather(*(write(owner, batch("k", create("a"))) for _ in range(8)))
        assert len({result.results for result in results}) == 1
        assert sorted(result.replayed for result in results) == [False] + [True] * 7
        assert verdicts(log)[0].count("Batch") == 1
        await owner.close()

    run(scenario())


def test_a_retry_is_recognised_although_bounds_and_heads_have_changed_since() -> None:
    async def scenario() -> None:
        bench = memory_bench()
        owner = await claimed(bench)
        request = batch("k", create("a", text="x" * 500))
        first = await write(owner, request)
        await write(owner, batch("k2", revise("a", first.results[0].revision, "newer")))
        await owner.close()
        strict = replace(bench, bounds=Bounds(value_bytes_max=100, batch_bytes_max=1_000))
        again = await claimed(strict)
        replay = await write(again, request)
        assert replay.replayed
        assert replay.results == first.results
        assert replay.receipt == first.receipt
        await again.close()

    run(scenario())


def test_a_retry_of_an_accepted_request_opens_no_term() -> None:
    async def scenario() -> None:
        log = server()
        bench = memory_bench(log)
        owner = await claimed(bench)
        await write(owner, batch("k", create("a")))
        await owner.close()
        before = len(log.records(0))
        again = await bench.owner()
        assert (await write(again, batch("k", create("a")))).replayed
        assert await code_of(write(again, batch("k", create("b")))) == "IDEMPOTENCY_MISMATCH"
        assert len(log.records(0)) == before
        await again.close()

    run(scenario())


def test_a_refused_batch_uses_no_key_and_leaves_nothing() -> None:
    async def scenario() -> None:
        log = server()
        owner = await claimed(memory_bench(log))
        assert await code_of(write(owner, batch("k", member("key:nobody", "key:nothing")))) == "REFERENCE_UNAVAILABLE"
        assert verdicts(log)[0].count("Batch") == 0
        assert (await write(owner, batch("k", create("other")))).replayed is False
        await owner.close()

    run(scenario())


def test_the_outcome_of_a_key_is_accepted_or_never_and_unknown_to_who_is_no_owner() -> None:
    async def scenario() -> None:
        log = server()
        one = memory_bench(log, seed="one")
        owner = await claimed(one)
        made = await write(owner, batch("k", create("a")))
        accepted = await outcome(owner, "k")
        assert accepted.state == "accepted"
        assert accepted.result is not None
        assert accepted.result.receipt == made.receipt
        assert (await outcome(owner, "never sent")).state == "never"
        assert verdicts(log)[0][-1] == "Fence", "never is fenced like a refusal"
        other = await sharing(one, log, seed="two").owner()
        assert (await outcome(other, "never sent")).state == "unknown"
        await owner.close()
        await other.close()

    run(scenario())


def test_an_owner_that_lost_does_not_claim_back_by_itself() -> None:
    async def scenario() -> None:
        log = server()
        one = memory_bench(log, seed="one")
        first = await claimed(one)
        second = await claimed(sharing(one, log, seed="two"))
        await settle()
        assert first.phase == "standby"
        with pytest.raises(AtomlogError) as refused:
            await write(first, batch("k", create("a")))
        assert refused.value.code == "NOT_OWNER"
        assert refused.value.details[0]["endpoint"] == "test:two"
        await first.close()
        await second.close()

    run(scenario())


def test_content_keys_of_void_records_are_destroyed_at_take_over() -> None:
    async def scenario() -> None:
        log = server()
        one = memory_bench(log, seed="one")
        first = await claimed(one)
        log.script(Fault.REORDERED, producer="one")
        late = asyncio.create_task(code_of(write(first, batch("k", create("a", text="void text")))))
        while not log.in_flight:
            await asyncio.sleep(0)
        two = sharing(one, log, seed="two")
        second = await claimed(two)
        assert await late == "IN_DOUBT"
        assert "KeysDestroyed" in verdicts(log)[0]
        await assert_no_void_record_opens(log, two)
        await write(second, batch("k", create("a")))
        await first.close()
        await second.close()

    run(scenario())


async def assert_no_void_record_opens(log: MemoryLogServer, bench: Bench) -> None:
    content = bench.world().content
    void = [entry.position for entry in log.records(0) if entry.record.kind == "Batch"]
    assert void
    for position in void:
        for revision in (await read_effective(bench.log, 0, position)).batch().revisions:
            with pytest.raises(AtomlogError) as refused:
                await content.open(revision)
            assert refused.value.code in ("PURGED", "CORRUPT")


def test_where_the_log_has_a_clock_that_one_says_whether_ours_is_right() -> None:
    """A node whose clock was ahead has written the log's last time: whose clock is right goes on all the same."""

    async def scenario() -> None:
        off = {"ms": 0}
        bench = memory_bench(off_ms=lambda: off["ms"])
        owner = await claimed(bench)
        last = await write(owner, batch("k", create("a")))
        for off["ms"] in (61_000, -61_000):
            assert await code_of(write(owner, batch("k2", create("b")))) == "CLOCK_SKEW"
        off["ms"] = -59_000
        bench.clock.us -= 600_000_000
        later = await write(owner, batch("k2", create("b")))
        first, second = [(await read_effective(bench.log, 0, one.receipt.position)).batch() for one in (last, later)]
        assert second.recorded_at_us == first.recorded_at_us + 1
        await owner.close()

    asyncio.run(scenario())


def test_a_clock_far_before_the_log_stops_accepting() -> None:
    async def scenario() -> None:
        bench = memory_bench()
        owner = await claimed(bench)
        await write(owner, batch("k", create("a")))
        bench.clock.us -= 61_000_000
        assert await code_of(write(owner, batch("k2", create("b")))) == "CLOCK_SKEW"
        bench.clock.us += 60_000_000
        assert await code_of(write(owner, batch("k2", create("b")))) == "accepted"
        await owner.close()

    run(scenario())


def test_times_rise_strictly_although_the_clock_steps_back() -> None:
    async def scenario() -> None:
        bench = memory_bench()
        owner = await claimed(bench)
        times = []
        for n in range(5):
            bench.clock.us -= 1_000_000
            await write(owner, batch(f"k{n}", create(f"a{n}")))
            times.append(owner.place().recorded_at_us)
        assert times == sorted(set(times))
        await owner.close()

    run(scenario())


def test_a_full_queue_and_a_closed_gate_are_refused_before_anything_is_taken() -> None:
    async def scenario() -> None:
        def closed() -> None:
            raise fail("OVERLOADED", "no disk", retry_after_ms=1)

        log = server()
        owner = await claimed(memory_bench(log, admit=closed))
        assert await code_of(write(owner, batch("k", create("a")))) == "OVERLOADED"
        assert verdicts(log)[0] == ["Claim"]
        await owner.close()

    run(scenario())


def test_heads_rebuilt_from_the_log_answer_as_the_live_ones() -> None:
    async def scenario() -> None:
        bench = memory_bench()
        owner = await claimed(bench)
        made = await write(owner, batch("k", create("a"), create("g", schema="collection"), member("key:g", "key:a")))
        await write(owner, batch("k2", revise("a", made.results[0].revision, "newer")))
        await owner.close()
        anew = replace(bench, heads=MemoryKv())
        rebuilt = await anew.owner()
        await rebuilt.close()
        assert list(anew.heads.scan(b"", b"\xff")) == list(bench.heads.scan(b"", b"\xff"))

    run(scenario())
