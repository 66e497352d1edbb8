"""How rows get their vectors, and what becomes of those that cannot."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atomlog.kernel.content import ContentOpener, Opened, Sealed
from atomlog.kernel.errors import InvalidError, fail
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.settings import Settings
from atomlog.projections.encoders import SuppliedEncoder
from atomlog.projections.vectors import Ending
from atomlog.schemas.revision import ATOM, decode_clear
from tests.projections.vectors.worlds import ScriptedEncoder, World, hits, plain_opener, space_of, supplied, vector_of
from tests.support.batches import atom_id, create, member

SPACE = space_of(name="text")


class ScriptedOpener(ContentOpener):
    """Answers for chosen atoms what it is told; opens the others."""

    def __init__(self) -> None:
        plain = plain_opener()
        super().__init__(plain._keys, plain._blobs)
        self.instead: dict[bytes, Exception | str] = {}

    async def open(self, revision: bytes) -> Opened | Sealed:
        answer = self.instead.get(revision[ATOM])
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return Sealed(clear=decode_clear(revision)[0], reason=answer)
        return await super().open(revision)


@pytest.fixture
def encoder() -> ScriptedEncoder:
    return ScriptedEncoder(SPACE)


@pytest.fixture
def world(tmp_path: Path, encoder: ScriptedEncoder) -> World:
    return World(
        directory=tmp_path,
        spaces=[SPACE],
        encoders={SPACE.id: encoder},
        content=ScriptedOpener(),
        settings=Settings(embed_batch=8, embed_retries=3),
    )


def wait(world: World, texts: Sequence[str]) -> None:
    """One atom a text, named by it, waiting to be embedded."""
    world.log.batch("test", [create(text, value={"text": text}) for text in texts])
    world.apply()


def step(world: World) -> bool:
    return asyncio.run(world.vectors.step())


def try_until_given_up(world: World) -> None:
    for _ in range(world.settings.embed_retries + 2):
        world.work()


def found(world: World, text: str) -> bool:
    best, score = hits(world, vector_of(text, 4))[0]
    return best == atom_id(text) and score > 0.999


def troubled(world: World) -> list[tuple[bytes, Ending, int, str]]:
    return [
        (row.atom, row.trouble.ending, row.trouble.attempts, row.trouble.error)
        for row in world.vectors.troubles(SPACE.id)
    ]


def test_rows_are_embedded_in_bounded_batches_in_the_order_of_the_log(world: World, encoder: ScriptedEncoder) -> None:
    texts = [f"text {number}" for number in range(20)]
    wait(world, texts)
    assert world.vectors.unembedded(SPACE.id) == 20
    assert world.work() == 3
    assert encoder.asked == [texts[:8], texts[8:16], texts[16:]]
    assert world.vectors.unembedded(SPACE.id) == 0
    assert all(found(world, text) for text in texts)


def test_what_has_no_text_gets_no_row_and_is_not_missing(world: World, encoder: ScriptedEncoder) -> None:
    world.log.batch("test", [member("m", group="p", of="q"), create("n", value=7), create("blank", value="   ")])
    world.follow()
    assert encoder.asked == []
    work = world.vectors.work(0, SPACE.id)
    assert (work.cursor, work.embedded, work.troubled, world.vectors.unembedded(SPACE.id)) == (3, 0, 0, 0)


def test_text_in_which_the_encoder_finds_nothing_gets_no_row(world: World, encoder: ScriptedEncoder) -> None:
    encoder._of = lambda text: np.zeros(4) if text == "…" else vector_of(text, 4)
    wait(world, ["…", "words"])
    world.work()
    assert [atom for atom, _ in hits(world, vector_of("words", 4))] == [atom_id("words")]
    assert world.vectors.unembedded(SPACE.id) == 0


def test_a_supplied_vector_goes_before_the_encoder_of_its_space(world: World, encoder: ScriptedEncoder) -> None:
    world.log.batch("test", [create("a", value="a text", vectors=supplied(SPACE, [0, 3, 4, 0]))])
    world.follow()
    assert encoder.asked == []
    assert hits(world, [0, 0, 1, 0]) == [(atom_id("a"), float(np.float32(0.8)))]


def test_an_encoder_that_is_down_stops_neither_positions_nor_searches(world: World, encoder: ScriptedEncoder) -> None:
    wait(world, ["before"])
    world.work()
    for error in (ConnectionError("refused"), TimeoutError("late"), fail("OVERLOADED", "busy", retry_after_ms=5)):
        encoder.error = error
        wait(world, [f"while {error}"])
        assert world.work() == 0
        assert str(error) in world.vectors.outages[SPACE.id]
    result = world.vectors.search(SPACE.id, vector_of("before", 4), 5, world.at)
    assert [hit.atom for hit in result.hits] == [atom_id("before")]
    assert result.unembedded == 3
    encoder.error = None
    world.work()
    assert world.vectors.outages == {}
    assert troubled(world) == []
    assert world.vectors.search(SPACE.id, vector_of("before", 4), 5, world.at).unembedded == 0


def test_an_outage_in_the_middle_of_a_batch_keeps_what_was_decided(world: World, encoder: ScriptedEncoder) -> None:
    encoder.poison = {"bad": ValueError("cannot"), "then": ConnectionError("gone")}
    wait(world, ["first", "bad", "then", "last"])
    assert step(world)
    work = world.vectors.work(0, SPACE.id)
    assert (work.cursor, work.embedded, work.retrying) == (2, 1, 1)
    encoder.poison = {}
    world.work()
    assert all(found(world, text) for text in ("first", "bad", "then", "last"))


def test_one_bad_row_never_fails_the_others_of_its_batch(world: World, encoder: ScriptedEncoder) -> None:
    encoder.poison = {"bad": ValueError("half an emoji")}
    wait(world, ["one", "bad", "two"])
    try_until_given_up(world)
    assert found(world, "one")
    assert found(world, "two")
    assert troubled(world) == [(atom_id("bad"), Ending.FAILED, 4, "ValueError: half an emoji")]
    assert world.vectors.search(SPACE.id, vector_of("one", 4), 5, world.at).unembedded == 1


def test_a_failed_row_is_tried_as_often_as_set_and_again_when_asked(world: World, encoder: ScriptedEncoder) -> None:
    encoder.poison = {"bad": ValueError("no")}
    wait(world, ["bad"])
    try_until_given_up(world)
    assert len(encoder.asked) == 1 + world.settings.embed_retries
    world.work()
    assert len(encoder.asked) == 1 + world.settings.embed_retries
    encoder.poison = {}
    assert world.vectors.retry_failed() == 1
    world.work()
    assert found(world, "bad")
    assert world.vectors.unembedded(SPACE.id) == 0
    assert world.vectors.retry_failed() == 0


def test_fresh_rows_are_embedded_while_others_are_tried_again(world: World, encoder: ScriptedEncoder) -> None:
    bad = [f"bad {number}" for number in range(8)]
    encoder.poison = dict.fromkeys(bad, ValueError("no"))
    wait(world, [*bad, "good"])
    step(world)
    step(world)
    assert found(world, "good")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda text: [1.0, 2.0, 3.0], "instead of"),
        (lambda text: [1.0, float("nan"), 0.0, 0.0], "number 1 of the vector is not finite"),
        (lambda text: [1.0, 0.0, 0.0, float("inf")], "number 3 of the vector is not finite"),
    ],
    ids=["another dimension", "NaN", "infinite"],
)
def test_a_row_from_the_encoder_that_is_no_vector_is_refused(
    world: World, encoder: ScriptedEncoder, wrong: Callable[[str], list[float]], message: str
) -> None:
    world.cache = MemoryKv()
    world.reopen()
    encoder._of = wrong
    wait(world, ["text"])
    try_until_given_up(world)
    [(_, ending, _, error)] = troubled(world)
    assert ending == Ending.FAILED
    assert message in error
    assert hits(world, [1, 0, 0, 0]) == []
    assert not list(world.cache.scan(b"", b"\xff"))


def test_one_row_with_nan_leaves_the_rest_of_the_array(world: World, encoder: ScriptedEncoder) -> None:
    encoder._of = lambda text: [np.nan] * 4 if text == "bad" else vector_of(text, 4)
    wait(world, ["one", "bad", "two"])
    try_until_given_up(world)
    assert found(world, "one")
    assert found(world, "two")
    assert [atom for atom, *_ in troubled(world)] == [atom_id("bad")]


@pytest.mark.parametrize("vector", [[0, 0, 0, 0], [1, 2, 3], [np.nan, 0, 0, 1], [3e38, np.inf, 0, 0]], ids=str)
def test_a_bad_supplied_vector_never_reaches_a_search(world: World, vector: list[float]) -> None:
    """The kernel refuses it before it is acknowledged; a log written otherwise must not break an index."""
    good = create("good", vectors=supplied(SPACE, [1, 0, 0, 0]))
    world.log.batch("test", [create("bad", vectors=supplied(SPACE, vector)), good])
    world.follow()
    assert [(atom, ending) for atom, ending, *_ in troubled(world)] == [(atom_id("bad"), Ending.FAILED)]
    assert hits(world, [1, 0, 0, 0]) == [(atom_id("good"), 1.0)]


def test_content_that_cannot_be_opened_is_recorded_with_its_reason(world: World) -> None:
    opener = world.content
    assert isinstance(opener, ScriptedOpener)
    opener.instead = {
        atom_id("sealed"): "no master key",
        atom_id("purged"): fail("PURGED", "erased"),
        atom_id("other key"): fail("KEY_UNAVAILABLE", "another master key"),
        atom_id("damaged"): fail("CORRUPT", "not what was written"),
        atom_id("broken"): RuntimeError("blob store"),
    }
    wait(world, ["sealed", "purged", "other key", "damaged", "broken", "fine"])
    try_until_given_up(world)
    assert found(world, "fine")
    assert {atom: (ending, error) for atom, ending, _, error in troubled(world)} == {
        atom_id("sealed"): (Ending.SEALED, "no master key"),
        atom_id("purged"): (Ending.PURGED, "PURGED: erased"),
        atom_id("other key"): (Ending.SEALED, "KEY_UNAVAILABLE: another master key"),
        atom_id("damaged"): (Ending.FAILED, "CORRUPT: not what was written"),
        atom_id("broken"): (Ending.FAILED, "RuntimeError: blob store"),
    }
    assert world.vectors.unembedded(SPACE.id) == 4  # what was erased is not missing
    opener.instead = {}
    assert world.vectors.retry_failed() == 4
    world.work()
    assert all(found(world, text) for text in ("sealed", "other key", "damaged", "broken"))


def test_a_space_without_an_encoder_waits_and_says_so(tmp_path: Path) -> None:
    world = World(directory=tmp_path, spaces=[SPACE])
    world.vectors._encoders = {}
    world.log.batch("test", [create("a", value="text")])
    world.follow()
    assert world.vectors.search(SPACE.id, [1, 0, 0, 0], 1, world.at).unembedded == 1


def test_an_encoder_of_another_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="text/1/5/cosine"):
        World(directory=tmp_path, spaces=[SPACE], encoders={SPACE.id: SuppliedEncoder(space_of(name="text", dim=5))})


def test_a_rebuild_does_not_pay_for_embeddings_again(world: World, encoder: ScriptedEncoder, tmp_path: Path) -> None:
    world.cache = MemoryKv()
    world.reopen()
    wait(world, ["one", "two", "one more"])
    world.work()
    assert len(encoder.asked) == 1
    again = World(
        directory=tmp_path / "again", spaces=[SPACE], encoders={SPACE.id: encoder}, cache=world.cache, log=world.log
    )
    again.follow()
    assert len(encoder.asked) == 1
    assert again.vectors.digest(0) == world.vectors.digest(0)


def test_the_cache_keeps_spaces_apart(tmp_path: Path) -> None:
    other = space_of(name="text2")
    encoders = {SPACE.id: ScriptedEncoder(SPACE), other.id: ScriptedEncoder(other, lambda text: [0, 0, 0, 1])}
    world = World(directory=tmp_path, spaces=[SPACE, other], encoders=encoders, cache=MemoryKv())
    wait(world, ["same"])
    world.work()
    assert [encoder.asked for encoder in encoders.values()] == [[["same"]], [["same"]]]
    assert world.vectors.search(other.id, [0, 0, 0, 1], 1, world.at).hits[0].score == 1.0


def test_equal_texts_of_one_batch_are_encoded_once_and_stay_two_atoms(world: World, encoder: ScriptedEncoder) -> None:
    world.log.batch("test", [create("a", value="same"), create("b", value="same")])
    world.follow()
    assert encoder.asked == [["same"]]
    assert sorted(atom for atom, _ in hits(world, vector_of("same", 4))) == sorted([atom_id("a"), atom_id("b")])


def test_lone_surrogates_in_a_text_reach_the_encoder_and_the_cache(world: World, encoder: ScriptedEncoder) -> None:
    """Canonical JSON cannot hold them; text that came another way must not end the background work."""
    world.cache = MemoryKv()
    world.reopen()

    class Surrogates(ScriptedOpener):
        async def open(self, revision: bytes) -> Opened | Sealed:
            opened = await super().open(revision)
            assert isinstance(opened, Opened)
            return replace(opened, value="note \udc95 end")

    world.content = Surrogates()
    world.reopen()
    wait(world, ["x"])
    world.work()
    assert world.vectors.work(0, SPACE.id).embedded == 1


def test_a_second_step_at_once_does_nothing(world: World, encoder: ScriptedEncoder) -> None:
    wait(world, ["text"])

    async def both() -> list[bool]:
        return list(await asyncio.gather(world.vectors.step(), world.vectors.step()))

    world.vectors._stepping = True
    assert not step(world)
    world.vectors._stepping = False
    assert asyncio.run(both())[0]
    assert len(encoder.asked) == 1
