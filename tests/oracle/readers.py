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
