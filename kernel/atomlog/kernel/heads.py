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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.effects import BatchEffects, decoded_effects, range_key, sized
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.kv import prefix_end, u16
from atomlog.kernel.ports import Kv
from atomlog.kernel.tail import START, Checkpoint, EffectiveRecord
from atomlog.schemas.revision import REVISION, Clear, decode_clear, time_of
from atomlog.schemas.varint import WireError

BITMAP_BYTES: Final = 32
_SPACES_MAX: Final = 1_024  # whose digest keys a view remembers


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
    """How far a partition is applied, and what is counted on the way.

    `claim`: owner, claimed_at_us, endpoint, node and pid of the last Claim; `released`: why, once that owner gave the
    term up.
    """

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
        self._digest_keys: dict[tuple[int, str], bytes] = {}

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
        return _position(self.get(range_key(u16(partition), sized(space), role, target)))

    def scope_changed(self, partition: int, space: str, schema: str) -> int:
        """Last position at which an atom of the schema was created or changed in a space, −1 when never."""
        return _position(self.get(b"".join((b"s", u16(partition), sized(space), sized(schema)))))

    def digest_key(self, partition: int, space: str) -> bytes | None:
        """The key of a space never changes once a batch of the space is effective, so it is looked up once."""
        known = self._digest_keys.get((partition, space))
        if known is not None:
            return known
        key = b"".join((b"d", u16(partition), space.encode()))
        for layer in reversed(self.layers):
            if key in layer:
                return layer[key]
        found = self.kv.get(key)
        if found is not None:
            if len(self._digest_keys) >= _SPACES_MAX:
                self._digest_keys.clear()
            self._digest_keys[(partition, space)] = found
        return found

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

    def destroyed_of(self, page: bytes) -> int:
        """The keys of one page that effective KeysDestroyed records of any partition name; bit i = key i."""
        found = self.kv.get_many([b"x" + u16(partition) + page for partition in range(self.partitions)])
        return reduce(or_, (int.from_bytes(bitmap, "little") for bitmap in found if bitmap), 0)

    def _bitmaps(self, prefix: bytes) -> Mapping[bytes, bytes]:
        return {key[3:]: value for key, value in self.kv.scan(prefix, prefix_end(prefix))}


class Heads:
    """Applies effective records to the head state; `HeadView` reads it."""

    def __init__(self, kv: Kv, partitions: int) -> None:
        self.kv = kv
        self._partitions = partitions

    def apply(
        self,
        partition: int,
        records: Sequence[EffectiveRecord],
        after: Checkpoint,
        voids: Mapping[str, int],
        known: Callable[[EffectiveRecord], BatchEffects | None] = lambda record: None,
    ) -> None:
        """Effects of all records and the checkpoint in one batch. `known`: the effects of an own record, if still had.

        Raises CORRUPT, with nothing written, when a record breaks what its owner had to keep: the head state
        never skips a record.
        """
        changes: dict[bytes, bytes] = {}
        reader = HeadView(self.kv, self._partitions)
        reader.layers = [changes]
        place = replace(reader.place(partition), checkpoint=after, voids=dict(voids))
        batches: list[tuple[EffectiveRecord, BatchEffects]] = []
        for record in records:
            if record.kind == "Batch":
                batches.append((record, known(record) or _decoded(partition, record)))
            elif record.kind == "Claim":
                claim = record.datum()
                shown = {name: claim[name] for name in ("endpoint", "node", "pid")}
                made = {"owner": record.record.owner.hex(), "claimed_at_us": time_of(claim["claimed_at"])}
                place = replace(place, claim={**made, **shown})
            elif record.kind == "Release":
                place = replace(place, claim={**place.claim, "released": record.datum()["reason"]})
            elif record.kind == "KeysDestroyed":
                for page in record.datum()["pages"]:
                    key = b"x" + u16(partition) + page["page"]
                    changes[key] = _union(reader.get(key), page["bitmap"])
        if batches:
            self._stage(partition, batches, changes)
            place = replace(
                place,
                recorded_at_us=batches[-1][1].batch.recorded_at_us,
                batches=place.batches + len(batches),
                revisions=place.revisions + sum(len(effects.revisions) for _, effects in batches),
            )
        counted = {name: getattr(place, name) for name in ("recorded_at_us", "batches", "revisions", "voids", "claim")}
        changes[b"p" + u16(partition)] = after.to_bytes() + jsontext.dumps(counted)
        self.kv.write(list(changes.items()))

    def _stage(
        self, partition: int, batches: Sequence[tuple[EffectiveRecord, BatchEffects]], changes: dict[bytes, bytes]
    ) -> None:
        """The effects of batches in order. The heads that they follow are read at once."""
        keys = [one.head_key for _, effects in batches for one in effects.revisions]
        stored = dict(zip(keys, self.kv.get_many(keys), strict=True))
        used: dict[bytes, int] = {}
        for record, effects in batches:
            for one in effects.revisions:
                former = changes.get(one.head_key) or stored[one.head_key]
                _check_previous(one.clear, former, record.position)
                if former is not None and not one.former_is_known:
                    one.marks.extend(_ranges_of(partition, former))
            effects.stage(changes, record.position, record.record.term, record.chain)
            for key_id in effects.used_keys():
                used[key_id[:8]] = used.get(key_id[:8], 0) | 1 << key_id[8]
        tag = b"u" + u16(partition)
        for page, bits in used.items():
            changes[tag + page] = _union(self.kv.get(tag + page), bits.to_bytes(BITMAP_BYTES, "little"))


def _decoded(partition: int, record: EffectiveRecord) -> BatchEffects:
    try:
        return decoded_effects(partition, record.batch())
    except WireError as error:
        raise fail("CORRUPT", f"position {record.position}: {error}") from None


def _check_previous(clear: Clear, former: bytes | None, position: int) -> None:
    """An effective revision follows the head, or its owner was wrong: never to be skipped."""
    expected = None if former is None else _head_revision(former)
    if clear.previous != expected:
        shown = "none" if expected is None else format_id(expected)
        raise fail(
            "CORRUPT",
            f"position {position}: revision {format_id(clear.revision_id)} of atom {format_id(clear.atom_id)} "
            f"does not follow the head {shown}",
        )


def _head_revision(head: bytes) -> bytes:
    """The revision id of a stored head, without decoding it: after position, space and atom."""
    at = 9 + head[8] + REVISION.start
    return head[at : at + 16]


def _ranges_of(partition: int, head: bytes) -> list[bytes]:
    """Ranges that the slots of a stored head stand in: their answer changes when another revision takes its place."""
    at = 9 + head[8]
    clear, _ = decode_clear(head[at:])
    return [range_key(u16(partition), head[8:at], slot.role, slot.target) for slot in clear.slots]


def _union(left: bytes | None, right: bytes) -> bytes:
    if left is None:
        return right
    return (int.from_bytes(left, "little") | int.from_bytes(right, "little")).to_bytes(BITMAP_BYTES, "little")


def _text(raw: bytes, at: int) -> tuple[str, int]:
    stop = at + 1 + raw[at]
    return raw[at + 1 : stop].decode(), stop


def _position(raw: bytes | None) -> int:
    return -1 if raw is None else int.from_bytes(raw, "big")


_CHECKPOINT_BYTES: Final = len(START.to_bytes())
