"""Relations, memberships and receipts, row by row.

A secondary's iterator must not be held while it catches up: rows are taken in bounded runs, each begun anew behind
the last one. They say from which position they hold and until which, so runs of different moments fit together.
"""

import struct
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import islice
from typing import Any, Final

from atomlog.consumers.export.log_rows import Piece, observed
from atomlog.consumers.export.tables import MEMBERSHIPS, RECEIPTS, RELATIONS, Row
from atomlog.kernel import jsontext
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Clock
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.receipts import ReadReceipt, ReceiptRow
from atomlog.projections.relations import Relations
from atomlog.projections.relations.spans import MemberSpan, RelationSpan, member_spans, relation_spans
from atomlog.projections.slices import order_key_of, pinned_at, slot_flags
from atomlog.schemas.revision import INCLUDE, REQUIRED, ZERO16

RUN: Final = 2_000  # rows taken at a stretch
RECEIPTS_RUN: Final = 100  # each may have a thousand rows

_Spans = Callable[[bytes | None], Iterator[Any]]


async def relation_rows(relations: Relations, partition: int, position: int, clock: Clock) -> AsyncGenerator[Piece]:
    """`relations` must have reached the position, and stay open."""

    def spans(after: bytes | None) -> Iterator[RelationSpan]:
        return relation_spans(relations.kv, partition, position, after=after)

    async for piece in _in_runs(RELATIONS.name, spans, lambda span: _relation(partition, span), clock):
        yield piece


async def member_rows(relations: Relations, partition: int, position: int, clock: Clock) -> AsyncGenerator[Piece]:
    """`relations` must have reached the position, and stay open."""

    def spans(after: bytes | None) -> Iterator[MemberSpan]:
        return member_spans(relations.kv, partition, position, after=after)

    async for piece in _in_runs(MEMBERSHIPS.name, spans, lambda span: _member(partition, span), clock):
        yield piece


async def receipt_rows(journal: Journal, at: Positions, clock: Clock) -> AsyncGenerator[Piece]:
    """The receipts kept here whose reads saw nothing beyond `at`, oldest first."""
    done, after = 0, bytes(16)
    while found := await journal.receipts(after, RECEIPTS_RUN):
        rows = [_receipt(receipt) for receipt in found if _is_within(receipt, at)]
        done, after = done + len(rows), found[-1].receipt
        yield Piece(rows={RECEIPTS.name: rows}, done=done, total=None)
        await clock.sleep(0)


async def _in_runs(table: str, spans: _Spans, row_of: Callable[[Any], Row], clock: Clock) -> AsyncGenerator[Piece]:
    done, after = 0, None
    while run := list(islice(spans(after), RUN)):
        done, after = done + len(run), run[-1].key
        yield Piece(rows={table: [row_of(span) for span in run]}, done=done, total=None)
        await clock.sleep(0)


def _relation(partition: int, span: RelationSpan) -> Row:
    row = span.row
    pinned, flags = pinned_at(row.rest), slot_flags(row.rest)
    return (
        partition,
        format_id(row.atom),
        row.slot,
        row.role.decode(),
        format_id(row.target),
        None if pinned is None else format_id(pinned),
        bool(flags & INCLUDE),
        bool(flags & REQUIRED),
        order_key_of(row.rest),
        row.schema.decode(),
        format_id(row.revision),
        row.born,
        span.died,
    )


def _member(partition: int, span: MemberSpan) -> Row:
    row = span.row
    return (
        partition,
        format_id(row.membership),
        format_id(row.group),
        format_id(row.member),
        None if row.at == ZERO16 else format_id(row.at),
        row.order_key,
        format_id(row.revision),
        row.born,
        span.died,
    )


def _is_within(receipt: ReadReceipt, at: Positions) -> bool:
    return all(position <= at.get(partition, -1) for partition, position in receipt.observed().items())


def _receipt(receipt: ReadReceipt) -> Row:
    return (
        format_id(receipt.receipt),
        receipt.recorded_at_us,
        receipt.principal,
        receipt.mode,
        receipt.session,
        None if receipt.continues is None else format_id(receipt.continues),
        observed(sorted(receipt.observed().items())),
        [_shown(row) for row in receipt.rows],
        [
            {"role": found.role, "target": format_id(found.target), "complete": found.complete}
            for found in receipt.ranges
        ],
        list(receipt.encoders),
        receipt.scoring,
        receipt.renderer,
        receipt.tokenizer,
        jsontext.dumps(dict(receipt.budget)).decode(),
        jsontext.dumps([dict(cut) for cut in receipt.truncations]).decode(),
        receipt.body_sha256.hex(),
    )


def _shown(row: ReceiptRow) -> dict[str, Any]:
    return {
        "handle": row.handle,
        "atom": format_id(row.atom),
        "revision": format_id(row.revision),
        "score": None if row.score_bits is None else struct.unpack(">f", row.score_bits)[0],
        "status": row.status,
        "sealed": row.sealed,
    }
