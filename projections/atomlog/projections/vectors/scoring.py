"""Similarity of vectors: higher is nearer in every metric.

cosine → the cosine, in [−1, 1]; ip → the inner product; l2 → minus the squared Euclidean distance (≤ 0), which keeps
its resolution at every scale. The score of a pair is computed in float64 from the float32 rows, one row at a time,
and rounded to float32: it depends on nothing but the two vectors, neither on an index nor on the other rows.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atomlog.kernel.ids import invalid
from atomlog.kernel.vector_spaces import VectorSpace

Matrix = NDArray[np.float32]  # (n, dim), C order
Vector = NDArray[np.float32]  # (dim,)
Doubles = NDArray[np.float64]

F32_MAX: Final = float(np.finfo(np.float32).max)
_ROUNDING: Final = 2.4e-7  # twice what one float32 operation may be off, relatively
_UNDERFLOW: Final = float(np.finfo(np.float32).tiny)  # what one may lose near zero, absolutely
_CHUNK_ROWS: Final = 4_096


def stored_row(space: VectorSpace, vector: ArrayLike) -> Vector | None:
    """A vector as rows keep it: float32, of length 1 under cosine; None for all zeros under cosine.

    Raises ValueError saying what is wrong: another dimension, a number that is not finite or no float32.
    """
    with np.errstate(over="ignore"):
        row = np.asarray(vector, dtype=np.float64).astype(np.float32)
    if row.shape != (space.dim,):
        raise ValueError(f"a vector of {space.id} has {space.dim} numbers, this one has the shape {row.shape}")
    if not np.isfinite(row).all():
        raise ValueError(f"number {int(np.flatnonzero(~np.isfinite(row))[0])} of the vector is not finite")
    return stored_rows(space, row[np.newaxis])[0]


def stored_rows(space: VectorSpace, rows: Matrix) -> list[Vector | None]:
    """`stored_row` of each row, which is the same bits whatever rows are beside it.

    Raises ValueError for another dimension or a number that is not finite, without saying where.
    """
    if rows.shape[1:] != (space.dim,) or not np.isfinite(rows).all():
        raise ValueError(f"not all are finite vectors of {space.dim} numbers")
    if space.metric != "cosine":
        return list(rows)
    exact = rows.astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=1))
    with np.errstate(invalid="ignore"):
        unit = (exact / norms[:, np.newaxis]).astype(np.float32)
    return [row if norm else None for row, norm in zip(unit, norms, strict=True)]


def query_row(space: VectorSpace, query: ArrayLike) -> Vector | None:
    """The same of a query; INVALID_INPUT naming `vector` instead of ValueError."""
    try:
        return stored_row(space, query)
    except (ValueError, TypeError) as error:
        raise invalid("vector", str(error)) from None


def scores(metric: str, rows: Matrix, query: Vector) -> NDArray[np.float32]:
    """The score of each row, (n,)."""
    found = np.empty(len(rows), dtype=np.float64)
    exact_query = query.astype(np.float64)
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = np.ascontiguousarray(rows[start : start + _CHUNK_ROWS]).astype(np.float64)
        if metric == "l2":
            chunk -= exact_query
            found[start : start + len(chunk)] = -(chunk * chunk).sum(axis=1)
        else:
            chunk *= exact_query
            found[start : start + len(chunk)] = chunk.sum(axis=1)
    return np.clip(found, -F32_MAX, F32_MAX).astype(np.float32)


def norms_of(rows: Matrix) -> Doubles:
    """The Euclidean length of each row, (n,)."""
    found = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[start : start + _CHUNK_ROWS].astype(np.float64)
        found[start : start + len(chunk)] = np.sqrt((chunk * chunk).sum(axis=1))
    return found


def nearest(
    metric: str,
    rows: Matrix,
    norms: Doubles | None,
    query: Vector,
    k: int,
    *,
    among: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Which rows can be among the k of highest score, every one of equal score included; unordered.

    One product in float32 decides; what lies within its possible error of the k-th is kept. `norms` are the
    lengths of the rows, None = all 1. With `among`, only these rows count, and the answer indexes into it.
    """
    count = len(rows) if among is None else len(among)
    if count <= k:
        return np.arange(count)
    length = float(np.linalg.norm(query.astype(np.float64)))
    longest = 1.0 if norms is None else float(norms.max())
    with np.errstate(over="ignore", invalid="ignore"):
        rough = np.vecdot(rows, query).astype(np.float64)  # not `@`: its threads cost 16 ms on busy cores, this 0.1
    if metric == "l2":
        assert norms is not None
        rough = 2 * rough - norms * norms
    if not np.isfinite(rough).all():  # beyond float32: rare enough to be exact at once
        rough = scores(metric, rows, query).astype(np.float64)
    if among is not None:
        rough = rough[among]
    scale = (longest + length) ** 2 if metric == "l2" else longest * length
    margin = (query.size + 8) * (_ROUNDING * scale + _UNDERFLOW)
    kth = np.partition(rough, len(rough) - k)[len(rough) - k]
    return np.flatnonzero(rough >= kth - margin)
