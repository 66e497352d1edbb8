"""The kernel's own state: what the next write is decided on. A projection of the log like any other.

One store holds every partition. Keys are a tag, the partition (u16) and:

====  =============================================  ==========================================================
tag   key                                            value
====  =============================================  ==========================================================
h     atom                                           position u64 ‖ space ‖ clear part of the head revision
r     revision                                       position u64 ‖ index in the batch u32 ‖ atom
i     request key                                    request digest ‖ position u64 ‖ term u64 ‖ chain
v     space ‖ role ‖ target                          last position that opened or closed such a slot
s     space ‖ schema                                 last position that created or changed such an atom
d     space                                          id of the key that the space's digests are made with
u     key page                                       bitmap of the keys that effective records use
x     key page                                       bitmap of the keys that effective KeysDestroyed name
p                                                    `Place`: checkpoint, last time, counts, last Claim
====  =============================================  ==========================================================

Texts inside keys and values have a one-byte length before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.kv import prefix_end, u16, u32, u64
from atomlog.kernel.ports import Kv
from atomlog.kernel.tail import START, Checkpoint, EffectiveRecord
from atomlog.schemas.batch import Batch
from atomlog.schemas.revision import Clear, decode_clear

PENDING: Final = 2**63  # position of what is appended and not read back: after everything that was read
BITMAP_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest revision of an atom, `clear` without its content; `position` is PENDING in the overlay."""

    partition: int
    position: int
    space: str
    clear: Clear


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPlace:
    """Where a revision stands: the record's position and its index in the batch."""

    partition: int
    position: int
    index: int
    atom: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What is kept of an accepted request; `position` is PENDING in the overlay."""

    digest: bytes
    position: int
    term: int
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a partition is applied, and what is counted on the way."""

    checkpoint: Checkpoint = START
    recorded_at_us: int = -(2**62)
    batches: int = 0
    revisions: int = 0
    voids: Mapping[str, int] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)


class HeadView:
    """Reads heads through the layers of what is appended and not yet read back, newest first."""

    def __init__(self, kv: Kv, partitions: int) -> None:
        self.kv = kv
        self.partitions = partitions
        self.layers: list[dict[bytes, bytes]] = []

    def get(self, key: bytes) -> bytes | None:
        for layer in reversed(self.layers):
            if key in layer:
                return layer[key]
        return self.kv.get(key)

    def head(self, partition: int, atom: bytes) -> Head | None:
        raw = self.get(b"h" + u16(partition) + atom)
        if raw is None:
            return None
        space, at = _text(raw, 8)
        clear, _ = decode_clear(raw[at:])
        return Head(partition=partition, position=int.from_bytes(raw[:8], "big"), space=space, clear=clear)

    def head_anywhere(self, partition: int, atom: bytes) -> Head | None:
        """The head in `partition`, else in the others: an atom's id does not say where it is stored."""
        for candidate in (partition, *(n for n in range(self.partitions) if n != partition)):
            head = self.head(candidate, atom)
            if head is not None:
                return head
        return None

    def revision(self, partition: int, revision: bytes) -> RevisionPlace | None:
        """Where an accepted revision stands, in any partition; `partition` is looked at first."""
        for candidate in (partition, *(n for n in range(self.partitions) if n != partition)):
            raw = self.get(b"r" + u16(candidate) + revision)
            if raw is not None:
                position, index = int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:12], "big")
                return RevisionPlace(partition=candidate, position=position, index=index, atom=raw[12:])
        return None

    def request(self, partition: int, request_key: bytes) -> Accepted | None:
        raw = self.get(b"i" + u16(partition) + request_key)
        if raw is None:
            return None
        position, term = int.from_bytes(raw[32:40], "big"), int.from_bytes(raw[40:48], "big")
        return Accepted(digest=raw[:32], position=position, term=term, chain=raw[48:])

    def range_changed(self, partition: int, space: str, role: str, target: bytes) -> int:
        """Last position at which (role, target) changed in a space, −1 when never."""
        return _position(self.get(_range_key(partition, space, role, target)))

    def scope_changed(self, partition: int, space: str, schema: str) -> int:
        """Last position at which an atom of the schema was created or changed in a space, −1 when never."""
        return _position(self.get(_scope_key(partition, space, schema)))

    def digest_key(self, partition: int, space: str) -> bytes | None:
        return self.get(b"d" + u16(partition) + space.encode())

    def place(self, partition: int) -> Place:
        """What is read back, without the layers."""
        raw = self.kv.get(b"p" + u16(partition))
        if raw is None:
            return Place()
        head, tail = raw[:_CHECKPOINT_BYTES], jsontext.loads(raw[_CHECKPOINT_BYTES:])
        return Place(checkpoint=Checkpoint.from_bytes(head), **tail)

    def used_keys(self, partition: int) -> Mapping[bytes, bytes]:
        """Bitmap of used keys per page, of effective records."""
        return self._bitmaps(b"u" + u16(partition))

    def destroyed_keys(self, partition: int) -> Mapping[bytes, bytes]:
        """Bitmap per page of the keys that effective KeysDestroyed records name."""
        return self._bitmaps(b"x" + u16(partition))

    def _bitmaps(self, prefix: bytes) -> Mapping[bytes, bytes]:
        return {key[3:]: value for key, value in self.kv.scan(prefix, prefix_end(prefix))}


class Heads:
    """Applies effective records to the head state; `HeadView` reads it."""

    def __init__(self, kv: Kv, partitions: int) -> None:
        self.kv = kv
        self._partitions = partitions

    def apply(
        self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint, voids: Mapping[str, int]
    ) -> None:
        """Effects of all records and the checkpoint in one batch.

        Raises CORRUPT, with nothing written, when a record breaks what its owner had to keep: the head state
        never skips a record.
        """
        changes: dict[bytes, bytes] = {}
        reader = HeadView(self.kv, self._partitions)
        reader.layers = [changes]
        place = replace(reader.place(partition), checkpoint=after, voids=dict(voids))
        for record in records:
            if record.kind == "Batch":
                batch = record.batch()
                _stage_batch(reader, changes, partition, batch, record)
                place = replace(
                    place,
                    recorded_at_us=batch.recorded_at_us,
                    batches=place.batches + 1,
                    revisions=place.revisions + len(batch.revisions),
                )
            elif record.kind == "Claim":
                claim = record.datum()
                shown = {name: claim[name] for name in ("endpoint", "node", "pid")}
                place = replace(place, claim={"owner": record.record.owner.hex(), **shown})
            elif record.kind == "KeysDestroyed":
                for page in record.datum()["pages"]:
                    key = b"x" + u16(partition) + page["page"]
                    changes[key] = _union(reader.get(key), page["bitmap"])
        counted = {name: getattr(place, name) for name in ("recorded_at_us", "batches", "revisions", "voids", "claim")}
        changes[b"p" + u16(partition)] = after.to_bytes() + jsontext.dumps(counted)
        self.kv.write(list(changes.items()))


def stage_pending(view: HeadView, layer: dict[bytes, bytes], partition: int, batch: Batch) -> None:
    """Put a batch that is about to be appended into an overlay layer, at the position PENDING."""
    _stage_batch(view, layer, partition, batch, None)


def _stage_batch(
    view: HeadView, changes: dict[bytes, bytes], partition: int, batch: Batch, record: EffectiveRecord | None
) -> None:
    """The effects of one batch. `view` must already read through `changes`."""
    tag = u16(partition)
    position = PENDING if record is None else record.position
    term, chain = (0, bytes(16)) if record is None else (record.record.term, record.chain)
    at = u64(position)
    space = _sized(batch.space)
    for index, revision in enumerate(batch.revisions):
        clear, end = decode_clear(revision)
        former = view.head(partition, clear.atom_id)
        _check_previous(clear, former, position)
        changes[b"h" + tag + clear.atom_id] = at + space + revision[:end]
        changes[b"r" + tag + clear.revision_id] = at + u32(index) + clear.atom_id
        for role, target in _touched_ranges(clear, former):
            changes[_range_key(partition, batch.space, role, target)] = at
        changes[_scope_key(partition, batch.space, clear.schema)] = at
        if clear.key_id is not None:
            _mark_used(view, changes, tag, clear.key_id)
    changes[b"i" + tag + batch.request_key] = batch.request_digest + at + u64(term) + chain
    changes[b"d" + tag + batch.space.encode()] = batch.digest_key_id
    _mark_used(view, changes, tag, batch.digest_key_id)


def _check_previous(clear: Clear, former: Head | None, position: int) -> None:
    """An effective revision follows the head, or its owner was wrong: never to be skipped."""
    expected = None if former is None else former.clear.revision_id
    if clear.previous != expected:
        shown = "none" if expected is None else format_id(expected)
        raise fail(
            "CORRUPT",
            f"position {position}: revision {format_id(clear.revision_id)} of atom {format_id(clear.atom_id)} "
            f"does not follow the head {shown}",
        )


def _touched_ranges(clear: Clear, former: Head | None) -> set[tuple[str, bytes]]:
    """Ranges whose answer may change: the slots of a revision and of the one before it."""
    touched = {(slot.role, slot.target) for slot in clear.slots}
    if former is not None:
        touched |= {(slot.role, slot.target) for slot in former.clear.slots}
    return touched


def _mark_used(view: HeadView, changes: dict[bytes, bytes], tag: bytes, key_id: bytes) -> None:
    key = b"u" + tag + key_id[:8]
    changes[key] = _union(view.get(key), bit(key_id[8]))


def bit(index: int) -> bytes:
    """A 256-bit map with one bit: bit i of byte i // 8, least significant first."""
    return (1 << index).to_bytes(BITMAP_BYTES, "little")


def _union(left: bytes | None, right: bytes) -> bytes:
    if left is None:
        return right
    return (int.from_bytes(left, "little") | int.from_bytes(right, "little")).to_bytes(BITMAP_BYTES, "little")


def _range_key(partition: int, space: str, role: str, target: bytes) -> bytes:
    return b"v" + u16(partition) + _sized(space) + _sized(role) + target


def _scope_key(partition: int, space: str, schema: str) -> bytes:
    return b"s" + u16(partition) + _sized(space) + _sized(schema)


def _sized(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def _text(raw: bytes, at: int) -> tuple[str, int]:
    stop = at + 1 + raw[at]
    return raw[at + 1 : stop].decode(), stop


def _position(raw: bytes | None) -> int:
    return -1 if raw is None else int.from_bytes(raw, "big")


_CHECKPOINT_BYTES: Final = len(START.to_bytes())
