"""What a record of an inbox may be: two forms of one request, and any bytes at all."""

import json
import struct
from typing import Any, Final

import pytest

from atomlog.consumers.cluster.inbox.requests import InboxRequest, form_of, place_key, read_request
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.requests import parse_write
from atomlog.schemas import codec
from atomlog.schemas.batch import Inbox
from atomlog.schemas.varint import write_bytes, write_long, write_text

PLACE: Final = Inbox(topic="cd" * 16, partition=2, offset=41)
RIGHTS: Final = frozenset({"write"})
EMPTY_CHANGE: Final[dict[str, Any]] = {
    **dict.fromkeys(("op", "as", "key", "schema", "policy", "atom", "expected"), ""),
    **dict.fromkeys(("value", "slots", "valid_time", "origins", "provenance"), b""),
    "vectors": [],
}
JSON_FIELDS: Final = ("value", "slots", "valid_time", "origins", "provenance")


def change(**fields: Any) -> dict[str, Any]:
    return {**EMPTY_CHANGE, **{name: _raw(name, value) for name, value in fields.items()}}


def _raw(name: str, value: Any) -> Any:
    return json.dumps(value).encode() if name in JSON_FIELDS and not isinstance(value, bytes) else value


def avro(*changes: dict[str, Any], space: str = "notes", key: str = "", preconditions: bytes = b"") -> bytes:
    datum = {"space": space, "idempotency_key": key, "changes": list(changes), "preconditions": preconditions}
    return codec.encode_as("WriteRequestV1", datum)


def read(value: bytes | None) -> InboxRequest:
    return read_request(value, PLACE, RIGHTS)


def refused(value: bytes | None) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        read(value)
    return caught.value


def test_both_forms_of_a_request_are_the_same_batch() -> None:
    batch: dict[str, Any] = {
        "space": "notes",
        "idempotency_key": "k",
        "changes": [
            {
                "op": "create",
                "as": "@t",
                "key": "tea",
                "schema": "collection",
                "policy": "private",
                "value": {"title": "Tea"},
                "valid_time": {"from": "2026-03-01T00:00:00Z", "to": None},
                "vectors": {"supplied.x/1/2/l2": [0.5, -2.0]},
            },
            {
                "op": "revise",
                "atom": "key:cup",
                "expected": "0195b0b2-0000-7000-8000-000000000001",
                "value": None,
                "slots": [],
            },
            {"op": "retire", "atom": "key:old", "expected": "0195b0b2-0000-7000-8000-000000000002"},
        ],
        "preconditions": [{"type": "absent", "atom": "key:tea"}],
    }
    create, revise, retire = batch["changes"]
    vector = {"space": "supplied.x/1/2/l2", "values": struct.pack("<2f", 0.5, -2.0)}
    value = avro(
        change(**{**create, "vectors": [vector]}),
        change(**revise),
        change(**retire),
        key="k",
        preconditions=json.dumps(batch["preconditions"]).encode(),
    )
    assert read(value).batch == batch
    assert read(value).parsed == read(json.dumps(batch).encode()).parsed == parse_write(batch)


def test_a_request_knows_its_record_and_the_rights_of_its_inbox() -> None:
    for value in (avro(change(op="create", schema="source", value="x")), b'{"space":"s","changes":[' + _CREATE + b"]}"):
        parsed = read(value).parsed
        assert (parsed.inbox, parsed.rights) == (PLACE, RIGHTS)
        assert parsed.idempotency_key == place_key(PLACE) == f"inbox:{'cd' * 16}:2:41"


_CREATE: Final = b'{"op":"create","schema":"source","value":"x"}'


def test_a_key_of_its_own_counts_and_one_that_looks_like_a_place_is_refused() -> None:
    own = b'{"space":"s","idempotency_key":"%s","changes":[' + _CREATE + b"]}"
    assert read(own % b"mine").parsed.idempotency_key == "mine"
    error = refused(own % place_key(PLACE).encode())
    assert (error.code, error.details[0]["path"]) == ("INVALID_INPUT", "idempotency_key")


def test_what_is_left_out_of_avro_is_left_out_and_what_is_written_as_null_is_null() -> None:
    found = read(
        avro(change(op="revise", atom="key:a", expected="0" * 8 + "-0000-7000-8000-" + "0" * 11 + "1", value=b"null"))
    )
    assert found.batch["changes"] == [
        {"op": "revise", "atom": "key:a", "expected": "00000000-0000-7000-8000-000000000001", "value": None}
    ]


def test_every_broken_part_of_an_avro_request_is_named() -> None:
    broken = avro(
        change(
            op="create", schema="source", value=b"{", slots=b"[1,", vectors=[{"space": "a/1/2/l2", "values": b"\0" * 7}]
        ),
        change(op="create", schema="source", value=b"{}"),
        preconditions=b"}",
    )
    assert [one["path"] for one in refused(broken).details] == [
        "changes[0].value",
        "changes[0].slots",
        "changes[0].vectors[0].values",
        "preconditions",
    ]


def test_the_same_vector_space_twice_is_refused() -> None:
    vector = {"space": "a/1/1/l2", "values": b"\0\0\x80\x3f"}
    error = refused(avro(change(op="create", schema="source", value=b"{}", vectors=[vector, vector])))
    assert error.details[0]["path"] == "changes[0].vectors[1].space"


DEEP: Final = b"[" * 10_000
POISON: Final[dict[str, tuple[bytes | None, str]]] = {
    "no value": (None, "the record has no value"),
    "nothing": (b"", "not JSON"),
    "no JSON": (b"tea", "not JSON"),
    "no UTF-8": (b'{"space":"\xff"}', "not UTF-8 at byte 10"),
    "half a batch": (b'{"space":"notes","changes":[', "not JSON"),
    "JSON of ten thousand levels": (b'{"space":' + DEEP, "nested deeper than 64"),
    "no object": (b"[1]", "is no batch"),
    "a number that JSON has not": (b'{"space":NaN}', "space"),
    "a key twice": (b'{"space":"a","space":"b"}', "twice"),
    "an unknown field": (b'{"space":"a","changes":[],"principal":"root"}', "principal: unknown field"),
    "the framing of a registry": (b"\x00\x00\x00\x00\x07" + b"x" * 20, "framing of a schema registry"),
    "only the marker": (b"\xc3\x01", "not Avro of the schema WriteRequestV1"),
    "another schema": (codec.wrap(codec.load("BatchV1").fingerprint, b"\x00" * 200), "is not WriteRequestV1"),
    "a schema that nobody knows": (codec.wrap(b"\x01" * 8, b"\x00" * 200), "is not WriteRequestV1"),
    "a datum too short": (avro()[:-1], "not Avro"),
    "a datum too long": (avro() + b"\x00", "too many"),
}
HEAD: Final = codec.MARKER + codec.load("WriteRequestV1").fingerprint + write_text("notes") + write_text("")
HOSTILE: Final = {
    "a count of 2^60 changes": write_long(1 << 60),
    "fifty million changes": write_long(50_000_000) + bytes(3_000),
    "a negative count": write_long(-5) + write_long(1 << 40) + bytes(100),
    "a text of 2^62 bytes": write_long(1) + write_long(1 << 62),
    "a text that is none": write_long(1) + write_long(4) + b"\xff\xfe\xff\xfe" + bytes(50),
    "a number without end": b"\x80" * 10_000,
    "JSON of ten thousand levels in a value": write_long(1)
    + write_text("create") + write_text("") * 2 + write_text("source") + write_text("") * 3
    + write_bytes(DEEP) + write_bytes(b"") * 4 + write_long(0) + write_long(0) + write_bytes(b""),
}  # fmt: skip


@pytest.mark.parametrize("case", POISON)
def test_poison_has_an_error_that_says_why(case: str) -> None:
    value, why = POISON[case]
    error = refused(value)
    assert error.kind == "invalid"
    assert why in error.message


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_avro_is_refused_before_it_is_built(case: str) -> None:
    error = refused(HEAD + HOSTILE[case])
    assert error.code in ("INVALID_INPUT", "BOUND_EXCEEDED")


def test_values_beyond_the_cap_are_refused_unread() -> None:
    for start in (codec.MARKER, b"{"):
        error = refused(start + bytes(codec.VALUE_BYTES_MAX))
        assert error.code == "BOUND_EXCEEDED"


def test_the_form_is_told_by_the_first_bytes() -> None:
    assert [form_of(value) for value in (None, b"", b"{}", b"\xc3", b"\xc3\x01rest")] == ["json"] * 4 + ["avro"]
