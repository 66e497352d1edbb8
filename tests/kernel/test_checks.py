"""Bounds, vectors and include cycles of a parsed request: each failing part, what was found and what is allowed."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.checks import check_bounds, check_includes, check_vectors, include_cycle
from atomlog.kernel.model import Create
from atomlog.kernel.requests import parse_write
from atomlog.kernel.vector_spaces import VectorSpace, parse_vector_space
from tests.kernel.write_batches import A, B, R, batch, create, ref, retire, revise

SMALL = Bounds(
    batch_revisions_max=3,
    slots_max=2,
    origins_max=2,
    value_bytes_max=1_000,
    blob_bytes_max=5_000,
    depth_max=3,
    vectors_max=2,
    preconditions_max=2,
    receipts_max=2,
)
SLOT = {"role": "r", "target": ref(A)}
ORIGIN = {"source": ref(A), "revision": ref(B), "start": 0, "end": 1}
GUARD = {"type": "absent", "atom": ref(A)}


def spaces(*ids: str) -> dict[str, VectorSpace]:
    return {id: parse_vector_space(id, "p") for id in ids}


def failures(raw: Any, bounds: Bounds = SMALL) -> list[tuple[Any, ...]]:
    found = check_bounds(parse_write(raw), bounds)
    assert all(failure["code"] == "BOUND_EXCEEDED" and failure["message"] for failure in found)
    return [(failure["path"], failure["found"], failure["limit"]) for failure in found]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("raw", "path", "found", "limit"),
    [
        (batch(*[create()] * 4), "changes", 4, 3),
        (batch(create(), preconditions=[GUARD] * 3), "preconditions", 3, 2),
        (batch(create(), create(slots=[SLOT] * 3)), "changes[1].slots", 3, 2),
        (batch(revise(slots=[SLOT] * 3)), "changes[0].slots", 3, 2),
        (batch(create(origins=[ORIGIN] * 3)), "changes[0].origins", 3, 2),
        (batch(create(provenance={"receipts": [ref(R)] * 3})), "changes[0].provenance.receipts", 3, 2),
        (batch(create(vectors={f"s/{n}/1/l2": [1] for n in range(3)})), "changes[0].vectors", 3, 2),
        (batch(create(value=nested(4))), "changes[0].value", 4, 3),
        (batch(create(value={"a": {"b": {"c": {}}}})), "changes[0].value", 4, 3),
        (batch(create(value=[1] * 500)), "changes[0].value", 1_001, 1_000),
        (batch(create(value={"text": 5, "a": "x" * 1_000})), "changes[0].value", 1_017, 1_000),
        (batch(create(value={"text": "x" * 2_000, "a": "y" * 1_000})), "changes[0].value", None, 1_000),
        (batch(create(value={"text": "x" * 5_001})), "changes[0].value.text", 5_001, 5_000),
        (batch(create(value="あ" * 1_667)), "changes[0].value", 5_001, 5_000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_beyond_its_bound_is_named_with_both_numbers(raw: Any, path: str, found: Any, limit: int) -> None:
    [(where, size, most)] = failures(raw)
    assert (where, most) == (path, limit)
    assert size == found or (found is None and size > limit)


@pytest.mark.parametrize(
    "raw",
    [
        batch(*[create()] * 3),
        batch(create(), preconditions=[GUARD] * 2),
        batch(create(slots=[SLOT] * 2, origins=[ORIGIN] * 2, provenance={"receipts": [ref(R)] * 2})),
        batch(create(value=nested(3))),
        batch(create(value="x" * 998)),
        batch(create(value="x" * 5_000)),
        batch(create(value={"text": "x" * 5_000, "title": "t" * 600})),
        batch(create(value="\x00" * 900)),
        batch(revise(), retire(atom=ref(B))),
    ],
    ids=range(9),
)
def test_a_part_at_its_bound_passes_and_a_long_text_goes_to_the_blob_store(raw: Any) -> None:
    assert failures(raw) == []


def test_every_part_beyond_a_bound_is_named() -> None:
    raw = batch(
        create(slots=[SLOT] * 3, origins=[ORIGIN] * 3), create(value=nested(9)), revise(value=[1] * 500), create()
    )
    assert [path for path, _, _ in failures(raw)] == [
        "changes",
        "changes[0].slots",
        "changes[0].origins",
        "changes[1].value",
        "changes[2].value",
    ]


def test_the_bounds_of_the_store_hold_unless_changed() -> None:
    bounds = Bounds()
    assert failures(batch(*[create()] * 1_001), bounds) == [("changes", 1_001, 1_000)]
    assert failures(batch(create(slots=[SLOT] * 65)), bounds) == [("changes[0].slots", 65, 64)]
    assert failures(batch(create(value=nested(33))), bounds) == [("changes[0].value", 33, 32)]
    assert failures(batch(create(value={"text": "x" * 100_000})), bounds) == []


# --- vectors

COSINE, L2 = "hashing/1/3/cosine", "supplied.sift/1/3/l2"


def vector_failures(vectors: Any, *ids: str) -> list[tuple[str, str]]:
    found = check_vectors(parse_write(batch(create(), create(vectors=vectors))), spaces(*ids))
    assert all(failure["code"] == "INVALID_INPUT" and failure["index"] == 1 for failure in found)
    return [(failure["path"], failure["message"]) for failure in found]


@pytest.mark.parametrize("numbers", [[1, 0, 0], [-1e-38, 0, 0], [3.4028234e38, 0, 0], [1e-45, 0, 0]])
@pytest.mark.parametrize("space", [COSINE, L2])
def test_a_vector_of_a_declared_space_passes(space: str, numbers: list[float]) -> None:
    assert vector_failures({space: numbers}, COSINE, L2) == []


def test_zeros_are_a_vector_unless_directions_are_compared() -> None:
    assert vector_failures({L2: [0, 0, 0]}, L2) == []
    [(path, message)] = vector_failures({COSINE: [0, -0.0, 0]}, COSINE)
    assert path == f"changes[1].vectors['{COSINE}']"
    assert "zeros" in message


def test_numbers_that_vanish_as_float32_are_zeros() -> None:
    assert len(vector_failures({COSINE: [1e-46, -1e-300, 5e-324]}, COSINE)) == 1


@pytest.mark.parametrize("number", [3.5e38, -1e39, 1.7e308])
def test_a_number_that_float32_cannot_hold_is_named(number: float) -> None:
    [(path, message)] = vector_failures({L2: [0, 1, number]}, L2)
    assert path == f"changes[1].vectors['{L2}'][2]"
    assert "float32" in message


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_named_even_if_it_comes_by_another_way(number: float) -> None:
    request = parse_write(batch(create(vectors={L2: [0, 1, 2]})))
    change = request.changes[0]
    assert isinstance(change, Create)
    bad = replace(request, changes=(replace(change, vectors=((L2, (0.0, number, number)),)),))
    assert [failure["path"] for failure in check_vectors(bad, spaces(L2))] == [
        f"changes[0].vectors['{L2}'][1]",
        f"changes[0].vectors['{L2}'][2]",
    ]


@pytest.mark.parametrize("numbers", [[1, 2], [1, 2, 3, 4]])
def test_another_dimension_is_refused_with_both(numbers: list[float]) -> None:
    [(_, message)] = vector_failures({L2: numbers}, L2)
    assert str(len(numbers)) in message
    assert "3 dimensions" in message


def test_a_space_that_the_store_has_not_is_refused_with_those_it_has() -> None:
    [(path, message)] = vector_failures({"supplied.sift/1/4/l2": [1, 2, 3, 4]}, COSINE, L2)
    assert path == "changes[1].vectors['supplied.sift/1/4/l2']"
    assert L2 in message
    [(_, message)] = vector_failures({"other/9/1/ip": [1]}, COSINE, L2)
    assert COSINE in message
    assert L2 in message


def test_every_bad_vector_of_a_batch_is_named_with_the_index_of_its_change() -> None:
    changes = [create(vectors={COSINE: [0.0, 0.0, float(n % 10)]}) for n in range(100)]
    found = check_vectors(parse_write(batch(*changes)), spaces(COSINE))
    assert [failure["index"] for failure in found] == list(range(0, 100, 10))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hashing/1/512/cosine", ("hashing", "1", 512, "cosine")),
        ("supplied.sift/1/128/l2", ("supplied.sift", "1", 128, "l2")),
        ("e5/v2.1-small/4096/ip", ("e5", "v2.1-small", 4_096, "ip")),
    ],
)
def test_a_vector_space_is_named_by_its_four_parts(text: str, parts: tuple[Any, ...]) -> None:
    space = parse_vector_space(text, "p")
    assert (space.encoder, space.version, space.dim, space.metric) == parts
    assert space.id == text


# --- includes


def including(*names: str) -> dict[str, Any]:
    return {"slots": [{"role": "part", "target": name, "mode": "include"} for name in names]}


@pytest.mark.parametrize(
    ("changes", "cycle"),
    [
        ([create(**{"as": "@a"}, **including("@a"))], [0, 0]),
        ([create(**{"as": "@a"}, **including("@b")), create(**{"as": "@b"}, **including("@a"))], [0, 1, 0]),
        (
            [
                create(**including("@b")),
                create(**{"as": "@b"}, **including("@c")),
                create(**{"as": "@c"}, **including("@d")),
                create(**{"as": "@d"}, **including("@b")),
            ],
            [1, 2, 3, 1],
        ),
        ([revise(**{"as": "@a"}, **including("@b")), create(**{"as": "@b"}, **including("@a"))], [0, 1, 0]),
    ],
    ids=["itself", "two", "three, from outside", "a revise"],
)
def test_a_circle_of_includes_is_refused_and_shown(changes: Any, cycle: list[int]) -> None:
    [failure] = check_includes(parse_write(batch(*changes)))
    assert failure["code"] == "INCLUDE_CYCLE"
    assert failure["cycle"] == [f"changes[{n}]" for n in cycle]
    assert failure["path"] == f"changes[{cycle[0]}].slots"


@pytest.mark.parametrize(
    "changes",
    [
        [
            create(**{"as": "@a"}, **including("@b", "@c")),
            create(**{"as": "@b"}, **including("@c")),
            create(**{"as": "@c"}),
        ],
        [create(**{"as": "@a"}, slots=[{"role": "r", "target": "@a"}])],
        [
            create(**{"as": "@a"}, slots=[{"role": "r", "target": "@b", "revision": "@b"}]),
            create(**{"as": "@b"}, slots=[{"role": "r", "target": "@a", "revision": "@a"}]),
        ],
        [revise(**{"as": "@a"}, slots=[{"role": "r", "target": ref(A), "revision": ref(B), "mode": "include"}])],
        [retire()],
    ],
    ids=["a diamond", "a reference to itself", "pinned references in a circle", "an older version", "a retirement"],
)
def test_what_is_no_circle_of_includes_passes(changes: Any) -> None:
    assert check_includes(parse_write(batch(*changes))) == []


nodes = st.integers(0, 9)


@given(st.dictionaries(nodes, st.lists(nodes, max_size=4)))
def test_a_cycle_is_found_exactly_when_no_order_of_the_nodes_exists(edges: dict[int, list[int]]) -> None:
    left = {node: set(targets) & edges.keys() for node, targets in edges.items()}
    while free := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in free:
            del left[node]
    cycle = include_cycle(edges)
    if not left:
        assert cycle is None
    else:
        assert cycle is not None
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(after in edges[before] for before, after in pairwise(cycle))


def test_a_chain_of_a_hundred_thousand_includes_needs_no_deep_stack() -> None:
    edges = {n: [n + 1] for n in range(100_000)}
    assert include_cycle(edges) is None
    assert len(include_cycle({**edges, 100_000: [0]}) or ()) == 100_002


def test_shared_targets_are_walked_once() -> None:
    """Forty diamonds one behind the other: 2^40 paths, 80 edges."""
    edges = {n: [n + 1, n + 1] for n in range(40)}
    assert include_cycle(edges) is None
