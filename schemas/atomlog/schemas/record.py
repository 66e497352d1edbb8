"""The record of the log: seven headers and a value. Byte layouts here never change.

The headers, in this order, each once (design note in docs/formats.md):

======  ==========  =====================================================================
rule    u16 BE      version of the commit rule the writer followed
kind    ASCII       Claim, Batch, Fence, …
term    u64 BE      the writer's term
owner   16 bytes    random, drawn by the writer object
seq     u64 BE      number of the record in its term (a Claim: 0, not counted)
schema  8 bytes     CRC-64-AVRO of the value's schema, little-endian
chain   16 bytes    hash over the history up to and including this record (a Claim: zeros)
======  ==========  =====================================================================

The packed form, used by the embedded log and hashed into the chain, is for each header `u16 BE length ‖ bytes`
and then `u32 BE length ‖ value`.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.schemas.varint import WireError

RULE: Final = 1
HEADER_NAMES: Final = ("rule", "kind", "term", "owner", "seq", "schema", "chain")
ZERO16: Final = bytes(16)
KIND_BYTES_MAX: Final = 32

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One well-formed record. Integers unsigned; `owner` and `chain` 16 bytes, `schema` 8."""

    rule: int
    kind: str
    term: int
    owner: bytes
    seq: int
    schema: bytes
    chain: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A record whose headers are not the seven; `term`, `owner` and `kind` where they could be read."""

    reason: str
    term: int | None
    owner: bytes | None
    kind: str | None


def headers(record: Record) -> list[tuple[str, bytes]]:
    """The seven headers as a broker carries them."""
    return [
        ("rule", _U16.pack(record.rule)),
        ("kind", record.kind.encode("ascii")),
        ("term", _U64.pack(record.term)),
        ("owner", record.owner),
        ("seq", _U64.pack(record.seq)),
        ("schema", record.schema),
        ("chain", record.chain),
    ]


def parse(pairs: Sequence[tuple[str, bytes]], value: bytes) -> Record | Malformed:
    """Headers and value as they came, read strictly: exactly the seven, in order, of the right sizes."""
    return _parse_at_once(pairs, value) or _parse_by_steps(pairs, value)


def _parse_at_once(pairs: Sequence[tuple[str, bytes]], value: bytes) -> Record | None:
    """None for whatever is not well-formed: the steps then say what is wrong."""
    if len(pairs) != len(HEADER_NAMES):
        return None
    names, (rule, kind, term, owner, seq, schema, chain) = zip(*pairs, strict=True)
    if names != HEADER_NAMES or not 0 < len(kind) <= KIND_BYTES_MAX or not kind.isascii():
        return None
    if (len(rule), len(term), len(owner), len(seq), len(schema), len(chain)) != _SIZES:
        return None
    number = int.from_bytes
    return _built(
        number(rule, "big"),
        kind.decode("ascii"),
        number(term, "big"),
        owner,
        number(seq, "big"),
        schema,
        chain,
        value,
    )


def _parse_by_steps(pairs: Sequence[tuple[str, bytes]], value: bytes) -> Record | Malformed:
    found = dict(pairs)
    term = _U64.unpack(found["term"])[0] if len(found.get("term", b"")) == 8 else None
    owner = found["owner"] if len(found.get("owner", b"")) == 16 else None
    kind_raw = found.get("kind", b"")
    kind = kind_raw.decode("ascii") if 0 < len(kind_raw) <= KIND_BYTES_MAX and kind_raw.isascii() else None
    names = tuple(name for name, _ in pairs)
    if names != HEADER_NAMES:
        return Malformed(reason=f"headers are {names!r}", term=term, owner=owner, kind=kind)
    sizes = tuple(len(found[name]) for name in ("rule", "seq", "schema", "chain"))
    if term is None or owner is None or kind is None or sizes != (2, 8, 8, 16):
        return Malformed(reason="a header has the wrong size", term=term, owner=owner, kind=kind)
    return Record(
        rule=_U16.unpack(found["rule"])[0],
        kind=kind,
        term=term,
        owner=owner,
        seq=_U64.unpack(found["seq"])[0],
        schema=found["schema"],
        chain=found["chain"],
        value=value,
    )


def pack(record: Record) -> bytes:
    """The packed form of a record."""
    return b"".join((_hashed_head(record), b"\x00\x10", record.chain, _U32.pack(len(record.value)), record.value))


def next_record(before: bytes, *, kind: str, term: int, owner: bytes, seq: int, schema: bytes, value: bytes) -> Record:
    """A record of this rule version after the chain `before`; its own chain is computed."""
    record = _built(RULE, kind, term, owner, seq, schema, ZERO16, value)
    _put_chain(record, chain_after(before, record))  # nobody else has seen it yet
    return record


def unpack(buf: bytes, at: int) -> tuple[Record, int]:
    """The packed record at `at` and the offset after it.

    Raises:
        WireError: the bytes are no packed record; the message has the offset.
    """
    return _unpack_at_once(buf, at) or _unpack_by_steps(buf, at)


# All seven headers and the value's length in one call, by the kind's length: almost three times as fast as by steps.
_HEADERS: Final = tuple(struct.Struct(f">HHH{n}sHQH16sHQH8sH16sI") for n in range(KIND_BYTES_MAX + 1))
_SIZES: Final = (2, 8, 16, 8, 8, 16)
_put_rule, _put_kind, _put_term, _put_owner, _put_seq, _put_schema, _put_chain, _put_value = (
    getattr(Record, name).__set__ for name in (*HEADER_NAMES, "value")
)


def _unpack_at_once(buf: bytes, at: int) -> tuple[Record, int] | None:
    """None for whatever is not whole and well-formed: the steps then say what is wrong."""
    if at + 6 > len(buf) or buf[at + 4] != 0 or not 0 < buf[at + 5] <= KIND_BYTES_MAX:
        return None
    layout = _HEADERS[buf[at + 5]]
    start = at + layout.size
    if start > len(buf):
        return None
    rule_n, rule, _, kind, term_n, term, owner_n, owner, seq_n, seq, schema_n, schema, chain_n, chain, size = (
        layout.unpack_from(buf, at)
    )
    stop = start + size
    if stop > len(buf) or (rule_n, term_n, owner_n, seq_n, schema_n, chain_n) != _SIZES or not kind.isascii():
        return None
    return _built(rule, kind.decode("ascii"), term, owner, seq, schema, chain, buf[start:stop]), stop


def _built(
    rule: int, kind: str, term: int, owner: bytes, seq: int, schema: bytes, chain: bytes, value: bytes
) -> Record:
    """The record, its slots filled without the checks of a frozen class: a replay makes nothing as often."""
    record = object.__new__(Record)
    _put_rule(record, rule)
    _put_kind(record, kind)
    _put_term(record, term)
    _put_owner(record, owner)
    _put_seq(record, seq)
    _put_schema(record, schema)
    _put_chain(record, chain)
    _put_value(record, value)
    return record


def _unpack_by_steps(buf: bytes, at: int) -> tuple[Record, int]:
    start = at
    parts: list[bytes] = []
    end = len(buf)
    for _ in HEADER_NAMES:
        if at + 2 > end:
            raise WireError(f"record at byte {start} is cut off")
        size = _U16.unpack_from(buf, at)[0]
        at += 2
        parts.append(buf[at : at + size])
        at += size
    if at + 4 > end:
        raise WireError(f"record at byte {start} is cut off")
    size = _U32.unpack_from(buf, at)[0]
    at += 4
    if at + size > end:
        raise WireError(f"record at byte {start}: a value of {size} bytes does not fit into the {end - at} left")
    parsed = parse(list(zip(HEADER_NAMES, parts, strict=True)), buf[at : at + size])
    if isinstance(parsed, Malformed):
        raise WireError(f"record at byte {start}: {parsed.reason}")
    return parsed, at + size


def chain_after(chain: bytes, record: Record) -> bytes:
    """The 16-byte chain after `record`, given the chain before it.

    `SHA-256(chain ‖ the six other headers and the value in packed form)[:16]`; positions are not hashed.
    """
    digest = hashlib.sha256(b"".join((chain, _hashed_head(record), _U32.pack(len(record.value)))))
    digest.update(record.value)
    return digest.digest()[:16]


# The six headers before and beside the chain with their lengths, in one call, by the kind's length.
_HASHED: Final = tuple(struct.Struct(f">HHH{n}sHQH16sHQH8s") for n in range(KIND_BYTES_MAX + 1))


def _hashed_head(record: Record) -> bytes:
    """Packed headers without the chain. Headers of wrong sizes cannot come from `unpack`, nor into a log."""
    kind = record.kind.encode("ascii")
    return _HASHED[len(kind)].pack(
        2, record.rule, len(kind), kind, 8, record.term, 16, record.owner, 8, record.seq, 8, record.schema
    )
