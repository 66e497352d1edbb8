"""What a read gives out beside its rows: receipt, continuation, diagnostics."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.projections.read.cursors import Continuations, Cursor
from atomlog.projections.read.gather import Gathered, Rendered
from atomlog.projections.read.page import Diagnostics, body_bytes
from atomlog.projections.read.positions import Chosen
from atomlog.projections.read.recall import RecallSource
from atomlog.projections.read.receipts import ReadReceipt
from atomlog.projections.read.seen import Seen
from atomlog.projections.read.shelf import Kept
from atomlog.projections.read.sources import EXACT, Source, State
from atomlog.schemas.revision import ReadScope

PERMISSION_GENERATION: Final = 0  # until grants exist


def next_page(source: Source, gathered: Gathered, rendered: Rendered) -> State | None:
    """Where the next page begins; None when everything was worked through."""
    if len(rendered.rows) < len(gathered.rows):
        return source.resume(gathered.rows[len(rendered.rows) - 1].found)
    return gathered.next_state


@dataclass(slots=True, kw_only=True)
class Answer:
    """Everything a read found out. `next_state`: None when the page is the last.

    `asked`: the keyed digest of the selector, where a continuation or a receipt needs it.
    """

    asked: bytes | None
    mode: str
    chosen: Chosen
    seen: Seen
    source: Source
    gathered: Gathered
    rendered: Rendered
    next_state: State | None
    network_calls: int = 0

    def receipt(
        self,
        *,
        receipt: bytes,
        log_id: bytes,
        recorded_at_us: int,
        principal: str,
        session: str | None,
        continues: bytes | None,
    ) -> ReadReceipt:
        positions, notes = self.chosen.positions, self.source.notes
        body = body_bytes(self.rendered.bodies)
        return ReadReceipt(
            receipt=receipt,
            log_id=log_id,
            mode=self.mode,
            positions=self.seen.positions,
            indexes=self.seen.indexes,
            rows=self.rendered.receipt_rows,
            ranges=self.source.ranges(positions, complete=self.next_state is None and not self.chosen.unreachable),
            scopes=self._scopes() if notes.searched else (),
            body_sha256=hashlib.sha256(body).digest(),
            recorded_at_us=recorded_at_us,
            principal=principal,
            permission_generation=PERMISSION_GENERATION,
            budget=self._used(len(body)),
            truncations=self._cuts(),
            encoders=notes.encoders,
            scoring=notes.scoring,
            scoring_digest=notes.scoring_digest,
            session=session,
            continues=continues,
        )

    def continuation(self, continuations: Continuations, receipt: ReadReceipt) -> tuple[str | None, list[Kept]]:
        """The continuation, and the rows that must be kept before it is given out. A recall keeps its list once."""
        if self.next_state is None:
            return None, []
        assert self.asked is not None, "a page that goes on needs the digest of what was asked"
        kept: list[Kept] = []
        state = dict(self.next_state)
        expires_at_us = int(state.get("expires_us", continuations.expiry_us()))
        if isinstance(self.source, RecallSource) and "list" not in state:
            ranked = Kept(
                id=continuations.journal.new_id(), expires_at_us=expires_at_us, body=self.source.ranked.to_bytes()
            )
            kept.append(ranked)
            state |= {"list": ranked.id.hex(), "expires_us": expires_at_us}
        cursor = Cursor(
            asked=self.asked,
            mode=self.mode,
            positions=self.chosen.positions,
            chains=self.seen.chains,
            generations=self.seen.generations,
            principal=receipt.principal,
            permission_generation=receipt.permission_generation,
            state=state,
            continues=receipt.receipt,
        )
        text, row = continuations.give(cursor, expires_at_us)
        return text, [*kept, row]

    def diagnostics(self) -> Diagnostics:
        notes = self.source.notes
        if notes is EXACT and not self.gathered.missing and not self.gathered.superseded and not self._cuts():
            return self.seen.diagnostics
        return Diagnostics(
            lag=self.chosen.lag,
            truncated=self._cuts(),
            approximate=notes.approximate,
            unembedded=notes.unembedded + self.gathered.superseded,
            missing=self.gathered.missing,
        )

    def _used(self, size: int) -> Mapping[str, int]:
        used = {"atoms": len(self.rendered.rows), "candidates": self.gathered.candidates, "bytes": size}
        return used | ({"network_calls": self.network_calls} if self.network_calls else {})

    def _scopes(self) -> tuple[ReadScope, ...]:
        """What a search looked through."""
        assert self.asked is not None, "a search needs the digest of what was asked"
        observed = tuple(sorted(self.chosen.positions.items()))
        return (ReadScope(selector_digest=self.asked, observed=observed, empty=not self.rendered.rows),)

    def _cuts(self) -> tuple[Mapping[str, Any], ...]:
        """Where work was cut: by the search, or because the page was full before its limit."""
        cuts = [*self.chosen.unreachable, *self.source.notes.cuts]
        if len(self.rendered.rows) < len(self.gathered.rows):
            cuts.append({"part": "page", "why": "full", "rows": len(self.rendered.rows)})
        return tuple(cuts)
