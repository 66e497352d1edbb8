"""What a record of an inbox asks for: JSON, or Avro of the schema WriteRequestV1; both mean a batch as in docs/json.md.

Whoever may write to an inbox may write any bytes there. Each is a request or has an error that says what is wrong.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.findings import REFUSED, Findings
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.jsontext import parse_json
from atomlog.kernel.model import WriteRequest
from atomlog.kernel.requests import parse_write
from atomlog.schemas import codec
from atomlog.schemas.batch import Inbox
from atomlog.schemas.varint import WireError

SCHEMA: Final = "WriteRequestV1"
KEY_PREFIX: Final = "inbox:"  # of the idempotency key of a request that brings none

Form = Literal["json", "avro"]

_TEXTS: Final = ("op", "as", "key", "schema", "policy", "atom", "expected")
_JSON: Final = ("value", "slots", "valid_time", "origins", "provenance")
_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRequest:
    """A request as it was understood: `batch` in the documented JSON, `parsed` with the record and its rights."""

    batch: Mapping[str, Any]
    parsed: WriteRequest


def form_of(value: bytes | None) -> Form:
    """In which form a request came, which is the form of its outcome: Avro by its two first bytes, else JSON."""
    return "avro" if value is not None and value.startswith(codec.MARKER) else "json"


def place_key(inbox: Inbox) -> str:
    """The idempotency key of a record that brings none: its place, which no other record ever has."""
    return f"{KEY_PREFIX}{inbox.topic}:{inbox.partition}:{inbox.offset}"


def read_request(value: bytes | None, inbox: Inbox, rights: frozenset[str]) -> InboxRequest:
    """The request of the record at `inbox`.

    Raises:
        INVALID_INPUT, BOUND_EXCEEDED, and what else `parse_write` raises: what is wrong with it, by parts.
    """
    if value is None:
        raise invalid("value", "the record has no value; send a batch as JSON, or as Avro of the schema WriteRequestV1")
    batch = _from_avro(value) if form_of(value) == "avro" else _from_json(value)
    key = batch.get("idempotency_key")
    if isinstance(key, str) and key.startswith(KEY_PREFIX):
        raise invalid("idempotency_key", f"{shown(key)} begins with {KEY_PREFIX}, which is for requests without a key")
    if key is None:
        batch["idempotency_key"] = place_key(inbox)
    return InboxRequest(batch=batch, parsed=replace(parse_write(batch), inbox=inbox, rights=rights))


def to_message(request: InboxRequest, principal: str) -> dict[str, Any]:
    """The parts of a message with which another node is asked to carry it out."""
    inbox, rights = request.parsed.inbox, request.parsed.rights
    assert inbox is not None
    assert rights is not None
    place = {"topic": inbox.topic, "partition": inbox.partition, "offset": inbox.offset}
    return {"batch": request.batch, "principal": principal, "inbox": place, "rights": sorted(rights)}


def with_origin(request: WriteRequest, message: Mapping[str, Any]) -> WriteRequest:
    """The request of another node's message, with the record and the rights that stand in it, if any."""
    place, rights = message.get("inbox"), message.get("rights")
    if place is None:
        return request
    if not isinstance(place, Mapping) or not _is_place(place):
        raise invalid("inbox", f"{shown(place)} is no record of an inbox")
    if not isinstance(rights, list) or not all(isinstance(one, str) for one in rights):
        raise invalid("rights", f"{shown(rights)} are no rights")
    return replace(request, inbox=Inbox(**place), rights=frozenset(rights))


def _is_place(place: Mapping[str, Any]) -> bool:
    kinds = {"topic": str, "partition": int, "offset": int}
    return place.keys() == kinds.keys() and all(type(place[name]) is kind for name, kind in kinds.items())


def _from_json(value: bytes) -> dict[str, Any]:
    if value.startswith(b"\x00"):
        message = "it begins with the framing of a schema registry; send Avro in single-object encoding, or JSON"
        raise invalid("value", message)
    found = parse_json(value, bytes_max=codec.VALUE_BYTES_MAX, checked=False)
    if not isinstance(found, dict):
        raise invalid("value", f"{shown(found)} is no batch; send one object")
    return found


def _from_avro(value: bytes) -> dict[str, Any]:
    """The batch in the documented JSON: a field that is empty is left out."""
    if len(value) > codec.VALUE_BYTES_MAX:
        message = f"{len(value)} bytes are more than {codec.VALUE_BYTES_MAX}"
        raise fail("BOUND_EXCEEDED", f"value: {message}", details=[_detail(message)])
    try:
        datum = codec.decode_as(SCHEMA, value)
    except WireError as error:
        raise invalid("value", f"not Avro of the schema {SCHEMA} in single-object encoding: {error}") from None
    findings = Findings()
    changes = [_change(one, f"changes[{n}]", findings) for n, one in enumerate(datum["changes"])]
    batch: dict[str, Any] = {"space": datum["space"], "changes": changes}
    if datum["idempotency_key"]:
        batch["idempotency_key"] = datum["idempotency_key"]
    if datum["preconditions"]:
        batch["preconditions"] = findings.take(_json, datum["preconditions"], "preconditions", REFUSED)
    if findings.details:
        raise findings.error()
    return batch


def _change(datum: Mapping[str, Any], path: str, findings: Findings) -> dict[str, Any]:
    change: dict[str, Any] = {name: datum[name] for name in _TEXTS if datum[name]}
    for name in _JSON:
        if datum[name]:
            change[name] = findings.take(_json, datum[name], f"{path}.{name}", REFUSED)
    if datum["vectors"]:
        change["vectors"] = _vectors(datum["vectors"], f"{path}.vectors", findings)
    return change


def _json(raw: bytes, path: str) -> Any:
    return parse_json(raw, path, checked=False)


def _vectors(found: Sequence[Mapping[str, Any]], path: str, findings: Findings) -> dict[str, list[float]]:
    vectors: dict[str, list[float]] = {}
    for n, one in enumerate(found):
        if one["space"] in vectors:
            findings.add(f"{path}[{n}].space", f"{shown(one['space'])} stands twice")
        vectors[one["space"]] = findings.take(_floats, one["values"], f"{path}[{n}].values", [])
    return vectors


def _floats(raw: bytes, path: str) -> list[float]:
    if len(raw) % _FLOAT_BYTES:
        raise invalid(path, f"{len(raw)} bytes are no float32 numbers of {_FLOAT_BYTES} bytes each")
    numbers = array("f", raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _detail(message: str) -> dict[str, Any]:
    return {"path": "value", "code": "BOUND_EXCEEDED", "message": message}


def of_unreadable(problem: str) -> AtomlogError:
    """The error of a record whose bytes the broker's client could not read."""
    return invalid("value", f"the record cannot be read: {problem}")
