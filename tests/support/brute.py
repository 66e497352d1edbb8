"""What a store must answer, by the batches that were sent and the results that came back, not by its log.

`tests.oracle.brute_model` does the scanning; here it is filled from requests, with ids as they stand in JSON. Rows are
dicts of what a page must say of them: atom, revision, schema, state, value, status, slots with what they meant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.brute_model import Model, Slot, Version

Row = dict[str, Any]
Positions = Mapping[int, int]
SHOWN = ("atom", "revision", "schema", "state", "value", "status")


@dataclass
class Brute:
    """Every version of every atom, oldest first."""

    model: Model = field(default_factory=Model)

    @property
    def versions(self) -> dict[str, list[Version]]:
        return self.model.versions

    def record(self, batch: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """An accepted batch, with its result."""
        receipt = result["receipt"]
        aliases = {made["as"]: made for made in result["results"] if "as" in made}
        for change, made in zip(batch["changes"], result["results"], strict=True):
            known = self.versions.get(made["atom"])
            before = known[-1] if known else None
            slots = before.slots if before is not None else ()
            if change.get("slots") is not None:
                slots = tuple(_slot(slot, aliases) for slot in change["slots"])
            self.model.add(
                partition=receipt["partition"],
                position=receipt["position"],
                space=receipt["space"],
                atom=made["atom"],
                revision=made["revision"],
                previous=change.get("expected"),
                schema=change["schema"] if before is None else before.schema,
                retired=change["op"] == "retire",
                value=None if change["op"] == "retire" else change.get("value"),
                slots=slots,
            )

    def at(self, positions: Positions) -> "State":
        return State(model=self.model, positions=positions)


@dataclass(frozen=True, kw_only=True)
class State:
    """The store as of one position of each partition."""

    model: Model
    positions: Positions

    @property
    def heads(self) -> Mapping[str, Version]:
        """Every atom that exists, retired ones too."""
        return {head.atom: head for head in self.model.heads(self.positions)}

    def ids(self, atoms: Sequence[str]) -> list[Row]:
        return [self._row(head) for atom in atoms if (head := self.model.head(atom, self.positions))]

    def history(self, atom: str) -> list[Row]:
        return [self._row(version) for version in self.model.history(atom, self.positions)]

    def relations(self, target: str, role: str | None = None) -> list[Row]:
        """Active atoms with such a slot, once a role, by role, birth of the first such slot, atom."""
        return self.ids([atom for atom, _ in self.model.relation_rows(target, role, self.positions)])

    def slots(self, atom: str) -> list[Row]:
        """What an atom refers to, in the order of its slots."""
        head = self.model.head(atom, self.positions)
        meant = [self._target(slot) for slot in head.current_slots] if head is not None else []
        return [self._row(version) for version in meant if version is not None]

    def groups(self, member: str) -> list[Row]:
        """Each group once, by the birth of the first membership, then by the membership's id."""
        return self.ids(self.model.group_rows(member, self.positions))

    def members(self, group: str, **sets: Any) -> list[Row]:
        """(group ∪ or_…) ∩ and_… ∖ not_…, each once an order key, by order key and atom."""
        return self.ids([member for member, _, _ in self.model.member_rows(group, self.positions, **sets)])

    def answer(self, selector: Mapping[str, Any]) -> list[Row]:
        """The rows of a selector whose atoms are given as UUIDs."""
        answers: Mapping[str, Callable[[], list[Row]]] = {
            "ids": lambda: self.ids(selector["ids"]),
            "history": lambda: self.history(selector["atom"]),
            "relations": lambda: self.relations(selector["target"], selector.get("role")),
            "slots": lambda: self.slots(selector["atom"]),
            "groups": lambda: self.groups(selector["member"]),
            "members": lambda: self.members(
                selector["group"],
                and_=selector.get("and", ()),
                or_=selector.get("or", ()),
                not_=selector.get("not", ()),
                include_retired=selector.get("include_retired", False),
            ),
        }
        return answers[selector["type"]]()

    def _target(self, slot: Slot) -> Version | None:
        """The version that a slot means; None where nothing is there."""
        if slot.at is None:
            return self.model.head(slot.target, self.positions)
        seen = self.model.history(slot.target, self.positions)
        return next((version for version in seen if version.revision == slot.at), None)

    def _row(self, version: Version) -> Row:
        head = self.model.head(version.atom, self.positions)
        status = "superseded" if head is not version else "retired" if version.retired else "current"
        return {
            "atom": version.atom,
            "revision": version.revision,
            "schema": version.schema,
            "state": "retired" if version.retired else "active",
            "value": version.value,
            "status": status,
            "slots": [(slot.role, slot.target, self._meaning(slot)) for slot in version.slots],
        }

    def _meaning(self, slot: Slot) -> str | None:
        if slot.at is not None:
            return str(slot.at)
        head = self.model.head(slot.target, self.positions)
        return None if head is None else str(head.revision)


def shown(row: Mapping[str, Any]) -> Row:
    """A page's row, as far as `State` says what it must be."""
    slots = [(slot["role"], slot["target"], slot["resolved"]) for slot in row["slots"]]
    return {**{name: row[name] for name in SHOWN}, "slots": slots}


def _slot(slot: Mapping[str, Any], aliases: Mapping[str, Mapping[str, Any]]) -> Slot:
    target, revision = slot["target"], slot.get("revision")
    include = slot.get("mode") == "include"
    if include and revision is None:
        revision = target
    return Slot(
        role=slot["role"],
        target=aliases[target]["atom"] if target in aliases else target,
        at=aliases[revision]["revision"] if revision is not None and revision in aliases else revision,
        include=include,
        required=slot.get("required", False),
        order_key=slot.get("order_key", "").encode(),
    )
