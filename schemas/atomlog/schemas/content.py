"""ContentV1: the part of a revision that is sealed, encoded by hand and byte-identical to Avro."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from atomlog.schemas.varint import (
    WireError,
    read_array,
    read_bytes,
    read_fixed,
    read_long,
    read_text,
    write_array,
    write_bytes,
    write_long,
    write_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Half-open byte range of the NFC UTF-8 text of one source revision, with the quote's SHA-256."""

    source: bytes
    revision: bytes
    start: int
    end: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    kind: str
    activity: str = ""
    receipts: tuple[bytes, ...] = ()
    model: str = ""
    prompt_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppliedVector:
    """`data` is float32 little-endian."""

    space: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """`value` is canonical JSON in UTF-8."""

    value: bytes
    origins: tuple[Origin, ...]
    provenance: Provenance
    vectors: tuple[SuppliedVector, ...] = ()


Rest = tuple[tuple[Origin, ...], Provenance, tuple[SuppliedVector, ...]]
"""Everything of a content but its value."""

REST_KEPT_BYTES: Final = 48  # shorter than any origin


def encode_content(content: Content) -> bytes:
    provenance = content.provenance
    return b"".join(
        (
            write_bytes(content.value),
            write_array([_encode_origin(origin) for origin in content.origins]),
            write_text(provenance.kind),
            write_text(provenance.activity),
            write_array([_encode_id(receipt) for receipt in provenance.receipts]),
            write_text(provenance.model),
            write_text(provenance.prompt_digest),
            write_array([write_text(v.space) + write_bytes(v.data) for v in content.vectors]),
        )
    )


def _encode_id(raw: bytes) -> bytes:
    if len(raw) != 16:
        raise ValueError(f"an id has 16 bytes, not {len(raw)}")
    return raw


def _encode_origin(origin: Origin) -> bytes:
    if (len(origin.source), len(origin.revision), len(origin.sha256)) != (16, 16, 32):
        raise ValueError("an origin's ids have 16 bytes and its digest 32")
    return origin.source + origin.revision + write_long(origin.start) + write_long(origin.end) + origin.sha256


def decode_content(buf: bytes) -> Content:
    """Raises WireError when the bytes are no ContentV1 or have a tail."""
    value, at = read_bytes(buf, 0, "value")
    origins, provenance, vectors = decode_rest(buf, at)
    return Content(value=value, origins=origins, provenance=provenance, vectors=vectors)


def decode_rest(buf: bytes, at: int) -> Rest:
    """What follows the value of an encoded ContentV1, which ends at `at`; WireError as `decode_content`.

    Most contents have no origin, no receipt and no vector, and end like many others: those endings are kept decoded.
    """
    rest = buf[at:]
    if len(rest) <= REST_KEPT_BYTES:
        try:
            return _kept_rest(rest)
        except WireError:
            pass  # once more, for a message with the right offset
    return _decode_rest(buf, at)


@lru_cache(maxsize=256)
def _kept_rest(rest: bytes) -> Rest:
    return _decode_rest(rest, 0)


def _decode_rest(buf: bytes, at: int) -> Rest:
    origins, at = read_array(buf, at, 66, "origins", _decode_origin)
    kind, at = read_text(buf, at, "provenance.kind")
    activity, at = read_text(buf, at, "provenance.activity")
    receipts, at = read_array(buf, at, 16, "provenance.receipts", _decode_receipt)
    model, at = read_text(buf, at, "provenance.model")
    prompt_digest, at = read_text(buf, at, "provenance.prompt_digest")
    vectors, at = read_array(buf, at, 2, "vectors", _decode_vector)
    if at != len(buf):
        raise WireError(f"content: {len(buf) - at} bytes too many after byte {at}")
    provenance = Provenance(kind=kind, activity=activity, receipts=receipts, model=model, prompt_digest=prompt_digest)
    return origins, provenance, vectors


def _decode_origin(buf: bytes, at: int) -> tuple[Origin, int]:
    ids, at = read_fixed(buf, at, 32, "origins")
    start, at = read_long(buf, at, "origins.start")
    end, at = read_long(buf, at, "origins.end")
    digest, at = read_fixed(buf, at, 32, "origins.sha256")
    return Origin(source=ids[:16], revision=ids[16:], start=start, end=end, sha256=digest), at


def _decode_receipt(buf: bytes, at: int) -> tuple[bytes, int]:
    return read_fixed(buf, at, 16, "provenance.receipts")


def _decode_vector(buf: bytes, at: int) -> tuple[SuppliedVector, int]:
    space, at = read_text(buf, at, "vectors.space")
    data, at = read_bytes(buf, at, "vectors.data")
    return SuppliedVector(space=space, data=data), at
