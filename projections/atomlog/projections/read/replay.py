"""A receipt looked at again: shown, rendered to the same bytes, or searched anew and compared."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atomlog.kernel.content import ContentOpener, Opened
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import loads
from atomlog.kernel.ports import Clock, Log
from atomlog.kernel.settings import Settings
from atomlog.projections.ids import Ids
from atomlog.projections.read.elsewhere import not_covered
from atomlog.projections.read.gather import gather
from atomlog.projections.read.indexes import CatchUp, Indexes, IndexSet
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.page import Diagnostics, Page, Row, body_bytes
from atomlog.projections.read.plans import IDS, open_source, plan_again
from atomlog.projections.read.positions import Chooser, Chosen, Settled
from atomlog.projections.read.receipts import ReadReceipt, ReceiptRow
from atomlog.projections.read.render import clear_of, render_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A receipt's rows against the same search done again at the same positions.

    `exact`: nothing approximate took part, so that anything but `equal` means that an index is wrong. `missing` and
    `added` are revisions. `overlap` = rows in both ÷ rows in either.
    """

    receipt: bytes
    exact: bool
    equal: bool
    rows: int
    found: int
    overlap: float
    missing: tuple[bytes, ...]
    added: tuple[bytes, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "receipt": format_id(self.receipt),
            "exact": self.exact,
            "equal": self.equal,
            "rows": self.rows,
            "found": self.found,
            "overlap": self.overlap,
            "missing": list(map(format_id, self.missing)),
            "added": list(map(format_id, self.added)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Works on the receipts of every process of the store."""

    indexes: Indexes
    content: ContentOpener
    journal: Journal
    log: Log
    clock: Clock
    settings: Settings
    catch_up: CatchUp

    async def receipt(self, receipt_id: bytes) -> ReadReceipt:
        """A kept receipt. RECEIPT_EXPIRED; LOG_MISMATCH when it belongs to another log; CORRUPT."""
        return (await self._kept(receipt_id))[0]

    async def replay(self, receipt_id: bytes) -> Page:
        """The page again: the same bytes of its body, rendered from ids alone, without any search.

        Raises RECEIPT_EXPIRED, INDEX_LAGGING (ids is not there yet), KEY_UNAVAILABLE, PURGED, and CORRUPT when the
        body is not the one that was given out.
        """
        receipt = await self.receipt(receipt_id)
        async with self._settled(receipt, (IDS,)) as (indexes, chosen):
            stored = [_revision(row, indexes.ids) for row in receipt.rows]
        rows = await rendered_again(receipt, stored, self.content)
        diagnostics = Diagnostics(lag=chosen.lag, truncated=receipt.truncations)
        return Page(atoms=rows, receipt=receipt, continuation=None, diagnostics=diagnostics)

    async def verify(self, receipt_id: bytes) -> Verification:
        """Search again at the receipt's positions, and compare.

        Raises what a read at them raises, and RECEIPT_EXPIRED where what was searched for is kept by another node.
        """
        receipt, kept = await self._kept(receipt_id)
        if not kept:
            message = (
                f"what the read of receipt {format_id(receipt_id)} searched for is known only to the node that read"
            )
            raise fail("RECEIPT_EXPIRED", f"{message}: verify it there; here it can be replayed and cited")
        search = loads(kept)
        todo = plan_again(search["asked"], search["state"])
        async with self._settled(receipt, todo.names) as (indexes, chosen):
            source = open_source(todo, indexes, chosen, len(receipt.rows))
            gathered = gather(source, indexes.ids, chosen.positions, len(receipt.rows))
        before = [row.revision for row in receipt.rows]
        again = [resolved.row.revision for resolved in gathered.rows]
        either = len(set(before) | set(again))
        return Verification(
            receipt=receipt_id,
            exact=not source.notes.searched,
            equal=before == again and search["ended"] == (gathered.next_state is None),
            rows=len(before),
            found=len(again),
            overlap=len(set(before) & set(again)) / either if either else 1.0,
            missing=tuple(revision for revision in before if revision not in set(again)),
            added=tuple(revision for revision in again if revision not in set(before)),
        )

    async def _kept(self, receipt_id: bytes) -> tuple[ReadReceipt, bytes]:
        receipt, search = await self.journal.receipt(receipt_id)
        if receipt.log_id != self.log.log_id:
            message = f"receipt {format_id(receipt_id)} is of the log {format_id(receipt.log_id)}"
            raise fail("LOG_MISMATCH", f"{message}, this one is {format_id(self.log.log_id)}")
        return receipt, search

    def _settled(self, receipt: ReadReceipt, names: tuple[str, ...]) -> Settled:
        """Indexes that have come to the receipt's positions."""

        async def choose(indexes: IndexSet) -> Chosen:
            lacking = not_covered(indexes, names, receipt.observed())
            if lacking is not None:
                raise lacking
            chooser = Chooser(indexes=indexes, plan=names, log=self.log, clock=self.clock)
            return await chooser.again(receipt.observed(), receipt.mode)

        deadline_us = self.clock.monotonic_us() + self.settings.read_timeout_ms * 1_000
        return Settled(self.indexes, self.catch_up, names, choose, deadline_us)


async def rendered_again(receipt: ReadReceipt, stored: Sequence[bytes], content: ContentOpener) -> tuple[Row, ...]:
    """The rows of a receipt from the revisions that they are of, in order.

    Raises KEY_UNAVAILABLE, PURGED, and CORRUPT when the body is not the one that was given out.
    """
    rendered = [await _rendered(row, data, content) for row, data in zip(receipt.rows, stored, strict=True)]
    if hashlib.sha256(body_bytes([body for _, body in rendered])).digest() != receipt.body_sha256:
        message = f"the page of receipt {format_id(receipt.receipt)} renders to other bytes than were given out"
        raise fail("CORRUPT", f"{message}; rebuild ids")
    return tuple(row for row, _ in rendered)


async def _rendered(row: ReceiptRow, data: bytes, content: ContentOpener) -> tuple[Row, bytes]:
    """A row that was sealed stays so; one that was not needs its key again."""
    if row.sealed:
        return render_row(row, clear_of(data)[0], None)
    opened = await content.open(data)
    if not isinstance(opened, Opened):
        message = f"{row.handle} was read with a key that is not here now: {opened.reason}"
        raise fail("KEY_UNAVAILABLE", f"{message}; give the master key")
    return render_row(row, opened.clear, opened)


def _revision(row: ReceiptRow, index: Ids) -> bytes:
    """The bytes of a row's revision; its atom must be the receipt's."""
    found = index.revision(row.revision)
    if found is None or found.atom != row.atom:
        message = f"{row.handle}: ids has no revision {format_id(row.revision)} of atom {format_id(row.atom)}"
        raise fail("CORRUPT", f"{message}; rebuild ids")
    return found.data
