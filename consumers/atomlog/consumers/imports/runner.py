"""Carries out the writes of an import, one after the other: skip, compare, write, and try again after a lost race."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.consumers.imports.build import Built, atoms_needed, build, members_needed, memberships_needed
from atomlog.consumers.imports.heads import ImportStore, Keys, Known, Memberships
from atomlog.consumers.imports.lines import Line
from atomlog.consumers.imports.plan import Refused, Write
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.imports.survey import Survey
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import parse_id
from atomlog.kernel.ports import Clock

ATTEMPTS_MAX: Final = 8  # of one write, against other writers and passing failures
LOST_RACES: Final = ("REVISION_CONFLICT", "PRECONDITION_FAILED", "IDEMPOTENCY_MISMATCH", "IN_DOUBT")
REFUSALS: Final = ("invalid", "conflict", "capability", "denied")  # of one batch; other kinds end the import
NO_REFUSALS: Final = ("STORE_NOT_FOUND", "STORE_TOO_NEW", "STORE_READ_ONLY")
WHOLE: Final = ("changes", "preconditions")  # what a batch as a whole is refused under
ELSEWHERE: Final = ("ATOMICITY_UNAVAILABLE", "NOT_FOUND")  # what a membership of another space is answered with


@dataclass(slots=True, kw_only=True)
class Runner:
    """One import into one space.

    `passed` is told the bytes of each write that is done; `say` what a person should know; `written` is called after
    each acknowledged write. A refused batch ends the import with its error unless `keep_going`.
    """

    store: ImportStore
    keys: Keys
    activity: str
    split: bool
    keep_going: bool
    clock: Clock
    summary: Summary
    passed: Callable[[int], None] = lambda size_bytes: None
    say: Callable[[str], None] = lambda message: None
    written: Callable[[], None] = lambda: None
    survey: Survey = field(default_factory=Survey)

    async def run(self, writes: AsyncIterator[Write | Refused]) -> None:
        """All of them, or up to the first refused one, whose error is raised. The summary counts what was done."""
        ordinal = 0
        async for item in writes:
            if isinstance(item, Refused):
                self._refuse(item.error)
            else:
                await self._carry_out(ordinal, item)
                ordinal += 1
            self.passed(item.size_bytes)
            await asyncio.sleep(0)  # projections follow on the same loop

    async def _carry_out(self, ordinal: int, write: Write) -> None:
        if write.part == 1 and not write.last:
            self._say_split(write)
        try:
            if self.survey.is_accepted(ordinal, write) or await self.store.accepted(write.key):
                self._skip(write)
            elif self.survey.is_begun(ordinal):
                await self._halves(ordinal, write)
            else:
                await self._write(ordinal, write)
        except AtomlogError as error:
            if error.kind not in REFUSALS or error.code in NO_REFUSALS:
                raise
            self._refuse(error)

    def _refuse(self, error: AtomlogError) -> None:
        self.summary.refuse(error)
        if not self.keep_going:
            raise error
        self.say(error.message)

    def _say_split(self, write: Write) -> None:
        self.summary.split += 1
        batch = "" if write.batch is None else f"batch {ascii(write.batch)[:80]}, "
        lines = f"from line {write.lines[0].number} on"
        self.say(f"{batch}{lines}: over the bounds; written in parts, in order, each part all or nothing")

    def _skip(self, write: Write) -> None:
        self.summary.batches += 1
        self.summary.skipped += 1
        self.summary.lines += len(write.lines)

    async def _halves(self, ordinal: int, write: Write) -> None:
        """A write that is too large once its retired memberships count: in two, each under a key of its own."""
        for half in write.halves():
            if await self.store.accepted(half.key):
                self._skip(half)
            else:
                await self._write(ordinal, half)

    async def _write(self, ordinal: int, write: Write) -> None:
        current = tuple(line for line in write.lines if not self.survey.is_superseded(ordinal, line))
        try:
            done = await self._attempts(write, current)
        except AtomlogError as error:
            if not _is_too_large(error) or len(current) == 1:
                raise
            if not self.split:
                raise fail(error.code, f"{error.message}; --split writes it in parts", details=error.details) from None
            self._say_split(write)
            await self._halves(ordinal, write)
            return
        self.summary.batches += 1
        self.summary.lines += len(write.lines)
        self.summary.superseded += len(write.lines) - len(current)
        if done is None:
            self.summary.skipped += 1
            return
        self.summary.no_ops += done.no_ops
        self.summary.changes += len(done.changes)
        if done.changes:
            self.summary.written += 1
            self.written()
        else:
            self.summary.unchanged += 1

    async def _attempts(self, write: Write, lines: tuple[Line, ...]) -> Built | None:
        """Until it is written or says nothing new; None when it turns out to be accepted already."""
        foreign: frozenset[bytes] = frozenset()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            built: Built | None = None
            try:
                built = build(
                    write.key, lines, await self._known(lines), self.keys, activity=self.activity, foreign=foreign
                )
                if built.changes:
                    await self.store.write(built.batch())
                return built
            except AtomlogError as error:
                elsewhere = _elsewhere(error, built)
                purged = _purged(error, built)
                if purged:
                    self.summary.purged += len(purged)
                    lines = tuple(line for line in lines if line.number not in purged)
                elif elsewhere - foreign:
                    foreign |= elsewhere
                elif attempt == ATTEMPTS_MAX or not _may_pass(error):
                    raise error if built is None else built.located(error) from None
                else:
                    await self._pause(error)
                if await self.store.accepted(write.key):
                    return None if error.code == "IDEMPOTENCY_MISMATCH" else built
        raise AssertionError("the last attempt returns or raises")

    async def _known(self, lines: Sequence[Line]) -> Known:
        heads = dict(await self.store.heads(atoms_needed(lines, self.keys)))
        memberships: dict[bytes, Memberships] = {}
        for member in members_needed(lines, heads, self.keys):
            memberships[member] = await self.store.memberships(member)
        known = Known(heads=heads, memberships=memberships)
        if needed := memberships_needed(lines, known, self.keys):
            heads |= await self.store.heads(needed)
        return known

    async def _pause(self, error: AtomlogError) -> None:
        self.summary.retries += 1
        if error.retry_after_ms:
            self.say(f"waiting: {error.code}: {error.message}")
            await self.clock.sleep(error.retry_after_ms / 1_000)
        await self.store.settle()


def _may_pass(error: AtomlogError) -> bool:
    """True when the same lines, compared again with the store, may be accepted."""
    return error.code in LOST_RACES or error.retry_after_ms is not None


def _is_too_large(error: AtomlogError) -> bool:
    """True when a batch of fewer lines may pass: the whole is over a bound, not one of its parts."""
    return error.code == "BOUND_EXCEEDED" and any(detail.get("path") in WHOLE for detail in error.details)


def _purged(error: AtomlogError, built: Built | None) -> frozenset[int]:
    """The numbers of the lines whose atoms were erased: terminal, so the rest goes on without them."""
    if error.code != "PURGED" or built is None:
        return frozenset()
    lines = (built.line_of(detail) for detail in error.details if detail.get("code") == "PURGED")
    return frozenset(line.number for line in lines if line is not None)


def _elsewhere(error: AtomlogError, built: Built | None) -> frozenset[bytes]:
    """The memberships of other spaces among those that the batch would have retired."""
    if error.code not in ELSEWHERE or built is None:
        return frozenset()
    indexes = (built.change_of(detail) for detail in error.details)
    changes = (built.changes[index] for index in indexes if index is not None)
    return frozenset(parse_id(change["atom"], "atom") for change in changes if change["op"] == "retire")
