"""The members of groups with and, or, not, in the order in which a group shows them.

The groups that add members (`group`, `or_`) are merged as streams, since they know the order; those that filter
(`and_`, `not_`) are sets of ordinals from the postings, one a partition. A first page costs a page, however large
the group is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Final

from atomlog.kernel.ids import format_id
from atomlog.kernel.model import Positions
from atomlog.projections.postings import InGroup, Postings, Selection
from atomlog.projections.read.render import order_key_text
from atomlog.projections.read.sources import GROUP, ExactSource, Found, State, read_range
from atomlog.projections.read.streams import Place, Stream
from atomlog.projections.relations import Member, Relations
from atomlog.schemas.revision import ReadRange

SCANNED_MAX: Final = 10_000  # memberships looked at for one page; a filter that few pass ends the page early
MEMBERSHIPS_SHOWN: Final = 64  # membership ids in one row's reason


@dataclass(slots=True)
class MembersSource(ExactSource):
    """`groups` add members, `and_` and `not_` filter them; ids are resolved and each group stands once."""

    index: Relations
    postings: Postings | None
    groups: Sequence[bytes]
    and_: Sequence[bytes]
    not_: Sequence[bytes]
    include_retired: bool
    at: Positions
    state: State
    chunk: int
    finished: bool = False
    _filter: Selection | None = None
    _admitted: set[bytes] = field(default_factory=set)

    def __iter__(self) -> Iterator[Found]:
        if self.postings is not None:
            all_of, none_of = (tuple(map(InGroup, groups)) for groups in (self.and_, self.not_))
            self._filter = Selection(postings=self.postings, at=self.at, all_of=all_of, none_of=none_of)
        places = [Place.from_json(place) for place in self.state.get("places", ())] or [Place()] * len(self.groups)
        streams = [
            Stream(partial(self._fetch, group), place, chunk=self.chunk)
            for group, place in zip(self.groups, places, strict=True)
        ]
        while (row := _next_row(streams)) is not None:
            self.state = {"places": [stream.place.to_json() for stream in streams]}
            if row[0].member in self._admitted:
                yield _found(row, self.state, keep_retired=self.include_retired)
            if sum(stream.scanned for stream in streams) >= SCANNED_MAX:
                return
        self.finished = True

    def ranges(self, observed: Positions, *, complete: bool) -> tuple[ReadRange, ...]:
        adding = [read_range(GROUP, group, observed, complete=complete) for group in self.groups]
        filtering = [read_range(GROUP, group, observed, complete=True) for group in (*self.and_, *self.not_)]
        return tuple({found.target: found for found in (*adding, *filtering)}.values())

    def asked(self) -> Sequence[bytes]:
        return tuple(dict.fromkeys((*self.groups, *self.and_, *self.not_)))

    def _fetch(self, group: bytes, after: bytes | None, limit: int) -> tuple[list[Member], bytes | None]:
        """A page of the index; which of its members pass the filters is found for all of them at once."""
        found, next_after = self.index.members(
            group, self.at, after=after, limit=limit, include_retired=self.include_retired
        )
        members = list(dict.fromkeys(membership.member for membership in found))
        admitted = self._filter.test(members) if self._filter else [True] * len(members)
        self._admitted.update(compress(members, admitted))
        return found, next_after


def _next_row(streams: Sequence[Stream[Member]]) -> list[Member] | None:
    """Every membership of the member that comes next, at its order key; taken from all streams."""
    heads = [head for stream in streams if (head := stream.peek()) is not None]
    if not heads:
        return None
    first = min(_sort_key(head) for head in heads)
    row: dict[bytes, Member] = {}
    for stream in streams:
        while (head := stream.peek()) is not None and _sort_key(head) == first:
            row.setdefault(head.membership, head)
            stream.take()
    return sorted(row.values(), key=lambda membership: membership.membership)


def _sort_key(membership: Member) -> tuple[bytes, bytes]:
    return membership.order_key, membership.member


def _found(row: Sequence[Member], state: State, *, keep_retired: bool) -> Found:
    shown = row[:MEMBERSHIPS_SHOWN]
    reason: dict[str, object] = {
        "memberships": [format_id(membership.membership) for membership in shown],
        "order_key": order_key_text(row[0].order_key),
    }
    if len(row) > len(shown):
        reason["more_memberships"] = len(row) - len(shown)
    return Found(atom=row[0].member, reason=reason, state=state, keep_retired=keep_retired)
