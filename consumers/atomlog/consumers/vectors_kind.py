"""How vectors are opened: `db/` and `shards/` of their generation, and the embedding cache beside the generations."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.generations import GenerationDirectory, Scratch
from atomlog.consumers.kinds import made
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import File, Files, Kv, Workers
from atomlog.kernel.rocks import open_primary, open_secondary
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.projections.base import Projection
from atomlog.projections.encoders import Encoder
from atomlog.projections.vectors import Vectors


class VectorsKind:
    """The `ProjectionKind` of vectors: `db/` and `shards/` in a generation, and the embedding cache beside them.

    The cache outlives generations, so that a rebuild does not pay for embeddings again. One process writes it; another
    one, a rebuild beside a follower, reads it and keeps its own new embeddings only in its generation. One that is
    damaged is done without. Damaged files that can be made again are said as events, `damage_found`.
    """

    name = "vectors"

    def __init__(
        self,
        *,
        partitions: int,
        shard_rows: int,
        spaces: Sequence[VectorSpace],
        encoders: Mapping[str, Encoder],
        content: ContentOpener,
        directory: GenerationDirectory,
        files: Files,
        workers: Workers,
        settings: Settings,
        on_event: OnEvent = log_event,
    ) -> None:
        self._partitions = partitions
        self._shard_rows = shard_rows
        self._spaces = spaces
        self._encoders = encoders
        self._content = content
        self._files = files
        self._workers = workers
        self._settings = settings
        self._on_event = on_event
        self._told: Sequence[str] = ()
        self._cache = _SharedCache(files, directory, settings.block_cache_bytes)

    def open_primary(self, directory: str) -> Projection:
        kv = open_primary(f"{directory}/db", block_cache_bytes=self._settings.block_cache_bytes)
        cache = made(kv, lambda _: self._cache.take())
        try:
            return made(kv, lambda kv: self._retrying(kv, directory, cache))
        except BaseException:
            self._cache.give_back(cache)
            raise

    def open_secondary(self, directory: str, scratch: str) -> Projection:
        cache_bytes = self._settings.block_cache_bytes
        kv = open_secondary(f"{directory}/db", f"{scratch}/db", block_cache_bytes=cache_bytes)
        return made(kv, lambda kv: self._vectors(kv, directory, None))

    async def prepare(self, projection: Projection) -> None:
        assert isinstance(projection, Vectors)
        await projection.load()
        self._tell(projection)

    async def step(self, projection: Projection) -> bool:
        assert isinstance(projection, Vectors)
        did = await projection.step()
        self._tell(projection)
        return did

    def unfinished(self, projection: Projection) -> int:
        """Rows that were not looked at or wait for another try; those that have failed for good are done with."""
        assert isinstance(projection, Vectors)
        works = [(n, projection.work(n, space.id)) for n in range(self._partitions) for space in self._spaces]
        return sum(projection.rows(partition) - work.cursor + work.retrying for partition, work in works)

    def _tell(self, projection: Vectors) -> None:
        incidents = (*projection.incidents, *([] if self._cache.fault is None else [self._cache.fault]))
        for incident in incidents:
            if incident not in self._told:
                self._on_event({"event": "damage_found", "projection": self.name, "error": incident})
        self._told = incidents

    def _retrying(self, kv: Kv, directory: str, cache: Kv | None) -> Vectors:
        """What failed in an earlier process, or had no master key there, is tried again by this one."""
        vectors = self._vectors(kv, directory, cache)
        vectors.retry_failed()
        return vectors

    def _vectors(self, kv: Kv, directory: str, cache: Kv | None) -> Vectors:
        return _VectorsWithCache(
            kv,
            self._partitions,
            spaces=self._spaces,
            shard_rows=self._shard_rows,
            directory=f"{directory}/shards",
            files=self._files,
            workers=self._workers,
            settings=self._settings,
            content=self._content,
            encoders=self._encoders,
            cache=cache,
            on_close=partial(self._cache.give_back, cache),
        )


class _VectorsWithCache(Vectors):
    """Gives its share of the cache back when it is closed."""

    def __init__(self, *args: Any, on_close: Callable[[], None], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._on_close = on_close

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._on_close()


class _SharedCache:
    """`projections/vectors/cache`, opened once for all generations that this process has open."""

    def __init__(self, files: Files, directory: GenerationDirectory, block_cache_bytes: int) -> None:
        self.fault: str | None = None  # why it could not be opened
        self._files = files
        self._directory = directory
        self._block_cache_bytes = block_cache_bytes
        self._path = f"{directory.directory}/cache"
        self._kv: Kv | None = None
        self._place: File | None = None  # the directory of `_kv`
        self._scratch: Scratch | None = None
        self._users = 0
        self._lock = threading.Lock()  # generations are opened and closed on the workers' threads

    def take(self) -> Kv | None:
        """None when it is damaged, or was removed while it is open: then it is done without."""
        with self._lock:
            if self._kv is None:
                try:
                    self._kv = self._open()
                    self._place = self._files.open(self._path, write=False)
                except AtomlogError as error:
                    if error.code != "CORRUPT":
                        raise
                    self.fault = error.message
                    self._drop_scratch()
            if self._kv is None or not self._is_in_place():
                return None
            self._users += 1
            return self._kv

    def give_back(self, taken: Kv | None) -> None:
        """What `take` gave."""
        with self._lock:
            self._users -= taken is not None
            if self._users == 0 and self._kv is not None:
                self._close(self._kv)

    def _is_in_place(self) -> bool:
        return self._place is not None and self._place.is_at(self._path)

    def _close(self, kv: Kv) -> None:
        try:
            kv.close()
        except OSError:
            if self._is_in_place():
                raise  # of what was removed nothing can be made durable
        finally:
            self._kv = None
            if self._place is not None:
                self._place.close()
                self._place = None
            self._drop_scratch()

    def _drop_scratch(self) -> None:
        if self._scratch is not None:
            self._directory.drop(self._scratch)
            self._scratch = None

    def _open(self) -> Kv:
        path = self._path
        try:
            return open_primary(path, block_cache_bytes=self._block_cache_bytes)
        except AtomlogError as error:
            if error.code != "STORE_LOCKED":
                raise
        self._scratch = self._directory.scratch()
        kv = open_secondary(path, f"{self._scratch.directory}/db", block_cache_bytes=self._block_cache_bytes)
        return _ReadOnly(kv)


class _ReadOnly:
    """A `Kv` that another process writes: what is to be kept here is not kept."""

    writable = False

    def __init__(self, kv: Kv) -> None:
        self._kv = kv

    def get(self, key: bytes) -> bytes | None:
        return self._kv.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return self._kv.get_many(keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._kv.scan(start, stop)

    def scan_back(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._kv.scan_back(start, stop)

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """Dropped: an embedding that is not kept is made again when it is needed again."""

    def sync(self) -> None:
        """Nothing was written."""

    def catch_up(self) -> None:
        self._kv.catch_up()

    def close(self) -> None:
        self._kv.close()
