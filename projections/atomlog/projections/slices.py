"""What indexes need of an encoded revision, sliced out without building a `Clear` (a quarter of its cost).

`decode_clear` is the reference; a test holds the two together.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from atomlog.kernel.ordinals import mentions
from atomlog.schemas.revision import (
    ATOM,
    FIXED_BYTES,
    FLAGS_AT,
    FROM_OPEN,
    HAS_VALID_TIME,
    INCLUDE,
    NO_INPUTS_BYTES,
    RECORDED_AT,
    RETIRED,
    VALID_FROM,
    ZERO16,
    decode_clear,
    time_of,
)
from atomlog.schemas.varint import WireError, read_bytes, read_count

MEMBERSHIP: Final = b"membership"
GROUP: Final = b"group"
MEMBER: Final = b"member"
SLOT_BYTES_MIN: Final = 35
LONG_OR_BROKEN: Final = 0x81  # a length byte with one of these bits is 64 or more, or negative

SlotParts = tuple[bytes, bytes, bytes]
"""(role, target, rest); rest = pinned revision 16 (zeros = logical) ‖ flags ‖ order key with its length."""


RevisionParts = tuple[bytes, bytes, list[SlotParts], bytes, int]
"""(schema, policy, slots, encoded, inputs_at); encoded = schema, policy and slots as they came; a named tuple would
take a third of the time of slicing."""


def slice_revision(revision: bytes) -> RevisionParts:
    """Raises WireError when the bytes are no RevisionV1 up to its inputs."""
    return slice_encoded(revision, FIXED_BYTES)


def slice_encoded(buf: bytes, start: int) -> RevisionParts:
    """The same of bytes whose schema begins at `start`."""
    try:
        policy_at = start + 1 + (buf[start] >> 1)
        if (buf[start] | buf[policy_at]) & LONG_OR_BROKEN:
            schema, policy_at = _sized(buf, start, "schema")
            policy, at = _sized(buf, policy_at, "policy")
        else:  # what is cut off here shows in what follows
            at = policy_at + 1 + (buf[policy_at] >> 1)
            schema, policy = buf[start + 1 : policy_at], buf[policy_at + 1 : at]
        slots: list[SlotParts] = []
        while count := buf[at]:
            if count & LONG_OR_BROKEN:
                count, at = read_count(buf, at, SLOT_BYTES_MIN, "slots")
            else:
                count, at = count >> 1, at + 1
            for _ in range(count):
                role_at = at + 1
                target_at = role_at + (buf[at] >> 1)
                if buf[at] & LONG_OR_BROKEN:
                    role, target_at = read_bytes(buf, at, "slots.role")
                else:
                    role = buf[role_at:target_at]
                rest_at = target_at + 16
                size = buf[rest_at + 17]
                if size & LONG_OR_BROKEN:
                    at = read_bytes(buf, rest_at + 17, "slots.order_key")[1]
                else:
                    at = rest_at + 18 + (size >> 1)
                if buf[rest_at + 16] > 3 or 0 in role:
                    raise WireError(f"slots: flags {buf[rest_at + 16]}, role {role!r} before byte {at}")
                slots.append((role, buf[target_at:rest_at], buf[rest_at:at]))
        at += 1
        return schema, policy, slots, buf[start:at], at
    except IndexError:
        raise WireError(f"revision: cut off at byte {len(buf)}") from None


def pinned_at(rest: bytes) -> bytes | None:
    """The pinned revision of a slot."""
    at = rest[:16]
    return None if at == ZERO16 else at


def slot_flags(rest: bytes) -> int:
    return rest[16]


def order_key_of(rest: bytes) -> bytes:
    return _sized(rest, 17, "slots.order_key")[0]


def membership_slots(schema: bytes, slots: Sequence[SlotParts]) -> Sequence[tuple[int, int]]:
    """The memberships that a revision states: (index of the group's slot, index of the member's slot)."""
    if schema != MEMBERSHIP:
        return ()
    groups: list[int] = []
    members: list[int] = []
    for index, (role, _, rest) in enumerate(slots):
        if not rest[16] & INCLUDE:
            if role == GROUP:
                groups.append(index)
            elif role == MEMBER:
                members.append(index)
    return [(group, member) for group in groups for member in members]


def mentioned(revision: bytes, parts: RevisionParts) -> Iterable[bytes]:
    """The same atom ids in the same order as the kernel's `mentions`."""
    _, _, slots, _, inputs_at = parts
    if not revision.startswith(NO_INPUTS_BYTES, inputs_at):
        return mentions(revision, decode_clear(revision)[0])
    return [revision[ATOM], *[target for _, target, _ in slots]]


def is_retired(revision: bytes) -> bool:
    return bool(revision[FLAGS_AT] & RETIRED)


def effective_time_us(revision: bytes) -> int:
    """The start of the valid time where one is given, else when it was recorded."""
    flags = revision[FLAGS_AT]
    given = flags & HAS_VALID_TIME and not flags & FROM_OPEN
    return time_of(revision[VALID_FROM if given else RECORDED_AT])


def _sized(buf: bytes, at: int, field: str) -> tuple[bytes, int]:
    """Length-prefixed bytes, mostly shorter than 64."""
    size = buf[at]
    if size & LONG_OR_BROKEN:
        return read_bytes(buf, at, field)
    at += 1
    stop = at + (size >> 1)
    if stop > len(buf):
        raise WireError(f"{field}: {size >> 1} bytes do not fit into the {len(buf) - at} left at byte {at}")
    return buf[at:stop], stop
