"""What concerns several parts of one batch: an atom is changed once, a pin fits its atom, all is in one space."""

from collections.abc import Mapping, Sequence
from typing import Any

from atomlog.kernel.errors import Detail
from atomlog.kernel.findings import Findings, detail, one_error
from atomlog.kernel.ids import keyed_id, shown
from atomlog.kernel.model import (
    Alias,
    AtomRef,
    Change,
    Create,
    Handle,
    Keep,
    Retire,
    Revise,
    RevisionRef,
    refers_to_nothing,
)
from atomlog.kernel.references import named_space
from atomlog.schemas.revision import ZERO16


def check_whole(changes: Sequence[Change | None], space: str, findings: Findings) -> None:
    """Adds what several changes together make wrong; a change that could not be read is None."""
    if all(isinstance(change, Create) and change.key is None and refers_to_nothing(change) for change in changes):
        return  # new atoms that nobody can name
    identities = _Identities(changes, space)
    _check_once(changes, identities, findings)
    _check_pins(changes, identities, findings)


class _Identities:
    """Which atom each change and each reference stands for, as far as the batch alone can tell."""

    def __init__(self, changes: Sequence[Change | None], space: str) -> None:
        self._space = space
        self._by_alias = {change.alias: change for change in changes if change is not None and change.alias}

    def of(self, ref: AtomRef | RevisionRef | Change) -> object | None:
        """Equal for the same atom; None when only the store can tell."""
        if isinstance(ref, Alias):
            change = self._by_alias.get(ref.name)
            return None if change is None else self.of(change)
        if isinstance(ref, Create):
            return ref.path if ref.key is None else keyed_id(self._space, ref.policy, ref.key)
        if isinstance(ref, Revise | Retire):
            return self.of(ref.atom) if not isinstance(ref.atom, Alias) else None
        return None if ref == ZERO16 else ref


def _check_once(changes: Sequence[Change | None], identities: _Identities, findings: Findings) -> None:
    """At most one change an atom."""
    seen: dict[object, str] = {}
    for change in changes:
        if change is None:
            continue
        part = "key" if isinstance(change, Create) else "atom"
        if not isinstance(change, Create) and isinstance(change.atom, Alias):
            message = f"{shown(change.atom.name)} stands for an atom that another change of the batch makes or changes"
            findings.add(f"{change.path}.atom", f"{message}; a batch changes an atom once")
            continue
        atom = identities.of(change)
        if atom is None:
            continue
        if atom in seen:
            findings.add(
                f"{change.path}.{part}", f"{seen[atom]} changes this atom already; a batch changes an atom once"
            )
        else:
            seen[atom] = change.path


def _check_pins(changes: Sequence[Change | None], identities: _Identities, findings: Findings) -> None:
    """An alias that fixes a revision stands for the atom that is referred to."""
    for change in changes:
        if change is None or isinstance(change, Retire):
            continue
        slots = () if isinstance(change.slots, Keep) else change.slots
        pins = [(f"{change.path}.slots[{n}]", slot.target, slot.at) for n, slot in enumerate(slots)]
        pins += [
            (f"{change.path}.origins[{n}]", origin.source, origin.revision) for n, origin in enumerate(change.origins)
        ]
        for path, target, revision in pins:
            if not isinstance(revision, Alias) or revision == target:
                continue
            wanted, found = identities.of(target), identities.of(revision)
            told = not any(atom is None or isinstance(atom, Handle) for atom in (wanted, found))
            if told and wanted != found:
                findings.add(f"{path}.revision", f"{shown(revision.name)} stands for a revision of another atom")


def check_spaces(batch: Mapping[str, Any], space: str) -> None:
    """A batch is atomic, and its guards hold, inside one space."""
    foreign: list[Detail] = []
    for n, change in enumerate(batch["changes"]):
        for part, named in ((".space", change.get("space")), (".atom", named_space(change.get("atom")))):
            if named is not None and named != space:
                message = f"this is for space {named}, the batch for {space}; write a batch for each space"
                foreign.append(detail(f"changes[{n}]{part}", "ATOMICITY_UNAVAILABLE", message))
    if not foreign:
        for n, guard in enumerate(batch.get("preconditions") or ()):
            named = named_space(guard.get("atom"))
            if named is not None and named != space:
                message = f"the atom is in space {named}; a guard can only name atoms of the batch's own space, {space}"
                foreign.append(detail(f"preconditions[{n}].atom", "CONSISTENCY_UNAVAILABLE", message))
    if foreign:
        raise one_error(foreign)
