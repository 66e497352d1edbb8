"""Reads that need partitions which are not here: asked of the nodes that say they have them, and of nobody else.

A whole read goes to one node that has every partition of every index that it needs. That node makes page and receipt;
both are given out here as they were made there, and the receipt is kept on both. Continuations name the node that keeps
their cursor. Nothing is merged from several nodes: what no single node has is refused, or, in `version_pinned` and
where the result is right as far as it goes, read without the partitions that nobody has, which are named.
"""

import hashlib
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.pages import options_dict, options_from, page_dict, take_page
from atomlog.consumers.cluster.reports import NodeReport
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, invalid, parse_id
from atomlog.projections.ids import Ids
from atomlog.projections.read.cursors import expired
from atomlog.projections.read.elsewhere import NotHeld, can_lack, is_not_held
from atomlog.projections.read.page import Diagnostics, Page
from atomlog.projections.read.positions import SNAPSHOT
from atomlog.projections.read.reader import Reader, ReadOptions
from atomlog.projections.read.receipts import ReadReceipt
from atomlog.projections.read.replay import Verification, rendered_again
from atomlog.projections.read.selectors import Selector, parse_selector, selector_dict

READ: Final = "read"
VERIFY: Final = "verify_receipt"
REVISIONS: Final = "revisions"
OPS: Final = (READ, VERIFY, REVISIONS)
NODES_ASKED_MAX: Final = 3  # for one read; each is a network call of its budget
REVISIONS_MAX: Final = 10_000  # in one request: more than a page has rows
STOPPED: Final = "STOPPED"
_CONTINUATION: Final = re.compile(r"([0-9a-f]{16})~(.+)", re.DOTALL)


class Directory(Protocol):
    """Who holds what, as nodes have said lately. A hint: who is asked wrongly says so."""

    async def nodes(self) -> Sequence[NodeReport]:
        """KAFKA_UNAVAILABLE when that cannot be found out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadService:
    """Answers other nodes from the indexes of this one; it asks nobody in turn."""

    reader: Reader

    async def answer(self, message: Mapping[str, Any]) -> Any:
        """The result of one of `OPS`. Raises what a read raises; LOG_MISMATCH, INVALID_INPUT."""
        if message.get("log_id") != self.reader.log.log_id.hex():
            text = (
                f"the asking node reads the log {message.get('log_id')!r:.40}, this one {self.reader.log.log_id.hex()}"
            )
            raise fail("LOG_MISMATCH", text)
        try:
            work = self._understood(message)
        except (KeyError, TypeError, ValueError) as error:
            raise invalid("op", f"not understood: {type(error).__name__}: {error}") from None
        return await work

    def _understood(self, message: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        match message["op"]:
            case "read":
                return self._read(parse_selector(message["selector"]), options_from(message["options"]))
            case "verify_receipt":
                return self._verify(parse_id(message["receipt"], "receipt"))
            case "revisions":
                return self._revisions([bytes.fromhex(one) for one in message["revisions"]])
        raise invalid("op", f"unknown; known are {', '.join(OPS)}")

    async def _verify(self, receipt: bytes) -> dict[str, Any]:
        return (await self.reader.verify(receipt)).to_dict()

    async def _read(self, selector: Selector, options: ReadOptions) -> dict[str, Any]:
        page = await self.reader.read(selector, options)
        _, search = await self.reader.journal.receipt(page.receipt.receipt)
        stored = await self._stored([row.revision for row in page.receipt.rows])
        if None in stored:
            raise fail("INDEX_LAGGING", "ids was exchanged meanwhile; read again", retry_after_ms=100)
        return page_dict(page, search, [data for data in stored if data is not None])

    async def _revisions(self, revisions: Sequence[bytes]) -> list[str | None]:
        if len(revisions) > REVISIONS_MAX:
            raise fail("BOUND_EXCEEDED", f"{len(revisions)} revisions are more than {REVISIONS_MAX}")
        return [None if data is None else data.hex() for data in await self._stored(revisions)]

    async def _stored(self, revisions: Sequence[bytes]) -> list[bytes | None]:
        async with self.reader.indexes.lease(("ids",)) as indexes:
            return stored_revisions(indexes.ids, revisions)


def stored_revisions(ids: Ids, revisions: Sequence[bytes]) -> list[bytes | None]:
    """The bytes of each revision; None where ids has it not."""
    rows = [ids.revision(revision) for revision in revisions]
    return [None if row is None else row.data for row in rows]


class Elsewhere:
    """Reads through other nodes, for one that does not have every partition."""

    def __init__(self, reader: Reader, directory: Directory, connections: Connections, *, call_timeout_ms: int) -> None:
        self._reader = reader
        self._directory = directory
        self._connections = connections
        self._call_timeout_ms = call_timeout_ms

    async def read(self, lacking: NotHeld, selector: Selector, options: ReadOptions) -> Page:
        """A read that this node cannot answer. Raises NotHeld, naming who was asked, and what a read raises."""
        asked = await self._reader.with_ids(selector)
        mode = options.consistency or self._reader.consistency
        # 1. The nodes that hold all of it, each in turn until one answers.
        tried: list[str] = []
        for report in await self._holders(lacking):
            calls = replace(options, consistency=mode, network_calls=options.network_calls + len(tried) + 1)
            sent = {"selector": selector_dict(asked), "options": options_dict(calls)}
            try:
                found = await self._ask(report, READ, options, **sent)
            except (AtomlogError, ConnectionError, TimeoutError) as error:
                if not _is_unreachable(error):
                    raise
                tried.append(_tried(report, error))
                continue
            return await self._taken(report, found)
        # 2. Nobody: without them, where that is allowed.
        if mode != SNAPSHOT and can_lack(asked) and self._has_some(lacking):
            calls = replace(options, may_lack=True, network_calls=options.network_calls + len(tried))
            return await self._reader.read(asked, calls)
        said = "; ".join(tried) or "no node has said that it has them all"
        raise NotHeld(lacking.lacking, lacking.needs, f" ({said})")

    def _has_some(self, lacking: NotHeld) -> bool:
        """Whether each index that the read needs has any partition here."""
        partitions = self._reader.log.partitions
        return all(len(missing) < partitions for missing in lacking.lacking.values())

    async def resume(self, selector: Selector, options: ReadOptions) -> Page | None:
        """The next page from the node that keeps its cursor; None when that is this one. CURSOR_EXPIRED."""
        found = _CONTINUATION.fullmatch(options.continuation or "")
        if found is None:
            return None
        asked = selector_dict(await self._reader.with_ids(selector))
        calls = replace(options, continuation=found[2], network_calls=1)
        error: BaseException | None = None
        for report in await self._directory.nodes():
            if report.endpoint and _mark(report) == found[1]:
                sent = {"selector": asked, "options": options_dict(calls)}
                try:
                    return await self._taken(report, await self._ask(report, READ, options, **sent))
                except (ConnectionError, TimeoutError) as failure:
                    error = failure
        why = "the node that keeps it is gone" if error is None else f"the node that keeps it cannot be asked: {error}"
        raise expired(why)

    async def replay(self, lacking: NotHeld, receipt: ReadReceipt) -> Page:
        """The page of a receipt again, from the revisions that other nodes have."""
        stored = await self.revisions(lacking, [row.revision for row in receipt.rows])
        for row, data in zip(receipt.rows, stored, strict=True):
            if data is None:
                raise fail("CORRUPT", f"{row.handle}: no node that has all partitions has {format_id(row.revision)}")
        rows = await rendered_again(receipt, [data for data in stored if data is not None], self._reader.content)
        diagnostics = Diagnostics(truncated=receipt.truncations)
        return Page(atoms=rows, receipt=receipt, continuation=None, diagnostics=diagnostics)

    async def revisions(self, lacking: NotHeld, revisions: Sequence[bytes]) -> list[bytes | None]:
        """The bytes of revisions, from a node that has the partitions. Raises NotHeld."""
        found = await self._first(lacking, REVISIONS, revisions=[revision.hex() for revision in revisions])
        return [None if data is None else bytes.fromhex(data) for data in found]

    async def verify(self, lacking: NotHeld, receipt: bytes) -> Verification:
        """A receipt searched again, by a node that has the partitions and the receipt."""
        found = await self._first(lacking, VERIFY, receipt=format_id(receipt))
        ids = {name: tuple(parse_id(one, name) for one in found[name]) for name in ("missing", "added")}
        return Verification(**{**found, **ids, "receipt": receipt})

    async def _first(self, lacking: NotHeld, op: str, **parts: Any) -> Any:
        tried: list[str] = []
        for report in await self._holders(lacking):
            try:
                return await self._ask(report, op, ReadOptions(), **parts)
            except (AtomlogError, ConnectionError, TimeoutError) as error:
                if not _is_unreachable(error) and getattr(error, "code", "") != "RECEIPT_EXPIRED":
                    raise
                tried.append(_tried(report, error))
        said = "; ".join(tried) or "no node has said that it has them all"
        raise NotHeld(lacking.lacking, lacking.needs, f" ({said})")

    async def _holders(self, lacking: NotHeld) -> list[NodeReport]:
        """Nodes that hold all that is needed, those first that hold most, then those that are least behind."""
        ranked = [
            (-places, lag, report.name, report)
            for report in await self._directory.nodes()
            if report.endpoint and (found := _holding(report, lacking)) is not None
            for places, lag in (found,)
        ]
        return [report for *_, report in sorted(ranked, key=lambda one: one[:3])[:NODES_ASKED_MAX]]

    async def _ask(self, report: NodeReport, op: str, like: ReadOptions, /, **parts: Any) -> Any:
        """One call. The other side waits for its indexes as long as this one would."""
        waits_ms = self._reader.settings.read_timeout_ms if like.timeout_ms is None else like.timeout_ms
        timeout_s = (waits_ms + self._call_timeout_ms) / 1_000
        log_id = self._reader.log.log_id.hex()
        return await self._connections.ask(report.endpoint, op, timeout_s, log_id=log_id, **parts)

    async def _taken(self, report: NodeReport, found: Any) -> Page:
        page = await take_page(found, self._reader.content, self._reader.journal)
        if page.continuation is None:
            return page
        return replace(page, continuation=f"{_mark(report)}~{page.continuation}")


def _holding(report: NodeReport, lacking: NotHeld) -> tuple[int, int] | None:
    """(places that it holds, records that it is behind); None unless it holds all that the read needs."""
    held = {one.name: one for one in report.projections if one.health != STOPPED}
    for name, partitions in lacking.needs.items():
        if name not in held or not {place.partition for place in held[name].partitions}.issuperset(partitions):
            return None
    places = [place for name in lacking.needs for place in held[name].partitions]
    return len(places), sum(place.lag_records for place in places)


def _is_unreachable(error: BaseException) -> bool:
    """Whether another node may do better."""
    if not isinstance(error, AtomlogError):
        return True
    return error.code in ("INDEX_LAGGING", "ACCESS_DENIED", "LOG_MISMATCH", "IN_DOUBT") or is_not_held(error)


def _tried(report: NodeReport, error: BaseException) -> str:
    return f"{report.name} at {report.endpoint}: {str(error) or type(error).__name__}"


def _mark(report: NodeReport) -> str:
    """A node in a continuation: its name, shortened, so that a restart of it does not end its continuations."""
    return hashlib.sha256(report.name.encode()).hexdigest()[:16]
