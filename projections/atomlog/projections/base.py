"""What every projection is: effects of log records and the position they bring it to, written as one batch.

`KvProjection` does everything but the effects over a `Kv`, primary or secondary alike. Its own keyspaces are the
two tags below; a subclass uses any others, one byte each and the partition (u16) behind it.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final, Protocol

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import Staged, prefix_end, u16, u32, u64
from atomlog.kernel.ports import Kv
from atomlog.kernel.tail import START, Checkpoint, EffectiveRecord
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch
from atomlog.schemas.record import RULE
from atomlog.schemas.varint import WireError

STANDING: Final = b"\x00"  # ‖ partition → format u16 ‖ rule u16 ‖ rows u64 ‖ checkpoint
QUARANTINE: Final = b"\x01"  # ‖ partition ‖ position u64 → why, in UTF-8
ERROR_CHARACTERS_MAX: Final = 1_000
_AFTER_ALL: Final = b"\xff" * 3
_STANDING: Final = struct.Struct(">HHQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A record that a projection skipped, and why."""

    partition: int
    position: int
    error: str


class Projection(Protocol):
    """Derived state that follows the log. One per store and name; a secondary one only reads."""

    name: str
    skips_poison: bool  # False: it stops at a record that it cannot apply instead of skipping it

    @property
    def partitions(self) -> int: ...
    def checkpoint(self, partition: int) -> Checkpoint:
        """Where it stands; START when nothing was applied."""
        ...

    def apply(self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint) -> None:
        """The effects of all records and `after` in one write.

        Records ascend and lie in [checkpoint.position, after.position). Raises CORRUPT, having written nothing, on
        one that it cannot apply.
        """
        ...

    def quarantine(self, partition: int, position: int, error: str, after: Checkpoint) -> None:
        """Skip the record at `position`, noting why, and stand at `after`."""
        ...

    def quarantined(self) -> Sequence[Quarantined]: ...
    def rows(self, partition: int) -> int:
        """How many rows of content it keeps, as counted while running."""
        ...

    def digest(self, partition: int) -> bytes:
        """SHA-256 (32 bytes) over its content: equal for a live, a rebuilt and a copied store at one position."""
        ...

    def verify(self, partition: int) -> int:
        """Count the rows; CORRUPT when they are not as many as were counted while running."""
        ...

    def read_all(self) -> None:
        """Read everything that is kept, also what is no content and no read needs; CORRUPT names what is damaged."""
        ...

    def floors(self) -> Mapping[int, int]:
        """Partition → the lowest position it can be read as of, exactly; −1 = all the way down."""
        ...

    def sync(self) -> None:
        """Everything applied is durable on return. Blocks; releases the interpreter lock."""
        ...

    def catch_up(self) -> None:
        """A secondary takes over what its primary has written."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Standing:
    rows: int = 0
    checkpoint: Checkpoint = START


def read_all(kv: Kv) -> None:
    """Every pair of a store whose keys begin with a keyspace's tag."""
    for _ in kv.scan(b"", _AFTER_ALL):
        pass


def batch_of(record: EffectiveRecord) -> Batch:
    """The batch of a Batch record; UPGRADE_REQUIRED when its revisions are in a schema that is not known here."""
    batch = record.batch()
    if batch.revision_schema != codec.load("RevisionV1").fingerprint:
        message = f"position {record.position}: revisions in schema {batch.revision_schema.hex()} are not known"
        raise fail("UPGRADE_REQUIRED", f"{message}; use a newer version of the program")
    return batch


class KvProjection:
    """A projection over a sorted key-value store.

    A subclass sets `name` and `content` (the tags of the keyspaces whose pairs are its rows and its digest) and
    gives `_effects`. It raises `format_version` when its keys or values change their meaning.
    """

    name: str
    skips_poison: bool = True
    content: ClassVar[tuple[bytes, ...]]
    format_version: ClassVar[int] = 1
    kinds: ClassVar[frozenset[str]] = frozenset({"Batch"})  # of records that have effects here

    def __init__(self, kv: Kv, partitions: int) -> None:
        """Raises STORE_TOO_NEW when a newer program wrote the store, CORRUPT when it must be rebuilt."""
        self.kv = kv
        self._partitions = partitions
        self._floors = dict.fromkeys(range(partitions), -1)
        self._own: dict[int, _Standing] = {}  # of a writable store, whose only writer this is
        for partition in range(partitions):
            self._standing(partition)

    @property
    def partitions(self) -> int:
        return self._partitions

    def checkpoint(self, partition: int) -> Checkpoint:
        return self._standing(partition).checkpoint

    def rows(self, partition: int) -> int:
        return self._standing(partition).rows

    def floors(self) -> Mapping[int, int]:
        return self._floors

    def apply(self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint) -> None:
        standing = self._standing(partition)
        self._check_order(partition, [record.position for record in records], standing.checkpoint, after)
        staged = Staged(self.kv)
        effective = [record for record in records if record.kind in self.kinds]
        try:
            self._effects_of_all(partition, effective, after, staged)
        except WireError as error:
            first, last = effective[0].position, effective[-1].position
            raise fail("CORRUPT", f"{self.name}: partition {partition}, positions {first}–{last}: {error}") from None
        self._commit(partition, standing, after, staged)

    def quarantine(self, partition: int, position: int, error: str, after: Checkpoint) -> None:
        standing = self._standing(partition)
        self._check_order(partition, [position], standing.checkpoint, after)
        staged = Staged(self.kv)
        staged.put(QUARANTINE + u16(partition) + u64(position), error[:ERROR_CHARACTERS_MAX].encode(errors="replace"))
        self._effects_of_all(partition, [], after, staged)
        self._commit(partition, standing, after, staged)

    def quarantined(self) -> Sequence[Quarantined]:
        found = self.kv.scan(QUARANTINE, prefix_end(QUARANTINE))
        return [
            Quarantined(
                partition=int.from_bytes(key[1:3], "big"),
                position=int.from_bytes(key[3:], "big"),
                error=value.decode(),
            )
            for key, value in found
        ]

    def digest(self, partition: int) -> bytes:
        """SHA-256 over `u32 length ‖ key ‖ u32 length ‖ value` of each canonical pair, in key order."""
        digest = hashlib.sha256()
        for tag in sorted(self.content):
            for key, value in self._pairs(tag, partition):
                pair = self._canonical(key, value)
                digest.update(b"".join((u32(len(key)), key, u32(len(pair)), pair)))
        return digest.digest()

    def verify(self, partition: int) -> int:
        kept = self.rows(partition)
        counted = sum(1 for tag in self.content for _ in self._pairs(tag, partition))
        if counted != kept:
            message = f"{self.name}: partition {partition} has {counted} rows, {kept} were counted while running"
            raise fail("CORRUPT", f"{message}; rebuild it")
        return counted

    def read_all(self) -> None:
        read_all(self.kv)

    def sync(self) -> None:
        self.kv.sync()

    def catch_up(self) -> None:
        self.kv.catch_up()

    def close(self) -> None:
        self.kv.close()

    def _effects(self, partition: int, record: EffectiveRecord, staged: Staged) -> None:
        """Stage what one record changes. A content pair that is new is inserted, one that goes is removed."""
        raise NotImplementedError

    def _effects_of_all(
        self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint, staged: Staged
    ) -> None:
        """Stage what records change, in order. A subclass that works faster in groups overrides this one."""
        for record in records:
            self._effects(partition, record, staged)

    def _canonical(self, key: bytes, value: bytes) -> bytes:
        """The value as the digest sees it: the same for every history that led to the same content."""
        return value

    def _pairs(self, tag: bytes, partition: int) -> Iterator[tuple[bytes, bytes]]:
        prefix = tag + u16(partition)
        return self.kv.scan(prefix, prefix_end(prefix))

    def _standing(self, partition: int) -> _Standing:
        standing = self._own.get(partition)
        if standing is None:
            standing = self._stored_standing(partition)
            if self.kv.writable:
                self._own[partition] = standing
        return standing

    def _stored_standing(self, partition: int) -> _Standing:
        raw = self.kv.get(STANDING + u16(partition))
        if raw is None:
            return _Standing()
        version, rule, rows = _STANDING.unpack_from(raw)
        if version > self.format_version or rule > RULE:
            message = f"{self.name} was written in format {version} under rule {rule}"
            raise fail("STORE_TOO_NEW", f"{message}; use a newer version of the program")
        if version < self.format_version:
            message = f"{self.name} is in format {version}, this program keeps format {self.format_version}"
            raise fail("CORRUPT", f"{message}; rebuild it")
        return _Standing(rows, Checkpoint.from_bytes(raw[_STANDING.size :]))

    def _commit(self, partition: int, standing: _Standing, after: Checkpoint, staged: Staged) -> None:
        """Position and effects become visible, and after a power cut remain or vanish, together."""
        if not self.kv.writable:
            raise fail("STORE_READ_ONLY", f"{self.name} is open beside its follower and only reads")
        rows = standing.rows + staged.rows
        head = _STANDING.pack(self.format_version, RULE, rows)
        staged.put(STANDING + u16(partition), head + after.to_bytes())
        self._own.pop(partition, None)  # what a write that fails leaves is read again
        staged.commit()
        self._own[partition] = _Standing(rows, after)

    def _check_order(self, partition: int, positions: Sequence[int], before: Checkpoint, after: Checkpoint) -> None:
        """Each record once and in order: a gap or a repetition here would be kept for ever."""
        bounds = [before.position - 1, *positions, after.position]
        if any(low >= high for low, high in pairwise(bounds)):
            message = f"{self.name}: partition {partition} stands at {before.position} and got {positions[:3]}…"
            raise fail("CORRUPT", f"{message} with {after.position} as the next position")
