"""What became of a request, as the record that its principal finds on the results topic.

The headers say which record of the inbox is meant, so that nobody has to decode a value to know; the value is in the
form of the request. Outcomes of one inbox partition stand on the results partition of the same number, in the order of
the requests, so that the last ones say how far an inbox has been worked through.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.cluster.inbox.requests import Form
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.values import FetchedRecord, Headers, KafkaRecord
from atomlog.kernel.model import WriteResult, error_result
from atomlog.schemas import codec
from atomlog.schemas.batch import Inbox

SCHEMA: Final = "WriteOutcomeV1"
OWN_HEADERS: Final = "atomlog."
REGISTRATION: Final = "atomlog.registration"
PARTITION: Final = "atomlog.partition"
OFFSET: Final = "atomlog.offset"
OK: Final = "atomlog.ok"
CUT: Final = "atomlog.cut"

OUTCOME_BYTES_MAX: Final = 768 * 1024  # of its value: a broker takes 1 MiB unless told otherwise
MESSAGE_CHARACTERS_MAX: Final = 2_000
DETAILS_KEPT: Final = 100  # of an error that is too long with all of them
KEY_BYTES_MAX: Final = 4 * 1024  # of a request's key that comes back with the outcome
HEADERS_MAX: Final = 32
HEADERS_BYTES_MAX: Final = 8 * 1024

_OVERHEAD: Final = 24  # of a record or header: lengths, and the length of a character's bytes where it has several
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_ID: Final = re.compile(rb"[0-9a-f]{32}")

Answer = WriteResult | AtomlogError


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of a request's record comes back with its outcome."""

    key: bytes | None = None
    headers: Headers = ()
    form: Form = "json"


def outcome_record(inbox: Inbox, asked: Asked, answer: Answer) -> KafkaRecord:
    """The record that tells it. The same request and answer make the same bytes."""
    headers, cut = _returned(asked.headers)
    key = asked.key
    if key is not None and len(key) > KEY_BYTES_MAX:
        key, cut = None, [*cut, "key"]
    told, shortened = _told(inbox, answer, asked.form)
    own = [
        (REGISTRATION, inbox.topic.encode()),
        (PARTITION, b"%d" % inbox.partition),
        (OFFSET, b"%d" % inbox.offset),
        (OK, b"true" if isinstance(answer, WriteResult) else b"false"),
    ]
    cut = [*cut, *shortened]
    if cut:
        own.append((CUT, ",".join(cut).encode()))
    return KafkaRecord(key=key, value=told, headers=(*own, *headers))


def bare_record(record: KafkaRecord) -> KafkaRecord:
    """The same in as few bytes as there can be, for a topic that does not take it: which record it was, and whether it
    was accepted. Its value is empty.
    """
    own = [(name, value) for name, value in record.headers if name in (REGISTRATION, PARTITION, OFFSET, OK)]
    return KafkaRecord(value=b"", headers=(*own, (CUT, b"all")))


def sent_bytes(record: KafkaRecord | FetchedRecord) -> int:
    """About how many bytes it takes in a batch."""
    headers = sum(len(name) + len(value) + _OVERHEAD for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + _OVERHEAD


def place_of(record: FetchedRecord) -> Inbox | None:
    """Which record of an inbox an outcome is about; None for what is no outcome."""
    found = {name: value for name, value in record.headers if name in (REGISTRATION, PARTITION, OFFSET)}
    topic, partition, offset = (found.get(name) or b"" for name in (REGISTRATION, PARTITION, OFFSET))
    if not (_ID.fullmatch(topic) and _NUMBER.fullmatch(partition) and _NUMBER.fullmatch(offset)):
        return None
    return Inbox(topic=topic.decode(), partition=int(partition), offset=int(offset))


def _returned(headers: Headers) -> tuple[Headers, list[str]]:
    """The producer's own headers, for it to know its request by; what is too much is left out, and said."""
    kept: list[tuple[str, bytes]] = []
    size = 0
    for name, value in headers:
        if name.startswith(OWN_HEADERS):
            continue
        size += len(name.encode("utf-8", "surrogateescape")) + len(value or b"")
        if len(kept) == HEADERS_MAX or size > HEADERS_BYTES_MAX:
            return kept, ["headers"]
        kept.append((name, value or b""))
    return kept, []


def _told(inbox: Inbox, answer: Answer, form: Form) -> tuple[bytes, list[str]]:
    """The value, and what of it was left out."""
    encode = _avro if form == "avro" else _json
    whole = answer.to_dict() if isinstance(answer, WriteResult) else error_result(answer.to_dict())
    first = encode(inbox, whole)
    if len(first) <= OUTCOME_BYTES_MAX:
        return first, []
    what = "results" if whole["ok"] else "details"
    for shorter in _shortened(whole):
        value = encode(inbox, shorter)
        if len(value) <= OUTCOME_BYTES_MAX:
            break
    return value, [what]


def _shortened(whole: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The same with less and less in it, the last one small in any case."""
    if whole["ok"]:
        yield {**whole, "results": []}
        return
    error = {**whole["error"], "message": whole["error"]["message"][:MESSAGE_CHARACTERS_MAX]}
    yield {**whole, "error": {**error, "details": error["details"][:DETAILS_KEPT]}}
    yield {**whole, "error": {**error, "details": []}}


def _json(inbox: Inbox, told: Mapping[str, Any]) -> bytes:
    place = {"registration": inbox.topic, "partition": inbox.partition, "offset": inbox.offset}
    return jsontext.dumps({"inbox": place, **told})


def _avro(inbox: Inbox, told: Mapping[str, Any]) -> bytes:
    error = told.get("error") or {"code": "", "kind": "", "message": "", "details": [], "retry_after_ms": None}
    retry_after_ms = error["retry_after_ms"]
    return codec.encode_as(
        SCHEMA,
        {
            "registration": bytes.fromhex(inbox.topic),
            "partition": inbox.partition,
            "offset": inbox.offset,
            "ok": told["ok"],
            "result": jsontext.dumps(told) if told["ok"] else b"",
            "code": error["code"],
            "kind": error["kind"],
            "message": error["message"].encode("utf-8", "replace").decode(),
            "details": b"" if told["ok"] else jsontext.dumps(error["details"]),
            "retry_after_ms": -1 if retry_after_ms is None else retry_after_ms,
        },
    )
