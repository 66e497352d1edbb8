"""Where the rows of a page come from: one source a selector, each a stream of finds that can be gone on with.

A source knows nothing of pages. It yields what an index says at the read's positions; the page resolves each find
through ids at the same positions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import Positions
from atomlog.projections import ids
from atomlog.projections.read.receipts import ANY_ROLE
from atomlog.projections.read.selectors import ByIds
from atomlog.projections.read.streams import Place, Stream
from atomlog.projections.relations import Member, Relation, Relations
from atomlog.schemas.revision import Clear, ReadRange

NOT_FOUND_TEXT: Final = "not found, or not visible to you"
GROUP: Final = "group"
MEMBER: Final = "member"
SEEN_MAX: Final = 10_000  # groups of one atom that are shown once each; beyond them one may come again

State = Mapping[str, Any]
"""Where a source goes on, as JSON."""


@dataclass(slots=True, kw_only=True)
class Found:
    """One find. `row` when the index had it, else `revision`, else the head is meant. `state`: go on after it.

    `score` are the bits of a float32. `accept` has a last word when the revision is known.
    """

    atom: bytes
    state: State
    revision: bytes | None = None
    row: ids.Row | None = None
    reason: Mapping[str, Any] = field(default_factory=dict)
    score: bytes | None = None
    keep_retired: bool = True
    heads_only: bool = False
    accept: Callable[[Clear], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a search has to say about itself, for diagnostics and receipt."""

    approximate: bool = False
    unembedded: int = 0
    cuts: tuple[Mapping[str, Any], ...] = ()
    encoders: tuple[str, ...] = ()
    scoring: str | None = None
    scoring_digest: bytes | None = None
    searched: bool = False


EXACT: Final = Notes()


class Source(Protocol):
    """Yields finds in order. After the last, `finished` is True; False = it stopped to bound its work."""

    finished: bool
    state: State

    @property
    def notes(self) -> Notes: ...

    def __iter__(self) -> Iterator[Found]: ...
    def resume(self, found: Found) -> State:
        """Where to go on after a find."""
        ...

    def ranges(self, observed: Positions, *, complete: bool) -> tuple[ReadRange, ...]:
        """What of the relations was read; `complete` when this and earlier pages reached the end."""
        ...

    def asked(self) -> Sequence[bytes]:
        """The atoms that the selector named beside its finds, to be reported when they are not there."""
        ...


class ExactSource:
    """What a source of an exact index has that has nothing special about it: a find's own state is where to go on."""

    __slots__ = ()

    @property
    def notes(self) -> Notes:
        return EXACT

    def resume(self, found: Found) -> State:
        return found.state

    def ranges(self, observed: Positions, *, complete: bool) -> tuple[ReadRange, ...]:
        return ()

    def asked(self) -> Sequence[bytes]:
        return ()


def read_range(role: str, target: bytes, observed: Positions, *, complete: bool) -> ReadRange:
    return ReadRange(role=role, target=target, observed=tuple(sorted(observed.items())), complete=complete)


def not_found(atom: bytes, path: str) -> AtomlogError:
    detail = {"path": path, "code": "NOT_FOUND", "message": NOT_FOUND_TEXT, "atom": format_id(atom)}
    return fail("NOT_FOUND", f"{format_id(atom)}: {NOT_FOUND_TEXT}", details=[detail])


@dataclass(slots=True)
class IdsSource(ExactSource):
    """`get`: the atoms in the order given. Each is a find, so that one that is not there shows when it is resolved."""

    selector: ByIds
    atoms: Sequence[bytes]
    state: State
    finished: bool = False

    def __iter__(self) -> Iterator[Found]:
        start = int(self.state.get("index", 0))
        for index in range(start, len(self.atoms)):
            state = {"index": index + 1}
            yield Found(atom=self.atoms[index], revision=self.selector.revision, state=state)
        self.finished = True


@dataclass(slots=True)
class HistorySource(ExactSource):
    """Every revision of an atom, oldest first."""

    index: ids.Ids
    atom: bytes
    at: Positions
    state: State
    chunk: int
    finished: bool = False

    def __iter__(self) -> Iterator[Found]:
        after = self.state.get("after")
        while rows := self.index.history(self.atom, self.at, after=after, limit=self.chunk):
            for row in rows:
                yield Found(atom=self.atom, row=row, state={"after": row.position})
            after = rows[-1].position
        self.finished = True

    def asked(self) -> Sequence[bytes]:
        return (self.atom,)


@dataclass(slots=True)
class RelationsSource(ExactSource):
    """The atoms that refer to a target: one find an atom and role."""

    index: Relations
    target: bytes
    role: str | None
    at: Positions
    state: State
    chunk: int
    finished: bool = False

    def __iter__(self) -> Iterator[Found]:
        stream = Stream(self._fetch, _place(self.state), chunk=self.chunk)
        while (relation := stream.peek()) is not None:
            stream.take()
            while (following := stream.peek()) is not None and _same_birth(relation, following):
                stream.take()
            yield Found(
                atom=relation.atom,
                reason={"role": relation.role, "target": format_id(self.target)},
                state={"place": stream.place.to_json()},
                accept=partial(self._is_first, relation),
                keep_retired=False,
            )
        self.finished = True

    def ranges(self, observed: Positions, *, complete: bool) -> tuple[ReadRange, ...]:
        return (read_range(self.role or ANY_ROLE, self.target, observed, complete=complete),)

    def asked(self) -> Sequence[bytes]:
        return (self.target,)

    def _fetch(self, after: bytes | None, limit: int) -> tuple[list[Relation], bytes | None]:
        return self.index.referring(self.target, self.role, self.at, after=after, limit=limit)

    def _is_first(self, relation: Relation, clear: Clear) -> bool:
        """False for a later slot of the same atom, role and target: an atom is shown once a role."""
        if sum(slot.role == relation.role and slot.target == self.target for slot in clear.slots) == 1:
            return True
        slots = self.index.slots_of(relation.atom, self.at)
        return relation.born == min(
            slot.born for slot in slots if slot.role == relation.role and slot.target == self.target
        )


@dataclass(slots=True)
class SlotsSource(ExactSource):
    """The atoms that an atom refers to, in the order of its slots; a pinned one at its revision."""

    index: Relations
    atom: bytes
    at: Positions
    state: State
    finished: bool = False

    def __iter__(self) -> Iterator[Found]:
        start = int(self.state.get("index", 0))
        for index, slot in enumerate(self.index.slots_of(self.atom, self.at)):
            if index >= start:
                reason = {"role": slot.role, "of": format_id(self.atom)}
                yield Found(atom=slot.target, revision=slot.at, reason=reason, state={"index": index + 1})
        self.finished = True

    def asked(self) -> Sequence[bytes]:
        return (self.atom,)


@dataclass(slots=True)
class GroupsSource(ExactSource):
    """The groups that an atom is in, each once, by the birth of the first membership."""

    index: Relations
    member: bytes
    at: Positions
    state: State
    chunk: int
    finished: bool = False
    _seen: dict[str, None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Found]:
        stream = Stream(self._fetch, _place(self.state), chunk=self.chunk)
        seen = self._seen = dict.fromkeys(self.state.get("seen", ()))
        while (membership := stream.peek()) is not None:
            stream.take()
            group = format_id(membership.group)
            if group in seen:
                continue
            if len(seen) < SEEN_MAX:
                seen[group] = None
            reason = {"memberships": [format_id(membership.membership)]}
            state = {"place": stream.place.to_json(), "seen": len(seen)}
            yield Found(atom=membership.group, reason=reason, state=state)
        self.finished = True

    def resume(self, found: Found) -> State:
        return {**found.state, "seen": list(islice(self._seen, found.state["seen"]))}

    def ranges(self, observed: Positions, *, complete: bool) -> tuple[ReadRange, ...]:
        return (read_range(MEMBER, self.member, observed, complete=complete),)

    def asked(self) -> Sequence[bytes]:
        return (self.member,)

    def _fetch(self, after: bytes | None, limit: int) -> tuple[list[Member], bytes | None]:
        return self.index.groups(self.member, self.at, after=after, limit=limit)


def _place(state: State) -> Place:
    return Place.from_json(state["place"]) if "place" in state else Place()


def _same_birth(one: Relation, other: Relation) -> bool:
    """Slots of one revision with the same role and target stand side by side in the index."""
    return (one.role, one.born, one.atom) == (other.role, other.born, other.atom)
