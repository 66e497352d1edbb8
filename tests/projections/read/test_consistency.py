"""Which position a read happens at, and what it does when an index is not there."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.model import Positions
from atomlog.kernel.times import format_time
from atomlog.projections.ids import Ids
from atomlog.projections.read.receipts import At
from atomlog.projections.read.selectors import ByIds, Groups, History, Members, Recall, Relations, Selector
from atomlog.schemas.record import ZERO16
from tests.projections.read.worlds import NAMES, NOW_US, NewWorld, World, atoms_of
from tests.support.batches import LogBuilder, atom_id, create, member, revise

A = ByIds(ids=(atom_id("a"),))
P = Members(group=atom_id("p"))


async def refused(world: World, selector: Selector, **options: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        await world.read(selector, **options)
    return caught.value


def grown(world: World, revisions: int = 4) -> None:
    """Record n holds the n-th version of `a`; `p` has one more member each time."""
    log = world.log0
    log.batch("notes", [create("a", value="v1"), create("p", schema="collection")])
    for number in range(2, revisions + 1):
        changes = [revise("a", value=f"v{number}"), create(f"d{number}", value=f"d{number}")]
        log.batch("notes", [*changes, member(f"m{number}", group="p", of=f"d{number}")])


def test_a_snapshot_is_at_the_lowest_position_of_the_indexes_it_needs(world: World) -> None:
    async def run() -> None:
        grown(world)
        world.apply("ids")
        world.apply("relations", until=3)
        world.apply("vectors", until=2)
        page = await world.read(P)
        assert page.receipt.observed() == {0: 2}
        assert atoms_of(page) == [atom_id("d2")]
        page = await world.read(A)
        assert (page.receipt.observed(), page.atoms[0].value) == ({0: 4}, "v4")

    asyncio.run(run())


@pytest.mark.parametrize("behind", NAMES[:3])
def test_every_index_paused_elsewhere_gives_one_old_state_and_never_a_mixture(world: World, behind: str) -> None:
    async def run() -> None:
        grown(world)
        for name, until in zip(NAMES, (5, 4, 5, 3), strict=True):
            world.apply(name, until=2 if name == behind else until)
        page = await world.read(Members(group=atom_id("p"), and_=(atom_id("p"),)))
        assert page.receipt.observed() == {0: 1}
        assert page.atoms == ()
        assert page.diagnostics.lag[behind] == {0: 3}
        assert page.receipt.indexes[behind].positions == {0: 1}

    asyncio.run(run())


def test_a_version_pinned_recall_takes_proposals_of_an_older_index_and_drops_what_is_superseded(world: World) -> None:
    async def run() -> None:
        log = world.log0
        log.batch("notes", [create("a", value="tea"), create("b", value="tea too"), create("c", value="more tea")])
        await world.follow("vectors")
        log.batch("notes", [revise("a", value="coffee")])
        for name in ("ids", "relations", "postings"):
            world.apply(name)
        old = await world.read(Recall(text="tea"))
        page = await world.read(Recall(text="tea"), consistency="version_pinned")
        assert old.receipt.observed() == {0: 1}
        assert page.receipt.observed() == {0: 2}
        assert set(atoms_of(old)) - set(atoms_of(page)) == {atom_id("a")}
        assert all(row.status == "current" for row in page.atoms)
        assert page.receipt.mode == "version_pinned"
        assert page.diagnostics.unembedded == 1
        assert page.diagnostics.lag == {"ids": {0: 0}, "vectors": {0: 1}}

    asyncio.run(run())


def test_a_read_waits_for_its_own_write_and_says_which_index_did_not_come(world: World) -> None:
    async def run() -> None:
        grown(world, 2)
        await world.follow()
        grown_to = world.log0.batch("notes", [revise("a", value="v3")]).position
        error = await refused(world, P, at_least={0: grown_to})
        assert error.code == "INDEX_LAGGING"
        assert error.retry_after_ms
        assert [(one["index"], one["position"], one["wanted"]) for one in error.details] == [
            ("ids", grown_to - 1, grown_to),
            ("relations", grown_to - 1, grown_to),
        ]
        world.come_along()
        page = await world.read(A, at_least={0: grown_to})
        assert page.atoms[0].value == "v3"
        assert world.waited[-1] == (("ids",), {0: grown_to})
        page = await world.read(P, at_least={0: 1})
        assert page.receipt.observed() == {0: grown_to - 1}  # relations is there already, and behind

    asyncio.run(run())


def test_as_of_every_position_and_time_is_the_state_then(world: World) -> None:
    async def run() -> None:
        grown(world)
        world.log0.fence()
        world.log0.void()
        world.log0.claim()
        await world.follow()
        for position, value in ((1, "v1"), (2, "v2"), (3, "v3"), (4, "v4"), (5, "v4"), (6, "v4"), (7, "v4")):
            page = await world.read(A, at=position)
            assert page.atoms[0].value == value
            head = world.log0.checkpoints[position + 1]
            assert page.receipt.positions == {0: At(position=position, chain=head.state.chain)}
            assert atoms_of(await world.read(P, at={0: position})) == sorted(
                atom_id(f"d{number}") for number in range(2, min(position, 4) + 1)
            )
        last_us = world.log0.now_us
        for back, value in ((0, "v4"), (1, "v3"), (1_000_000, "v3"), (1_000_001, "v2"), (-1, "v4")):
            page = await world.read(A, as_of_us=last_us - back)
            assert page.atoms[0].value == value
            assert page.receipt.observed() == {0: int(value[1:])}
        assert (await refused(world, A, as_of_us=0)).code == "NOT_FOUND"
        page = await world.read(ByIds(ids=(atom_id("a"), atom_id("p"))), at=-1)
        assert page.receipt.positions == {0: At(position=-1, chain=ZERO16)}
        assert page.diagnostics.missing == (atom_id("a"), atom_id("p"))

    asyncio.run(run())


def test_the_chain_in_a_receipt_costs_no_second_reading_of_the_log(world: World) -> None:
    async def run() -> None:
        grown(world, 60)
        await world.follow()
        await world.read(A)
        assert world.log.reads == 0
        page = await world.read(A, at=40)
        assert page.receipt.positions[0].chain == world.log0.checkpoints[41].state.chain
        assert world.log.reads == 1
        world.apply("ids")
        page = await world.read(Members(group=atom_id("p")), limit=1)
        await world.read(Members(group=atom_id("p")), continuation=page.continuation)
        assert world.log.reads == 1

    asyncio.run(run())


def test_a_chain_is_found_behind_many_records_that_are_no_batch(world: World) -> None:
    async def run() -> None:
        log = world.log0
        log.batch("notes", [create("a")])
        for _ in range(20):
            log.fence()
            log.void()
        log.claim()
        for _ in range(20):
            log.fence()
        log.batch("notes", [revise("a")])
        await world.follow()
        for position in (1, 2, 3, 40, 41, 42, 50, 61):
            page = await world.read(A, at=position)
            assert page.receipt.positions[0].chain == log.checkpoints[position + 1].state.chain

    asyncio.run(run())


def test_positions_and_times_that_cannot_be_are_refused_with_their_name(world: World) -> None:
    async def run() -> None:
        grown(world)
        await world.follow()
        for at in (5, -2, {0: 5}, {1: 1}, {0: True}, {0: "1"}):
            error = await refused(world, A, at=at)
            assert (error.code, error.details[0]["path"]) == ("INVALID_INPUT", "at")
        for at_least in ({1: 0}, {0: -2}, {0: None}, {"0": 1}):
            error = await refused(world, A, at_least=at_least)
            assert (error.code, error.details[0]["path"]) == ("INVALID_INPUT", "at_least")
        error = await refused(world, A, as_of_us=NOW_US + 1)
        assert (error.code, error.details[0]["path"]) == ("INVALID_INPUT", "as_of")
        assert format_time(NOW_US) in error.message
        for options in ({"at": 1, "as_of_us": 1}, {"at": 1, "at_least": {0: 1}}, {"consistency": "exact"}):
            assert (await refused(world, A, **options)).code == "INVALID_INPUT"
        for limit in (0, -1, True, "3"):
            assert (await refused(world, A, limit=limit)).code == "INVALID_INPUT"
        assert (await refused(world, A, limit=world.settings.page_limit_max + 1)).code == "BOUND_EXCEEDED"

    asyncio.run(run())


def test_a_position_that_is_in_the_log_and_not_in_the_index_is_waited_for(world: World) -> None:
    async def run() -> None:
        grown(world)
        world.apply("ids", until=3)
        error = await refused(world, A, at=4)
        assert (error.code, error.details[0]["index"], error.details[0]["path"]) == ("INDEX_LAGGING", "ids", "at")
        assert (await refused(world, A, as_of_us=world.log0.now_us)).code == "INDEX_LAGGING"
        world.come_along(until=5)
        assert (await world.read(A, at=4)).atoms[0].value == "v4"

    asyncio.run(run())


def test_an_index_that_was_rebuilt_while_a_read_waited_is_the_one_that_is_read(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world()
        grown(world)
        world.apply("ids", until=3)
        rebuilt = new_world(logs=world.logs)
        rebuilt.apply("ids")

        def take_over(names: Sequence[str], positions: Positions) -> None:
            world.ids = rebuilt.ids  # the old one stands still for ever

        world.on_catch_up = take_over
        for options in ({"at_least": {0: 4}}, {"at": 4}, {"as_of_us": world.log0.now_us}):
            world.ids = Ids(world.kvs["ids"], 1)
            assert (await world.read(A, **options)).atoms[0].value == "v4"
        assert len(world.waited) == 3

    asyncio.run(run())


def test_a_read_waits_no_longer_than_it_helps(world: World) -> None:
    async def run() -> None:
        grown(world)
        world.apply("ids", until=2)
        assert (await refused(world, A, at_least={0: 4})).code == "INDEX_LAGGING"
        assert len(world.waited) == 1

    asyncio.run(run())


def test_below_a_floor_nothing_is_answered_and_nothing_weakened(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(window=1)
        grown(world)
        await world.follow()
        both = Members(group=atom_id("p"), and_=(atom_id("p"),))
        assert world.postings.floors() == {0: 3}
        assert len((await world.read(both, at=3)).atoms) == 2
        for consistency in ("snapshot", "version_pinned"):
            error = await refused(world, both, at=2, consistency=consistency)
            assert error.code == "CONSISTENCY_UNAVAILABLE"
            assert [(one["index"], one["floor"], one["position"]) for one in error.details] == [("postings", 3, 2)]
        assert len((await world.read(P, at=2)).atoms) == 1

    asyncio.run(run())


def test_an_index_below_another_ones_floor_is_waited_for_and_else_the_read_refused(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(window=1)
        grown(world)
        world.apply("postings")
        for name in ("ids", "relations"):
            world.apply(name, until=2)
        both = Members(group=atom_id("p"), and_=(atom_id("p"),))
        assert (await refused(world, both)).code == "CONSISTENCY_UNAVAILABLE"
        world.come_along(until=4)
        page = await world.read(both)
        assert page.receipt.observed() == {0: 3}
        assert world.waited[-1] == (("ids", "relations"), {0: 3})

    asyncio.run(run())


def test_an_index_that_declares_current_only_is_read_where_it_stands(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        grown(world)
        for name, until in zip(NAMES, (5, 3, 4, 5), strict=True):
            world.apply(name, until=until)
        monkeypatch.setattr(
            type(world.postings), "floors", lambda index: {0: index.checkpoint(0).position - 1}
        )  # no as-of
        world.come_along(until=4)
        both = Members(group=atom_id("p"), and_=(atom_id("p"),))
        page = await world.read(both)
        assert page.receipt.observed() == {0: 3}
        assert world.waited == [(("relations",), {0: 3})]
        for at in ({"at": 2}, {"as_of_us": world.log0.now_us - 2_000_000}):
            assert (await refused(world, both, **at)).code == "CONSISTENCY_UNAVAILABLE"

    asyncio.run(run())


def test_a_read_without_an_index_it_needs_is_refused_and_others_go_on(world: World) -> None:
    async def run() -> None:
        grown(world)
        await world.follow()
        world.removed = {"relations", "postings", "vectors"}
        assert (await world.read(A)).atoms
        assert (await world.read(History(atom=atom_id("a")))).atoms
        for selector in (P, Relations(target=atom_id("p")), Groups(member=atom_id("a")), Recall(text="v")):
            assert (await refused(world, selector)).code == "CONSISTENCY_UNAVAILABLE"

    asyncio.run(run())


def test_several_partitions_are_a_position_each(new_world: NewWorld) -> None:
    async def run() -> None:
        logs = [LogBuilder(partition=number, partitions=2) for number in range(2)]
        world = new_world(logs=logs)
        logs[0].batch("notes", [create("a", value=1)])
        logs[1].batch("tasks", [create("t", value=1), create("p", schema="collection")])
        logs[1].batch("tasks", [member("m", group="p", of="a"), revise("t", value=2)])
        logs[0].batch("notes", [revise("a", value=2)])
        await world.follow()
        page = await world.read(P)
        assert [row.value for row in page.atoms] == [2]
        assert page.receipt.observed() == {0: 2, 1: 2}
        then = await world.read(P, at={0: 1})
        assert ([row.value for row in then.atoms], then.receipt.observed()) == ([1], {0: 1, 1: 2})
        # A number alone is one of the atom's own partition: of the group's here, not of its member's.
        assert (await world.read(P, at=1)).receipt.observed() == {0: 2, 1: 1}
        assert (await world.read(A, at=1)).receipt.observed() == {0: 1, 1: 2}
        error = await refused(world, Members(group=atom_id("never")), at=1)
        assert (error.code, error.details[0]["path"]) == ("INVALID_INPUT", "at")
        assert (await refused(world, Recall(text="x"), at=1)).code == "INVALID_INPUT"
        # A time is resolved once in each partition.
        for log in logs:
            assert log.now_us == logs[0].now_us
        page = await world.read(A, as_of_us=logs[0].now_us - 1)
        assert page.receipt.observed() == {0: 1, 1: 1}
        # A member of whose atom nothing is there yet is named, not shown.
        page = await world.read(P, at={0: 0})
        assert (page.atoms, page.diagnostics.missing) == ((), ())
        page = await world.read(Members(group=atom_id("p"), include_retired=True), at={0: 0})
        assert (page.atoms, page.diagnostics.missing) == ((), (atom_id("a"),))

    asyncio.run(run())


def test_a_recall_in_a_snapshot_is_refused_where_several_nodes_share_the_store(world: World) -> None:
    async def run() -> None:
        grown(world)
        await world.follow()
        world.reader = replace(world.reader, consistency="version_pinned", recalls_snapshots=False)
        recall = Recall(text="v1")
        error = await refused(world, recall, consistency="snapshot")
        assert (error.code, error.details[0]["path"]) == ("CONSISTENCY_UNAVAILABLE", "consistency")
        page = await world.read(recall)
        assert page.receipt.mode == "version_pinned"
        assert page.atoms
        assert (await world.read(P, consistency="snapshot")).receipt.mode == "snapshot"

    asyncio.run(run())
