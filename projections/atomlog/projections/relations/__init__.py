"""The relation index."""

from atomlog.projections.relations.index import Member, Relation, Relations

__all__ = ["Member", "Relation", "Relations"]
