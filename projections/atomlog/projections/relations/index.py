"""The relation index: who refers to an atom and in which role, an atom's own slots, members and groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from atomlog.kernel.kv import Staged, prefix_end, u16, u64
from atomlog.kernel.model import Positions
from atomlog.kernel.tail import EffectiveRecord
from atomlog.projections.base import KvProjection, batch_of
from atomlog.projections.relations.effects import stage_revision
from atomlog.projections.relations.layout import (
    CHANGE,
    INVERTED,
    MEMBER,
    MEMBER_BORN,
    RELATION,
    RELATION_BORN,
    STATE,
    STATE_BEFORE,
    member_row,
    relation_row,
    state_span,
    unpack_state,
)
from atomlog.projections.relations.scan import Found, cut_page, suffix_of, valid_rows
from atomlog.projections.slices import MEMBER as MEMBER_ROLE
from atomlog.projections.slices import SlotParts, membership_slots, order_key_of, pinned_at, slot_flags
from atomlog.schemas.revision import INCLUDE, REQUIRED, ZERO16


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A slot of `atom` that refers to `target`; `revision` opened it at `born`. `at` is the pinned revision."""

    partition: int
    atom: bytes
    revision: bytes
    role: str
    target: bytes
    at: bytes | None
    include: bool
    required: bool
    order_key: bytes
    born: int
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A membership: `member` is in `group` since `born`, when `revision` of the membership atom said so.

    `at` is the member's pinned revision.
    """

    partition: int
    group: bytes
    member: bytes
    membership: bytes
    revision: bytes
    order_key: bytes
    born: int
    at: bytes | None


class Relations(KvProjection):
    """Reads take a position for every partition of the log, and this index must have reached each.

    Pages are merged over partitions. A page comes with an opaque `after` for the next one, None when it is the last.
    """

    name = "relations"
    content = (RELATION, MEMBER, CHANGE, STATE, STATE_BEFORE)

    def referring(
        self, target: bytes, role: str | None, at: Positions, *, after: bytes | None = None, limit: int
    ) -> tuple[list[Relation], bytes | None]:
        """Slots that refer to a target at `at`, ordered by role, then birth, then atom."""
        prefix = target if role is None else _range(target, role)
        rows = valid_rows(self.kv, RELATION, RELATION_BORN, prefix, at, suffix_of(after, prefix, 2))
        return cut_page(((place, _referring(place, value)) for place, value in rows), after, limit)

    def slots_of(self, atom: bytes, at: Positions) -> list[Relation]:
        """An atom's own slots at `at`, in their order; none when it is retired or absent."""
        for partition, position in at.items():
            raw = self._state_at(partition, atom, position, self.kv.get(STATE + u16(partition) + atom))
            if raw is not None:
                state = unpack_state(raw)
                if state.retired:
                    return []
                own = zip(state.births, state.slots, strict=True)
                return [_relation(partition, atom, birth, slot, state.schema) for birth, slot in own]
        return []

    def members(
        self, group: bytes, at: Positions, *, after: bytes | None = None, limit: int, include_retired: bool = False
    ) -> tuple[list[Member], bytes | None]:
        """Active memberships of a group whose member is active at `at`, ordered by (order key, member, membership).

        `include_retired` keeps those of members that are retired, or not there yet in another partition.
        """
        rows = valid_rows(self.kv, MEMBER, MEMBER_BORN, group, at, suffix_of(after, group, 2))
        if not include_retired:
            rows = self._with_active_member(rows, at, limit + 2)  # where the last page ended, this one, one more
        return cut_page(((place, _member(place, value)) for place, value in rows), after, limit)

    def groups(
        self, member: bytes, at: Positions, *, after: bytes | None = None, limit: int
    ) -> tuple[list[Member], bytes | None]:
        """Active memberships of a member at `at`, ordered by the birth of their member slot, then membership."""
        prefix = _range(member, MEMBER_ROLE.decode())
        slots = valid_rows(self.kv, RELATION, RELATION_BORN, prefix, at, suffix_of(after, prefix, 4))
        return cut_page((found for slot in slots for found in self._memberships_of(slot, at)), after, limit)

    def last_change(self, role: str, target: bytes, partition: int, at: int) -> int:
        """The last position ≤ `at` at which the range changed; −1 when there is none.

        An atom of the partition gained, lost, changed or, being revised, kept a slot of this role and target.
        """
        last = -1
        for tag in (RELATION, CHANGE):
            prefix = tag + u16(partition) + _range(target, role)
            for key, _ in self.kv.scan_back(prefix, prefix + u64(at + 1)):
                last = max(last, int.from_bytes(key[len(prefix) : len(prefix) + 8], "big"))
                break
        return last

    def _effects(self, partition: int, record: EffectiveRecord, staged: Staged) -> None:
        tag = u16(partition)
        touched: set[bytes] = set()
        for revision in batch_of(record).revisions:
            touched.update(stage_revision(tag, revision, record.position, staged))
        position = u64(record.position)
        staged.insert_all([(b"".join((CHANGE, tag, range_, position)), b"") for range_ in touched])

    def _with_active_member(self, rows: Iterator[Found], at: Positions, chunk: int) -> Iterator[Found]:
        while some := list(islice(rows, chunk)):
            members = [member_row(place[:-2], value).member for place, value in some]
            active = self._active(members, at)
            yield from (row for row, member in zip(some, members, strict=True) if member in active)

    def _active(self, atoms: Sequence[bytes], at: Positions) -> set[bytes]:
        """Those of the atoms that exist and are not retired."""
        active: set[bytes] = set()
        left = set(atoms)
        for partition, position in at.items():
            order = list(left)
            states = self.kv.get_many([STATE + u16(partition) + atom for atom in order])
            for atom, newest in zip(order, states, strict=True):
                raw = self._state_at(partition, atom, position, newest)
                if raw is not None:
                    left.discard(atom)
                    if not state_span(raw)[2]:
                        active.add(atom)
        return active

    def _state_at(self, partition: int, atom: bytes, position: int, newest: bytes | None) -> bytes | None:
        """The packed state in force at a position, given the newest; None when the atom was not there yet."""
        if newest is None:
            return None
        created, since, _ = state_span(newest)
        if since <= position:
            return newest
        if created > position:
            return None
        prefix = STATE_BEFORE + u16(partition) + atom
        for _, raw in self.kv.scan(prefix + u64(INVERTED - position), prefix_end(prefix)):
            return raw
        return None

    def _memberships_of(self, slot: Found, at: Positions) -> Iterator[tuple[bytes, Member]]:
        """The memberships at `at` that rest on one member slot, each with its place."""
        place, value = slot
        partition = int.from_bytes(place[-2:], "big")
        row = relation_row(place[:-2], value)
        newest = self.kv.get(STATE + u16(partition) + row.atom)
        raw = self._state_at(partition, row.atom, at[partition], newest)
        if raw is None:
            return
        state = unpack_state(raw)
        for group_index, member_index in membership_slots(state.schema, state.slots):
            if member_index == row.slot:
                birth = max(state.births[group_index], state.births[member_index])
                stated = Member(
                    partition=partition,
                    group=state.slots[group_index][1],
                    member=row.target,
                    membership=row.atom,
                    revision=birth[8:],
                    order_key=order_key_of(row.rest),
                    born=int.from_bytes(birth[:8], "big"),
                    at=pinned_at(row.rest),
                )
                yield place + u16(group_index), stated


def _range(target: bytes, role: str) -> bytes:
    return b"".join((target, role.encode(), b"\x00"))


def _referring(place: bytes, value: bytes) -> Relation:
    row = relation_row(place[:-2], value)
    birth = u64(row.born) + row.revision
    slot = (row.role, row.target, row.rest)
    return _relation(int.from_bytes(place[-2:], "big"), row.atom, birth, slot, row.schema)


def _relation(partition: int, atom: bytes, birth: bytes, slot: SlotParts, schema: bytes) -> Relation:
    role, target, rest = slot
    return Relation(
        partition=partition,
        atom=atom,
        revision=birth[8:],
        role=role.decode(),
        target=target,
        at=pinned_at(rest),
        include=bool(slot_flags(rest) & INCLUDE),
        required=bool(slot_flags(rest) & REQUIRED),
        order_key=order_key_of(rest),
        born=int.from_bytes(birth[:8], "big"),
        schema=schema.decode(),
    )


def _member(place: bytes, value: bytes) -> Member:
    row = member_row(place[:-2], value)
    return Member(
        partition=int.from_bytes(place[-2:], "big"),
        group=row.group,
        member=row.member,
        membership=row.membership,
        revision=row.revision,
        order_key=row.order_key,
        born=row.born,
        at=None if row.at == ZERO16 else row.at,
    )
