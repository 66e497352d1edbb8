"""The decision on one write: pure, against heads ⊕ overlay. Nothing here waits, draws or appends.

What a decision needs beyond the heads, and never changes once known (texts of source revisions, what receipts
read, drawn ids), is gathered before in `plan.Prepared`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from atomlog.kernel import model
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.case import Case
from atomlog.kernel.checks import check_bounds, check_includes, check_vectors
from atomlog.kernel.errors import AtomlogError, Detail, fail
from atomlog.kernel.findings import detail
from atomlog.kernel.guards import check_heads, check_preconditions
from atomlog.kernel.heads import Accepted, HeadView
from atomlog.kernel.plan import Decision, Duplicate, Plan, PlannedRevision, Prepared, Refused, Rules
from atomlog.kernel.profiles import ProfileCase, check_profile
from atomlog.kernel.resolve import References
from atomlog.schemas.revision import NO_INPUTS, Slot

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
    case = Case(view, partition, prepared)
    if failures := [*prepared.failures, *case.locate()]:
        return _refuse(failures)
    # 4. Profiles.
    kinds, failures = _profiles(case, rules)
    if failures:
        return _refuse(failures)
    # 5. References, spans, and that includes form no cycle.
    references = References(case)
    if failures := references.resolve() + check_includes(request):
        return _refuse(failures)
    # 6. Heads and preconditions.
    if failures := check_heads(case) + check_preconditions(case):
        return _refuse(failures)
    return Plan(tuple([_planned(case, references, kinds, index) for index in range(len(request.changes))]))


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


def _profiles(case: Case, rules: Rules) -> tuple[list[str], list[Detail]]:
    """The kind of provenance of each change, and what keeps one from being what its schema says."""
    rights = rules.rights if case.request.rights is None else case.request.rights
    kinds: list[str] = []
    failures: list[Detail] = []
    for index, change in enumerate(case.request.changes):
        if isinstance(change, model.Retire):
            kinds.append("source" if "mark-source" in rights else "generated")
            continue
        slots: Sequence[model.SlotRequest | Slot]
        slots = case.head(index).clear.slots if isinstance(change.slots, model.Keep) else change.slots
        profile = ProfileCase(
            path=change.path,
            schema=case.schema(index),
            value=change.value,
            slots=tuple((slot.role, slot.include, slot.at is not None) for slot in slots),
            origins=len(change.origins),
            receipts=len(change.provenance.receipts),
            kind=change.provenance.kind,
        )
        kind, found = check_profile(profile, rights=rights, strict=rules.strict)
        kinds.append(kind)
        failures += found
    return kinds, failures


def _planned(case: Case, references: References, kinds: Sequence[str], index: int) -> PlannedRevision:
    change, head = case.request.changes[index], case.heads[index]
    clear = None if head is None else head.clear
    retire = isinstance(change, model.Retire)
    kept = None if clear is None else clear.valid_time
    wanted = kept if isinstance(change, model.Retire) else change.valid_time
    return PlannedRevision(
        atom_id=case.atoms[index],
        revision_id=case.prepared.assigned[index].revision,
        previous=None if clear is None else clear.revision_id,
        key_id=None if clear is None else clear.key_id,
        retired=retire,
        schema=case.schema(index),
        policy=case.policy(index),
        valid_time=kept if isinstance(wanted, model.Keep) else wanted,
        slots=references.slots[index],
        inputs=case.prepared.inputs.get(change.path, NO_INPUTS),
        value=None if isinstance(change, model.Retire) else change.value,
        origins=references.origins[index],
        provenance_kind=kinds[index],
        provenance=_RETIRED_KIND if isinstance(change, model.Retire) else change.provenance,
        vectors=() if isinstance(change, model.Retire) else change.vectors,
        former=() if clear is None else clear.slots,
    )
