"""Every key and value of the vectors store. A change here raises `Vectors.format_version`.

A *content ordinal* numbers the revisions of a partition that are not retired, in log order: a pure function of the
log, whatever has a text and whoever encodes it. A space stands in keys as the first 8 bytes of the SHA-256 of its
id. All numbers are big-endian, vectors float32 little-endian.

=====  ================================  ================================================================
``C``  partition, ordinal u32            atom ordinal u32 ‖ born u64 ‖ died u64 ‖ atom ‖ revision
``A``  partition, atom ordinal u32       content ordinal u32 of the atom's revision that is not superseded
``D``  partition, position u64, ordinal  (nothing): this row died at that position
``Q``  partition, ordinal                RevisionV1 bytes, until every space is done with them
``V``  partition, space, ordinal         the vector, of length 1 under cosine
``W``  partition, space                  `Work`: how far embedding is
``R``  partition, space, ordinal         `Trouble` to be tried again
``F``  partition, space, ordinal         `Trouble` that ended in no vector
``L``  partition, space, ordinal         (nothing): the vector came after a failure, out of order
``O``  …                                 the atom ordinals (`kernel.ordinals`)
``S``  (no partition)                    what the store was built for, as JSON
=====  ================================  ================================================================
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import u16, u32, u64

ROW: Final = b"C"
OPEN_ROW: Final = b"A"
DEATH: Final = b"D"
QUEUE: Final = b"Q"
VECTOR: Final = b"V"
WORK: Final = b"W"
RETRY: Final = b"R"
FAILED: Final = b"F"
LATE: Final = b"L"
ORDINALS: Final = b"O"
BUILT_FOR: Final = b"S"

ORDINALS_MAX: Final = 1 << 32
NEVER: Final = (1 << 63) - 1  # died: not yet
ERROR_CHARACTERS_MAX: Final = 500

_ROW: Final = struct.Struct(">IQQ16s16s")
_WORK: Final = struct.Struct(">IIIIIIII")


@dataclass(frozen=True, slots=True)
class Row:
    """One revision that may have vectors: alive as of p iff born ≤ p < died."""

    atom_ordinal: int
    born: int
    died: int
    atom: bytes
    revision: bytes

    def to_bytes(self) -> bytes:
        return _ROW.pack(self.atom_ordinal, self.born, self.died, self.atom, self.revision)

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> "Row":
        """CORRUPT when the bytes are no row."""
        if raw is None or len(raw) != _ROW.size:
            size = "missing" if raw is None else f"{len(raw)} bytes long"
            raise fail("CORRUPT", f"vectors: a row is {size}, not {_ROW.size} bytes; rebuild vectors")
        return cls(*_ROW.unpack(raw))


ROW_BYTES: Final = _ROW.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Embedding in one space of one partition.

    `cursor`: ordinals below it have been looked at. Of those, `embedded` have a vector, `retrying` wait for another
    try, `failed`, `sealed` (no key) and `purged` ended without one, and the rest have nothing to embed. `late` counts
    vectors that came after a failure; `version` goes up with every change.
    """

    cursor: int = 0
    embedded: int = 0
    retrying: int = 0
    failed: int = 0
    sealed: int = 0
    purged: int = 0
    late: int = 0
    version: int = 0

    @property
    def troubled(self) -> int:
        """Rows that should have a vector and have none."""
        return self.retrying + self.failed + self.sealed

    def to_bytes(self) -> bytes:
        return _WORK.pack(
            self.cursor,
            self.embedded,
            self.retrying,
            self.failed,
            self.sealed,
            self.purged,
            self.late,
            self.version % ORDINALS_MAX,
        )

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> "Work":
        """CORRUPT when the bytes are none."""
        if raw is None:
            return cls()
        if len(raw) != _WORK.size:
            raise fail("CORRUPT", f"vectors: how far embedding is stands in {len(raw)} bytes; rebuild vectors")
        cursor, embedded, retrying, failed, sealed, purged, late, version = _WORK.unpack(raw)
        return cls(
            cursor=cursor,
            embedded=embedded,
            retrying=retrying,
            failed=failed,
            sealed=sealed,
            purged=purged,
            late=late,
            version=version,
        )


class Ending(IntEnum):
    """Why a row has no vector. RETRY is not the last word."""

    RETRY = 1
    FAILED = 2
    SEALED = 3
    PURGED = 4


_ENDINGS: Final = frozenset(Ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A row without a vector that should have one: how it stands, how often it was tried, the last error."""

    ending: Ending
    attempts: int
    error: str

    def to_bytes(self) -> bytes:
        text = self.error[:ERROR_CHARACTERS_MAX].encode(errors="replace")
        return bytes((self.ending, min(self.attempts, 255))) + text

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Trouble":
        """CORRUPT when the bytes are none."""
        if len(raw) < 2 or raw[0] not in _ENDINGS:
            raise fail("CORRUPT", f"vectors: a note of {len(raw)} bytes on a failure is not readable; rebuild vectors")
        return cls(ending=Ending(raw[0]), attempts=raw[1], error=raw[2:].decode(errors="replace"))


def space_tag(space_id: str) -> bytes:
    """What stands for a space in keys and file names."""
    return hashlib.sha256(space_id.encode()).digest()[:8]


def row_key(partition: int, ordinal: int) -> bytes:
    return ROW + u16(partition) + u32(ordinal)


def death_key(partition: int, position: int, ordinal: int) -> bytes:
    return DEATH + u16(partition) + u64(position) + u32(ordinal)


def in_space(tag: bytes, partition: int, space: bytes) -> bytes:
    """The prefix of a keyspace by (partition, space); `space` is a `space_tag`."""
    return tag + u16(partition) + space


def ordinal_of(key: bytes) -> int:
    """The ordinal at the end of a key."""
    return int.from_bytes(key[-4:], "big")
