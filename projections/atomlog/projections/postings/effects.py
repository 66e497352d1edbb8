"""What records do to the postings: collected per facet over one apply, then each page is rewritten once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.kv import Staged, u16, u32, u64
from atomlog.kernel.times import DAY_US
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.postings.layout import (
    CHANGE_BYTES,
    COUNT,
    GROUP_KIND,
    HEAD,
    INLINE_CHANGES_MAX,
    OLD_CHANGES,
    OLD_CHANGES_BY_AGE,
    PAGE,
    PAGE_BITS,
    REFERRING_KIND,
    Event,
    Head,
    appended,
    change,
    common_facets,
    drop_old_changes,
    group_facet,
    is_added,
    memberships,
    pack_head,
    pack_page,
    position_of,
    referring_facet,
    referring_facets,
    single_page,
    unpack_head,
    unpack_page,
)
from atomlog.projections.slices import RevisionParts, SlotParts, effective_time_us, is_retired
from atomlog.schemas.revision import ATOM, PREVIOUS, ZERO16

OLD_CHANGES_DROPPED_MAX: Final = 1_000  # rows dropped by one apply; what is left waits for the next
ABOUT_AN_ATOM: Final = (GROUP_KIND, REFERRING_KIND)  # facets named after an atom: none can be older than its mention
ORDINAL: Final = b"a"  # of the kernel's Ordinals


@dataclass(slots=True)
class Edit:
    """The changes of one apply to one partition.

    `ordinals` has every atom that its records mention; those from `fresh` on are new, so that nothing is stored
    about them. Facets that all atoms have are collected by their combination: a batch has few.
    """

    tag: bytes
    staged: Staged
    ordinals: Mapping[bytes, int]
    fresh: int
    floor: int
    events: dict[bytes, list[Event]] = field(default_factory=dict)
    created: dict[tuple[bool, int, bytes, bytes, bytes], list[Event]] = field(default_factory=dict)
    pages: dict[bytes, bytes | None] = field(default_factory=dict)  # facet ‖ page → as stored
    decoded: dict[bytes, Bitmap] = field(default_factory=dict)  # those that were looked into
    grouped: dict[tuple[bytes, int], bool] = field(default_factory=dict)  # (facet, ordinal) → in it now

    def revise(self, revision: bytes, parts: RevisionParts, position: int, space: bytes) -> None:
        """Note what a revision changes."""
        ordinal = self.ordinals[revision[ATOM]]
        retired = is_retired(revision)
        day = effective_time_us(revision) // DAY_US
        key = HEAD + self.tag + u32(ordinal)
        head = pack_head(retired, day, space, parts)
        before = None if revision[PREVIOUS] == ZERO16 else self.staged.get(key)
        if before is None:
            self.staged.insert(key, head)
            event = (change(position, ordinal, added=True), ordinal)
            self.created.setdefault((retired, day, space, parts.schema, parts.policy), []).append(event)
            if not retired:
                self._refer(parts.slots, event)
            for group, member in memberships(retired, parts.schema, parts.slots):
                self._join(group, member, position)
        elif before != head:
            self.staged.put(key, head)
            now = Head(retired, day, space, parts.schema, parts.policy, parts.slots)
            self._move(ordinal, unpack_head(before), now, position)

    def finish(self) -> None:
        """Stage every page that changed."""
        common: dict[bytes, list[Event]] = {}
        for values, events in self.created.items():
            for facet in common_facets(*values):
                common.setdefault(facet, []).extend(events)
        for facet, events in common.items():
            self._stage_facet(facet, sorted([*events, *self.events.pop(facet, ())]))
        for facet, events in self.events.items():
            self._stage_facet(facet, events)
        self._drop_old_changes()

    def _refer(self, slots: Sequence[SlotParts], event: Event) -> None:
        """A new atom refers to the targets of its slots."""
        by_facet = self.events
        for role, target, _ in slots:
            facet = referring_facet(target, role)
            events = by_facet.get(facet)
            if events is None:
                by_facet[facet] = [event]
            elif events[-1] is not event:  # else a second slot of the same role and target
                events.append(event)

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
        self.events.setdefault(facet, []).append((change(position, ordinal, added=added), ordinal))

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
            known = ordinal < self.fresh and ordinal in self._members(facet, ordinal >> PAGE_BITS)
        return known

    def _members(self, facet: bytes, page: int) -> Bitmap:
        """The members of a page as stored, decoded once an apply."""
        name = facet + u16(page)
        members = self.decoded.get(name)
        if members is None:
            raw = self._stored(facet, name)
            members = self.decoded[name] = Bitmap() if raw is None else unpack_page(raw, page)[1]
        return members

    def _stored(self, facet: bytes, name: bytes) -> bytes | None:
        """A page as it was before this apply."""
        if name in self.pages:
            return self.pages[name]
        if facet[:1] in ABOUT_AN_ATOM and self.ordinals.get(facet[1:17], 0) >= self.fresh:
            return None
        raw = self.pages[name] = self.staged.get(PAGE + self.tag + name)
        return raw

    def _stage_facet(self, facet: bytes, events: Sequence[Event]) -> None:
        if len(events) == 1:
            self._stage_event(facet, events[0])
            return
        pages = {ordinal >> PAGE_BITS for _, ordinal in events}
        for page in pages:
            some = events if len(pages) == 1 else [event for event in events if event[1] >> PAGE_BITS == page]
            name = facet + u16(page)
            stored = self._stored(facet, name)
            key = PAGE + self.tag + name
            if stored is None:
                self.staged.insert(key, self._rewritten(name, b"", Bitmap(), some))
            else:
                self.staged.put(key, self._rewritten(name, *unpack_page(stored, page), some))

    def _stage_event(self, facet: bytes, event: Event) -> None:
        """The same for one change: most sets gain one member at a time, and most are small."""
        page = event[1] >> PAGE_BITS
        name = facet + u16(page)
        stored = self._stored(facet, name)
        key = PAGE + self.tag + name
        if stored is None:
            self.staged.insert(key, single_page(event))
            return
        value = appended(stored, event, self.floor)
        if value is None:
            value = self._rewritten(name, *unpack_page(stored, page), [event])
        self.staged.put(key, value)

    def _rewritten(self, name: bytes, changes: bytes, members: Bitmap, events: Sequence[Event]) -> bytes:
        added = [ordinal for packed, ordinal in events if packed[7] & 1]
        if len(added) == len(events):
            members.update(added)
        else:
            for packed, ordinal in events:
                if is_added(packed):
                    members.add(ordinal)
                else:
                    members.discard(ordinal)
        changes = drop_old_changes(changes + b"".join([packed for packed, _ in events]), self.floor)
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
