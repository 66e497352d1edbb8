"""Numbers, revisions, contents, batches and values of every kind, as they stand in the log."""

from collections.abc import Callable
from typing import Any, TypeVar

from atomlog.projections.slices import mentioned, slice_revision
from atomlog.schemas import codec
from atomlog.schemas.batch import decode_batch, encode_batch
from atomlog.schemas.content import decode_content, encode_content
from atomlog.schemas.record import HEADER_NAMES, Record, _unpack_by_steps, headers, pack, parse, unpack
from atomlog.schemas.revision import Clear, decode_clear, encode_clear, join_sealed, sealed_of
from atomlog.schemas.varint import (
    WireError,
    read_bool,
    read_bytes,
    read_count,
    read_int,
    read_long,
    read_text,
    write_bytes,
    write_int,
    write_long,
    write_text,
)
from tests.fuzz.engine import Target, agree
from tests.schemas.golden_files import encodings

T = TypeVar("T")
_KINDS = tuple(codec.KIND_SCHEMAS)


def numbers(data: bytes) -> None:
    """Each reader at the first byte: what it read, written again, is what stood there."""
    _same_again(read_long, write_long, data)
    _same_again(read_int, write_int, data)
    _same_again(read_bytes, write_bytes, data)
    try:
        count, _ = read_count(data, 0, 1, "n")
        agree(0 <= count <= len(data), "a count that cannot fit")
    except WireError:
        pass
    text, stop = read_text(data, 0, "n")
    agree(write_text(text) == data[:stop], "a text reads as another")
    read_bool(data, stop, "n")


def _same_again(read: Callable[[bytes, int, str], tuple[T, int]], write: Callable[[T], bytes], data: bytes) -> None:
    try:
        value, stop = read(data, 0, "n")
    except WireError:
        return
    agree(write(value) == data[:stop], f"{read.__name__} reads what is not written so")


def revision(data: bytes) -> None:
    clear, at = decode_clear(data)
    sealed = sealed_of(data, at)
    codec.check(codec.load("RevisionV1"), data)
    again = join_sealed(encode_clear(clear), sealed)
    agree(decode_clear(again)[0] == clear, "a revision changes when it is written again")
    agree(len(again) <= len(data), "a revision grows when it is written again")
    if all("\0" not in slot.role for slot in clear.slots):
        _agree_with_slices(data, clear)


def _agree_with_slices(data: bytes, clear: Clear) -> None:
    parts = schema, policy, slots, _, _ = slice_revision(data)
    agree((schema.decode(), policy.decode()) == (clear.schema, clear.policy), "slices: other names")
    sliced = [(role.decode(), target) for role, target, _ in slots]
    agree(sliced == [(slot.role, slot.target) for slot in clear.slots], "slices: other slots")
    list(mentioned(data, parts))


def content(data: bytes) -> None:
    found = decode_content(data)
    codec.check(codec.load("ContentV1"), data)
    agree(decode_content(encode_content(found)) == found, "a content changes when it is written again")


def batch(data: bytes) -> None:
    found = decode_batch(data)
    codec.check(codec.load("BatchV1"), data)
    agree(decode_batch(encode_batch(found)) == found, "a batch changes when it is written again")


def value(data: bytes) -> None:
    """The first byte names the kind, the rest is a whole value of it."""
    kind = _KINDS[data[0] % len(_KINDS)] if data else "Claim"
    found = codec.decode(data[1:], kind)
    agree(codec.decode(codec.encode(kind, found), kind) == found, f"a {kind} changes when it is written again")


def datum(data: bytes) -> None:
    """The same without the head of a value, so that the fuzzer need not find a fingerprint."""
    names = [*codec.KIND_SCHEMAS["Claim"], *(f"{kind}V1" for kind in _KINDS), *codec.OTHER_SCHEMAS]
    schema = codec.load(names[data[0] % len(names)] if data else "ClaimV1")
    found = codec.decode_datum(schema, data[1:])
    agree(codec.decode_datum(schema, codec.encode_datum(schema, found)) == found, f"{schema.name} changes")


def record(data: bytes) -> None:
    by_steps = _result(data)
    try:
        found, stop = unpack(data, 0)
    except WireError:
        agree(by_steps is None, "a record is read by steps that is refused at once")
        raise
    agree(by_steps == (found, stop), "a record is read at once as another than by steps")
    agree(pack(found) == data[:stop], "a record reads as what it was not packed from")


def _result(data: bytes) -> tuple[Record, int] | None:
    try:
        return _unpack_by_steps(data, 0)
    except WireError:
        return None


def header_list(data: bytes) -> None:
    """Pairs of name and value, `name=value` by line: what a broker may hand over."""
    pairs = [line.partition(b"=")[::2] for line in data.split(b"\n")]
    named = [(name.decode("latin-1"), value) for name, value in pairs]
    found = parse(named, b"value")
    if isinstance(found, Record):
        agree(headers(found) == named, "headers read as others")
    else:
        agree(bool(found.reason), "no record and no reason")


def _golden(name: str) -> list[bytes]:
    return list(encodings(name).values())


def _numbered(names: list[str], wrapped: bool) -> list[bytes]:
    found: list[bytes] = []
    for number, name in enumerate(names):
        head = codec.MARKER + codec.load(name).fingerprint if wrapped else b""
        found += [bytes((number,)) + head + raw for raw in _golden(name)]
    return found


def _values() -> list[bytes]:
    return _numbered([f"{kind}V1" for kind in _KINDS], True)


def _data() -> list[bytes]:
    names = [*codec.KIND_SCHEMAS["Claim"], *(f"{kind}V1" for kind in _KINDS), *codec.OTHER_SCHEMAS]
    return _numbered(names, False)


def some_record(**changes: Any) -> Record:
    parts: dict[str, Any] = {
        "rule": 1,
        "kind": "Fence",
        "term": 1,
        "owner": bytes(range(16)),
        "seq": 0,
        "schema": bytes(range(8)),
        "chain": bytes(range(16)),
        "value": b"\xc3\x01 some value",
    }
    return Record(**{**parts, **changes})


def _records() -> list[bytes]:
    return [pack(some_record()), pack(some_record(kind="K" * 32, value=b"")), pack(some_record()) + b"tail"]


def _header_lists() -> list[bytes]:
    lines = [name.encode() + b"=" + raw for name, raw in headers(some_record(owner=b"o" * 16, chain=b"c" * 16))]
    return [b"\n".join(lines), b"\n".join(reversed(lines)), b"\n".join(f"{n}=".encode() for n in HEADER_NAMES)]


TARGETS = [
    Target(name="varint", decode=numbers, seeds=lambda: [b"\x02", b"\x80\x01abc", write_text("日本語") + b"\x01"]),
    Target(name="revision", decode=revision, seeds=lambda: _golden("RevisionV1")),
    Target(name="content", decode=content, seeds=lambda: _golden("ContentV1")),
    Target(name="batch", decode=batch, seeds=lambda: _golden("BatchV1")),
    Target(name="value", decode=value, seeds=_values),
    Target(name="datum", decode=datum, seeds=_data, lines_per_byte=150),
    Target(name="record", decode=record, seeds=_records),
    Target(name="headers", decode=header_list, seeds=_header_lists),
]
