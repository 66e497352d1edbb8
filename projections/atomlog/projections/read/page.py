"""A page of a read as typed values; `to_dict` gives the JSON of every face.

`{"atoms", "context"}` is the body: canonical JSON, the same bytes whenever the receipt is replayed. Receipt,
continuation and diagnostics stand outside it. The parts of a row give their members in canonical order, so that the
bytes of a page are not sorted again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import canonical
from atomlog.kernel.times import format_time
from atomlog.projections.read.receipts import ReadReceipt, positions_dict
from atomlog.schemas.content import Origin
from atomlog.schemas.quick import quick
from atomlog.schemas.revision import NO_INPUTS, Inputs, ValidTime

_SHOWN: Final = (
    *("handle", "atom", "revision", "schema", "state", "value", "slots", "kind", "origins", "inputs"),
    *("policy", "valid_time", "score", "match_reason", "recorded_at", "status", "sealed"),
)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RowSlot:
    """A slot as the read resolved it.

    `revision` is the pinned revision, None = logical. `resolved` is what it meant at the read, None = nothing there.
    """

    role: str
    target: bytes
    mode: str
    revision: bytes | None
    resolved: bytes | None
    order_key: str
    required: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "order_key": self.order_key,
            "required": self.required,
            "resolved": None if self.resolved is None else format_id(self.resolved),
            "revision": None if self.revision is None else format_id(self.revision),
            "role": self.role,
            "target": format_id(self.target),
        }


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One revision of an atom. `status`: current, superseded or retired, as of the read's position.

    `sealed`: there was no key to read it with; `value` and `kind` are then None and `origins` empty. `inputs`: what was
    read to make the revision.
    """

    handle: str
    atom: bytes
    revision: bytes
    schema: str
    state: str
    value: Any
    slots: tuple[RowSlot, ...]
    kind: str | None
    origins: tuple[Origin, ...]
    policy: str
    valid_time: ValidTime | None
    score: float | None
    match_reason: Mapping[str, Any]
    recorded_at_us: int
    status: str
    sealed: bool = False
    inputs: Inputs = NO_INPUTS

    def to_dict(self) -> dict[str, Any]:
        """Members in the order in which people look for them."""
        members = self.canonical_members(self.score, self.value)
        return {name: members[name] for name in _SHOWN if name in members}

    def canonical_members(self, score: Any, value: Any) -> dict[str, Any]:
        """The members in the order of canonical JSON; `score` and `value` as given, which may be written already."""
        reason = self.match_reason
        shown: dict[str, Any] = {"atom": format_id(self.atom), "handle": self.handle}
        if self.inputs is not NO_INPUTS:
            shown["inputs"] = _inputs_dict(self.inputs)
        shown["kind"] = self.kind
        shown["match_reason"] = dict(sorted(reason.items())) if len(reason) > 1 else dict(reason)
        shown["origins"] = [_origin_dict(origin) for origin in self.origins]
        shown["policy"] = self.policy
        shown["recorded_at"] = format_time(self.recorded_at_us)
        shown["revision"] = format_id(self.revision)
        shown["schema"] = self.schema
        shown["score"] = score
        if self.sealed:
            shown["sealed"] = True
        shown["slots"] = [slot.to_dict() for slot in self.slots]
        shown["state"] = self.state
        shown["status"] = self.status
        shown["valid_time"] = _valid_time_dict(self.valid_time)
        shown["value"] = value
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What a caller should know about how the page came about.

    `lag`: records each index was behind the log, by partition. `missing`: atoms that were asked for and not found.
    `unembedded`: atoms in scope that have no vector, or none yet. `truncated`: where work was cut, and why.
    """

    lag: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    truncated: tuple[Mapping[str, Any], ...] = ()
    approximate: bool = False
    unembedded: int = 0
    missing: tuple[bytes, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "lag": {name: positions_dict(lag) for name, lag in self.lag.items()},
            "truncated": [dict(cut) for cut in self.truncated],
            "approximate": self.approximate,
            "unembedded": self.unembedded,
            "missing": [format_id(atom) for atom in self.missing],
        }


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`continuation` is None when what was asked for has been worked through, which is no claim that it is all."""

    atoms: tuple[Row, ...]
    receipt: ReadReceipt
    continuation: str | None
    diagnostics: Diagnostics
    context: Mapping[str, Any] | None = None
    trace: Mapping[str, Any] | None = None
    time_cue: Mapping[str, Any] | None = None

    def body(self) -> bytes:
        """The canonical bytes that the receipt's SHA-256 is of."""
        return body_bytes([canonical(row.to_dict(), "row") for row in self.atoms], self.context)

    def to_dict(self) -> dict[str, Any]:
        return {
            "atoms": [row.to_dict() for row in self.atoms],
            "context": self.context,
            "trace": self.trace,
            "time_cue": self.time_cue,
            "receipt": self.receipt.to_dict(),
            "continuation": self.continuation,
            "diagnostics": self.diagnostics.to_dict(),
        }


def body_bytes(rows: Sequence[bytes], context: Mapping[str, Any] | None = None) -> bytes:
    """The body from the canonical bytes of its rows."""
    shown = b"null" if context is None else canonical(context, "context")
    return b"".join((b'{"atoms":[', b",".join(rows), b'],"context":', shown, b"}"))


def _origin_dict(origin: Origin) -> dict[str, Any]:
    return {
        "end": origin.end,
        "revision": format_id(origin.revision),
        "sha256": origin.sha256.hex(),
        "source": format_id(origin.source),
        "start": origin.start,
    }


def _inputs_dict(inputs: Inputs) -> dict[str, Any]:
    return {
        "encoders": list(inputs.encoders),
        "generator": inputs.generator,
        "permission_generation": inputs.grant_generation,
        "ranges": [
            {
                "complete": found.complete,
                "observed": _observed_dict(found.observed),
                "role": found.role,
                "target": format_id(found.target),
            }
            for found in inputs.ranges
        ],
        "scopes": [
            {
                "empty": found.empty,
                "observed": _observed_dict(found.observed),
                "selector_digest": found.selector_digest.hex(),
            }
            for found in inputs.scopes
        ],
        "versions": [{"atom": format_id(one.atom), "revision": format_id(one.revision)} for one in inputs.versions],
    }


def _observed_dict(observed: tuple[tuple[int, int], ...]) -> dict[str, int]:
    return dict(sorted((str(partition), position) for partition, position in observed))


def _valid_time_dict(valid: ValidTime | None) -> dict[str, Any] | None:
    if valid is None:
        return None
    ends = (valid.from_us, valid.to_us)
    time_from, time_to = (None if end is None else format_time(end) for end in ends)
    return {"from": time_from, "to": time_to}
