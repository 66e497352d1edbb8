"""An outcome names its record, comes in the form of the request, and is never too big to be sent."""

import json
from typing import Final

import pytest

from atomlog.consumers.cluster.inbox.outcomes import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    OUTCOME_BYTES_MAX,
    Answer,
    Asked,
    outcome_record,
    place_of,
)
from atomlog.consumers.cluster.inbox.requests import Form
from atomlog.kernel.errors import fail
from atomlog.kernel.kafka.values import FetchedRecord, Headers, KafkaRecord
from atomlog.kernel.model import ChangeResult, WriteReceipt, WriteResult
from atomlog.schemas import codec
from atomlog.schemas.batch import Inbox

PLACE: Final = Inbox(topic="cd" * 16, partition=2, offset=41)
RECEIPT: Final = WriteReceipt(space="notes", partition=0, position=3, term=1, chain=b"\1" * 16)
DONE: Final = WriteResult(
    results=(ChangeResult(alias="@a", atom=b"\2" * 16, revision=b"\3" * 16),), receipt=RECEIPT, replayed=False
)
NO: Final = fail("NOT_OWNER", "somebody else", details=[{"path": "x", "code": "NOT_OWNER"}], retry_after_ms=20)


def fetched(record: KafkaRecord) -> FetchedRecord:
    return FetchedRecord(offset=9, timestamp_ms=0, key=record.key, value=record.value, headers=record.headers)


def with_headers(*headers: tuple[str, bytes]) -> FetchedRecord:
    return FetchedRecord(offset=9, timestamp_ms=0, key=None, value=b"", headers=headers)


@pytest.mark.parametrize("form", ["json", "avro"])
@pytest.mark.parametrize("answer", [DONE, NO])
def test_an_outcome_names_its_record_and_carries_what_the_producer_knows_it_by(form: Form, answer: Answer) -> None:
    asked = Asked(key=b"order-7", headers=[("trace", b"t1"), ("atomlog.ok", b"forged")], form=form)
    record = outcome_record(PLACE, asked, answer)
    assert place_of(fetched(record)) == PLACE
    assert record.key == b"order-7"
    assert dict(record.headers) == {
        "atomlog.registration": b"cd" * 16,
        "atomlog.partition": b"2",
        "atomlog.offset": b"41",
        "atomlog.ok": b"true" if answer is DONE else b"false",
        "trace": b"t1",
    }
    assert outcome_record(PLACE, asked, answer) == record


def test_an_outcome_in_json_is_the_documented_result_with_its_place() -> None:
    place = {"registration": "cd" * 16, "partition": 2, "offset": 41}
    assert json.loads(outcome_record(PLACE, Asked(), DONE).value or b"") == {"inbox": place, **DONE.to_dict()}
    refused = json.loads(outcome_record(PLACE, Asked(), NO).value or b"")
    assert refused == {"inbox": place, "ok": False, "error": NO.to_dict()}


def test_an_outcome_in_avro_has_the_same_in_its_fields() -> None:
    done = codec.decode_as("WriteOutcomeV1", outcome_record(PLACE, Asked(form="avro"), DONE).value or b"")
    assert json.loads(done.pop("result")) == DONE.to_dict()
    nothing = {"code": "", "kind": "", "message": "", "details": b"", "retry_after_ms": -1}
    assert done == {"registration": b"\xcd" * 16, "partition": 2, "offset": 41, "ok": True, **nothing}
    no = codec.decode_as("WriteOutcomeV1", outcome_record(PLACE, Asked(form="avro"), NO).value or b"")
    assert json.loads(no.pop("details")) == list(NO.details)
    assert {name: no[name] for name in ("ok", "result", "code", "kind", "message", "retry_after_ms")} == {
        "ok": False,
        "result": b"",
        "code": "NOT_OWNER",
        "kind": "unavailable",
        "message": "somebody else",
        "retry_after_ms": 20,
    }


@pytest.mark.parametrize("form", ["json", "avro"])
def test_an_outcome_that_is_too_big_is_cut_and_says_so(form: Form) -> None:
    many = [{"path": f"changes[{n}]", "code": "X", "message": "m" * 200} for n in range(9_000)]
    huge = [{"path": "p", "code": "X", "message": "m" * OUTCOME_BYTES_MAX}]
    long = fail("INVALID_INPUT", "w" * OUTCOME_BYTES_MAX)
    results = WriteResult(results=DONE.results * 9_000, receipt=RECEIPT, replayed=False)
    for answer in (
        fail("INVALID_INPUT", "why", details=many),
        fail("INVALID_INPUT", "why", details=huge),
        long,
        results,
    ):
        record = outcome_record(PLACE, Asked(form=form), answer)
        assert len(record.value or b"") <= OUTCOME_BYTES_MAX
        assert dict(record.headers)["atomlog.cut"] == (b"results" if answer is results else b"details")
        assert place_of(fetched(record)) == PLACE


def test_keys_and_headers_that_are_too_much_do_not_come_back() -> None:
    many: Headers = [(f"h{n}", b"") for n in range(HEADERS_MAX + 1)]
    for headers, kept in (([("h", b"x" * HEADERS_BYTES_MAX)], 0), (many, HEADERS_MAX)):
        record = outcome_record(PLACE, Asked(key=b"k" * (KEY_BYTES_MAX + 1), headers=headers), NO)
        assert record.key is None
        own = dict(record.headers)
        assert (own["atomlog.cut"], len([name for name in own if name.startswith("h")])) == (b"headers,key", kept)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("atomlog.registration", b"cd" * 16), ("atomlog.partition", b"2")],
        [("atomlog.registration", b"CD" * 16), ("atomlog.partition", b"2"), ("atomlog.offset", b"41")],
        [("atomlog.registration", b"cd" * 16), ("atomlog.partition", b"2"), ("atomlog.offset", b"-1")],
        [("atomlog.registration", b"cd" * 16), ("atomlog.partition", b"02"), ("atomlog.offset", b"41")],
        [("atomlog.registration", b"cd" * 16), ("atomlog.partition", b"2"), ("atomlog.offset", b"9" * 5_000)],
        [("atomlog.registration", "é".encode()), ("atomlog.partition", b"2"), ("atomlog.offset", b"41")],
    ],
)
def test_what_is_no_outcome_is_about_no_record(headers: list[tuple[str, bytes]]) -> None:
    assert place_of(with_headers(*headers)) is None
