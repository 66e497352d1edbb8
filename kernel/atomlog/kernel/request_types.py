"""The typed batch: the JSON of a write as typed dictionaries, so that a type checker sees a wrong field.

At run time a `Batch` is an ordinary mapping; `requests.parse_write` reads it strictly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypedDict


class KeyedAtom(TypedDict):
    key: str
    space: NotRequired[str | None]
    policy: NotRequired[str | None]


"""The atom of a key; the space is the batch's, the policy the one named like the space, unless given."""

AtomName = str | bytes | KeyedAtom
"""UUID text, 16 raw bytes, `key:TEXT`, `@alias`, `RECEIPT#a1`, or a key object."""

RevisionName = str | bytes
"""UUID text, 16 raw bytes, or the alias of a change of the batch."""


class SlotItem(TypedDict, total=False):
    role: Required[str]
    target: Required[AtomName]
    mode: Literal["refer", "include"]
    revision: RevisionName | None
    required: bool
    order_key: str | None


ValidTimeItem = TypedDict("ValidTimeItem", {"from": NotRequired[str | None], "to": NotRequired[str | None]})
"""RFC 3339 with an offset; half-open, an absent end is open, not both."""


class OriginItem(TypedDict):
    """Bytes [start, end) of the NFC UTF-8 text of a source revision."""

    source: AtomName
    revision: NotRequired[RevisionName]
    start: int
    end: int


class ProvenanceItem(TypedDict, total=False):
    kind: Literal["source", "extract", "generated", "imported"] | None
    activity: str | None
    receipts: Sequence[str | bytes]
    model: str | None
    prompt_digest: str | None


CreateChange = TypedDict(
    "CreateChange",
    {
        "op": Literal["create"],
        "as": NotRequired[str | None],
        "space": NotRequired[str | None],
        "key": NotRequired[str | None],
        "schema": str,
        "policy": NotRequired[str | None],
        "value": NotRequired[Any],
        "slots": NotRequired[Sequence[SlotItem] | None],
        "valid_time": NotRequired[ValidTimeItem | None],
        "origins": NotRequired[Sequence[OriginItem] | None],
        "provenance": NotRequired[ProvenanceItem | None],
        "vectors": NotRequired[Mapping[str, Sequence[float]] | None],
    },
)

ReviseChange = TypedDict(
    "ReviseChange",
    {
        "op": Literal["revise"],
        "as": NotRequired[str | None],
        "space": NotRequired[str | None],
        "atom": AtomName,
        "expected": str | bytes,
        "value": Any,
        "slots": NotRequired[Sequence[SlotItem] | None],
        "valid_time": NotRequired[ValidTimeItem | None],
        "origins": NotRequired[Sequence[OriginItem] | None],
        "provenance": NotRequired[ProvenanceItem | None],
        "vectors": NotRequired[Mapping[str, Sequence[float]] | None],
    },
)
"""`slots` and `valid_time` left out are carried over from the head; `[]` and None clear them."""

RetireChange = TypedDict(
    "RetireChange",
    {
        "op": Literal["retire"],
        "as": NotRequired[str | None],
        "space": NotRequired[str | None],
        "atom": AtomName,
        "expected": str | bytes,
    },
)


class HeadGuard(TypedDict):
    type: Literal["head"]
    atom: AtomName
    revision: RevisionName


class AbsentGuard(TypedDict):
    type: Literal["absent"]
    atom: AtomName


class UnchangedGuard(TypedDict):
    """`since` is a revision of the atom, or a position."""

    type: Literal["unchanged"]
    atom: AtomName
    since: RevisionName | int


class RangeGuard(TypedDict):
    type: Literal["range"]
    role: str
    target: AtomName
    unchanged_since: int


class ScopeGuard(TypedDict):
    type: Literal["scope"]
    schema: str
    unchanged_since: int


class Batch(TypedDict):
    space: str
    idempotency_key: str
    changes: Sequence[CreateChange | ReviseChange | RetireChange]
    preconditions: NotRequired[Sequence[HeadGuard | AbsentGuard | UnchangedGuard | RangeGuard | ScopeGuard] | None]
    session: NotRequired[None]
