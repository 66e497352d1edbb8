"""The bytes of the embedded log. The golden ones were put together by hand from the page on formats."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.log import frames
from atomlog.kernel.log.frames import GROUP_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader
from atomlog.schemas import record as wire
from atomlog.schemas.record import Record
from atomlog.schemas.varint import WireError
from tests.kernel.log.support import record, records

GOLDEN_RECORD = (
    "0002" "0001"  # rule 1
    "0003" "426174"  # kind "Bat"
    "0008" "0000000000000005"  # term 5
    "0010" "000102030405060708090a0b0c0d0e0f"  # owner
    "0008" "0000000000000102"  # seq 258
    "0008" "1112131415161718"  # schema
    "0010" "202122232425262728292a2b2c2d2e2f"  # chain
    "00000004" "c3010aff"  # value
)  # fmt: skip
GOLDEN_GROUP = (
    "a7414701" "00000053" "00000001"  # magic, 83 bytes, 1 record
    "c4584172"  # crc32c of everything else
    "0000000000000005"  # term
    "303132333435363738393a3b3c3d3e3f"  # chain
    + GOLDEN_RECORD
)  # fmt: skip
GOLDEN_SEGMENT = (
    "41544f4d4c4f47" "01"  # ATOMLOG, version 1
    "404142434445464748494a4b4c4d4e4f"  # log id
    "00000002" "00000000000003e8"  # partition 2, position 1000
    "505152535455565758595a5b5c5d5e5f"  # link of the group before
    "7e9c1a67"
)  # fmt: skip
A_RECORD = Record(
    rule=1,
    kind="Bat",
    term=5,
    owner=bytes(range(16)),
    seq=258,
    schema=bytes(range(0x11, 0x19)),
    chain=bytes(range(0x20, 0x30)),
    value=b"\xc3\x01\x0a\xff",
)


def crc32c_by_bit(data: bytes) -> int:
    """CRC-32C (Castagnoli) from its definition."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def test_a_group_has_exactly_its_golden_bytes() -> None:
    assert frames.encode_group([A_RECORD], bytes(range(0x30, 0x40))).hex() == GOLDEN_GROUP


def test_the_golden_group_is_read_back() -> None:
    raw = bytes.fromhex(GOLDEN_GROUP)
    header = frames.parse_group_header(raw, 0)
    assert header is not None
    assert frames.is_whole(raw, 0, header)
    (entry,) = frames.decode_records(raw, 0, header, 17)
    assert (entry.position, entry.record) == (17, A_RECORD)


def test_a_segment_header_has_exactly_its_golden_bytes_and_is_read_back() -> None:
    header = SegmentHeader(log_id=bytes(range(0x40, 0x50)), partition=2, first=1000, chain=bytes(range(0x50, 0x60)))
    assert header.to_bytes().hex() == GOLDEN_SEGMENT
    assert frames.parse_segment_header(bytes.fromhex(GOLDEN_SEGMENT)) == header


def test_the_page_on_formats_shows_the_golden_bytes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8").replace("\n", "")
    assert GOLDEN_SEGMENT in page
    assert GOLDEN_GROUP in page


def test_the_checksums_are_crc32c_of_everything_but_themselves() -> None:
    group, segment = bytes.fromhex(GOLDEN_GROUP), bytes.fromhex(GOLDEN_SEGMENT)
    assert crc32c_by_bit(b"123456789") == 0xE306_9283
    assert int.from_bytes(group[12:16]) == crc32c_by_bit(group[:12] + group[16:])
    assert int.from_bytes(segment[52:]) == crc32c_by_bit(segment[:52])


def test_the_link_of_a_header_is_the_start_of_its_sha256() -> None:
    group, segment = bytes.fromhex(GOLDEN_GROUP), bytes.fromhex(GOLDEN_SEGMENT)
    assert frames.link(group) == hashlib.sha256(group[:40]).digest()[:16]
    assert frames.link(segment, 0, SEGMENT_HEADER_BYTES) == hashlib.sha256(segment).digest()[:16]


def test_every_flipped_bit_of_a_group_is_noticed() -> None:
    raw = frames.encode_group(records(1, 2, 3, size=8), bytes(16))
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        header = frames.parse_group_header(bytes(damaged), 0)
        assert header is None or not frames.is_whole(bytes(damaged), 0, header), bit


def test_every_flipped_bit_of_a_segment_header_is_noticed() -> None:
    raw = SegmentHeader(log_id=bytes(16), partition=0, first=0, chain=bytes(16)).to_bytes()
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match=r"no segment header|checksum"):
            frames.parse_segment_header(bytes(damaged))


@pytest.mark.parametrize(
    "bad",
    [
        {"owner": bytes(15)},
        {"chain": bytes(17)},
        {"schema": b""},
        {"kind": ""},
        {"kind": "K" * 33},
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_written(bad: dict[str, object]) -> None:
    fields = {name: getattr(A_RECORD, name) for name in Record.__slots__}
    with pytest.raises(ValueError, match="cannot be written"):
        frames.encode_group([record(0), Record(**{**fields, **bad})], bytes(16))


def test_a_group_of_nothing_or_of_too_much_is_not_written() -> None:
    with pytest.raises(ValueError, match="0 records"):
        frames.encode_group([], bytes(16))
    with pytest.raises(ValueError, match="5 records"):
        frames.encode_group([record(n, size=7_000_000) for n in range(5)], bytes(16))


@pytest.mark.parametrize("count", [2, 4])
def test_a_group_whose_count_lies_is_not_decoded(count: int) -> None:
    raw = frames.encode_group(records(1, 2, 3), bytes(16))
    header = frames.parse_group_header(raw, 0)
    assert header is not None
    with pytest.raises(WireError):
        frames.decode_records(raw, 0, header._replace(record_count=count), 0)


def test_a_group_whose_term_lies_is_not_decoded() -> None:
    raw = frames.encode_group(records(1, 2, 3), bytes(16))
    header = frames.parse_group_header(raw, 0)
    assert header is not None
    with pytest.raises(WireError, match="another term"):
        frames.decode_records(raw, 0, header._replace(term=header.term + 1), 0)


@pytest.mark.parametrize(
    ("length", "count"), [(0, 0), (76, 1), (153, 2), (frames.GROUP_BYTES_MAX + 1, 1), (100, 0), (2**32 - 1, 2**32 - 1)]
)
def test_a_header_with_impossible_numbers_is_none(length: int, count: int) -> None:
    raw = b"".join((frames.GROUP_MAGIC, length.to_bytes(4), count.to_bytes(4), bytes(28)))
    assert len(raw) == GROUP_HEADER_BYTES
    assert frames.parse_group_header(raw, 0) is None


RECORDS = st.builds(
    Record,
    rule=st.integers(0, 2**16 - 1),
    kind=st.text(st.characters(max_codepoint=127), min_size=1, max_size=32),
    term=st.integers(0, 2**64 - 1),
    owner=st.binary(min_size=16, max_size=16),
    seq=st.integers(0, 2**64 - 1),
    schema=st.binary(min_size=8, max_size=8),
    chain=st.binary(min_size=16, max_size=16),
    value=st.binary(max_size=200),
)


@given(RECORDS, st.binary(max_size=20), st.binary(max_size=20))
def test_unpacking_at_once_gives_what_unpacking_by_steps_gives(one: Record, before: bytes, after: bytes) -> None:
    raw = before + wire.pack(one) + after
    assert wire.unpack(raw, len(before)) == wire._unpack_by_steps(raw, len(before)) == (one, len(raw) - len(after))


@given(RECORDS, st.integers(0, 400), st.integers(0, 255), st.integers(0, 400))
def test_both_ways_of_unpacking_refuse_the_same_bytes(one: Record, place: int, byte: int, cut: int) -> None:
    raw = bytearray(wire.pack(one))
    raw[place % len(raw)] = byte
    damaged = bytes(raw[: max(1, len(raw) - cut)] if cut % 3 == 0 else raw)
    answers = []
    for unpack in (wire.unpack, wire._unpack_by_steps):
        try:
            answers.append(unpack(damaged, 0))
        except WireError as error:
            answers.append((str(error), -1))  # type: ignore[arg-type]
    assert answers[0] == answers[1]


@given(st.lists(RECORDS, min_size=1, max_size=8), st.integers(0, 2**63))
def test_a_group_gives_back_its_records_with_their_positions(stored: list[Record], first: int) -> None:
    raw = b"before" + frames.encode_group(stored, bytes(16)) + b"after"
    header = frames.parse_group_header(raw, 6)
    assert header is not None
    assert frames.is_whole(raw, 6, header)
    entries = frames.decode_records(raw, 6, header, first)
    assert [entry.record for entry in entries] == stored
    assert [entry.position for entry in entries] == list(range(first, first + len(stored)))
