"""From a source's finds to rows of a page: resolved through ids, opened, rendered, cut at the byte bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from atomlog.kernel.content import ContentOpener, Opened
from atomlog.kernel.model import Positions
from atomlog.projections import ids
from atomlog.projections.read.page import Row
from atomlog.projections.read.receipts import ReceiptRow
from atomlog.projections.read.render import clear_of, render_row, status_of
from atomlog.projections.read.sources import Found, Source, State
from atomlog.schemas.revision import Clear


@dataclass(slots=True, kw_only=True)
class Resolved:
    """A find with the revision that it means at the read's positions."""

    found: Found
    row: ids.Row
    clear: Clear
    sealed_at: int
    status: str


@dataclass(slots=True, kw_only=True)
class Gathered:
    """At most `limit` rows. `next_state`: where the source goes on after them, None = it was worked through.

    `missing`: atoms that were asked for, or that a relation names, and that are not there at these positions.
    `candidates`: how many finds were looked at. `superseded`: those that are not the version at these positions.
    """

    rows: tuple[Resolved, ...]
    slots: Mapping[bytes, bytes]
    next_state: State | None
    missing: tuple[bytes, ...]
    candidates: int
    superseded: int


@dataclass(slots=True)
class Tally:
    missing: dict[bytes, None] = field(default_factory=dict)
    candidates: int = 0
    superseded: int = 0


@dataclass(slots=True, kw_only=True)
class Rendered:
    """Rows as shown. `bodies` are their canonical bytes; fewer rows than gathered when the page is full."""

    rows: tuple[Row, ...]
    receipt_rows: tuple[ReceiptRow, ...]
    bodies: tuple[bytes, ...]


def gather(source: Source, index: ids.Ids, at: Positions, limit: int) -> Gathered:
    """Does not wait: nothing moves between the first find and the last resolved slot."""
    rows: list[Resolved] = []
    tally = Tally()
    finds = iter(source)
    while len(rows) <= limit and (chunk := list(islice(finds, limit + 1 - len(rows)))):
        tally.candidates += len(chunk)
        rows += resolve(chunk, index, at, tally)
    shown = tuple(rows[:limit])
    next_state: State | None = None
    if len(rows) > limit:
        next_state = source.resume(shown[-1].found)
    elif not source.finished:
        next_state = source.state
    if asked := source.asked():
        heads = zip(asked, index.head_ids(asked, at), strict=True)
        tally.missing.update((atom, None) for atom, head in heads if head is None)
    return Gathered(
        rows=shown,
        slots=resolve_slots(shown, index, at),
        next_state=next_state,
        missing=tuple(tally.missing),
        candidates=tally.candidates,
        superseded=tally.superseded,
    )


def resolve(chunk: Sequence[Found], index: ids.Ids, at: Positions, tally: Tally) -> list[Resolved]:
    """The revision that each find means: the one it names if it was there by then, else the head."""
    heads, head_ids = _heads(chunk, index, at)
    resolved: list[Resolved] = []
    for found in chunk:
        row = found.row or (heads[found.atom] if found.revision is None else index.revision(found.revision))
        if row is None or row.atom != found.atom or row.position > at.get(row.partition, -1):
            tally.missing[found.atom] = None
            continue
        clear, sealed_at = clear_of(row.data)
        if (clear.retired and not found.keep_retired) or (found.accept and not found.accept(clear)):
            continue
        is_head = head_ids[found.atom] == row.revision
        if found.heads_only and not is_head:
            tally.superseded += 1
            continue
        status = status_of(clear, is_head=is_head)
        resolved.append(Resolved(found=found, row=row, clear=clear, sealed_at=sealed_at, status=status))
    return resolved


def _heads(
    chunk: Sequence[Found], index: ids.Ids, at: Positions
) -> tuple[Mapping[bytes, ids.Row | None], Mapping[bytes, bytes | None]]:
    """Atom → head, of the finds that mean it; atom → the head's id, of all."""
    meant = list(dict.fromkeys([found.atom for found in chunk if found.row is None and found.revision is None]))
    heads = dict(zip(meant, index.heads(meant, at), strict=True))
    head_ids = {atom: None if head is None else head.revision for atom, head in heads.items()}
    others = list(dict.fromkeys([found.atom for found in chunk if found.atom not in heads]))
    if others:
        head_ids.update(zip(others, index.head_ids(others, at), strict=True))
    return heads, head_ids


def resolve_slots(rows: Sequence[Resolved], index: ids.Ids, at: Positions) -> Mapping[bytes, bytes]:
    """Target → its revision at the positions, for the logical slots of all rows."""
    targets = list(dict.fromkeys([slot.target for row in rows for slot in row.clear.slots if slot.at is None]))
    heads = index.head_ids(targets, at) if targets else []
    return {target: head for target, head in zip(targets, heads, strict=True) if head is not None}


async def render(gathered: Gathered, opener: ContentOpener, bytes_max: int) -> Rendered:
    """As many rows as fit, at least one. Raises what opening raises: KEY_UNAVAILABLE, PURGED, CORRUPT."""
    rows: list[Row] = []
    receipt_rows: list[ReceiptRow] = []
    bodies: list[bytes] = []
    size = 0
    for resolved in gathered.rows:
        opened = await opener.open_decoded(resolved.row.data, resolved.clear, resolved.sealed_at)
        content = opened if isinstance(opened, Opened) else None
        receipt_row = _receipt_row(f"a{len(rows) + 1}", resolved, gathered.slots, sealed=content is None)
        row, body = render_row(receipt_row, resolved.clear, content)
        size += len(body)
        if rows and size > bytes_max:
            break
        rows.append(row)
        receipt_rows.append(receipt_row)
        bodies.append(body)
    return Rendered(rows=tuple(rows), receipt_rows=tuple(receipt_rows), bodies=tuple(bodies))


def _receipt_row(handle: str, resolved: Resolved, slots: Mapping[bytes, bytes], *, sealed: bool) -> ReceiptRow:
    return ReceiptRow(
        handle=handle,
        atom=resolved.row.atom,
        revision=resolved.row.revision,
        slots=tuple(slot.at or slots.get(slot.target) for slot in resolved.clear.slots),
        score_bits=resolved.found.score,
        reason=resolved.found.reason,
        status=resolved.status,
        sealed=sealed,
    )
