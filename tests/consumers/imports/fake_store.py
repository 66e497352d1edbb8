"""A store in memory with just what an import needs, faithful to the kernel where an import can tell."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atomlog.consumers.imports.build import value_sha256
from atomlog.consumers.imports.heads import Head, Membership, Memberships
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id, keyed_id, parse_id
from atomlog.kernel.requests import parse_write
from atomlog.kernel.times import parse_time


class Killed(BaseException):
    """Stands for kill −9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    id: bytes
    retired: bool
    schema: str
    value: Any
    valid_from_us: int | None
    slots: tuple[tuple[str, bytes], ...]
    imported: bool


@dataclass(slots=True)
class FakeStore:
    """`before_write` may raise, or change the store, before a batch is looked at; `after_write` after it is in."""

    space: str = "notes"
    atoms: dict[bytes, list[Revision]] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    batches: list[Mapping[str, Any]] = field(default_factory=list)
    ranges: dict[tuple[str, bytes], int] = field(default_factory=dict)
    before_write: Callable[[Mapping[str, Any]], None] = lambda batch: None
    after_write: Callable[[], None] = lambda: None
    revisions_max: int = 1_000
    settled: int = 0
    position: int = -1
    _drawn: int = 0

    async def accepted(self, key: str) -> bool:
        return key in self.requests

    async def heads(self, atoms: Sequence[bytes]) -> Mapping[bytes, Head]:
        return {atom: _head(self.atoms[atom][-1]) for atom in atoms if atom in self.atoms}

    async def memberships(self, member: bytes) -> Memberships:
        active = tuple(
            Membership(atom=atom, revision=head.id, imported=head.imported)
            for atom, (*_, head) in sorted(self.atoms.items())
            if head.schema == "membership" and not head.retired and ("member", member) in head.slots
        )
        return Memberships(active=active, position=self.position)

    async def value(self, atom: bytes) -> Any:
        head = self.atoms.get(atom, [None])[-1]
        return None if head is None or head.retired else head.value

    async def settle(self) -> None:
        self.settled += 1

    async def write(self, batch: Mapping[str, Any]) -> None:
        self.before_write(batch)
        parse_write(batch)
        digest = json.dumps([batch["changes"], batch.get("preconditions")])
        if batch["idempotency_key"] in self.requests:
            if self.requests[batch["idempotency_key"]] != digest:
                raise fail("IDEMPOTENCY_MISMATCH", "used before")
            return
        if len(batch["changes"]) > self.revisions_max:
            message = f"{len(batch['changes'])} changes are more than {self.revisions_max}"
            detail = {"path": "changes", "code": "BOUND_EXCEEDED", "message": message}
            raise fail("BOUND_EXCEEDED", message, details=[detail])
        self._check(batch)
        self.position += 1
        for change in batch["changes"]:
            self._apply(change)
        self.requests[batch["idempotency_key"]] = digest
        self.batches.append(batch)
        self.after_write()

    def text(self, key: str) -> Any:
        """What the head of a key says; None when retired or absent."""
        head = self.atoms.get(self.atom(key), [None])[-1]
        return None if head is None or head.retired else head.value.get("text", head.value.get("title"))

    def groups(self, key: str) -> set[str]:
        """The titles of the groups that an active membership puts the key in."""
        member = self.atom(key)
        found = set()
        for *_, head in self.atoms.values():
            if head.schema == "membership" and not head.retired and ("member", member) in head.slots:
                group = dict(head.slots)["group"]
                found.add(self.atoms[group][0].value["title"])
        return found

    def atom(self, key: str) -> bytes:
        return keyed_id(self.space, self.space, key)

    def content_digest(self) -> str:
        """Of every atom and revision, without revision ids."""
        lines = [
            (format_id(atom), n, revision.retired, revision.schema, revision.value, revision.valid_from_us)
            for atom, revisions in sorted(self.atoms.items())
            for n, revision in enumerate(revisions)
        ]
        return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()

    def revise(self, key: str, text: str) -> None:
        """Another writer's batch."""
        self.position += 1
        head = self.atoms[self.atom(key)][-1]
        self.atoms[self.atom(key)].append(
            Revision(
                id=self._draw(),
                retired=False,
                schema=head.schema,
                value={"text": text},
                valid_from_us=None,
                slots=(),
                imported=False,
            )
        )

    def join(self, group: str, member: str) -> bytes:
        """Another writer's membership."""
        atom = self._draw()
        slots = (("group", self.atom(group)), ("member", self.atom(member)))
        self.atoms[atom] = [
            Revision(
                id=self._draw(),
                retired=False,
                schema="membership",
                value=None,
                valid_from_us=None,
                slots=slots,
                imported=False,
            )
        ]
        self.position += 1
        self.ranges["member", self.atom(member)] = self.position
        return atom

    def _check(self, batch: Mapping[str, Any]) -> None:
        new = {self._atom_of(change) for change in batch["changes"]}
        conflicts = []
        for n, change in enumerate(batch["changes"]):
            atom = self._atom_of(change)
            head = self.atoms[atom][-1] if atom in self.atoms else None
            expected = None if change["op"] == "create" else parse_id(change["expected"], "expected")
            if expected != (None if head is None else head.id):
                conflicts.append({"path": f"changes[{n}].expected", "code": "REVISION_CONFLICT", "message": "not head"})
            if change["op"] == "retire":
                assert head is None or not head.retired, "an import never retires what is retired"
            for slot in change.get("slots", ()):
                target = parse_id(slot["target"], "target")
                assert target in self.atoms or target in new, "an import refers only to what there is"
        if conflicts:
            raise fail("REVISION_CONFLICT", "not the head", details=conflicts)
        for guard in batch.get("preconditions", ()):
            changed = self.ranges.get((guard["role"], parse_id(guard["target"], "target")), -1)
            if changed > guard["unchanged_since"]:
                raise fail("PRECONDITION_FAILED", "the range has changed")

    def _apply(self, change: Mapping[str, Any]) -> None:
        atom = self._atom_of(change)
        revisions = self.atoms.setdefault(atom, [])
        head = revisions[-1] if revisions else None
        slots = tuple((slot["role"], parse_id(slot["target"], "target")) for slot in change.get("slots", ()))
        valid = change.get("valid_time")
        kept = None if head is None else head.valid_from_us
        revision = Revision(
            id=self._draw(),
            retired=change["op"] == "retire",
            schema=change.get("schema") or (head.schema if head else ""),
            value=change.get("value"),
            valid_from_us=parse_time(valid["from"], "from") if valid else kept,
            slots=slots if "slots" in change or head is None else head.slots,
            imported=change.get("provenance", {}).get("kind") == "imported",
        )
        revisions.append(revision)
        for role, target in {*revision.slots, *(head.slots if head else ())}:
            self.ranges[role, target] = self.position

    def _atom_of(self, change: Mapping[str, Any]) -> bytes:
        if change["op"] == "create":
            return keyed_id(self.space, change["policy"], change["key"])
        return parse_id(change["atom"], "atom")

    def _draw(self) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(16, "big")


def _head(revision: Revision) -> Head:
    return Head(
        revision=revision.id,
        retired=revision.retired,
        schema=revision.schema,
        value_sha256=value_sha256(revision.value),
        valid_from_us=revision.valid_from_us,
    )
