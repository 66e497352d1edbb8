"""What fails around the write path: everybody in hand is told at once, and what can go on goes on."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from atomlog.kernel import committer
from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.decide import decide
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.faults import Fault
from atomlog.kernel.owner import Owner
from tests.kernel.owner.support import (
    PATIENT,
    GatedKeyStore,
    claimed,
    code_of,
    creates,
    going_on,
    kinds,
    server,
    settle,
)
from tests.support.kernel_world import QUICK, batch, create, memory_bench, outcome, write
from tests.support.sealed import FaultyKeyStore


class FailingKv(MemoryKv):
    """Raises the next of `errors` instead of writing."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        if self.errors:
            raise self.errors.pop(0)
        super().write(puts, deletes)


class FailingBlobs(MemoryBlobStore):
    """Raises `error` while it is set; waits while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def put(self, data: bytes) -> bytes:
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return await super().put(data)


async def test_writes_that_can_have_no_keys_are_refused_and_later_ones_are_taken() -> None:
    keys = FaultyKeyStore()
    log = server()
    owner = await claimed(memory_bench(log, keys=keys, settings=PATIENT))
    await write(owner, batch("k0", create("a0")))
    keys.put_error = fail("OVERLOADED", "keys.sqlite: no space left", retry_after_ms=1)
    big = [batch(f"big{n}", *creates(f"b{n}-", 900)) for n in range(3)]
    assert await asyncio.gather(*(code_of(write(owner, one)) for one in big)) == ["OVERLOADED"] * 3
    keys.put_error = OSError(5, "the disk of the keys")
    assert await code_of(write(owner, big[0])) == "OVERLOADED"
    assert kinds(log).count("Batch") == 1
    keys.put_error = None
    assert (await write(owner, big[0])).replayed is False
    await owner.close()


async def test_writes_that_arrive_while_keys_are_made_wait_for_the_next_ones() -> None:
    keys = GatedKeyStore()
    owner = await claimed(memory_bench(keys=keys, settings=PATIENT))
    await write(owner, batch("k0", create("a0")))
    keys.gate.clear()
    first = asyncio.create_task(write(owner, batch("k1", *creates("b", 900))))
    while not keys.waiting:
        await asyncio.sleep(0)
    rest = [asyncio.create_task(write(owner, batch(f"r{n}", *creates(f"c{n}-", 700)))) for n in range(12)]
    await settle()
    keys.gate.set()
    for written in [await first, *await asyncio.gather(*rest)]:
        assert written.replayed is False
    await owner.close()


async def test_heads_that_cannot_be_written_for_a_moment_miss_no_record() -> None:
    heads = FailingKv()
    bench = memory_bench(heads=heads, settings=QUICK)
    owner = await claimed(bench)
    await write(owner, batch("k0", create("a0")))
    heads.errors = [OSError(28, "No space left on device"), OSError(5, "I/O error")]
    assert await code_of(write(owner, batch("k1", create("a1")))) == "accepted"
    await owner.close()
    anew = replace(bench, heads=MemoryKv())
    await (await anew.owner()).close()
    assert list(anew.heads.scan(b"", b"\xff")) == list(heads.scan(b"", b"\xff"))


@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(28, "No space left"), "OVERLOADED"), (RuntimeError("a bug"), "CORRUPT"), (KeyError("x"), "CORRUPT")],
    ids=["disk", "bug", "key"],
)
async def test_heads_that_cannot_be_written_any_more_end_the_partition_and_tell_everybody(
    error: Exception, code: str
) -> None:
    heads = FailingKv()
    events: list[Mapping[str, Any]] = []
    owner = await claimed(memory_bench(heads=heads, settings=PATIENT, events=events))
    await write(owner, batch("k0", create("a0")))
    heads.errors = [error] * 10
    told = await asyncio.gather(*(code_of(write(owner, batch(f"k{n}", create(f"a{n}")))) for n in range(1, 4)))
    assert told == ["IN_DOUBT"] * 3, "it is in the log, and nobody can say that it counts"
    assert owner.phase == "failed"
    assert await code_of(write(owner, batch("k9", create("a9")))) == code
    assert (await outcome(owner, "k1")).state == "unknown"
    assert [event["event"] for event in events][-1] == "writes_stopped"
    await owner.close()


async def test_a_blob_that_cannot_be_stored_refuses_its_batch_alone_and_leaves_nothing() -> None:
    blobs = FailingBlobs()
    log = server()
    owner = await claimed(memory_bench(log, blobs=blobs, settings=PATIENT))
    await write(owner, batch("k0", create("a0")))
    blobs.error = fail("OVERLOADED", "blobs: no space left", retry_after_ms=1)
    long = batch("long", create("long", text="x" * 100_000))
    told = await asyncio.gather(
        code_of(write(owner, batch("k1", create("a1")))),
        code_of(write(owner, long)),
        code_of(write(owner, batch("k2", create("a2")))),
    )
    assert list(told) == ["accepted", "OVERLOADED", "accepted"]
    assert (await outcome(owner, "long")).state == "never"
    blobs.error = OSError(5, "the disk of the blobs")
    assert await code_of(write(owner, long)) == "OVERLOADED"
    blobs.error = None
    assert (await write(owner, long)).replayed is False
    assert kinds(log).count("Batch") == 4
    await owner.close()


async def test_a_batch_is_appended_only_when_its_blob_is_durable() -> None:
    log = server()
    blobs = FailingBlobs()
    blobs.gate.clear()
    owner = await claimed(memory_bench(log, blobs=blobs, settings=PATIENT))
    writing = asyncio.create_task(write(owner, batch("k", create("a", text="x" * 100_000))))
    await blobs.asked.wait()
    await settle()
    assert kinds(log) == ["Claim"]
    blobs.gate.set()
    assert (await writing).replayed is False
    await owner.close()


async def test_a_failure_about_one_request_is_told_to_its_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(view: Any, partition: int, prepared: Any, rules: Any) -> Any:
        if prepared.request.idempotency_key == "bad":
            raise ZeroDivisionError("a bug")
        return decide(view, partition, prepared, rules)

    monkeypatch.setattr(committer, "decide", failing)
    owner = await claimed(memory_bench(settings=PATIENT))
    good = asyncio.create_task(code_of(write(owner, batch("k1", create("a1")))))
    with pytest.raises(ZeroDivisionError):
        await write(owner, batch("bad", create("bad")))
    assert await good == "accepted"
    assert await code_of(write(owner, batch("k2", create("a2")))) == "accepted"
    await owner.close()


async def test_a_log_that_cannot_be_renewed_after_a_doubt_leaves_nobody_waiting() -> None:
    log = server()
    bench = memory_bench(log, settings=PATIENT)
    owner = await claimed(bench)
    failures = 1

    def on_await(point: str) -> None:
        nonlocal failures
        if point == "renew" and failures:
            failures -= 1
            raise OSError(5, "no new producer")

    bench.log.on_await = on_await  # type: ignore[attr-defined]
    log.script(Fault.LOST_NOT_APPLIED)
    assert await code_of(write(owner, batch("k1", create("a1")))) == "IN_DOUBT"
    assert await code_of(write(owner, batch("k1", create("a1")))) == "accepted"
    await owner.close()


class _Bound:
    """Writes that wait, because the claim does not come back."""

    def __init__(self, **settings: int) -> None:
        self.log = server()
        self.settings = replace(PATIENT, **settings)
        self.waiting: list[asyncio.Task[str]] = []

    async def __aenter__(self) -> "_Bound":
        self.log.script(Fault.HANGS_NOT_APPLIED)
        self.owner: Owner = await memory_bench(self.log, settings=self.settings).owner()
        self.claiming = asyncio.create_task(self.owner.claim())
        await settle()
        return self

    async def put(self, count: int, text: str = "text") -> None:
        for n in range(len(self.waiting), len(self.waiting) + count):
            request = batch(f"k{n}", create(f"a{n}", text=text))
            self.waiting.append(asyncio.create_task(code_of(write(self.owner, request))))
        await settle(20)

    async def __aexit__(self, *raised: object) -> None:
        await going_on(self.log, *self.waiting)
        await self.owner.close()

    def done(self) -> list[str]:
        return [task.result() for task in self.waiting if task.done()]


async def test_writes_in_hand_are_bounded_in_number_those_that_wait_for_a_claim_too() -> None:
    async with _Bound(queue_requests_max=5) as bound:
        await bound.put(7)
        assert bound.done() == ["OVERLOADED"] * 2
    assert [task.result() for task in bound.waiting] == ["accepted"] * 5 + ["OVERLOADED"] * 2


async def test_writes_in_hand_are_bounded_in_bytes_and_one_alone_is_never_too_much() -> None:
    async with _Bound(queue_bytes_max=10_000) as bound:
        await bound.put(1, text="x" * 20_000)
        assert bound.done() == []
        await bound.put(2)
        assert bound.done() == ["OVERLOADED"] * 2
    assert bound.waiting[0].result() == "accepted"


@pytest.mark.parametrize("group_bytes_max", [0, 1, 2**50])
async def test_any_size_of_groups_is_written(group_bytes_max: int) -> None:
    owner = await claimed(memory_bench(settings=replace(PATIENT, group_bytes_max=group_bytes_max)))
    requests = [batch(f"k{n}", create(f"a{n}", text="x" * 1_000)) for n in range(8)]
    assert await asyncio.gather(*(code_of(write(owner, request)) for request in requests)) == ["accepted"] * 8
    await owner.close()


async def test_groups_beyond_what_a_log_takes_at_once_are_never_made() -> None:
    log = server()
    owner = await claimed(memory_bench(log, settings=replace(PATIENT, group_bytes_max=2**50, queue_bytes_max=2**30)))
    sizes: list[int] = []
    append = log.apply

    def measured(request: Any) -> None:
        sizes.append(sum(len(record.value) for record in request.records))
        append(request)

    log.apply = measured  # type: ignore[method-assign]
    requests = [batch(f"k{n}", *[create(f"a{n}-{m}", text="x" * 60_000) for m in range(16)]) for n in range(20)]
    assert await asyncio.gather(*(code_of(write(owner, request)) for request in requests)) == ["accepted"] * 20
    assert max(sizes) < 10 * 1024 * 1024
    await owner.close()


async def test_a_batch_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    log = server()
    bench = memory_bench(log, settings=PATIENT)
    owner = await claimed(bench)
    made = await write(owner, batch("k0", create("a0", text="x" * 500)))
    size = len(log.records(0)[made.receipt.position].record.value)  # type: ignore[union-attr]
    await owner.close()
    owner = await claimed(replace(bench, bounds=Bounds(batch_bytes_max=size)))
    assert await code_of(write(owner, batch("k1", create("a1", text="y" * 500)))) == "accepted"
    with pytest.raises(AtomlogError) as refused:
        await write(owner, batch("k2", create("a2", text="z" * 501)))
    assert refused.value.code == "BOUND_EXCEEDED"
    assert refused.value.details == (
        {
            "path": "changes",
            "code": "BOUND_EXCEEDED",
            "message": f"{size + 1} bytes sealed are more than {size}; split the batch",
            "found": size + 1,
            "limit": size,
        },
    )
    await owner.close()


async def test_refused_batches_take_no_keys_however_many_there_are() -> None:
    keys = FaultyKeyStore()
    owner = await claimed(memory_bench(keys=keys, settings=PATIENT, bounds=Bounds(batch_bytes_max=50_000)))
    await write(owner, batch("k0", create("a0")))
    ready = owner._allocator.ready
    for n in range(20):
        large = [create(f"a{n}-{m}", text="x" * 1_000) for m in range(60)]
        assert await code_of(write(owner, batch(f"large {n}", *large))) == "BOUND_EXCEEDED"
        nobody = {"op": "retire", "atom": "key:nobody", "expected": "0" * 8 + "-0000-7000-8000-000000000001"}
        assert await code_of(write(owner, batch(f"none {n}", nobody))) == "NOT_FOUND"
    assert owner._allocator.ready == ready
    made = await write(owner, batch("k1", create("a1")))
    assert made.replayed is False
    await owner.close()


async def test_refused_batches_of_ever_new_spaces_keep_no_keys() -> None:
    keys = FaultyKeyStore()
    owner = await claimed(memory_bench(keys=keys, settings=PATIENT))
    nobody = {"op": "retire", "atom": "key:nobody", "expected": "0" * 8 + "-0000-7000-8000-000000000001"}
    for n in range(1_300):
        assert await code_of(write(owner, batch("k", nobody, space=f"space-{n}"))) == "NOT_FOUND"
    assert sum(keys.puts) * 256 - owner._allocator.ready == 1_024
    assert await code_of(write(owner, batch("k", create("a"), space="space-0"))) == "accepted"
    await owner.close()


async def test_a_thousand_creates_are_one_record() -> None:
    log = server()
    owner = await claimed(memory_bench(log, settings=PATIENT))
    made = await write(owner, batch("k", *creates("a", 1_000)))
    assert len(made.results) == 1_000
    assert kinds(log) == ["Claim", "Batch"]
    assert await code_of(write(owner, batch("k2", *creates("b", 1_001)))) == "BOUND_EXCEEDED"
    await owner.close()


async def test_closing_answers_writes_that_wait_for_a_claim() -> None:
    log = server()
    owner = await memory_bench(log, settings=replace(PATIENT, write_timeout_ms=300)).owner()
    log.script(Fault.HANGS_NOT_APPLIED)
    claiming = asyncio.create_task(code_of(owner.claim()))
    await settle()
    asked = asyncio.create_task(code_of(write(owner, batch("k", create("a")))))
    await settle()
    await owner.close()
    assert {await asked, await claiming} <= {"NOT_OWNER", "IN_DOUBT"}
    assert await code_of(write(owner, batch("k", create("a")))) == "NOT_OWNER"


async def test_a_caller_that_goes_away_leaves_its_write_to_be_finished() -> None:
    log = server()
    owner = await claimed(memory_bench(log, settings=PATIENT))
    log.script(Fault.HANGS_NOT_APPLIED)
    asked = asyncio.create_task(write(owner, batch("k", create("a"))))
    await settle()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    log.let_go()
    assert (await outcome(owner, "k")).state == "accepted"
    assert (await write(owner, batch("k", create("a")))).replayed is True
    await owner.close()
