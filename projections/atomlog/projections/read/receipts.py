"""The receipt of a page: what was returned, from which positions, how; without any text.

Its JSON form is what `receipt show` prints and what is kept, so that a receipt reads back as it was given.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel.bounds import ID_BYTES
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, shown
from atomlog.kernel.jsontext import dumps, loads
from atomlog.kernel.times import format_time, parse_time
from atomlog.schemas.quick import quick
from atomlog.schemas.revision import ReadRange, ReadScope

RENDERER: Final = "page-v1"
SCORE_BYTES: Final = 4
ANY_ROLE: Final = "*"  # the role of a range that was read over all roles; no role can be named so


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptRow:
    """One atom of the page, as much of it as the revision's own bytes do not say.

    `slots` has the revision that each slot meant at the read, None where there was none. `score_bits` are the
    4 bytes of a float32, big-endian. `spans` are byte ranges of the text that was shown, empty = all of it.
    """

    handle: str
    atom: bytes
    revision: bytes
    slots: tuple[bytes | None, ...]
    score_bits: bytes | None
    reason: Mapping[str, Any]
    status: str
    sealed: bool
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A position of a partition and the chain after it, which proves the history up to it."""

    position: int
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """Where an index stood when the page was made: last applied position and lag in records, by partition."""

    positions: Mapping[int, int]
    lag: Mapping[int, int]
    generation: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReceipt:
    """Everything needed to render the page again, to cite it, and to tell later whether it went stale.

    `continues` is the receipt of the page before. `budget` counts what was used: atoms, candidates, bytes.
    """

    receipt: bytes
    log_id: bytes
    mode: str
    positions: Mapping[int, At]
    indexes: Mapping[str, IndexState]
    rows: tuple[ReceiptRow, ...]
    ranges: tuple[ReadRange, ...]
    scopes: tuple[ReadScope, ...]
    body_sha256: bytes
    recorded_at_us: int
    principal: str
    permission_generation: int
    budget: Mapping[str, int]
    truncations: tuple[Mapping[str, Any], ...] = ()
    encoders: tuple[str, ...] = ()
    scoring: str | None = None
    scoring_digest: bytes | None = None
    renderer: str = RENDERER
    tokenizer: str | None = None
    session: str | None = None
    continues: bytes | None = None

    def observed(self) -> dict[int, int]:
        """The positions alone."""
        return {partition: at.position for partition, at in self.positions.items()}

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `from_dict` reads it back."""
        return self._shown(shown_positions(self.positions), shown_indexes(self.indexes))

    def to_bytes(self, positions: Any = None, indexes: Any = None) -> bytes:
        """`to_dict` as JSON. Many receipts have the same positions and indexes: those may be given as JSON."""
        positions = shown_positions(self.positions) if positions is None else positions
        return dumps(self._shown(positions, shown_indexes(self.indexes) if indexes is None else indexes))

    def _shown(self, positions: Any, indexes: Any) -> dict[str, Any]:
        scoring = None
        if self.scoring is not None:
            scoring = {"name": self.scoring, "digest": (self.scoring_digest or b"").hex()}
        return {
            "receipt": format_id(self.receipt),
            "continues": _id(self.continues),
            "session": self.session,
            "principal": self.principal,
            "log_id": format_id(self.log_id),
            "recorded_at": format_time(self.recorded_at_us),
            "mode": self.mode,
            "positions": positions,
            "indexes": indexes,
            "rows": [_row_dict(row) for row in self.rows],
            "ranges": [_range_dict(found) for found in self.ranges],
            "scopes": [_scope_dict(found) for found in self.scopes],
            "encoders": list(self.encoders),
            "scoring": scoring,
            "renderer": self.renderer,
            "tokenizer": self.tokenizer,
            "permission_generation": self.permission_generation,
            "budget": dict(self.budget),
            "truncations": [dict(cut) for cut in self.truncations],
            "body_sha256": self.body_sha256.hex(),
        }


def shown_positions(positions: Mapping[int, At]) -> dict[str, Any]:
    return {str(p): {"position": at.position, "chain": at.chain.hex()} for p, at in positions.items()}


def shown_indexes(indexes: Mapping[str, IndexState]) -> dict[str, Any]:
    return {name: _index_dict(index) for name, index in indexes.items()}


def receipt_from_bytes(raw: bytes) -> ReadReceipt:
    """CORRUPT when the bytes are no receipt of this version."""
    try:
        return from_dict(loads(raw))
    except (AtomlogError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise fail("CORRUPT", f"a kept receipt is not readable: {shown(str(error))}") from None


def from_dict(value: Mapping[str, Any]) -> ReadReceipt:
    scoring = value["scoring"]
    return ReadReceipt(
        receipt=_raw(value["receipt"]),
        continues=_raw_or_none(value["continues"]),
        session=value["session"],
        principal=_text(value["principal"]),
        log_id=_raw(value["log_id"]),
        recorded_at_us=parse_time(value["recorded_at"], "recorded_at"),
        mode=_text(value["mode"]),
        positions={
            int(partition): At(position=whole_number(at["position"]), chain=bytes.fromhex(at["chain"]))
            for partition, at in value["positions"].items()
        },
        indexes={name: _index(index) for name, index in value["indexes"].items()},
        rows=tuple(_row(row) for row in value["rows"]),
        ranges=tuple(_range(found) for found in value["ranges"]),
        scopes=tuple(_scope(found) for found in value["scopes"]),
        encoders=tuple(_text(encoder) for encoder in value["encoders"]),
        scoring=None if scoring is None else scoring["name"],
        scoring_digest=None if scoring is None else bytes.fromhex(scoring["digest"]),
        renderer=value["renderer"],
        tokenizer=value["tokenizer"],
        permission_generation=whole_number(value["permission_generation"]),
        budget=json_object(value["budget"]),
        truncations=tuple(json_object(cut) for cut in value["truncations"]),
        body_sha256=bytes.fromhex(value["body_sha256"]),
    )


def score_of(bits: bytes) -> float:
    """The JSON number of a score: the shortest decimal that is this float32."""
    (value,) = struct.unpack(">f", bits)
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 9))
    return next((number for number in shorter if _is_float32(number, bits)), float(f"{value:.9g}"))


def score_bits(score: float) -> bytes:
    """The 4 bytes of a score as float32; −0 is 0."""
    return struct.pack(">f", score + 0.0)


def positions_dict(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): position for partition, position in positions.items()}


def positions_of(value: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): whole_number(position) for partition, position in value.items()}


def whole_number(value: object) -> int:
    """ValueError for anything but an integer."""
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is no integer")
    return value


def json_object(value: object) -> dict[str, Any]:
    """ValueError for anything but a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is no object")
    return value


def _is_float32(number: float, bits: bytes) -> bool:
    try:
        return struct.pack(">f", number) == bits
    except OverflowError:  # rounded up beyond the largest
        return False


def _id(raw: bytes | None) -> str | None:
    return None if raw is None else format_id(raw)


def _raw(text: str) -> bytes:
    raw = bytes.fromhex(text.replace("-", ""))
    if len(raw) != ID_BYTES:
        raise ValueError(f"{shown(text)} is no id")
    return raw


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no text")
    return value


def _bits(text: str) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != SCORE_BYTES:
        raise ValueError(f"{shown(text)} is no score")
    return raw


def _raw_or_none(text: str | None) -> bytes | None:
    return None if text is None else _raw(text)


def _index_dict(index: IndexState) -> dict[str, Any]:
    return {
        "position": positions_dict(index.positions),
        "lag": positions_dict(index.lag),
        "generation": index.generation,
    }


def _index(value: Mapping[str, Any]) -> IndexState:
    return IndexState(
        positions=positions_of(value["position"]), lag=positions_of(value["lag"]), generation=value["generation"]
    )


def _row_dict(row: ReceiptRow) -> dict[str, Any]:
    return {
        "handle": row.handle,
        "atom": format_id(row.atom),
        "revision": format_id(row.revision),
        "slots": [_id(resolved) for resolved in row.slots],
        "spans": [list(span) for span in row.spans],
        "score_bits": None if row.score_bits is None else row.score_bits.hex(),
        "reason": dict(row.reason),
        "status": row.status,
        "sealed": row.sealed,
    }


def _row(value: Mapping[str, Any]) -> ReceiptRow:
    bits = value["score_bits"]
    return ReceiptRow(
        handle=_text(value["handle"]),
        atom=_raw(value["atom"]),
        revision=_raw(value["revision"]),
        slots=tuple(_raw_or_none(resolved) for resolved in value["slots"]),
        spans=tuple((start, end) for start, end in value["spans"]),
        score_bits=None if bits is None else _bits(bits),
        reason=json_object(value["reason"]),
        status=_text(value["status"]),
        sealed=value["sealed"],
    )


def _range_dict(found: ReadRange) -> dict[str, Any]:
    return {
        "role": found.role,
        "target": format_id(found.target),
        "observed": positions_dict(dict(found.observed)),
        "complete": found.complete,
    }


def _range(value: Mapping[str, Any]) -> ReadRange:
    return ReadRange(
        role=_text(value["role"]),
        target=_raw(value["target"]),
        observed=tuple(positions_of(value["observed"]).items()),
        complete=value["complete"],
    )


def _scope_dict(found: ReadScope) -> dict[str, Any]:
    return {
        "selector_digest": found.selector_digest.hex(),
        "observed": positions_dict(dict(found.observed)),
        "empty": found.empty,
    }


def _scope(value: Mapping[str, Any]) -> ReadScope:
    return ReadScope(
        selector_digest=bytes.fromhex(value["selector_digest"]),
        observed=tuple(positions_of(value["observed"]).items()),
        empty=value["empty"],
    )
