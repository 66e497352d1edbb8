"""From a caller's mapping to a typed write request, with every failing part named at once.

What is decided here needs no store: forms, names, aliases, and what one batch may not say twice. Bounds, profiles
and vectors are checked after the idempotency key, by `checks` and `profiles`.
"""

from collections.abc import Mapping
from typing import Any, Final

from atomlog.kernel.batch_rules import check_spaces, check_whole
from atomlog.kernel.findings import ROOT, Findings
from atomlog.kernel.ids import invalid, parse_id, parse_key, parse_name, shown
from atomlog.kernel.jsontext import canonical, parse_json, simple_copy, simple_json
from atomlog.kernel.model import (
    KEEP,
    Absent,
    Change,
    Create,
    HeadIs,
    HeadUnchanged,
    Precondition,
    RangeUnchanged,
    Retire,
    Revise,
    ScopeUnchanged,
    WriteRequest,
)
from atomlog.kernel.references import parse_alias
from atomlog.kernel.request_copy import plain_copy
from atomlog.kernel.request_parts import PartReader, parse_position
from atomlog.kernel.request_types import Batch
from atomlog.schemas.revision import ZERO16

_BATCH_FIELDS: Final = ("space", "idempotency_key", "changes", "preconditions", "session")
_CONTENT_FIELDS: Final = ("value", "slots", "valid_time", "origins", "provenance", "vectors")
_CHANGE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "create": ("op", "as", "space", "key", "schema", "policy", *_CONTENT_FIELDS),
    "revise": ("op", "as", "space", "atom", "expected", *_CONTENT_FIELDS),
    "retire": ("op", "as", "space", "atom", "expected"),
}
_CREATE_HINTS: Final[Mapping[str, str]] = {
    "atom": 'a new atom has no id yet; give it a "key", or revise the atom that exists',
    "expected": "a new atom has no head to expect",
    "id": 'ids are not chosen; a "key" makes one that can be computed',
}
_CHANGED_HINTS: Final[Mapping[str, str]] = {
    "policy": "the policy of an atom does not change; leave it out",
    "schema": "the schema of an atom does not change; leave it out",
    "key": 'name the atom by its key: "atom": "key:TEXT"',
    "revision": 'the head that is to be replaced is "expected"',
}
_GUARD_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "head": ("type", "atom", "revision"),
    "absent": ("type", "atom"),
    "unchanged": ("type", "atom", "since"),
    "range": ("type", "role", "target", "unchanged_since"),
    "scope": ("type", "schema", "unchanged_since"),
}


def parse_write(raw: Mapping[str, Any] | Batch | WriteRequest) -> WriteRequest:
    """The request that a batch describes; one that was parsed before passes as it is.

    Raises:
        BOUND_EXCEEDED: beyond an absolute cap (bytes, values, depth); nothing more was looked at.
        INVALID_INPUT: `details` names every failing part by its path, e.g. `changes[3].slots[1].target`.
        ATOMICITY_UNAVAILABLE: a change is for another space than the batch.
        CONSISTENCY_UNAVAILABLE: a precondition guards an atom of another space than the batch.
    """
    if isinstance(raw, WriteRequest):
        return raw
    # 1. Plain JSON within absolute caps.
    findings = Findings()
    copied = simple_copy(raw) if type(raw) is dict else None
    batch, levels = copied or (plain_copy(raw, findings), None)
    if not isinstance(batch, dict):
        raise invalid(ROOT, f"{shown(raw)} is no batch; write an object with {', '.join(_BATCH_FIELDS)}")
    # 2. Every part by itself. Aliases first: a change may name a later one.
    aliases = _aliases(batch, findings)
    reader = PartReader(findings, "", aliases)
    findings.refuse_unknown(batch, ROOT, _BATCH_FIELDS)
    if batch.get("session") is not None:
        findings.add("session", "there are no sessions in this version; leave it out")
    reader.space = space = reader.need(parse_name, batch, "space", ROOT, "")
    key = reader.need(parse_key, batch, "idempotency_key", ROOT, "")
    changes = _changes(batch, reader)
    guards = _preconditions(batch, reader)
    # 3. What concerns several parts: one change an atom; a revision fits its atom.
    check_whole(changes, space, findings)
    if findings.details:
        raise findings.error()
    check_spaces(batch, space)
    digested = {name: batch.get(name) for name in ("changes", "preconditions", "session")}
    return WriteRequest(
        space=space,
        idempotency_key=key,
        changes=tuple(change for change in changes if change is not None),
        preconditions=tuple(guards),
        canonical=canonical(digested, ROOT) if levels is None else simple_json(digested),
        levels=levels,
    )


def parse_write_json(raw: bytes | str) -> WriteRequest:
    """`parse_write` of JSON text, e.g. a line of `atomlog write`."""
    return parse_write(parse_json(raw, checked=False))


def _aliases(batch: Mapping[str, Any], findings: Findings) -> Mapping[str, int]:
    """The index of the change that each alias stands for."""
    changes = batch.get("changes")
    aliases: dict[str, int] = {}
    for n, change in enumerate(changes if isinstance(changes, list) else ()):
        raw = change.get("as") if isinstance(change, dict) else None
        if raw is None:
            continue
        path = f"changes[{n}].as"
        name = findings.take(parse_alias, raw, path, "")
        if name in aliases:
            findings.add(path, f"{shown(name)} is the alias of changes[{aliases[name]}] already")
        elif name:
            aliases[name] = n
    return aliases


def _changes(batch: Mapping[str, Any], reader: PartReader) -> list[Change | None]:
    raw = reader.list(batch.get("changes"), "changes")
    if batch.get("changes") is None or batch["changes"] == []:
        reader.findings.add("changes", "a batch has at least one change")
    return [_change(change, f"changes[{n}]", reader) for n, change in enumerate(raw)]


def _change(raw: Any, path: str, reader: PartReader) -> Change | None:
    op = reader.choice(raw, "op", path, _CHANGE_FIELDS)
    if op is None:
        return None
    reader.object(raw, path, _CHANGE_FIELDS[op], _CREATE_HINTS if op == "create" else _CHANGED_HINTS)
    reader.option(parse_name, raw, "space", path, "")
    alias = raw.get("as") if isinstance(raw.get("as"), str) else None
    if op == "create":
        return _create(raw, path, alias, reader)
    atom = reader.atom(raw, "atom", path)
    expected = reader.need(parse_id, raw, "expected", path, ZERO16)
    if op == "retire":
        return Retire(path=path, alias=alias, atom=atom, expected=expected)
    if "value" not in raw:
        reader.findings.add(f"{path}.value", "is missing; a revision has a whole new value")
    has_slots, has_time = "slots" in raw, "valid_time" in raw
    return Revise(
        path=path,
        alias=alias,
        atom=atom,
        expected=expected,
        value=reader.value(raw.get("value"), f"{path}.value"),
        slots=reader.slots(raw["slots"], f"{path}.slots") if has_slots else KEEP,
        valid_time=reader.valid_time(raw["valid_time"], f"{path}.valid_time") if has_time else KEEP,
        origins=reader.origins(raw.get("origins"), f"{path}.origins"),
        provenance=reader.provenance(raw.get("provenance"), f"{path}.provenance"),
        vectors=reader.vectors(raw.get("vectors"), f"{path}.vectors"),
    )


def _create(raw: Mapping[str, Any], path: str, alias: str | None, reader: PartReader) -> Create:
    return Create(
        path=path,
        alias=alias,
        key=reader.option(_optional_key, raw, "key", path, None),
        schema=reader.need(parse_name, raw, "schema", path, ""),
        policy=reader.option(parse_name, raw, "policy", path, reader.space),
        value=reader.value(raw.get("value"), f"{path}.value"),
        slots=reader.slots(raw.get("slots"), f"{path}.slots"),
        valid_time=reader.valid_time(raw.get("valid_time"), f"{path}.valid_time"),
        origins=reader.origins(raw.get("origins"), f"{path}.origins"),
        provenance=reader.provenance(raw.get("provenance"), f"{path}.provenance"),
        vectors=reader.vectors(raw.get("vectors"), f"{path}.vectors"),
    )


def _optional_key(raw: Any, path: str) -> str | None:
    return parse_key(raw, path)


def _preconditions(batch: Mapping[str, Any], reader: PartReader) -> list[Precondition]:
    raw = reader.list(batch.get("preconditions"), "preconditions")
    found = [_precondition(guard, f"preconditions[{n}]", reader) for n, guard in enumerate(raw)]
    return [guard for guard in found if guard is not None]


def _precondition(raw: Any, path: str, reader: PartReader) -> Precondition | None:
    kind = reader.choice(raw, "type", path, _GUARD_FIELDS)
    if kind is None:
        return None
    reader.object(raw, path, _GUARD_FIELDS[kind])
    if kind == "range":
        return RangeUnchanged(
            path=path,
            role=reader.need(parse_name, raw, "role", path, ""),
            target=reader.atom(raw, "target", path),
            unchanged_since=reader.need(parse_position, raw, "unchanged_since", path, -1),
        )
    if kind == "scope":
        return ScopeUnchanged(
            path=path,
            schema=reader.need(parse_name, raw, "schema", path, ""),
            unchanged_since=reader.need(parse_position, raw, "unchanged_since", path, -1),
        )
    atom = reader.atom(raw, "atom", path)
    if kind == "absent":
        return Absent(path=path, atom=atom)
    if kind == "head":
        return HeadIs(path=path, atom=atom, revision=reader.need(parse_id, raw, "revision", path, ZERO16))
    return HeadUnchanged(path=path, atom=atom, since=reader.need(_since, raw, "since", path, _NEVER))


_NEVER: Final[bytes | int] = -1


def _since(raw: Any, path: str) -> bytes | int:
    return parse_id(raw, path) if isinstance(raw, str) else parse_position(raw, path)
