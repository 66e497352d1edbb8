"""One atom as it is now: the read that is made most, without what pages of many rows need.

Row, receipt and bytes are those that the general way gives for it; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from atomlog.kernel.content import Opened, Sealed
from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import dumps
from atomlog.kernel.model import Positions
from atomlog.projections import ids
from atomlog.projections.read.page import Row, body_bytes
from atomlog.projections.read.plans import IDS
from atomlog.projections.read.receipts import ReceiptRow
from atomlog.projections.read.refs import raw_id
from atomlog.projections.read.render import clear_of, render_row, status_of
from atomlog.projections.read.selectors import ByIds, Selector
from atomlog.projections.read.sources import not_found
from atomlog.schemas.revision import Clear

POINT_PLAN: Final = (IDS,)
_NO_REASON: Final[Mapping[str, object]] = {}


@dataclass(slots=True, kw_only=True)
class Point:
    """The head of an atom, and the revision that each of its slots means."""

    row: ids.Row
    clear: Clear
    sealed_at: int
    slots: tuple[bytes | None, ...]


def is_point(selector: Selector) -> TypeGuard[ByIds]:
    """Whether it asks for the head of one atom."""
    if not isinstance(selector, ByIds) or len(selector.ids) != 1 or selector.revision is not None:
        return False
    return isinstance(selector.ids[0], bytes)


def find_point(atom: bytes, index: ids.Ids, at: Positions) -> Point:
    """NOT_FOUND when the atom is not there. Does not wait."""
    row = index.head(atom, at)
    if row is None:
        raise not_found(atom, "selector.ids[0]")
    clear, sealed_at = clear_of(row.data)
    slots: tuple[bytes | None, ...] = ()
    if clear.slots:
        targets = list(dict.fromkeys([slot.target for slot in clear.slots if slot.at is None]))
        heads = dict(zip(targets, index.head_ids(targets, at), strict=True))
        slots = tuple([slot.at or heads[slot.target] for slot in clear.slots])
    return Point(row=row, clear=clear, sealed_at=sealed_at, slots=slots)


def show_point(point: Point, opened: Opened | Sealed) -> tuple[Row, ReceiptRow, bytes]:
    """The row, what the receipt says of it, and the body of the page."""
    content = opened if isinstance(opened, Opened) else None
    receipt_row = ReceiptRow(
        handle="a1",
        atom=point.row.atom,
        revision=point.row.revision,
        slots=point.slots,
        score_bits=None,
        reason=_NO_REASON,
        status=status_of(point.clear, is_head=True),
        sealed=content is None,
    )
    row, body = render_row(receipt_row, point.clear, content)
    return row, receipt_row, body_bytes((body,))


def point_search(selector: ByIds) -> bytes:
    """What was asked, as a receipt keeps it."""
    asked = {"type": "ids", "ids": [format_id(raw_id(selector.ids[0]))]}
    return dumps({"asked": asked, "state": {}, "ended": True})
