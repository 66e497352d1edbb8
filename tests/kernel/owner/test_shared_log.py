"""Owners of one partition in several processes, on a log that goes away now and then, and keys that come late."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from atomlog.kernel.content import Opened
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.faults import Fault, LogFault
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.model import WriteResult
from atomlog.kernel.owner import Owner
from atomlog.kernel.ports import KeyPage, LogRecord
from atomlog.kernel.results import read_effective
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas.record import Record
from atomlog.schemas.revision import KEY
from tests.kernel.owner.support import PATIENT, claimed, code_of, creates, kinds, server, settle, verdicts
from tests.support.kernel_world import Bench, SteppingClock, batch, create, memory_bench, outcome, sharing, write
from tests.support.sealed import MASTER, OTHER_MASTER, FaultyKeyStore

ERRORS: dict[str, Callable[[], Exception]] = {
    "typed": lambda: fail("KAFKA_UNAVAILABLE", "no broker answers", retry_after_ms=1_000),
    "connection": lambda: LogFault("connection refused"),
    "deadline": TimeoutError,
}
TOLD = {"typed": "KAFKA_UNAVAILABLE", "connection": "OVERLOADED", "deadline": "IN_DOUBT"}  # to who only met the claim


class LeavingLog(MemoryLog):
    """Every call fails while `error` is set; what was appended before its reply was lost may be there."""

    def __init__(self, log: MemoryLogServer, *, name: str) -> None:
        super().__init__(log, name=name, on_await=self._fail)
        self.error: Callable[[], Exception] | None = None
        self.points: list[str] = []

    def _fail(self, point: str) -> None:
        self.points.append(point)
        if self.error is not None:
            raise self.error()


def leaving_bench(log: MemoryLogServer, **parts: Any) -> tuple[Bench, LeavingLog]:
    leaving = LeavingLog(log, name="one")
    return replace(memory_bench(log, seed="one", settings=PATIENT, **parts), log=leaving), leaving


# -- a log that is away


@pytest.mark.parametrize("error", ERRORS)
async def test_a_log_that_is_away_for_a_while_ends_nothing_and_is_said_once(error: str) -> None:
    log = server()
    bench, leaving = leaving_bench(log)
    owner = await claimed(bench)
    await write(owner, batch("k0", create("a0")))
    leaving.error = ERRORS[error]
    log.put(0)  # whoever waits for the log is woken and meets the failure
    in_hand = asyncio.create_task(code_of(write(owner, batch("k1", create("a1")))))
    assert await in_hand == "IN_DOUBT", "its append may have worked"
    for n in range(3):
        assert await code_of(write(owner, batch(f"n{n}", create(f"n{n}")))) == TOLD[error]
        assert owner.phase == "standby"
    while [event["event"] for event in bench.events].count("log_unavailable") < 1:
        await asyncio.sleep(0.001)
    leaving.error = None
    assert await code_of(write(owner, batch("k1", create("a1")))) == "accepted"
    assert owner.phase == "owner"
    said = [event["event"] for event in bench.events if event["event"].startswith("log_")]
    assert said == ["log_unavailable", "log_available"]
    assert verdicts(log)[1] == {}
    await owner.close()


async def test_a_follower_is_up_to_date_again_when_the_log_is_back() -> None:
    log = server()
    bench, leaving = leaving_bench(log)
    follower = await bench.owner()
    leaving.error = ERRORS["typed"]
    other = await claimed(sharing(bench, log, seed="two"))
    made = await write(other, batch("k", create("a")))
    while "log_unavailable" not in [event["event"] for event in bench.events]:
        await asyncio.sleep(0.001)
    assert follower.applied < made.receipt.position
    leaving.error = None
    while follower.applied <= made.receipt.position:
        await asyncio.sleep(0.001)
    assert follower.phase == "standby"
    await follower.close()
    await other.close()


# -- claims whose appends fail


class FailingClaims(MemoryLog):
    """Appends fail while `failing`, applied or not; everything else works."""

    def __init__(self, log: MemoryLogServer, *, name: str) -> None:
        super().__init__(log, name=name)
        self.left = 0
        self.applied = False

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        if self.left:
            self.left -= 1
            if self.applied:
                await super().append(partition, records)
            raise ERRORS["typed"]()
        await super().append(partition, records)


async def test_a_claim_that_no_broker_takes_is_told_as_soon_as_that_is_known() -> None:
    log = server()
    failing = FailingClaims(log, name="one")
    never_in_time = replace(PATIENT, write_timeout_ms=3_600_000)
    owner = await replace(memory_bench(log, seed="one", settings=never_in_time), log=failing).owner()
    failing.left = 3
    assert await code_of(owner.claim()) == "KAFKA_UNAVAILABLE"
    assert owner.phase == "standby"
    await owner.claim()
    assert verdicts(log)[0] == ["Claim"]
    await owner.close()


async def test_a_claim_of_which_only_the_replies_are_lost_is_won() -> None:
    log = server()
    failing = FailingClaims(log, name="one")
    owner = await replace(memory_bench(log, seed="one", settings=PATIENT), log=failing).owner()
    failing.left, failing.applied = 3, True
    await owner.claim()
    assert owner.phase == "owner"
    assert verdicts(log) == (["Claim"], {"claim_lost": 2})
    assert await code_of(write(owner, batch("k", create("a")))) == "accepted"
    await owner.close()


async def test_a_claim_that_arrives_after_it_was_given_up_is_taken_up_by_the_next_write() -> None:
    log = server()
    owner = await memory_bench(log, seed="one", settings=PATIENT).owner()
    log.script(Fault.DELAYED, Fault.ERROR_BEFORE, Fault.ERROR_BEFORE)
    assert await code_of(owner.claim()) == "OVERLOADED"
    assert await code_of(write(owner, batch("k", create("a")))) == "NOT_OWNER", "nobody has told it to claim"
    log.deliver()
    while owner.term < 1:
        await asyncio.sleep(0)
    assert await code_of(write(owner, batch("k", create("a")))) == "accepted"
    assert verdicts(log)[0].count("Claim") == 2
    await owner.close()


# -- who cannot serve does not claim


@pytest.mark.parametrize("master", [None, OTHER_MASTER], ids=["missing", "another"])
async def test_who_has_not_the_master_key_leaves_the_partition_to_who_has(
    master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    await write(first, batch("k0", create("a0")))
    monkeypatch.setattr("tests.support.kernel_world.MASTER", master)
    second = await sharing(one, log, seed="two").owner()
    assert await code_of(second.claim()) == "KEY_UNAVAILABLE"
    assert kinds(log).count("Claim") == 1
    assert await code_of(write(first, batch("k1", create("a1")))) == "accepted"
    await first.close()
    await second.close()


async def test_a_page_under_another_master_key_keeps_nobody_from_claiming_and_is_emptied() -> None:
    """A stranger on the key topic can put there what looks like a page."""
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    await write(first, batch("k0", create("a0")))
    strange = KeyPage(
        page=b"strange!",
        version=1,
        maker_partition=0,
        maker_term=0,
        maker_owner=b"x" * 16,
        master_key_id=OTHER_MASTER.id,
        destroyed=bytes(32),
        wrapped=bytes(8_220),
    )
    await one.keys.put([strange])
    second = await claimed(sharing(one, log, seed="two"))
    assert await code_of(write(second, batch("k1", create("a1")))) == "accepted"
    emptied = await one.keys.get(b"strange!")
    assert emptied is not None
    assert (emptied.destroyed, emptied.master_key_id) == (b"\xff" * 32, MASTER.id)
    await first.close()
    await second.close()


# -- keys of void records


class PausedLog(MemoryLog):
    """Reads nothing while the gate is closed: its process stood still, and goes on writing before it looks."""

    def __init__(self, log: MemoryLogServer, *, name: str) -> None:
        super().__init__(log, name=name)
        self.gate = asyncio.Event()
        self.gate.set()

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        await self.gate.wait()
        return await super().wait(partition, position, timeout_s)

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        await self.gate.wait()
        return await super().read(partition, position, bytes_max=bytes_max)


async def zombie_and_successor(log: MemoryLogServer) -> tuple[Owner, PausedLog, Bench, Owner]:
    """An owner that reads nothing any more, and the one that has taken over."""
    paused = PausedLog(log, name="one")
    one = replace(memory_bench(log, seed="one", settings=PATIENT), log=paused)
    first = await claimed(one)
    await write(first, batch("k0", create("a0")))
    await settle()
    paused.gate.clear()
    two = sharing(one, log, seed="two")
    second = await claimed(two)
    return first, paused, two, second


async def test_text_in_void_records_is_unreadable_although_its_keys_were_made_after_the_takeover() -> None:
    log = server()
    first, paused, two, second = await zombie_and_successor(log)
    made = await write(second, batch("k1", create("a1", text="stays")))
    late = [asyncio.create_task(code_of(write(first, batch(f"z{n}", *creates(f"z{n}-", 900))))) for n in range(4)]
    void = await void_batches(log, 4)
    while await readable_of(two, void):
        await asyncio.sleep(0.001)
    assert [event["pages"] for event in two.events if event["event"] == "late_keys_destroyed"]
    assert await code_of(write(second, batch("k2", create("a2")))) == "accepted"
    opened = await two.world().content.open(
        (await read_effective(two.log, 0, made.receipt.position)).batch().revisions[0]
    )
    assert isinstance(opened, Opened)
    paused.gate.set()
    assert set(await asyncio.gather(*late)) <= {"IN_DOUBT", "NOT_OWNER"}
    assert await code_of(write(second, batch("k3", create("a3")))) == "accepted"
    await first.close()
    await second.close()


async def void_batches(log: MemoryLogServer, count: int) -> list[bytes]:
    """The revisions of records that were appended after the last Claim under an older term, once there are so many."""
    while True:
        records = [entry.record for entry in log.records(0) if isinstance(entry.record, Record)]
        void = [one for one in records if one.kind == "Batch" and one.term == 1][1:]
        if len(void) >= count:
            batches = [EffectiveRecord(position=0, record=one, chain=one.chain).batch() for one in void]
            return [revision for found in batches for revision in found.revisions]
        await asyncio.sleep(0.001)


async def readable_of(bench: Bench, revisions: Sequence[bytes]) -> int:
    """How many revisions can be opened by a process that asks the key store, and no log."""
    content, found = bench.world().content, 0
    for revision in revisions:
        try:
            found += isinstance(await content.open(revision), Opened)
        except AtomlogError as error:
            assert error.code == "PURGED"
    return found


async def test_void_records_of_a_zombie_lose_nothing_and_answer_nobody_wrong() -> None:
    log = server()
    first, paused, _, second = await zombie_and_successor(log)
    late = asyncio.create_task(code_of(write(first, batch("z", create("z")))))
    refused = asyncio.create_task(code_of(write(first, batch("bad", *creates("bad", 1_001)))))
    asking = asyncio.create_task(outcome(first, "nothing"))
    await settle()
    assert (await outcome(second, "z")).state == "never"
    made = await write(second, batch("z", create("z", text="of the successor")))
    paused.gate.set()
    assert await late == "IN_DOUBT"
    assert await refused in ("IN_DOUBT", "NOT_OWNER"), "nobody may refuse what the successor may have taken"
    assert (await asking).state == "unknown"
    again = await write(first, batch("z", create("z", text="of the successor")))
    assert (again.replayed, again.results, again.receipt) == (True, made.results, made.receipt)
    assert (await outcome(first, "z")).state == "accepted"
    assert set(verdicts(log)[1]) == {"stale_term"}
    await first.close()
    await second.close()


async def test_an_old_page_that_comes_back_restores_no_key_that_the_log_has_destroyed() -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    made = await write(first, batch("k0", create("a0")))
    used = (await read_effective(one.log, 0, made.receipt.position)).batch().revisions[0][KEY]
    unused = used[:8] + bytes((200,))
    old = await one.keys.get(used[:8])
    assert old is not None
    await first.close()
    second = await claimed(sharing(one, log, seed="two"))
    pages: dict[bytes, KeyPage] = one.keys._pages  # type: ignore[attr-defined]
    pages[old.page] = old  # as a copy of an old file has it
    second._world.ring.forget([old.page])
    assert [await key_code(second, key) for key in (unused, used)] == ["PURGED", "accepted"]
    del pages[old.page]
    second._world.ring.forget([old.page])
    assert await key_code(second, unused) == "PURGED"
    assert await key_code(second, used) == "KEY_UNAVAILABLE"
    second._world.clock.us += 10_000_000  # type: ignore[attr-defined]
    assert await key_code(second, used) == "CORRUPT", "it never came, and nothing says that it was destroyed"
    await second.close()


async def key_code(owner: Owner, key_id: bytes) -> str:
    return await code_of(owner._world.ring.key(key_id))


class SpoiltKeys(FaultyKeyStore):
    """Two pages have to be written again."""

    def __init__(self) -> None:
        super().__init__()
        self.spoilt = 2

    async def repair(self, partition: int) -> int:
        self.spoilt, found = max(0, self.spoilt - 1), self.spoilt
        return min(1, found)


async def test_an_owner_has_spoilt_pages_written_again_and_a_store_that_fails_ends_nothing() -> None:
    log = server()
    keys = SpoiltKeys()
    bench = memory_bench(log, seed="one", keys=keys, settings=PATIENT)
    owner = await bench.owner()
    await settle()
    assert keys.spoilt == 2, "only an owner writes"
    await owner.claim()
    while keys.spoilt:
        await asyncio.sleep(0.001)
    assert [event["event"] for event in bench.events].count("key_pages_repaired") == 2
    await owner.close()


class FailingRepair(FaultyKeyStore):
    async def repair(self, partition: int) -> int:
        raise fail("KAFKA_UNAVAILABLE", "no broker answers")


async def test_an_audit_that_fails_keeps_nobody_from_writing() -> None:
    bench = memory_bench(keys=FailingRepair(), settings=PATIENT)
    owner = await claimed(bench)
    while "key_audit_failed" not in [event["event"] for event in bench.events]:
        await asyncio.sleep(0.001)
    assert await code_of(write(owner, batch("k", create("a")))) == "accepted"
    await owner.close()


# -- giving back


async def test_a_release_takes_nothing_more_in_and_does_not_wait_for_writers_that_go_on() -> None:
    log = server()
    owner = await claimed(memory_bench(log, seed="one", settings=PATIENT))
    accepted: list[str] = []
    ended: list[str] = []

    async def go_on(name: str) -> None:
        n = 0
        while not ended.count(name):
            n += 1
            code = await code_of(write(owner, batch(f"{name}{n}", create(f"{name}{n}"))))
            (accepted if code == "accepted" else ended).append(name)
            assert code in ("accepted", "NOT_OWNER")

    writers = [asyncio.create_task(go_on(name)) for name in "abcd"]
    while len(accepted) < 20:
        await asyncio.sleep(0)
    before = len(accepted)
    await owner.release("planned")
    await asyncio.gather(*writers)
    assert len(accepted) <= before + len(writers), "only what was in hand"
    assert verdicts(log)[0][-1] == "Release"
    assert verdicts(log)[0].count("Batch") == len(accepted)
    assert owner.phase == "standby"
    await owner.close()


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_NOT_APPLIED, Fault.DELAYED])
async def test_a_release_whose_reply_is_lost_says_so_and_writes_nothing_more(fault: Fault) -> None:
    log = server()
    one = memory_bench(log, seed="one", settings=PATIENT)
    first = await claimed(one)
    await write(first, batch("k0", create("a0")))
    log.script(fault)
    with pytest.raises((AtomlogError, OSError)):
        await first.release("planned")
    assert first.phase == "standby"
    assert await code_of(write(first, batch("k1", create("a1")))) == "NOT_OWNER"
    second = await claimed(sharing(one, log, seed="two"))
    log.deliver()
    assert await code_of(write(second, batch("k1", create("a1")))) == "accepted"
    await first.close()
    await second.close()


# -- several nodes with nothing in common but the log and the key topic


async def test_ownership_goes_round_three_nodes_and_every_write_is_there_once() -> None:
    log = server()
    one = memory_bench(log, seed="n0", settings=PATIENT)
    benches = [one, *(sharing(one, log, seed=f"n{n}", clock=SteppingClock()) for n in range(1, 3))]
    owners = [await bench.owner() for bench in benches]
    written: dict[str, WriteResult] = {}
    for turn in range(9):
        owner = owners[turn % 3]
        await owner.claim()
        for n in range(3):
            key = f"t{turn}-{n}"
            written[key] = await write(owner, batch(key, create(key)))
    makers: dict[bytes, tuple[int, bytes]] = {}
    for outline in await one.keys.outlines(0):
        page = await one.keys.get(outline.page)
        assert page is not None
        makers[page.page] = (page.maker_term, page.maker_owner)
    for key, result in written.items():
        for owner in owners:
            again = await write(owner, batch(key, create(key)))
            assert (again.replayed, again.receipt) == (True, result.receipt)
        record = (await one.log.read(0, result.receipt.position, bytes_max=1))[0].record
        assert isinstance(record, Record)
        (revision,) = (await read_effective(one.log, 0, result.receipt.position)).batch().revisions
        assert makers[revision[KEY][:8]] == (record.term, record.owner), "a key is used by who made its page"
    assert verdicts(log)[1] == {}
    assert len({bytes(str(sorted(bench_heads(bench))), "utf-8") for bench in benches}) == 1
    for owner in owners:
        await owner.close()


def bench_heads(bench: Bench) -> Mapping[bytes, bytes]:
    assert isinstance(bench.heads, MemoryKv)
    return {key: value for key, value in bench.heads.scan(b"", b"\xff") if not key.startswith(b"p")}
