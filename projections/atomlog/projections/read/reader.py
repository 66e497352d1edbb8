"""The read path: one function with numbered steps. Looking at a receipt again is in `replay`."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.jsontext import check_json, dumps
from atomlog.kernel.model import LOCAL_PRINCIPAL, Handle, Positions
from atomlog.kernel.ports import Clock, Log
from atomlog.kernel.settings import Settings
from atomlog.projections.ids import Ids
from atomlog.projections.read.chains import Chains
from atomlog.projections.read.cursors import Continuations, Cursor, asked_digest
from atomlog.projections.read.elsewhere import absent, can_lack, check_resolved, shown_lacking
from atomlog.projections.read.gather import Gathered, gather, render
from atomlog.projections.read.indexes import VECTORS, CatchUp, Indexes, IndexSet
from atomlog.projections.read.issue import PERMISSION_GENERATION, Answer, next_page
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.page import Page
from atomlog.projections.read.pins import Pins
from atomlog.projections.read.plans import home, open_source, plan, searched
from atomlog.projections.read.point import POINT_PLAN, find_point, is_point, point_search, show_point
from atomlog.projections.read.positions import MODES, SNAPSHOT, Asked, Chooser, Chosen, Settled
from atomlog.projections.read.receipts import At, IndexState, ReadReceipt
from atomlog.projections.read.refs import AtomRef, raw_id
from atomlog.projections.read.replay import Replayer, Verification
from atomlog.projections.read.seen import Seen, seen
from atomlog.projections.read.selectors import ByIds, History, Recall, Selector, check_selector, map_refs, selector_dict
from atomlog.projections.read.sources import not_found

if TYPE_CHECKING:  # numpy comes with it, which only a recall needs
    from atomlog.projections.encoders import Encoder

SESSION_CHARACTERS_MAX: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a read is answered; every part may be left out.

    At most one of `at` (a position of the atom's own partition, or partition → position), `as_of_us` (microseconds
    UTC) and `at_least` (partition → position to wait for) is given, and none of them with a continuation, which keeps
    the positions and the consistency of its first page. `may_lack`: partitions that an index does not have here are
    done without and named, where that leaves a page that is right as far as it goes; never in `snapshot`.
    `network_calls`: what asking other nodes has used of the read's budget so far.
    """

    consistency: str | None = None
    at: int | Positions | None = None
    as_of_us: int | None = None
    at_least: Positions | None = None
    limit: int | None = None
    continuation: str | None = None
    timeout_ms: int | None = None
    session: str | None = None
    principal: str = LOCAL_PRINCIPAL
    may_lack: bool = False
    network_calls: int = 0


DEFAULTS: Final = ReadOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads from the indexes of one process. `encoders`: vector space id → encoder, the default one first.

    `consistency`: of a read that names none. `recalls_snapshots`: False where vectors have no state that others share,
    as in a store of several nodes: a recall in `snapshot` is refused there, not weakened.
    """

    indexes: Indexes
    content: ContentOpener
    journal: Journal
    encoders: "Mapping[str, Encoder]"
    log: Log
    clock: Clock
    settings: Settings
    catch_up: CatchUp
    pins: Pins
    consistency: str = SNAPSHOT
    recalls_snapshots: bool = True
    last: dict[tuple[str, ...], tuple[IndexSet, Chosen]] = field(default_factory=dict)  # (*plan, mode) → of now

    async def read(self, selector: Selector, options: ReadOptions = DEFAULTS) -> Page:
        """A page of what the selector asks for.

        Raises:
            INVALID_INPUT, BOUND_EXCEEDED: a part of the request.
            NOT_FOUND: a single atom, or the atom of a history.
            INDEX_LAGGING: an index has not reached what was asked for in time; details name it and how far it is.
            CONSISTENCY_UNAVAILABLE: an index cannot be read as of that position, or has not every partition that the
                read needs (then it is a `NotHeld`).
            CURSOR_EXPIRED, RECEIPT_EXPIRED: the continuation; a receipt that an id argument names.
            KEY_UNAVAILABLE, PURGED, CORRUPT: the content of a row.
        """
        # 1. The request by itself: bounds, what excludes what; rows of receipts become ids, texts become vectors.
        if options is DEFAULTS and is_point(selector) and (page := await self._point(selector)) is not None:
            return page
        limit, deadline_us = self._check(selector, options)
        selector = await self.with_ids(selector)
        cursor = None if options.continuation is None else await self._cursor(selector, options.continuation, options)
        mode = cursor.mode if cursor else options.consistency or self.consistency
        self._check_mode(selector, mode)
        todo = await plan(selector, cursor.state if cursor else None, self.encoders, self.journal)
        # 2. The positions: those of the first page, or chosen now, waiting for what was asked for.
        choose = partial(self._choose, selector, options, todo.names, mode, cursor)
        async with Settled(self.indexes, self.catch_up, todo.names, choose, deadline_us) as (indexes, chosen):
            # 3. Search, and resolve every find through ids at these positions. Nothing waits here, so nothing moves.
            source = open_source(todo, indexes, chosen, limit)
            gathered = gather(source, indexes.ids, chosen.positions, limit)
            if len(chosen.positions) < self.log.partitions and not chosen.unreachable:
                check_resolved(indexes, todo.names, gathered.rows, gathered.slots)
            _check_found(selector, gathered)
            if isinstance(selector, Recall) and indexes.vectors is not None and not source.finished:
                self.pins.hold(indexes.vectors)
            # 4. The chain at each position, which proves the history that was read.
            seen = chosen.seen or await self._see(chosen, indexes, cursor)
        # 5. Open the contents, render, and cut where the page is full.
        rendered = await render(gathered, self.content, self.settings.page_bytes_max)
        next_state = next_page(source, gathered, rendered)
        # 6. The receipt; and the cursor of the next page, which is kept before its continuation is given out.
        is_asked_for = next_state is not None or source.notes.searched
        answer = Answer(
            asked=asked_digest(self.journal, selector_dict(selector)) if is_asked_for else None,
            mode=mode,
            chosen=chosen,
            seen=seen,
            source=source,
            gathered=gathered,
            rendered=rendered,
            next_state=next_state,
            network_calls=options.network_calls,
        )
        receipt = answer.receipt(
            receipt=self.journal.new_id(),
            log_id=self.log.log_id,
            recorded_at_us=self.clock.now_us(),
            principal=options.principal,
            session=options.session,
            continues=cursor.continues if cursor else None,
        )
        continuation, kept = answer.continuation(self._continuations(), receipt)
        search = {"asked": searched(todo, source), "state": dict(todo.state), "ended": next_state is None}
        await self.journal.record(receipt, dumps(search), kept, seen)
        # 7. The page.
        return Page(atoms=rendered.rows, receipt=receipt, continuation=continuation, diagnostics=answer.diagnostics())

    async def receipt(self, receipt_id: bytes) -> ReadReceipt:
        """A kept receipt. RECEIPT_EXPIRED; LOG_MISMATCH when it belongs to another log; CORRUPT."""
        return await self._replayer().receipt(receipt_id)

    async def replay(self, receipt_id: bytes) -> Page:
        """The page of a receipt again, the same bytes: see `Replayer.replay`."""
        return await self._replayer().replay(receipt_id)

    async def verify(self, receipt_id: bytes) -> Verification:
        """The search of a receipt again, compared: see `Replayer.verify`."""
        return await self._replayer().verify(receipt_id)

    def _replayer(self) -> Replayer:
        return Replayer(
            indexes=self.indexes,
            content=self.content,
            journal=self.journal,
            log=self.log,
            clock=self.clock,
            settings=self.settings,
            catch_up=self.catch_up,
        )

    def _check(self, selector: Selector, options: ReadOptions) -> tuple[int, int]:
        """(rows of the page, deadline on the monotonic clock)."""
        check_selector(selector)
        if options.consistency not in (None, *MODES):
            raise invalid("consistency", f"must be one of {', '.join(MODES)}")
        asked = (("at", options.at), ("as_of", options.as_of_us), ("at_least", options.at_least))
        given = [name for name, value in asked if value is not None]
        if len(given) > 1:
            raise invalid(given[1], f"{given[0]} already says which state to read; give one of them")
        if options.continuation is not None and (given or options.consistency is not None):
            name = given[0] if given else "consistency"
            raise invalid(name, "a continuation keeps the state of its first page; leave this out")
        if options.session is not None:
            _check_session(options.session)
        timeout_ms = self.settings.read_timeout_ms if options.timeout_ms is None else options.timeout_ms
        if timeout_ms < 0:
            raise invalid("timeout_ms", "must not be negative")
        return self._limit(selector, options.limit), self.clock.monotonic_us() + timeout_ms * 1_000

    def _check_mode(self, selector: Selector, mode: str) -> None:
        if mode == SNAPSHOT and isinstance(selector, Recall) and not self.recalls_snapshots:
            message = "consistency: a recall has no snapshot in a store that several nodes share; "
            message += "ask for version_pinned"
            detail = {"path": "consistency", "code": "CONSISTENCY_UNAVAILABLE", "message": message}
            raise fail("CONSISTENCY_UNAVAILABLE", message, details=[detail])

    def _limit(self, selector: Selector, limit: int | None) -> int:
        if limit is None:  # who names atoms gets them all
            named = len(selector.ids) if isinstance(selector, ByIds) else 0
            return min(max(self.settings.page_limit, named), self.settings.page_limit_max)
        if type(limit) is not int or limit < 1:
            raise invalid("limit", "must be a number from 1 on")
        if limit > self.settings.page_limit_max:
            message = f"{shown(limit)} rows are more than {self.settings.page_limit_max}; read on with the continuation"
            detail = {"path": "limit", "code": "BOUND_EXCEEDED", "message": message}
            raise fail("BOUND_EXCEEDED", f"limit: {message}", details=[detail])
        return limit

    async def _choose(
        self,
        selector: Selector,
        options: ReadOptions,
        names: Sequence[str],
        mode: str,
        cursor: Cursor | None,
        indexes: IndexSet,
    ) -> Chosen:
        chooser = Chooser(indexes=indexes, plan=names, log=self.log, clock=self.clock)
        lacking = absent(indexes, names, selector, cursor.positions if cursor else _asked_for(options))
        if lacking and not (options.may_lack and mode != SNAPSHOT and can_lack(selector) and cursor is None):
            if cursor is None and not can_lack(selector) and indexes.has(names, options.at_least):
                await chooser.choose(_asked(mode, options), list)  # with what is waited for, the atoms may be here
            raise lacking
        if cursor:
            return await chooser.again(cursor.positions, mode)
        if lacking:
            chosen = await chooser.choose(_asked(mode, options), list)
            chosen.unreachable = shown_lacking(lacking.lacking)
            return chosen
        is_now = options.at is None and options.as_of_us is None and options.at_least is None
        if is_now and (kept := await self._still(indexes, names, mode)) is not None:
            return kept
        chosen = await chooser.choose(_asked(mode, options), partial(home, selector, indexes.ids, self.log.partitions))
        if is_now and VECTORS not in names:  # vectors move on without a position
            self.last[*names, mode] = indexes, chosen
        return chosen

    async def _still(self, indexes: IndexSet, names: Sequence[str], mode: str) -> Chosen | None:
        """What the last read of now, of the same plan and mode, chose, if it would choose the same again."""
        kept = self.last.get((*names, mode))
        if kept is None or kept[0] is not indexes or not await kept[1].still_holds(indexes, self.log):
            return None
        return kept[1]

    async def _see(self, chosen: Chosen, indexes: IndexSet, cursor: Cursor | None) -> Seen:
        """What receipts say of where this read stands; kept with `chosen`."""
        chains = cursor.chains if cursor else await self._chains(chosen, indexes.ids)
        builds = indexes.builds()
        positions = {p: At(position=position, chain=chains[p]) for p, position in chosen.positions.items()}
        states = {
            name: IndexState(
                positions={partition: standing.applied(partition) for partition in standing.checkpoints},
                lag=chosen.lag[name],
                generation=builds[name],
            )
            for name, standing in chosen.standings.items()
        }
        chosen.seen = seen(positions, states)
        return chosen.seen

    async def _chains(self, chosen: Chosen, ids: Ids) -> Mapping[int, bytes]:
        return await Chains(log=self.log).at(chosen.positions, list(chosen.standings.values()), ids)

    async def _point(self, selector: ByIds) -> Page | None:
        """The page of one atom as it is now, when nothing has moved since the last such read; else None."""
        async with self.indexes.lease(POINT_PLAN) as indexes:
            chosen = await self._still(indexes, POINT_PLAN, self.consistency)
            if chosen is None or chosen.seen is None or len(chosen.positions) < self.log.partitions:
                return None
            point = find_point(raw_id(selector.ids[0]), indexes.ids, chosen.positions)
        opened = await self.content.open_decoded(point.row.data, point.clear, point.sealed_at)
        row, receipt_row, body = show_point(point, opened)
        receipt = ReadReceipt(
            receipt=self.journal.new_id(),
            log_id=self.log.log_id,
            mode=self.consistency,
            positions=chosen.seen.positions,
            indexes=chosen.seen.indexes,
            rows=(receipt_row,),
            ranges=(),
            scopes=(),
            body_sha256=hashlib.sha256(body).digest(),
            recorded_at_us=self.clock.now_us(),
            principal=DEFAULTS.principal,
            permission_generation=PERMISSION_GENERATION,
            budget={"atoms": 1, "candidates": 1, "bytes": len(body)},
        )
        await self.journal.record(receipt, point_search(selector), (), chosen.seen)
        return Page(atoms=(row,), receipt=receipt, continuation=None, diagnostics=chosen.seen.diagnostics)

    async def with_ids(self, selector: Selector) -> Selector:
        """The selector with the rows of receipts looked up."""
        handles: dict[Handle, bytes] = {}

        def collect(ref: AtomRef) -> AtomRef:
            if isinstance(ref, Handle):
                handles[ref] = b""
            return ref

        if isinstance(selector, ByIds) and len(selector.ids) == 1 and not isinstance(selector.ids[0], Handle):
            return selector
        selector = map_refs(selector, collect)  # also drops what is named twice
        if not handles:
            return selector
        for handle in handles:
            handles[handle] = (await self.journal.row(handle.receipt, handle.handle))[0]
        return map_refs(selector, lambda ref: handles[ref] if isinstance(ref, Handle) else ref)

    def _continuations(self) -> Continuations:
        return Continuations(journal=self.journal, clock=self.clock, ttl_ms=self.settings.cursor_ttl_ms)

    async def _cursor(self, selector: Selector, continuation: str, options: ReadOptions) -> Cursor:
        return await self._continuations().take(
            continuation,
            asked=asked_digest(self.journal, selector_dict(selector)),
            principal=options.principal,
            permission_generation=PERMISSION_GENERATION,
        )


def _asked(mode: str, options: ReadOptions) -> Asked:
    return Asked(mode=mode, at=options.at, as_of_us=options.as_of_us, at_least=options.at_least)


def _asked_for(options: ReadOptions) -> Sequence[int]:
    """The partitions that the caller named."""
    at = options.at if isinstance(options.at, Mapping) else {}
    return [*at, *(options.at_least or {})]


def _check_session(session: object) -> None:
    """A session's name stands in receipts, so it must be what JSON can hold."""
    if not isinstance(session, str) or not 0 < len(session) <= SESSION_CHARACTERS_MAX:
        raise invalid("session", f"must be a text of 1 to {SESSION_CHARACTERS_MAX} characters")
    check_json(session, "session", depth_max=0)


def _check_found(selector: Selector, gathered: Gathered) -> None:
    """One atom that is not there is an error; among several it is named in the diagnostics."""
    if gathered.missing and not gathered.rows:
        if isinstance(selector, ByIds) and len(selector.ids) == 1:
            raise not_found(gathered.missing[0], "selector.ids[0]")
        if isinstance(selector, History):
            raise not_found(gathered.missing[0], "selector.atom")
