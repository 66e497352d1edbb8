"""How a projection over one RocksDB is opened: the database lies in `db/` of its generation."""

from collections.abc import Callable
from dataclasses import dataclass

from atomlog.kernel.ports import Kv
from atomlog.kernel.rocks import open_primary, open_secondary
from atomlog.projections.base import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksKind:
    """A `ProjectionKind` of one RocksDB. `make` builds the projection over the opened store."""

    name: str
    make: Callable[[Kv], Projection]
    block_cache_bytes: int

    def open_primary(self, directory: str) -> Projection:
        return self._made(open_primary(f"{directory}/db", block_cache_bytes=self.block_cache_bytes))

    def open_secondary(self, directory: str, scratch: str) -> Projection:
        path = f"{directory}/db"
        return self._made(open_secondary(path, f"{scratch}/db", block_cache_bytes=self.block_cache_bytes))

    def _made(self, kv: Kv) -> Projection:
        try:
            return self.make(kv)
        except BaseException:
            kv.close()
            raise
