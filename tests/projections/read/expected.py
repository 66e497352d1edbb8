"""What pages must hold, from brute force: rows as (atom, what the reason names)."""

from collections.abc import Mapping, Sequence

from atomlog.kernel.ids import format_id
from atomlog.projections.read.page import Page
from tests.projections.brute import Brute

Positions = Mapping[int, int]


def member_rows(
    brute: Brute,
    group: bytes,
    at: Positions,
    *,
    and_: Sequence[bytes] = (),
    or_: Sequence[bytes] = (),
    not_: Sequence[bytes] = (),
    include_retired: bool = False,
) -> list[tuple[bytes, bytes, list[str]]]:
    """(member, order key, memberships): each member once an order key."""
    rows: dict[tuple[bytes, bytes], set[bytes]] = {}
    for one in {group, *or_}:
        for order_key, member, membership in brute.members(one, at, include_retired=include_retired):
            rows.setdefault((order_key, member), set()).add(membership)
    inside = [{row[1] for row in brute.members(one, at, include_retired=True)} for one in and_]
    outside = [{row[1] for row in brute.members(one, at, include_retired=True)} for one in not_]
    return [
        (member, order_key, sorted(map(format_id, memberships)))
        for (order_key, member), memberships in sorted(rows.items())
        if all(member in found for found in inside)
        and not any(member in found for found in outside)
        and brute.head(member, at)
    ]


def shown_members(pages: Sequence[Page]) -> list[tuple[bytes, bytes, list[str]]]:
    return [
        (row.atom, row.match_reason["order_key"].encode(), row.match_reason["memberships"])
        for page in pages
        for row in page.atoms
    ]


def relation_rows(brute: Brute, target: bytes, role: str | None, at: Positions) -> list[tuple[bytes, str]]:
    """(referring atom, role): each atom once a role, by the birth of its first slot."""
    found = brute.referring(target, role, at)
    return list(dict.fromkeys((head.clear.atom_id, head.clear.slots[index].role) for head, index in found))


def shown_relations(pages: Sequence[Page]) -> list[tuple[bytes, str]]:
    return [(row.atom, row.match_reason["role"]) for page in pages for row in page.atoms]


def group_rows(brute: Brute, member: bytes, at: Positions) -> set[bytes]:
    """Every group that is there and has an active membership of the member."""
    return {
        group.target
        for head in brute.heads(at)
        for group, of, _ in head.memberships()
        if of.target == member and brute.head(group.target, at)
    }
