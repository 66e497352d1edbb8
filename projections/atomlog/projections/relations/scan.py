"""Rows that are valid at a read's positions, merged over partitions and cut into pages."""

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import TypeVar

from atomlog.kernel.ids import invalid
from atomlog.kernel.kv import prefix_end, u16, u64
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Kv

T = TypeVar("T")
Found = tuple[bytes, bytes]
"""(place, value); place = key behind the partition ‖ partition u16. Places sort as the rows of all partitions do."""


def valid_rows(
    kv: Kv, tag: bytes, born: slice, prefix: bytes, at: Positions, from_suffix: bytes | None = None
) -> Iterator[Found]:
    """Rows of a keyspace under a prefix with born ≤ p < died, in the order of places, from a suffix on.

    `born` is where a key holds it. A row costs a look whether it is valid or not.
    """
    streams = (_valid_in(kv, tag + u16(p), born, prefix, position, from_suffix) for p, position in at.items())
    return merge(*streams)


def _valid_in(
    kv: Kv, head: bytes, born: slice, prefix: bytes, position: int, from_suffix: bytes | None
) -> Iterator[Found]:
    if position < 0:
        return
    read, beyond = u64(position), u64(position + 1)
    partition = head[1:]
    start = head + (prefix if from_suffix is None else from_suffix)
    for key, value in kv.scan(start, prefix_end(head + prefix)):
        if key[born] < beyond and value[:8] > read:
            yield key[3:] + partition, value


def suffix_of(after: bytes | None, prefix: bytes, tail_bytes: int) -> bytes | None:
    """Where to go on, given the place a page ended at; INVALID_INPUT when it is a place of another range."""
    if after is None:
        return None
    if not after.startswith(prefix) or len(after) < len(prefix) + tail_bytes:
        raise invalid("after", "this is not where a page of this range ended; start again without it")
    return after[:-tail_bytes]


def cut_page(rows: Iterable[tuple[bytes, T]], after: bytes | None, limit: int) -> tuple[list[T], bytes | None]:
    """Up to `limit` items behind the place `after`, and the last one's place when there are more."""
    items: list[T] = []
    last = b""
    for place, item in rows:
        if after is not None and place <= after:
            continue
        if len(items) == limit:
            return items, last
        items.append(item)
        last = place
    return items, None
