"""BatchV1: one accepted write. Encoded by hand, byte-identical to Avro; the revisions are sliced, not decoded."""

from dataclasses import dataclass
from typing import Final

from atomlog.schemas.revision import FIXED_BYTES, time_bytes, time_of
from atomlog.schemas.varint import (
    WireError,
    read_bytes,
    read_count,
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

# Offsets of the fixed fields. Never to change.
REQUEST_KEY: Final = slice(0, 32)
REQUEST_DIGEST: Final = slice(32, 64)
DIGEST_KEY: Final = slice(64, 73)
RECORDED_AT: Final = slice(73, 81)
REVISION_SCHEMA: Final = slice(81, 89)
FIXED: Final = 89
_FIXED_SIZES: Final = (32, 32, 9, 8, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """The record of an inbox topic that asked for a batch.

    `topic` is the id under which the topic was registered, as 32 hexadecimal digits: one that is made anew counts its
    offsets from 0 again, under another id.
    """

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`revisions` are encoded RevisionV1, in the order of the changes."""

    request_key: bytes
    request_digest: bytes
    digest_key_id: bytes
    recorded_at_us: int
    revision_schema: bytes
    space: str
    principal: str
    inbox: Inbox | None
    revisions: tuple[bytes, ...]


def encode_batch(batch: Batch) -> bytes:
    """The bare datum (`codec.wrap` makes the single-object form); ValueError when a field does not fit its size."""
    inbox = batch.inbox or Inbox(topic="", partition=0, offset=0)
    fixed = (
        batch.request_key,
        batch.request_digest,
        batch.digest_key_id,
        time_bytes(batch.recorded_at_us),
        batch.revision_schema,
    )
    if tuple(map(len, fixed)) != _FIXED_SIZES:
        raise ValueError(f"the fixed fields of a batch have {_FIXED_SIZES} bytes")
    return b"".join(
        (
            *fixed,
            write_text(batch.space),
            write_text(batch.principal),
            write_text(inbox.topic),
            write_int(inbox.partition),
            write_long(inbox.offset),
            write_array([write_bytes(revision) for revision in batch.revisions]),
        )
    )


def decode_batch(buf: bytes) -> Batch:
    """Raises WireError when the bytes are no BatchV1 or have a tail."""
    fixed, at = read_fixed(buf, 0, FIXED, "batch")
    space, at = read_text(buf, at, "space")
    principal, at = read_text(buf, at, "principal")
    topic, at = read_text(buf, at, "inbox_topic")
    partition, at = read_int(buf, at, "inbox_partition")
    offset, at = read_long(buf, at, "inbox_offset")
    revisions: list[bytes] = []
    while True:
        count, at = read_count(buf, at, FIXED_BYTES, "revisions")
        if count == 0:
            break
        at = _slice_revisions(buf, at, count, revisions)
    if at != len(buf):
        raise WireError(f"batch: {len(buf) - at} bytes too many after byte {at}")
    return Batch(
        request_key=fixed[REQUEST_KEY],
        request_digest=fixed[REQUEST_DIGEST],
        digest_key_id=fixed[DIGEST_KEY],
        recorded_at_us=time_of(fixed[RECORDED_AT]),
        revision_schema=fixed[REVISION_SCHEMA],
        space=space,
        principal=principal,
        inbox=Inbox(topic=topic, partition=partition, offset=offset) if topic else None,
        revisions=tuple(revisions),
    )


def _slice_revisions(buf: bytes, at: int, count: int, revisions: list[bytes]) -> int:
    """Append the next revisions and return the offset after them. A length of two bytes, as most are, is read here."""
    end = len(buf) - 1
    for _ in range(count):
        if at < end and buf[at] & 0x81 == 0x80 and 0 < buf[at + 1] < 0x80:
            start = at + 2
            at = start + ((buf[at] & 0x7F) >> 1) + (buf[at + 1] << 6)
            revision = buf[start:at]
            if at > len(buf):
                raise WireError(f"revisions: {at - start} bytes do not fit into the {len(buf) - start} left")
        else:
            revision, at = read_bytes(buf, at, "revisions")
        if len(revision) < FIXED_BYTES:
            raise WireError(f"revisions[{len(revisions)}]: {len(revision)} bytes are fewer than {FIXED_BYTES}")
        revisions.append(revision)
    return at
