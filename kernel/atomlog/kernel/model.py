"""What callers ask for and what they get: typed, frozen, before any bytes.

A request is parsed into these values by `requests`, decided on by `decide`, and becomes `RevisionV1` bytes there.
What stands in the log is in `atomlog.schemas.revision`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.kernel.ids import format_id
from atomlog.schemas.batch import Inbox
from atomlog.schemas.revision import ValidTime

Positions = Mapping[int, int]
"""Partition → position p, meaning "after applying the record at p"; −1 = before the first record."""

LOCAL_PRINCIPAL: Final = "local"


@dataclass(frozen=True, slots=True)
class Alias:
    """A name inside one batch (with its `@`), for an atom that the batch creates or changes."""

    name: str


@dataclass(frozen=True, slots=True)
class Handle:
    """A row of a receipt, `RECEIPT#a1`."""

    receipt: bytes
    handle: str


AtomRef = bytes | Alias | Handle
RevisionRef = bytes | Alias


class Keep:
    """Stands for "omitted: carried over from the head"."""


KEEP: Final = Keep()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    role: str
    target: AtomRef
    at: RevisionRef | None = None
    include: bool = False
    required: bool = False
    order_key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRequest:
    """Bytes [start, end) of the NFC UTF-8 text of a source revision."""

    source: AtomRef
    revision: RevisionRef
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceRequest:
    kind: str | None = None
    activity: str = ""
    receipts: tuple[bytes, ...] = ()
    model: str = ""
    prompt_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """`path` names the change in errors, e.g. `changes[3]`. `policy` defaults to the space."""

    path: str
    alias: str | None
    key: str | None
    schema: str
    policy: str
    value: Any
    slots: tuple[SlotRequest, ...] = ()
    valid_time: ValidTime | None = None
    origins: tuple[OriginRequest, ...] = ()
    provenance: ProvenanceRequest = ProvenanceRequest()
    vectors: tuple[tuple[str, tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revise:
    path: str
    alias: str | None
    atom: AtomRef
    expected: bytes
    value: Any
    slots: tuple[SlotRequest, ...] | Keep = KEEP
    valid_time: ValidTime | Keep | None = KEEP
    origins: tuple[OriginRequest, ...] = ()
    provenance: ProvenanceRequest = ProvenanceRequest()
    vectors: tuple[tuple[str, tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    path: str
    alias: str | None
    atom: AtomRef
    expected: bytes


Change = Create | Revise | Retire


def refers_to_nothing(change: Create) -> bool:
    """Whether a new atom names no other atom, no source and no receipt: nothing has to be looked up for it."""
    return not (change.slots or change.origins or change.provenance.receipts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadIs:
    path: str
    atom: AtomRef
    revision: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """No revision of the atom was ever accepted."""

    path: str
    atom: AtomRef


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadUnchanged:
    """The head has not changed since a revision of it (16 bytes), or since a position of its partition."""

    path: str
    atom: AtomRef
    since: bytes | int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeUnchanged:
    """No atom of the batch's space gained, lost or changed a slot (role, target) after the position."""

    path: str
    role: str
    target: AtomRef
    unchanged_since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeUnchanged:
    """No atom of this schema in the batch's space was created or changed after the position."""

    path: str
    schema: str
    unchanged_since: int


Precondition = HeadIs | Absent | HeadUnchanged | RangeUnchanged | ScopeUnchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """One parsed batch. `canonical` is the canonical JSON of {changes, preconditions, session} as sent.

    `levels`: how deep the whole batch is nested if it is simple JSON (`jsontext.simple_copy`), else None. `inbox`: the
    record that asked for it, and `rights` those of who wrote that record; None = not over an inbox, all of the process.
    """

    space: str
    idempotency_key: str
    changes: tuple[Change, ...]
    preconditions: tuple[Precondition, ...]
    canonical: bytes
    levels: int | None = field(default=None, compare=False)
    inbox: Inbox | None = field(default=None, compare=False)
    rights: frozenset[str] | None = field(default=None, compare=False)

    def repeats(self, inbox: Inbox | None) -> bool:
        """False when the batch that answers this request came from the very record that asks: it is no repetition."""
        return self.inbox is None or self.inbox != inbox


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReceipt:
    """Where an accepted batch stands; `chain` proves the history up to it."""

    space: str
    partition: int
    position: int
    term: int
    chain: bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "space": self.space,
            "partition": self.partition,
            "position": self.position,
            "term": self.term,
            "chain": self.chain.hex(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    alias: str | None
    atom: bytes
    revision: bytes

    def to_dict(self) -> dict[str, Any]:
        ids = {"atom": format_id(self.atom), "revision": format_id(self.revision)}
        return ids if self.alias is None else {"as": self.alias, **ids}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """An accepted write; `replayed` when the same request had been accepted before."""

    results: tuple[ChangeResult, ...]
    receipt: WriteReceipt
    replayed: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": True,
            "results": [result.to_dict() for result in self.results],
            "receipt": self.receipt.to_dict(),
            "replayed": self.replayed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is known of an idempotency key: accepted (with the result), never (no attempt can still count), unknown."""

    state: str
    result: WriteResult | None = None
    term: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "outcome": self.state,
            "result": None if self.result is None else self.result.to_dict(),
            "term": self.term,
        }


def error_result(error: Mapping[str, Any]) -> dict[str, Any]:
    """The line that stands for a refused write."""
    return {"ok": False, "error": dict(error)}
