"""Stores to run projections over: in memory, and in a real RocksDB."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.ports import Kv
from atomlog.kernel.rocks import open_primary

CACHE_BYTES = 1024 * 1024

NewKv = Callable[[], AbstractContextManager[Kv]]
"""Makes a new, empty store."""


@contextmanager
def memory() -> Iterator[Kv]:
    yield MemoryKv()


@contextmanager
def new_directory() -> Iterator[str]:
    """An empty directory, in memory where the system has such a place: these tests are not about disks."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield path


@contextmanager
def rocks() -> Iterator[Kv]:
    with new_directory() as path:
        kv = open_primary(path, block_cache_bytes=CACHE_BYTES)
        try:
            yield kv
        finally:
            kv.close()


@dataclass(slots=True)
class Watched:
    """A store that counts the pairs which scans hand out, and fails to write while told to, or after some writes."""

    kv: Kv
    pairs_read: int = 0
    fails: bool = False
    writes_left: int | None = None

    @property
    def writable(self) -> bool:
        return self.kv.writable

    def get(self, key: bytes) -> bytes | None:
        return self.kv.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return self.kv.get_many(keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for pair in self.kv.scan(start, stop):
            self.pairs_read += 1
            yield pair

    def scan_back(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.kv.scan_back(start, stop)

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        if self.fails or self.writes_left == 0:
            raise OSError("disk full")
        if self.writes_left is not None:
            self.writes_left -= 1
        self.kv.write(puts, deletes)

    def sync(self) -> None:
        self.kv.sync()

    def catch_up(self) -> None:
        self.kv.catch_up()

    def close(self) -> None:
        self.kv.close()
