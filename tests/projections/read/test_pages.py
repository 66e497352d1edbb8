"""Pages of relations, members, groups and histories: against brute force, in random sizes, while writes go on."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomlog.kernel.ids import format_id
from atomlog.kernel.ports import Kv
from atomlog.kernel.rocks import open_primary
from atomlog.kernel.settings import Settings
from atomlog.projections.read import members as members_module
from atomlog.projections.read.page import Page
from atomlog.projections.read.selectors import ByIds, Groups, History, Members, Relations, Selector, SlotsOf
from atomlog.projections.relations import Relations as RelationIndex
from tests.projections.histories import GROUPS, MEMBERSHIPS, NAMES, ROLES, histories
from tests.projections.read import expected
from tests.projections.read.worlds import NAMES as NAMES_OF_INDEXES
from tests.projections.read.worlds import NewWorld, World, atoms_of
from tests.support.batches import LogBuilder, atom_id, create, member, retire, revise, slot

QUICK = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large, HealthCheck.too_slow],
)
ATOMS = tuple(map(atom_id, (*NAMES, *MEMBERSHIPS)))
some_groups = st.lists(st.sampled_from(GROUPS).map(atom_id), max_size=2, unique=True).map(tuple)
selectors = st.one_of(
    st.builds(Relations, target=st.sampled_from(ATOMS), role=st.sampled_from((None, *ROLES))),
    st.builds(
        Members,
        group=st.sampled_from(GROUPS).map(atom_id),
        and_=some_groups,
        or_=some_groups,
        not_=some_groups,
        include_retired=st.booleans(),
    ),
    st.builds(Groups, member=st.sampled_from(ATOMS)),
    st.builds(SlotsOf, atom=st.sampled_from(ATOMS)),
)


def check(world: World, selector: Selector, pages: Sequence[Page], at: dict[int, int]) -> None:
    brute = world.brute
    match selector:
        case Relations(target=bytes() as target, role=role):
            assert expected.shown_relations(pages) == brute.relation_rows(target, role, at)
        case Members(group=bytes() as group):
            rows = expected.member_rows(
                brute,
                group,
                at,
                and_=selector.and_,  # type: ignore[arg-type]
                or_=selector.or_,  # type: ignore[arg-type]
                not_=selector.not_,  # type: ignore[arg-type]
                include_retired=selector.include_retired,
            )
            assert [(atom, memberships) for atom, _, memberships in expected.shown_members(pages)] == [
                (atom, memberships) for atom, _, memberships in rows
            ]
        case Groups(member=bytes() as of):
            assert atoms_of(*pages) == brute.group_rows(of, at)
        case SlotsOf(atom=bytes() as atom):
            head = brute.head(atom, at)
            slots = head.current_slots if head else ()
            there = [found for found in slots if found.at is None and brute.head(found.target, at)]
            assert atoms_of(*pages) == [found.target for found in there]  # what is pinned names no revision here
    for page in pages:
        assert page.receipt.observed() == at
        for row in page.atoms:
            current = brute.head(row.atom, at)
            assert current is not None
            assert row.revision == current.revision
            for shown_slot in row.slots:
                head_of_target = brute.head(shown_slot.target, at)
                logical = head_of_target.revision if head_of_target else None
                assert shown_slot.resolved == (shown_slot.revision or logical)


@pytest.mark.parametrize("partitions", [1, 2])
@QUICK
@given(data=st.data())
def test_pages_of_random_sizes_equal_brute_force_at_their_pinned_position_while_writes_go_on(
    new_world: NewWorld, partitions: int, data: st.DataObject
) -> None:
    async def run() -> None:
        logs = data.draw(histories(partitions=partitions, records=14))
        world = new_world(logs=logs)
        cuts = [data.draw(st.integers(1, log.end)) for log in logs]
        for partition, until in enumerate(cuts):
            for name in ("ids", "relations", "postings"):
                world.apply(name, partition, until)
            world.brute.apply(partition, logs[partition].records)
        at = {partition: until - 1 for partition, until in enumerate(cuts)}
        asked = [data.draw(selectors) for _ in range(4)]
        first = [await world.read(selector, limit=data.draw(st.integers(1, 3))) for selector in asked]
        for partition, log in enumerate(logs):  # everything else is written between the first page and the next ones
            for name in ("relations", "ids", "postings"):
                world.apply(name, partition, log.end)
        for selector, page in zip(asked, first, strict=True):
            pages = [page]
            while pages[-1].continuation is not None:
                limit = data.draw(st.integers(1, 4))
                pages.append(await world.read(selector, limit=limit, continuation=pages[-1].continuation))
            check(world, selector, pages, at)
            check(world, selector, [await world.read(selector, at=at)], at)
            assert [len(page.atoms) > 0 for page in pages[1:]] == [True] * (len(pages) - 1)

    asyncio.run(run())


def playlist(world: World, count: int) -> list[bytes]:
    """A group whose members come in an order that is neither that of ids nor of birth."""
    log = world.log0
    log.batch("notes", [create("p", schema="collection"), create("q", schema="collection")])
    names = [f"d{number:03}" for number in range(count)]
    log.batch("notes", [create(name, value=name) for name in names])
    keys = [(number * 7) % count for number in range(count)]
    log.batch(
        "notes",
        [
            member(f"m{number}", group="p", of=name, order_key=f"{key:04}".encode())
            for number, (name, key) in enumerate(zip(names, keys, strict=True))
        ],
    )
    return [atom_id(name) for _, name in sorted(zip(keys, names, strict=True))]


def test_a_store_of_47_lists_47_in_order_whatever_the_page(world: World) -> None:
    async def run() -> None:
        wanted = playlist(world, 47)
        await world.follow()
        for limits in ([1], [20], [46], [47], [48], [5, 1, 13]):
            pages = await world.pages(Members(group=atom_id("p")), limits=limits)
            assert atoms_of(*pages) == wanted
            assert [page.receipt.continues for page in pages[1:]] == [page.receipt.receipt for page in pages[:-1]]
            assert [page.receipt.ranges[0].complete for page in pages] == [False] * (len(pages) - 1) + [True]
            assert all(page.atoms[0].handle == "a1" for page in pages)
        assert len(await world.pages(Members(group=atom_id("p")), limits=[47])) == 1

    asyncio.run(run())


def test_a_first_page_of_a_large_group_looks_at_one_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        playlist(world, 900)
        await world.follow()
        asked: list[int] = []
        whole = type(world.relations).members

        def counted(index: RelationIndex, group: bytes, at: dict[int, int], **rest: Any) -> object:
            asked.append(rest["limit"])
            return whole(index, group, at, **rest)

        monkeypatch.setattr(type(world.relations), "members", counted)
        page = await world.read(Members(group=atom_id("p")), limit=20)
        assert sum(asked) <= 22
        asked.clear()
        await world.read(Members(group=atom_id("p")), limit=20, continuation=page.continuation)
        assert sum(asked) <= 42  # what was taken is passed once

    asyncio.run(run())


def test_a_filter_that_few_pass_ends_a_page_early_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(members_module, "SCANNED_MAX", 100)
        playlist(world, 450)
        world.log0.batch("notes", [member(f"q{n}", group="q", of=f"d{n:03}") for n in (3, 77, 449)])
        await world.follow()
        both = Members(group=atom_id("p"), and_=(atom_id("q"),))
        pages = await world.pages(both, limits=[10])
        assert sorted(atoms_of(*pages)) == sorted(atom_id(f"d{n:03}") for n in (3, 77, 449))
        assert len(pages) == 5
        neither = Members(group=atom_id("p"), not_=(atom_id("q"),))
        assert len(atoms_of(*await world.pages(neither, limits=[100]))) == 447

    asyncio.run(run())


def test_one_member_at_two_places_of_a_sequence_is_two_rows_and_twice_at_one_place_is_one(world: World) -> None:
    async def run() -> None:
        log = world.log0
        log.batch("notes", [create("p", schema="collection"), create("a"), create("b")])
        log.batch("notes", [member("m1", group="p", of="a", order_key=b"1"), member("m2", group="p", of="b")])
        log.batch("notes", [member("m3", group="p", of="a", order_key=b"1"), member("m4", group="p", of="a")])
        await world.follow()
        for limits in ([1], [2], [10]):
            pages = await world.pages(Members(group=atom_id("p")), limits=limits)
            shown = expected.shown_members(pages)
            assert [(atom, key) for atom, key, _ in shown] == [
                *sorted([(atom_id("a"), b""), (atom_id("b"), b"")]),
                (atom_id("a"), b"1"),
            ]
            assert shown[2][2] == sorted(format_id(atom_id(name)) for name in ("m1", "m3"))

    asyncio.run(run())


def test_memberships_and_members_leave_on_their_own(world: World) -> None:
    async def run() -> None:
        log = world.log0
        log.batch("notes", [create(name, schema="collection") for name in "pq"] + [create("b"), create("d")])
        log.batch("notes", [member("pb", group="p", of="b"), member("qb", group="q", of="b")])
        log.batch("notes", [member("pd", group="p", of="d")])
        log.batch("notes", [retire("pb"), retire("d")])
        await world.follow()
        p, q = (Members(group=atom_id(name)) for name in "pq")
        assert (atoms_of(await world.read(p)), atoms_of(await world.read(q))) == ([], [atom_id("b")])
        everyone = await world.read(Members(group=atom_id("p"), include_retired=True))
        assert [(row.atom, row.state, row.status) for row in everyone.atoms] == [(atom_id("d"), "retired", "retired")]
        assert atoms_of(await world.read(Groups(member=atom_id("b")))) == [atom_id("q")]
        assert atoms_of(await world.read(Groups(member=atom_id("d")))) == [atom_id("p")]
        then = (await world.read(Groups(member=atom_id("b")), at=2)).atoms
        assert {row.atom: row.match_reason for row in then} == {
            atom_id(group): {"memberships": [format_id(atom_id(f"{group}b"))]} for group in "pq"
        }

    asyncio.run(run())


def test_an_atom_that_refers_twice_in_one_role_is_shown_once_and_in_two_roles_twice(world: World) -> None:
    async def run() -> None:
        log = world.log0
        log.batch("notes", [create("t"), create("a", slots=[slot("about", "t"), slot("about", "t"), slot("by", "t")])])
        log.batch("notes", [create("b", slots=[slot("about", "t", order_key=b"1")])])
        log.batch("notes", [revise("b", slots=[slot("about", "t", order_key=b"1"), slot("about", "t")])])
        await world.follow()
        for limits in ([1], [5]):
            pages = await world.pages(Relations(target=atom_id("t")), limits=limits)
            assert expected.shown_relations(pages) == [
                (atom_id("a"), "about"),
                (atom_id("b"), "about"),
                (atom_id("a"), "by"),
            ]
        assert pages[0].receipt.ranges[0].role == "*"
        page = await world.read(Relations(target=atom_id("t"), role="about"))
        assert (page.receipt.ranges[0].role, page.receipt.ranges[0].complete) == ("about", True)

    asyncio.run(run())


def test_what_an_atom_refers_to_comes_in_the_order_of_its_slots_pinned_ones_as_pinned(world: World) -> None:
    async def run() -> None:
        log = world.log0
        log.batch("notes", [create("t", value="old"), create("u")])
        pinned = log.head("t")
        log.batch("notes", [revise("t", value="new")])
        slots = [slot("x", "u"), slot("from", "t", at=pinned), slot("about", "t")]
        log.batch("notes", [create("a", slots=slots)])
        await world.follow()
        pages = await world.pages(SlotsOf(atom=atom_id("a")), limits=[2])
        rows = [row for page in pages for row in page.atoms]
        assert [(row.match_reason["role"], row.value, row.status) for row in rows] == [
            ("x", "text", "current"),
            ("from", "old", "superseded"),
            ("about", "new", "current"),
        ]
        log.batch("notes", [retire("a")])
        await world.follow()
        assert (await world.read(SlotsOf(atom=atom_id("a")))).atoms == ()

    asyncio.run(run())


def test_what_the_selector_names_and_is_not_there_is_told_and_no_error(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("p", schema="collection")])
        await world.follow()
        never = atom_id("never")
        for selector in (
            Members(group=never),
            Members(group=atom_id("p"), not_=(never,)),
            Groups(member=never),
            Relations(target=never),
            SlotsOf(atom=never),
        ):
            page = await world.read(selector)
            assert (page.atoms, page.continuation, page.diagnostics.missing) == ((), None, (never,))

    asyncio.run(run())


def test_a_page_cut_by_its_bytes_repeats_and_skips_nothing(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(settings=Settings(page_bytes_max=3_000))
        wanted = playlist(world, 40)
        await world.follow()
        pages = await world.pages(Members(group=atom_id("p")))
        assert atoms_of(*pages) == wanted
        assert len(pages) > 3
        history = [world.log0.batch("notes", [revise("p", value="x" * 700)]) for _ in range(12)]
        await world.follow()
        pages = await world.pages(History(atom=atom_id("p")))
        assert len(atoms_of(*pages)) == 1 + len(history)
        assert len(pages) > 2

    asyncio.run(run())


def test_one_atom_has_one_revision_throughout_its_pages(world: World) -> None:
    async def run() -> None:
        log: LogBuilder = world.log0
        log.batch("notes", [create("a", value=1), create("b", value=1)])
        await world.follow()
        both = ByIds(ids=(atom_id("a"), atom_id("b")))
        first = await world.read(both, limit=1)
        log.batch("notes", [revise("a", value=2), revise("b", value=2)])
        await world.follow()
        second = await world.read(both, limit=1, continuation=first.continuation)
        assert [row.value for row in (*first.atoms, *second.atoms)] == [1, 1]
        assert second.receipt.positions == first.receipt.positions
        assert second.atoms[0].status == "current"  # as of the pages' own position

    asyncio.run(run())


def test_pages_over_stores_on_disk_go_on_after_they_were_closed_and_opened(tmp_path: Path, new_world: NewWorld) -> None:
    async def run() -> None:
        opened: dict[str, Kv] = {}

        def open_next() -> Kv:
            name = f"db{len(opened)}"
            opened[name] = open_primary(str(tmp_path / name), block_cache_bytes=1024 * 1024)
            return opened[name]

        world = new_world(new_kv=open_next)
        wanted = playlist(world, 60)
        await world.follow()
        first = await world.read(Members(group=atom_id("p")), limit=25)
        await world.journal.flush()
        for kv in opened.values():
            kv.close()
        world.kvs = {
            name: open_primary(str(tmp_path / path), block_cache_bytes=1024 * 1024)
            for name, path in zip(NAMES_OF_INDEXES, opened, strict=True)
        }
        world.open()
        second = await world.read(Members(group=atom_id("p")), continuation=first.continuation)
        assert atoms_of(first, second) == wanted
        assert (await world.reader.replay(first.receipt.receipt)).body() == first.body()
        for kv in world.kvs.values():
            kv.close()

    asyncio.run(run())
