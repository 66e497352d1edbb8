"""References of a request: the atoms and revisions that slots point at, and the spans that origins cite."""

import hashlib

from atomlog.kernel import model
from atomlog.kernel.case import Case
from atomlog.kernel.errors import Detail
from atomlog.kernel.findings import detail
from atomlog.kernel.ids import format_id
from atomlog.kernel.text import check_span, nfc_bytes, text_of
from atomlog.schemas.content import Origin
from atomlog.schemas.revision import NO_INPUTS, Slot


class References:
    """`resolve` fills `slots` and `origins`, per change."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.slots: list[tuple[Slot, ...]] = []
        self.origins: list[tuple[Origin, ...]] = []

    def resolve(self) -> list[Detail]:
        """What cannot be confirmed, does not fit, or would take an atom out of the policy it was made from."""
        failures: list[Detail] = []
        for index, change in enumerate(self._case.request.changes):
            if isinstance(change, model.Create) and model.refers_to_nothing(change):
                self.slots.append(())
                self.origins.append(())
                continue
            self.slots.append(self._slots(index, change, failures))
            self.origins.append(self._resolve_origins(change, failures))
            failures += self._foreign_inputs(index, change)
        return failures

    def _slots(self, index: int, change: model.Change, failures: list[Detail]) -> tuple[Slot, ...]:
        if isinstance(change, model.Retire) or isinstance(change.slots, model.Keep):
            return self._case.head(index).clear.slots
        path = f"{change.path}.slots"
        return tuple([self._slot(slot, f"{path}[{n}]", failures) for n, slot in enumerate(change.slots)])

    def _slot(self, slot: model.SlotRequest, path: str, failures: list[Detail]) -> Slot:
        target = self._case.atom(slot.target)
        if target not in self._case.new and self._case.view.head_anywhere(self._case.partition, target) is None:
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
            index = self._case.aliases[ref.name]
            if self._case.atom(ref) != atom:
                failures.append(detail(path, "INVALID_INPUT", f"{ref.name} is another atom than the target"))
            return self._case.prepared.assigned[index].revision
        place = self._case.view.revision(self._case.partition, ref)
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
            source = self._case.atom(origin.source)
            revision = self._revision(origin.revision, source, f"{path}.revision", failures)
            if len(failures) > before:
                continue
            if not isinstance(origin.revision, model.Alias) and revision not in self._case.prepared.texts:
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
            return self._case.prepared.texts[revision]
        index = self._case.aliases[ref.name]
        change = self._case.request.changes[index]
        if isinstance(change, model.Retire):
            return None
        text = text_of(change.value)
        return None if text is None else nfc_bytes(text)

    def _foreign_inputs(self, index: int, change: model.Change) -> list[Detail]:
        """A derived atom stays inside the policy of everything it was made from, read or cited."""
        if isinstance(change, model.Retire):
            return []
        policy = self._case.policy(index)
        read = self._case.prepared.inputs.get(change.path, NO_INPUTS).versions
        made_from = [(f"{change.path}.provenance.receipts", version.atom) for version in read]
        made_from += [
            (f"{change.path}.origins[{n}]", self._case.atom(one.source)) for n, one in enumerate(change.origins)
        ]
        failures: list[Detail] = []
        for path, atom in made_from:
            found = self._case.policy_of(atom)
            if found is not None and found != policy:
                message = f"it was made from an atom under policy {found}, and is to be under {policy}"
                failures.append(detail(path, "ACCESS_DENIED", message, atom=format_id(atom)))
        return failures


def _unconfirmed(path: str, what: str, raw: bytes) -> Detail:
    """Absent, unreadable and unconfirmed look alike: a reference is no way to find out what exists."""
    message = f"{what} {format_id(raw)} is not known here, or not visible to you"
    return detail(path, "REFERENCE_UNAVAILABLE", message, **{what: format_id(raw)})
