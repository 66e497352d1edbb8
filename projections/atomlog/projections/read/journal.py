"""The receipts of this process, buffered for a moment, and those of every process of the store.

A receipt is given out at once and written within `receipt_flush_ms`, at close, or when `flush` asks. Lost before
that, by a crash, it is RECEIPT_EXPIRED. Cursors are written before their continuation is given out, so that another
process can go on with it.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, uuid7
from atomlog.kernel.ports import Clock, Randomness, Workers
from atomlog.kernel.settings import Settings
from atomlog.projections.read.receipts import ReadReceipt, ReceiptRow, receipt_from_bytes
from atomlog.projections.read.seen import UNSEEN, Seen
from atomlog.projections.read.shelf import Kept, KeptReceipt, Shelf
from atomlog.schemas.revision import Inputs, ReadRange, ReadScope, ReadVersion

BUFFERED_MAX: Final = 1_000  # receipts; one more is written before its page is given out
PRUNE_EVERY_US: Final = 3_600_000_000
DAY_US: Final = 86_400_000_000
SECRET_BYTES: Final = 32

_LOG: Final = logging.getLogger(__name__)


class ReceiptExchange(Protocol):
    """Receipts between the nodes of a shared store, each of which has a shelf of its own."""

    def offer(self, receipts: Sequence[KeptReceipt]) -> None:
        """Tell the others of what is on the shelf now. Neither waits nor fails."""
        ...

    async def catch_up(self) -> None:
        """Until all is on the shelf that others had told when this was asked. KAFKA_UNAVAILABLE, ACCESS_DENIED."""
        ...

    async def close(self) -> None:
        """Tell what is left, as far as that is a matter of moments."""
        ...


class Journal:
    """Records receipts and keeps what continuations need. Implements the kernel's `Receipts` port."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        clock: Clock,
        randomness: Randomness,
        workers: Workers,
        settings: Settings,
        exchange: ReceiptExchange | None = None,
    ) -> None:
        """`exchange` is closed with it."""
        self._shelf = shelf
        self._clock = clock
        self._randomness = randomness
        self._workers = workers
        self._settings = settings
        self._exchange = exchange
        self._buffer: dict[bytes, tuple[ReadReceipt, KeptReceipt]] = {}
        self._copies: set[bytes] = set()  # of those in the buffer: another node made them, and tells the others
        self._lent: dict[bytes, list[ReadReceipt]] = {}
        self._writing = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None
        self._pruned_at_us: int | None = None
        self.secrets = shelf.secrets(lambda: randomness.token(SECRET_BYTES))

    def new_id(self) -> bytes:
        """A UUIDv7."""
        return uuid7(self._clock.now_us(), self._randomness.token(10))

    async def record(
        self,
        receipt: ReadReceipt,
        search: bytes,
        kept: Sequence[Kept] = (),
        seen: Seen = UNSEEN,
        *,
        is_copy: bool = False,
    ) -> None:
        """Take a receipt and, before returning, write what its continuation needs.

        `search` is what was asked for, with vectors in place of texts, for `verify`; `seen` where its read stood.
        `is_copy`: another node made it.
        """
        body = receipt.to_bytes(seen.shown_positions, seen.shown_indexes)  # fails here, and for itself
        written = KeptReceipt(id=receipt.receipt, body=body, search=search)
        if kept:
            await self._workers.run(lambda: self._shelf.put((), kept))
        self._buffer[receipt.receipt] = (receipt, written)
        if is_copy:
            self._copies.add(receipt.receipt)
        if len(self._buffer) >= BUFFERED_MAX:
            try:
                await self._write_out()
            except BaseException:  # its page is not given out: what cannot be written must not pile up
                self._forget(receipt.receipt)
                raise
        elif self._timer is None or self._timer.done():
            self._timer = asyncio.get_running_loop().create_task(self._write_out_soon())

    async def receipt(self, receipt_id: bytes) -> tuple[ReadReceipt, bytes]:
        """A receipt of any process, and its search, empty where another node made it and did not say.

        Raises RECEIPT_EXPIRED, CORRUPT; KAFKA_UNAVAILABLE or ACCESS_DENIED when another node may have it.
        """
        buffered = self._buffer.get(receipt_id)
        if buffered is not None:
            return buffered[0], buffered[1].search
        if receipt_id in self._lent:
            return self._lent[receipt_id][-1], b""
        found = None
        if receipt_id >= self._oldest_kept():
            found = await self._workers.run(lambda: self._shelf.receipt(receipt_id))
            if found is None and self._exchange is not None:
                await self._exchange.catch_up()
                found = await self._workers.run(lambda: self._shelf.receipt(receipt_id))
        if found is None:
            message = f"the receipt {format_id(receipt_id)} is not kept (any more); read again"
            raise fail("RECEIPT_EXPIRED", message)
        receipt = receipt_from_bytes(found.body)
        if receipt.receipt != receipt_id:
            raise fail("CORRUPT", f"the receipt {format_id(receipt_id)} is kept under another id")
        return receipt, found.search

    async def receipts(self, after: bytes, limit: int) -> Sequence[ReadReceipt]:
        """Up to so many receipts of every process with ids above `after`, oldest first, as far as they are written."""
        since = max(after, self._oldest_kept())
        found = await self._workers.run(lambda: self._shelf.receipts(since, limit))
        return [receipt_from_bytes(row.body) for row in found]

    @contextmanager
    def lent(self, bodies: Sequence[bytes]) -> Iterator[None]:
        """Inside, these receipts are known here too, which another process keeps. CORRUPT when one is none."""
        receipts = [receipt_from_bytes(body) for body in bodies]
        for receipt in receipts:
            self._lent.setdefault(receipt.receipt, []).append(receipt)
        try:
            yield
        finally:
            for receipt in receipts:
                lent = self._lent[receipt.receipt]
                lent.remove(receipt)
                if not lent:
                    del self._lent[receipt.receipt]

    async def kept(self, kept_id: bytes) -> Kept | None:
        return await self._workers.run(lambda: self._shelf.kept(kept_id))

    async def flush(self) -> None:
        """Every receipt given out so far is durable on return."""
        await self._write_out(sync=True)

    async def row(self, receipt: bytes, handle: str) -> tuple[bytes, bytes]:
        """(atom, revision) of a row. RECEIPT_EXPIRED, NOT_FOUND, CORRUPT."""
        found = row_of((await self.receipt(receipt))[0], handle)
        return found.atom, found.revision

    async def inputs(self, receipts: Sequence[bytes], path: str) -> Inputs:
        """What the reads behind these receipts saw, merged; `path` names the part of the request in errors."""
        found: list[ReadReceipt] = []
        for index, receipt_id in enumerate(dict.fromkeys(receipts)):
            try:
                found.append((await self.receipt(receipt_id))[0])
            except AtomlogError as error:
                if error.code != "RECEIPT_EXPIRED":
                    raise
                where = f"{path}[{index}]"
                detail = {"path": where, "code": error.code, "message": error.message}
                raise fail(error.code, f"{where}: {error.message}", details=[detail]) from None
        return merge_inputs(found)

    async def close(self) -> None:
        """Everything recorded is durable on return."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self.flush()
        finally:
            if self._exchange is not None:
                await self._exchange.close()
            await self._workers.run(self._shelf.close)

    async def _write_out_soon(self) -> None:
        while self._buffer:  # once more for what was recorded while the others were being written
            await self._clock.sleep(self._settings.receipt_flush_ms / 1_000)
            try:
                await self._write_out()
            except (AtomlogError, OSError) as error:
                # They stay buffered and are tried again with the next one; a flush that somebody waits for raises.
                _LOG.warning("receipts could not be written yet: %s", error)
                return

    async def _write_out(self, *, sync: bool = False) -> None:
        async with self._writing:
            rows = [written for _, written in self._buffer.values()]
            if rows or sync:
                await self._workers.run(lambda: self._shelf.put(rows, sync=sync))
            if self._exchange is not None:
                self._exchange.offer([row for row in rows if row.id not in self._copies])
            for row in rows:
                self._forget(row.id)
            await self._prune()

    def _forget(self, receipt_id: bytes) -> None:
        self._buffer.pop(receipt_id, None)
        self._copies.discard(receipt_id)

    async def _prune(self) -> None:
        now_us = self._clock.now_us()
        if self._pruned_at_us is not None and now_us - self._pruned_at_us < PRUNE_EVERY_US:
            return
        self._pruned_at_us = now_us
        oldest = self._oldest_kept()
        await self._workers.run(lambda: self._shelf.prune(oldest, now_us))

    def _oldest_kept(self) -> bytes:
        """The lowest id of a receipt that is still kept: ids begin with their time."""
        oldest_us = self._clock.now_us() - self._settings.receipt_retention_days * DAY_US
        return (max(oldest_us, 0) // 1_000).to_bytes(6, "big") + bytes(10)


def row_of(receipt: ReadReceipt, handle: str) -> ReceiptRow:
    """NOT_FOUND when the receipt has no such row."""
    for row in receipt.rows:
        if row.handle == handle:
            return row
    message = f"the receipt {format_id(receipt.receipt)} has no row {handle}, only {len(receipt.rows)} rows"
    raise fail("NOT_FOUND", message)


def merge_inputs(receipts: Sequence[ReadReceipt]) -> Inputs:
    """Versions, ranges, scopes and encoders of several reads, each once, in the order read.

    A range keeps the lowest position that was observed: a later change counts as unseen. It is complete when one
    of the reads reached its end.
    """
    versions: dict[tuple[bytes, bytes], None] = {}
    ranges: dict[tuple[str, bytes], ReadRange] = {}
    scopes: dict[bytes, ReadScope] = {}
    encoders: dict[str, None] = {}
    for receipt in receipts:
        versions.update(((row.atom, row.revision), None) for row in receipt.rows)
        encoders.update((encoder, None) for encoder in receipt.encoders)
        for found in receipt.ranges:
            key = (found.role, found.target)
            ranges[key] = _merged_range(ranges[key], found) if key in ranges else found
        for scope in receipt.scopes:
            key_ = scope.selector_digest
            scopes[key_] = _merged_scope(scopes[key_], scope) if key_ in scopes else scope
    return Inputs(
        versions=tuple(ReadVersion(atom=atom, revision=revision) for atom, revision in versions),
        ranges=tuple(ranges.values()),
        scopes=tuple(scopes.values()),
        encoders=tuple(encoders),
        grant_generation=max((receipt.permission_generation for receipt in receipts), default=0),
    )


def _merged_range(one: ReadRange, other: ReadRange) -> ReadRange:
    return ReadRange(
        role=one.role,
        target=one.target,
        observed=_lowest(one.observed, other.observed),
        complete=one.complete or other.complete,
    )


def _merged_scope(one: ReadScope, other: ReadScope) -> ReadScope:
    return ReadScope(
        selector_digest=one.selector_digest,
        observed=_lowest(one.observed, other.observed),
        empty=one.empty and other.empty,
    )


def _lowest(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    lowest = dict(one)
    for partition, position in other:
        lowest[partition] = min(lowest.get(partition, position), position)
    return tuple(sorted(lowest.items()))
