"""The decision on one write: pure, against heads ⊕ overlay. Nothing here waits, draws or appends.

What a decision needs beyond the heads, and never changes once known (texts of source revisions, what receipts
read, drawn ids), is gathered before in `Prepared`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel import model
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.checks import check_bounds, check_includes, check_vectors
from atomlog.kernel.errors import AtomlogError, Detail, fail
from atomlog.kernel.findings import detail
from atomlog.kernel.heads import Accepted, Head, HeadView
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.profiles import ProfileCase, check_profile
from atomlog.kernel.text import check_span, nfc_bytes, text_of
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.schemas.content import Origin
from atomlog.schemas.revision import NO_INPUTS, Inputs, Slot, ValidTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every write of this process."""

    bounds: Bounds
    spaces: Mapping[str, VectorSpace]
    rights: frozenset[str]
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Ids drawn for a change: the atom of a create without a key, and the new revision."""

    atom: bytes
    revision: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request with every fact about it that cannot change.

    `texts` holds the NFC bytes of each source revision that origins name and that was known then, None where it has
    no text.
    `inputs` holds what the receipts of a change read, by the change's path. `failures` are receipts and handles
    that could not be resolved.
    """

    request: model.WriteRequest
    principal: str
    request_key: bytes
    request_digest: bytes
    digest_key_id: bytes
    assigned: tuple[Assigned, ...]
    texts: Mapping[bytes, bytes | None]
    inputs: Mapping[str, Inputs]
    handles: Mapping[model.Handle, bytes]
    failures: tuple[Detail, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRevision:
    """A revision that may be written; only times, keys and bytes are missing. `key_id` None = a new key."""

    atom_id: bytes
    revision_id: bytes
    previous: bytes | None
    key_id: bytes | None
    retired: bool
    schema: str
    policy: str
    valid_time: ValidTime | None
    slots: tuple[Slot, ...]
    inputs: Inputs
    value: Any
    origins: tuple[Origin, ...]
    provenance_kind: str
    provenance: model.ProvenanceRequest
    vectors: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Accepted, if nothing that was decided before it turns out void."""

    revisions: tuple[PlannedRevision, ...]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same request was accepted before, or stands in the overlay (position PENDING)."""

    accepted: Accepted


@dataclass(frozen=True, slots=True)
class Refused:
    error: AtomlogError


Decision = Plan | Duplicate | Refused

_RETIRED_KIND: Final = model.ProvenanceRequest(activity="retire")


def decide(view: HeadView, partition: int, prepared: Prepared, rules: Rules) -> Decision:
    """Accept or refuse a request; a refusal's code is its first failing stage, its details are all of that stage."""
    request = prepared.request
    # 1. Idempotency, before anything that can have changed since the first attempt.
    accepted = view.request(partition, prepared.request_key)
    if accepted is not None:
        return _duplicate(accepted, prepared)
    # 2. Bounds of the parts, and vectors that could never be indexed.
    bounds = check_bounds(request, rules.bounds) + _input_failures(prepared, rules.bounds)
    if failures := bounds + check_vectors(request, rules.spaces):
        return _refuse(failures)
    # 3. The atoms that are changed or guarded: they exist, and in this space.
    case = _Case(view, partition, prepared, rules)
    if failures := [*prepared.failures, *case.locate()]:
        return _refuse(failures)
    # 4. Profiles.
    if failures := case.profiles():
        return _refuse(failures)
    # 5. References, spans, and that includes form no cycle.
    if failures := case.references():
        return _refuse(failures)
    # 6. Heads and preconditions.
    if failures := case.heads() + case.preconditions():
        return _refuse(failures)
    return Plan(case.plan())


def _duplicate(accepted: Accepted, prepared: Prepared) -> Decision:
    if accepted.digest == prepared.request_digest:
        return Duplicate(accepted)
    return Refused(mismatch(prepared.request.idempotency_key))


def mismatch(key: str) -> AtomlogError:
    """IDEMPOTENCY_MISMATCH about a key."""
    return fail(
        "IDEMPOTENCY_MISMATCH",
        f"the idempotency key {ascii(key)[:80]} was accepted before with other content; "
        "send the same content to have its result, or use a new key",
        details=[detail("idempotency_key", "IDEMPOTENCY_MISMATCH", "used before with other content")],
    )


def _input_failures(prepared: Prepared, bounds: Bounds) -> list[Detail]:
    """What a change's receipts read is written into its revision, and stays there."""
    failures: list[Detail] = []
    for path, inputs in prepared.inputs.items():
        for name, found in (("versions", inputs.versions), ("ranges", inputs.ranges), ("scopes", inputs.scopes)):
            if len(found) > bounds.inputs_max:
                message = f"its receipts read {len(found)} {name}, more than {bounds.inputs_max}; cite fewer"
                more = {"found": len(found), "limit": bounds.inputs_max}
                failures.append(detail(f"{path}.provenance.receipts", "BOUND_EXCEEDED", message, **more))
    return failures


_MESSAGES: Final[Mapping[str, str]] = {
    "REVISION_CONFLICT": "the head is another one; read it and decide again",
    "PRECONDITION_FAILED": "what the batch rests on has changed; read it and decide again",
}


def _refuse(failures: Sequence[Detail]) -> Refused:
    """One error for all failures of a stage, under the code of the gravest."""
    first = min(failures, key=lambda failure: _GRAVITY.index(failure["code"]))
    code = first["code"]
    message = f"{first['path']}: {_MESSAGES.get(code, first['message'])}"
    if len(failures) > 1:
        message += f" (and {len(failures) - 1} more)"
    return Refused(fail(code, message, details=failures))


_GRAVITY: Final = (
    "INVALID_INPUT",
    "BOUND_EXCEEDED",
    "INCLUDE_CYCLE",
    "NOT_FOUND",
    "ACCESS_DENIED",
    "PURGED",
    "ATOMICITY_UNAVAILABLE",
    "CONSISTENCY_UNAVAILABLE",
    "RECEIPT_EXPIRED",
    "REFERENCE_UNAVAILABLE",
    "KEY_UNAVAILABLE",
    "REVISION_CONFLICT",
    "PRECONDITION_FAILED",
)


class _Case:
    """One request on its way through the stages."""

    def __init__(self, view: HeadView, partition: int, prepared: Prepared, rules: Rules) -> None:
        self._view = view
        self._partition = partition
        self._prepared = prepared
        self._rules = rules
        self._request = prepared.request
        self._atoms: list[bytes] = []  # per change
        self._heads: list[Head | None] = []  # per change
        self._aliases: dict[str, int] = {}  # alias → index of its change
        self._new: dict[bytes, int] = {}  # atom of this batch → index of its change
        self._slots: list[tuple[Slot, ...]] = []  # per change, resolved by `references`
        self._origins: list[tuple[Origin, ...]] = []
        self._kinds: list[str] = []

    # -- stage 3

    def locate(self) -> list[Detail]:
        failures: list[Detail] = []
        for index, change in enumerate(self._request.changes):
            if change.alias is not None:
                self._aliases[change.alias] = index
        for index, change in enumerate(self._request.changes):
            atom = self._atom_of_change(index, change)
            head = self._view.head(self._partition, atom)
            self._atoms.append(atom)
            self._heads.append(head)
            if atom in self._new:
                other = self._request.changes[self._new[atom]].path
                message = f"changes the same atom as {other}; one batch changes an atom once"
                failures.append(detail(change.path, "INVALID_INPUT", message, atom=format_id(atom)))
            self._new[atom] = index
            if not isinstance(change, model.Create):
                failures += self._misplaced(atom, head, f"{change.path}.atom")
        for guard in self._request.preconditions:
            if isinstance(guard, model.HeadIs | model.Absent | model.HeadUnchanged):
                failures += self._foreign_guard(guard)
        return failures

    def _atom_of_change(self, index: int, change: model.Change) -> bytes:
        if not isinstance(change, model.Create):
            return self.atom(change.atom)
        if change.key is not None:
            return keyed_id(self._request.space, change.policy, change.key)
        return self._prepared.assigned[index].atom

    def atom(self, ref: model.AtomRef) -> bytes:
        if isinstance(ref, model.Alias):
            index = self._aliases[ref.name]
            change = self._request.changes[index]
            return self._atoms[index] if index < len(self._atoms) else self._atom_of_change(index, change)
        return self._prepared.handles[ref] if isinstance(ref, model.Handle) else ref

    def _misplaced(self, atom: bytes, head: Head | None, path: str) -> list[Detail]:
        if head is not None and head.space == self._request.space:
            return []
        elsewhere = head or self._view.head_anywhere(self._partition, atom)
        if elsewhere is None:
            message = "not found, or not visible to you"
            return [detail(path, "NOT_FOUND", message, atom=format_id(atom))]
        message = (
            f"the atom is in space {elsewhere.space}; a batch is atomic inside one space: write it there on its own"
        )
        return [detail(path, "ATOMICITY_UNAVAILABLE", message, atom=format_id(atom))]

    def _foreign_guard(self, guard: model.HeadIs | model.Absent | model.HeadUnchanged) -> list[Detail]:
        atom = self.atom(guard.atom)
        head = self._view.head_anywhere(self._partition, atom)
        if head is None or head.space == self._request.space:
            return []
        message = f"the atom is in space {head.space}; a guard can only name atoms of the batch's own space"
        return [detail(f"{guard.path}.atom", "CONSISTENCY_UNAVAILABLE", message, atom=format_id(atom))]

    # -- stage 4

    def profiles(self) -> list[Detail]:
        failures: list[Detail] = []
        for index, change in enumerate(self._request.changes):
            if isinstance(change, model.Retire):
                self._kinds.append("source" if "mark-source" in self._rules.rights else "generated")
                continue
            head = self._heads[index]
            slots = change.slots
            roles: Sequence[model.SlotRequest | Slot]
            roles = head.clear.slots if head and isinstance(slots, model.Keep) else slots  # type: ignore[assignment]
            case = ProfileCase(
                path=change.path,
                schema=change.schema if isinstance(change, model.Create) else _known(head).clear.schema,
                value=change.value,
                slots=tuple((slot.role, slot.include, slot.at is not None) for slot in roles),
                origins=len(change.origins),
                receipts=len(change.provenance.receipts),
                kind=change.provenance.kind,
            )
            kind, found = check_profile(case, rights=self._rules.rights, strict=self._rules.strict)
            self._kinds.append(kind)
            failures += found
        return failures

    # -- stage 5

    def references(self) -> list[Detail]:
        failures: list[Detail] = []
        for index, change in enumerate(self._request.changes):
            requested = () if isinstance(change, model.Retire) else change.slots
            if isinstance(requested, model.Keep) or isinstance(change, model.Retire):
                self._slots.append(_known(self._heads[index]).clear.slots)
            else:
                resolved = [self._slot(slot, f"{change.path}.slots[{n}]", failures) for n, slot in enumerate(requested)]
                self._slots.append(tuple(resolved))
            self._origins.append(self._resolve_origins(change, failures))
            failures += self._foreign_inputs(index, change)
        return failures + check_includes(self._request)

    def _slot(self, slot: model.SlotRequest, path: str, failures: list[Detail]) -> Slot:
        target = self.atom(slot.target)
        if target not in self._new and self._view.head_anywhere(self._partition, target) is None:
            failures.append(_unconfirmed(f"{path}.target", "atom", target))
        at = None if slot.at is None else self._revision(slot.at, target, f"{path}.revision", failures)
        return Slot(
            role=slot.role,
            target=target,
            at=at,
            include=slot.include,
            required=slot.required,
            order_key=slot.order_key,
        )

    def _revision(self, ref: model.RevisionRef, atom: bytes, path: str, failures: list[Detail]) -> bytes:
        """The revision that pins `atom`: one of this batch, or an accepted one of that very atom."""
        if isinstance(ref, model.Alias):
            index = self._aliases[ref.name]
            if self.atom(ref) != atom:
                failures.append(detail(path, "INVALID_INPUT", f"{ref.name} is another atom than the target"))
            return self._prepared.assigned[index].revision
        place = self._view.revision(self._partition, ref)
        if place is None:
            failures.append(_unconfirmed(path, "revision", ref))
        elif place.atom != atom:
            message = f"revision {format_id(ref)} is one of atom {format_id(place.atom)}, not of {format_id(atom)}"
            failures.append(detail(path, "INVALID_INPUT", message))
        return ref

    def _resolve_origins(self, change: model.Change, failures: list[Detail]) -> tuple[Origin, ...]:
        if isinstance(change, model.Retire):
            return ()
        resolved: list[Origin] = []
        for n, origin in enumerate(change.origins):
            path = f"{change.path}.origins[{n}]"
            before = len(failures)
            source = self.atom(origin.source)
            revision = self._revision(origin.revision, source, f"{path}.revision", failures)
            if len(failures) > before:
                continue
            if not isinstance(origin.revision, model.Alias) and revision not in self._prepared.texts:
                failures.append(_unconfirmed(f"{path}.revision", "revision", revision))
                continue
            text = self._source_text(origin.revision, revision)
            problem = "the source revision has no text" if text is None else check_span(text, origin.start, origin.end)
            if text is None or problem is not None:
                failures.append(detail(path, "INVALID_INPUT", str(problem)))
                continue
            digest = hashlib.sha256(text[origin.start : origin.end]).digest()
            resolved.append(Origin(source=source, revision=revision, start=origin.start, end=origin.end, sha256=digest))
        return tuple(resolved)

    def _source_text(self, ref: model.RevisionRef, revision: bytes) -> bytes | None:
        if not isinstance(ref, model.Alias):
            return self._prepared.texts[revision]
        index = self._aliases[ref.name]
        change = self._request.changes[index]
        if isinstance(change, model.Retire):
            return None
        schema = change.schema if isinstance(change, model.Create) else _known(self._heads[index]).clear.schema
        text = text_of(schema, change.value)
        return None if text is None else nfc_bytes(text)

    def _foreign_inputs(self, index: int, change: model.Change) -> list[Detail]:
        """A derived atom stays inside the policy of everything it was made from, read or cited."""
        if isinstance(change, model.Retire):
            return []
        policy = self._policy(index, change)
        read = self._prepared.inputs.get(change.path, NO_INPUTS).versions
        made_from = [(f"{change.path}.provenance.receipts", version.atom) for version in read]
        made_from += [(f"{change.path}.origins[{n}]", self.atom(one.source)) for n, one in enumerate(change.origins)]
        failures: list[Detail] = []
        for path, atom in made_from:
            found = self._policy_of(atom)
            if found is not None and found != policy:
                message = f"it was made from an atom under policy {found}, and is to be under {policy}"
                failures.append(detail(path, "ACCESS_DENIED", message, atom=format_id(atom)))
        return failures

    def _policy_of(self, atom: bytes) -> str | None:
        index = self._new.get(atom)
        if index is not None:
            return self._policy(index, self._request.changes[index])
        head = self._view.head_anywhere(self._partition, atom)
        return None if head is None else head.clear.policy

    def _policy(self, index: int, change: model.Change) -> str:
        return change.policy if isinstance(change, model.Create) else _known(self._heads[index]).clear.policy

    # -- stage 6

    def heads(self) -> list[Detail]:
        failures: list[Detail] = []
        for atom, head, change in zip(self._atoms, self._heads, self._request.changes, strict=True):
            expected = None if isinstance(change, model.Create) else change.expected
            current = None if head is None else head.clear.revision_id
            if expected != current:
                failures.append(_conflict(change, atom, expected, current))
            elif isinstance(change, model.Retire) and head is not None and head.clear.retired:
                failures.append(detail(f"{change.path}.atom", "INVALID_INPUT", "the atom is retired already"))
        return failures

    def preconditions(self) -> list[Detail]:
        failures: list[Detail] = []
        for guard in self._request.preconditions:
            failures += self._guard(guard)
        return failures

    def _guard(self, guard: model.Precondition) -> list[Detail]:
        if isinstance(guard, model.RangeUnchanged):
            changed = self._view.range_changed(
                self._partition, self._request.space, guard.role, self.atom(guard.target)
            )
            return self._since(guard.path, "unchanged_since", guard.unchanged_since, changed, "the range")
        if isinstance(guard, model.ScopeUnchanged):
            changed = self._view.scope_changed(self._partition, self._request.space, guard.schema)
            return self._since(guard.path, "unchanged_since", guard.unchanged_since, changed, "the scope")
        atom = self.atom(guard.atom)
        head = self._view.head(self._partition, atom)
        current = None if head is None else head.clear.revision_id
        if isinstance(guard, model.HeadUnchanged) and isinstance(guard.since, int):
            return self._since(guard.path, "since", guard.since, -1 if head is None else head.position, "the head")
        wanted = None
        if isinstance(guard, model.HeadIs):
            wanted = guard.revision
        elif isinstance(guard, model.HeadUnchanged):
            assert isinstance(guard.since, bytes)
            wanted = guard.since
        if current == wanted:
            return []
        message = f"the head of {format_id(atom)} is {_shown(current)}, not {_shown(wanted)}"
        found = {"atom": format_id(atom), "expected": _text(wanted), "head": _text(current)}
        return [detail(guard.path, "PRECONDITION_FAILED", message, **found)]

    def _since(self, path: str, field: str, since: int, changed: int, what: str) -> list[Detail]:
        applied = self._view.place(self._partition).checkpoint.position - 1
        if since > applied:
            message = f"position {since} is after the last one, {applied}; give a position that was read"
            return [detail(f"{path}.{field}", "INVALID_INPUT", message)]
        if changed <= since:
            return []
        shown = {"unchanged_since": since} | ({"changed": changed} if changed <= applied else {})
        return [detail(path, "PRECONDITION_FAILED", f"{what} has changed after position {since}", **shown)]

    # -- accepted

    def plan(self) -> tuple[PlannedRevision, ...]:
        return tuple(self._planned(index, change) for index, change in enumerate(self._request.changes))

    def _planned(self, index: int, change: model.Change) -> PlannedRevision:
        head = self._heads[index]
        clear = None if head is None else head.clear
        retire = isinstance(change, model.Retire)
        schema = change.schema if isinstance(change, model.Create) else _known(head).clear.schema
        kept = None if clear is None else clear.valid_time
        wanted = kept if isinstance(change, model.Retire) else change.valid_time
        return PlannedRevision(
            atom_id=self._atoms[index],
            revision_id=self._prepared.assigned[index].revision,
            previous=None if clear is None else clear.revision_id,
            key_id=None if clear is None else clear.key_id,
            retired=retire,
            schema=schema,
            policy=self._policy(index, change),
            valid_time=kept if isinstance(wanted, model.Keep) else wanted,
            slots=self._slots[index],
            inputs=self._prepared.inputs.get(change.path, NO_INPUTS),
            value=None if isinstance(change, model.Retire) else change.value,
            origins=self._origins[index],
            provenance_kind=self._kinds[index],
            provenance=_RETIRED_KIND if isinstance(change, model.Retire) else change.provenance,
            vectors=() if isinstance(change, model.Retire) else change.vectors,
        )


def _known(head: Head | None) -> Head:
    """The head of a change that `locate` has found."""
    assert head is not None
    return head


def _conflict(change: model.Change, atom: bytes, expected: bytes | None, head: bytes | None) -> Detail:
    part = "key" if isinstance(change, model.Create) else "expected"
    found = {"atom": format_id(atom), "expected": _text(expected), "head": _text(head)}
    message = f"the head is {_shown(head)}, expected was {_shown(expected)}"
    return detail(f"{change.path}.{part}", "REVISION_CONFLICT", message, **found)


def _unconfirmed(path: str, what: str, raw: bytes) -> Detail:
    """Absent, unreadable and unconfirmed look alike: a reference is no way to find out what exists."""
    message = f"{what} {format_id(raw)} is not known here, or not visible to you"
    return detail(path, "REFERENCE_UNAVAILABLE", message, **{what: format_id(raw)})


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else format_id(raw)


def _shown(raw: bytes | None) -> str:
    return "none" if raw is None else format_id(raw)
