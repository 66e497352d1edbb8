"""The bytes of the relation index.

Every row is valid for positions [born, died), so that a read as of any position is exact. Keys, each with the
partition (u16) of the referring atom behind its tag:

=====  ===========================================================  ==============================================
``R``  target ‖ role 00 ‖ born u64 ‖ atom ‖ slot u16                 died u64 ‖ revision ‖ schema ‖ rest of the slot
``M``  group ‖ order key, escaped ‖ member ‖ membership ‖ born u64   died u64 ‖ revision ‖ at: one for a membership
``L``  target ‖ role 00 ‖ position u64                              a change that opened no row of ``R``
``C``  atom                                                         its newest slots and state
``S``  atom ‖ ~since u64                                            those that were superseded
=====  ===========================================================  ==============================================

`R` sorts by birth, so that the last change of a range is one seek; `M` sorts as members are shown, so that a page of
a group is one range however large the group is. A role ends with a zero byte, which no name holds. An order key ends
with 00 01 and a zero inside it is written 00 FF, so that keys sort as the order keys do and none is another's prefix.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import u16
from atomlog.projections.slices import (
    MEMBERSHIP,
    RevisionParts,
    SlotParts,
    membership_slots,
    order_key_of,
    slice_encoded,
)
from atomlog.schemas.revision import ATOM, REVISION
from atomlog.schemas.varint import WireError

RELATION: Final = b"R"
MEMBER: Final = b"M"
CHANGE: Final = b"L"
STATE: Final = b"C"
STATE_BEFORE: Final = b"S"

OPEN: Final = b"\xff" * 8  # died: not yet
INVERTED: Final = 0xFFFF_FFFF_FFFF_FFFF
_STATE: Final = struct.Struct(">QQBH")
_INDEX: Final = tuple(u16(index) for index in range(256))
BIRTH_BYTES: Final = 24
_ACTIVE_WITHOUT_SLOTS: Final = b"\x00\x00\x00"  # retired ‖ count of births
_ACTIVE_BORN_AT_ONCE: Final = b"\x00\x00\x01"


class AtomState(NamedTuple):
    """An atom's slots from position `since` on. A retired atom keeps slots, none of them current.

    `births` has for each slot the position (u64) and the revision that opened it as it is; `encoded` is the schema,
    the policy and the slots as they stand in the revision.
    """

    created: int
    since: int
    retired: bool
    births: list[bytes]
    schema: bytes
    slots: list[SlotParts]
    encoded: bytes


def pack_state(state: AtomState) -> bytes:
    """`created u64 ‖ since u64 ‖ retired ‖ count u16 ‖ births ‖ encoded`: one birth when all slots share it."""
    created, since, retired, births, _, _, encoded = state
    if births and births.count(births[0]) == len(births):
        return _STATE.pack(created, since, retired, 1) + births[0] + encoded
    return _STATE.pack(created, since, retired, len(births)) + b"".join(births) + encoded


def unpack_state(raw: bytes) -> AtomState:
    """CORRUPT when the bytes are no state."""
    try:
        created, since, retired, count = _STATE.unpack_from(raw)
        encoded_at = _STATE.size + count * BIRTH_BYTES
        schema, _, slots, encoded, _ = slice_encoded(raw, encoded_at)
    except (struct.error, WireError):
        raise fail("CORRUPT", f"relations: a state of {len(raw)} bytes is not readable; rebuild relations") from None
    births = [raw[at : at + BIRTH_BYTES] for at in range(_STATE.size, encoded_at, BIRTH_BYTES)]
    if count == 1:
        births *= len(slots)
    return AtomState(created, since, bool(retired), births, schema, slots, encoded)


def state_span(raw: bytes) -> tuple[int, int, bool]:
    """(created, since, retired) of a packed state."""
    created, since, retired, _ = _STATE.unpack_from(raw)
    return created, since, bool(retired)


def is_unchanged(raw: bytes, encoded: bytes) -> bool:
    """Whether a packed state is active and has just these schema, policy and slots."""
    _, _, retired, count = _STATE.unpack_from(raw)
    return not retired and raw[_STATE.size + count * BIRTH_BYTES :] == encoded


def created_rows(
    partition: bytes, key: bytes, revision: bytes, parts: RevisionParts, born: bytes
) -> list[tuple[bytes, bytes]]:
    """What `pack_state`, under `key`, and `open_rows` give for a new active atom: most revisions are one."""
    schema, _, slots, encoded, _ = parts
    if not slots:
        return [(key, b"".join((born, born, _ACTIVE_WITHOUT_SLOTS, encoded)))]
    atom, opened_by = revision[ATOM], revision[REVISION]
    head, tail = RELATION + partition, b"\x00" + born + atom
    opened = b"".join((OPEN, opened_by, bytes((len(schema),)), schema))
    rows = [
        (b"".join((head, target, role, tail, _index(index))), opened + rest)
        for index, (role, target, rest) in enumerate(slots)
    ]
    rows.append((key, b"".join((born, born, _ACTIVE_BORN_AT_ONCE, born, opened_by, encoded))))
    if schema == MEMBERSHIP:
        rows += _member_rows(partition, atom, schema, slots, [born + opened_by] * len(slots))
    return rows


def open_rows(partition: bytes, atom: bytes, state: AtomState) -> dict[bytes, bytes]:
    """The rows of `R` and `M` that stand open in a state."""
    if state.retired:
        return {}
    _, _, _, births, schema, slots, _ = state
    relation = RELATION + partition
    sized_schema = bytes((len(schema),)) + schema
    rows: dict[bytes, bytes] = {}
    for index, (role, target, rest) in enumerate(slots):
        birth = births[index]
        key = b"".join((relation, target, role, b"\x00", birth[:8], atom, _index(index)))
        rows[key] = b"".join((OPEN, birth[8:], sized_schema, rest))
    rows.update(_member_rows(partition, atom, schema, slots, births))
    return rows


def _member_rows(
    partition: bytes, atom: bytes, schema: bytes, slots: Sequence[SlotParts], births: Sequence[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    for group_index, member_index in membership_slots(schema, slots):
        birth = max(births[group_index], births[member_index])
        _, member, rest = slots[member_index]
        key = (MEMBER, partition, slots[group_index][1], escape(order_key_of(rest)), member, atom, birth[:8])
        yield b"".join(key), OPEN + birth[8:] + rest[:16]


def _index(index: int) -> bytes:
    return _INDEX[index] if index < len(_INDEX) else u16(index)


class RelationRow(NamedTuple):
    """A row of `R`; `slot` is the slot's index in its revision."""

    target: bytes
    role: bytes
    born: int
    atom: bytes
    slot: int
    revision: bytes
    schema: bytes
    rest: bytes


def relation_row(suffix: bytes, value: bytes) -> RelationRow:
    """`suffix` is the key behind the partition."""
    rest_at = 25 + value[24]
    return RelationRow(
        target=suffix[:16],
        role=suffix[16:-27],
        born=int.from_bytes(suffix[RELATION_BORN], "big"),
        atom=suffix[-18:-2],
        slot=int.from_bytes(suffix[-2:], "big"),
        revision=value[8:24],
        schema=value[25:rest_at],
        rest=value[rest_at:],
    )


class MemberRow(NamedTuple):
    """A row of `M`."""

    group: bytes
    order_key: bytes
    member: bytes
    membership: bytes
    born: int
    revision: bytes
    at: bytes


def member_row(suffix: bytes, value: bytes) -> MemberRow:
    """`suffix` is the key behind the partition."""
    return MemberRow(
        group=suffix[:16],
        order_key=unescape(suffix[16:-40]),
        member=suffix[-40:-24],
        membership=suffix[-24:-8],
        born=int.from_bytes(suffix[MEMBER_BORN], "big"),
        revision=value[8:24],
        at=value[24:40],
    )


RELATION_BORN: Final = slice(-26, -18)  # in a key of `R`
MEMBER_BORN: Final = slice(-8, None)  # in a key of `M`


def escape(order_key: bytes) -> bytes:
    """Bytes that sort among other such bytes as the order keys do, whatever follows them."""
    return order_key.replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def unescape(escaped: bytes) -> bytes:
    return escaped[:-2].replace(b"\x00\xff", b"\x00")
