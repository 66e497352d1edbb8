"""The embedded log's bytes: the header of a segment file and the groups after it. Layouts here never change.

All integers are unsigned and big-endian. A segment file is one header and then groups without a gap.

Segment header, 56 bytes:

========  ========  ==================================================================
offset 0  8 bytes   magic `ATOMLOG` and the version of this layout, 1
8         16 bytes  log id
24        u32       partition
28        u64       position of the first record
36        16 bytes  link of the last group before this segment (the first segment: zeros)
52        u32       crc32c of the 52 bytes before
========  ========  ==================================================================

Group, 40 bytes and then its records in packed form (`atomlog.schemas.record`):

========  ========  ==================================================================
offset 0  4 bytes   magic A7 `AG` 01
4         u32       length: bytes of the packed records
8         u32       count of records, at least 1
12        u32       crc32c of the whole group but these 4 bytes
16        u64       term of the last record
24        16 bytes  chain: the link of what stands before, a group or the segment's header
========  ========  ==================================================================

The **link** of a group or of a segment header is the first 16 bytes of the SHA-256 of that header. It covers the
records through the crc and everything earlier through the chain, so a group or a whole segment that was exchanged,
copied or put elsewhere does not fit to its neighbours, and following it costs no second pass over the records.
(This chain is the file's own. The `chain` header of a record is the commit rule's.)

A group's records have the positions after those before it: positions are counted, not stored.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import crc32c

from atomlog.kernel.bounds import ID_BYTES
from atomlog.kernel.ports import LogRecord
from atomlog.schemas.record import KIND_BYTES_MAX, ZERO16, Record, pack, unpack
from atomlog.schemas.varint import WireError

SEGMENT_MAGIC: Final = b"ATOMLOG"
SEGMENT_VERSION: Final = 1
GROUP_MAGIC: Final = b"\xa7AG\x01"
GROUP_BYTES_MAX: Final = 32 * 1024 * 1024  # a reader holds a whole group; far above `group_bytes_max` and one batch

_SEGMENT: Final = struct.Struct(">7sB16sIQ16s")
_GROUP: Final = struct.Struct(">4sIIIQ16s")
_U32: Final = struct.Struct(">I")
SEGMENT_HEADER_BYTES: Final = _SEGMENT.size + _U32.size
GROUP_HEADER_BYTES: Final = _GROUP.size
_CRC_AT: Final = 12
_put_position, _put_record = (getattr(LogRecord, name).__set__ for name in ("position", "record"))
_RECORD_BYTES_MIN: Final = 77  # seven lengths, six fixed headers, a kind of one letter, the value's length


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """`first`: position of the segment's first record. `chain`: link of the last group before it (16 bytes)."""

    log_id: bytes
    partition: int
    first: int
    chain: bytes

    def to_bytes(self) -> bytes:
        fields = _SEGMENT.pack(SEGMENT_MAGIC, SEGMENT_VERSION, self.log_id, self.partition, self.first, self.chain)
        return fields + _U32.pack(crc32c.crc32c(fields))


class SegmentVersionError(WireError):
    """A whole header of a version that this program does not know."""


class GroupHeader(NamedTuple):
    """`length`: bytes of the records after the header. `chain`: link of what stands before."""

    length: int
    record_count: int
    crc: int
    term: int
    chain: bytes


def parse_segment_header(raw: bytes) -> SegmentHeader:
    """The header of a segment file.

    Raises:
        WireError: the bytes are no segment header.
        SegmentVersionError: they are one of a newer version. Magic, version and crc stay where they are for ever.
    """
    if len(raw) < SEGMENT_HEADER_BYTES or not raw.startswith(SEGMENT_MAGIC):
        raise WireError("no segment header")
    if _U32.unpack_from(raw, _SEGMENT.size)[0] != crc32c.crc32c(raw[: _SEGMENT.size]):
        raise WireError("the segment header's checksum is wrong")
    _, version, log_id, partition, first, chain = _SEGMENT.unpack_from(raw)
    if version != SEGMENT_VERSION:
        raise SegmentVersionError(f"the segment's layout has version {version}")
    return SegmentHeader(log_id=log_id, partition=partition, first=first, chain=chain)


def encode_group(records: Sequence[Record], chain: bytes) -> bytes:
    """`records` (at least one) as one group after what has the link `chain`.

    Raises:
        ValueError: a header that no reader could read back, or more than `GROUP_BYTES_MAX`.
    """
    for record in records:
        _check(record)
    payload = b"".join([pack(record) for record in records])
    if not records or len(payload) > GROUP_BYTES_MAX:
        raise ValueError(f"a group of {len(records)} records and {len(payload)} bytes cannot be written")
    term = records[-1].term
    unsigned = _GROUP.pack(GROUP_MAGIC, len(payload), len(records), 0, term, chain)
    crc = crc32c.crc32c(payload, _header_crc(unsigned))
    return b"".join((_GROUP.pack(GROUP_MAGIC, len(payload), len(records), crc, term, chain), payload))


def link(buf: bytes, at: int = 0, size: int = GROUP_HEADER_BYTES) -> bytes:
    """The link of the group header at `at`; of a segment header with its size."""
    return hashlib.sha256(buf[at : at + size]).digest()[:16]


def parse_group_header(buf: bytes, at: int) -> GroupHeader | None:
    """The group header at `at`, or None when there is none. Its crc is not checked here."""
    if at + GROUP_HEADER_BYTES > len(buf):
        return None
    magic, length, count, crc, term, chain = _GROUP.unpack_from(buf, at)
    if magic != GROUP_MAGIC or count == 0 or not count * _RECORD_BYTES_MIN <= length <= GROUP_BYTES_MAX:
        return None
    return GroupHeader(length, count, crc, term, chain)


def is_whole(buf: bytes, at: int, header: GroupHeader) -> bool:
    """Whether the whole group at `at` is in `buf` and its crc is right."""
    start = at + GROUP_HEADER_BYTES
    if start + header.length > len(buf):
        return False
    payload = memoryview(buf)[start : start + header.length]
    return bool(crc32c.crc32c(payload, _header_crc(buf[at:start])) == header.crc)


def decode_records(buf: bytes, at: int, header: GroupHeader, first: int) -> tuple[LogRecord, ...]:
    """The records of the group at `at`, the first at position `first`.

    Raises:
        WireError: the group does not hold exactly `count` records and the term of the last one.
    """
    records: list[LogRecord] = []
    record_at = at + GROUP_HEADER_BYTES
    stop = record_at + header.length
    for position in range(first, first + header.record_count):
        record, record_at = unpack(buf, record_at)
        entry = object.__new__(LogRecord)  # through its slots: a replay makes nothing as often
        _put_position(entry, position)
        _put_record(entry, record)
        records.append(entry)
    if record_at != stop or record.term != header.term:
        raise WireError(f"the group's {header.record_count} records do not fill it, or the last has another term")
    return tuple(records)


def _header_crc(header: bytes) -> int:
    return crc32c.crc32c(header[_CRC_AT + 4 :], crc32c.crc32c(header[:_CRC_AT]))


def _check(record: Record) -> None:
    """What `pack` would write without a word and `unpack` would refuse."""
    sizes = (len(record.owner), len(record.schema), len(record.chain))
    if sizes != (ID_BYTES, 8, len(ZERO16)) or not 0 < len(record.kind) <= KIND_BYTES_MAX:
        raise ValueError(f"a {record.kind!r} record with headers of {sizes} bytes cannot be written")
