"""What the id, relation and postings indexes must answer, worked out the slow way from decoded revisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atomlog.kernel.tail import EffectiveRecord
from atomlog.kernel.times import DAY_US
from atomlog.schemas.revision import Clear, Slot, decode_clear

Positions = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One revision, and the one before it."""

    partition: int
    position: int
    space: str
    clear: Clear
    data: bytes
    before: "Version | None"

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.position

    @property
    def current_slots(self) -> tuple[Slot, ...]:
        return () if self.clear.retired else self.clear.slots

    def opening(self, index: int) -> "Version":
        """The version since which the slot at an index has stood as it is."""
        before = self.before
        if before is None or before.clear.schema != self.clear.schema or len(before.current_slots) <= index:
            return self
        same = before.current_slots[index] == self.clear.slots[index]
        return before.opening(index) if same else self

    def memberships(self) -> list[tuple[Slot, Slot, "Version"]]:
        """(group slot, member slot, version that opened the later of them)."""
        if self.clear.schema != "membership":
            return []
        slots = [(index, slot) for index, slot in enumerate(self.current_slots) if not slot.include]
        return [
            (group, member, max(self.opening(g), self.opening(m), key=lambda version: version.position))
            for g, group in slots
            if group.role == "group"
            for m, member in slots
            if member.role == "member"
        ]

    @property
    def day(self) -> int:
        valid = self.clear.valid_time
        start = valid.from_us if valid is not None else None
        return (self.clear.recorded_at_us if start is None else start) // DAY_US


@dataclass(slots=True)
class Brute:
    """Every version of every atom. `at` has a position for each partition."""

    versions: dict[bytes, list[Version]] = field(default_factory=dict)

    def apply(self, partition: int, records: Sequence[EffectiveRecord]) -> None:
        for record in records:
            if record.kind == "Batch":
                batch = record.batch()
                for data in batch.revisions:
                    clear, _ = decode_clear(data)
                    known = self.versions.setdefault(clear.atom_id, [])
                    known.append(
                        Version(
                            partition=partition,
                            position=record.position,
                            space=batch.space,
                            clear=clear,
                            data=data,
                            before=known[-1] if known else None,
                        )
                    )

    def history(self, atom: bytes, at: Positions) -> list[Version]:
        return [version for version in self.versions.get(atom, []) if version.position <= at[version.partition]]

    def head(self, atom: bytes, at: Positions) -> Version | None:
        history = self.history(atom, at)
        return history[-1] if history else None

    def heads(self, at: Positions) -> list[Version]:
        return [head for atom in self.versions if (head := self.head(atom, at))]

    def is_active(self, atom: bytes, at: Positions) -> bool:
        head = self.head(atom, at)
        return head is not None and not head.clear.retired

    def referring(self, target: bytes, role: str | None, at: Positions) -> list[tuple[Version, int]]:
        """(referring head, slot index), ordered by role, birth, atom, slot, partition."""
        found = [
            (head, index)
            for head in self.heads(at)
            for index, slot in enumerate(head.current_slots)
            if slot.target == target and role in (None, slot.role)
        ]

        def order(item: tuple[Version, int]) -> tuple[object, ...]:
            head, index = item
            slot = head.clear.slots[index]
            return slot.role, head.opening(index).position, head.clear.atom_id, index, head.partition

        return sorted(found, key=order)

    def members(self, group: bytes, at: Positions, *, include_retired: bool = False) -> list[tuple[bytes, ...]]:
        """(order key, member, membership), sorted."""
        return sorted(
            (member.order_key, member.target, head.clear.atom_id)
            for head in self.heads(at)
            for stated, member, _ in head.memberships()
            if stated.target == group and (include_retired or self.is_active(member.target, at))
        )

    def last_change(self, role: str, target: bytes, partition: int, at: int) -> int:
        positions = [
            version.position
            for versions in self.versions.values()
            for version in versions
            if version.partition == partition and version.position <= at
            for slots in (version.clear.slots, version.before.clear.slots if version.before else ())
            if any((slot.role, slot.target) == (role, target) for slot in slots)
        ]
        return max(positions, default=-1)

    def homed(self, partition: int, at: int) -> list[Version]:
        """Heads of the atoms that live in a partition."""
        found = self.heads({partition: at, **dict.fromkeys((p for p in range(8) if p != partition), -1)})
        return [head for head in found if head.partition == partition]
