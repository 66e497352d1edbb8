"""Readers of what atomlog writes that share nothing with it: records, batches and revisions, keyed ids.

Values are decoded by fastavro from the schema files; schemas are known by the fingerprints that `make_golden.py`
computed.
"""

import hashlib
import io
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import fastavro

TESTS = Path(__file__).resolve().parents[1]
AVSC = TESTS.parent / "schemas" / "atomlog" / "schemas" / "avsc"


def raw(record: Any) -> tuple[list[tuple[str, bytes]], bytes]:
    """(headers, value) of a record with the seven as attributes; of a malformed one, what could be read of it."""
    if not hasattr(record, "value"):
        kind = (record.kind or "").encode()
        term = b"" if record.term is None else record.term.to_bytes(8, "big")
        return [("kind", kind), ("term", term), ("owner", record.owner or b"")], b""
    headers = [("rule", record.rule.to_bytes(2, "big")), ("kind", record.kind.encode())]
    headers += [("term", record.term.to_bytes(8, "big")), ("owner", record.owner)]
    headers += [("seq", record.seq.to_bytes(8, "big")), ("schema", record.schema), ("chain", record.chain)]
    return headers, record.value


def keyed_id(space: str, policy: str, key: str) -> bytes:
    """The id of an atom with a key: UUIDv5 in a namespace of space and policy."""
    parts = (part.encode() for part in (space, policy))
    lengths = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    namespace = _uuid5(bytes.fromhex("6f2b0c5e8a574d0e9b6b3c1f7a9e2d41"), lengths)
    return _uuid5(namespace, unicodedata.normalize("NFC", key).encode())


def _uuid5(space: bytes, name: bytes) -> bytes:
    made = bytearray(hashlib.sha1(space + name, usedforsecurity=False).digest()[:16])
    made[6], made[8] = made[6] & 0x0F | 0x50, made[8] & 0x3F | 0x80
    return bytes(made)


def decoded(name: str, raw_bytes: bytes) -> dict[str, Any]:
    stream = io.BytesIO(raw_bytes)
    datum = fastavro.schemaless_reader(stream, _schema(name), None)
    assert stream.read(1) == b"", f"a {name} is followed by something"
    assert isinstance(datum, dict)
    return datum


@cache
def _schema(name: str) -> Any:
    return fastavro.parse_schema(json.loads((AVSC / f"{name}.avsc").read_text("utf-8")))


@cache
def fingerprints() -> dict[str, list[bytes]]:
    """Kind → fingerprints, from the pins of the released schemas."""
    pins = json.loads((TESTS / "schemas" / "released.json").read_text("utf-8"))
    return {name.removesuffix("V1"): [bytes.fromhex(pin["fingerprint"])] for name, pin in pins.items()}


def segment_records(raw_segment: bytes, first: int, link: bytes, end: int) -> tuple[list[Any], bytes]:
    """The packed records of a segment below position `end`, and the link of what follows its last group.

    Everything from the header to the last group must fit without a gap: positions, lengths, links.
    """
    assert raw_segment[:8] == b"ATOMLOG\x01", "no segment"
    assert int.from_bytes(raw_segment[28:36], "big") == first, "the segment begins at another position"
    assert raw_segment[36:52] == link, "the segment does not follow the one before it"
    link, at = _link(raw_segment[:56]), 56
    found: list[Any] = []
    while first + len(found) < end and at < len(raw_segment):
        head = raw_segment[at : at + 40]
        assert head[:4] == b"\xa7AG\x01", f"byte {at}: no group"
        size, count = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
        assert head[24:40] == link, f"byte {at}: the group does not follow what stands before it"
        packed = raw_segment[at + 40 : at + 40 + size]
        assert len(packed) == size, f"byte {at}: the group is cut"
        link, at = _link(head), at + 40 + size
        before = len(found)
        while packed:
            record, packed = _unpacked(packed)
            found.append(record)
        assert len(found) - before == count, f"byte {at}: {count} records are said, {len(found) - before} are there"
    return found, link


def _link(head: bytes) -> bytes:
    return hashlib.sha256(head).digest()[:16]


def _unpacked(packed: bytes) -> tuple[tuple[list[tuple[str, bytes]], bytes], bytes]:
    headers = []
    for name in ("rule", "kind", "term", "owner", "seq", "schema", "chain"):
        size = int.from_bytes(packed[:2], "big")
        headers.append((name, packed[2 : 2 + size]))
        packed = packed[2 + size :]
    size = int.from_bytes(packed[:4], "big")
    assert len(packed) >= 4 + size, "a record is cut"
    return (headers, packed[4 : 4 + size]), packed[4 + size :]
