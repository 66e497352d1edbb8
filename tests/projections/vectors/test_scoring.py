"""Scores: what they are, and that the quick look never loses a row that belongs to the best."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomlog.kernel.errors import InvalidError
from atomlog.projections.vectors.scoring import nearest, norms_of, query_row, scores, stored_row, stored_rows
from tests.projections.vectors.worlds import space_of

METRICS = ("cosine", "l2", "ip")


def row(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, dtype=np.float32)


def test_higher_is_nearer_in_every_metric() -> None:
    rows = np.array([[3, 4], [0, 1]], dtype=np.float32)
    assert scores("ip", rows, row(1, 1)).tolist() == [7, 1]
    assert scores("l2", rows, row(0, 0)).tolist() == [-25, -1]
    unit = np.array([stored_row(space_of(dim=2), numbers) for numbers in rows])
    assert scores("cosine", unit, row(1, 0)).tolist() == [pytest.approx(0.6), 0]


@pytest.mark.parametrize("metric", METRICS)
def test_a_score_depends_on_nothing_but_the_two_vectors(metric: str) -> None:
    """Bit for bit: not on the other rows, their number or where the row lies in memory."""
    random = np.random.default_rng(5)
    rows = random.normal(size=(5_000, 37)).astype(np.float32)
    query = random.normal(size=37).astype(np.float32)
    every = scores(metric, rows, query)
    odd = np.empty((1, 38), dtype=np.float32)[:, 1:]
    for index in (0, 1, 4_095, 4_096, 4_999):
        odd[0] = rows[index]
        assert scores(metric, rows[index : index + 1], query)[0] == every[index]
        assert scores(metric, odd, query)[0] == every[index]
    assert (scores(metric, rows[1::3], query) == every[1::3]).all()


@settings(max_examples=60)
@given(
    st.sampled_from(METRICS),
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.integers(1, 20),
    st.sampled_from([1.0, 1e-30, 1e19, 1.5e38]),
    st.booleans(),
)
def test_the_quick_look_keeps_every_row_that_can_be_among_the_best(
    metric: str, seed: int, count: int, k: int, size: float, some: bool
) -> None:
    random = np.random.default_rng(seed)
    pool = random.integers(-2, 3, size=(6, 5)) * size  # few different ones, so that many are equally near
    space = space_of(metric, dim=5)
    stored = [kept for index in random.integers(0, 6, count) if (kept := stored_row(space, pool[index])) is not None]
    query = stored_row(space, random.integers(-2, 3, size=5) * size)
    if query is None or not stored:
        return
    rows = np.array(stored)
    norms = None if metric == "cosine" else norms_of(rows)
    among = np.flatnonzero(random.random(len(rows)) < 0.6) if some else np.arange(len(rows))
    every = scores(metric, rows[among], query)
    least = np.sort(every)[::-1][min(k, every.size) - 1] if every.size else 0
    chosen = nearest(metric, rows, norms, query, k, among=among if some else None)
    assert set(np.flatnonzero(every >= least)) <= set(chosen.tolist())


def test_many_rows_are_cut_to_few_candidates() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(10_000, 64)).astype(np.float32)
    for metric in ("ip", "l2"):
        assert 10 <= nearest(metric, rows, norms_of(rows), rows[7], 10).size < 30


def test_a_row_of_zeros_has_no_direction_and_is_a_point() -> None:
    assert stored_row(space_of("cosine"), [0, 0, 0, 0]) is None
    assert stored_row(space_of("l2"), [0, 0, 0, 0]) is not None


def test_a_tiny_row_still_has_a_direction() -> None:
    kept = stored_row(space_of("cosine", dim=2), [3e-45, 0])
    assert kept is not None
    assert kept.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ([1, 2, 3], "has 4 numbers"),
        ([[1, 2, 3, 4]], "shape"),
        ([1, 2, float("nan"), 4], "number 2 of the vector is not finite"),
        ([1, 1e39, 0, 0], "number 1 of the vector is not finite"),
        (["a", "b", "c", "d"], "vector"),
    ],
    ids=["too short", "two axes", "NaN", "no float32", "words"],
)
def test_a_query_that_is_no_vector_of_the_space_is_refused(query: object, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        query_row(space_of(), query)  # type: ignore[arg-type]
    assert caught.value.details[0]["path"] == "vector"


@pytest.mark.parametrize("dim", [3, 8, 129, 512])
def test_a_row_is_stored_as_the_same_bits_whatever_rows_are_beside_it(dim: int) -> None:
    random = np.random.default_rng(dim)
    rows = random.normal(size=(65, dim)).astype(np.float32)
    rows[5] = 0
    space = space_of(dim=dim)
    together = stored_rows(space, rows)
    assert together[5] is None
    for row, kept in zip(rows, together, strict=True):
        alone = stored_row(space, row)
        assert (alone is None) == (kept is None)
        assert alone is None or kept is None or alone.tobytes() == kept.tobytes()
    rows[7, 1] = np.nan
    with pytest.raises(ValueError, match="not all are finite"):
        stored_rows(space, rows)
