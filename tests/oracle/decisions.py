"""Which parts of a write must fail at a position, worked out from `brute_model` and the request as it was sent.

Only heads and preconditions are looked at: the stage of a decision that depends on what others wrote.
"""

from collections.abc import Mapping
from typing import Any

from tests.oracle.brute_model import Model
from tests.oracle.readers import keyed_id

Raw = Mapping[str, Any]
Failures = dict[str, str]  # path of a change or of a precondition → code


def raw_id(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def atom_of(ref: str, space: str) -> bytes:
    """The atom of `key:NAME` or of a UUID."""
    return keyed_id(space, space, ref[4:]) if ref.startswith("key:") else raw_id(ref)


def failures(model: Model, batch: Raw, partition: int, before: int) -> Failures:
    """What keeps a batch from being accepted right after the record at `before`."""
    at, space = {partition: before}, batch["space"]
    found: Failures = {}
    for n, change in enumerate(batch["changes"]):
        code = _change(model, change, space, at)
        if code is not None:
            found[f"changes[{n}]"] = code
    for n, guard in enumerate(batch.get("preconditions", ())):
        if not _holds(model, guard, space, partition, before):
            found[f"preconditions[{n}]"] = "PRECONDITION_FAILED"
    return found


def _change(model: Model, change: Raw, space: str, at: Mapping[int, int]) -> str | None:
    if change["op"] == "create" and "key" not in change:
        return None
    ref = f"key:{change['key']}" if change["op"] == "create" else change["atom"]
    head = model.head(atom_of(ref, space), at)
    expected = raw_id(change["expected"]) if "expected" in change else None
    if (None if head is None else head.revision) != expected:
        return "REVISION_CONFLICT"
    if change["op"] == "retire" and head is not None and head.retired:
        return "INVALID_INPUT"
    return None


def _holds(model: Model, guard: Raw, space: str, partition: int, before: int) -> bool:
    if guard["type"] == "range":
        target = atom_of(guard["target"], space)
        return bool(model.last_change(guard["role"], target, partition, before, space) <= guard["unchanged_since"])
    if guard["type"] == "scope":
        return bool(model.last_of_schema(guard["schema"], space, {partition: before}) <= guard["unchanged_since"])
    head = model.head(atom_of(guard["atom"], space), {partition: before})
    if guard["type"] == "absent":
        return head is None
    if guard["type"] == "head":
        return head is not None and head.revision == raw_id(guard["revision"])
    since = guard["since"]
    if isinstance(since, int):
        return head is None or head.position <= since
    return head is not None and head.revision == raw_id(since)
