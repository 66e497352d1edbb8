"""Segment files, their groups, published ends, checkpoints, and records under the commit rule."""

import struct

import crc32c

from atomlog.kernel.commit_rule import INITIAL, Effective, Genesis, Stop, Void, fold
from atomlog.kernel.log.frames import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_records,
    encode_group,
    is_whole,
    link,
    parse_group_header,
    parse_segment_header,
)
from atomlog.kernel.log.places import Place, read_durable_end
from atomlog.kernel.log.segments import PartitionReader
from atomlog.kernel.ports import KeyPage
from atomlog.kernel.sealing import BITMAP_BYTES, MasterKey, SealBroken, unseal, unwrap_page, wrap_page
from atomlog.kernel.tail import Checkpoint
from atomlog.schemas import codec
from atomlog.schemas.record import Record, pack, unpack
from atomlog.schemas.varint import WireError
from tests.fuzz.engine import Broken, Target, agree
from tests.fuzz.memory_files import memory_files
from tests.fuzz.targets.wire import some_record
from tests.schemas.golden_files import encodings
from tests.support.batches import LOG_ID, LogBuilder, create, revise

PLACE = Place(store="/store", log_id=LOG_ID, partition=0)
GENESIS = Genesis(log_id=LOG_ID, partition=0, partitions=1)


def segment_header(data: bytes) -> None:
    agree(parse_segment_header(data).to_bytes() == data[:SEGMENT_HEADER_BYTES], "a segment header reads as another")


def group(data: bytes) -> None:
    header = parse_group_header(data, 0)
    if header is None or not is_whole(data, 0, header):
        raise WireError("no whole group")
    records = [entry.record for entry in decode_records(data, 0, header, 7)]
    whole = [record for record in records if isinstance(record, Record)]
    agree(encode_group(whole, header.chain) == data[: GROUP_HEADER_BYTES + header.length], "a group reads as another")


def segment_file(data: bytes) -> None:
    """8 bytes of a published end, then a whole segment file."""
    files = memory_files({PLACE.durable_end: data[:8], PLACE.segment(0): data[8:]})
    end = read_durable_end(files, PLACE.durable_end)
    if end is None or end == 0:
        return
    reader = PartitionReader(files, PLACE)
    position = 0
    while position < min(end, 1_000):
        found = reader.read(position, end, 1 << 20)
        agree([entry.position for entry in found] == list(range(position, position + len(found))), "positions jump")
        position += len(found)
        agree(position <= end, "more is read than was published")


def checkpoint(data: bytes) -> None:
    agree(Checkpoint.from_bytes(data).to_bytes() == data, "a checkpoint reads as another")


def history(data: bytes) -> None:
    """Packed records one after another: each gets a verdict, and a void one changes nothing."""
    state, at, position = INITIAL, 0, 0
    while at < len(data):
        record, at = unpack(data, at)
        verdict = fold(state, record, GENESIS, position)
        if isinstance(verdict, Stop):
            raise verdict.error
        if isinstance(verdict, Effective):
            agree(verdict.state != state, "a record counts and changes nothing")
            state = verdict.state
        else:
            agree(isinstance(verdict, Void), "no verdict")
        position += 1


_MASTER = MasterKey(key=bytes(range(32)))


def master_key(data: bytes) -> None:
    found = MasterKey.from_text(data, "master.key")
    agree(MasterKey.from_text(found.to_text().encode(), "master.key") == found, "a master key reads as another")


def key_page(data: bytes) -> None:
    """Whatever is changed in a page, it is not unwrapped."""
    page = _page(data)
    if data != _key_pages()[0]:
        try:
            unwrap_page(_MASTER, page)
        except SealBroken:
            unseal(_MASTER.key, data, b"")
        raise Broken("changed bytes of a key page pass the seal")
    agree(unwrap_page(_MASTER, page) == bytes(8_192), "a page unwraps as another")


def _page(data: bytes) -> KeyPage:
    head = data[:86].ljust(86, b"\0")
    version, partition, term = struct.unpack(">QIQ", head[:20])
    return KeyPage(
        page=head[20:28],
        version=version,
        maker_partition=partition,
        maker_term=term,
        maker_owner=head[28:44],
        master_key_id=head[44:52],
        destroyed=head[52:84],
        wrapped=data[84:],
    )


def _key_pages() -> list[bytes]:
    page = KeyPage(
        page=b"the page",
        version=1,
        maker_partition=0,
        maker_term=3,
        maker_owner=bytes(16),
        master_key_id=bytes(8),
        destroyed=bytes(BITMAP_BYTES),
        wrapped=b"",
    )
    wrapped = wrap_page(_MASTER, bytes(12), page, bytes(8_192))
    head = struct.pack(">QIQ", 1, 0, 3) + b"the page" + bytes(16) + _MASTER.id + bytes(BITMAP_BYTES)
    return [head + wrapped.wrapped]


# -- checksums made right again


def _with_segment_crc(data: bytes) -> bytes:
    fields = data[: SEGMENT_HEADER_BYTES - 4].ljust(SEGMENT_HEADER_BYTES - 4, b"\0")
    return fields + crc32c.crc32c(fields).to_bytes(4, "big") + data[SEGMENT_HEADER_BYTES:]


def _with_group_crc(data: bytes) -> bytes:
    """The length and the checksum of one group, as if a writer had meant these bytes."""
    head, payload = data[:GROUP_HEADER_BYTES].ljust(GROUP_HEADER_BYTES, b"\0"), data[GROUP_HEADER_BYTES:]
    head = b"\xa7AG\x01" + len(payload).to_bytes(4, "big") + head[8:]
    crc = crc32c.crc32c(payload, crc32c.crc32c(head[16:], crc32c.crc32c(head[:12])))
    return head[:12] + crc.to_bytes(4, "big") + head[16:] + payload


def _with_links(data: bytes) -> bytes:
    """A segment file whose groups follow one another, whatever is in them."""
    file = _with_segment_crc(data[8:])
    chain, at, out = link(file, 0, SEGMENT_HEADER_BYTES), SEGMENT_HEADER_BYTES, [file[:SEGMENT_HEADER_BYTES]]
    while at + GROUP_HEADER_BYTES <= len(file):
        size = int.from_bytes(file[at + 4 : at + 8], "big") % (len(file) - at - GROUP_HEADER_BYTES + 1)
        head, payload = file[at : at + 24] + chain, file[at + GROUP_HEADER_BYTES : at + GROUP_HEADER_BYTES + size]
        whole = _with_group_crc(head + payload)
        out.append(whole)
        chain, at = link(whole), at + GROUP_HEADER_BYTES + size
    return data[:8] + b"".join(out)


# -- what to begin with


def _built() -> LogBuilder:
    log = LogBuilder()
    log.batch("notes", [create("a"), create("b")])
    log.batch("notes", [revise("a")])
    log.fence()
    log.claim()
    log.fence()
    return log


def _packed() -> list[Record]:
    return [entry.record for entry in _built().log_records if isinstance(entry.record, Record)]


def _groups() -> list[bytes]:
    return [encode_group(_packed()[:2], bytes(16)), encode_group([some_record()], bytes(range(16)))]


def _segment_files() -> list[bytes]:
    header = SegmentHeader(log_id=LOG_ID, partition=0, first=0, chain=bytes(16)).to_bytes()
    first = encode_group(_packed()[:1], link(header, 0, len(header)))
    second = encode_group(_packed()[1:4], link(first))
    whole = header + first + second
    return [end.to_bytes(8, "little") + whole for end in (4, 1, 9)]


def _histories() -> list[bytes]:
    records = _packed()
    upgrade = codec.MARKER + codec.load("UpgradeV1").fingerprint + encodings("UpgradeV1")["full"]
    return [b"".join(map(pack, records)), pack(records[0]) + pack(some_record(kind="Upgrade", value=upgrade))]


def _checkpoints() -> list[bytes]:
    return [Checkpoint().to_bytes(), _built().checkpoint.to_bytes()]


CORRUPT = frozenset({"CORRUPT"})
TARGETS = [
    Target(
        name="segment-header",
        decode=segment_header,
        seeds=lambda: [SegmentHeader(log_id=LOG_ID, partition=3, first=9, chain=bytes(range(16))).to_bytes()],
        mended=_with_segment_crc,
    ),
    Target(name="group", decode=group, seeds=_groups, mended=_with_group_crc),
    Target(
        name="segment-file",
        decode=segment_file,
        seeds=_segment_files,
        codes=CORRUPT | {"LOG_MISMATCH", "STORE_TOO_NEW"},
        mended=_with_links,
        bytes_base=20_000_000,
    ),
    Target(name="checkpoint", decode=checkpoint, seeds=_checkpoints, codes=CORRUPT),
    Target(
        name="history",
        decode=history,
        seeds=_histories,
        codes=frozenset({"UPGRADE_REQUIRED", "LOG_DIVERGED", "LOG_MISMATCH"}),
    ),
    Target(
        name="master-key",
        decode=master_key,
        seeds=lambda: [_MASTER.to_text().encode()],
        codes=frozenset({"INVALID_INPUT"}),
    ),
    Target(name="key-page", decode=key_page, seeds=_key_pages, refusals=(SealBroken,), executions=2_000),
]
