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
    change,
    common_facets,
    drop_old_changes,
    group_facet,
    is_added,
    memberships,
    pack_head,
    pack_page,
    position_of,
    referring_facets,
    single_page,
    unpack_head,
    unpack_page,
)
from atomlog.projections.slices import RevisionParts, effective_time_us, is_retired
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
    pages: dict[bytes, tuple[bytes, Bitmap] | None] = field(default_factory=dict)
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
            for facet in referring_facets(retired, parts.slots):
                self.events.setdefault(facet, []).append(event)
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
            stored = self._stored(facet, ordinal >> PAGE_BITS) if ordinal < self.fresh else None
            known = stored is not None and ordinal in stored[1]
        return known

    def _stored(self, facet: bytes, page: int) -> tuple[bytes, Bitmap] | None:
        """(changes, members) of a page as they were before this apply, decoded once; None when there is none."""
        key = facet + u16(page)
        if key not in self.pages:
            about_new = facet[:1] in ABOUT_AN_ATOM and self.ordinals.get(facet[1:17], 0) >= self.fresh
            raw = None if about_new else self.staged.get(PAGE + self.tag + key)
            self.pages[key] = None if raw is None else unpack_page(raw, page)
        return self.pages[key]

    def _stage_facet(self, facet: bytes, events: Sequence[Event]) -> None:
        pages: dict[int, list[Event]] = {}
        for event in events:
            pages.setdefault(event[1] >> PAGE_BITS, []).append(event)
        for page, page_events in pages.items():
            self._stage_page(facet, page, page_events)

    def _stage_page(self, facet: bytes, page: int, events: Sequence[Event]) -> None:
        name = facet + u16(page)
        key = PAGE + self.tag + name
        stored = self._stored(facet, page)
        if stored is None and len(events) == 1:
            self.staged.insert(key, single_page(events[0]))
            return
        changes, members = stored or (b"", Bitmap())
        for packed, ordinal in events:
            if is_added(packed):
                members.add(ordinal)
            else:
                members.discard(ordinal)
        changes = drop_old_changes(changes + b"".join([packed for packed, _ in events]), self.floor)
        if len(changes) > INLINE_CHANGES_MAX * CHANGE_BYTES:
            changes = self._spill(name, changes)
        value = pack_page(changes, members)
        if stored is None:
            self.staged.insert(key, value)
        else:
            self.staged.put(key, value)

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
