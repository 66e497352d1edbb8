"""The postings: sets of atoms as bitmaps of ordinals, as of any position down to a floor."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.kv import Staged, prefix_end, u16, u64
from atomlog.kernel.model import Positions
from atomlog.kernel.ordinals import Ordinals
from atomlog.kernel.ports import Kv
from atomlog.kernel.tail import Checkpoint, EffectiveRecord
from atomlog.projections.base import KvProjection
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.postings.effects import Edit, SlicedRecord, slice_record
from atomlog.projections.postings.layout import (
    CHANGE_BYTES,
    COUNT,
    DAY_KIND,
    FLOOR,
    NUMBERED,
    OLD_CHANGES,
    ORDINAL,
    PAGE,
    PAGE_BITS,
    changes_of,
    day_facet,
    group_facet,
    page_of,
    policy_facet,
    position_of,
    referring_facet,
    schema_facet,
    space_facet,
    state_facet,
    unpack_page,
)

ORDINALS_CACHED: Final = 20_000  # atoms whose ordinals a follower remembers: 3 MB, that stay in the processor's cache


class Postings(KvProjection):
    """Ordinals are dense numbers of one partition; `ordinals` maps them to atoms.

    Reads raise CONSISTENCY_UNAVAILABLE below the floor, which stays `window` positions behind.
    """

    name = "postings"
    content = (PAGE, COUNT, ORDINAL, NUMBERED)
    format_version = 2

    def __init__(self, kv: Kv, partitions: int, *, window: int) -> None:
        super().__init__(kv, partitions)
        self.ordinals = Ordinals(kv, b"")
        self._window = window
        self._known: dict[int, dict[bytes, int]] = {}

    def members(self, group: bytes, partition: int, at: int) -> Bitmap:
        """Atoms that an active membership of this partition puts into a group, retired atoms too."""
        return self._facet(group_facet(group), partition, at)

    def referring(self, role: str, target: bytes, partition: int, at: int) -> Bitmap:
        """Active atoms with a slot of this role and target."""
        return self._facet(referring_facet(target, role.encode()), partition, at)

    def facet(self, kind: str, value: str | int, partition: int, at: int) -> Bitmap:
        """Atoms of the partition whose head has this schema, policy, space, state (active, retired) or day.

        Names are texts; a day is that of the effective time, in UTC days since 1970-01-01. INVALID_INPUT otherwise.
        """
        match kind, value:
            case "schema", str():
                return self._facet(schema_facet(value.encode()), partition, at)
            case "policy", str():
                return self._facet(policy_facet(value.encode()), partition, at)
            case "space", str():
                return self._facet(space_facet(value.encode()), partition, at)
            case "state", "active" | "retired":
                return self._facet(state_facet(value == "retired"), partition, at)
            case "day", int():
                return self._facet(day_facet(value), partition, at)
        raise fail("INVALID_INPUT", f"postings have no facet {kind} = {value!r}")

    def days(self, first: int | None, last: int | None, partition: int, at: int) -> Bitmap:
        """Atoms whose effective time lies in the UTC days [first, last) since 1970-01-01; None = open."""
        self._check_floor(partition, at)
        prefix = PAGE + u16(partition) + DAY_KIND
        start = prefix if first is None else PAGE + u16(partition) + day_facet(first)
        stop = prefix_end(prefix) if last is None else PAGE + u16(partition) + day_facet(last)
        pages = [self._page_at(partition, key[3:], value, at) for key, value in self.kv.scan(start, stop)]
        self._check_floor(partition, at)
        return Bitmap.union(pages)

    def all_atoms(self, partition: int, at: int) -> Bitmap:
        """Every atom whose home is the partition, retired ones too."""
        active = self._facet(state_facet(False), partition, at)
        return active | self._facet(state_facet(True), partition, at)

    def at_home(self, atoms: Sequence[bytes], at: Positions) -> Mapping[int, Bitmap]:
        """Ordinals of atoms in the partitions they live in: an allowed set for other indexes of those partitions."""
        found: dict[int, Bitmap] = {}
        for partition, position in at.items():
            numbers = [number for number in self.ordinals.of(partition, atoms) if number is not None]
            found[partition] = Bitmap(numbers) & self.all_atoms(partition, position)
        return found

    def floors(self) -> Mapping[int, int]:
        return {partition: self._floor(partition) for partition in range(self.partitions)}

    def apply(self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint) -> None:
        try:
            super().apply(partition, records, after)
        except BaseException:
            self._known.clear()  # numbers given in an apply that failed do not count
            raise

    def _effects_of_all(
        self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint, staged: Staged
    ) -> None:
        sliced = [slice_record(record) for record in records]
        edit = Edit(
            tag=u16(partition),
            staged=staged,
            fresh=self.ordinals.count(partition),
            ordinals=self._number(partition, sliced, staged),
            floor=self._move_floor(partition, after.position - 1, staged),
        )
        for record in sliced:
            edit.record(record)
        edit.finish()

    def _number(self, partition: int, sliced: Sequence[SlicedRecord], staged: Staged) -> Mapping[bytes, int]:
        """Ordinals of at least the atoms that revisions mention; only those not remembered are looked up."""
        known = self._known.setdefault(partition, {})
        if len(known) > ORDINALS_CACHED:
            known.clear()
        mentioned = chain.from_iterable(record.mentioned for record in sliced)
        puts: list[tuple[bytes, bytes]] = []
        known.update(self.ordinals.assign(partition, [atom for atom in mentioned if atom not in known], puts))
        staged.put_all(puts)
        staged.rows += max(len(puts) - 1, 0)  # the count is not content
        return known

    def _move_floor(self, partition: int, applied: int, staged: Staged) -> int:
        """The floor follows the position alone, so that live and rebuilt agree; it never comes back down."""
        floor = max(self._floor(partition), applied - self._window)
        if floor >= 0:
            staged.put(FLOOR + u16(partition), u64(floor))
        return floor

    def _floor(self, partition: int) -> int:
        raw = self.kv.get(FLOOR + u16(partition))
        return -1 if raw is None else int.from_bytes(raw, "big")

    def _check_floor(self, partition: int, at: int) -> None:
        floor = self._floor(partition)
        if at < floor:
            message = f"postings of partition {partition} can be read as of position {floor} and later, not {at}"
            raise fail("CONSISTENCY_UNAVAILABLE", f"{message}; relations can be read as of any position")

    def _facet(self, facet: bytes, partition: int, at: int) -> Bitmap:
        self._check_floor(partition, at)
        prefix = PAGE + u16(partition) + facet
        pages = [
            self._page_at(partition, key[3:], value, at) for key, value in self.kv.scan(prefix, prefix_end(prefix))
        ]
        # A secondary may have caught up meanwhile, and old changes that were needed may be gone.
        self._check_floor(partition, at)
        return pages[0] if len(pages) == 1 else Bitmap.union(pages)

    def _page_at(self, partition: int, name: bytes, value: bytes, at: int) -> Bitmap:
        """A page as of a position: what stands in it, but for the changes after the position."""
        page = page_of(name)
        changes, members = unpack_page(value, page)
        if not changes or position_of(changes[-CHANGE_BYTES:]) <= at:
            return members
        before: dict[int, bool] = {}
        parts = [changes]
        if position_of(changes) > at:
            prefix = OLD_CHANGES + u16(partition) + name
            parts = [old for _, old in self.kv.scan(prefix + u64(at + 1), prefix_end(prefix))] + parts
        for position, added, low in chain.from_iterable(map(changes_of, parts)):
            if position > at:
                before.setdefault(low, not added)  # the first change after a position tells what was before
        base = page << PAGE_BITS
        for low, was_in in before.items():
            if was_in:
                members.add(base | low)
            else:
                members.discard(base | low)
        return members

    def _canonical(self, key: bytes, value: bytes) -> bytes:
        if key[:1] != PAGE:
            return value
        return unpack_page(value, page_of(key))[1].canonical_bytes()
