"""What a store must answer, worked out the slow way from the batches that were sent and the results that came back.

Nothing here is shared with the indexes: every question is answered by looking at every atom. Rows are dicts of what
a page must say of them: atom, revision, schema, state, value, status, slots with what they meant.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Row = dict[str, Any]
Positions = Mapping[int, int]
STATES_KEPT = 4
SHOWN = ("atom", "revision", "schema", "state", "value", "status")


@dataclass(frozen=True, kw_only=True)
class Slot:
    role: str
    target: str
    revision: str | None
    include: bool
    required: bool
    order_key: str

    @property
    def order(self) -> bytes:
        return self.order_key.encode()


@dataclass(frozen=True, kw_only=True)
class Version:
    """One revision. `births`: since which position of its partition each slot has stood as it is."""

    partition: int
    position: int
    atom: str
    revision: str
    schema: str
    retired: bool
    value: Any
    slots: tuple[Slot, ...]
    births: tuple[int, ...]

    @property
    def open_slots(self) -> tuple[Slot, ...]:
        return () if self.retired else self.slots


@dataclass(frozen=True, kw_only=True)
class Membership:
    version: Version
    group: str
    member: str
    order: bytes
    born: int


@dataclass
class Brute:
    """Every version of every atom, oldest first."""

    versions: dict[str, list[Version]] = field(default_factory=dict)
    _states: "dict[tuple[tuple[int, int], ...], State]" = field(default_factory=dict)

    def record(self, batch: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """An accepted batch, with its result."""
        where = result["receipt"]["partition"], result["receipt"]["position"]
        self._states = {at: state for at, state in self._states.items() if not state.has_seen(*where)}
        aliases = {made["as"]: made for made in result["results"] if "as" in made}
        for change, made in zip(batch["changes"], result["results"], strict=True):
            known = self.versions.setdefault(made["atom"], [])
            known.append(_version(change, made, aliases, where, known[-1] if known else None))

    def at(self, positions: Positions) -> "State":
        """The state as of these positions; the last few are remembered."""
        key = tuple(sorted(positions.items()))
        if key not in self._states:
            self._states = dict(list(self._states.items())[-STATES_KEPT:])
            self._states[key] = self._state(positions)
        return self._states[key]

    def _state(self, positions: Positions) -> "State":
        heads = {}
        for atom, versions in self.versions.items():
            seen = [one for one in versions if one.position <= positions.get(one.partition, -1)]
            if seen:
                heads[atom] = seen[-1]
        return State(brute=self, positions=positions, heads=heads)

    def revision(self, atom: str, revision: str) -> Version:
        return next(one for one in self.versions[atom] if one.revision == revision)


@dataclass(frozen=True, kw_only=True)
class State:
    """The store as of one position of each partition. `heads` has every atom that exists, retired ones too."""

    brute: Brute
    positions: Positions
    heads: Mapping[str, Version]

    def has_seen(self, partition: int, position: int) -> bool:
        return self.positions.get(partition, -1) >= position

    def ids(self, atoms: Sequence[str]) -> list[Row]:
        return [self._row(self.heads[atom]) for atom in atoms if atom in self.heads]

    def history(self, atom: str) -> list[Row]:
        seen = [one for one in self.brute.versions[atom] if one.position <= self.positions.get(one.partition, -1)]
        return [self._row(version) for version in seen]

    def relations(self, target: str, role: str | None = None) -> list[Row]:
        """Active atoms with such a slot, once a role, by role, birth of the first such slot, atom."""
        found: dict[tuple[str, str], tuple[str, int, str]] = {}
        for atom, head in self.heads.items():
            for slot, born in zip(head.open_slots, head.births, strict=False):
                if slot.target == target and role in (None, slot.role):
                    place = (slot.role, born, atom)
                    found[slot.role, atom] = min(found.get((slot.role, atom), place), place)
        return [self._row(self.heads[atom]) for _, _, atom in sorted(found.values())]

    def slots(self, atom: str) -> list[Row]:
        """What an atom refers to, in the order of its slots."""
        rows = []
        for slot in self.heads[atom].open_slots if atom in self.heads else ():
            target = self.heads.get(slot.target)
            if slot.revision is not None:
                target = self._seen(self.brute.revision(slot.target, slot.revision))
            if target is not None:
                rows.append(self._row(target))
        return rows

    def groups(self, member: str) -> list[Row]:
        """Each group once, by the birth of the first membership, then by the membership's id."""
        stated = sorted((one.born, one.version.atom, one.group) for one in self._memberships if one.member == member)
        return [self._row(self.heads[group]) for group in dict.fromkeys(group for *_, group in stated)]

    def members(
        self,
        group: str,
        *,
        and_: Sequence[str] = (),
        or_: Sequence[str] = (),
        not_: Sequence[str] = (),
        include_retired: bool = False,
    ) -> list[Row]:
        """(group ∪ or_…) ∩ and_… ∖ not_…, each once an order key, by order key and atom."""
        inside = {name: {one.member for one in self._memberships if one.group == name} for name in (*and_, *not_)}
        places = {
            (one.order, one.member)
            for one in self._memberships
            if one.group in (group, *or_)
            and (include_retired or not self.heads[one.member].retired)
            and all(one.member in inside[name] for name in and_)
            and not any(one.member in inside[name] for name in not_)
        }
        return [self._row(self.heads[member]) for _, member in sorted(places)]

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

    @cached_property
    def _memberships(self) -> list[Membership]:
        return list(self._find_memberships())

    def _find_memberships(self) -> Iterator[Membership]:
        for head in self.heads.values():
            if head.schema == "membership" and not head.retired:
                by_role = {slot.role: (slot, born) for slot, born in zip(head.slots, head.births, strict=True)}
                (group, _), (member, born) = by_role["group"], by_role["member"]
                yield Membership(version=head, group=group.target, member=member.target, order=member.order, born=born)

    def _seen(self, version: Version) -> Version | None:
        return version if version.position <= self.positions.get(version.partition, -1) else None

    def _row(self, version: Version) -> Row:
        is_head = self.heads[version.atom].revision == version.revision
        status = "superseded" if not is_head else "retired" if version.retired else "current"
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
        if slot.revision is not None:
            return slot.revision
        head = self.heads.get(slot.target)
        return None if head is None else head.revision


def shown(row: Mapping[str, Any]) -> Row:
    """A page's row, as far as `State` says what it must be."""
    slots = [(slot["role"], slot["target"], slot["resolved"]) for slot in row["slots"]]
    return {**{name: row[name] for name in SHOWN}, "slots": slots}


def _version(
    change: Mapping[str, Any],
    made: Mapping[str, Any],
    aliases: Mapping[str, Mapping[str, Any]],
    where: tuple[int, int],
    before: Version | None,
) -> Version:
    retired = change["op"] == "retire"
    schema = change["schema"] if before is None else before.schema
    slots = before.slots if before is not None else ()
    if change.get("slots") is not None:
        slots = tuple(_slot(slot, aliases) for slot in change["slots"])
    stood = () if before is None else tuple(zip(before.open_slots, before.births, strict=False))
    partition, position = where
    return Version(
        partition=partition,
        position=position,
        atom=made["atom"],
        revision=made["revision"],
        schema=schema,
        retired=retired,
        value=None if retired else change.get("value"),
        slots=slots,
        births=tuple(
            stood[n][1] if n < len(stood) and stood[n][0] == slot and not retired else position
            for n, slot in enumerate(slots)
        ),
    )


def _slot(slot: Mapping[str, Any], aliases: Mapping[str, Mapping[str, Any]]) -> Slot:
    target, revision = slot["target"], slot.get("revision")
    include = slot.get("mode") == "include"
    if include and revision is None:
        revision = target
    return Slot(
        role=slot["role"],
        target=aliases[target]["atom"] if target in aliases else target,
        revision=aliases[revision]["revision"] if revision is not None and revision in aliases else revision,
        include=include,
        required=slot.get("required", False),
        order_key=slot.get("order_key", ""),
    )
