"""What a recall may return: a filter that the postings answer before anything is searched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from atomlog.kernel.findings import member_path
from atomlog.kernel.ids import invalid, parse_name, shown
from atomlog.kernel.times import format_time, parse_time
from atomlog.projections.read.refs import DEFAULT_HOME, AtomRef, KeyHome, format_ref, parse_ref

SLOT_FACETS: Final = ("agent", "project", "channel", "source")  # facets that are slots of the atom, by role
SCOPE_ITEMS_MAX: Final = 64  # names or ids in one list of a scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Every part narrows. Within `policies`, `schemas` and `spaces` one of the names must hold, empty = any.

    `group_and`: member of each; `group_not`: of none. `slots`: has a slot (role, target), each of them.
    The time is half-open [from_us, to_us) over the effective time (valid_time.from, else recorded_at).
    """

    policies: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    spaces: tuple[str, ...] = ()
    group_and: tuple[AtomRef, ...] = ()
    group_not: tuple[AtomRef, ...] = ()
    slots: tuple[tuple[str, AtomRef], ...] = ()
    time_from_us: int | None = None
    time_to_us: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Only the parts that narrow."""
        full: dict[str, Any] = {
            "policy": list(self.policies),
            "schema": list(self.schemas),
            "space": list(self.spaces),
            "groups": _present({"and": format_refs(self.group_and), "not": format_refs(self.group_not)}),
            "time": _present({"from": _time(self.time_from_us), "to": _time(self.time_to_us)}),
            **{role: format_ref(target) for role, target in self.slots},
        }
        return _present(full)


ANYTHING: Final = Scope()


def parse_scope(value: object, path: str, home: KeyHome = DEFAULT_HOME) -> Scope:
    """A scope from JSON: `{policy, schema, space, groups{and, not}, time{from, to}, agent, project, channel, source}`.

    Names may be one text or a list of them. INVALID_INPUT names the part that is unknown or wrong.
    """
    scope = require_keys(value, path, {"policy", "schema", "space", "groups", "time", *SLOT_FACETS})
    groups = require_keys(_given(scope, "groups"), f"{path}.groups", {"and", "not"})
    time = require_keys(_given(scope, "time"), f"{path}.time", {"from", "to"})
    time_from, time_to = (_parse_bound(time.get(end), f"{path}.time.{end}") for end in ("from", "to"))
    if time_from is not None and time_to is not None and time_from >= time_to:
        raise invalid(f"{path}.time", "`from` must be before `to`")
    return Scope(
        policies=_names(scope.get("policy"), f"{path}.policy"),
        schemas=_names(scope.get("schema"), f"{path}.schema"),
        spaces=_names(scope.get("space"), f"{path}.space"),
        group_and=parse_refs(groups.get("and"), f"{path}.groups.and", home),
        group_not=parse_refs(groups.get("not"), f"{path}.groups.not", home),
        slots=tuple(
            (role, parse_ref(scope[role], f"{path}.{role}", home))
            for role in SLOT_FACETS
            if scope.get(role) is not None
        ),
        time_from_us=time_from,
        time_to_us=time_to,
    )


def require_keys(value: object, path: str, known: set[str]) -> Mapping[str, Any]:
    """A JSON object with no other keys than these; INVALID_INPUT names the part otherwise."""
    if not isinstance(value, Mapping):
        raise invalid(path, f"{shown(value)} is no object")
    for key in value:
        if key not in known:
            raise invalid(member_path(path, key), f"unknown; known are {', '.join(sorted(known))}")
    return value


def parse_refs(value: object, path: str, home: KeyHome) -> tuple[AtomRef, ...]:
    """One id argument or a list of them, repeats left out."""
    return _each(value, path, lambda item, where: parse_ref(item, where, home))


def _given(scope: Mapping[str, Any], name: str) -> object:
    """A part that is an object; null is the same as absent."""
    return {} if scope.get(name) is None else scope[name]


def _names(value: object, path: str) -> tuple[str, ...]:
    """One of these must hold. A list without any is no filter that lets everything pass, so it is refused."""
    names = _each(value, path, parse_name)
    if value is not None and not names:
        raise invalid(path, "an empty list, which nothing is in; leave it out, or name one")
    return names


def _each(value: object, path: str, parse: Callable[[object, str], T]) -> tuple[T, ...]:
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        return (parse(value, path),)
    if isinstance(value, bytes | bytearray | memoryview):
        return (parse(value, path),)
    if len(value) > SCOPE_ITEMS_MAX:
        raise invalid(path, f"{len(value)} items are more than {SCOPE_ITEMS_MAX}")
    return tuple(dict.fromkeys(parse(item, f"{path}[{index}]") for index, item in enumerate(value)))


def _parse_bound(value: object, path: str) -> int | None:
    return None if value is None else parse_time(value, path)


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else format_time(time_us)


def format_refs(refs: tuple[AtomRef, ...]) -> list[str]:
    return [format_ref(ref) for ref in refs]


def _present(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part not in (None, [], {})}
