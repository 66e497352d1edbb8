"""From a receipt's row and a revision's bytes to a row of a page. Pure: replay calls the same functions.

What the receipt says (score, reason, status, resolved slots, sealed or not) is taken from it, everything else
from the revision. So a later replay gives the same bytes whatever has changed since.
"""

from typing import Final

from atomlog.kernel.content import Opened
from atomlog.kernel.errors import fail
from atomlog.kernel.jsontext import canonical, dumps, fragment
from atomlog.projections.read.page import Row, RowSlot
from atomlog.projections.read.receipts import ReceiptRow, score_of
from atomlog.schemas.revision import Clear, Slot, decode_clear
from atomlog.schemas.varint import WireError

ACTIVE: Final = "active"
RETIRED: Final = "retired"
CURRENT: Final = "current"
SUPERSEDED: Final = "superseded"


def clear_of(revision: bytes) -> tuple[Clear, int]:
    """The clear part, and where it ends; CORRUPT when the bytes that an index kept are no revision."""
    try:
        return decode_clear(revision)
    except WireError as error:
        raise fail("CORRUPT", f"ids keeps bytes that are no revision: {error}; rebuild ids") from None


def render_row(row: ReceiptRow, clear: Clear, content: Opened | None) -> tuple[Row, bytes]:
    """A row and its canonical bytes. `content` is None exactly when the receipt's row is sealed."""
    if len(row.slots) != len(clear.slots):
        raise fail("CORRUPT", f"{row.handle} has {len(row.slots)} slots in the receipt, {len(clear.slots)} stored")
    shown = Row(
        handle=row.handle,
        atom=row.atom,
        revision=row.revision,
        schema=clear.schema,
        state=RETIRED if clear.retired else ACTIVE,
        value=None if content is None else content.value,
        slots=tuple(map(_render_slot, clear.slots, row.slots)),
        kind=None if content is None else content.provenance.kind,
        origins=() if content is None else tuple(content.origins),
        policy=clear.policy,
        valid_time=clear.valid_time,
        score=None if row.score_bits is None else score_of(row.score_bits),
        match_reason=row.reason,
        recorded_at_us=clear.recorded_at_us,
        status=row.status,
        sealed=row.sealed,
        inputs=clear.inputs,
    )
    return shown, row_bytes(shown, None if content is None else content.stored)


def row_bytes(row: Row, value: bytes | None = None) -> bytes:
    """`canonical(row.to_dict())`: only value and score need the general way, the rest is in canonical order itself.

    `value` is the canonical JSON of the row's value where that is at hand.
    """
    score = None if row.score is None else fragment(canonical(row.score, "score"))
    written = fragment(canonical(row.value, "value") if value is None else value)
    return dumps(row.canonical_members(score, written))


def order_key_text(order_key: bytes) -> str:
    """An order key as it was given, which is text in UTF-8."""
    return order_key.decode(errors="replace")


def status_of(clear: Clear, *, is_head: bool) -> str:
    if not is_head:
        return SUPERSEDED
    return RETIRED if clear.retired else CURRENT


def _render_slot(slot: Slot, resolved: bytes | None) -> RowSlot:
    return RowSlot(
        role=slot.role,
        target=slot.target,
        mode="include" if slot.include else "refer",
        revision=slot.at,
        resolved=resolved,
        order_key=order_key_text(slot.order_key),
        required=slot.required,
    )
