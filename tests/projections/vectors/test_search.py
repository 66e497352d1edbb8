"""Search against brute force: as-of, allowed sets, ties, k beyond what there is."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomlog.kernel.errors import CapabilityError, InvalidError
from atomlog.kernel.settings import Settings
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.vectors.hnsw import Graph
from atomlog.projections.vectors.scoring import norms_of, scores, stored_row
from atomlog.projections.vectors.search import Source, candidates
from tests.projections.vectors.worlds import World, hits, space_of, supplied
from tests.support.batches import Change, atom_id, create, retire, revise

ATOMS = 8
NAMES = [f"atom {number}" for number in range(ATOMS)]

vectors = st.lists(st.integers(-2, 2), min_size=3, max_size=3)
operations = st.tuples(st.integers(0, ATOMS - 1), st.one_of(st.none(), vectors))  # None retires
histories = st.lists(st.lists(operations, min_size=1, max_size=4, unique_by=lambda one: one[0]), max_size=14)


@dataclass(slots=True)
class Truth:
    """What brute force knows: the history of each atom, and the order in which atoms were mentioned."""

    space_metric: str
    versions: dict[str, list[tuple[int, Sequence[int] | None]]]

    def best(self, query: Sequence[int], k: int, at: int, allowed: set[int] | None) -> list[tuple[bytes, float]]:
        space = space_of(self.space_metric, dim=3)
        row = stored_row(space, query)
        found: list[tuple[bytes, float]] = []
        for ordinal, (name, versions) in enumerate(self.versions.items()):
            vector = next((vector for position, vector in reversed(versions) if position <= at), None)
            kept = None if vector is None else stored_row(space, vector)
            if kept is not None and row is not None and (allowed is None or ordinal in allowed):
                found.append((atom_id(name), float(scores(self.space_metric, kept[np.newaxis], row)[0])))
        return sorted(found, key=lambda one: (-one[1], one[0]))[:k]


def written(world: World, history: Sequence[Sequence[tuple[int, Sequence[int] | None]]]) -> Truth:
    """The history in the log; operations that cannot be (retiring what is not there) are left out."""
    truth = Truth(world.space.metric, {})
    for batch in history:
        changes: list[Change] = []
        for number, vector in batch:
            name, versions = NAMES[number], truth.versions.get(NAMES[number])
            if vector is None:
                if versions and versions[-1][1] is not None:
                    changes.append(retire(name))
                    versions.append((world.log.end, None))
                continue
            make = create if versions is None else revise
            given_vectors = supplied(world.space, vector) if world.space.metric != "cosine" or any(vector) else ()
            changes.append(make(name, value=None, vectors=given_vectors))
            truth.versions.setdefault(name, []).append((world.log.end, vector))
        if changes:
            world.log.batch("test", changes)
    return truth


@settings(max_examples=80)
@given(
    metric=st.sampled_from(["cosine", "l2", "ip"]),
    history=histories,
    query=vectors,
    k=st.integers(1, 12),
    at=st.integers(0, 16),
    allowed=st.one_of(st.none(), st.sets(st.integers(0, ATOMS + 2))),
    shard_rows=st.sampled_from([2, 5, 1_000]),
)
def test_every_search_as_of_every_position_equals_brute_force(
    metric: str,
    history: list[list[tuple[int, list[int] | None]]],
    query: list[int],
    k: int,
    at: int,
    allowed: set[int] | None,
    shard_rows: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(directory=Path(folder), spaces=[space_of(metric, dim=3)], shard_rows=shard_rows)
        truth = written(world, history)
        world.follow()
        at = min(at, world.log.end - 1)
        members = None if allowed is None else {0: Bitmap(allowed)}
        if at < world.vectors.floors()[0]:
            with pytest.raises(CapabilityError, match="as of positions ≥"):
                hits(world, query, k, at={0: at}, allowed=members)
        else:
            assert hits(world, query, k, at={0: at}, allowed=members) == truth.best(query, k, at, allowed)
        assert world.vectors.verify(0) == world.vectors.rows(0)


class Crowd(World):
    """1,500 clustered vectors in shards of 512 and a tail; every third atom is revised once, some are retired."""

    points: NDArray[np.float32]

    def fill(self) -> None:
        random = np.random.default_rng(3)
        centres = random.normal(size=(40, 16))
        self.points = (centres[random.integers(0, 40, 1_500)] + random.normal(scale=0.3, size=(1_500, 16))).astype("f4")
        names = [f"p{number}" for number in range(1_500)]
        for start in range(0, 1_500, 300):
            self.log.batch(
                "test",
                [
                    create(name, value=None, vectors=supplied(self.space, self.points[start + index]))
                    for index, name in enumerate(names[start : start + 300])
                ],
            )
        self.log.batch("test", [revise(name, vectors=supplied(self.space, [0.1] * 16)) for name in names[::12]])
        self.log.batch("test", [retire(name) for name in names[1::12]])
        self.follow()

    def best(self, query: NDArray[np.float32], k: int, numbers: Sequence[int]) -> list[bytes]:
        """Of the atoms with these numbers, before anything was revised."""
        rows = np.array([stored_row(self.space, self.points[number]) for number in numbers])
        row = stored_row(self.space, query)
        assert row is not None
        found = scores(self.space.metric, rows, row)
        order = sorted(range(len(numbers)), key=lambda index: (-found[index], atom_id(f"p{numbers[index]}")))
        return [atom_id(f"p{numbers[index]}") for index in order[:k]]


@pytest.fixture(scope="module", params=["cosine", "l2"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    world = Crowd(
        directory=tmp_path_factory.mktemp("crowd"), spaces=[space_of(request.param, dim=16)], settings=Settings()
    )
    world.fill()
    assert len(world.shard_files(".hnsw")) == 3
    return world


BEFORE = {0: 5}  # as of the last batch of creates


def test_graphs_find_what_brute_force_finds(crowd: Crowd) -> None:
    everyone = range(1_500)
    shares: list[float] = []
    for query in crowd.points[::50]:
        result = crowd.vectors.search(crowd.space.id, query, 10, BEFORE)
        assert result.approximate
        wanted = set(crowd.best(query, 10, everyone))
        shares.append(len(wanted & {hit.atom for hit in result.hits}) / 10)
    assert np.mean(shares) >= 0.99


@pytest.mark.parametrize("size", [3, 120, 700])
def test_an_allowed_set_of_any_size_gets_its_own_best(crowd: Crowd, size: int) -> None:
    """Small sets are searched exactly; of large ones too few neighbours may be allowed at first."""
    numbers = sorted(np.random.default_rng(size).choice(1_500, size, replace=False).tolist())
    allowed = {0: Bitmap(numbers)}
    for query in crowd.points[::150]:
        result = crowd.vectors.search(crowd.space.id, query, 10, BEFORE, allowed)
        wanted = crowd.best(query, 10, numbers)
        found = [hit.atom for hit in result.hits]
        assert len(found) == min(10, size)
        if not result.approximate:
            assert found == wanted
        else:
            assert len(set(wanted) & set(found)) >= 9
    assert crowd.vectors.search(crowd.space.id, crowd.points[0], 10, BEFORE, {0: Bitmap()}).hits == ()
    assert crowd.vectors.search(crowd.space.id, crowd.points[0], 10, BEFORE, {}).hits == ()


def test_an_allowed_set_far_from_the_query_is_not_starved(crowd: Crowd) -> None:
    """The nearest rows of a graph are all excluded: it asks for more, then goes over to the rows."""
    query = crowd.points[0]
    order = crowd.best(query, 1_500, range(1_500))
    far = [number for number in range(1_500) if atom_id(f"p{number}") in set(order[600:])]
    result = crowd.vectors.search(crowd.space.id, query, 10, BEFORE, {0: Bitmap(far)})
    assert len(result.hits) == 10
    assert len({hit.atom for hit in result.hits} & set(crowd.best(query, 10, far))) >= 9


class OrderedGraph(Graph):
    """Knows the right order; gives up above `reach`."""

    def __init__(self, order: NDArray[np.uint32], reach: int) -> None:
        super().__init__(None, len(order))
        self.asked: list[int] = []
        self._order, self._reach = order, reach

    def query(self, query: NDArray[np.float32], count: int) -> NDArray[np.uint32] | None:
        self.asked.append(count)
        return self._order[:count] if count <= self._reach else None


@pytest.mark.parametrize("reach", [10_000, 100], ids=["it reaches far enough", "it is not connected"])
def test_a_graph_is_asked_for_more_until_enough_rows_are_eligible(reach: int) -> None:
    rows = np.arange(1_000, dtype=np.float32).reshape(-1, 1)
    ordinals = np.arange(5_000, 6_000, dtype=np.uint32)
    graph = OrderedGraph(ordinals[::-1], reach)
    source = Source(ordinals=ordinals, rows=rows, norms=norms_of(rows), graph=graph)
    eligible = np.zeros(6_000, dtype=np.bool_)
    eligible[5_000:5_850] = True  # the 150 best are not
    found = candidates("ip", [source], eligible, np.ones(1, dtype=np.float32), 10, exact=False)
    assert graph.asked == ([31, 62, 124, 248] if reach > 100 else [31, 62, 124])[: len(graph.asked)]
    assert set(range(5_840, 5_850)) <= set(found.ordinals.tolist())
    assert not (found.ordinals >= 5_850).any()


def test_a_graph_that_would_be_asked_for_too_much_is_not_asked() -> None:
    rows = np.arange(1_000, dtype=np.float32).reshape(-1, 1)
    ordinals = np.arange(1_000, dtype=np.uint32)
    graph = OrderedGraph(ordinals[::-1], 10_000)
    eligible = ordinals % 10 == 0
    source = Source(ordinals=ordinals, rows=rows, norms=norms_of(rows), graph=graph)
    found = candidates("ip", [source], eligible, np.ones(1, dtype=np.float32), 3, exact=False)
    assert (graph.asked, found.approximate) == ([], False)
    assert {990, 980, 970} <= set(found.ordinals.tolist())


def test_dead_rows_are_neither_found_nor_in_the_way(crowd: Crowd) -> None:
    now = crowd.at
    gone = {atom_id(f"p{number}") for number in range(1, 1_500, 12)}
    for query in crowd.points[1:400:12]:
        found = crowd.vectors.search(crowd.space.id, query, 10, now).hits
        assert len(found) == 10
        assert not {hit.atom for hit in found} & gone
    before = crowd.vectors.search(crowd.space.id, crowd.points[1], 1, BEFORE).hits
    assert [hit.atom for hit in before] == [atom_id("p1")]


def test_k_above_the_live_count_gives_every_live_row_once(crowd: Crowd) -> None:
    result = crowd.vectors.search(crowd.space.id, crowd.points[0], 100_000, crowd.at)
    assert len(result.hits) == len({hit.atom for hit in result.hits}) == 1_375
    assert not result.approximate
    assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)


def test_equal_scores_are_ordered_by_atom_id(crowd: Crowd) -> None:
    found = crowd.vectors.search(crowd.space.id, [0.1] * 16, 125, crowd.at).hits
    assert len({hit.score for hit in found}) == 1
    assert [hit.atom for hit in found] == sorted(atom_id(f"p{number}") for number in range(0, 1_500, 12))


def test_the_same_search_gives_the_same_answer(crowd: Crowd) -> None:
    first = [crowd.vectors.search(crowd.space.id, query, 20, crowd.at) for query in crowd.points[:20]]
    other = Crowd(directory=crowd.directory, kv=crowd.kv, spaces=crowd.spaces, log=crowd.log)
    assert [other.vectors.search(crowd.space.id, query, 20, crowd.at) for query in crowd.points[:20]] == first


def test_a_small_store_is_searched_exactly(crowd: Crowd) -> None:
    exact = Crowd(directory=crowd.directory, kv=crowd.kv, spaces=crowd.spaces, log=crowd.log, exact_rows_max=8_192)
    result = exact.vectors.search(crowd.space.id, crowd.points[9], 10, BEFORE)
    assert not result.approximate
    assert [hit.atom for hit in result.hits] == crowd.best(crowd.points[9], 10, range(1_500))


def test_a_query_without_direction_finds_nothing_under_cosine(crowd: Crowd) -> None:
    found = crowd.vectors.search(crowd.space.id, [0.0] * 16, 3, crowd.at)
    assert len(found.hits) == (0 if crowd.space.metric == "cosine" else 3)


@pytest.mark.parametrize("k", [0, -1])
def test_no_rows_cannot_be_asked_for(crowd: Crowd, k: int) -> None:
    with pytest.raises(InvalidError, match="k: "):
        crowd.vectors.search(crowd.space.id, [0.0] * 16, k, crowd.at)


def test_scores_are_float32_and_rounded_once(crowd: Crowd) -> None:
    for hit in crowd.vectors.search(crowd.space.id, crowd.points[3], 5, crowd.at).hits:
        assert hit.score == float(np.float32(hit.score))
        assert math.isfinite(hit.score)
