"""The bytes of the postings index.

A **facet** is a set of atoms that share something; its name is a kind byte and a value. Its members are ordinals of
the partition, kept in **pages** of 2^16. Keys, each with the partition (u16) behind its tag:

=====  =================================  ==================================================================
``B``  facet ‖ page u16                   changes u16 ‖ form u16 ‖ changes ‖ members
``K``  ``g`` ‖ group ‖ member ordinal u32  how many memberships state it (u32), when more than one
``a``  atom                               ordinal u32 (the kernel's `Ordinals`, as ``o`` and ``n`` are)
``o``  ordinal u32                        atom ‖ what gives its head its facets (`unpack_head`); none for a stranger
``X``  facet ‖ page u16 ‖ last u64        older changes of a page, the last of them at this position; not content
``G``  last u64 ‖ facet ‖ page u16        where to find those to drop; not content
``f``  (nothing)                          the floor u64; absent = all the way down; not content
=====  =================================  ==================================================================

`form` is how many members follow as a list of u16 (up to `SMALL_MAX`), or 0xFFFF: a roaring bitmap of ordinals, or
0xFFFE: nothing follows, since every change is an addition and the members are what they added, as in most pages.
A change is `position × 2 + added` u64 ‖ low half of the ordinal u16. The newest change of a page always stands in the
page, so that a reader knows from it alone whether the page is what it was at an earlier position. A page that has
become empty stays, so that the rows depend on what happened and not on how it was grouped.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import u32, u64
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.slices import MEMBERSHIP, SlotParts, membership_slots, slice_encoded
from atomlog.schemas.varint import WireError

PAGE: Final = b"B"
COUNT: Final = b"K"
ORDINAL: Final = b"a"
NUMBERED: Final = b"o"
OLD_CHANGES: Final = b"X"
OLD_CHANGES_BY_AGE: Final = b"G"
FLOOR: Final = b"f"

GROUP_KIND: Final = b"g"
REFERRING_KIND: Final = b"r"
DAY_KIND: Final = b"d"
PAGE_BITS: Final = 16
SMALL_MAX: Final = 16
INLINE_CHANGES_MAX: Final = 32
CHANGE_BYTES: Final = 10
DAY_ZERO: Final = 1 << 31

CHANGE: Final = struct.Struct(">QH")
_PAGE_HEAD: Final = struct.Struct(">HH")
_ROARING: Final = 0xFFFF
_AS_ADDED: Final = 0xFFFE
_AS_ADDED_HEADS: Final = tuple(_PAGE_HEAD.pack(count, _AS_ADDED) for count in range(INLINE_CHANGES_MAX + 1))
_HEAD: Final = struct.Struct(">BIB")
ATOM_BYTES: Final = 16


def group_facet(group: bytes) -> bytes:
    return GROUP_KIND + group


def referring_facet(target: bytes, role: bytes) -> bytes:
    return b"".join((REFERRING_KIND, target, role, b"\x00"))


def schema_facet(schema: bytes) -> bytes:
    return b"s" + schema + b"\x00"


def policy_facet(policy: bytes) -> bytes:
    return b"p" + policy + b"\x00"


def space_facet(space: bytes) -> bytes:
    return b"n" + space + b"\x00"


def state_facet(retired: bool) -> bytes:
    return b"tr" if retired else b"ta"


def day_facet(day: int) -> bytes:
    """`day` counts UTC days since 1970-01-01."""
    return DAY_KIND + u32(day + DAY_ZERO)


def change(position: int, ordinal: int, *, added: bool) -> bytes:
    return CHANGE.pack(position << 1 | added, ordinal & 0xFFFF)


def change_start(position: int, *, added: bool) -> bytes:
    """All of a change but the low half of the ordinal."""
    return u64(position << 1 | added)


def is_added(packed: bytes) -> bool:
    return bool(packed[7] & 1)


def changes_of(packed: bytes) -> Iterator[tuple[int, bool, int]]:
    """(position, added, low half of the ordinal) of each change, in order."""
    for head, low in CHANGE.iter_unpack(packed):
        yield head >> 1, bool(head & 1), low


def position_of(packed: bytes) -> int:
    """The position of the first change."""
    return int.from_bytes(packed[:8], "big") >> 1


def drop_old_changes(changes: bytes, floor: int) -> bytes:
    """Without those at or below the floor: no reader can ask for what was before them."""
    at = 0
    while at < len(changes) and int.from_bytes(changes[at : at + 8], "big") >> 1 <= floor:
        at += CHANGE_BYTES
    return changes[at:]


def appended(raw: bytes | None, additions: bytes, floor: int) -> bytes | None:
    """A page as added to, by one addition more or several; None when it is another one, or grows too large."""
    number = len(additions) // CHANGE_BYTES
    if raw is None:
        return _AS_ADDED_HEADS[number] + additions if number <= INLINE_CHANGES_MAX else None
    count, form = _PAGE_HEAD.unpack_from(raw)
    if form != _AS_ADDED or count + number > INLINE_CHANGES_MAX or position_of(raw[_PAGE_HEAD.size :]) <= floor:
        return None
    return b"".join((_AS_ADDED_HEADS[count + number], raw[_PAGE_HEAD.size :], additions))


def page_of(name: bytes) -> int:
    """The number of a page, by its name: facet ‖ page u16."""
    return int.from_bytes(name[-2:], "big")


def pack_page(changes: bytes, members: Bitmap) -> bytes:
    count = len(changes) // CHANGE_BYTES
    if len(members) > SMALL_MAX:
        return _PAGE_HEAD.pack(count, _ROARING) + changes + members.to_bytes()
    small = [ordinal & 0xFFFF for ordinal in members]
    return _PAGE_HEAD.pack(count, len(small)) + changes + struct.pack(f">{len(small)}H", *small)


def unpack_page(raw: bytes, page: int) -> tuple[bytes, Bitmap]:
    """(changes, members) of a page; CORRUPT when the bytes are none."""
    try:
        count, form = _PAGE_HEAD.unpack_from(raw)
        members_at = _PAGE_HEAD.size + count * CHANGE_BYTES
        changes = raw[_PAGE_HEAD.size : members_at]
        base = page << PAGE_BITS
        if form == _AS_ADDED and len(raw) == members_at:
            return changes, Bitmap([base | low for _, low in CHANGE.iter_unpack(changes)])
        if form == _ROARING and len(changes) == count * CHANGE_BYTES:
            return changes, Bitmap.from_bytes(raw[members_at:])
        return changes, Bitmap([base | low for low in struct.unpack(f">{form}H", raw[members_at:])])
    except struct.error:
        raise fail("CORRUPT", f"postings: a page of {len(raw)} bytes is not readable; rebuild postings") from None


class Head(NamedTuple):
    """What postings keep of an atom's head. `space`, `schema`, `policy` in UTF-8; `day` as in `day_facet`."""

    retired: bool
    day: int
    space: bytes
    schema: bytes
    policy: bytes
    slots: Sequence[SlotParts]


def head_start(retired: bool, day: int, space: bytes) -> bytes:
    """What an atom's head begins with; its schema, policy and slots follow as they are encoded in the revision."""
    return _HEAD.pack(retired, day + DAY_ZERO, len(space)) + space


def unpack_head(raw: bytes) -> Head:
    """CORRUPT when the bytes are no head."""
    try:
        retired, day, size = _HEAD.unpack_from(raw)
        encoded_at = _HEAD.size + size
        schema, policy, slots, _, _ = slice_encoded(raw, encoded_at)
    except (struct.error, WireError):
        raise fail("CORRUPT", f"postings: a head of {len(raw)} bytes is not readable; rebuild postings") from None
    return Head(bool(retired), day - DAY_ZERO, raw[_HEAD.size : encoded_at], schema, policy, slots)


def common_facets(retired: bool, day: int, space: bytes, schema: bytes, policy: bytes) -> tuple[bytes, ...]:
    """The facets that every atom has one of each."""
    return (state_facet(retired), day_facet(day), space_facet(space), schema_facet(schema), policy_facet(policy))


def referring_facets(retired: bool, slots: Sequence[SlotParts]) -> set[bytes]:
    """One for each (role, target) that an active atom refers to."""
    return set() if retired else {referring_facet(target, role) for role, target, _ in slots}


def memberships(retired: bool, schema: bytes, slots: Sequence[SlotParts]) -> set[tuple[bytes, bytes]]:
    """(group, member) pairs that an active membership atom states."""
    if retired or schema != MEMBERSHIP:
        return set()
    return {(slots[group][1], slots[member][1]) for group, member in membership_slots(schema, slots)}
