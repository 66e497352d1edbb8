"""The postings: sets of atoms as bitmaps, and their algebra."""

from atomlog.projections.postings.algebra import ACTIVE, Has, InGroup, Refers, Selection, Term
from atomlog.projections.postings.index import Postings

__all__ = ["ACTIVE", "Has", "InGroup", "Postings", "Refers", "Selection", "Term"]
