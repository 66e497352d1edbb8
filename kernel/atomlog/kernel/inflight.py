"""What an owner has taken in and not answered yet: asks, and the groups they were appended in."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from atomlog.kernel import model
from atomlog.kernel.decide import Prepared
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.heads import HeadView
from atomlog.schemas.batch import Batch
from atomlog.schemas.record import Record

Answer = model.WriteResult | model.Outcome


@dataclass(slots=True, eq=False)
class Ask:
    """One write, or one question for an outcome (`question`), waiting for its answer."""

    prepared: Prepared
    answer: "asyncio.Future[Answer]"
    question: bool = False
    tries: int = 0
    joined: list["Ask"] = field(default_factory=list)  # the same request, arrived while this one is on its way

    def accept(self, result: model.WriteResult) -> None:
        for ask, replayed in ((self, result.replayed), *((ask, True) for ask in self.joined)):
            answer = model.WriteResult(results=result.results, receipt=result.receipt, replayed=replayed)
            ask._set(model.Outcome(state="accepted", result=answer) if ask.question else answer)

    def refuse(self, error: AtomlogError) -> None:
        for ask in (self, *self.joined):
            if not ask.answer.done():
                ask.answer.set_exception(error)

    def tell(self, outcome: model.Outcome) -> None:
        self._set(outcome)

    def _set(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch of a group and the ask it answers."""

    ask: Ask
    batch: Batch


@dataclass(slots=True, eq=False)
class Group:
    """Records that are appended as one, their overlay layer, and the refusals that wait for them.

    `left` counts records not read back; at 0 the layer goes and the refusals are decided again.
    """

    term: int
    records: list[Record] = field(default_factory=list)
    writes: dict[int, Appended] = field(default_factory=dict)  # by seq
    blobs: list[bytes] = field(default_factory=list)
    layer: dict[bytes, bytes] = field(default_factory=dict)
    refused: list[Ask] = field(default_factory=list)
    left: int = 0
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

    def before(self, group: Group) -> Group | None:
        """The newest group before `group` that has records."""
        return next((other for other in reversed(self._groups) if other is not group and other.records), None)

    def push(self, group: Group) -> None:
        """Open a group: what it stages is seen from now on."""
        self._groups.append(group)
        self._view.layers.append(group.layer)

    def drop(self, group: Group) -> None:
        """Close a group: it was read back whole and what it staged is in the heads, or it is empty."""
        self._groups.remove(group)
        self._view.layers.remove(group.layer)

    def clear(self) -> list[Ask]:
        """Give up the overlay; the caller answers the asks that were in it, or decides them again."""
        asks = [ask for group in self._groups for ask in group.asks()]
        self._groups.clear()
        self._view.layers.clear()
        return asks

    def find(self, seq: int, term: int) -> Group | None:
        """The group of an own record."""
        for group in self._groups:
            if group.term == term and group.records and group.records[0].seq <= seq <= group.records[-1].seq:
                return group
        return None

    def writing(self, request_key: bytes) -> Ask | None:
        """The ask whose batch with this request key is on its way."""
        for group in self._groups:
            for appended in group.writes.values():
                if appended.batch.request_key == request_key:
                    return appended.ask
        return None

    def revision(self, revision: bytes) -> bytes | None:
        """The bytes of a revision that is on its way."""
        for group in self._groups:
            for appended in group.writes.values():
                for data in appended.batch.revisions:
                    if data[16:32] == revision:
                        return data
        return None
