"""Bytes from outside: whatever they are, a WireError says so, before anything is built of them."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.schemas import codec
from atomlog.schemas.batch import decode_batch
from atomlog.schemas.content import decode_content
from atomlog.schemas.record import pack, unpack
from atomlog.schemas.revision import FIXED_BYTES, FLAGS_AT, decode_clear, sealed_of
from atomlog.schemas.varint import WireError, read_long, write_long
from tests.schemas.golden_files import RELEASED, encodings

Decode = Callable[[bytes], Any]
ALLOWED_BYTES = 200_000  # while refusing; the inputs themselves are made before


def whole_revision(raw: bytes) -> Any:
    clear, at = decode_clear(raw)
    return clear, sealed_of(raw, at)


def by_schema(name: str) -> Decode:
    return lambda raw: codec.decode_datum(codec.load(name), raw)


BY_HAND: dict[str, Decode] = {
    "BatchV1": decode_batch,
    "ContentV1": decode_content,
    "RevisionV1": whole_revision,
}
DECODERS: dict[str, tuple[str, Decode]] = {
    **{name: (name, by_schema(name)) for name in RELEASED},
    **{f"{name} by hand": (name, decode) for name, decode in BY_HAND.items()},
}
every_decoder = pytest.mark.parametrize("decoder", DECODERS)


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < ALLOWED_BYTES
    finally:
        tracemalloc.stop()


def refused(decode: Decode, raw: bytes) -> None:
    with little_memory(), pytest.raises(WireError):
        decode(raw)


@every_decoder
def test_a_value_cut_off_at_any_byte_is_refused(decoder: str) -> None:
    name, decode = DECODERS[decoder]
    raw = encodings(name)["full"]
    for length in range(len(raw)):
        with pytest.raises(WireError):
            decode(raw[:length])


@every_decoder
@pytest.mark.parametrize("tail", [b"\x00", b"\x02", bytes(100)], ids=["zero", "two", "many"])
def test_a_value_with_a_tail_is_refused(decoder: str, tail: bytes) -> None:
    name, decode = DECODERS[decoder]
    refused(decode, encodings(name)["full"] + tail)


@every_decoder
def test_nothing_at_all_is_refused(decoder: str) -> None:
    refused(DECODERS[decoder][1], b"")


@every_decoder
def test_ten_thousand_twos_are_refused_without_growing(decoder: str) -> None:
    refused(DECODERS[decoder][1], b"\x02" * 10_000)


# A place in the bytes of each schema at which the count of an array stands, and what follows it in an empty case.
COUNTS: dict[str, Callable[[], bytes]] = {
    "BatchV1": lambda: encodings("BatchV1")["empty"][:-1],
    "ContentV1": lambda: encodings("ContentV1")["empty"][:1],
    "RevisionV1": lambda: encodings("RevisionV1")["empty"][: FIXED_BYTES + 2],
    "KeysDestroyedV1": lambda: b"",
    "PurgeStepV1": lambda: encodings("PurgeStepV1")["empty"][:-1],
    "GrantV1": lambda: encodings("GrantV1")["empty"][:2],
}


@pytest.mark.parametrize("count", [50_000_000, 2**62, 2**63 - 1, -1, -50_000_000, -(2**63)])
@pytest.mark.parametrize("decoder", [decoder for decoder, (name, _) in DECODERS.items() if name in COUNTS])
def test_a_count_that_lies_is_refused_before_anything_is_made(decoder: str, count: int) -> None:
    name, decode = DECODERS[decoder]
    refused(decode, COUNTS[name]() + write_long(count) + bytes(2_000))


@pytest.mark.parametrize("length", [1_000, 2**31, 2**63 - 1, -1, -(2**63)])
@pytest.mark.parametrize("decoder", [decoder for decoder, (name, _) in DECODERS.items() if name in BY_HAND])
def test_a_length_that_lies_is_refused_before_anything_is_made(decoder: str, length: int) -> None:
    name, decode = DECODERS[decoder]
    start = {"BatchV1": 89, "ContentV1": 0, "RevisionV1": FIXED_BYTES}[name]
    refused(decode, encodings(name)["empty"][:start] + write_long(length) + bytes(100))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x00",
        b"\x82\x80\x00",
        b"\x80" * 9 + b"\x00",
        b"\xff" * 9 + b"\x02",
        b"\xff" * 10 + b"\x01",
        b"\x80" * 1_000 + b"\x01",
        b"\x80" * 1_000,
        b"\xff",
        b"",
    ],
    ids=["zero in two", "one in three", "zero in ten", "65 bits", "70 bits", "long", "endless", "cut", "nothing"],
)
def test_a_number_that_is_not_in_its_shortest_form_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError, match="number"):
        read_long(raw, 0, "n")


@pytest.mark.parametrize("flags", [16, 128, 255, 4, 8, 12, 5])
def test_flags_that_mean_nothing_are_refused(flags: int) -> None:
    raw = bytearray(encodings("RevisionV1")["empty"])
    raw[FLAGS_AT] = flags
    refused(decode_clear, bytes(raw))


def test_slot_flags_that_mean_nothing_are_refused() -> None:
    slot = b"\x02r" + bytes(32) + b"\x04" + b"\x00"
    refused(decode_clear, encodings("RevisionV1")["empty"][: FIXED_BYTES + 2] + b"\x02" + slot + bytes(20))


def test_a_revision_inside_a_batch_is_at_least_as_long_as_its_fixed_fields() -> None:
    short = b"\x02" + write_long(FIXED_BYTES - 1) + bytes(FIXED_BYTES - 1) + b"\x00"
    refused(decode_batch, encodings("BatchV1")["empty"][:-1] + short + bytes(10))


@pytest.mark.parametrize("decode", [decode_batch, by_schema("BatchV1")], ids=["by hand", "by schema"])
def test_a_partition_that_needs_more_than_32_bits_is_refused(decode: Decode) -> None:
    empty = encodings("BatchV1")["empty"]
    at = len(empty) - 3  # inbox_partition, inbox_offset, revisions
    refused(decode, empty[:at] + write_long(2**31) + empty[at + 1 :])


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        (["null", "long"], b"\x04"),
        (["null", "long"], b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),
        ("boolean", b"\x02"),
        ("int", write_long(2**31)),
        ("string", b"\x02\xff"),
        ("null", b""),
        ("double", bytes(8)),
    ],
    ids=str,
)
def test_an_index_a_boolean_or_a_text_out_of_range_is_refused(schema: Any, raw: bytes) -> None:
    made = codec.Schema(name="T", source=schema, parsed=None, fingerprint=bytes(8))
    with pytest.raises(WireError):
        codec.check(made, raw)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc3\x01",
        b"\xc3\x01" + bytes(7),
        b"\xc3\x02" + bytes(8),
        b"\x00" * 20,
        b"\xc3\x01" + bytes(8),
        codec.wrap(codec.load("FenceV1").fingerprint, b"\x00"),
    ],
    ids=["nothing", "marker", "cut", "other marker", "zeros", "unknown schema", "schema of another kind"],
)
def test_a_value_that_is_not_of_its_kind_is_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        codec.decode(value, "Release")


def test_a_value_beyond_the_cap_is_refused_unread() -> None:
    value = codec.wrap(codec.load("ReleaseV1").fingerprint, bytes(codec.VALUE_BYTES_MAX))
    refused(lambda raw: codec.decode(raw, "Release"), value)


@every_decoder
@given(raw=st.binary(max_size=400))
def test_random_bytes_are_read_or_refused(decoder: str, raw: bytes) -> None:
    with suppress(WireError):
        DECODERS[decoder][1](raw)


@every_decoder
@given(data=st.data())
def test_changed_bytes_are_read_or_refused(decoder: str, data: st.DataObject) -> None:
    name, decode = DECODERS[decoder]
    raw = bytearray(encodings(name)["full"])
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)) if raw else ():
        raw[at] = data.draw(st.sampled_from([0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF]))
    with suppress(WireError):
        decode(bytes(raw))


@pytest.mark.parametrize("name", BY_HAND)
@given(data=st.data())
def test_what_is_decoded_by_hand_is_avro_of_its_schema(name: str, data: st.DataObject) -> None:
    """A codec by hand may be stricter than Avro, never looser: another reader must agree on what is in the log."""
    raw = bytearray(encodings(name)["full"])
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=3)):
        raw[at] = data.draw(st.integers(0, 255))
    try:
        BY_HAND[name](bytes(raw))
    except WireError:
        return
    codec.check(codec.load(name), bytes(raw))


@given(data=st.data())
def test_a_packed_record_with_changed_or_missing_bytes_is_read_or_refused(data: st.DataObject) -> None:
    record, _ = unpack(bytes.fromhex(_PACKED), 0)
    raw = bytearray(pack(record))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        _, stop = unpack(cut, 0)
    except WireError:
        return
    assert stop <= len(cut)


_PACKED = (
    "0002000100054665 6e6365 0008 0000000000000001 0010 a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1 0008 0000000000000000"
    "0008 0102030405060708 0010 000102030405060708090a0b0c0d0e0f 00000003 c30100"
).replace(" ", "")


def test_a_packed_record_cut_off_at_any_byte_is_refused() -> None:
    raw = bytes.fromhex(_PACKED)
    assert unpack(raw, 0)[1] == len(raw)
    for length in range(len(raw)):
        with pytest.raises(WireError):
            unpack(raw[:length], 0)


def test_a_packed_record_whose_value_length_lies_is_refused() -> None:
    raw = bytes.fromhex(_PACKED)
    refused(lambda buf: unpack(buf, 0), raw[:-7] + b"\xff\xff\xff\xff" + raw[-3:])
