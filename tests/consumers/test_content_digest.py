"""The content digest: equal for the same content however it came, different for any difference in content."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from atomlog.consumers.content_digest import content_digest
from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.content import ContentOpener, Opened, Sealed
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import canonical
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.kv import MemoryKv, u32
from atomlog.projections.ids import Ids
from atomlog.schemas.content import Origin
from atomlog.schemas.revision import ATOM, ValidTime, decode_clear
from tests.consumers.worlds import run
from tests.support.batches import Change, LogBuilder, atom_id, create, member, retire, revise, slot
from tests.support.sealed import CountedRandomness, SleptClock

Build = Callable[[LogBuilder], None]


def opener() -> ContentOpener:
    keys = KeyRing(MemoryKeyStore(), master=None, randomness=CountedRandomness(), clock=SleptClock(), key_wait_ms=0)
    return ContentOpener(keys, MemoryBlobStore())


def ids_of(*builders: LogBuilder) -> Ids:
    ids = Ids(MemoryKv(), len(builders))
    for builder in builders:
        ids.apply(builder.partition, builder.records, builder.checkpoint)
    return ids


def digest(*builders: LogBuilder, at: dict[int, int] | None = None, opened_by: Any = None) -> str:
    positions = at or {builder.partition: builder.end - 1 for builder in builders}
    return run(content_digest(ids_of(*builders), opened_by or opener(), positions))


def story(log: LogBuilder, *, text: str = "green") -> LogBuilder:
    log.batch("notes", [create("tea", value={"text": text}), create("p", schema="collection", value={"title": "P"})])
    log.batch("notes", [member("m", group="p", of="tea", order_key=b"1")])
    log.batch("notes", [create("cites", slots=[slot("about", "tea", at=log.head("tea"), include=True)])])
    log.batch("notes", [revise("tea", value={"text": "black"})])
    log.batch("notes", [create("late", slots=[slot("about", "tea", at=log.head("tea"))])])
    log.batch("notes", [retire("m")])
    return log


def test_the_same_content_in_other_batches_at_other_times_digests_the_same() -> None:
    other = LogBuilder(now_us=1_800_000_000_000_000, owner=bytes([9]) * 16)
    other.fence()
    other.batch("notes", [create("p", schema="collection", value={"title": "P"})])
    other.void()
    other.claim()
    other.batch("notes", [create("tea", value={"text": "green"}), member("m", group="p", of="tea", order_key=b"1")])
    first = other.head("tea")
    other.batch("notes", [revise("tea", value={"text": "black"})])
    other.batch("notes", [create("cites", slots=[slot("about", "tea", at=first, include=True)]), retire("m")])
    other.batch("notes", [create("late", slots=[slot("about", "tea", at=other.head("tea"))])])
    assert digest(story(LogBuilder())) == digest(other)


@pytest.mark.parametrize(
    "changes",
    [
        [revise("tea", value={"text": "black", "more": 1})],
        [revise("tea", value={"text": "black"})],
        [retire("late")],
        [create("more")],
        [revise("late", slots=[slot("about", "tea")])],
        [revise("cites", value="text", slots=[slot("about", "tea")], valid_time=ValidTime(from_us=1, to_us=None))],
    ],
)
def test_any_further_change_changes_it(changes: Sequence[Change]) -> None:
    log = story(LogBuilder())
    before = digest(log)
    log.batch("notes", changes)
    assert digest(log) != before
    assert digest(log, at={0: log.end - 2}) == before, "as of the position before, nothing has changed"


def changed(**rest: Any) -> str:
    log = LogBuilder()
    log.batch("notes", [create("tea")])
    log.batch("notes", [create("x", **rest)])
    return digest(log)


def test_every_part_of_a_revision_counts() -> None:
    tea = atom_id("tea")
    log = LogBuilder()
    first = log.batch("notes", [create("tea")]).batch().revisions[0]
    origin = Origin(source=tea, revision=decode_clear(first)[0].revision_id, start=0, end=2, sha256=bytes(32))
    found = [
        changed(),
        changed(value={"text": "other"}),
        changed(schema="extract"),
        changed(policy="other"),
        changed(valid_time=ValidTime(from_us=0, to_us=None)),
        changed(valid_time=ValidTime(from_us=0, to_us=0)),
        changed(valid_time=ValidTime(from_us=None, to_us=0)),
        changed(slots=[slot("about", "tea")]),
        changed(slots=[slot("about", "tea", order_key=b"1")]),
        changed(slots=[slot("about", "tea", required=True)]),
        changed(slots=[slot("of", "tea")]),
        changed(slots=[slot("about", "x")]),
        changed(slots=[slot("about", "tea"), slot("of", "x")]),
        changed(slots=[slot("of", "x"), slot("about", "tea")]),
        changed(origins=[origin]),
    ]
    assert len(set(found)) == len(found)


def test_partitions_do_not_matter_and_positions_bound_each() -> None:
    """Two spaces in one partition or in two: the same atoms, the same digest."""
    one = LogBuilder()
    both = [LogBuilder(partition=n, partitions=2) for n in range(2)]
    for number in range(6):
        change = [create(f"a{number}", policy="notes", value={"n": number})]
        one.batch("notes", change)
        both[number % 2].batch("notes", change)
    assert digest(one) == digest(*both)
    assert digest(*both, at={0: both[0].end - 1, 1: -1}) != digest(*both)


def test_an_empty_store_has_the_digest_of_nothing() -> None:
    assert digest(LogBuilder()) == hashlib.sha256().hexdigest()


def test_its_bytes_are_what_the_documentation_says() -> None:
    log = LogBuilder()
    log.batch("notes", [create("tea", value={"text": "green"})])
    log.batch("notes", [create("x", slots=[slot("about", "tea", at=log.head("tea"), order_key=b"k")])])
    log.batch("notes", [retire("x")])
    plain: dict[str, Any] = {"policy": "notes", "schema": "source", "valid_time": None, "origins": []}
    pinned: dict[str, Any] = {
        "role": "about",
        "target": format_id(atom_id("tea")),
        "at": 0,
        "include": False,
        "required": False,
        "order_key": "6b",
    }
    tea = {**plain, "atom": format_id(atom_id("tea")), "slots": []}
    x = {**plain, "atom": format_id(atom_id("x")), "slots": [pinned]}
    entries: dict[bytes, list[dict[str, Any]]] = {
        atom_id("tea"): [{**tea, "n": 0, "state": "active", "value": {"text": "green"}}],
        atom_id("x"): [
            {**x, "n": 0, "state": "active", "value": "text"},
            {**x, "n": 1, "state": "retired", "value": None},
        ],
    }
    expected = hashlib.sha256()
    for atom in sorted(entries):
        for entry in entries[atom]:
            raw = canonical(entry)
            expected.update(u32(len(raw)) + raw)
    assert digest(log) == expected.hexdigest()


class Scripted:
    """Opens everything but one atom."""

    def __init__(self, atom: bytes, answer: Exception | str) -> None:
        self._atom = atom
        self._answer = answer

    async def open(self, revision: bytes) -> Opened | Sealed:
        if revision[ATOM] != self._atom:
            return await opener().open(revision)
        if isinstance(self._answer, Exception):
            raise self._answer
        return Sealed(clear=decode_clear(revision)[0], reason=self._answer)


def test_erased_content_counts_as_erased_and_not_as_absent() -> None:
    log = story(LogBuilder())
    erased = digest(log, opened_by=Scripted(atom_id("tea"), fail("PURGED", "gone")))
    assert erased not in {digest(log), digest(LogBuilder())}


def test_without_the_master_key_there_is_no_digest() -> None:
    with pytest.raises(AtomlogError, match="KEY_UNAVAILABLE") as caught:
        digest(story(LogBuilder()), opened_by=Scripted(atom_id("tea"), "no master key"))
    assert "--master-key" in caught.value.message


def test_damaged_content_is_no_digest_either() -> None:
    with pytest.raises(AtomlogError, match="CORRUPT"):
        digest(story(LogBuilder()), opened_by=Scripted(atom_id("tea"), fail("CORRUPT", "flipped")))


def test_an_atom_with_more_revisions_than_a_page_is_read_to_its_end() -> None:
    log = LogBuilder()
    log.batch("notes", [create("tea")])
    for number in range(600):
        log.batch("notes", [revise("tea", value=number)])
    log.batch("notes", [create("cites", slots=[slot("about", "tea", at=log.head("tea"))])])
    before = digest(log, at={0: log.end - 1})
    log.batch("notes", [revise("tea", value=600)])
    assert digest(log) != before
    assert digest(log, at={0: log.end - 2}) == before
