"""What one revision does to the relation index.

A slot that a revision leaves as it was keeps its row. Rows of a retired atom are closed; a revise opens them again.
"""

from collections.abc import Collection

from atomlog.kernel.kv import Staged, u64
from atomlog.projections.relations.layout import (
    INVERTED,
    STATE,
    STATE_BEFORE,
    AtomState,
    created_rows,
    is_unchanged,
    open_rows,
    pack_state,
    unpack_state,
)
from atomlog.projections.slices import RevisionParts, SlotParts, is_retired, slice_revision
from atomlog.schemas.revision import ATOM, PREVIOUS, REVISION, ZERO16


def stage_revision(partition: bytes, revision: bytes, position: int, staged: Staged) -> Collection[bytes]:
    """Stage the rows of a revision; the ranges (target ‖ role 00) that it touched without opening a row."""
    parts = _, _, slots, encoded, _ = slice_revision(revision)
    key = STATE + partition + revision[ATOM]
    raw = None if revision[PREVIOUS] == ZERO16 else staged.get(key)
    if raw is None:
        return _stage_created(partition, key, revision, parts, position, staged)
    if is_unchanged(raw, encoded) and not is_retired(revision):
        return _ranges(slots)
    return _stage_changed(partition, key, raw, revision, parts, position, staged)


def _stage_created(
    partition: bytes, key: bytes, revision: bytes, parts: RevisionParts, position: int, staged: Staged
) -> Collection[bytes]:
    if is_retired(revision):
        new = _next_state(None, revision, parts, position)
        staged.insert(key, pack_state(new))
        return _ranges(new.slots)
    staged.insert_all(created_rows(partition, key, revision, parts, u64(position)))
    return ()


def _stage_changed(
    partition: bytes, key: bytes, raw: bytes, revision: bytes, parts: RevisionParts, position: int, staged: Staged
) -> set[bytes]:
    atom = revision[ATOM]
    old = unpack_state(raw)
    new = _next_state(old, revision, parts, position)
    if new != old:
        _stage_rows(open_rows(partition, atom, old), open_rows(partition, atom, new), position, staged)
        staged.put(key, pack_state(new))
        staged.insert(STATE_BEFORE + partition + atom + u64(INVERTED - old.since), raw)
    return _ranges(old.slots) | _ranges(new.slots) - _opened(new, position)


def _next_state(old: AtomState | None, revision: bytes, parts: RevisionParts, position: int) -> AtomState:
    """The state after a revision: slots that stay as they were keep their birth."""
    schema, _, slots, encoded, _ = parts
    retired = is_retired(revision)
    births = [u64(position) + revision[REVISION]] * len(slots)
    if old is None:
        return AtomState(position, position, retired, births, schema, slots, encoded)
    if not retired and not old.retired and schema == old.schema:
        for index, (before, slot) in enumerate(zip(old.slots, slots, strict=False)):
            if before == slot:
                births[index] = old.births[index]
        if births == old.births and slots == old.slots:
            return old
    return AtomState(old.created, position, retired, births, schema, slots, encoded)


def _stage_rows(old: dict[bytes, bytes], new: dict[bytes, bytes], position: int, staged: Staged) -> None:
    died = u64(position)
    staged.insert_all([(key, value) for key, value in new.items() if key not in old])
    staged.put_all([(key, died + value[8:]) for key, value in old.items() if key not in new])


def _ranges(slots: list[SlotParts]) -> set[bytes]:
    return {target + role + b"\x00" for role, target, _ in slots}


def _opened(state: AtomState, position: int) -> set[bytes]:
    """The ranges that have a row born at this position."""
    if state.retired:
        return set()
    born = u64(position)
    return _ranges([slot for birth, slot in zip(state.births, state.slots, strict=True) if birth[:8] == born])
