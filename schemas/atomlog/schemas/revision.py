"""RevisionV1: the bytes of one revision, encoded by hand and byte-identical to Avro.

Fixed-size fields stand first, so that a reader that needs only ids slices at the constant offsets below.
The clear part ends where the length of `sealed` begins; those bytes are the associated data of the seal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from atomlog.schemas.quick import quick
from atomlog.schemas.varint import (
    WireError,
    read_array,
    read_bool,
    read_bytes,
    read_fixed,
    read_int,
    read_long,
    read_text,
    write_array,
    write_bytes,
    write_int,
    write_long,
    write_text,
)

ZERO16: Final = bytes(16)
ZERO_KEY: Final = bytes(9)

# Offsets of the fixed fields. Never to change.
ATOM: Final = slice(0, 16)
REVISION: Final = slice(16, 32)
PREVIOUS: Final = slice(32, 48)
KEY: Final = slice(48, 57)
RECORDED_AT: Final = slice(57, 65)
VALID_FROM: Final = slice(65, 73)
VALID_TO: Final = slice(73, 81)
FLAGS_AT: Final = 81
FIXED_BYTES: Final = 82
_ID_SIZES: Final = (16, 16, 16, 9)

RETIRED: Final = 1
HAS_VALID_TIME: Final = 2
FROM_OPEN: Final = 4
TO_OPEN: Final = 8
INCLUDE: Final = 1
REQUIRED: Final = 2

_SIGN: Final = 1 << 63


def time_bytes(time_us: int) -> bytes:
    """int64 microseconds as 8 bytes that sort as times (big-endian, sign bit flipped)."""
    return (time_us + _SIGN).to_bytes(8, "big")


def time_of(raw: bytes) -> int:
    return int.from_bytes(raw, "big") - _SIGN


ZERO_TIME: Final = time_bytes(0)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A role-typed reference. `at` is the pinned revision, None = logical; `order_key` ≤ 64 bytes."""

    role: str
    target: bytes
    at: bytes | None = None
    include: bool = False
    required: bool = False
    order_key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVersion:
    atom: bytes
    revision: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """A range (role, target) that was read; `observed` = ((partition, position), …)."""

    role: str
    target: bytes
    observed: tuple[tuple[int, int], ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScope:
    selector_digest: bytes
    observed: tuple[tuple[int, int], ...]
    empty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What was read to make a revision."""

    versions: tuple[ReadVersion, ...] = ()
    ranges: tuple[ReadRange, ...] = ()
    scopes: tuple[ReadScope, ...] = ()
    encoders: tuple[str, ...] = ()
    grant_generation: int = 0
    generator: str = ""


NO_INPUTS: Final = Inputs()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidTime:
    """Half-open [from_us, to_us) in microseconds UTC; None = open end."""

    from_us: int | None
    to_us: int | None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """The part of a revision that is readable without its content key. Ids are 16 raw bytes."""

    atom_id: bytes
    revision_id: bytes
    previous: bytes | None
    key_id: bytes | None
    recorded_at_us: int
    retired: bool
    schema: str
    policy: str
    valid_time: ValidTime | None = None
    slots: tuple[Slot, ...] = ()
    inputs: Inputs = NO_INPUTS


def encode_clear(clear: Clear) -> bytes:
    """The encoded clear part: everything before the length of `sealed`; ValueError when an id has a wrong size."""
    valid = clear.valid_time
    flags = RETIRED if clear.retired else 0
    valid_from = valid_to = ZERO_TIME
    if valid is not None:
        flags |= HAS_VALID_TIME
        if valid.from_us is None:
            flags |= FROM_OPEN
        else:
            valid_from = time_bytes(valid.from_us)
        if valid.to_us is None:
            flags |= TO_OPEN
        else:
            valid_to = time_bytes(valid.to_us)
    ids = (clear.atom_id, clear.revision_id, clear.previous or ZERO16, clear.key_id or ZERO_KEY)
    if tuple(map(len, ids)) != _ID_SIZES:
        raise ValueError(f"the ids of a revision have {_ID_SIZES} bytes")
    return b"".join(
        (
            *ids,
            time_bytes(clear.recorded_at_us),
            valid_from,
            valid_to,
            bytes((flags,)),
            write_text(clear.schema),
            write_text(clear.policy),
            write_array([_encode_slot(slot) for slot in clear.slots]),
            NO_INPUTS_BYTES if clear.inputs is NO_INPUTS else _encode_inputs(clear.inputs),
        )
    )


def join_sealed(clear: bytes, sealed: bytes) -> bytes:
    """A whole revision from its encoded clear part and its sealed bytes."""
    return clear + write_bytes(sealed)


def decode_clear(revision: bytes) -> tuple[Clear, int]:
    """The clear part of an encoded revision, and the offset at which the length of `sealed` begins.

    Raises:
        WireError: the bytes are no RevisionV1.
    """
    if len(revision) < FIXED_BYTES:
        raise WireError(f"revision: {len(revision)} bytes are fewer than {FIXED_BYTES}")
    flags = revision[FLAGS_AT]
    if flags > 15 or (flags & (FROM_OPEN | TO_OPEN) and not flags & HAS_VALID_TIME):
        raise WireError(f"revision: flags {flags} at byte {FLAGS_AT}")
    valid = None
    if flags & HAS_VALID_TIME:
        valid = ValidTime(
            from_us=None if flags & FROM_OPEN else time_of(revision[VALID_FROM]),
            to_us=None if flags & TO_OPEN else time_of(revision[VALID_TO]),
        )
    slots: tuple[Slot, ...] = ()
    inputs = NO_INPUTS
    names_end = _plain_names_end(revision)
    if names_end:
        schema, policy = _kept_names(revision[FIXED_BYTES:names_end])
        at = names_end + len(_NO_SLOTS_NO_INPUTS)
    else:
        schema, at = read_text(revision, FIXED_BYTES, "schema")
        policy, at = read_text(revision, at, "policy")
        slots, at = read_array(revision, at, 35, "slots", _decode_slot)
        inputs, at = _decode_inputs(revision, at)
    previous, key = revision[PREVIOUS], revision[KEY]
    clear = Clear(
        atom_id=revision[ATOM],
        revision_id=revision[REVISION],
        previous=None if previous == ZERO16 else previous,
        key_id=None if key == ZERO_KEY else key,
        recorded_at_us=time_of(revision[RECORDED_AT]),
        retired=bool(flags & RETIRED),
        schema=schema,
        policy=policy,
        valid_time=valid,
        slots=slots,
        inputs=inputs,
    )
    return clear, at


def _plain_names_end(revision: bytes) -> int:
    """Where schema and policy end, when both are ASCII below 64 bytes and neither slots nor inputs follow; else 0."""
    policy_at = FIXED_BYTES + 1 + (revision[FIXED_BYTES] >> 1) if len(revision) > FIXED_BYTES else len(revision)
    if policy_at >= len(revision) or (revision[FIXED_BYTES] | revision[policy_at]) & 0x81:
        return 0
    end = policy_at + 1 + (revision[policy_at] >> 1)
    plain = revision.startswith(_NO_SLOTS_NO_INPUTS, end) and revision[FIXED_BYTES:end].isascii()
    return end if plain else 0


@lru_cache(maxsize=1024)
def _kept_names(names: bytes) -> tuple[str, str]:
    """Schema and policy, which many revisions share."""
    schema, at = read_text(names, 0, "schema")
    return schema, read_text(names, at, "policy")[0]


def sealed_of(revision: bytes, at: int) -> bytes:
    """The sealed bytes of a revision, given the offset that `decode_clear` returned."""
    sealed, stop = read_bytes(revision, at, "sealed")
    if stop != len(revision):
        raise WireError(f"revision: {len(revision) - stop} bytes too many after byte {stop}")
    return sealed


def _encode_slot(slot: Slot) -> bytes:
    flags = (INCLUDE if slot.include else 0) | (REQUIRED if slot.required else 0)
    ids = slot.target + (slot.at or ZERO16)
    if len(ids) != 32:
        raise ValueError(f"slot {slot.role}: the ids have {len(ids)} bytes, not 16 each")
    return b"".join((write_text(slot.role), ids, bytes((flags,)), write_bytes(slot.order_key)))


def _decode_slot(buf: bytes, at: int) -> tuple[Slot, int]:
    role, at = read_text(buf, at, "slots.role")
    fixed, at = read_fixed(buf, at, 33, "slots")
    order_key, at = read_bytes(buf, at, "slots.order_key")
    pinned, flags = fixed[16:32], fixed[32]
    if flags > 3:
        raise WireError(f"slots.flags: {flags} before byte {at}")
    slot = Slot(
        role=role,
        target=fixed[:16],
        at=None if pinned == ZERO16 else pinned,
        include=bool(flags & INCLUDE),
        required=bool(flags & REQUIRED),
        order_key=order_key,
    )
    return slot, at


def _encode_observed(observed: Sequence[tuple[int, int]]) -> bytes:
    return write_array([write_int(partition) + write_long(position) for partition, position in observed])


def _decode_observed(buf: bytes, at: int) -> tuple[tuple[tuple[int, int], ...], int]:
    return read_array(buf, at, 2, "inputs.observed", _decode_place)


def _decode_place(buf: bytes, at: int) -> tuple[tuple[int, int], int]:
    partition, at = read_int(buf, at, "inputs.observed.partition")
    position, at = read_long(buf, at, "inputs.observed.position")
    return (partition, position), at


def _encode_inputs(inputs: Inputs) -> bytes:
    return b"".join(
        (
            write_array([version.atom + version.revision for version in inputs.versions]),
            write_array(
                [
                    write_text(r.role) + r.target + _encode_observed(r.observed) + (b"\x01" if r.complete else b"\x00")
                    for r in inputs.ranges
                ]
            ),
            write_array(
                [
                    s.selector_digest + _encode_observed(s.observed) + (b"\x01" if s.empty else b"\x00")
                    for s in inputs.scopes
                ]
            ),
            write_array([write_text(encoder) for encoder in inputs.encoders]),
            write_long(inputs.grant_generation),
            write_text(inputs.generator),
        )
    )


NO_INPUTS_BYTES: Final = _encode_inputs(NO_INPUTS)
_NO_SLOTS_NO_INPUTS: Final = write_array([]) + NO_INPUTS_BYTES


def _decode_inputs(buf: bytes, at: int) -> tuple[Inputs, int]:
    if buf.startswith(NO_INPUTS_BYTES, at):
        return NO_INPUTS, at + len(NO_INPUTS_BYTES)
    versions, at = read_array(buf, at, 32, "inputs.versions", _decode_version)
    ranges, at = read_array(buf, at, 19, "inputs.ranges", _decode_range)
    scopes, at = read_array(buf, at, 34, "inputs.scopes", _decode_scope)
    encoders, at = read_array(buf, at, 1, "inputs.encoders", _decode_encoder)
    generation, at = read_long(buf, at, "inputs.grant_generation")
    generator, at = read_text(buf, at, "inputs.generator")
    inputs = Inputs(
        versions=versions,
        ranges=ranges,
        scopes=scopes,
        encoders=encoders,
        grant_generation=generation,
        generator=generator,
    )
    return inputs, at


def _decode_version(buf: bytes, at: int) -> tuple[ReadVersion, int]:
    pair, at = read_fixed(buf, at, 32, "inputs.versions")
    return ReadVersion(atom=pair[:16], revision=pair[16:]), at


def _decode_range(buf: bytes, at: int) -> tuple[ReadRange, int]:
    role, at = read_text(buf, at, "inputs.ranges.role")
    target, at = read_fixed(buf, at, 16, "inputs.ranges.target")
    observed, at = _decode_observed(buf, at)
    complete, at = read_bool(buf, at, "inputs.ranges.complete")
    return ReadRange(role=role, target=target, observed=observed, complete=complete), at


def _decode_scope(buf: bytes, at: int) -> tuple[ReadScope, int]:
    digest, at = read_fixed(buf, at, 32, "inputs.scopes.selector_digest")
    observed, at = _decode_observed(buf, at)
    empty, at = read_bool(buf, at, "inputs.scopes.empty")
    return ReadScope(selector_digest=digest, observed=observed, empty=empty), at


def _decode_encoder(buf: bytes, at: int) -> tuple[str, int]:
    return read_text(buf, at, "inputs.encoders")
