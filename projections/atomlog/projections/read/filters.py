"""A scope as the set of atoms that a search may return: bitmaps of ordinals, partition by partition.

Made before the search, so that a narrow scope is searched and not starved. All postings are sets of the partition
that an atom lives in, but for groups: any partition may say that an atom is a member.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from atomlog.kernel.model import Positions
from atomlog.kernel.times import DAY_US
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.ids import Ids
from atomlog.projections.postings import InGroup, Postings, Selection
from atomlog.projections.read.refs import raw_id
from atomlog.projections.read.scope import Scope
from atomlog.projections.slices import effective_time_us

LOOKED_UP: Final = 1_024  # atoms at the edges of a time range whose times are looked up at once


def allowed_atoms(scope: Scope, postings: Postings, ids: Ids, at: Positions) -> Mapping[int, Bitmap]:
    """Partition → the active atoms at home there that the scope allows."""
    groups_in = [_members(postings, raw_id(group), at) for group in scope.group_and]
    groups_out = [_members(postings, raw_id(group), at) for group in scope.group_not]
    allowed: dict[int, Bitmap] = {}
    for partition, position in at.items():
        found = _faceted(scope, postings, partition, position)
        for group in groups_in:
            found = found & group[partition]
        for group in groups_out:
            found = found - group[partition]
        allowed[partition] = _within_time(scope, found, postings, ids, partition, at)
    return allowed


def _faceted(scope: Scope, postings: Postings, partition: int, position: int) -> Bitmap:
    def having(kind: str, names: Sequence[str]) -> Bitmap:
        return Bitmap.union([postings.facet(kind, name, partition, position) for name in names])

    found = postings.facet("state", "active", partition, position)
    for kind, names in (("space", scope.spaces), ("schema", scope.schemas), ("policy", scope.policies)):
        if names:
            found = found & having(kind, names)
    for role, target in scope.slots:
        found = found & postings.referring(role, raw_id(target), partition, position)
    return found


def _members(postings: Postings, group: bytes, at: Positions) -> Mapping[int, Bitmap]:
    """The members of a group as ordinals of the partitions they live in."""
    if len(at) == 1:
        return {partition: postings.members(group, partition, position) for partition, position in at.items()}
    atoms = Selection(postings=postings, at=at, all_of=(InGroup(group),)).atoms()
    return postings.at_home(atoms, at)


def _within_time(scope: Scope, found: Bitmap, postings: Postings, ids: Ids, partition: int, at: Positions) -> Bitmap:
    """Whole days by their postings; at the edges of the range each atom's time is looked up."""
    start_us, stop_us = scope.time_from_us, scope.time_to_us
    if start_us is None and stop_us is None:
        return found
    first = None if start_us is None else -(-start_us // DAY_US)  # the first whole day
    last = None if stop_us is None else stop_us // DAY_US  # the day after the last whole one
    position = at[partition]
    if first is not None and last is not None and first > last:
        days, edges = Bitmap(), [last]  # both ends lie in one day
    else:
        days = postings.days(first, last, partition, position)
        edges = [day for day, cut in _edges(start_us, stop_us) if cut]
    kept = found & days
    for day in edges:
        candidates = found & postings.facet("day", day, partition, position)
        kept = kept | _looked_up(candidates, postings, ids, partition, at, scope)
    return kept


def _edges(start_us: int | None, stop_us: int | None) -> list[tuple[int, bool]]:
    """The days that the range begins and ends in, and whether it cuts them."""
    return [(end // DAY_US, end % DAY_US != 0) for end in (start_us, stop_us) if end is not None]


def _looked_up(candidates: Bitmap, postings: Postings, ids: Ids, partition: int, at: Positions, scope: Scope) -> Bitmap:
    kept = Bitmap()
    ordinals = list(candidates)
    for start in range(0, len(ordinals), LOOKED_UP):
        chunk = ordinals[start : start + LOOKED_UP]
        atoms = postings.ordinals.atoms(partition, chunk)
        rows = ids.heads([atom or b"" for atom in atoms], at)
        kept.update(
            ordinal
            for ordinal, row in zip(chunk, rows, strict=True)
            if row is not None and _in_range(effective_time_us(row.data), scope)
        )
    return kept


def _in_range(time_us: int, scope: Scope) -> bool:
    after = scope.time_from_us is None or time_us >= scope.time_from_us
    return after and (scope.time_to_us is None or time_us < scope.time_to_us)
