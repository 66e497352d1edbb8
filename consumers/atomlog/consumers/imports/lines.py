"""One line of an import: `{"id", "op", "text" or "value", "groups", "time", "batch", "schema", "who"}`.

Parsing a line is pure. What a line asks for does not depend on what the store holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.bounds import KEY_BYTES_MAX, Bounds
from atomlog.kernel.checks import check_bounds
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.findings import Findings
from atomlog.kernel.ids import invalid, parse_key, parse_name
from atomlog.kernel.model import Create, WriteRequest
from atomlog.kernel.profiles import RIGHTS, ProfileCase, check_profile
from atomlog.kernel.text import refuse_blob
from atomlog.kernel.times import parse_time

FIELDS: Final = ("id", "op", "text", "value", "groups", "time", "batch", "schema", "who")
PUT_FIELDS: Final = ("text", "value", "groups")
GROUPS_MAX: Final = 400  # of one line: with its collections and memberships it must fit one batch
BATCH_NAME_BYTES_MAX: Final = 512
WHO_BYTES_MAX: Final = 1_024
MEMBERSHIP_PREFIX: Final = '["member",'
SCHEMA: Final = "source"
KIND: Final = "imported"  # of the provenance of everything that an import makes
BOUNDS: Final = Bounds()
GROUP_SCHEMA: Final = "collection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A readable line.

    `number` counts from 1; `where` names the line to a person. `value` is what the atom is to say, `speaker` included;
    None on a delete. `groups` None = unchanged. `canonical` is the canonical JSON of the line as it was given,
    `size_bytes` that of its raw text.
    """

    number: int
    where: str
    id: str
    delete: bool
    value: Mapping[str, Any] | None
    groups: tuple[str, ...] | None
    time_us: int | None
    batch: str | None
    schema: str
    canonical: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that cannot be carried out. `batch_known` is False when not even its batch could be read."""

    number: int
    error: AtomlogError
    size_bytes: int
    batch: str | None = None
    batch_known: bool = False


def membership_key(group: str, member: str) -> str:
    """The key of the membership that an import makes for (group, id)."""
    return jsontext.canonical(["member", group, member]).decode()


def parse_line(raw: bytes, number: int, *, size_bytes: int | None = None, bounds: Bounds = BOUNDS) -> Line | BadLine:
    """The line that `raw` is, or what is wrong with it, every failing part named.

    `size_bytes` counts in its end of line, where the caller knows it.
    """
    size_bytes = len(raw) if size_bytes is None else size_bytes
    try:
        found = jsontext.parse_json(raw, _where(number))
        if not isinstance(found, Mapping):
            raise invalid(_where(number), 'a line is an object like {"id": "n-1", "text": "…"}')
    except AtomlogError as error:
        return BadLine(number=number, error=error, size_bytes=size_bytes)
    return line_of(found, number, size_bytes=size_bytes, bounds=bounds)


def line_of(
    found: Mapping[str, Any], number: int, *, size_bytes: int, where: str = "", bounds: Bounds = BOUNDS
) -> Line | BadLine:
    """The line that a JSON object asks for; `where` names it in errors, `line 7` unless given.

    The object must be JSON (`jsontext.check_json`).
    """
    findings = Findings()
    where = where or _where(number)
    findings.refuse_unknown(found, where, FIELDS)
    batch = _optional(findings, found, "batch", where, _parse_batch)
    batch_known = batch is not None or found.get("batch") is None
    delete = found.get("op", "put") == "delete"
    if found.get("op", "put") not in ("put", "delete"):
        findings.add(f"{where}.op", 'must be "put" or "delete"')
    key = findings.take(_parse_id, found.get("id"), f"{where}.id", "")
    schema = _optional(findings, found, "schema", where, parse_name) or SCHEMA
    time_us = _optional(findings, found, "time", where, parse_time)
    who = _optional(findings, found, "who", where, _parse_who)
    groups = _groups(findings, found.get("groups"), key, f"{where}.groups")
    value = _value(findings, found, who, where)
    if delete:
        for name in PUT_FIELDS:
            if found.get(name) is not None:
                findings.add(f"{where}.{name}", "a delete has none; it retires the atom with its memberships")
    elif value is None and not findings.details:
        findings.add(where, 'a put needs "text" or "value"')
    if not findings.details and not delete:
        _check_value(findings, schema, value, where, bounds)
    if findings.details:
        error = findings.error()
        return BadLine(number=number, error=error, size_bytes=size_bytes, batch=batch, batch_known=batch_known)
    return Line(
        number=number,
        where=where,
        id=key,
        delete=delete,
        value=None if delete else value,
        groups=groups,
        time_us=time_us,
        batch=batch,
        schema=schema,
        canonical=jsontext.canonical(dict(found), where),
        size_bytes=size_bytes,
    )


def _where(number: int) -> str:
    return f"line {number}"


def _optional(findings: Findings, found: Mapping[str, Any], name: str, where: str, parse: Any) -> Any:
    """A field that may be absent or null: None then, and when it is refused."""
    if found.get(name) is None:
        return None
    return findings.take(parse, found[name], f"{where}.{name}", None)


def _value(findings: Findings, found: Mapping[str, Any], who: str | None, where: str) -> Mapping[str, Any] | None:
    text, value = found.get("text"), found.get("value")
    if text is not None and value is not None:
        findings.add(f"{where}.value", 'a put has "text" or "value", not both; write {"value": {"text": …, …}}')
        return None
    if text is not None:
        if not isinstance(text, str):
            findings.add(f"{where}.text", "must be text")
            return None
        value = {"text": text}
    if value is None:
        return None
    if not isinstance(value, Mapping):
        findings.add(f"{where}.value", 'must be an object, e.g. {"text": …}')
        return None
    findings.take(lambda item, path: refuse_blob(item, path), value, f"{where}.value", None)
    if who is None:
        return value
    if value.get("speaker", who) != who:
        findings.add(f"{where}.who", "the value names another speaker; leave one of them out")
    return {**value, "speaker": who}


def _check_value(findings: Findings, schema: str, value: Any, where: str, bounds: Bounds) -> None:
    """What the store would refuse whatever it holds: a part of the batch may be written before it sees this line.

    Slots are left to the store: a known atom has its own.
    """
    create = Create(path=where, alias=None, key=None, schema=schema, policy="", value=value)
    request = WriteRequest(space="", idempotency_key="", changes=(create,), preconditions=(), canonical=b"")
    case = ProfileCase(path=where, schema=schema, value=value, slots=(), origins=0, receipts=0, kind=KIND)
    _, failures = check_profile(case, rights=RIGHTS, strict=False)
    for detail in (*check_bounds(request, bounds), *failures):
        if str(detail["path"]).startswith((f"{where}.value", f"{where}.provenance")):
            findings.add(**detail)


def _parse_id(value: Any, path: str) -> str:
    if value is None:
        raise invalid(path, "is missing")
    key = parse_key(value, path)
    if key.startswith(MEMBERSHIP_PREFIX):
        raise invalid(path, f"ids that begin with {MEMBERSHIP_PREFIX} are those of memberships")
    return key


def _parse_batch(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= BATCH_NAME_BYTES_MAX:
        raise invalid(path, f"must be text of 1 to {BATCH_NAME_BYTES_MAX} bytes")
    return value


def _parse_who(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value.encode()) > WHO_BYTES_MAX:
        raise invalid(path, f"must be a name of 1 to {WHO_BYTES_MAX} bytes")
    return value


def _groups(findings: Findings, value: Any, key: str, path: str) -> tuple[str, ...] | None:
    """The names, repeats left out; None when the line leaves the groups as they are."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        findings.add(path, 'must be a list of names, e.g. ["tea"]; [] = in no group')
        return None
    if len(value) > GROUPS_MAX:
        findings.add(path, f"{len(value)} groups are more than {GROUPS_MAX}")
        return None
    names = [findings.take(_group_of(key), item, f"{path}[{index}]", "") for index, item in enumerate(value)]
    return tuple(dict.fromkeys(names))


def _group_of(key: str) -> Callable[[Any, str], str]:
    def parse(item: Any, path: str) -> str:
        group = parse_key(item, path)
        if len(membership_key(group, key).encode()) > KEY_BYTES_MAX:
            raise invalid(path, f"id and group are too long together: as a key they have over {KEY_BYTES_MAX} bytes")
        return group

    return parse
