"""What each selector needs: which indexes, what must be known before they are looked at, and its source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from atomlog.kernel.ids import partition_of
from atomlog.kernel.model import Positions
from atomlog.projections.ids import Ids
from atomlog.projections.read.cursors import expired
from atomlog.projections.read.filters import allowed_atoms
from atomlog.projections.read.indexes import VECTORS, IndexSet, needed
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.members import MembersSource
from atomlog.projections.read.positions import Chosen
from atomlog.projections.read.recall import (
    Queries,
    Ranked,
    RecallSource,
    depth,
    embed,
    queries_from_dict,
    rank,
    ranked_from_bytes,
)
from atomlog.projections.read.refs import AtomRef, raw_id
from atomlog.projections.read.scope import ANYTHING, Scope, parse_scope
from atomlog.projections.read.selectors import (
    ByIds,
    Groups,
    History,
    Members,
    Recall,
    Relations,
    Selector,
    SlotsOf,
    parse_selector,
    selector_dict,
)
from atomlog.projections.read.sources import (
    GroupsSource,
    HistorySource,
    IdsSource,
    RelationsSource,
    SlotsSource,
    Source,
    State,
)

if TYPE_CHECKING:  # numpy comes with it, which only a recall needs
    from atomlog.projections.encoders import Encoder

IDS: Final = "ids"
RELATIONS: Final = "relations"
POSTINGS: Final = "postings"


@dataclass(slots=True, kw_only=True)
class Plan:
    """A selector whose references are ids. `names`: the indexes it needs; `state`: where it begins.

    A recall has `queries`; from its second page on `ranked`, the list of its first one, instead. `k`: a depth to
    search with again.
    """

    selector: Selector
    names: tuple[str, ...]
    state: State
    queries: Queries | None = None
    ranked: Ranked | None = None
    k: int | None = None


async def plan(selector: Selector, state: State | None, encoders: "Mapping[str, Encoder]", journal: Journal) -> Plan:
    """Everything that must be known before the indexes are looked at. `state`: of a cursor, None = from the start."""
    names = names_of(selector)
    if not isinstance(selector, Recall):
        return Plan(selector=selector, names=names, state=state or {})
    if state is None:
        return Plan(selector=selector, names=names, state={}, queries=await embed(selector, encoders))
    kept = await journal.kept(bytes.fromhex(state["list"]))
    if kept is None:
        raise expired("the store does not keep its list any more")
    return Plan(selector=selector, names=(IDS,), state=state, ranked=ranked_from_bytes(kept.body))


def searched(asked: Plan, source: Source) -> dict[str, Any]:
    """What was asked, with vectors in place of texts; `plan_again` reads it."""
    if not isinstance(source, RecallSource):
        return selector_dict(asked.selector)
    ranked = source.ranked
    return {"type": "recall", "queries": ranked.queries.to_dict(), "scope": source.scope.to_dict(), "k": ranked.k}


def plan_again(asked: Mapping[str, Any], state: State) -> Plan:
    """The plan behind a receipt, to search again."""
    if asked["type"] != "recall":
        selector = parse_selector(asked)
        return Plan(selector=selector, names=names_of(selector), state=state)
    recall = Recall(scope=parse_scope(asked["scope"], "scope"))
    start = {"index": state.get("index", 0)}
    queries = queries_from_dict(asked["queries"])
    return Plan(selector=recall, names=names_of(recall), state=start, queries=queries, k=asked["k"])


def names_of(selector: Selector) -> tuple[str, ...]:
    match selector:
        case ByIds() | History():
            return (IDS,)
        case Relations() | SlotsOf() | Groups():
            return (IDS, RELATIONS)
        case Members(and_=and_, not_=not_):
            return (IDS, RELATIONS, POSTINGS) if and_ or not_ else (IDS, RELATIONS)
        case Recall(scope=scope):
            return (IDS, VECTORS) if scope == ANYTHING else (IDS, POSTINGS, VECTORS)


def home(selector: Selector, ids: Ids, partitions: int) -> list[int | None]:
    """The partition of each atom that the selector names, None where it is not known; of a scope, its spaces'."""
    if isinstance(selector, Recall):
        return [partition_of(space, partitions) for space in selector.scope.spaces]
    newest = {partition: ids.checkpoint(partition).position - 1 for partition in range(partitions)}
    return [None if row is None else row.partition for row in ids.heads(subjects(selector), newest)]


def subjects(selector: Selector) -> list[bytes]:
    """The atoms that a selector is about, as ids."""
    match selector:
        case ByIds(ids=refs):
            named: Sequence[AtomRef] = refs
        case History(atom=atom) | SlotsOf(atom=atom):
            named = (atom,)
        case Relations(target=target):
            named = (target,)
        case Members(group=group):
            named = (group,)
        case Groups(member=member):
            named = (member,)
        case Recall():
            named = ()
    return list(map(raw_id, named))


def open_source(asked: Plan, indexes: IndexSet, chosen: Chosen, limit: int) -> Source:
    """The source of a plan at the chosen positions. `limit` is a hint of how much will be taken."""
    at, state = chosen.positions, asked.state
    chunk = limit + 2  # one more shows whether a page follows, and one more where that row ends
    match asked.selector:
        case ByIds() as by_ids:
            return IdsSource(selector=by_ids, atoms=list(map(raw_id, by_ids.ids)), state=state)
        case History(atom=atom):
            return HistorySource(index=indexes.ids, atom=raw_id(atom), at=at, state=state, chunk=chunk)
        case Relations(target=target, role=role):
            index = needed(indexes.relations)
            return RelationsSource(index=index, target=raw_id(target), role=role, at=at, state=state, chunk=chunk)
        case SlotsOf(atom=atom):
            return SlotsSource(index=needed(indexes.relations), atom=raw_id(atom), at=at, state=state)
        case Groups(member=member):
            index = needed(indexes.relations)
            return GroupsSource(index=index, member=raw_id(member), at=at, state=state, chunk=chunk)
        case Members() as members:
            return _members_source(members, indexes, at, state, chunk)
        case Recall(scope=scope):
            ranked = asked.ranked or _rank(asked, scope, indexes, chosen, limit)
            return RecallSource(ranked=ranked, scope=scope, state=state)


def _members_source(members: Members, indexes: IndexSet, at: Positions, state: State, chunk: int) -> MembersSource:
    return MembersSource(
        index=needed(indexes.relations),
        postings=needed(indexes.postings) if members.and_ or members.not_ else None,
        groups=list(dict.fromkeys(map(raw_id, (members.group, *members.or_)))),
        and_=list(map(raw_id, members.and_)),
        not_=list(map(raw_id, members.not_)),
        include_retired=members.include_retired,
        at=at,
        state=state,
        chunk=chunk,
    )


def _rank(asked: Plan, scope: Scope, indexes: IndexSet, chosen: Chosen, limit: int) -> Ranked:
    """The list of a recall. Vectors that are behind are searched where they stand: they only propose."""
    vectors = needed(indexes.vectors)
    assert asked.queries is not None
    allowed = (
        None if scope == ANYTHING else allowed_atoms(scope, needed(indexes.postings), indexes.ids, chosen.positions)
    )
    standing = chosen.standings[VECTORS]
    reached = {
        partition: min(position, standing.applied(partition)) for partition, position in chosen.positions.items()
    }
    return rank(vectors, asked.queries, asked.k or depth(vectors, limit), reached, allowed)
