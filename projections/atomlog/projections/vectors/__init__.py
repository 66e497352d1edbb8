"""Vectors: an exact tail, immutable HNSW shards, embedding behind the log. numpy stays in here and in `encoders`."""

from atomlog.projections.vectors.layout import Ending, Trouble, Work
from atomlog.projections.vectors.projection import TroubledRow, Vectors
from atomlog.projections.vectors.search import EXACT_ROWS_MAX, Hit, SearchResult

__all__ = ["EXACT_ROWS_MAX", "Ending", "Hit", "SearchResult", "Trouble", "TroubledRow", "Vectors", "Work"]
