"""Whether a write's expectations hold: the heads that its changes expect, and its preconditions."""

from atomlog.kernel import model
from atomlog.kernel.case import Case
from atomlog.kernel.errors import Detail
from atomlog.kernel.findings import detail
from atomlog.kernel.ids import format_id


def check_heads(case: Case) -> list[Detail]:
    """Changes whose expected revision is not the head, and retirements of what is retired."""
    failures: list[Detail] = []
    for atom, head, change in zip(case.atoms, case.heads, case.request.changes, strict=True):
        expected = None if isinstance(change, model.Create) else change.expected
        current = None if head is None else head.clear.revision_id
        if expected != current:
            failures.append(_conflict(change, atom, expected, current))
        elif isinstance(change, model.Retire) and head is not None and head.clear.retired:
            failures.append(detail(f"{change.path}.atom", "INVALID_INPUT", "the atom is retired already"))
    return failures


def check_preconditions(case: Case) -> list[Detail]:
    """Preconditions that do not hold. The batch's own changes do not count."""
    return [failure for guard in case.request.preconditions for failure in _guard(case, guard)]


def _guard(case: Case, guard: model.Precondition) -> list[Detail]:
    if isinstance(guard, model.RangeUnchanged):
        changed = case.view.range_changed(case.partition, case.request.space, guard.role, case.atom(guard.target))
        return _since(case, guard.path, "unchanged_since", guard.unchanged_since, changed, "the range")
    if isinstance(guard, model.ScopeUnchanged):
        changed = case.view.scope_changed(case.partition, case.request.space, guard.schema)
        return _since(case, guard.path, "unchanged_since", guard.unchanged_since, changed, "the scope")
    atom = case.atom(guard.atom)
    head = case.view.head(case.partition, atom)
    current = None if head is None else head.clear.revision_id
    if isinstance(guard, model.HeadUnchanged) and isinstance(guard.since, int):
        return _since(case, guard.path, "since", guard.since, -1 if head is None else head.position, "the head")
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


def _since(case: Case, path: str, field: str, since: int, changed: int, what: str) -> list[Detail]:
    applied = case.view.place(case.partition).checkpoint.position - 1
    if since > applied:
        message = f"position {since} is after the last one, {applied}; give a position that was read"
        return [detail(f"{path}.{field}", "INVALID_INPUT", message)]
    if changed <= since:
        return []
    shown = {"unchanged_since": since} | ({"changed": changed} if changed <= applied else {})
    return [detail(path, "PRECONDITION_FAILED", f"{what} has changed after position {since}", **shown)]


def _conflict(change: model.Change, atom: bytes, expected: bytes | None, head: bytes | None) -> Detail:
    part = "key" if isinstance(change, model.Create) else "expected"
    found = {"atom": format_id(atom), "expected": _text(expected), "head": _text(head)}
    message = f"the head is {_shown(head)}, expected was {_shown(expected)}"
    return detail(f"{change.path}.{part}", "REVISION_CONFLICT", message, **found)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else format_id(raw)


def _shown(raw: bytes | None) -> str:
    return "none" if raw is None else format_id(raw)
