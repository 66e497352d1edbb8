"""What RocksDB does not find in its own files, looked at before it opens them.

It hangs on some flipped bits in MANIFEST. It takes a MANIFEST that ends early, a restored older one too, for the whole,
and replays whatever write-ahead logs are there: batches that were in a log between the two are then missing, with the
checkpoint after them. It replays the log of another database, too. So every frame is checked here, whose each batch is,
and that the logs follow MANIFEST and each other by sequence number. An end that is torn is no damage: what follows it
was never there. What is whole and not known here was written by a newer RocksDB: it is left to the RocksDB at hand to
understand or to refuse it, and nothing behind it is looked at.

Both kinds of file are blocks of 32 KiB with frames: masked CRC-32C u32 ‖ length u16 ‖ type u8 ‖ bytes, little-endian.
"""

import hashlib
import os
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import crc32c

from atomlog.kernel.errors import AtomlogError, fail, of_system

Mark = tuple[bytes, int]
"""What CURRENT holds, and how long MANIFEST is."""

BLOCK_BYTES: Final = 32 * 1024
_FRAME: Final = struct.Struct("<IHB")
_CRC_BYTES_FROM: Final = 6  # of a frame: its type and what follows
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CURRENT: Final = re.compile(rb"MANIFEST-\d{6,}\n")
_LOG_NAME: Final = re.compile(r"(\d{6,})\.log")
_BATCH: Final = struct.Struct("<QI")  # sequence number of its first change, count of changes

# Tags of a version edit and the fields behind each: v a varint, s a slice. One that RocksDB may ignore is a slice.
_SHAPES: Final = "1s 2v 3v 4v 5vs 6vv 7vvvss 9v 10v 100vvvssvv 102vvvvssvv 103vvvssvv 200v 201s 202 203v 300v"
_EDIT_FIELDS: Final = {int(shape.rstrip("vs")): shape.lstrip("0123456789") for shape in _SHAPES.split()}
_DATABASE_ID: Final = 8193
_IDENTITY_BYTES: Final = 8
IDENTITY_KEY: Final = b"\xff\xff"  # of the row that each batch begins with
_LOG_NUMBER, _LAST_SEQUENCE, _DELETED_FILE, _NEW_FILES, _IGNORABLE = 2, 4, 6, (7, 100, 102, 103), 1 << 13


@dataclass(frozen=True, slots=True)
class _Version:
    """What MANIFEST says: the first write-ahead log that counts, the last change that is known, the tables' numbers.

    Not `is_known`: only what it says before an edit that is not known here.
    """

    log_number: int
    last_sequence: int
    tables: frozenset[int]
    identity: bytes
    is_known: bool


class _Unknown(Exception):
    """Something whole, its checksum right, that this program does not know."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Changes of a write-ahead log: `after` is the next sequence number. What its batches begin with, and where."""

    path: str
    first: int
    after: int
    begins: Mapping[bytes, int]


def check_database(path: str) -> None:
    """CORRUPT naming the file and the byte of what RocksDB would hang on, or would take for another state.

    A directory without CURRENT is left to RocksDB. Beside a process that writes, the logs are read before MANIFEST is,
    so that they are never ahead of it; a file that goes away meanwhile is CORRUPT here, and there when looked at again.
    """
    if not os.path.exists(f"{path}/CURRENT"):
        return
    try:
        _check(path)
    except _Unknown:
        return
    except OSError as error:
        raise of_system(error, path) from error


def identity_of(path: str) -> bytes:
    """8 bytes that no other database has. Every batch begins with them: RocksDB's logs do not say whose they are."""
    try:
        return _version(path).identity
    except OSError as error:
        raise of_system(error, path) from error


def tables_of(path: str) -> Collection[int]:
    """The numbers of the table files that MANIFEST names; none where it is not known. CORRUPT as `check_database`."""
    try:
        version = _version(path)
        return version.tables if version.is_known else ()
    except OSError as error:
        raise of_system(error, path) from error


def mark_of(path: str) -> Mark:
    """Another one whenever MANIFEST has changed."""
    try:
        current = _read(f"{path}/CURRENT")
        return current, os.stat(f"{path}/{current.decode(errors='replace').strip()}").st_size
    except (OSError, ValueError):
        return b"", -1


def _check(path: str) -> None:
    # 1. The logs first: what MANIFEST says afterwards covers at least what stood before them.
    spans = [(number, span) for number, name in _logs(path) if (span := _span(f"{path}/{name}"))]
    # 2. MANIFEST, every frame of it.
    version = _version(path)
    if not version.is_known:
        return
    # 3. Each log that counts begins where the one before, or MANIFEST, ended; or earlier: changes are there twice.
    reached = version.last_sequence + 1
    for number, span in spans:
        if number < version.log_number:
            continue
        for begin, offset in span.begins.items():
            if begin != _begin(version.identity):
                _refuse(span.path, offset, "a batch of another database: the file was exchanged")
        if span.first > reached:
            what = (
                f"it begins with change {span.first}, what stands before it ends before {reached}: a file was exchanged"
            )
            _refuse(span.path, 0, f"{what}, cut or lost")
        reached = max(reached, span.after)


def _logs(path: str) -> Sequence[tuple[int, str]]:
    found = (_LOG_NAME.fullmatch(name) for name in os.listdir(path))
    return sorted((int(match[1]), match[0]) for match in found if match)


def _version(path: str) -> _Version:
    current = _read(f"{path}/CURRENT")
    if not _CURRENT.fullmatch(current):
        _refuse(f"{path}/CURRENT", 0, f"it holds {current[:32]!r}, which names no MANIFEST")
    manifest = f"{path}/{current.decode().strip()}"
    log_number = last_sequence = 0
    tables: set[int] = set()
    identity = b""
    is_known = True
    try:
        for offset, payload in _records(manifest):
            for tag, numbers, text in _edit(manifest, offset, payload):
                if tag == _DATABASE_ID:
                    identity = hashlib.sha256(text).digest()[:_IDENTITY_BYTES]
                elif tag == _LOG_NUMBER:
                    log_number = max(log_number, *numbers)
                elif tag == _LAST_SEQUENCE:
                    last_sequence = max(last_sequence, *numbers)
                elif tag == _DELETED_FILE:
                    tables.discard(numbers[1])
                elif tag in _NEW_FILES:
                    tables.add(numbers[1])
    except _Unknown:
        is_known = False
    except FileNotFoundError:
        if _read(f"{path}/CURRENT") != current:
            return _version(path)  # its writer began a new one
        raise damaged(manifest, "it is missing, and CURRENT names it") from None
    return _Version(log_number, last_sequence, frozenset(tables), identity, is_known)


def _edit(path: str, offset: int, payload: bytes) -> Iterator[tuple[int, Sequence[int], bytes]]:
    """(tag, its numbers, its last slice) of each field of a version edit."""
    fields = _Fields(path, offset, payload)
    while not fields.is_done:
        tag = fields.varint()
        shape = "s" if tag & _IGNORABLE else _EDIT_FIELDS.get(tag)
        if shape is None:
            raise _Unknown
        numbers, text = [], b""
        for kind in shape:
            if kind == "v":
                numbers.append(fields.varint())
            else:
                text = fields.slice()
        if tag == _NEW_FILES[-1]:
            while fields.varint() != 1:
                fields.slice()
        yield tag, numbers, text


class _Fields:
    """Varints and slices of one edit, in order."""

    def __init__(self, path: str, offset: int, payload: bytes) -> None:
        self._path = path
        self._offset = offset
        self._payload = payload
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._payload)

    def varint(self) -> int:
        value = shift = 0
        while shift < 64 and self._at < len(self._payload):
            byte = self._payload[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise damaged(self._path, "an edit that ends too early", self._offset)

    def slice(self) -> bytes:
        length = self.varint()
        found = self._payload[self._at : self._at + length]
        self._at += length
        if self._at > len(self._payload):
            _refuse(self._path, self._offset, "an edit that ends too early")
        return found


def _begin(identity: bytes) -> bytes:
    """The first change of a batch, as it stands in the log: a put of the row of the identity."""
    return b"\x01" + bytes((len(IDENTITY_KEY),)) + IDENTITY_KEY + bytes((_IDENTITY_BYTES,)) + identity


_BEGIN_BYTES: Final = len(_begin(bytes(_IDENTITY_BYTES)))


def _span(path: str) -> _Span | None:
    """None for a log without a change, or one that went away meanwhile: then MANIFEST has what was in it."""
    first = after = None
    begins: dict[bytes, int] = {}
    try:
        for offset, payload in _records(path):
            begins.setdefault(payload[_BATCH.size : _BATCH.size + _BEGIN_BYTES], offset)
            if len(payload) < _BATCH.size:
                _refuse(path, offset, "a batch that is too short")
            sequence, count = _BATCH.unpack_from(payload)
            if after is not None and sequence > after:
                _refuse(path, offset, f"the changes {after} to {sequence - 1} are missing")
            first = sequence if first is None else first
            after = sequence + count
    except FileNotFoundError:
        return None
    return None if first is None or after is None else _Span(path, first, after, begins)


def _records(path: str) -> Iterator[tuple[int, bytes]]:
    """(byte, payload) of each whole record, up to a torn end."""
    start, parts, is_open = 0, b"", False
    for offset, kind, payload in _frames(path):
        if (kind in (_MIDDLE, _LAST)) != is_open:
            _refuse(path, offset, "a part of a record stands alone")
        if not is_open:
            start, parts = offset, b""
        parts += payload
        is_open = kind in (_FIRST, _MIDDLE)
        if not is_open:
            yield start, parts


def _frames(path: str) -> Iterator[tuple[int, int, bytes]]:
    """(byte, type, payload) of each frame, up to a torn end."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size  # what is appended meanwhile belongs to a later look
        start, is_unwritten = 0, False
        while block := file.read(min(BLOCK_BYTES, size - start)):
            at = 0
            while at + _FRAME.size <= len(block):
                if is_unwritten or not any(block[at : at + _FRAME.size]):
                    is_unwritten = True  # RocksDB skips zeros: nothing may come after them
                    if any(block[at:]):
                        _refuse(path, start + at, "zeros, and bytes after them")
                    break
                crc, length, kind = _FRAME.unpack_from(block, at)
                end = at + _FRAME.size + length
                is_right = end <= len(block) and _masked(crc32c.crc32c(block[at + _CRC_BYTES_FROM : end])) == crc
                if not _FULL <= kind <= _LAST:
                    if is_right:
                        raise _Unknown
                    _refuse(path, start + at, f"a frame of the unknown type {kind}")
                if end > BLOCK_BYTES or (end > len(block) and start + len(block) < size):
                    _refuse(path, start + at, "a frame that goes beyond its block")
                if start + end > size:
                    return  # torn
                if not is_right:
                    if start + end == size:
                        return  # torn, or the last one is damaged: RocksDB says which
                    _refuse(path, start + at, "a frame that is not what was written")
                yield start + at, kind, block[at + _FRAME.size : end]
                at = end
            start += len(block)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(BLOCK_BYTES)


def _refuse(path: str, offset: int, what: str) -> NoReturn:
    raise damaged(path, what, offset)


def damaged(path: str, what: str, offset: int | None = None) -> AtomlogError:
    """CORRUPT about a file of a RocksDB directory."""
    place = path if offset is None else f"{path}, byte {offset}"
    detail = {"path": path, "code": "CORRUPT", "message": what, "offset": offset}
    directory = os.path.dirname(path)
    return fail("CORRUPT", f"{place}: {what}; remove {directory} to have it rebuilt from the log", details=[detail])
