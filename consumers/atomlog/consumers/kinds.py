"""How projections of one RocksDB, in `db/` of their generation, are opened. Vectors have more: `vectors_kind`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from atomlog.kernel.ports import Kv
from atomlog.kernel.rocks import open_primary, open_secondary
from atomlog.projections.base import Projection

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksKind:
    """A `ProjectionKind` of one RocksDB without background work. `make` builds the projection over the opened store."""

    name: str
    make: Callable[[Kv], Projection]
    block_cache_bytes: int

    def open_primary(self, directory: str) -> Projection:
        return self._made(open_primary(f"{directory}/db", block_cache_bytes=self.block_cache_bytes))

    def open_secondary(self, directory: str, scratch: str) -> Projection:
        path = f"{directory}/db"
        return self._made(open_secondary(path, f"{scratch}/db", block_cache_bytes=self.block_cache_bytes))

    async def prepare(self, projection: Projection) -> None:
        """Nothing: RocksDB is ready when it is open."""

    async def step(self, projection: Projection) -> bool:
        return False

    def unfinished(self, projection: Projection) -> int:
        return 0

    def _made(self, kv: Kv) -> Projection:
        return made(kv, self.make)


def made(kv: Kv, make: Callable[[Kv], T]) -> T:
    """What `make` makes of an opened store, which is closed when it fails."""
    try:
        return make(kv)
    except BaseException:
        kv.close()
        raise
