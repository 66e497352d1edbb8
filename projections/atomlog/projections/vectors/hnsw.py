"""HNSW graphs, the one place that knows hnswlib.

Its files carry no checksum and a flipped bit in one can crash the loader, so that `load` is called only after the
digest of the file was verified (`shards`). Graphs are built by one thread in the order given and with a fixed seed:
the same rows give the same file on the same kind of machine.
"""

from dataclasses import dataclass
from typing import Any, Final

import hnswlib
import numpy as np
from numpy.typing import NDArray

from atomlog.projections.vectors.scoring import Matrix, Vector

_SPACES: Final = {"cosine": "ip", "ip": "ip", "l2": "l2"}  # rows have length 1 under cosine
_SEED: Final = 100
_SEARCH_WIDTH_MIN: Final = 128
_CHUNK_ROWS: Final = 256  # added between two looks at whether somebody still wants the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """`links`: neighbours kept of each node (M). `build_width`: candidates looked at for them (ef_construction)."""

    links: int = 16
    build_width: int = 200


class GivenUp(Exception):
    """The task that wanted a graph was cancelled."""


@dataclass(slots=True)
class Effort:
    """Whether a graph that a thread builds is still wanted. Set from another thread."""

    given_up: bool = False


class Graph:
    """An immutable graph over labelled rows. Not for two threads at once."""

    def __init__(self, index: Any, rows: int) -> None:
        self._index = index
        self.rows = rows

    @classmethod
    def build(
        cls, metric: str, rows: Matrix, labels: NDArray[np.uint32], parameters: Parameters, effort: Effort | None = None
    ) -> "Graph":
        """Blocks for about 0.2 ms a row; releases the interpreter lock. GivenUp soon after `effort` was given up."""
        index = hnswlib.Index(space=_SPACES[metric], dim=rows.shape[1])
        index.init_index(len(rows), M=parameters.links, ef_construction=parameters.build_width, random_seed=_SEED)
        for start in range(0, len(rows), _CHUNK_ROWS):
            if effort is not None and effort.given_up:
                raise GivenUp
            chunk = slice(start, start + _CHUNK_ROWS)
            index.add_items(rows[chunk], labels[chunk].astype(np.uint64), num_threads=1)
        return cls(index, len(rows))

    @classmethod
    def load(cls, metric: str, dim: int, rows: int, path: str) -> "Graph":
        """Read a file whose digest was verified."""
        index = hnswlib.Index(space=_SPACES[metric], dim=dim)
        index.load_index(path, max_elements=rows)
        return cls(index, rows)

    def save(self, path: str) -> None:
        self._index.save_index(path)

    def query(self, query: Vector, count: int) -> NDArray[np.uint32] | None:
        """Labels of about the `count` nearest rows, nearest first; None when the graph cannot reach as many.

        1 ≤ count ≤ rows. hnswlib raises when a graph is not connected, e.g. among many equal rows.
        """
        self._index.set_ef(max(_SEARCH_WIDTH_MIN, 2 * count))
        try:
            labels, _ = self._index.knn_query(query[np.newaxis, :], k=count, num_threads=1)
        except RuntimeError:
            return None
        found: NDArray[np.uint32] = labels[0].astype(np.uint32)
        return found
