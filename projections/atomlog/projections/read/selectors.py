"""What can be asked of the store, typed, and the same as JSON.

The JSON form is `{"type": …}` with the fields of the class; `parse_selector` reads it, `selector_dict` writes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from atomlog.kernel.bounds import VECTOR_DIM_MAX
from atomlog.kernel.findings import member_path
from atomlog.kernel.ids import format_id, invalid, parse_id, parse_name, shown
from atomlog.kernel.jsontext import check_json
from atomlog.projections.read.refs import DEFAULT_HOME, AtomRef, KeyHome, format_ref, parse_ref
from atomlog.projections.read.scope import ANYTHING, Scope, format_refs, parse_refs, parse_scope, require_keys

IDS_MAX: Final = 1_000  # ids of one read: what one page can hold at most
QUERY_BYTES_MAX: Final = 64 * 1024  # UTF-8 of one query text, as large as a value may be
FLOAT32_MAX: Final = 3.4028235e38
INPUTS: Final = ("text", "context", "reasoning")  # the texts of a recall, each embedded apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ByIds:
    """Atoms by id, in the order given. `revision` asks for one revision of the single id."""

    ids: tuple[AtomRef, ...]
    revision: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Every revision of an atom, oldest first."""

    atom: AtomRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """The atoms that refer to `target`, in one role or in any."""

    target: AtomRef
    role: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsOf:
    """The atoms that `atom` refers to, in the order of its slots."""

    atom: AtomRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """(group ∪ or_…) ∩ and_… ∖ not_…, by order key and then atom id. Retired members only when asked for."""

    group: AtomRef
    and_: tuple[AtomRef, ...] = ()
    or_: tuple[AtomRef, ...] = ()
    not_: tuple[AtomRef, ...] = ()
    include_retired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups that `member` is in."""

    member: AtomRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Natural language by `cosine-max-v1`. Each text is embedded apart; `vectors` are queries in a space of their own.

    All inputs of one recall are in one vector space.
    """

    text: str | None = None
    context: str | None = None
    reasoning: str | None = None
    vectors: tuple[tuple[str, tuple[float, ...]], ...] = ()
    scope: Scope = field(default=ANYTHING)


Selector = ByIds | History | Relations | SlotsOf | Members | Groups | Recall


def parse_selector(value: object, *, path: str = "selector", home: KeyHome = DEFAULT_HOME) -> Selector:
    """A selector from JSON. INVALID_INPUT names the part that is missing, unknown or wrong."""
    if not isinstance(value, Mapping):
        raise invalid(path, f'{shown(value)} is no object; write {{"type": …}}')
    kind = value.get("type")
    parse = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parse is None:
        raise invalid(f"{path}.type", f"must be one of {', '.join(_PARSERS)}")
    selector = parse({key: item for key, item in value.items() if key != "type"}, path, home)
    check_selector(selector, path)
    return selector


def check_selector(selector: Selector, path: str = "selector") -> None:
    """INVALID_INPUT for what the types alone do not exclude."""
    if isinstance(selector, ByIds):
        if not 0 < len(selector.ids) <= IDS_MAX:
            raise invalid(f"{path}.ids", f"{len(selector.ids)} ids; a read takes 1 to {IDS_MAX}")
        if selector.revision is not None and len(selector.ids) != 1:
            raise invalid(f"{path}.revision", "a revision is asked for together with exactly one id")
    elif isinstance(selector, Recall):
        texts = {name: text for name in INPUTS if (text := getattr(selector, name)) is not None}
        if not texts and not selector.vectors:
            raise invalid(path, "a recall needs a text, a context, a reasoning or vectors")
        for name, text in texts.items():
            _check_query_text(text, f"{path}.{name}")
        if len(selector.vectors) > 1:
            raise invalid(f"{path}.vectors", f"{len(selector.vectors)} vector spaces; one recall compares in one space")


def selector_dict(selector: Selector) -> dict[str, Any]:
    """The JSON form, which parses back to an equal selector."""
    match selector:
        case ByIds(ids=ids, revision=revision):
            shown = {} if revision is None else {"revision": format_id(revision)}
            return {"type": "ids", "ids": format_refs(ids), **shown}
        case History(atom=atom):
            return {"type": "history", "atom": format_ref(atom)}
        case Relations(target=target, role=role):
            return {"type": "relations", "target": format_ref(target), **({} if role is None else {"role": role})}
        case SlotsOf(atom=atom):
            return {"type": "slots", "atom": format_ref(atom)}
        case Members():
            return _members_dict(selector)
        case Groups(member=member):
            return {"type": "groups", "member": format_ref(member)}
        case Recall():
            return _recall_dict(selector)


def map_refs(selector: Selector, change: Callable[[AtomRef], AtomRef]) -> Selector:
    """The selector with every atom reference replaced."""
    match selector:
        case ByIds(ids=ids):
            return replace(selector, ids=tuple(dict.fromkeys(map(change, ids))))
        case History(atom=atom) | SlotsOf(atom=atom):
            return replace(selector, atom=change(atom))
        case Relations(target=target):
            return replace(selector, target=change(target))
        case Groups(member=member):
            return replace(selector, member=change(member))
        case Members():
            and_, or_, not_ = (tuple(map(change, refs)) for refs in (selector.and_, selector.or_, selector.not_))
            return replace(selector, group=change(selector.group), and_=and_, or_=or_, not_=not_)
        case Recall(scope=scope):
            mapped = replace(
                scope,
                group_and=tuple(map(change, scope.group_and)),
                group_not=tuple(map(change, scope.group_not)),
                slots=tuple((role, change(target)) for role, target in scope.slots),
            )
            return replace(selector, scope=mapped)


def parse_ids(
    ids: Sequence[object], revision: object = None, *, path: str = "selector", home: KeyHome = DEFAULT_HOME
) -> ByIds:
    """`ids` from its fields. INVALID_INPUT names the part that is wrong."""
    if len(ids) > IDS_MAX:
        raise invalid(f"{path}.ids", f"{len(ids)} ids; a read takes 1 to {IDS_MAX}")
    refs = dict.fromkeys([parse_ref(one, f"{path}.ids[{index}]", home) for index, one in enumerate(ids)])
    selector = ByIds(ids=tuple(refs), revision=None if revision is None else parse_id(revision, f"{path}.revision"))
    check_selector(selector, path)
    return selector


def _parse_ids(value: Mapping[str, Any], path: str, home: KeyHome) -> ByIds:
    require_keys(value, path, {"ids", "revision"})
    raw = value.get("ids")
    if isinstance(raw, str | Mapping) or not isinstance(raw, Sequence):
        raise invalid(f"{path}.ids", "must be a list of ids")
    return parse_ids(raw, value.get("revision"), path=path, home=home)


def _parse_history(value: Mapping[str, Any], path: str, home: KeyHome) -> History:
    require_keys(value, path, {"atom"})
    return History(atom=_ref(value, "atom", path, home))


def _parse_relations(value: Mapping[str, Any], path: str, home: KeyHome) -> Relations:
    require_keys(value, path, {"target", "role"})
    role = None if value.get("role") is None else parse_name(value["role"], f"{path}.role")
    return Relations(target=_ref(value, "target", path, home), role=role)


def _parse_slots(value: Mapping[str, Any], path: str, home: KeyHome) -> SlotsOf:
    require_keys(value, path, {"atom"})
    return SlotsOf(atom=_ref(value, "atom", path, home))


def _parse_members(value: Mapping[str, Any], path: str, home: KeyHome) -> Members:
    require_keys(value, path, {"group", "and", "or", "not", "include_retired"})
    include_retired = value.get("include_retired")
    if not isinstance(include_retired, bool | None):
        raise invalid(f"{path}.include_retired", "must be true or false")
    and_, or_, not_ = (parse_refs(value.get(name), f"{path}.{name}", home) for name in ("and", "or", "not"))
    group = _ref(value, "group", path, home)
    return Members(group=group, and_=and_, or_=or_, not_=not_, include_retired=bool(include_retired))


def _parse_groups(value: Mapping[str, Any], path: str, home: KeyHome) -> Groups:
    require_keys(value, path, {"member"})
    return Groups(member=_ref(value, "member", path, home))


def _parse_recall(value: Mapping[str, Any], path: str, home: KeyHome) -> Recall:
    require_keys(value, path, {*INPUTS, "vectors", "scope"})
    text, context, reasoning = (value.get(name) for name in INPUTS)
    vectors = _query_vectors(value.get("vectors"), f"{path}.vectors")
    scope = ANYTHING if value.get("scope") is None else parse_scope(value["scope"], f"{path}.scope", home)
    return Recall(text=text, context=context, reasoning=reasoning, vectors=vectors, scope=scope)


_PARSERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, KeyHome], Selector]]] = {
    "ids": _parse_ids,
    "history": _parse_history,
    "relations": _parse_relations,
    "slots": _parse_slots,
    "members": _parse_members,
    "groups": _parse_groups,
    "recall": _parse_recall,
}


def _ref(value: Mapping[str, Any], name: str, path: str, home: KeyHome) -> AtomRef:
    return parse_ref(value.get(name), f"{path}.{name}", home)


def _check_query_text(text: object, path: str) -> None:
    if not isinstance(text, str):
        raise invalid(path, "must be text")
    check_json(text, path, depth_max=0)
    size = len(text.encode())
    if not text.strip():
        raise invalid(path, "is empty; leave it out, or write what to look for")
    if size > QUERY_BYTES_MAX:
        raise invalid(path, f"{size} bytes of text are more than {QUERY_BYTES_MAX}")


def _query_vectors(value: object, path: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise invalid(path, "must be an object of vector space id to a list of numbers")
    for space in value:
        if not isinstance(space, str):
            raise invalid(path, f"{shown(space)} is no vector space id")
    return tuple((space, _numbers(numbers, member_path(path, space))) for space, numbers in value.items())


def _numbers(value: object, path: str) -> tuple[float, ...]:
    if hasattr(value, "tolist"):
        value = value.tolist()  # an array of numbers
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise invalid(path, "must be a list of numbers")
    numbers = tuple(value)
    if not 0 < len(numbers) <= VECTOR_DIM_MAX:
        raise invalid(path, f"{len(numbers)} numbers; a vector has 1 to {VECTOR_DIM_MAX}")
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < FLOAT32_MAX:
            raise invalid(f"{path}[{index}]", f"{shown(number)} is no finite float32 number")
    return tuple(float(number) for number in numbers)


def _members_dict(selector: Members) -> dict[str, Any]:
    parts = {"and": format_refs(selector.and_), "or": format_refs(selector.or_), "not": format_refs(selector.not_)}
    shown: dict[str, Any] = {"type": "members", "group": format_ref(selector.group)}
    shown |= {name: refs for name, refs in parts.items() if refs}
    return shown | ({"include_retired": True} if selector.include_retired else {})


def _recall_dict(selector: Recall) -> dict[str, Any]:
    texts = {name: text for name in INPUTS if (text := getattr(selector, name)) is not None}
    shown: dict[str, Any] = {"type": "recall", **texts}
    if selector.vectors:
        shown["vectors"] = {space: list(numbers) for space, numbers in selector.vectors}
    if scope := selector.scope.to_dict():
        shown["scope"] = scope
    return shown
