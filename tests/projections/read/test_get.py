"""Atoms by id, and the history of one."""

import asyncio
import hashlib
from dataclasses import replace

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import canonical
from atomlog.kernel.settings import Settings
from atomlog.kernel.times import format_time
from atomlog.projections.read import reader
from atomlog.projections.read.page import body_bytes
from atomlog.projections.read.render import row_bytes
from atomlog.projections.read.selectors import ByIds, History
from atomlog.schemas.revision import Inputs, ReadRange, ReadScope, ReadVersion, ValidTime
from tests.projections.read.worlds import NewWorld, World, atoms_of
from tests.support.batches import START_US, atom_id, create, retire, revise, slot


def by_ids(*names: str) -> ByIds:
    return ByIds(ids=tuple(map(atom_id, names)))


def test_one_atom_alone_is_read_as_it_is_among_others(world: World) -> None:
    """The quick way for one atom gives the page, the receipt and the search that the general way gives."""

    async def run() -> None:
        world.log0.batch("notes", [create("tea"), create("old"), create("plain")])
        slots = [slot("about", "tea", order_key=b"01"), slot("from", "tea", at=world.log0.head("tea"))]
        world.log0.batch(
            "notes", [create("b", value={"text": "緑茶", "n": 0.5}, slots=[*slots, slot("no", "nowhere")])]
        )
        world.log0.batch("notes", [revise("tea", value={"text": "new"}), retire("old")])
        await world.follow()
        for lag in range(2):
            for name in ("tea", "old", "plain", "b"):
                general = await world.read(by_ids(name, name))
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(reader, "gather", None)  # the general way is not gone
                    quick = await world.read(by_ids(name))
                assert quick.body() == general.body()
                kept = [await world.journal.receipt(page.receipt.receipt) for page in (quick, general)]
                receipts = [replace(one, receipt=b"", recorded_at_us=0) for one, _ in kept]
                assert receipts[0] == receipts[1]
                assert kept[0][1] == kept[1][1]
                assert quick.diagnostics == general.diagnostics
                assert quick.diagnostics.lag["ids"] == {0: lag}
                assert (await world.reader.replay(quick.receipt.receipt)).body() == quick.body()
            world.log0.batch("notes", [revise("plain", value={"text": "newer"})])

    asyncio.run(run())


def test_a_row_shows_what_a_generated_atom_was_made_from(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("tea")])
        observed = ((0, 1), (2, 7), (10, -1))
        inputs = Inputs(
            versions=(ReadVersion(atom=atom_id("tea"), revision=world.log0.head("tea")),),
            ranges=(ReadRange(role="group", target=atom_id("g"), observed=observed, complete=True),),
            scopes=(ReadScope(selector_digest=bytes(32), observed=observed, empty=False),),
            encoders=("hashing/1/512/cosine",),
            generator="model-1",
        )
        world.log0.batch("notes", [replace(create("summary"), inputs=inputs)])
        await world.follow()
        page = await world.read(by_ids("summary", "tea"))
        made, tea = page.to_dict()["atoms"]
        places = {"0": 1, "2": 7, "10": -1}
        assert made["inputs"] == {
            "versions": [{"atom": format_id(atom_id("tea")), "revision": format_id(world.log0.head("tea"))}],
            "ranges": [{"role": "group", "target": format_id(atom_id("g")), "observed": places, "complete": True}],
            "scopes": [{"selector_digest": "00" * 32, "observed": places, "empty": False}],
            "encoders": ["hashing/1/512/cosine"],
            "generator": "model-1",
            "permission_generation": 0,
        }
        assert "inputs" not in tea
        assert page.body() == body_bytes([row_bytes(row) for row in page.atoms])
        assert hashlib.sha256(page.body()).digest() == page.receipt.body_sha256

    asyncio.run(run())


def test_one_atom_alone_is_read_anew_after_the_index_moved(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("tea")])
        await world.follow()
        before = [await world.read(by_ids("tea")) for _ in range(3)]
        world.log0.batch("notes", [revise("tea", value={"text": "new"})])
        behind = await world.read(by_ids("tea"))
        await world.follow("ids")
        after = [await world.read(by_ids("tea")) for _ in range(2)]
        assert {page.body() for page in before} == {behind.body()} != {page.body() for page in after}
        assert behind.diagnostics.lag["ids"] == {0: 1}
        assert [page.atoms[0].value for page in after] == [{"text": "new"}] * 2
        with pytest.raises(AtomlogError, match="NOT_FOUND"):
            await world.read(by_ids("nothing"))

    asyncio.run(run())


def test_a_row_has_every_field_of_the_documented_shape(world: World) -> None:
    async def run() -> None:
        valid = ValidTime(from_us=START_US, to_us=None)
        world.log0.batch("notes", [create("tea", schema="collection", value={"title": "Tea"})])
        pinned = world.log0.head("tea")
        slots = [slot("about", "tea", required=True, order_key=b"01"), slot("from", "tea", at=pinned, include=True)]
        world.log0.batch("notes", [create("b", value={"text": "緑茶", "n": 0.5}, slots=slots, valid_time=valid)])
        await world.follow()
        page = await world.read(by_ids("b"))
        [row] = page.to_dict()["atoms"]
        assert row == {
            "handle": "a1",
            "atom": format_id(atom_id("b")),
            "revision": format_id(world.log0.head("b")),
            "schema": "source",
            "state": "active",
            "value": {"text": "緑茶", "n": 0.5},
            "slots": [
                {
                    "role": "about",
                    "target": format_id(atom_id("tea")),
                    "mode": "refer",
                    "revision": None,
                    "resolved": format_id(pinned),
                    "order_key": "01",
                    "required": True,
                },
                {
                    "role": "from",
                    "target": format_id(atom_id("tea")),
                    "mode": "include",
                    "revision": format_id(pinned),
                    "resolved": format_id(pinned),
                    "order_key": "",
                    "required": False,
                },
            ],
            "kind": "source",
            "origins": [],
            "policy": "notes",
            "valid_time": {"from": format_time(START_US), "to": None},
            "score": None,
            "match_reason": {},
            "recorded_at": format_time(world.log0.now_us),
            "status": "current",
        }
        assert list(page.to_dict()) == [
            "atoms", "context", "trace", "time_cue", "receipt", "continuation", "diagnostics",
        ]  # fmt: skip

    asyncio.run(run())


def test_the_body_is_the_canonical_json_of_atoms_and_context(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a", value={"é": [1.0, -0.0, 2.5e-7], "b\u0001": "\u2028"}), create("b")])
        await world.follow()
        page = await world.read(by_ids("a", "b"))
        shown = page.to_dict()
        whole = canonical({"atoms": shown["atoms"], "context": shown["context"]}, "page")
        assert page.body() == whole
        assert body_bytes([row_bytes(row) for row in page.atoms]) == whole

    asyncio.run(run())


def test_atoms_come_in_the_order_asked_and_each_once(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create(name) for name in "abc"])
        await world.follow()
        page = await world.read(by_ids("c", "a", "c", "b"))
        assert atoms_of(page) == list(map(atom_id, "cab"))
        assert [row.handle for row in page.atoms] == ["a1", "a2", "a3"]

    asyncio.run(run())


def test_all_that_is_named_comes_in_one_page_unless_a_limit_is_given(world: World) -> None:
    async def run() -> None:
        names = [f"n{number}" for number in range(150)]
        world.log0.batch("notes", [create(name) for name in names])
        await world.follow()
        page = await world.read(by_ids(*names))
        assert (atoms_of(page), page.continuation) == (list(map(atom_id, names)), None)
        pages = await world.pages(by_ids(*names), limits=[70])
        assert [len(one.atoms) for one in pages] == [70, 70, 10]

    asyncio.run(run())


def test_of_several_ids_the_absent_ones_are_listed_and_the_rest_returned(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a")])
        await world.follow()
        page = await world.read(by_ids("nothing", "a"))
        assert atoms_of(page) == [atom_id("a")]
        assert page.to_dict()["diagnostics"]["missing"] == [format_id(atom_id("nothing"))]

    asyncio.run(run())


@pytest.mark.parametrize("selector", [by_ids("nothing"), History(atom=atom_id("nothing"))])
def test_a_single_absent_atom_is_not_found(world: World, selector: ByIds | History) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a")])
        await world.follow()
        with pytest.raises(AtomlogError, match="not found, or not visible to you") as caught:
            await world.read(selector)
        assert caught.value.code == "NOT_FOUND"

    asyncio.run(run())


def test_a_single_absent_atom_is_not_found_in_the_same_words_whichever_way_it_is_read(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a")])
        await world.follow()
        with pytest.raises(AtomlogError) as general:
            await world.read(by_ids("nothing"))
        await world.read(by_ids("a"))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(AtomlogError) as quick:
            patch.setattr(reader, "gather", None)  # the general way is not gone
            await world.read(by_ids("nothing"))
        assert quick.value.to_dict() == general.value.to_dict()

    asyncio.run(run())


def test_a_retired_atom_is_returned_by_id_as_retired(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a", value={"text": "x"})])
        world.log0.batch("notes", [retire("a")])
        await world.follow()
        [row] = (await world.read(by_ids("a"))).atoms
        assert (row.state, row.status, row.value) == ("retired", "retired", None)

    asyncio.run(run())


def test_a_pinned_old_revision_reads_and_says_that_it_is_superseded(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a", value="old"), create("b", value="other")])
        old, other = world.log0.head("a"), world.log0.head("b")
        world.log0.batch("notes", [revise("a", value="new")])
        await world.follow()
        [row] = (await world.read(ByIds(ids=(atom_id("a"),), revision=old))).atoms
        assert (row.value, row.status) == ("old", "superseded")
        with pytest.raises(AtomlogError, match="NOT_FOUND"):
            await world.read(ByIds(ids=(atom_id("a"),), revision=other))
        [row] = (await world.read(ByIds(ids=(atom_id("a"),), revision=old), at=1)).atoms
        assert row.status == "current"
        with pytest.raises(AtomlogError, match="NOT_FOUND"):
            await world.read(ByIds(ids=(atom_id("a"),), revision=world.log0.head("a")), at=1)

    asyncio.run(run())


def test_history_is_oldest_first_and_continues(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a", value=0)])
        for number in range(1, 7):
            world.log0.batch("notes", [revise("a", value=number)])
        await world.follow()
        pages = await world.pages(History(atom=atom_id("a")), limits=[2, 3])
        assert [[row.value for row in page.atoms] for page in pages] == [[0, 1], [2, 3, 4], [5, 6]]
        assert [row.status for page in pages for row in page.atoms] == ["superseded"] * 6 + ["current"]

    asyncio.run(run())


def test_a_logical_slot_resolves_as_of_the_read_and_a_target_elsewhere_is_null(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("t", value=1)])
        first = world.log0.head("t")
        world.log0.batch("notes", [create("a", slots=[slot("about", "t"), slot("about", "never")])])
        world.log0.batch("notes", [revise("t", value=2)])
        await world.follow()
        then = (await world.read(by_ids("a"), at=2)).atoms[0]
        now = (await world.read(by_ids("a"))).atoms[0]
        assert [found.resolved for found in then.slots] == [first, None]
        assert [found.resolved for found in now.slots] == [world.log0.head("t"), None]

    asyncio.run(run())


def test_a_page_that_is_full_ends_early_and_goes_on(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(settings=Settings(page_bytes_max=2_000))
        names = [f"n{number}" for number in range(9)]
        world.log0.batch("notes", [create(name, value={"text": "x" * 500}) for name in names[:-1]])
        world.log0.batch("notes", [create(names[-1], value={"text": "y" * 10_000})])
        await world.follow()
        pages = await world.pages(by_ids(*names))
        assert atoms_of(*pages) == list(map(atom_id, names))
        assert [len(page.atoms) for page in pages] == [2, 2, 2, 2, 1]
        assert pages[0].diagnostics.truncated[0]["part"] == "page"
        assert all(len(page.body()) <= 2_100 for page in pages[:-1])

    asyncio.run(run())
