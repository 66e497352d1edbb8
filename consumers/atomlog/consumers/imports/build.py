"""One write of an import as a batch: what its lines ask for, less what the store says already. Pure."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.consumers.imports.heads import Head, Keys, Known, Membership
from atomlog.consumers.imports.lines import GROUP_SCHEMA, KIND, Line, membership_key
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.findings import Findings
from atomlog.kernel.ids import format_id
from atomlog.kernel.times import format_time

MEMBERSHIP_SCHEMA: Final = "membership"
MEMBER_ROLE: Final = "member"
_CHANGE: Final = re.compile(r"changes\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """`changes[i]` of the batch comes from `origins[i]`. Without changes there is nothing to write."""

    space: str
    key: str
    changes: tuple[Mapping[str, Any], ...]
    preconditions: tuple[Mapping[str, Any], ...]
    origins: tuple[Line, ...]
    no_ops: int

    def batch(self) -> dict[str, Any]:
        batch = {"space": self.space, "idempotency_key": self.key, "changes": list(self.changes)}
        return batch | ({"preconditions": list(self.preconditions)} if self.preconditions else {})

    def located(self, error: AtomlogError) -> AtomlogError:
        """The store's refusal in terms of the lines that caused it."""
        details = [
            dict(detail) if line is None else {**detail, "path": line.where, "line": line.number}
            for detail, line in ((detail, self.line_of(detail)) for detail in error.details)
        ]
        shown = next((detail for detail in details if "line" in detail), None)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        message = error.message if shown is None else f"{shown['path']}: {shown.get('message', error.message)}{more}"
        return fail(error.code, message, details=details, retry_after_ms=error.retry_after_ms)

    def line_of(self, detail: Mapping[str, Any]) -> Line | None:
        """The line that a detail of the store's refusal is about."""
        index = self.change_of(detail)
        return None if index is None else self.origins[index]

    def change_of(self, detail: Mapping[str, Any]) -> int | None:
        found = _CHANGE.match(str(detail.get("path", "")))
        return None if found is None or int(found[1]) >= len(self.changes) else int(found[1])


def value_sha256(value: Any) -> bytes:
    """What two values are compared by."""
    return hashlib.sha256(jsontext.canonical(value)).digest()


def atoms_needed(lines: Sequence[Line], keys: Keys) -> list[bytes]:
    """The atoms whose heads decide about the lines, memberships left out."""
    names = [name for line in lines for name in (line.id, *(line.groups or ()))]
    return [keys.atom(name) for name in dict.fromkeys(names)]


def members_needed(lines: Sequence[Line], heads: Mapping[bytes, Head], keys: Keys) -> list[bytes]:
    """The atoms whose memberships decide too: an absent one has none, a line without groups leaves them alone."""
    found = ((line, keys.atom(line.id)) for line in lines)
    return [
        atom
        for line, atom in found
        if (head := heads.get(atom)) is not None and (not head.retired if line.delete else line.groups is not None)
    ]


def memberships_needed(lines: Sequence[Line], known: Known, keys: Keys) -> list[bytes]:
    """Memberships that may stand retired under their keys: asked for, and not among the active ones."""
    needed: list[bytes] = []
    for line in lines:
        active = known.memberships.get(keys.atom(line.id))
        if active is not None and not line.delete:
            present = {membership.atom for membership in active.active}
            needed += [atom for group in line.groups or () if (atom := keys.membership(group, line.id)) not in present]
    return needed


def build(
    key: str,
    lines: Sequence[Line],
    known: Known,
    keys: Keys,
    *,
    activity: str,
    foreign: frozenset[bytes] = frozenset(),
) -> Built:
    """The batch that makes the store say what the lines say.

    `foreign` are memberships of other spaces, which stay as they are. INVALID_INPUT names every line that asks for
    another schema than its atom has.
    """
    draft = _Draft(lines, known, keys, activity, foreign)
    for line in lines:
        before = len(draft.changes)
        if line.delete:
            draft.delete(line)
        else:
            draft.put(line)
        draft.no_ops += len(draft.changes) == before
    if draft.findings.details:
        raise draft.findings.error()
    return Built(
        space=keys.space,
        key=key,
        changes=tuple(draft.changes),
        preconditions=tuple(draft.preconditions),
        origins=tuple(draft.origins),
        no_ops=draft.no_ops,
    )


@dataclass(slots=True)
class _Draft:
    lines: Sequence[Line]
    known: Known
    keys: Keys
    activity: str
    foreign: frozenset[bytes]
    changes: list[Mapping[str, Any]] = field(default_factory=list)
    preconditions: list[Mapping[str, Any]] = field(default_factory=list)
    origins: list[Line] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    no_ops: int = 0
    _own: dict[str, Line] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._own = {line.id: line for line in self.lines}

    def put(self, line: Line) -> None:
        for group in line.groups or ():
            self._group(line, group)
        atom = self.keys.atom(line.id)
        head = self.known.heads.get(atom)
        if head is None:
            self._create(line, line.id, line.schema, line.value, line.time_us)
        elif head.schema != line.schema:
            self._other_schema(line, f"{line.where}.schema", line.id, head.schema, line.schema)
        elif head.retired or _differs(line, head):
            self._revise(line, atom, head)
        if line.groups is not None:
            self._memberships(line, atom)

    def delete(self, line: Line) -> None:
        atom = self.keys.atom(line.id)
        head = self.known.heads.get(atom)
        if head is None or head.retired:
            return
        self._retire(line, atom, head.revision)
        for membership in self.known.memberships[atom].active:
            self._retire_membership(line, membership)
        self._guard(atom)

    def _group(self, line: Line, group: str) -> None:
        """A group that is missing becomes a collection; one of another schema is none."""
        own = self._own.get(group)
        head = self.known.heads.get(self.keys.atom(group))
        schema = own.schema if own is not None else None if head is None else head.schema
        if schema is None and group not in self._made:
            self._made.add(group)
            self._create(line, group, GROUP_SCHEMA, {"title": group}, None)
        elif schema is not None and schema != GROUP_SCHEMA:
            self._other_schema(line, f"{line.where}.groups", group, schema, GROUP_SCHEMA)

    def _memberships(self, line: Line, atom: bytes) -> None:
        """Exactly the groups of the line, among the memberships that imports make."""
        known = self.known.memberships.get(atom)
        active = () if known is None else known.active
        wanted = {self.keys.membership(group, line.id): group for group in line.groups or ()}
        before = len(self.changes)
        present = {membership.atom for membership in active}
        for membership, group in wanted.items():
            if membership not in present:
                self._join(line, membership, group)
        for found in active:
            if found.imported and found.atom not in wanted:
                self._retire_membership(line, found)
        if known is not None and len(self.changes) > before:
            self._guard(atom)

    def _join(self, line: Line, membership: bytes, group: str) -> None:
        head = self.known.heads.get(membership)
        slots = [_refer("group", self.keys.atom(group)), _refer(MEMBER_ROLE, self.keys.atom(line.id))]
        change: dict[str, Any] = {"value": None, "slots": slots, **self._provenance()}
        if head is None:
            key = membership_key(group, line.id)
            made = {"op": "create", "key": key, "schema": MEMBERSHIP_SCHEMA, "policy": self.keys.policy}
            self._change(line, {**made, **change})
        elif head.schema != MEMBERSHIP_SCHEMA:
            self._other_schema(line, f"{line.where}.groups", group, head.schema, MEMBERSHIP_SCHEMA)
        else:
            self._change(line, {"op": "revise", **_expected(membership, head.revision), **change})

    def _create(self, line: Line, key: str, schema: str, value: Any, time_us: int | None) -> None:
        change = {"op": "create", "key": key, "schema": schema, "policy": self.keys.policy, "value": value}
        valid = {} if time_us is None else {"valid_time": {"from": format_time(time_us), "to": None}}
        self._change(line, {**change, **valid, **self._provenance()})

    def _revise(self, line: Line, atom: bytes, head: Head) -> None:
        change = {"op": "revise", **_expected(atom, head.revision), "value": line.value}
        self._change(line, {**change, **_valid_time(line, head), **self._provenance()})

    def _retire_membership(self, line: Line, membership: Membership) -> None:
        if membership.atom not in self.foreign:
            self._retire(line, membership.atom, membership.revision)

    def _retire(self, line: Line, atom: bytes, revision: bytes) -> None:
        self._change(line, {"op": "retire", **_expected(atom, revision)})

    def _guard(self, atom: bytes) -> None:
        """What was read of this member's memberships must still be all of them."""
        since = self.known.memberships[atom].position
        guard = {"type": "range", "role": MEMBER_ROLE, "target": format_id(atom), "unchanged_since": since}
        self.preconditions.append(guard)

    def _change(self, line: Line, change: Mapping[str, Any]) -> None:
        self.changes.append(change)
        self.origins.append(line)

    def _provenance(self) -> dict[str, Any]:
        return {"provenance": {"kind": KIND, "activity": self.activity}}

    def _other_schema(self, line: Line, path: str, key: str, schema: str, wanted: str) -> None:
        message = f"{ascii(key)[:80]} has the schema {schema}, not {wanted}; use another id, or that schema"
        self.findings.add(path, message, line=line.number)


def _differs(line: Line, head: Head) -> bool:
    if line.time_us is not None and line.time_us != head.valid_from_us:
        return True
    return value_sha256(line.value) != head.value_sha256


def _valid_time(line: Line, head: Head) -> dict[str, Any]:
    """The line's time as the new beginning; an end stays if it is later. Without a time: carried over."""
    if line.time_us is None:
        return {}
    end = head.valid_to_us if head.valid_to_us is not None and head.valid_to_us > line.time_us else None
    return {"valid_time": {"from": format_time(line.time_us), "to": None if end is None else format_time(end)}}


def _expected(atom: bytes, revision: bytes) -> dict[str, str]:
    return {"atom": format_id(atom), "expected": format_id(revision)}


def _refer(role: str, target: bytes) -> dict[str, str]:
    return {"role": role, "target": format_id(target), "mode": "refer"}
