"""What the store must answer, worked out the slow way: replay the raw records, then look at every atom.

It shares nothing with the program: `commit_model` says which records count, `readers` decodes them. Ids are 16 bytes
where a log is replayed; a model that is filled by hand (`add`) may use any ids that sort alike.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.commit_model import START, kind_of, number, verdict
from tests.oracle.readers import decoded, fingerprints, raw

Positions = Mapping[int, int]  # partition → p: after the record at p; −1 = nothing
Id = Any

DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    role: str
    target: Id
    at: Id | None = None
    include: bool = False
    required: bool = False
    order_key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One revision. `births`: (position, revision) since which each slot has stood as it is."""

    partition: int
    position: int
    space: str
    atom: Id
    revision: Id
    previous: Id | None
    schema: str
    retired: bool
    slots: tuple[Slot, ...]
    births: tuple[tuple[int, Id], ...]
    policy: str = ""
    day: int = 0
    value: Any = None
    data: bytes = b""
    before: "Version | None" = None

    @property
    def current_slots(self) -> tuple[Slot, ...]:
        return () if self.retired else self.slots

    def memberships(self) -> Iterator["Membership"]:
        if self.schema != "membership":
            return
        stated = [pair for pair in zip(self.current_slots, self.births, strict=False) if not pair[0].include]
        for group, group_birth in stated:
            for member, member_birth in stated:
                if group.role == "group" and member.role == "member":
                    later = max(group_birth, member_birth, key=lambda birth: birth[0])
                    yield Membership(self, group.target, member.target, member, later, member_birth[0])


@dataclass(frozen=True, slots=True)
class Membership:
    """`opened`: the birth of the later of its two slots; `member_born`: the position of the member slot's."""

    version: Version
    group: Id
    member: Id
    slot: Slot
    opened: tuple[int, Id]
    member_born: int


@dataclass(frozen=True, slots=True)
class State:
    heads: dict[Id, Version]
    memberships: list[Membership]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that counts."""

    partition: int
    position: int
    space: str
    request_key: bytes
    recorded_at: bytes
    revisions: tuple[Id, ...]


@dataclass(slots=True)
class Model:
    """Every version of every atom. `at` has a position for each partition; one it lacks counts as −1."""

    log_id: bytes = bytes(range(16))
    partitions: int = 1
    versions: dict[Id, list[Version]] = field(default_factory=dict)
    batches: list[Accepted] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)  # of the commit rule
    voids: Counter[str] = field(default_factory=Counter)
    ends: dict[int, int] = field(default_factory=dict)  # partition → next position
    effective: dict[int, list[tuple[int, str]]] = field(default_factory=dict)  # partition → (position, kind)
    _states: "dict[tuple[tuple[int, int], ...], State]" = field(default_factory=dict)  # the last few that were asked

    # -- replay

    def replay(self, partition: int, position: int, headers: list[tuple[str, bytes]], value: bytes) -> None:
        """The next record of a partition, as it came."""
        state = self.states.setdefault(partition, START)
        genesis = {"log_id": self.log_id, "partition": partition, "partitions": self.partitions, "hash_version": 1}
        said, what = verdict(state, headers, value, {"genesis": genesis, "schemas": fingerprints(), "level": 1})
        assert said != "stop", f"partition {partition}, position {position}: {what}"
        self.ends[partition] = position + 1
        if said == "void":
            self.voids[what] += 1
            return
        self.states[partition] = what
        kind = kind_of(dict(headers)["kind"]) or ""
        self.effective.setdefault(partition, []).append((position, kind))
        if kind == "Batch":
            self._take(partition, position, decoded("BatchV1", value[10:]))

    def apply(self, partition: int, records: Sequence[Any]) -> None:
        """Records as the log port hands them over: objects with `position` and `record`."""
        for one in records:
            self.replay(partition, one.position, *raw(one.record))

    def _take(self, partition: int, position: int, batch: dict[str, Any]) -> None:
        made = [(data, decoded("RevisionV1", data)) for data in batch["revisions"]]
        ids = tuple(revision["revision_id"] for _, revision in made)
        known = batch["space"], batch["request_key"], batch["recorded_at"]
        self.batches.append(Accepted(partition, position, *known, ids))
        for data, revision in made:
            flags = revision["flags"][0]
            has_start = flags & 2 and not flags & 4
            starts_us = (number(revision["valid_from" if has_start else "recorded_at"])) - (1 << 63)
            self.add(
                partition=partition,
                position=position,
                space=batch["space"],
                atom=revision["atom_id"],
                revision=revision["revision_id"],
                previous=_or_none(revision["previous_revision_id"]),
                schema=revision["schema"],
                policy=revision["policy"],
                day=starts_us // DAY_US,
                retired=bool(flags & 1),
                slots=tuple(map(_slot, revision["slots"])),
                data=data,
            )

    def add(
        self, *, atom: Id, position: int, revision: Id, retired: bool, slots: tuple[Slot, ...], **rest: Any
    ) -> None:
        """One more version of an atom."""
        self._states.clear()
        known = self.versions.setdefault(atom, [])
        before = known[-1] if known else None
        births = []
        for index, slot in enumerate(slots):
            stood = before is not None and index < len(before.current_slots) and not retired
            kept = before is not None and stood and before.slots[index] == slot and before.schema == rest["schema"]
            births.append(before.births[index] if before is not None and kept else (position, revision))
        known.append(
            Version(
                atom=atom,
                position=position,
                revision=revision,
                retired=retired,
                slots=slots,
                births=tuple(births),
                before=before,
                **rest,
            )
        )

    # -- scans

    def history(self, atom: Id, at: Positions) -> list[Version]:
        return [version for version in self.versions.get(atom, []) if version.position <= at.get(version.partition, -1)]

    def _at(self, at: Positions) -> "State":
        """Every head at these positions, found by looking at every version."""
        key = tuple(sorted(at.items()))
        if key not in self._states:
            heads = {atom: history[-1] for atom in self.versions if (history := self.history(atom, at))}
            stated = [one for head in heads.values() for one in head.memberships()]
            self._states = {**dict(list(self._states.items())[-3:]), key: State(heads, stated)}
        return self._states[key]

    def head(self, atom: Id, at: Positions) -> Version | None:
        return self._at(at).heads.get(atom)

    def heads(self, at: Positions) -> list[Version]:
        return list(self._at(at).heads.values())

    def is_active(self, atom: Id, at: Positions) -> bool:
        head = self.head(atom, at)
        return head is not None and not head.retired

    def referring(self, target: Id, role: str | None, at: Positions) -> list[tuple[Version, int]]:
        """(referring head, slot index), ordered by role, birth, atom, slot, partition."""
        found = [
            (head, index)
            for head in self.heads(at)
            for index, slot in enumerate(head.current_slots)
            if slot.target == target and role in (None, slot.role)
        ]
        return sorted(found, key=lambda one: _referring_order(*one))

    def memberships(self, at: Positions) -> list[Membership]:
        return self._at(at).memberships

    def members(self, group: Id, at: Positions, *, include_retired: bool = False) -> list[tuple[bytes, Id, Id]]:
        """(order key, member, membership), sorted."""
        return sorted(
            (stated.slot.order_key, stated.member, stated.version.atom)
            for stated in self.memberships(at)
            if stated.group == group and (include_retired or self.is_active(stated.member, at))
        )

    def member_rows(
        self,
        group: Id,
        at: Positions,
        *,
        and_: Sequence[Id] = (),
        or_: Sequence[Id] = (),
        not_: Sequence[Id] = (),
        include_retired: bool = False,
    ) -> list[tuple[Id, bytes, list[Id]]]:
        """(member, order key, memberships) of (group ∪ or_…) ∩ and_… ∖ not_…: each member once an order key."""
        rows: dict[tuple[bytes, Id], set[Id]] = {}
        for one in {group, *or_}:
            for order_key, member, membership in self.members(one, at, include_retired=include_retired):
                rows.setdefault((order_key, member), set()).add(membership)
        inside, outside = (
            [{row[1] for row in self.members(one, at, include_retired=True)} for one in some] for some in (and_, not_)
        )
        return [
            (member, order_key, sorted(memberships))
            for (order_key, member), memberships in sorted(rows.items())
            if all(member in found for found in inside)
            and not any(member in found for found in outside)
            and self.head(member, at)
        ]

    def relation_rows(self, target: Id, role: str | None, at: Positions) -> list[tuple[Id, str]]:
        """(referring atom, role): each atom once a role, by the birth of its first slot."""
        found = self.referring(target, role, at)
        return list(dict.fromkeys((head.atom, head.slots[index].role) for head, index in found))

    def group_rows(self, member: Id, at: Positions) -> list[Id]:
        """Every group that is there and has an active membership of the member, by the birth of the first one."""
        stated = [one for one in self.memberships(at) if one.member == member and self.head(one.group, at)]
        stated.sort(key=lambda one: (one.member_born, one.version.atom))
        return list(dict.fromkeys(one.group for one in stated))

    def last_change(self, role: str, target: Id, partition: int, at: int, space: str | None = None) -> int:
        """The last position at which an atom of the space gained, lost or was revised with such a slot."""
        positions = [
            version.position
            for versions in self.versions.values()
            for version in versions
            if version.partition == partition and version.position <= at and space in (None, version.space)
            for slots in (version.slots, version.before.slots if version.before else ())
            if any((slot.role, slot.target) == (role, target) for slot in slots)
        ]
        return max(positions, default=-1)

    def last_of_schema(self, schema: str, space: str, at: Positions) -> int:
        """The last position at which an atom of this schema in this space was created or changed."""
        every = (version for versions in self.versions.values() for version in versions)
        found = [one.position for one in every if (one.schema, one.space) == (schema, space)]
        return max((position for position in found if position <= max(at.values())), default=-1)


def _referring_order(head: Version, index: int) -> tuple[str, int, Id, int, int]:
    return head.slots[index].role, head.births[index][0], head.atom, index, head.partition


def _slot(datum: dict[str, Any]) -> Slot:
    flags = datum["flags"][0]
    at = _or_none(datum["at"])
    include, required = bool(flags & 1), bool(flags & 2)
    role, target, order_key = datum["role"], datum["target"], datum["order_key"]
    return Slot(role=role, target=target, at=at, include=include, required=required, order_key=order_key)


def _or_none(raw_id: bytes) -> bytes | None:
    return None if not any(raw_id) else raw_id
