"""What an owner has taken in and not answered yet: asks, and the groups they were appended in."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from atomlog.kernel import model
from atomlog.kernel.effects import BatchEffects
from atomlog.kernel.errors import fail
from atomlog.kernel.heads import HeadView
from atomlog.kernel.plan import Prepared
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas.record import Record
from atomlog.schemas.revision import REVISION

RETRY_MS: Final = 100

Answer = model.WriteResult | model.Outcome


class Owed:
    """An answer that is owed to one caller, who may go away: it is owed until it is given all the same."""

    __slots__ = ("_forget", "_given", "is_given", "waiter")

    def __init__(self, forget: Callable[["Owed"], None] | None = None) -> None:
        self.waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()  # of the caller alone
        self.is_given = False
        self._given: asyncio.Future[None] | None = None
        self._forget = forget

    def give(self, answer: Answer) -> None:
        if self._end() and not self.waiter.done():
            self.waiter.set_result(answer)

    def refuse(self, error: Exception) -> None:
        if self._end() and not self.waiter.done():
            self.waiter.set_exception(error)

    def drop(self) -> None:
        """Nobody waits for it, and nothing will come."""
        if self._end():
            self.waiter.cancel()

    def given(self) -> "asyncio.Future[None]":
        """Done when it is not owed any more."""
        if self._given is None:
            self._given = asyncio.get_running_loop().create_future()
            if self.is_given:
                self._given.set_result(None)
        return self._given

    def _end(self) -> bool:
        """False when it was given before."""
        if self.is_given:
            return False
        self.is_given = True
        if self._given is not None and not self._given.done():
            self._given.set_result(None)
        if self._forget is not None:
            self._forget(self)
        return True


@dataclass(slots=True, eq=False)
class Ask:
    """One write, or one question for an outcome (`question`), waiting for its answer."""

    prepared: Prepared
    answer: Owed
    question: bool = False
    tries: int = 0
    joined: list["Ask"] = field(default_factory=list)  # the same request, arrived while this one is on its way

    def accept(self, result: model.WriteResult) -> None:
        self._accept(result)
        for ask in self.joined:
            ask._accept(replace(result, replayed=ask.prepared.request.repeats(self.prepared.request.inbox)))

    def _accept(self, result: model.WriteResult) -> None:
        self.answer.give(model.Outcome(state="accepted", result=result) if self.question else result)

    def refuse(self, error: Exception) -> None:
        """The error to who writes; to who only asks, that nothing is known."""
        for ask in (self, *self.joined):
            if ask.question:
                ask.tell(model.Outcome(state="unknown"))
            else:
                ask.answer.refuse(error)

    def tell(self, outcome: model.Outcome) -> None:
        self.answer.give(outcome)


Scope = tuple[str, str, str]  # space, principal, idempotency key


class InHand:
    """The answers that are owed to writers, by scope: bounded in number and in bytes of what they ask for."""

    def __init__(self, *, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._count = 0
        self._answers: dict[Scope, set[Owed]] = {}

    def __len__(self) -> int:
        return self._count

    def take_in(self, scope: Scope, size_bytes: int) -> Owed:
        """A new answer; OVERLOADED when too much waits. A single request is never too much."""
        if self._count >= self._requests_max or (self._count and self._bytes + size_bytes > self._bytes_max):
            message = f"{self._count} writes of {self._bytes} bytes are waiting"
            raise fail("OVERLOADED", message, retry_after_ms=RETRY_MS)
        answer = Owed(lambda given: self._forget(scope, size_bytes, given))
        self._answers.setdefault(scope, set()).add(answer)
        self._count += 1
        self._bytes += size_bytes
        return answer

    def of(self, scope: Scope) -> "list[asyncio.Future[None]]":
        """Each is done when one of the answers that are owed under this scope is given."""
        return [answer.given() for answer in self._answers.get(scope, ())]

    def all(self) -> "list[asyncio.Future[None]]":
        return [answer.given() for answers in self._answers.values() for answer in answers]

    def _forget(self, scope: Scope, size_bytes: int, done: Owed) -> None:
        answers = self._answers[scope]
        answers.discard(done)
        if not answers:
            del self._answers[scope]
        self._count -= 1
        self._bytes -= size_bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch of a group, as its record's value too, and the ask it answers."""

    ask: Ask
    effects: BatchEffects
    value: bytes


@dataclass(slots=True, eq=False)
class Group:
    """Records that are appended as one, their overlay layer, and the refusals that wait for them.

    `left` counts records not read back; at 0 the layer goes and the refusals are decided again. `appended_us` is when
    appending it began, by the monotonic clock.
    """

    term: int
    records: list[Record] = field(default_factory=list)
    writes: dict[int, Appended] = field(default_factory=dict)  # by seq
    blobs: list[tuple[Ask, bytes]] = field(default_factory=list)
    layer: dict[bytes, bytes] = field(default_factory=dict)
    refused: list[Ask] = field(default_factory=list)
    left: int = 0
    appended_us: int = 0
    bytes_total: int = 0

    def asks(self) -> list[Ask]:
        return [appended.ask for appended in self.writes.values()] + self.refused


class Unread:
    """Groups that are appended, or about to be, and not read back; their layers lie over the heads."""

    def __init__(self, view: HeadView) -> None:
        self._view = view
        self._groups: deque[Group] = deque()

    def __contains__(self, group: Group) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def records(self) -> int:
        """How many are appended, or about to be, and not read back."""
        return sum(len(group.records) for group in self._groups)

    def before(self, group: Group) -> Group | None:
        """The newest group before `group` that has records."""
        return next((other for other in reversed(self._groups) if other is not group and other.records), None)

    def push(self, group: Group) -> None:
        """Open a group: what it stages is seen from now on."""
        self._groups.append(group)
        self._lay()

    def drop(self, group: Group) -> None:
        """Close a group: it was read back whole and what it staged is in the heads, or it is empty."""
        self._groups.remove(group)
        self._lay()

    def clear(self) -> list[Ask]:
        """Give up the overlay; the caller answers the asks that were in it, or decides them again."""
        asks = [ask for group in self._groups for ask in group.asks()]
        self._groups.clear()
        self._lay()
        return asks

    def find(self, seq: int, term: int) -> Group | None:
        """The group of an own record."""
        for group in self._groups:
            if group.term == term and group.records and group.records[0].seq <= seq <= group.records[-1].seq:
                return group
        return None

    def effects(self, record: EffectiveRecord) -> BatchEffects | None:
        """The effects of an own batch that was read back as it was written, to the byte; else None."""
        group = self.find(record.record.seq, record.record.term)
        appended = None if group is None else group.writes.get(record.record.seq)
        return appended.effects if appended is not None and appended.value == record.record.value else None

    def writing(self, request_key: bytes) -> Ask | None:
        """The ask whose batch with this request key is on its way."""
        for group in self._groups:
            for appended in group.writes.values():
                if appended.effects.batch.request_key == request_key:
                    return appended.ask
        return None

    def revision(self, revision: bytes) -> bytes | None:
        """The bytes of a revision that is on its way."""
        for group in self._groups:
            for appended in group.writes.values():
                for data in appended.effects.batch.revisions:
                    if data[REVISION] == revision:
                        return data
        return None

    def _lay(self) -> None:
        self._view.layers = [group.layer for group in self._groups]
