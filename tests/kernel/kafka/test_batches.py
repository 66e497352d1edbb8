"""Record batches as bytes: ours, strangers', and bytes that are none. No broker is needed."""

import gzip
import struct

import crc32c
import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.values import FetchedRecord, KafkaRecord
from atomlog.kernel.kafka.wire import build_batch, parse_batches
from atomlog.kernel.log.kafka_reading import log_record
from atomlog.schemas import record as wire
from atomlog.schemas.record import Malformed
from tests.kernel.kafka.support import record

HEADER = struct.Struct(">qiibIhiqqqhii")  # offset, length, epoch, magic, crc, attributes, …, count
GZIP, CONTROL = 1, 32


def batch(*records: KafkaRecord, first: int = 0) -> bytes:
    return at(build_batch(records, 1 << 20), first)


def at(built: bytes, first: int, *, attributes: int = 0, body: bytes | None = None) -> bytes:
    """The batch as a broker keeps it: from offset `first` on, checksum right."""
    fields = list(HEADER.unpack_from(built))
    body = built[HEADER.size :] if body is None else body
    fields[0], fields[1], fields[5] = first, HEADER.size - 12 + len(body), attributes
    fields[4] = crc32c.crc32c(HEADER.pack(*fields)[21:] + body)
    return HEADER.pack(*fields) + body


def plain(text: bytes) -> KafkaRecord:
    return KafkaRecord(value=text)


def ours(n: int) -> KafkaRecord:
    return KafkaRecord(value=record(n).value, headers=wire.headers(record(n)))


def parsed(data: bytes, position: int = 0) -> list[FetchedRecord]:
    found, after = parse_batches(data, position)
    assert after == position + len(found)
    return found


def test_what_was_built_is_parsed_unchanged() -> None:
    one = KafkaRecord(key=b"k", value=b"v" * 300, headers=[("a", b""), ("b", b"\x00\xff")])
    none = KafkaRecord(value=None)
    found = parsed(batch(one, none))
    assert [(r.offset, r.key, r.value, r.headers, r.problem) for r in found] == [
        (0, b"k", b"v" * 300, [("a", b""), ("b", b"\x00\xff")], ""),
        (1, None, None, [], ""),
    ]


def test_a_group_that_does_not_fit_is_refused_whatever_record_is_too_large() -> None:
    for sizes in ((2_000,), (100, 2_000), (600, 600), (10,) * 200):
        with pytest.raises(AtomlogError) as raised:
            build_batch([plain(b"x" * size) for size in sizes], 1_000)
        assert raised.value.code == "BOUND_EXCEEDED"
    assert len(build_batch([plain(b"x" * 900)], 1_000)) <= 1_000


def test_a_group_that_just_fits_is_whole() -> None:
    group = [plain(b"x" * 100)] * 8
    size = len(build_batch(group, 1 << 20))
    assert len(parsed(build_batch(group, size))) == 8
    with pytest.raises(AtomlogError):
        build_batch(group, size - 1)


def test_records_before_the_position_are_left_out() -> None:
    data = batch(*[plain(b"%d" % n) for n in range(5)]) + batch(plain(b"5"), plain(b"6"), first=5)
    for position in range(7):
        assert [r.value for r in parsed(data, position)] == [b"%d" % n for n in range(position, 7)]


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    first, second = batch(plain(b"0")), batch(plain(b"1"), first=1)
    for cut in range(1, len(second)):
        assert [r.offset for r in parsed(first + second[:-cut])] == [0]
    assert parsed(b"") == []


def test_a_flipped_bit_is_noticed() -> None:
    data = bytearray(batch(ours(1), ours(2)))
    for index in range(21, len(data), 7):
        data[index] ^= 4
        with pytest.raises(ValueError, match="checksum"):
            parse_batches(bytes(data), 0)
        data[index] ^= 4


def test_bytes_that_are_no_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="old form"):
        parse_batches(struct.pack(">qiibI", 0, 60, 0, 1, 0) + bytes(55), 0)
    with pytest.raises(ValueError, match="no record batch"):
        parse_batches(struct.pack(">qi", 0, 5) + bytes(5), 0)


def test_a_batch_without_records_moves_the_position() -> None:
    built = bytearray(batch(plain(b"x")))
    struct.pack_into(">i", built, HEADER.size - 4, 0)
    assert parse_batches(at(bytes(built), 7, body=b""), 7) == ([], 8)


def test_a_compressed_batch_takes_its_offsets_and_is_not_opened() -> None:
    built = build_batch([plain(b"x" * 100)] * 3, 1 << 20)
    bomb = gzip.compress(bytes(1 << 24))
    found = parsed(at(built, 10, attributes=GZIP, body=bomb), 11)
    assert [(r.offset, r.value, r.problem) for r in found] == [(11, None, "compressed"), (12, None, "compressed")]


def test_a_control_batch_takes_its_offset() -> None:
    (found,) = parsed(at(build_batch([plain(b"x")], 1 << 20), 3, attributes=CONTROL), 3)
    assert (found.offset, found.problem) == (3, "a control record")


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\xff" * 30, b"\x02" * 30, bytes(30), b"\x1e\x00\x00\x00\x01\x02x" * 9]
)
def test_a_batch_whose_records_cannot_be_read_harms_nobody(body: bytes) -> None:
    data = at(build_batch([plain(b"x")] * 2, 1 << 20), 0, body=body) + batch(ours(1), first=2)
    found = parsed(data)
    assert [bool(r.problem) for r in found] == [True, True, False]


def test_a_header_name_that_is_no_text_harms_nobody() -> None:
    built = build_batch([KafkaRecord(value=b"v", headers=[("hh", b"x")])], 1 << 20)
    body = built[HEADER.size :].replace(b"hh", b"\xff\xfe")
    (found,) = parsed(at(built, 0, body=body))
    assert "unreadable" in found.problem


def fetched(**changes: object) -> FetchedRecord:
    values = {"offset": 4, "timestamp_ms": 0, "key": None, "value": record(1).value, "headers": wire.headers(record(1))}
    return FetchedRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_a_record_of_ours_is_one() -> None:
    assert log_record(fetched()).record == record(1)
    assert log_record(fetched(key=b"of no matter")).record == record(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": ()},
        {"headers": wire.headers(record(1))[:-1]},
        {"headers": [*wire.headers(record(1)), ("more", b"")]},
        {"headers": list(reversed(wire.headers(record(1))))},
        {"headers": [(name, b"") for name in wire.HEADER_NAMES]},
        {"headers": [("x" * 1_000, b"y")] * 500},
        {"value": None},
        {"value": None, "headers": (), "problem": "compressed"},
    ],
)
def test_what_is_no_record_of_ours_is_malformed_and_says_so_shortly(changes: dict[str, object]) -> None:
    entry = log_record(fetched(**changes))
    assert isinstance(entry.record, Malformed)
    assert entry.position == 4
    assert 0 < len(entry.record.reason) <= 201


def test_a_record_without_a_value_still_tells_whose_it_is() -> None:
    found = log_record(fetched(value=None)).record
    assert isinstance(found, Malformed)
    assert (found.term, found.owner, found.kind) == (3, record(1).owner, "Batch")
