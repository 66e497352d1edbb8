"""Recall by `cosine-max-v1` against brute force, its scopes, and what it says about what it could not see."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.times import DAY_US, format_time
from atomlog.projections.encoders import SuppliedEncoder
from atomlog.projections.read import recall as recall_module
from atomlog.projections.read.page import Page
from atomlog.projections.read.recall import Queries, rank
from atomlog.projections.read.scope import Scope, parse_scope
from atomlog.projections.read.selectors import Members, Recall
from atomlog.projections.vectors import Vectors
from atomlog.projections.vectors.search import Hit, SearchResult
from atomlog.schemas.revision import ValidTime
from tests.projections.read.worlds import SPACE, NewWorld, World, atoms_of
from tests.projections.vectors.worlds import ScriptedEncoder, space_of, supplied, vector_of
from tests.support.batches import START_US, LogBuilder, atom_id, create, member, retire, revise, slot

WORDS = [f"text {number}" for number in range(40)]


def similarity(one: str, other: str) -> float:
    a, b = (vector_of(text, 4).astype(np.float64) for text in (one, other))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def ranking(texts: Mapping[str, str], *inputs: str) -> list[tuple[bytes, float]]:
    """(atom, r) for name → text: r = max(0, cos) over the inputs, best first, then by id; r = 0 left out."""
    scores = {atom_id(name): max(similarity(text, one) for one in inputs) for name, text in texts.items()}
    return sorted(((atom, r) for atom, r in scores.items() if r > 0), key=lambda item: (-round(item[1], 6), item[0]))


def shown(*pages: Page) -> list[tuple[bytes, float]]:
    return [(row.atom, row.score or 0.0) for page in pages for row in page.atoms]


def assert_ranked(found: list[tuple[bytes, float]], wanted: list[tuple[bytes, float]]) -> None:
    assert [atom for atom, _ in found] == [atom for atom, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)


async def store(world: World) -> dict[str, str]:
    """40 sources, some said twice, two collections and a statement: name → text."""
    texts = {f"d{number}": text for number, text in enumerate(WORDS)} | {"twin": WORDS[0], "twin2": WORDS[0]}
    world.log0.batch("notes", [create(name, value={"text": text}) for name, text in texts.items()])
    described = [("p", "a collection"), ("q", "another one")]
    world.log0.batch("notes", [create(name, schema="collection", value={"title": text}) for name, text in described])
    slots = [slot("subject", "d1"), slot("object", "d2")]
    world.log0.batch("notes", [create("s", schema="statement", value={"text": "a relation"}, slots=slots)])
    await world.follow()
    return texts | dict(described) | {"s": "a relation"}


def test_one_list_of_contents_collections_and_relations_in_the_order_of_r_then_id(world: World) -> None:
    async def run() -> None:
        texts = await store(world)
        world.log0.batch("notes", [member("m", group="p", of="d1")])  # no text: it has no vector, and is not missed
        await world.follow()
        page = await world.read(Recall(text="text 0"))
        wanted = ranking(texts, "text 0")
        assert_ranked(shown(page), wanted)
        assert {atom for atom, _ in wanted[:3]} == {atom_id(name) for name in ("d0", "twin", "twin2")}
        assert atoms_of(page)[:3] == sorted(atoms_of(page)[:3])
        assert page.atoms[0].score == 1.0
        assert page.atoms[0].match_reason == {"scoring": "cosine-max-v1", "input": "text"}
        assert (page.diagnostics.approximate, page.diagnostics.unembedded) == (False, 0)

    asyncio.run(run())


def test_each_input_is_embedded_apart_and_the_best_one_counts(world: World) -> None:
    async def run() -> None:
        texts = await store(world)
        number = tuple(float(n) for n in vector_of("text 9", 4))
        recall = Recall(text="text 1", context="text 2", reasoning="text 3", vectors=((SPACE.id, number),))
        page = await world.read(recall)
        assert_ranked(shown(page), ranking(texts, "text 1", "text 2", "text 3", "text 9"))
        reasons = {row.atom: row.match_reason["input"] for row in page.atoms}
        assert [reasons[atom_id(name)] for name in ("d1", "d2", "d3", "d9")] == [
            "text", "context", "reasoning", "vector",
        ]  # fmt: skip

    asyncio.run(run())


def test_pages_of_a_recall_take_up_one_list_while_writes_go_on(world: World) -> None:
    async def run() -> None:
        texts = await store(world)
        recall = Recall(text="text 5")
        pages = [await world.read(recall, limit=3)]
        while pages[-1].continuation is not None:
            world.log0.batch("notes", [revise("d5", value="text 5"), create(f"new{len(pages)}", value="text 5")])
            world.log0.batch("notes", [retire(f"d{len(pages) + 5}")])
            await world.follow()
            pages.append(await world.read(recall, limit=2, continuation=pages[-1].continuation))
        assert_ranked(shown(*pages), ranking(texts, "text 5"))
        assert all(page.receipt.observed() == pages[0].receipt.observed() for page in pages)
        assert all(row.status == "current" for page in pages for row in page.atoms)
        for page in pages:
            assert (await world.reader.replay(page.receipt.receipt)).body() == page.body()

    asyncio.run(run())


def test_an_open_cursor_pins_the_manifest_that_its_rows_were_found_with(new_world: NewWorld) -> None:
    """Until it expires: the same search can be made again, although a shard was renewed and its floor rose."""

    async def run() -> None:
        world = new_world(shard_rows=8)
        world.log0.batch("notes", [create(f"d{n}", value=f"text {n}") for n in range(8)])
        await world.follow()
        page = await world.read(Recall(text="text 5"), limit=2)
        assert page.continuation is not None
        before, found_at = world.vectors.generation, page.receipt.observed()
        world.log0.batch("notes", [retire(f"d{n}") for n in range(4)])
        await world.follow()
        assert world.vectors.generation > before
        assert world.vectors.floors()[0] > found_at[0]
        query = await world.encoders[SPACE.id].encode_query("text 5")
        again = world.vectors.search(SPACE.id, query, 2, found_at, generation=before)
        assert [hit.revision for hit in again.hits] == [row.revision for row in page.atoms]
        rest = await world.read(Recall(text="text 5"), limit=20, continuation=page.continuation)
        assert rest.atoms
        assert rest.continuation is None
        world.clock.us += world.settings.cursor_ttl_ms * 1_000
        await world.read(Recall(text="text 5"), limit=1)
        with pytest.raises(AtomlogError) as refused:
            world.vectors.search(SPACE.id, query, 2, found_at)
        assert refused.value.code == "CONSISTENCY_UNAVAILABLE"
        assert world.vectors.pins == {world.vectors.generation: 1}

    asyncio.run(run())


def test_a_recall_is_as_of_any_position(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a", value="text 1")])
        world.log0.batch("notes", [revise("a", value="text 2"), create("b", value="text 3")])
        world.log0.batch("notes", [retire("b")])
        await world.follow()
        states = {1: {"a": "text 1"}, 2: {"a": "text 2", "b": "text 3"}, 3: {"a": "text 2"}}
        for position, texts in states.items():
            for query in WORDS[:8]:
                page = await world.read(Recall(text=query), at=position)
                assert_ranked(shown(page), ranking(texts, query))

    asyncio.run(run())


@pytest.mark.parametrize(("last", "cut"), [(0.1, True), (0.0, False), (-0.1, False)])
def test_a_search_that_found_all_that_scores_was_not_cut(last: float, cut: bool) -> None:
    class Found:
        """Vectors that find three of whatever is asked."""

        def search(self, *_: object) -> SearchResult:
            hits = (
                Hit(atom=bytes([number]) * 16, revision=bytes([number]) * 16, partition=0, score=score)
                for number, score in enumerate((0.9, 0.5, last), 1)
            )
            return SearchResult(hits=tuple(hits), approximate=False, unembedded=0)

    queries = Queries(space=SPACE, inputs=(("text", (1.0, 0.0)),))
    ranked = rank(cast(Vectors, Found()), queries, 3, {0: 1}, None)
    assert len(ranked.rows) == 2 + (last > 0)
    assert ranked.cuts == (({"part": "candidates", "limit": 3},) if cut else ())


def test_a_list_that_was_cut_says_so_and_is_the_best_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        texts = await store(world)
        monkeypatch.setattr(recall_module, "RANKED_MAX", 7)
        pages = await world.pages(Recall(text="text 7", context="text 8"), limits=[4])
        assert_ranked(shown(*pages), ranking(texts, "text 7", "text 8")[:7])
        assert all({"part": "candidates", "limit": 7} in page.diagnostics.truncated for page in pages)
        assert pages[0].receipt.truncations == pages[0].diagnostics.truncated

    asyncio.run(run())


def test_a_large_store_is_searched_as_deep_as_the_page_asks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        await store(world)
        assert recall_module.depth(world.vectors, 1) == recall_module.RANKED_MAX
        monkeypatch.setattr(recall_module, "SMALL_STORE_ROWS", 10)
        assert [recall_module.depth(world.vectors, limit) for limit in (1, 50, 1_000)] == [100, 500, 1_000]

    asyncio.run(run())


def test_an_encoder_that_is_down_costs_no_read_and_is_told(world: World) -> None:
    async def run() -> None:
        encoder = world.encoders[SPACE.id]
        assert isinstance(encoder, ScriptedEncoder)
        encoder.error = TimeoutError("no answer")
        texts = await store(world)
        page = await world.read(Recall(text="text 1"))
        assert page.atoms == ()
        assert page.diagnostics.unembedded == len(texts)
        encoder.error = None
        await world.follow()
        assert_ranked(shown(await world.read(Recall(text="text 1"))), ranking(texts, "text 1"))

    asyncio.run(run())


def test_a_query_that_cannot_be_embedded_is_told_and_the_other_inputs_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        texts = await store(world)
        encode = ScriptedEncoder.encode_query

        async def fails(encoder: ScriptedEncoder, text: str) -> Any:
            if text == "down":
                raise ConnectionError("gone")
            return np.zeros(4, dtype=np.float32) if text == "!!!" else await encode(encoder, text)

        monkeypatch.setattr(ScriptedEncoder, "encode_query", fails)
        page = await world.read(Recall(text="down", context="text 4", reasoning="!!!"))
        assert_ranked(shown(page), ranking(texts, "text 4"))
        assert [cut["part"] for cut in page.diagnostics.truncated] == ["text", "reasoning"]
        page = await world.read(Recall(text="down"))
        assert (page.atoms, page.continuation) == ((), None)
        assert "gone" in page.diagnostics.truncated[0]["why"]
        assert page.receipt.scopes[0].empty

    asyncio.run(run())


def test_vectors_of_a_space_are_compared_in_that_space_only(new_world: NewWorld) -> None:
    async def run() -> None:
        l2 = space_of("l2", 2)
        world = new_world(encoders={SPACE.id: ScriptedEncoder(SPACE), l2.id: SuppliedEncoder(l2)})
        points = {"a": (0.0, 0.0), "b": (3.0, 4.0), "c": (1.0, 0.0)}
        world.log0.batch(
            "notes", [create(name, value="text 1", vectors=supplied(l2, point)) for name, point in points.items()]
        )
        world.log0.batch("notes", [create("d", value="text 1")])
        await world.follow()
        page = await world.read(Recall(vectors=((l2.id, (1.0, 1.0)),)))
        assert shown(page) == [(atom_id("c"), -1.0), (atom_id("a"), -2.0), (atom_id("b"), -13.0)]
        assert page.receipt.scoring == "similarity-max-v1"
        assert page.receipt.encoders == (l2.id,)
        assert len((await world.read(Recall(text="text 1"))).atoms) == 4
        for vectors in (
            ((l2.id, (1.0,)),),
            ((l2.id, (float("nan"), 1.0)),),
            (("other/1/2/l2", (1.0, 1.0)),),
            ((SPACE.id, (0.0,) * 4),),
            ((SPACE.id, (1.0,) * 4), (l2.id, (1.0, 1.0))),
        ):
            with pytest.raises(AtomlogError, match="INVALID_INPUT"):
                await world.read(Recall(vectors=vectors))
        with pytest.raises(AtomlogError, match="no text can be compared"):
            await world.read(Recall(text="text 1", vectors=((l2.id, (1.0, 1.0)),)))

    asyncio.run(run())


def test_a_store_without_a_text_encoder_refuses_text_and_takes_vectors(new_world: NewWorld) -> None:
    async def run() -> None:
        space = space_of("ip", 2)
        world = new_world(encoders={space.id: SuppliedEncoder(space)})
        world.log0.batch("notes", [create("a", vectors=supplied(space, (-1.0, 2.0)))])
        await world.follow()
        with pytest.raises(AtomlogError, match="encodes no text"):
            await world.read(Recall(text="x"))
        assert shown(await world.read(Recall(vectors=((space.id, (2.0, 0.5)),)))) == [(atom_id("a"), -1.0)]

    asyncio.run(run())


def scoped(log: LogBuilder) -> dict[str, dict[str, Any]]:
    """Atoms with every facet, and of each its facets."""
    facets: dict[str, dict[str, Any]] = {}
    for number in range(24):
        name = f"d{number}"
        facets[name] = {
            "space": ("notes", "tasks")[number % 2],
            "schema": ("source", "extract", "note")[number % 3],
            "policy": ("open", "closed")[number // 2 % 2],
            "time_us": START_US - START_US % DAY_US + number * DAY_US // 4,
            "project": f"project{number % 5}",
        }
    projects = [create(f"project{number}", value=None, schema="project") for number in range(5)]
    log.batch("notes", [*projects, create("p", schema="c", value=None), create("q", schema="c", value=None)])
    for space in ("notes", "tasks"):
        mine = {name: has for name, has in facets.items() if has["space"] == space}
        log.batch(
            space,
            [
                create(
                    name,
                    schema=has["schema"],
                    policy=has["policy"],
                    value=name,
                    slots=[slot("project", has["project"])],
                    valid_time=ValidTime(from_us=has["time_us"], to_us=None),
                )
                for name, has in mine.items()
            ],
        )
    return facets


def joined(log: LogBuilder) -> None:
    log.batch("notes", [member(f"p{n}", group="p", of=f"d{n}") for n in range(0, 24, 2)])
    log.batch("notes", [member(f"q{n}", group="q", of=f"d{n}") for n in range(0, 24, 3)])


DAY = START_US // DAY_US * DAY_US
SCOPES: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda name, has, number: True),
    ({"space": "notes"}, lambda name, has, number: has["space"] == "notes"),
    ({"schema": ["extract", "note"]}, lambda name, has, number: has["schema"] != "source"),
    (
        {"policy": "open", "schema": "source"},
        lambda name, has, number: has["policy"] == "open" and has["schema"] == "source",
    ),
    ({"project": format_id(atom_id("project3"))}, lambda name, has, number: has["project"] == "project3"),
    ({"groups": {"and": ["p"]}}, lambda name, has, number: number % 2 == 0),
    ({"groups": {"and": ["p", "q"]}}, lambda name, has, number: number % 6 == 0),
    ({"groups": {"and": ["p"], "not": ["q"]}}, lambda name, has, number: number % 2 == 0 and number % 3),
    ({"groups": {"not": ["p", "q"]}}, lambda name, has, number: number % 2 and number % 3),
    ({"time": {"from": DAY + DAY_US}}, lambda name, has, number: number >= 4),
    ({"time": {"to": DAY + DAY_US}}, lambda name, has, number: number < 4),
    ({"time": {"from": DAY + 1}}, lambda name, has, number: number >= 1),
    (
        {"time": {"from": DAY + DAY_US // 2, "to": DAY + 3 * DAY_US + DAY_US // 4}},
        lambda name, has, number: 2 <= number < 13,
    ),
    (
        {"time": {"from": DAY + DAY_US // 4, "to": DAY + 3 * DAY_US // 4 + 1}},
        lambda name, has, number: 1 <= number <= 3,
    ),
    ({"time": {"from": DAY, "to": DAY + DAY_US // 4}}, lambda name, has, number: number == 0),
    (
        {"time": {"from": DAY, "to": DAY + 2 * DAY_US}, "groups": {"and": ["q"]}},
        lambda n, h, number: number in (0, 3, 6),
    ),
    ({"schema": "never"}, lambda name, has, number: False),
]


def as_scope(parts: Mapping[str, Any]) -> Scope:
    scope: dict[str, Any] = dict(parts)
    if "groups" in scope:
        scope["groups"] = {key: [format_id(atom_id(one)) for one in names] for key, names in scope["groups"].items()}
    if "time" in scope:
        scope["time"] = {key: format_time(time_us) for key, time_us in scope["time"].items()}
    parsed = parse_scope(scope, "scope")
    assert parse_scope(parsed.to_dict(), "scope") == parsed
    return parsed


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(("parts", "allows"), SCOPES, ids=[str(index) for index in range(len(SCOPES))])
def test_a_scope_narrows_before_the_search(
    new_world: NewWorld, parts: Mapping[str, Any], allows: Any, partitions: int
) -> None:
    async def run() -> None:
        logs = [LogBuilder(partition=number, partitions=partitions) for number in range(partitions)]
        world = new_world(logs=logs)
        facets = scoped(logs[0])
        if partitions == 1:
            joined(logs[0])
        else:
            joined(logs[1])  # memberships of atoms that live in another partition
        logs[0].batch("notes", [retire("d23")])
        await world.follow()
        everything = {f"d{number}": f"d{number}" for number in range(23)}
        wanted = {name: name for number, name in enumerate(everything) if allows(name, facets[name], number)}
        page = await world.read(Recall(text="d1", context="d7", scope=as_scope(parts)))
        assert_ranked(shown(page), ranking(wanted, "d1", "d7"))

    asyncio.run(run())


def test_a_small_scope_in_a_large_store_is_not_starved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(recall_module, "RANKED_MAX", 5)
        log = world.log0
        log.batch("notes", [create("p", schema="collection", value=None)])
        log.batch("notes", [create(f"n{number}", value="text 1") for number in range(300)])
        log.batch("notes", [create(f"far{number}", value=f"text {number}") for number in range(2, 30)])
        log.batch("notes", [member(f"m{number}", group="p", of=f"far{number}") for number in range(2, 30)])
        await world.follow()
        texts = {f"far{number}": f"text {number}" for number in range(2, 30)}
        page = await world.read(Recall(text="text 1", scope=Scope(group_and=(atom_id("p"),))))
        assert_ranked(shown(page), ranking(texts, "text 1")[:5])
        assert [(found.target, found.complete) for found in page.receipt.ranges] == [(atom_id("p"), True)]

    asyncio.run(run())


def test_memberships_and_paths_and_a_second_extract_change_no_score(world: World) -> None:
    async def run() -> None:
        await store(world)
        before = dict(shown(await world.read(Recall(text="text 3"))))
        world.log0.batch("notes", [member(f"x{n}", group="p", of="d3") for n in range(5)])
        world.log0.batch("notes", [create("again", schema="extract", value={"text": WORDS[3]})])
        await world.follow()
        after = dict(shown(await world.read(Recall(text="text 3"))))
        assert {atom: after[atom] for atom in before} == before
        assert set(after) - set(before) == {atom_id("again")}

    asyncio.run(run())


def test_reading_adds_no_record_and_changes_no_later_answer(world: World) -> None:
    async def run() -> None:
        await store(world)
        end = world.log0.end
        first = await world.read(Recall(text="text 3"))
        for _ in range(5):
            await world.read(Recall(text="text 3"))
            await world.read(Members(group=atom_id("p")))
        assert world.log0.end == end
        assert (await world.read(Recall(text="text 3"))).body() == first.body()

    asyncio.run(run())
