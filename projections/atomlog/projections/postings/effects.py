"""What records do to the postings: collected per page over one apply, then each page is rewritten once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.kv import Staged, u16, u32, u64
from atomlog.kernel.tail import EffectiveRecord
from atomlog.kernel.times import DAY_US
from atomlog.projections.base import batch_of
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.postings.layout import (
    ATOM_BYTES,
    CHANGE_BYTES,
    COUNT,
    GROUP_KIND,
    INLINE_CHANGES_MAX,
    NUMBERED,
    OLD_CHANGES,
    OLD_CHANGES_BY_AGE,
    ORDINAL,
    PAGE,
    PAGE_BITS,
    REFERRING_KIND,
    Head,
    appended,
    change,
    change_start,
    common_facets,
    drop_old_changes,
    group_facet,
    head_start,
    is_added,
    memberships,
    pack_page,
    page_of,
    position_of,
    referring_facets,
    unpack_head,
    unpack_page,
)
from atomlog.projections.slices import (
    MEMBERSHIP,
    SlotParts,
    effective_time_us,
    is_retired,
    mentioned,
    slice_encoded,
)
from atomlog.schemas.revision import ATOM, FIXED_BYTES, PREVIOUS, RECORDED_AT, ZERO16

OLD_CHANGES_DROPPED_MAX: Final = 1_000  # rows dropped by one apply; what is left waits for the next
TIMES_AND_FLAGS: Final = slice(RECORDED_AT.start, FIXED_BYTES)  # of a revision
ABOUT_AN_ATOM: Final = (GROUP_KIND, REFERRING_KIND)  # facets named after an atom: none can be older than its mention

Event = tuple[bytes, int]
"""(change, ordinal): an atom comes to a page or goes from it."""
Events = tuple[bytes, int | Bitmap]
"""The same, or (changes, ordinals) of many atoms that come at one position."""
Kind = tuple[bool, int, bytes]
"""Whether a revision is retired, its day, and what its head begins with."""
SlicedRevision = tuple[bytes, bool, Kind, bytes, bytes, list[SlotParts], bytes]
"""(atom, whether this is its first revision, kind, schema, policy, slots, all three as they came)."""


class SlicedRecord(NamedTuple):
    """A batch as far as it concerns sets. `mentioned`: the atoms its revisions mention, in their order."""

    position: int
    space: bytes
    revisions: Sequence[SlicedRevision]
    mentioned: Sequence[bytes]


def slice_record(record: EffectiveRecord) -> SlicedRecord:
    """In one pass, while the bytes of the batch are in the processor's cache."""
    batch = batch_of(record)
    space = batch.space.encode()
    kinds: dict[bytes, Kind] = {}  # by times and flags: a batch has few
    revisions: list[SlicedRevision] = []
    atoms: list[bytes] = []
    for data in batch.revisions:
        atom, times = data[ATOM], data[TIMES_AND_FLAGS]
        parts = schema, policy, slots, encoded, _ = slice_encoded(data, FIXED_BYTES)
        kind = kinds.get(times) or kinds.setdefault(times, _kind_of(data, space))
        revisions.append((atom, data[PREVIOUS] == ZERO16, kind, schema, policy, slots, encoded))
        atoms += mentioned(data, parts)
    return SlicedRecord(record.position, space, revisions, atoms)


def _kind_of(revision: bytes, space: bytes) -> Kind:
    retired, day = is_retired(revision), effective_time_us(revision) // DAY_US
    return retired, day, head_start(retired, day, space)


@dataclass(slots=True)
class Edit:
    """The changes of one apply to one partition.

    `ordinals` has every atom that its records mention; those from `fresh` on are new, so that nothing is stored
    about them. A page is named by its facet and its number.
    """

    tag: bytes
    staged: Staged
    ordinals: Mapping[bytes, int]
    fresh: int
    floor: int
    events: dict[bytes, list[Events]] = field(default_factory=dict)  # by page, in the order of positions
    pages: dict[bytes, bytes | None] = field(default_factory=dict)  # page → as stored
    left: set[bytes] = field(default_factory=set)  # pages with an atom that goes
    decoded: dict[bytes, Bitmap] = field(default_factory=dict)  # those that were looked into
    grouped: dict[tuple[bytes, int], bool] = field(default_factory=dict)  # (group's facet, ordinal) → in it now

    def record(self, record: SlicedRecord) -> None:
        """Note what the revisions of a batch change."""
        position, space = record.position, record.space
        prefix, added_at = NUMBERED + self.tag, change_start(position, added=True)
        created: dict[tuple[bytes, bytes, bytes], tuple[Sequence[bytes], list[Event]]] = {}
        heads: list[tuple[bytes, bytes]] = []
        for atom, is_first, (retired, day, start), schema, policy, slots, encoded in record.revisions:
            ordinal = self.ordinals[atom]
            number = u32(ordinal)
            before = b"" if is_first else self._head_before(number)
            head = start + encoded
            if before == head:
                continue
            heads.append((prefix + number, atom + head))
            if before:
                self._move(ordinal, unpack_head(before), Head(retired, day, space, schema, policy, slots), position)
                continue
            common = created.get((start, schema, policy))
            if common is None:
                common = created[start, schema, policy] = common_facets(retired, day, space, schema, policy), []
            event = (added_at + number[2:], ordinal)
            common[1].append(event)
            if slots and not retired:
                self._refer(slots, event, number[:2])
                if schema == MEMBERSHIP:
                    for group, member in memberships(retired, schema, slots):
                        self._join(group, member, position)
        self.staged.put_all(heads)
        for facets, events in created.values():
            self._share(facets, events)

    def finish(self) -> None:
        """Stage every page that changed."""
        prefix = PAGE + self.tag
        wanted = [name for name in self.events if not self._is_new(name) and name not in self.pages]
        self.pages.update(zip(wanted, self.staged.get_many([prefix + name for name in wanted]), strict=True))
        rows: list[tuple[bytes, bytes]] = []
        for name, events in self.events.items():
            stored = self.pages.get(name)
            packed = events[0][0] if len(events) == 1 else b"".join([changes for changes, _ in events])
            extended = None if name in self.left else appended(stored, packed, self.floor)
            rows.append((prefix + name, extended or self._rewritten(name, stored, events, packed)))
        self.staged.put_all(rows)
        self.staged.rows += sum(1 for name in self.events if self.pages.get(name) is None)
        self._drop_old_changes()

    def _head_before(self, number: bytes) -> bytes:
        """The head of an atom before a revision; empty when there was none."""
        raw = self.staged.get(NUMBERED + self.tag + number)
        return b"" if raw is None else raw[ATOM_BYTES:]

    def _refer(self, slots: Sequence[SlotParts], event: Event, page: bytes) -> None:
        """A new atom refers to the targets of its slots."""
        by_page = self.events
        tail = b"\x00" + page
        for role, target, _ in slots:
            name = b"".join((REFERRING_KIND, target, role, tail))
            events = by_page.get(name)
            if events is None:
                by_page[name] = [event]
            elif events[-1] is not event:  # else a second slot of the same role and target
                events.append(event)

    def _share(self, facets: Sequence[bytes], events: Sequence[Event]) -> None:
        """Note facets that all these new atoms of a batch have."""
        for page, some in _by_page(events):
            noted: Events = some[0]
            if len(some) > 1:
                noted = b"".join([packed for packed, _ in some]), Bitmap([ordinal for _, ordinal in some])
            for facet in facets:
                self.events.setdefault(facet + page, []).append(noted)

    def _move(self, ordinal: int, before: Head, now: Head, position: int) -> None:
        old = {*common_facets(*before[:5]), *referring_facets(before.retired, before.slots)}
        new = {*common_facets(*now[:5]), *referring_facets(now.retired, now.slots)}
        for facet in old - new:
            self._note(facet, ordinal, position, added=False)
        for facet in new - old:
            self._note(facet, ordinal, position, added=True)
        stated = memberships(before.retired, before.schema, before.slots)
        states = memberships(now.retired, now.schema, now.slots)
        for group, member in stated - states:
            self._leave(group, member, position)
        for group, member in states - stated:
            self._join(group, member, position)

    def _note(self, facet: bytes, ordinal: int, position: int, *, added: bool) -> None:
        name = facet + u16(ordinal >> PAGE_BITS)
        self.events.setdefault(name, []).append((change(position, ordinal, added=added), ordinal))
        if not added:
            self.left.add(name)

    def _join(self, group: bytes, member: bytes, position: int) -> None:
        """One more membership states it: the first makes it a member, the others are counted."""
        facet, ordinal = group_facet(group), self._ordinal(member)
        if not self._is_in(facet, ordinal):
            self.grouped[facet, ordinal] = True
            self._note(facet, ordinal, position, added=True)
            return
        key = COUNT + self.tag + facet + u32(ordinal)
        raw = self.staged.get(key)
        if raw is None:
            self.staged.insert(key, u32(2))
        else:
            self.staged.put(key, u32(int.from_bytes(raw, "big") + 1))

    def _leave(self, group: bytes, member: bytes, position: int) -> None:
        facet, ordinal = group_facet(group), self._ordinal(member)
        key = COUNT + self.tag + facet + u32(ordinal)
        raw = self.staged.get(key)
        if raw is None:
            self.grouped[facet, ordinal] = False
            self._note(facet, ordinal, position, added=False)
        elif (count := int.from_bytes(raw, "big")) > 2:
            self.staged.put(key, u32(count - 1))
        else:
            self.staged.remove(key)

    def _ordinal(self, atom: bytes) -> int:
        """Also of an atom that only an older revision mentions."""
        ordinal = self.ordinals.get(atom)
        if ordinal is None:
            raw = self.staged.get(ORDINAL + self.tag + atom)
            if raw is None:
                raise fail("CORRUPT", f"postings: atom {format_id(atom)} was mentioned and has no ordinal")
            ordinal = int.from_bytes(raw, "big")
        return ordinal

    def _is_in(self, facet: bytes, ordinal: int) -> bool:
        known = self.grouped.get((facet, ordinal))
        if known is None:
            known = ordinal < self.fresh and ordinal in self._members(facet + u16(ordinal >> PAGE_BITS))
        return known

    def _members(self, name: bytes) -> Bitmap:
        """The members of a page as stored, decoded once an apply."""
        members = self.decoded.get(name)
        if members is None:
            raw = None if self._is_new(name) else self.staged.get(PAGE + self.tag + name)
            self.pages[name] = raw
            members = self.decoded[name] = Bitmap() if raw is None else unpack_page(raw, page_of(name))[1]
        return members

    def _is_new(self, name: bytes) -> bool:
        """Whether a page cannot be stored: it is about an atom that was not mentioned before."""
        return name[:1] in ABOUT_AN_ATOM and self.ordinals.get(name[1:17], 0) >= self.fresh

    def _rewritten(self, name: bytes, stored: bytes | None, events: Sequence[Events], packed: bytes) -> bytes:
        """A page after events whose changes are `packed`."""
        changes, members = (b"", Bitmap()) if stored is None else unpack_page(stored, page_of(name))
        for one, ordinals in events:
            if isinstance(ordinals, Bitmap):
                members.merge(ordinals)
            elif is_added(one):
                members.add(ordinals)
            else:
                members.discard(ordinals)
        changes = drop_old_changes(changes + packed, self.floor)
        if len(changes) > INLINE_CHANGES_MAX * CHANGE_BYTES:
            changes = self._spill(name, changes)
        return pack_page(changes, members)

    def _spill(self, name: bytes, changes: bytes) -> bytes:
        """Move all changes but the newest out of the page."""
        spilled, newest = changes[:-CHANGE_BYTES], changes[-CHANGE_BYTES:]
        last = u64(position_of(spilled[-CHANGE_BYTES:]))
        self.staged.put(b"".join((OLD_CHANGES, self.tag, name, last)), spilled)
        self.staged.put(b"".join((OLD_CHANGES_BY_AGE, self.tag, last, name)), b"")
        return newest

    def _drop_old_changes(self) -> None:
        if self.floor < 0:
            return
        prefix = OLD_CHANGES_BY_AGE + self.tag
        for key, _ in islice(self.staged.kv.scan(prefix, prefix + u64(self.floor + 1)), OLD_CHANGES_DROPPED_MAX):
            last, name = key[len(prefix) : len(prefix) + 8], key[len(prefix) + 8 :]
            self.staged.delete(key)
            self.staged.delete(b"".join((OLD_CHANGES, self.tag, name, last)))


def _by_page(events: Sequence[Event]) -> Iterable[tuple[bytes, Sequence[Event]]]:
    """Events of a record, page by page: most records have one."""
    pages = {ordinal >> PAGE_BITS for _, ordinal in events}
    if len(pages) == 1:
        return [(u16(pages.pop()), events)]
    by_page: dict[int, list[Event]] = {}
    for event in events:
        by_page.setdefault(event[1] >> PAGE_BITS, []).append(event)
    return [(u16(page), some) for page, some in by_page.items()]
