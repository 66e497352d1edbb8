"""The codecs written by hand give the bytes that fastavro gives, and take nothing that it would not have given."""

import io
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, decode_batch, encode_batch
from atomlog.schemas.content import Content, Origin, Provenance, decode_content, encode_content
from atomlog.schemas.record import Record, pack, parse, unpack
from atomlog.schemas.revision import Clear, Slot, decode_clear, encode_clear, join_sealed, sealed_of
from atomlog.schemas.varint import WireError, read_long, write_int, write_long
from tests.schemas import strategies

ID = bytes(range(16))


def by_fastavro(name: str, datum: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, codec.load(name).parsed, datum, strict=True)
    return out.getvalue()


@given(clear=strategies.clears, sealed=st.binary(max_size=200))
def test_a_revision_by_hand_is_a_revision_by_avro(clear: Clear, sealed: bytes) -> None:
    raw = join_sealed(encode_clear(clear), sealed)
    assert raw == by_fastavro("RevisionV1", strategies.revision_datum(clear, sealed))
    decoded, at = decode_clear(raw)
    assert (decoded, sealed_of(raw, at)) == (clear, sealed)
    assert raw[:at] == encode_clear(clear)


@given(content=strategies.contents)
def test_a_content_by_hand_is_a_content_by_avro(content: Content) -> None:
    raw = encode_content(content)
    assert raw == by_fastavro("ContentV1", strategies.content_datum(content))
    assert decode_content(raw) == content


@given(batch=strategies.batches)
def test_a_batch_by_hand_is_a_batch_by_avro(batch: Batch) -> None:
    raw = encode_batch(batch)
    assert raw == by_fastavro("BatchV1", strategies.batch_datum(batch))
    assert decode_batch(raw) == batch


@given(value=strategies.longs)
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    assert read_long(write_long(value), 0, "n") == (value, len(write_long(value)))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
def test_a_number_wider_than_64_bits_is_not_written(value: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        write_long(value)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_number_wider_than_32_bits_is_not_written_where_32_stand(value: int) -> None:
    with pytest.raises(ValueError, match="32-bit"):
        write_int(value)


def _clear(**changes: Any) -> Clear:
    clear = Clear(
        atom_id=ID,
        revision_id=ID,
        previous=None,
        key_id=None,
        recorded_at_us=0,
        retired=False,
        schema="source",
        policy="notes",
    )
    return replace(clear, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"atom_id": ID[:15]},
        {"revision_id": ID + b"\x00"},
        {"previous": b"\x01"},
        {"key_id": bytes([1]) * 8},
        {"slots": (Slot(role="r", target=ID[:15]),)},
        {"slots": (Slot(role="r", target=ID, at=b"\x01" * 17),)},
    ],
    ids=str,
)
def test_an_id_of_a_wrong_size_never_reaches_the_log(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        encode_clear(_clear(**changes))


@pytest.mark.parametrize("size", [31, 33])
def test_a_digest_of_a_wrong_size_never_reaches_the_log(size: int) -> None:
    origin = Origin(source=ID, revision=ID, start=0, end=1, sha256=bytes(size))
    with pytest.raises(ValueError, match="digest"):
        encode_content(Content(value=b"null", origins=(origin,), provenance=Provenance(kind="source")))


@pytest.mark.parametrize(
    "datum",
    [
        {"reason": "a"} | {"extra": 1},
        {},
        {"reason": 5},
        {"reason": None},
        {"reason": "\ud800"},
    ],
    ids=str,
)
def test_a_datum_that_its_schema_does_not_describe_is_not_written(datum: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        codec.encode("Release", datum)


@pytest.mark.parametrize("requests", [2**63, -(2**63) - 1, 2**200, "1", None])
def test_a_number_that_its_field_cannot_hold_is_not_written(requests: Any) -> None:
    with pytest.raises(ValueError):
        codec.encode("Fence", {"requests": requests})


def test_a_fraction_is_not_cut_to_fit_a_whole_number() -> None:
    with pytest.raises(ValueError):
        codec.encode("Upgrade", {"feature_level": 1.9, "issued_by": "me"})


@given(
    rule=st.integers(0, 2**16 - 1),
    kind=st.text(st.characters(max_codepoint=127), min_size=1, max_size=32),
    term=st.integers(0, 2**64 - 1),
    owner=strategies.fixed(16),
    seq=st.integers(0, 2**64 - 1),
    schema=strategies.fixed(8),
    chain=strategies.fixed(16),
    value=st.binary(max_size=300),
)
def test_a_packed_record_comes_back_whole(
    rule: int, kind: str, term: int, owner: bytes, seq: int, schema: bytes, chain: bytes, value: bytes
) -> None:
    record = Record(rule=rule, kind=kind, term=term, owner=owner, seq=seq, schema=schema, chain=chain, value=value)
    raw = pack(record)
    assert unpack(b"xx" + raw + b"yy", 2) == (record, 2 + len(raw))
    with pytest.raises(WireError):
        unpack(raw[:-1], 0)


@given(st.lists(st.tuples(st.sampled_from(["rule", "kind", "term", "owner", "seq", "x"]), st.binary(max_size=20))))
def test_headers_of_any_shape_are_read_without_an_error(pairs: list[tuple[str, bytes]]) -> None:
    assert not isinstance(parse(pairs, b""), Record)


def test_a_type_is_known_where_its_definition_was_not_walked_through() -> None:
    """NodeReportV1 defines Chain16 inside one list and uses it in another one."""
    place = {"partition": 1, "position": 2, "chain": bytes(16), "lag_records": 3, "lag_ms": 4}
    projection = {
        "name": "ids",
        "generation": "g000001",
        "health": "OK",
        "asof_kind": "exact",
        "asof_floor": -1,
        "quarantined": 0,
        "bytes_per_revision": -1,
        "partitions": [place],
    }
    report = {
        "node": bytes(16),
        "name": "n",
        "role": "consumer",
        "endpoint": "",
        "pid": 1,
        "at": bytes(8),
        "partitions": [],
        "projections": [projection],
        "disk_free_bytes": 0,
        "disk_reserve_bytes": 0,
        "disk_days_to_full": -1,
    }
    assert codec.decode_as("NodeReportV1", codec.encode_as("NodeReportV1", report)) == report
