"""The relation index, held against a brute-force model at every position."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import Kv
from atomlog.projections.relations import Relation, Relations
from atomlog.projections.relations.layout import escape, unescape
from tests.oracle.brute_model import Model, Version
from tests.projections.histories import GROUPS, MEMBERSHIPS, NAMES, ROLES, histories
from tests.projections.stores import NewKv, Watched
from tests.support.batches import LogBuilder, atom_id, create, member, retire, revise, slot

TARGETS = [atom_id(name) for name in NAMES]
ATOMS = [*TARGETS, *map(atom_id, MEMBERSHIPS)]
T = TypeVar("T")
few = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def applied(kv: Kv, logs: Sequence[LogBuilder]) -> tuple[Relations, Model]:
    relations, brute = Relations(kv, len(logs)), Model(partitions=len(logs))
    for log in logs:
        relations.apply(log.partition, log.records, log.checkpoint)
        brute.apply(log.partition, log.records)
    return relations, brute


def positions(logs: Sequence[LogBuilder]) -> list[dict[int, int]]:
    return [dict(enumerate(at)) for at in product(*(range(-1, log.end) for log in logs))]


def pages(read: Callable[..., tuple[list[T], bytes | None]], limit: int) -> list[T]:
    """All items, read page by page."""
    items: list[T] = []
    after: bytes | None = None
    while True:
        page, after = read(after=after, limit=limit)
        assert len(page) <= limit
        items += page
        if after is None:
            return items
        assert len(page) == limit


def seen_relation(relation: Relation) -> tuple[object, ...]:
    return (
        *(relation.partition, relation.atom, relation.revision, relation.born, relation.schema),
        *(relation.role, relation.target, relation.at, relation.include, relation.required, relation.order_key),
    )


def expected_relation(head: Version, index: int) -> tuple[object, ...]:
    slot_, (born, opened_by) = head.slots[index], head.births[index]
    return (
        *(head.partition, head.atom, opened_by, born, head.schema),
        *(slot_.role, slot_.target, slot_.at, slot_.include, slot_.required, slot_.order_key),
    )


@given(logs=histories(partitions=2, records=8), limit=st.integers(1, 4))
@few
def test_referring_atoms_and_slots_are_exact_at_every_position(
    new_kv: NewKv, logs: Sequence[LogBuilder], limit: int
) -> None:
    with new_kv() as kv:
        relations, brute = applied(kv, logs)
        for at in positions(logs):
            for target, role in product(TARGETS, (None, *ROLES)):
                found = pages(partial(relations.referring, target, role, at), limit)
                expected = brute.referring(target, role, at)
                assert [seen_relation(one) for one in found] == [expected_relation(*one) for one in expected]
            for atom in ATOMS:
                head = brute.head(atom, at)
                own = [seen_relation(one) for one in relations.slots_of(atom, at)]
                assert own == ([expected_relation(head, i) for i in range(len(head.current_slots))] if head else [])
        assert all(relations.verify(log.partition) == relations.rows(log.partition) for log in logs)


@given(logs=histories(partitions=2, records=10), limit=st.integers(1, 4))
@few
def test_members_and_groups_are_exact_at_every_position(new_kv: NewKv, logs: Sequence[LogBuilder], limit: int) -> None:
    with new_kv() as kv:
        relations, brute = applied(kv, logs)
        for at in positions(logs):
            for group, all_states in product(map(atom_id, GROUPS), (False, True)):
                found = pages(partial(relations.members, group, at, include_retired=all_states), limit)
                expected = brute.members(group, at, include_retired=all_states)
                assert [(one.order_key, one.member, one.membership) for one in found] == expected
                assert all(one.group == group for one in found)
            for atom in TARGETS:
                groups = pages(partial(relations.groups, atom, at), limit)
                stated_by = [
                    (one.version.partition, one.version.atom, one.group, *one.opened, one.slot.at)
                    for one in brute.memberships(at)
                    if one.member == atom
                ]
                assert sorted(
                    (one.partition, one.membership, one.group, one.born, one.revision, one.at) for one in groups
                ) == sorted(stated_by)


@given(logs=histories(partitions=2, records=10))
@few
def test_the_last_change_of_a_range_is_exact_at_every_position(new_kv: NewKv, logs: Sequence[LogBuilder]) -> None:
    with new_kv() as kv:
        relations, brute = applied(kv, logs)
        for log in logs:
            for target, role, at in product(TARGETS, ROLES, range(-1, log.end)):
                expected = brute.last_change(role, target, log.partition, at)
                assert relations.last_change(role, target, log.partition, at) == expected


@given(keys=st.lists(st.tuples(st.binary(max_size=4), st.binary(min_size=2, max_size=2)), min_size=2, max_size=20))
def test_escaped_order_keys_sort_as_the_keys_do_whatever_follows(keys: list[tuple[bytes, bytes]]) -> None:
    escaped = [(escape(key) + tail, (key, tail)) for key, tail in keys]
    assert [pair for _, pair in sorted(escaped)] == sorted(keys)
    assert all(unescape(escape(key)) == key for key, _ in keys)


@given(first=st.binary(max_size=6), second=st.binary(max_size=6))
def test_no_escaped_order_key_is_the_beginning_of_another(first: bytes, second: bytes) -> None:
    assert first == second or not escape(second).startswith(escape(first))


def test_a_slot_that_a_revision_keeps_keeps_its_row_and_still_counts_as_a_change(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("t"), create("a", slots=[slot("about", "t"), slot("x", "t")])])
    opened = log.head("a")
    log.batch("notes", [revise("a", slots=[slot("about", "t"), slot("y", "t")])])
    with new_kv() as kv:
        relations, _ = applied(kv, [log])
        kept, replaced = relations.slots_of(atom_id("a"), {0: 2})
        assert (kept.born, kept.revision) == (1, opened)
        assert (replaced.born, replaced.revision) == (2, log.head("a"))
        assert [relations.last_change(role, atom_id("t"), 0, 2) for role in ("about", "x", "y")] == [2, 2, 2]
        assert [relations.last_change(role, atom_id("t"), 0, 1) for role in ("about", "x", "y")] == [1, 1, -1]


def test_retiring_a_member_hides_its_memberships_and_reviving_shows_them_again(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("g"), create("b"), member("m", group="g", of="b", order_key=b"1")])
    log.batch("notes", [retire("b")])
    log.batch("notes", [revise("b")])
    log.batch("notes", [retire("m")])
    log.batch("notes", [revise("m")])
    with new_kv() as kv:
        relations, _ = applied(kv, [log])

        def members(at: int, *, include_retired: bool = False) -> list[bytes]:
            found, _ = relations.members(atom_id("g"), {0: at}, limit=9, include_retired=include_retired)
            return [one.member for one in found]

        b = atom_id("b")
        assert [members(at) for at in range(6)] == [[], [b], [], [b], [], [b]]
        assert [members(at, include_retired=True) for at in range(6)] == [[], [b], [b], [b], [], [b]]


def test_a_member_that_is_not_there_yet_in_its_own_partition_is_no_member_yet(new_kv: NewKv) -> None:
    here, there = LogBuilder(partition=0, partitions=2), LogBuilder(partition=1, partitions=2)
    there.batch("tasks", [create("b")])
    here.batch("notes", [create("g"), member("m", group="g", of="b")])
    with new_kv() as kv:
        relations, _ = applied(kv, [here, there])
        found = [relations.members(atom_id("g"), {0: 1, 1: at}, limit=9)[0] for at in (0, 1)]
        assert [len(page) for page in found] == [0, 1]


def test_a_page_of_a_huge_group_reads_one_page(new_kv: NewKv) -> None:
    """The reads are counted: they must not grow with the group."""
    log = LogBuilder()
    log.batch("notes", [create("g"), *(create(f"b{index}") for index in range(400))])
    log.batch("notes", [member(f"m{i}", group="g", of=f"b{i}", order_key=b"%04d" % i) for i in range(400)])
    with new_kv() as kv:
        relations, _ = applied(kv, [log])
        counting = Watched(kv)
        relations.kv = counting
        page, after = relations.members(atom_id("g"), {0: 2}, limit=10)
        assert [one.order_key for one in page] == [b"%04d" % index for index in range(10)]
        assert counting.pairs_read <= 12
        page, _ = relations.members(atom_id("g"), {0: 2}, after=after, limit=10)
        assert [one.order_key for one in page] == [b"%04d" % index for index in range(10, 20)]
        assert counting.pairs_read <= 26


def test_a_place_of_another_range_is_refused(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("g"), create("a", slots=[slot("about", "g")]), create("b", slots=[slot("about", "g")])])
    with new_kv() as kv:
        relations, _ = applied(kv, [log])
        _, after = relations.referring(atom_id("g"), "about", {0: 1}, limit=1)
        assert after is not None
        for read in (
            lambda: relations.referring(atom_id("a"), "about", {0: 1}, after=after, limit=1),
            lambda: relations.members(atom_id("a"), {0: 1}, after=after, limit=1),
            lambda: relations.groups(atom_id("g"), {0: 1}, after=after, limit=1),
        ):
            with pytest.raises(AtomlogError, match="INVALID_INPUT: after"):
                read()
