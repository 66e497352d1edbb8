"""What a write rests on: preconditions of the five kinds and references, in this space, another one, and elsewhere."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, partition_of
from atomlog.kernel.model import WriteResult
from atomlog.kernel.owner import Owner
from atomlog.schemas.revision import NO_INPUTS, Inputs, ReadVersion
from tests.kernel.owner.support import PATIENT, server
from tests.support.kernel_world import Bench, batch, create, member, memory_bench, write

PARTITIONS = 4
SPACES = [f"space-{n}" for n in range(40)]
HERE = SPACES[0]
BESIDE = next(space for space in SPACES[1:] if partition_of(space, PARTITIONS) == partition_of(HERE, PARTITIONS))
ELSEWHERE = next(space for space in SPACES if partition_of(space, PARTITIONS) != partition_of(HERE, PARTITIONS))
NOBODY = format_id(b"\x0a" * 16)
NO_REVISION = format_id(b"\x0b" * 16)


@dataclass(kw_only=True)
class World:
    """One owner a partition over the same heads, and what was written by name."""

    bench: Bench
    owners: Mapping[int, Owner]
    made: dict[str, WriteResult] = field(default_factory=dict)
    writes: int = 0

    def owner(self, space: str) -> Owner:
        return self.owners[partition_of(space, PARTITIONS)]

    async def write(self, *changes: Mapping[str, Any], space: str = HERE, **rest: Any) -> WriteResult:
        self.writes += 1
        return await write(self.owner(space), batch(f"k{self.writes}", *changes, space=space, **rest))

    async def create(self, name: str, *, space: str = HERE, **rest: Any) -> None:
        self.made[name] = await self.write(create(name, **rest), space=space)

    async def revise(self, name: str, **rest: Any) -> None:
        change = {"op": "revise", "atom": self.atom(name), "expected": self.revision(name), "value": {"text": "new"}}
        self.made[name] = await self.write({**change, **rest}, space=self.made[name].receipt.space)

    async def retire(self, name: str) -> None:
        change = {"op": "retire", "atom": self.atom(name), "expected": self.revision(name)}
        self.made[name] = await self.write(change, space=self.made[name].receipt.space)

    async def refused(self, *changes: Mapping[str, Any], **rest: Any) -> list[tuple[str, str]]:
        """Path and code of each failing part; nothing of it is in the log."""
        before = self.batches()
        with pytest.raises(AtomlogError) as raised:
            await self.write(*changes, **rest)
        assert self.batches() == before
        assert raised.value.code in {found["code"] for found in raised.value.details}
        return [(found["path"], found["code"]) for found in raised.value.details]

    def batches(self) -> int:
        return sum(owner.place().batches for owner in self.owners.values())

    def atom(self, name: str) -> str:
        return format_id(self.made[name].results[0].atom)

    def revision(self, name: str) -> str:
        return format_id(self.made[name].results[0].revision)

    def position(self, name: str) -> int:
        return self.made[name].receipt.position


@asynccontextmanager
async def world(**parts: Any) -> AsyncIterator[World]:
    bench = memory_bench(server(PARTITIONS), settings=PATIENT, **parts)
    owners = {
        partition: await replace(bench, seed=f"{partition}").owner(partition)
        for partition in {partition_of(space, PARTITIONS) for space in (HERE, ELSEWHERE)}
    }
    for owner in owners.values():
        await owner.claim()
    yield World(bench=bench, owners=owners)
    for owner in owners.values():
        await owner.close()


NEW = create("new")


def guarded(**guard: Any) -> dict[str, Any]:
    return {"preconditions": [guard]}


async def test_head_is() -> None:
    async with world() as w:
        await w.create("a")
        old = w.revision("a")
        await w.revise("a")
        await w.write(create("n1"), **guarded(type="head", atom="key:a", revision=w.revision("a")))
        failed = [("preconditions[0]", "PRECONDITION_FAILED")]
        assert await w.refused(NEW, **guarded(type="head", atom="key:a", revision=old)) == failed
        assert await w.refused(NEW, **guarded(type="head", atom=NOBODY, revision=NO_REVISION)) == failed
        # The head that the batch itself makes does not count.
        made = create("own", **{"as": "@own"})
        assert await w.refused(made, **guarded(type="head", atom="@own", revision=NO_REVISION)) == failed


async def test_absent() -> None:
    async with world() as w:
        await w.create("a")
        await w.write(create("n1"), **guarded(type="absent", atom=NOBODY))
        await w.write(create("n2", **{"as": "@me"}), **guarded(type="absent", atom="@me"))
        failed = [("preconditions[0]", "PRECONDITION_FAILED")]
        assert await w.refused(NEW, **guarded(type="absent", atom="key:a")) == failed
        await w.retire("a")
        assert await w.refused(NEW, **guarded(type="absent", atom="key:a")) == failed, "no revision ever"


async def test_head_unchanged_since_a_revision_or_a_position() -> None:
    async with world() as w:
        await w.create("a")
        old, before = w.revision("a"), w.position("a")
        await w.write(create("n1"), **guarded(type="unchanged", atom="key:a", since=old))
        await w.write(create("n2"), **guarded(type="unchanged", atom="key:a", since=before))
        await w.revise("a")
        failed = [("preconditions[0]", "PRECONDITION_FAILED")]
        assert await w.refused(NEW, **guarded(type="unchanged", atom="key:a", since=old)) == failed
        assert await w.refused(NEW, **guarded(type="unchanged", atom="key:a", since=before)) == failed
        await w.write(create("n3"), **guarded(type="unchanged", atom="key:a", since=w.position("a")))
        await w.write(create("n4"), **guarded(type="unchanged", atom=NOBODY, since=0))
        later = guarded(type="unchanged", atom="key:a", since=10_000)
        assert await w.refused(NEW, **later) == [("preconditions[0].since", "INVALID_INPUT")]


async def test_range_unchanged_is_moved_by_every_slot_that_comes_goes_or_changes() -> None:
    async with world() as w:
        await w.create("g", schema="collection")
        await w.create("b")
        at = w.position("b")

        def guard(**changed: Any) -> dict[str, Any]:
            return guarded(**{"type": "range", "role": "group", "target": "key:g", "unchanged_since": at, **changed})

        failed = [("preconditions[0]", "PRECONDITION_FAILED")]
        # An empty range counts, and what the batch itself adds to it does not.
        w.made["m"] = await w.write(member("key:g", "key:b"), **guard())
        assert await w.refused(member("key:g", "key:b"), **guard()) == failed
        await w.write(create("n1"), **guard(role="member"))  # the range of another role and target stands still
        at = w.position("m")
        await w.write(create("n2"), **guard())
        await w.revise("m", value={})  # the same slots again: still a change of who refers
        assert await w.refused(NEW, **guard()) == failed
        at = w.position("m")
        await w.retire("m")
        assert await w.refused(NEW, **guard()) == failed
        # It guards the referring atoms of the batch's own space.
        at = w.position("m")
        await w.write(member(w.atom("g"), w.atom("b")), space=BESIDE)
        await w.write(member(w.atom("g"), w.atom("b")), space=ELSEWHERE)
        await w.write(create("n3"), **guard())
        assert await w.refused(NEW, **guard(unchanged_since=10_000)) == [
            ("preconditions[0].unchanged_since", "INVALID_INPUT")
        ]


async def test_a_range_whose_target_is_in_another_partition_is_one_of_this_space() -> None:
    async with world() as w:
        await w.create("far", space=ELSEWHERE, schema="collection")
        await w.create("b")
        guard = guarded(type="range", role="group", target=w.atom("far"), unchanged_since=w.position("b"))
        await w.write(member(w.atom("far"), "key:b"), **guard)
        assert await w.refused(member(w.atom("far"), "key:b"), **guard) == [("preconditions[0]", "PRECONDITION_FAILED")]


async def test_scope_unchanged_is_by_schema_in_the_own_space() -> None:
    async with world() as w:
        await w.create("a")
        guard = guarded(type="scope", schema="source", unchanged_since=w.position("a"))
        await w.create("g", schema="collection")
        await w.create("c", space=BESIDE)
        await w.write(create("n1"), **guard)
        assert await w.refused(NEW, **guard) == [("preconditions[0]", "PRECONDITION_FAILED")]
        later = guarded(type="scope", schema="source", unchanged_since=10_000)
        assert await w.refused(NEW, **later) == [("preconditions[0].unchanged_since", "INVALID_INPUT")]


@pytest.mark.parametrize("space", [BESIDE, ELSEWHERE], ids=["the same partition", "another partition"])
async def test_a_guard_of_an_atom_of_another_space_is_refused_never_ignored(space: str) -> None:
    async with world() as w:
        await w.create("far", space=space)
        at, revision = w.atom("far"), w.revision("far")
        guards = [
            {"type": "head", "atom": at, "revision": revision},
            {"type": "absent", "atom": at},
            {"type": "unchanged", "atom": at, "since": revision},
        ]
        assert await w.refused(NEW, preconditions=guards) == [
            (f"preconditions[{n}].atom", "CONSISTENCY_UNAVAILABLE") for n in range(3)
        ]


async def test_every_failing_part_of_the_last_stage_is_named() -> None:
    async with world() as w:
        await w.create("a")
        await w.create("b")
        stale = [
            {"op": "revise", "atom": f"key:{name}", "expected": NO_REVISION, "value": {"text": "x"}} for name in "ab"
        ]
        guards = [{"type": "absent", "atom": "key:a"}, {"type": "head", "atom": "key:b", "revision": NO_REVISION}]
        assert await w.refused(*stale, preconditions=guards) == [
            ("changes[0].expected", "REVISION_CONFLICT"),
            ("changes[1].expected", "REVISION_CONFLICT"),
            ("preconditions[0]", "PRECONDITION_FAILED"),
            ("preconditions[1]", "PRECONDITION_FAILED"),
        ]


@pytest.mark.parametrize("space", [HERE, BESIDE, ELSEWHERE], ids=["here", "beside", "another partition"])
async def test_references_reach_accepted_atoms_of_every_space(space: str) -> None:
    async with world() as w:
        await w.create("far", space=space)
        at, old = w.atom("far"), w.revision("far")
        await w.revise("far")
        slots = [
            {"role": "logical", "target": at, "mode": "refer"},
            {"role": "pinned", "target": at, "mode": "refer", "revision": old},
            {"role": "part", "target": at, "mode": "include", "revision": w.revision("far")},
        ]
        made = await w.write(create("n", schema="note", slots=slots))
        head = w.owner(HERE).place()
        assert made.receipt.position < head.checkpoint.position
        await w.retire("far")  # a retired revision was accepted too, and an older one stays what it was
        for n, revision in enumerate((old, w.revision("far"))):
            slot = {"role": "part", "target": at, "mode": "include", "revision": revision}
            await w.write(create(f"n{n}", schema="note", slots=[slot]))


async def test_references_that_cannot_be_confirmed_are_all_named_and_not_to_be_retried() -> None:
    async with world() as w:
        await w.create("a")
        await w.create("b")
        slots = [
            {"role": "x", "target": NOBODY, "mode": "refer"},
            {"role": "x", "target": "key:a", "mode": "refer", "revision": NO_REVISION},
            {"role": "x", "target": "key:a", "mode": "include", "revision": w.revision("b")},
        ]
        origins = [{"source": "key:a", "revision": NO_REVISION, "start": 0, "end": 1}]
        assert await w.refused(create("n", schema="note", slots=slots, origins=origins)) == [
            ("changes[0].slots[0].target", "REFERENCE_UNAVAILABLE"),
            ("changes[0].slots[1].revision", "REFERENCE_UNAVAILABLE"),
            ("changes[0].slots[2].revision", "INVALID_INPUT"),
            ("changes[0].origins[0].revision", "REFERENCE_UNAVAILABLE"),
        ]
        with pytest.raises(AtomlogError) as raised:
            await w.write(create("n", schema="note", slots=slots[:1]))
        assert raised.value.code == "REFERENCE_UNAVAILABLE"
        assert raised.value.retry_after_ms is None


def origin(w: World, name: str, start: int, end: int) -> dict[str, Any]:
    return {"source": w.atom(name), "revision": w.revision(name), "start": start, "end": end}


async def test_origins_address_the_bytes_of_the_normalised_text_of_that_revision() -> None:
    async with world() as w:
        await w.create("nfd", text="e\u0301te\u0301")  # six characters, eight bytes; in NFC é t é, five bytes
        await w.create("far", text="é", space=ELSEWHERE)
        await w.create("long", text="é" * 100_000)  # in the blob store
        spans = {"nfd": [(0, 2), (2, 3), (3, 5), (0, 5)], "far": [(0, 2)], "long": [(199_998, 200_000)]}
        cited = [origin(w, name, *span) for name, found in spans.items() for span in found]
        cited = [one for one in cited if one["source"] != w.atom("far")]
        await w.write(create("e1", schema="extract", origins=cited))
        wrong = [
            origin(w, "nfd", 0, 1),
            origin(w, "nfd", 1, 3),
            origin(w, "nfd", 0, 6),
            origin(w, "long", 199_999, 200_000),
            origin(w, "long", 0, 200_001),
        ]
        assert await w.refused(create("e2", schema="extract", origins=wrong)) == [
            (f"changes[0].origins[{n}]", "INVALID_INPUT") for n in range(len(wrong))
        ]


async def test_origins_into_a_retired_source_reach_its_text_before_and_none_after() -> None:
    async with world() as w:
        await w.create("a", text="cited")
        before = origin(w, "a", 0, 5)
        await w.retire("a")
        await w.write(create("e1", schema="extract", origins=[before]))
        assert await w.refused(create("e2", schema="extract", origins=[before, origin(w, "a", 0, 5)])) == [
            ("changes[0].origins[1]", "INVALID_INPUT")
        ]


async def test_a_derived_atom_stays_inside_the_policy_of_each_of_its_origins() -> None:
    async with world() as w:
        await w.create("own", text="mine")
        await w.create("other", text="theirs", policy="secret")
        cited = [origin(w, "own", 0, 4), origin(w, "other", 0, 6)]
        assert await w.refused(create("e1", schema="extract", origins=cited)) == [
            ("changes[0].origins[1]", "ACCESS_DENIED")
        ]
        await w.write(create("e2", schema="extract", origins=cited[1:], policy="secret"))
        refer = [{"role": "about", "target": w.atom("other"), "mode": "refer"}]
        await w.write(create("n", schema="note", slots=refer))  # a mention is no origin


class Receipts:
    """One receipt, of one row."""

    def __init__(self) -> None:
        self.versions: tuple[ReadVersion, ...] = ()

    async def flush(self) -> None:
        pass

    async def inputs(self, receipts: Sequence[bytes], path: str) -> Inputs:
        if any(receipt != b"\x09" * 16 for receipt in receipts):
            raise fail("RECEIPT_EXPIRED", f"{path}: it is not kept any more")
        return replace(NO_INPUTS, versions=self.versions)

    async def row(self, receipt: bytes, handle: str) -> tuple[bytes, bytes]:
        if receipt != b"\x09" * 16:
            raise fail("RECEIPT_EXPIRED", "it is not kept any more")
        if handle != "a1":
            raise fail("NOT_FOUND", f"there is no row {handle}")
        return self.versions[0].atom, self.versions[0].revision


KEPT, LOST = format_id(b"\x09" * 16), format_id(b"\x0d" * 16)


async def test_receipts_and_their_rows_that_are_gone_are_all_named() -> None:
    receipts = Receipts()
    async with world(receipts=receipts) as w:
        await w.create("a")
        await w.create("theirs", policy="secret")
        receipts.versions = (ReadVersion(atom=w.made["a"].results[0].atom, revision=w.made["a"].results[0].revision),)
        slots = [
            {"role": "about", "target": f"{KEPT}#a1", "mode": "refer"},
            {"role": "about", "target": f"{KEPT}#a2", "mode": "refer"},
            {"role": "about", "target": f"{LOST}#a1", "mode": "refer"},
        ]
        await w.write(create("n1", schema="note", slots=slots[:1]))
        provenance = {"kind": "generated", "receipts": [LOST]}
        assert await w.refused(create("n2", schema="summary", slots=slots, provenance=provenance)) == [
            ("changes[0].slots[1].target", "NOT_FOUND"),
            ("changes[0].slots[2].target", "RECEIPT_EXPIRED"),
            ("changes[0].provenance.receipts", "RECEIPT_EXPIRED"),
        ]
        guard = guarded(type="absent", atom=f"{KEPT}#a7")
        assert await w.refused(NEW, **guard) == [("preconditions[0].atom", "NOT_FOUND")]
        theirs = w.made["theirs"].results[0]
        receipts.versions = (ReadVersion(atom=theirs.atom, revision=theirs.revision),)
        kept = {"kind": "generated", "receipts": [KEPT]}
        assert await w.refused(create("n3", schema="summary", provenance=kept)) == [
            ("changes[0].provenance.receipts", "ACCESS_DENIED")
        ]
        await w.write(create("n4", schema="summary", provenance=kept, policy="secret"))


async def test_a_change_of_an_atom_elsewhere_or_of_none_says_which() -> None:
    async with world() as w:
        for name, space in (("beside", BESIDE), ("far", ELSEWHERE)):
            await w.create(name, space=space)
        changes: list[dict[str, Any]] = [
            {"op": "retire", "atom": w.atom(name), "expected": w.revision(name)} for name in ("beside", "far")
        ]
        assert await w.refused(NEW, *changes) == [
            ("changes[1].atom", "ATOMICITY_UNAVAILABLE"),
            ("changes[2].atom", "ATOMICITY_UNAVAILABLE"),
        ]
        nobody = {"op": "retire", "atom": NOBODY, "expected": NO_REVISION}
        assert await w.refused(NEW, nobody, changes[0]) == [
            ("changes[1].atom", "NOT_FOUND"),
            ("changes[2].atom", "ATOMICITY_UNAVAILABLE"),
        ]


async def test_a_retired_atom_is_revived_by_a_revise_and_not_retired_twice() -> None:
    async with world() as w:
        await w.create("a")
        await w.retire("a")
        again = {"op": "retire", "atom": "key:a", "expected": w.revision("a")}
        assert await w.refused(again) == [("changes[0].atom", "INVALID_INPUT")]
        assert await w.refused(create("a")) == [("changes[0].key", "REVISION_CONFLICT")]
        await w.revise("a")
        head = w.owner(HERE)._settled.head(partition_of(HERE, PARTITIONS), w.made["a"].results[0].atom)
        assert head is not None
        assert head.clear.retired is False
