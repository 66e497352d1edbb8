"""The nearest rows among several sources: exactly by a matrix product, or by a graph and an exact second look."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atomlog.projections.vectors.columns import Mask
from atomlog.projections.vectors.hnsw import Graph
from atomlog.projections.vectors.scoring import Doubles, Matrix, Vector, nearest, scores

EXACT_ROWS_MAX: Final = 8_192  # one matrix product over as many rows costs less than walking graphs
_FETCH_SHARE: Final = 4  # a graph is asked for at most a quarter of the rows that an exact search would look at
_FETCH_MORE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows of one range: `ordinals` (n,), ascending when there is a graph; `norms` None = all of length 1."""

    ordinals: NDArray[np.uint32]
    rows: Matrix
    norms: Doubles | None
    graph: Graph | None


class Found(NamedTuple):
    """Candidates: their ordinals and exact scores; `approximate` when nearer ones may have been missed."""

    ordinals: NDArray[np.uint32]
    scores: NDArray[np.float32]
    approximate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """`score`: a float32; higher is nearer (`scoring`)."""

    atom: bytes
    revision: bytes
    partition: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Best first, equal scores by atom id.

    `approximate`: nearer rows may have been missed. `unembedded`: rows of the same scope that should have a vector
    and have none, yet or finally.
    """

    hits: tuple[Hit, ...]
    approximate: bool
    unembedded: int


def candidates(metric: str, sources: Sequence[Source], eligible: Mask, query: Vector, k: int, *, exact: bool) -> Found:
    """What can be among the k best of the eligible ordinals, every row of equal score included as far as seen."""
    parts = [_of_source(metric, source, eligible[source.ordinals], query, k, exact=exact) for source in sources]
    if not parts:
        return Found(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32), False)
    return Found(
        np.concatenate([part.ordinals for part in parts]),
        np.concatenate([part.scores for part in parts]),
        any(part.approximate for part in parts),
    )


def _of_source(metric: str, source: Source, eligible: Mask, query: Vector, k: int, *, exact: bool) -> Found:
    if not exact and source.graph is not None:
        picked = _by_graph(source.graph, source.ordinals, eligible, query, k)
        if picked is not None:
            return Found(source.ordinals[picked], scores(metric, source.rows[picked], query), True)
    picked = np.flatnonzero(eligible)
    if 2 * picked.size >= eligible.size:  # rather some products too many than a copy of the rows
        keep = picked[nearest(metric, source.rows, source.norms, query, k, among=picked)]
    else:
        norms = None if source.norms is None else source.norms[picked]
        keep = picked[nearest(metric, source.rows[picked], norms, query, k)]
    return Found(source.ordinals[keep], scores(metric, source.rows[keep], query), False)


def _by_graph(
    graph: Graph, ordinals: NDArray[np.uint32], eligible: Mask, query: Vector, k: int
) -> NDArray[np.int64] | None:
    """At least min(k, eligible) rows, asking for more as long as too many are not eligible; None = not worth it."""
    many = int(eligible.sum())
    want = min(k, many)
    if want == 0:
        return None
    fetch = math.ceil(1.2 * want * graph.rows / many) + _FETCH_MORE
    while fetch * _FETCH_SHARE <= many:
        labels = graph.query(query, fetch)
        if labels is None:
            return None
        rows = np.searchsorted(ordinals, labels)
        rows = rows[eligible[rows]]
        if rows.size >= want:
            return rows
        fetch *= 2
    return None
