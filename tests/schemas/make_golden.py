"""Makes the golden files: bytes that every later version must read, from a program that shares no code with atomlog.

    python tests/schemas/make_golden.py          adds what is missing; fails when anything there would change

Uses fastavro and the standard library. For each schema version `golden/<name>.json` holds data and `golden/<name>.hex`
their bytes, a case a line (bytes are hexadecimal text in both). `golden/records.*` are packed records with the chain
after each, `golden/ids.json` keyed ids and partitions. `released.json` pins every schema file: once released, a
file is never edited; a change is a new version beside it.
"""

import hashlib
import io
import json
import struct
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
RELEASED = HERE / "released.json"
AVSC = HERE.parents[1] / "schemas" / "atomlog" / "schemas" / "avsc"

CASES = ("empty", "full", "edge")
LONGS = {"empty": (0,), "full": (1, -2, 300), "edge": (-(2**63), 2**63 - 1)}
INTS = {"empty": (0,), "full": (1, -2, 300), "edge": (-(2**31), 2**31 - 1)}
TEXTS = {"empty": ("",), "full": ("notes", "言葉 é", "\x00"), "edge": ("é" * 40, "😀" * 20)}
LENGTHS = {"empty": (0,), "full": (84,), "edge": (132,)}
ITEMS = {"empty": 0, "full": 2, "edge": 70}
# Fields whose bytes have a form of their own, for the cases that are not empty.
FORMED: Mapping[tuple[str, str], bytes] = {
    ("RevisionV1", "flags"): b"\x03",
    ("RevisionV1", "order_key"): b"a0",
    ("ContentV1", "value"): '{"text":"お茶, 80 °C"}'.encode(),
}


# --- Avro, as far as a fingerprint needs it ------------------------------------------------------------------


def canonical_form(schema: Any, space: str = "") -> str:
    """The Parsing Canonical Form of the specification."""
    if isinstance(schema, list):
        return "[" + ",".join(canonical_form(branch, space) for branch in schema) + "]"
    if isinstance(schema, str):
        primitive = schema in {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
        return json.dumps(schema if primitive or "." in schema or not space else f"{space}.{schema}")
    kind = schema["type"]
    if kind not in {"record", "fixed", "enum", "array"}:
        return canonical_form(kind, space)
    if kind == "array":
        items = canonical_form(schema["items"], space)
        return f'{{"type":"array","items":{items}}}'
    space = schema.get("namespace", space)
    full_name = f"{space}.{schema['name']}" if space else schema["name"]
    parts = [f'"name":{json.dumps(full_name)}', f'"type":"{kind}"']
    if kind == "record":
        fields = (
            f'{{"name":{json.dumps(field["name"])},"type":{canonical_form(field["type"], space)}}}'
            for field in schema["fields"]
        )
        parts.append(f'"fields":[{",".join(fields)}]')
    if kind == "enum":
        parts.append(f'"symbols":{json.dumps(schema["symbols"], separators=(",", ":"))}')
    if kind == "fixed":
        parts.append(f'"size":{schema["size"]}')
    return "{" + ",".join(parts) + "}"


EMPTY64 = 0xC15D213AA4D7A795


def rabin(text: str) -> bytes:
    """CRC-64-AVRO, little-endian."""
    found = EMPTY64
    for byte in text.encode():
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (EMPTY64 if found & 1 else 0)
    return found.to_bytes(8, "little")


# --- data for every schema -----------------------------------------------------------------------------------


class Filler:
    """Values of a schema, all different from their neighbours: a field that is read as another one shows."""

    def __init__(self, name: str, case: str) -> None:
        self.name = name
        self.case = case
        self.count = 0
        self.lists = 0
        self.named: dict[str, Any] = {}

    def make(self, schema: Any, field: str = "") -> Any:
        self.count += 1
        if isinstance(schema, str):
            return self.make(self.named[schema], field) if schema in self.named else self._primitive(schema, field)
        kind = schema["type"]
        if "name" in schema:
            self.named[schema["name"]] = schema
        if kind == "record":
            return {one["name"]: self.make(one["type"], one["name"]) for one in schema["fields"]}
        if kind == "fixed":
            return self._bytes(schema["size"], field)
        if kind == "array":
            return self._items(schema["items"], field)
        return self.make(kind, field)

    def _items(self, schema: Any, field: str) -> list[Any]:
        count = ITEMS[self.case] if self.lists == 0 else min(2, ITEMS[self.case])
        self.lists += 1
        items = [self.make(schema, field) for _ in range(count)]
        self.lists -= 1
        return items

    def _primitive(self, kind: str, field: str) -> Any:
        if kind == "boolean":
            return self.case != "empty"
        if kind == "bytes":
            return self._bytes(self._one_of(LENGTHS), field)
        choices: dict[str, Mapping[str, tuple[Any, ...]]] = {"long": LONGS, "int": INTS, "string": TEXTS}
        return self._one_of(choices[kind])

    def _one_of(self, choices: Mapping[str, tuple[Any, ...]]) -> Any:
        return choices[self.case][self.count % len(choices[self.case])]

    def _bytes(self, size: int, field: str) -> bytes:
        if self.case == "empty":
            return bytes(size)
        return FORMED.get((self.name, field)) or bytes((self.count + n) % 256 for n in range(size))


def encoded(schema: Any, datum: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum, strict=True)
    return out.getvalue()


def shown(value: Any) -> Any:
    """A datum as JSON: bytes as hexadecimal text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


# --- records, chain, ids -------------------------------------------------------------------------------------


def packed(parts: Mapping[str, bytes], value: bytes) -> bytes:
    headers = b"".join(struct.pack(">H", len(part)) + part for part in parts.values())
    return headers + struct.pack(">I", len(value)) + value


def record_cases() -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """A first history of one partition: two terms, five kinds."""
    chain = bytes(16)
    steps = [
        ("claim", "Claim", 1, 0xA1, 0),
        ("batch", "Batch", 1, 0xA1, 0),
        ("keys", "KeysDestroyed", 1, 0xA1, 1),
        ("next claim", "Claim", 2, 0xB2, 0),
        ("fence", "Fence", 2, 0xB2, 0),
        ("release", "Release", 2, 0xB2, 1),
    ]
    for case, kind, term, owner, seq in steps:
        schema = json.loads((AVSC / f"{kind}V1.avsc").read_text("utf-8"))
        fingerprint = rabin(canonical_form(schema))
        value = b"\xc3\x01" + fingerprint + encoded(schema, Filler(f"{kind}V1", "full").make(schema))
        headers = {
            "rule": struct.pack(">H", 1),
            "kind": kind.encode(),
            "term": struct.pack(">Q", term),
            "owner": bytes([owner]) * 16,
            "seq": struct.pack(">Q", seq),
            "schema": fingerprint,
        }
        chain = hashlib.sha256(chain + packed(headers, value)).digest()[:16]
        written = bytes(16) if kind == "Claim" else chain
        shown_record = {"headers": {**shown(headers), "chain": written.hex()}, "value": value.hex()}
        yield case, {**shown_record, "chain_after": chain.hex()}, packed({**headers, "chain": written}, value)


ATOMLOG_NS = bytes.fromhex("6f2b0c5e8a574d0e9b6b3c1f7a9e2d41")
KEYS = (("notes", "notes", "tea"), ("notes", "private", "tea"), ("default", "default", "か\u3099くせい"))


def uuid5(space: bytes, name: bytes) -> bytes:
    raw = bytearray(hashlib.sha1(space + name, usedforsecurity=False).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x50
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


def id_cases() -> dict[str, Any]:
    ids = []
    for space, policy, key in KEYS:
        lengths = struct.pack(">I", len(space)) + space.encode() + struct.pack(">I", len(policy)) + policy.encode()
        space_ns = uuid5(ATOMLOG_NS, lengths)
        raw = uuid5(space_ns, unicodedata.normalize("NFC", key).encode()).hex()
        text = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
        ids.append({"space": space, "policy": policy, "key": key, "atom": text})
    spaces = sorted({space for space, _, _ in KEYS})
    first8 = {space: int.from_bytes(hashlib.sha256(space.encode()).digest()[:8], "big") for space in spaces}
    partitions = [
        {"space": space, "partitions": count, "partition": first8[space] % count}
        for space in spaces
        for count in (1, 7, 64)
    ]
    return {"namespace": ATOMLOG_NS.hex(), "ids": ids, "partitions": partitions}


# --- files ---------------------------------------------------------------------------------------------------


def files() -> Iterator[tuple[Path, str]]:
    """Every golden file with its content; the pins of the released schemas last."""
    pins = {}
    for path in sorted(AVSC.glob("*.avsc")):
        schema = json.loads(path.read_text("utf-8"))
        data = {case: Filler(path.stem, case).make(schema) for case in CASES}
        yield GOLDEN / f"{path.stem}.json", _json(shown(data))
        yield GOLDEN / f"{path.stem}.hex", "".join(f"{encoded(schema, datum).hex()}\n" for datum in data.values())
        fingerprint = rabin(canonical_form(schema))
        pins[path.stem] = {"fingerprint": fingerprint.hex(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    records = list(record_cases())
    yield GOLDEN / "records.json", _json({case: record for case, record, _ in records})
    yield GOLDEN / "records.hex", "".join(f"{raw.hex()}\n" for _, _, raw in records)
    yield GOLDEN / "ids.json", _json(id_cases())
    yield RELEASED, _json(pins)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    changed = []
    for path, text in files():
        if not path.exists():
            path.write_text(text, "utf-8")
        elif path.read_text("utf-8") != text and not (path == RELEASED and _only_adds(path, text)):
            changed.append(path.name)
    print(f"would change, and may not: {', '.join(changed)}" if changed else "every golden file stands as it was")
    return 1 if changed else 0


def _only_adds(path: Path, text: str) -> bool:
    """New versions are pinned beside the old pins, which stay."""
    old, new = json.loads(path.read_text("utf-8")), json.loads(text)
    if any(new.get(name) != pin for name, pin in old.items()):
        return False
    path.write_text(text, "utf-8")
    return True


if __name__ == "__main__":
    sys.exit(main())
