"""Helpers over the `Kv` port, and its in-memory form for simulation."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from atomlog.kernel.ports import Kv


def prefix_end(prefix: bytes) -> bytes:
    """The first key after every key that starts with `prefix` (which is not all 0xFF)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


class MemoryKv:
    """A `Kv` in memory. `durable` is what a power cut would leave: the state at the last `sync`."""

    def __init__(self, pairs: dict[bytes, bytes] | None = None) -> None:
        self._values: dict[bytes, bytes] = dict(pairs or {})
        self._keys: list[bytes] = sorted(self._values)
        self.durable: dict[bytes, bytes] = dict(self._values)

    @property
    def writable(self) -> bool:
        return True

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self._values.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        return iter([(key, self._values[key]) for key in keys])

    def scan_back(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self.scan(start, stop))[::-1])

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        for key in deletes:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in puts:
            if key not in self._values:
                self._keys.insert(bisect_left(self._keys, key), key)
            self._values[key] = value

    def sync(self) -> None:
        self.durable = dict(self._values)

    def catch_up(self) -> None:
        """Nothing to do: there is one copy."""

    def close(self) -> None:
        """Nothing to release."""


class Staged:
    """Changes over a `Kv` that are seen by point reads here and written as one batch by `commit`.

    `rows` is by how much they change the number of rows, for stores that keep a count: `insert` is a put of keys
    that are not there, `remove` a delete of one that is. Scans go to the store below.
    """

    __slots__ = ("_changes", "kv", "rows")

    def __init__(self, kv: Kv) -> None:
        self.kv = kv
        self.rows = 0
        self._changes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return self.kv.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """In the order of `keys`; those that are not staged are read with one call."""
        changes = self._changes
        if changes.keys().isdisjoint(keys):
            return self.kv.get_many(keys)
        below = [key for key in keys if key not in changes]
        found = dict(zip(below, self.kv.get_many(below), strict=True))
        return [found[key] if key in found else changes[key] for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value

    def put_all(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._changes.update(pairs)

    def insert(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value
        self.rows += 1

    def insert_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Insert pairs whose keys all differ."""
        self._changes.update(pairs)
        self.rows += len(pairs)

    def delete(self, key: bytes) -> None:
        self._changes[key] = None

    def remove(self, key: bytes) -> None:
        self._changes[key] = None
        self.rows -= 1

    def commit(self) -> None:
        """Write everything staged as one batch and forget it."""
        deletes = [key for key, value in self._changes.items() if value is None]
        for key in deletes:
            del self._changes[key]
        puts = cast("list[tuple[bytes, bytes]]", list(self._changes.items()))  # what is left has values
        self.kv.write(puts, deletes)
        self._changes = {}
        self.rows = 0
