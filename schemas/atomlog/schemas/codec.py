"""Single-object encoding, the registry of schemas by fingerprint, and checked decoding of every other kind.

A value on the wire is `0xC3 0x01 ‖ CRC-64-AVRO of the schema, little-endian ‖ datum`. fastavro decodes a datum
only after `check` has walked it: lengths, counts, union and enum indexes, and that every byte is used.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from atomlog.schemas.varint import (
    WireError,
    read_bool,
    read_bytes,
    read_count,
    read_fixed,
    read_int,
    read_long,
    read_text,
)

MARKER: Final = b"\xc3\x01"
HEAD_BYTES: Final = 10
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024  # no writer of ours comes near; caps what a stranger can make us walk

# What a record of each kind carries, newest version last. Versions are never edited after a release.
KIND_SCHEMAS: Final[Mapping[str, tuple[str, ...]]] = {
    kind: (f"{kind}V1",)
    for kind in (
        "Claim",
        "Batch",
        "Fence",
        "KeysDestroyed",
        "Purge",
        "PurgeStep",
        "Release",
        "Upgrade",
        "Repair",
        "Grant",
        "Policy",
        "Restored",
        "MoveOut",
        "MoveIn",
    )
}
OTHER_SCHEMAS: Final = (
    "RevisionV1",
    "ContentV1",
    "KeyPageV1",
    "StoreV1",
    "WriteRequestV1",
    "WriteOutcomeV1",
    "InboxV1",
    "NodeReportV1",
    "ReadRecordedV1",
)

Datum = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One version of one schema. `fingerprint` is 8 bytes, little-endian CRC-64-AVRO of its canonical form.

    `named` has every type of it that has a name: one may be used where its definition was not walked through.
    """

    name: str
    source: Mapping[str, Any]
    parsed: Any
    fingerprint: bytes
    named: Mapping[str, Any] = field(default_factory=dict)


@cache
def load(name: str) -> Schema:
    """The schema of this name, e.g. `BatchV1`; KeyError when there is none."""
    path = files("atomlog.schemas").joinpath("avsc", f"{name}.avsc")
    if not path.is_file():
        raise KeyError(name)
    source = json.loads(path.read_text("utf-8"))
    digest = bytes.fromhex(fingerprint(to_parsing_canonical_form(source), "CRC-64-AVRO"))
    parsed = fastavro.parse_schema(source)
    return Schema(name=name, source=source, parsed=parsed, fingerprint=digest, named=_named(source))


@cache
def by_fingerprint() -> Mapping[bytes, Schema]:
    """Every known schema version by its fingerprint."""
    names = [name for versions in KIND_SCHEMAS.values() for name in versions] + list(OTHER_SCHEMAS)
    return {schema.fingerprint: schema for schema in map(load, names)}


@cache
def kind_fingerprints(kind: str) -> frozenset[bytes]:
    """Fingerprints that a record of this kind may carry; empty for an unknown kind."""
    return frozenset(load(name).fingerprint for name in KIND_SCHEMAS.get(kind, ()))


@cache
def current(kind: str) -> Schema:
    """The version that is written today for a record kind."""
    return load(KIND_SCHEMAS[kind][-1])


def wrap(schema: bytes, datum: bytes) -> bytes:
    """The single-object form of a datum."""
    return b"".join((MARKER, schema, datum))


def unwrap(value: bytes) -> tuple[bytes, bytes]:
    """(fingerprint, datum) of a single-object value; WireError when it is none."""
    if len(value) < HEAD_BYTES or not value.startswith(MARKER):
        raise WireError("value: not in Avro single-object encoding")
    if len(value) > VALUE_BYTES_MAX:
        raise WireError(f"value: {len(value)} bytes are more than {VALUE_BYTES_MAX}")
    return value[2:HEAD_BYTES], value[HEAD_BYTES:]


def encode(kind: str, datum: Datum) -> bytes:
    """A record value of this kind in its newest schema, in single-object form.

    Strict: a missing, an extra or a wrongly typed field raises ValueError (the library alone lets some pass).
    """
    schema = current(kind)
    return wrap(schema.fingerprint, encode_datum(schema, datum))


def encode_datum(schema: Schema, datum: Datum) -> bytes:
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, schema.parsed, datum, strict=True)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{schema.name}: {error}") from None
    encoded = out.getvalue()
    if decode_datum(schema, encoded) != datum:
        raise ValueError(f"{schema.name}: the datum does not survive its encoding")
    return encoded


def decode(value: bytes, kind: str) -> Datum:
    """The datum of a record value of this kind.

    Raises:
        WireError: not single-object encoded, not one of the kind's schemas, or not what that schema says.
    """
    digest, datum = unwrap(value)
    if digest not in kind_fingerprints(kind):
        raise WireError(f"value: schema {digest.hex()} is none of kind {kind}")
    return decode_datum(by_fingerprint()[digest], datum)


def encode_as(name: str, datum: Datum) -> bytes:
    """A value that is no record of the log, under this schema, e.g. `InboxV1`, in single-object form. Strict."""
    schema = load(name)
    return wrap(schema.fingerprint, encode_datum(schema, datum))


def decode_as(name: str, value: bytes) -> Datum:
    """The datum of a single-object value of this schema; WireError when it is none."""
    digest, datum = unwrap(value)
    schema = load(name)
    if digest != schema.fingerprint:
        raise WireError(f"value: schema {digest.hex()} is not {name}, which is {schema.fingerprint.hex()}")
    return decode_datum(schema, datum)


def decode_datum(schema: Schema, datum: bytes) -> Datum:
    check(schema, datum)
    decoded: Datum = fastavro.schemaless_reader(io.BytesIO(datum), schema.parsed, None)  # type: ignore[assignment]
    return decoded


def check(schema: Schema, datum: bytes) -> None:
    """Walk a datum without building it; WireError names the field at fault and the byte."""
    stop = _walk(schema.source, datum, 0, schema.name, schema.named)
    if stop != len(datum):
        raise WireError(f"{schema.name}: {len(datum) - stop} bytes too many after byte {stop}")


def _named(source: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            if "name" in part and part.get("type") in ("record", "fixed", "enum"):
                found[part["name"]] = part
            for inner in part.values():
                collect(inner)
        elif isinstance(part, list):
            for inner in part:
                collect(inner)

    collect(source)
    return found


def _walk(schema: Any, buf: bytes, at: int, path: str, named: Mapping[str, Any]) -> int:
    if isinstance(schema, str):
        if schema in named:
            return _walk(named[schema], buf, at, path, named)
        return _walk_primitive(schema, buf, at, path)
    if isinstance(schema, list):
        index, at = read_long(buf, at, path)
        if not 0 <= index < len(schema):
            raise WireError(f"{path}: branch {index} of {len(schema)} before byte {at}")
        return _walk(schema[index], buf, at, path, named)
    kind = schema["type"]
    if kind == "record":
        for field in schema["fields"]:
            at = _walk(field["type"], buf, at, f"{path}.{field['name']}", named)
        return at
    if kind == "fixed":
        return read_fixed(buf, at, schema["size"], path)[1]
    if kind == "enum":
        index, at = read_long(buf, at, path)
        if not 0 <= index < len(schema["symbols"]):
            raise WireError(f"{path}: symbol {index} of {len(schema['symbols'])} before byte {at}")
        return at
    if kind == "array":
        while True:
            count, at = read_count(buf, at, 1, path)
            if count == 0:
                return at
            for index in range(count):
                at = _walk(schema["items"], buf, at, f"{path}[{index}]", named)
    return _walk(kind, buf, at, path, named)


def _walk_primitive(kind: str, buf: bytes, at: int, path: str) -> int:
    if kind == "long":
        return read_long(buf, at, path)[1]
    if kind == "int":
        return read_int(buf, at, path)[1]
    if kind == "string":
        return read_text(buf, at, path)[1]
    if kind == "bytes":
        return read_bytes(buf, at, path)[1]
    if kind == "boolean":
        return read_bool(buf, at, path)[1]
    raise WireError(f"{path}: type {kind} is not used by any schema of ours")
