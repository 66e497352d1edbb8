"""Vectors that would fail later are refused now; what is deleted, damaged or of another shape is never searched."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.client import Store
from tests.hostile.asking import SPACE, a_batch, note, paths, recalled, refusal, texts, write

PLANE: Final = "mine/1/2/l2"
TURN: Final = "mine/1/3/cosine"
SHARD_ROWS: Final = 64


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = str(tmp_path_factory.mktemp("vectors") / "store")
    Store.init(folder, vector_spaces=[PLANE, TURN], shard_rows=SHARD_ROWS)
    with Store.open(folder) as opened:
        yield opened


def at(x: float, y: float, **more: Any) -> dict[str, Any]:
    return note(f"{x} {y}", vectors={PLANE: [x, y]}, **more)


def nearest(store: Store, x: float, y: float, limit: int, **more: Any) -> list[str]:
    return texts(recalled(store, vectors={PLANE: [x, y]}, limit=limit, **more))


BAD: Final[dict[str, tuple[str, Any, str]]] = {
    "not a number": (PLANE, [0.0, float("nan")], "[1]"),
    "infinite": (PLANE, [float("-inf"), 0.0], "[0]"),
    "infinite as float32": (PLANE, [1e39, 0.0], "[0]"),
    "empty": (PLANE, [], ""),
    "null": (PLANE, None, ""),
    "one number too few": (PLANE, [1.0], ""),
    "one number too many": (PLANE, [1.0, 2.0, 3.0], ""),
    "zeros without direction": (TURN, [0.0, 0.0, 0.0], ""),
    "zeros as float32": (TURN, [1e-60, -1e-60, 0.0], ""),
    "a text": (PLANE, "0.1 0.2", ""),
    "texts": (PLANE, ["0.1", "0.2"], "[0]"),
    "booleans": (PLANE, [True, False], "[0]"),
    "nested": (PLANE, [[1.0, 2.0]], "[0]"),
    "a huge integer": (PLANE, [10**400, 1], "[0]"),
    "a space that the store has not": ("other/1/2/l2", [1.0, 2.0], ""),
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_vector_in_a_batch_of_a_hundred_is_refused_before_it_is_acknowledged(store: Store, name: str) -> None:
    space, numbers, part = BAD[name]
    changes = [at(n, n, key=f"{name} {n}") for n in range(100)]
    changes[57]["vectors"] = {space: numbers}
    error = refusal(lambda: store.write(a_batch(*changes)))
    assert error.code == "INVALID_INPUT"
    assert f"changes[57].vectors['{space}']{part}" in paths(error), error.details
    assert refusal(lambda: store.get(f"key:{name} 0", space=SPACE)).code == "NOT_FOUND"


@pytest.mark.parametrize("name", [name for name in BAD if name != "null"])  # which is the same as no vector
def test_a_bad_vector_is_refused_as_a_query_too(store: Store, name: str) -> None:
    space, numbers, _ = BAD[name]
    error = refusal(lambda: store.recall(vectors={space: numbers}, space=SPACE))
    assert error.code == "INVALID_INPUT"
    assert paths(error)[0].startswith("selector.vectors") or paths(error)[0].startswith("vector"), error.details


def test_the_same_atom_twice_in_one_batch_is_refused_and_names_the_other(store: Store) -> None:
    (made,) = write(store, at(1_000, 0, key="twice"))
    revise = {"op": "revise", "atom": made["atom"], "expected": made["revision"], "value": {"text": "new"}}
    pairs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "the same key": (at(0, 1, key="once"), at(0, 2, key="once")),
        "the same key in another normal form": (at(0, 1, key="ｶ\u3099"), at(0, 2, key="ｶ\u3099")),
        "revised and retired": (revise, {"op": "retire", "atom": "key:twice", "expected": made["revision"]}),
    }
    for name, (one, other) in pairs.items():
        error = refusal(lambda one=one, other=other: store.write(a_batch(one, other)))  # type: ignore[misc]
        assert (error.code, "changes[0]" in str(error.details)) == ("INVALID_INPUT", True), name


def test_adding_what_is_there_is_a_conflict_and_neither_text_nor_vector_changes(store: Store) -> None:
    (made,) = write(store, at(2_000, 0, key="kept"))
    error = refusal(lambda: write(store, at(-2_000, 0, key="kept")))
    assert (error.code, error.details[0]["head"], error.details[0]["expected"]) == (
        "REVISION_CONFLICT",
        made["revision"],
        None,
    )
    assert nearest(store, 2_001, 0, 1) == ["2000 0"]
    assert "-2000 0" not in nearest(store, -2_001, 0, 100)


def test_more_is_asked_for_than_is_left_after_deletes_and_all_that_is_left_comes(tmp_path: Path) -> None:
    """In sealed shards and in the tail: deleted rows never come, and never keep others from coming."""
    folder = str(tmp_path / "s")
    Store.init(folder, vector_spaces=[PLANE], shard_rows=SHARD_ROWS)
    with Store.open(folder) as store:
        made = write(store, *(at(n, 0, key=f"p{n}") for n in range(300)))
        while len(shards(tmp_path / "s")) < 2 * (300 // SHARD_ROWS):  # a graph and its rows each
            recalled(store, vectors={PLANE: [0, 0]}, limit=1)
        alive = set(random.Random(1).sample(range(300), 7))
        gone = [n for n in range(300) if n not in alive]
        write(store, *({"op": "retire", "atom": f"key:p{n}", "expected": made[n]["revision"]} for n in gone))
        for limit in (1, 7, 8, 300, 1_000):
            assert nearest(store, -1, 0, limit) == [f"{n} 0" for n in sorted(alive)][:limit]
        # What was deleted and is added again is there once, with its new vector.
        heads = [row.revision for row in store.history(f"key:p{gone[0]}", space=SPACE).atoms]
        again = {"op": "revise", "atom": f"key:p{gone[0]}", "expected": heads[-1], "value": {"text": "again"}}
        write(store, {**again, "vectors": {PLANE: [-1, 0]}})
        assert nearest(store, -1, 0, 1_000) == ["again", *(f"{n} 0" for n in sorted(alive))]


def test_an_encoder_of_another_dimension_is_noticed_at_opening_and_nothing_else_stops(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with Store.open(str(folder)) as store:
        write(store, note("green tea", key="tea"))
        assert texts(recalled(store, "tea")) == ["green tea"]
    described = json.loads((folder / "store.json").read_text())
    described["vector_spaces"] = ["hashing/1/256/cosine"]
    (folder / "store.json").write_text(json.dumps(described))
    with Store.open(str(folder)) as store:
        error = refusal(lambda: store.recall("tea", space=SPACE))
        assert (error.code, "512" in error.message, "256" in error.message) == ("CORRUPT", True, True)
        assert "rebuild" in error.message
        assert texts(store.get("key:tea", space=SPACE)) == ["green tea"]
        write(store, note("black tea"))
        (report,) = store.rebuild(["vectors"], force=True)
        assert report.swapped
        assert sorted(texts(recalled(store, "tea"))) == ["black tea", "green tea"]


def test_flipped_bytes_in_a_file_of_vectors_change_no_answer_and_end_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    Store.init(str(folder), vector_spaces=[PLANE], shard_rows=SHARD_ROWS)
    draw = random.Random(5)
    points = [(draw.randint(0, 999), draw.randint(0, 999)) for _ in range(3 * SHARD_ROWS + 10)]
    with Store.open(str(folder)) as store:
        write(store, *(at(x, y) for x, y in points))
        expected = nearest(store, 500, 500, 50)
        while len(shards(folder)) < 6:  # a graph and its rows each
            recalled(store, vectors={PLANE: [0, 0]})
    for file in shards(folder):
        raw = bytearray(file.read_bytes())
        for _ in range(40):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        file.write_bytes(raw)
    with Store.open(str(folder)) as store:
        assert nearest(store, 500, 500, 50) == expected


def shards(folder: Path) -> Sequence[Path]:
    found = (folder / "projections" / "vectors").rglob("shards/*")
    return sorted(file for file in found if not file.name.startswith("manifest"))
