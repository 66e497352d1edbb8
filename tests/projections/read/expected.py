"""What pages must hold, from brute force: rows as (atom, what the reason names)."""

from collections.abc import Mapping, Sequence

from atomlog.kernel.ids import format_id
from atomlog.projections.read.page import Page
from tests.oracle.brute_model import Model

Positions = Mapping[int, int]


def member_rows(
    brute: Model,
    group: bytes,
    at: Positions,
    *,
    and_: Sequence[bytes] = (),
    or_: Sequence[bytes] = (),
    not_: Sequence[bytes] = (),
    include_retired: bool = False,
) -> list[tuple[bytes, bytes, list[str]]]:
    """(member, order key, memberships): each member once an order key."""
    found = brute.member_rows(group, at, and_=and_, or_=or_, not_=not_, include_retired=include_retired)
    return [(member, order_key, list(map(format_id, memberships))) for member, order_key, memberships in found]


def shown_members(pages: Sequence[Page]) -> list[tuple[bytes, bytes, list[str]]]:
    return [
        (row.atom, row.match_reason["order_key"].encode(), row.match_reason["memberships"])
        for page in pages
        for row in page.atoms
    ]


def shown_relations(pages: Sequence[Page]) -> list[tuple[bytes, str]]:
    return [(row.atom, row.match_reason["role"]) for page in pages for row in page.atoms]
