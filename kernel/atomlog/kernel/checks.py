"""What a parsed request is checked for before anything is looked up: bounds, vectors, include cycles.

Each check returns every failing part as an entry of an error's details; nothing here raises.
"""

import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeVar

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import Detail
from atomlog.kernel.findings import detail, member_path, suggestion
from atomlog.kernel.jsontext import canonical
from atomlog.kernel.model import Alias, Change, Create, Keep, Retire, Revise, WriteRequest
from atomlog.kernel.text import BlobRef, long_text, with_blob
from atomlog.kernel.vector_spaces import VectorSpace

Node = TypeVar("Node", bound=Hashable)


def check_bounds(request: WriteRequest, bounds: Bounds) -> list[Detail]:
    """BOUND_EXCEEDED for every part beyond its limit, with `found` and `limit`.

    The bytes of the encoded and sealed batch are not known here; they are checked when it is built.
    """
    failures = [
        *_count("changes", len(request.changes), bounds.batch_revisions_max, "changes in a batch"),
        *_count("preconditions", len(request.preconditions), bounds.preconditions_max, "preconditions"),
    ]
    values_fit = _values_fit(request, bounds)
    for change in request.changes:
        if not isinstance(change, Retire):
            failures += _part_failures(change, bounds)
            if not values_fit:
                failures += _value_failures(change.value, f"{change.path}.value", bounds)
    return failures


def _part_failures(change: Create | Revise, bounds: Bounds) -> list[Detail]:
    slots = 0 if isinstance(change.slots, Keep) else len(change.slots)
    parts = (
        ("slots", slots, bounds.slots_max, "slots"),
        ("origins", len(change.origins), bounds.origins_max, "origins"),
        ("vectors", len(change.vectors), bounds.vectors_max, "vectors"),
        ("provenance.receipts", len(change.provenance.receipts), bounds.receipts_max, "receipts"),
    )
    return [
        failure
        for name, found, limit, what in parts
        if found > limit
        for failure in _count(f"{change.path}.{name}", found, limit, what)
    ]


_LEVELS_AROUND: Final = 3  # of a value: its change, the list of changes, the batch


def _values_fit(request: WriteRequest, bounds: Bounds) -> bool:
    """Whether the whole batch is so small and flat that none of its values can be beyond a limit."""
    if request.levels is None or len(request.canonical) > bounds.value_bytes_max:
        return False
    return request.levels - _LEVELS_AROUND <= bounds.depth_max


def _value_failures(value: Any, path: str, bounds: Bounds) -> Iterator[Detail]:
    """A value that is too long for its text alone is fine: its text moves to the blob store."""
    depth = _depth(value)
    if depth > bounds.depth_max:
        yield from _count(path, depth, bounds.depth_max, "levels of nesting")
        return
    size = len(canonical(value, path))
    if size <= bounds.value_bytes_max:
        return
    text = long_text(value, bounds.value_bytes_max)
    if text is None:
        yield from _count(path, size, bounds.value_bytes_max, "bytes of canonical JSON")
        return
    rest = len(canonical(with_blob(value, _SOME_BLOB), path))
    yield from _count(path, rest, bounds.value_bytes_max, "bytes of canonical JSON without the text")
    text_path = path if isinstance(value, str) else f"{path}.text"
    yield from _count(text_path, len(text.encode()), bounds.blob_bytes_max, "bytes of text")


_SOME_BLOB: Final = BlobRef(address=bytes(32), sha256=bytes(32), size_bytes=2**40)


def _count(path: str, found: int, limit: int, what: str) -> Iterator[Detail]:
    if found > limit:
        yield detail(path, "BOUND_EXCEEDED", f"{found} {what} are more than {limit}", found=found, limit=limit)


def _depth(value: Any) -> int:
    """How deep objects and lists are nested: 0 for a text, 1 for a flat object."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max((_depth(item) for item in (value.values() if isinstance(value, dict) else value)), default=0)


def check_vectors(request: WriteRequest, spaces: Mapping[str, VectorSpace]) -> list[Detail]:
    """INVALID_INPUT for every supplied vector that could not be indexed later; `index` is that of its change."""
    found: list[Detail] = []
    for index, change in enumerate(request.changes):
        for name, numbers in () if isinstance(change, Retire) else change.vectors:
            path = member_path(f"{change.path}.vectors", name)
            if name not in spaces:
                message = f"the store has no such vector space; {suggestion(name, spaces)}"
                found.append(detail(path, "INVALID_INPUT", message, index=index))
                continue
            for at, message in _vector_failures(numbers, spaces[name]):
                where = path if at is None else f"{path}[{at}]"
                found.append(detail(where, "INVALID_INPUT", message, index=index))
    return found


def _vector_failures(numbers: Sequence[float], space: VectorSpace) -> Iterator[tuple[int | None, str]]:
    """(index of the number or None, message) of what keeps a vector out of a space of float32."""
    if len(numbers) != space.dim:
        yield None, f"{len(numbers)} numbers, the space has {space.dim} dimensions"
        return
    singles = _as_float32(numbers)
    if singles is None:
        beyond = [n for n, number in enumerate(numbers) if _as_float32((number,)) is None]
        yield from ((n, f"{numbers[n]} is not finite as float32") for n in beyond)
    elif space.metric == "cosine" and not any(singles):
        yield None, "all zeros (as float32): such a vector has no direction to compare by cosine"


def _as_float32(numbers: Sequence[float]) -> tuple[float, ...] | None:
    """The numbers as they will be stored; None when one is not finite then."""
    layout = f"<{len(numbers)}f"
    try:
        singles = struct.unpack(layout, struct.pack(layout, *numbers))
    except OverflowError:
        return None
    return singles if all(map(isfinite, singles)) else None


def check_includes(request: WriteRequest) -> list[Detail]:
    """INCLUDE_CYCLE when new revisions of the batch include one another in a circle.

    Only an alias can name a revision that does not exist yet, so the request alone tells.
    """
    if all(change.alias is None for change in request.changes):
        return []
    by_alias = {change.alias: change.path for change in request.changes if change.alias is not None}
    edges = {
        change.path: [by_alias[name] for name in _included(change) if name in by_alias] for change in request.changes
    }
    cycle = include_cycle(edges)
    if cycle is None:
        return []
    message = f"includes form a cycle: {' → '.join(cycle)}; refer instead of including, in one place at least"
    return [detail(f"{cycle[0]}.slots", "INCLUDE_CYCLE", message, cycle=cycle)]


def _included(change: Change) -> Iterator[str]:
    slots = () if isinstance(change, Retire) or isinstance(change.slots, Keep) else change.slots
    return (slot.at.name for slot in slots if slot.include and isinstance(slot.at, Alias))


def include_cycle(edges: Mapping[Node, Sequence[Node]]) -> list[Node] | None:
    """A cycle among the nodes, its first node repeated at the end; None when there is none.

    Targets that are no keys of `edges` lead nowhere. Takes time linear in nodes and edges, and no recursion.
    """
    done: set[Node] = set()
    for root in edges:
        path: list[Node] = []
        on_path: dict[Node, int] = {}
        stack: list[tuple[Node, int]] = [] if root in done else [(root, 0)]
        while stack:
            node, n = stack.pop()
            if n == 0:
                on_path[node] = len(path)
                path.append(node)
            targets = edges[node]
            while n < len(targets) and (targets[n] in done or targets[n] not in edges):
                n += 1
            if n == len(targets):
                done.add(node)
                del on_path[path.pop()]
            elif targets[n] in on_path:
                return [*path[on_path[targets[n]] :], targets[n]]
            else:
                stack += [(node, n + 1), (targets[n], 0)]
    return None
