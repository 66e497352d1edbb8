"""One process of a store: its log, its owner, its projections. Put together as `parts` and `writing` do for a real one.

What stands on sockets, SQLite and RocksDB is replaced: see the README of this folder.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from atomlog.consumers.attachment import Attachment
from atomlog.consumers.context import Context, ProjectionKind
from atomlog.consumers.generations import Generation, GenerationDirectory, HeldLock
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.heads import Heads
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.model import LOCAL_PRINCIPAL, Outcome, WriteRequest, WriteResult
from atomlog.kernel.owner import Owner
from atomlog.kernel.plan import Rules
from atomlog.kernel.ports import BlobStore, Kv, Log
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import VectorSpace, parse_vector_space
from atomlog.kernel.world import World
from atomlog.projections.base import Projection
from atomlog.projections.encoders.port import TEXT, Matrix, Vector
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.relations import Relations
from atomlog.projections.vectors import Vectors
from tests.simulation.ports import Process, SimulatedKv, open_primary, open_secondary
from tests.support.kernel_world import RIGHTS
from tests.support.sealed import MASTER

ROOT: Final = "/store"
SPACE: Final = "hashing/1/16/cosine"
BOUNDS: Final = Bounds(value_bytes_max=400)  # so that some texts are blobs
SETTINGS: Final = Settings(
    write_timeout_ms=3_000,
    read_timeout_ms=2_000,
    segment_bytes=6_000,
    follow_poll_ms=100,
    sync_interval_ms=400,
    apply_retries=2,
    apply_retry_ms=20,
    watchdog_ms=10_000,
    key_wait_ms=200,
    postings_window=1_000_000,
)
READ_SECONDS: Final = 2.0
INDEXES: Final = ("ids", "relations", "postings")


class StoreProcess(Protocol):
    """What kind of log and blobs a node has."""

    def log(self, process: Process, say: Callable[[Mapping[str, Any]], None]) -> Log: ...
    def blobs(self, process: Process) -> BlobStore: ...
    def tail_was_cut(self, log: Log, partition: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A `ProjectionKind` over simulated stores. `make` builds the projection over an opened one."""

    name: str
    process: Process
    make: Callable[[Kv, str], Projection]

    def open_primary(self, directory: str) -> Projection:
        return self._made(open_primary(self.process, f"{directory}/db"), directory)

    def open_secondary(self, directory: str, scratch: str) -> Projection:
        return self._made(open_secondary(self.process, f"{directory}/db"), directory)

    async def prepare(self, projection: Projection) -> None:
        if isinstance(projection, Vectors):
            await projection.load()

    async def step(self, projection: Projection) -> bool:
        return await projection.step() if isinstance(projection, Vectors) else False

    def unfinished(self, projection: Projection) -> int:
        if not isinstance(projection, Vectors):
            return 0
        works = [(n, projection.work(n, SPACE)) for n in range(projection.partitions)]
        return sum(projection.rows(partition) - work.cursor + work.retrying for partition, work in works)

    def _made(self, kv: SimulatedKv, directory: str) -> Projection:
        try:
            return self.make(kv, directory)
        except BaseException:
            kv.close()
            raise


class QuickEncoder:
    """An `Encoder` whose vectors are digests: the real one takes longer to make than a whole simulation."""

    media_types = frozenset({TEXT})

    def __init__(self, space: VectorSpace, process: Process) -> None:
        self.space = space
        self._workers = process.workers

    async def encode_passages(self, texts: Sequence[str]) -> Matrix:
        return await self._workers.run(lambda: np.stack([self._vector(text) for text in texts]))

    async def encode_query(self, text: str) -> Vector:
        return self._vector(text)

    def _vector(self, text: str) -> Vector:
        raw = hashlib.shake_256(text.encode()).digest(self.space.dim)
        row = np.frombuffer(raw, dtype=np.int8).astype(np.float32) + np.float32(0.5)
        vector: Vector = row / np.float32(np.linalg.norm(row))
        return vector


class Node:
    """Start with `start`; `close` ends it as a program ends that nothing happened to."""

    def __init__(self, process: Process, config: StoreConfig, store: StoreProcess, names: tuple[str, ...]) -> None:
        self.process = process
        self.owner: Owner | None = None
        self.attachments: dict[str, Attachment] = {}
        self.is_up = False
        self._is_closing = False
        self._config = config
        self._store = store
        self._names = names
        self._changing = asyncio.Lock()
        self._heads: SimulatedKv | None = None
        self._heads_lock: HeldLock | None = None
        self._seen = dict.fromkeys(names, -1)

    async def start(self) -> None:
        process = self.process
        self.log = self._store.log(process, self.say)
        self.blobs = self._store.blobs(process)
        self.ring = KeyRing(
            process.keys,
            master=MASTER,
            randomness=process.randomness,
            clock=process.clock,
            key_wait_ms=SETTINGS.key_wait_ms,
        )
        self.content = ContentOpener(self.ring, self.blobs)
        context = Context(
            log=self.log,
            config=self._config,
            clock=process.clock,
            workers=process.workers,
            settings=SETTINGS,
            on_event=self.say,
        )
        await self._hold_if_free()
        for kind in self._kinds():
            deadline_us = process.clock.monotonic_us() + int(READ_SECONDS * 1_000_000)
            directory = self._directory(kind.name)
            self.attachments[kind.name] = await Attachment.open(context, directory, kind, deadline_us=deadline_us)
        self.is_up = True

    async def write(self, request: WriteRequest) -> WriteResult:
        return await (await self._hold()).write(request, LOCAL_PRINCIPAL)

    async def outcome(self, space: str, key: str) -> Outcome:
        return await (await self._hold()).outcome(space, key, LOCAL_PRINCIPAL)

    async def claim(self) -> None:
        await (await self._hold()).claim()

    async def release(self) -> None:
        if self.owner is not None:
            await self.owner.release("asked to")

    async def trouble(self) -> str | None:
        """Why this process must be started anew, as its operator would find."""
        if self.owner is not None and self.owner.phase == "failed":
            return str(self.owner._failure)
        return next((f"{name}: {one.error}" for name, one in self.attachments.items() if one.error is not None), None)

    async def has_arrived(self) -> bool:
        """Whether everything that is followed here can be read up to the end of the log."""
        if await self.trouble() is not None:
            return False
        end = await self.log.end(0)
        for name in self._names:
            await self.attachments[name].catch_up()
            self._check_open()
            if self.position(name) < end - 1:
                return False
        return True

    def position(self, name: str) -> int:
        """How far a projection can be read here. Never less than before."""
        found = self.attachments[name].positions()[0]
        assert found >= self._seen[name], f"{self.process.name}: {name} went back from {self._seen[name]} to {found}"
        self._seen[name] = found
        return found

    async def revision_at(self, revision: bytes, position: int) -> bool:
        """Read your write: whether the ids here, as of `position` or later, have this revision at it."""
        deadline_us = self.process.clock.monotonic_us() + int(READ_SECONDS * 1_000_000)
        await self.attachments["ids"].wait_for({0: position}, deadline_us)
        self._check_open()
        async with self.attachments["ids"].pinned() as projection:
            assert isinstance(projection, Ids)
            row = projection.revision(revision)
        self.position("ids")
        return row is not None and row.position == position

    async def head_as_of(self, atom: bytes) -> tuple[int, bytes | None]:
        """A position that can be read here, and the head of an atom as of it."""
        await self.attachments["ids"].catch_up()
        self._check_open()
        position = self.position("ids")
        async with self.attachments["ids"].pinned() as projection:
            assert isinstance(projection, Ids)
            position = min(position, projection.checkpoint(0).position - 1)
            row = projection.head(atom, {0: position})
        return position, None if row is None else row.revision

    def _check_open(self) -> None:
        if self._is_closing:
            raise ConnectionError(f"{self.process.name} is being closed")

    async def close(self) -> None:
        self._is_closing = True
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.log.close)
            if self._heads_lock is not None:
                closing.callback(self._heads_lock.release)
            if self._heads is not None:
                closing.callback(self._heads.close)
            if self.owner is not None:
                closing.push_async_callback(self.owner.close)
            for attachment in self.attachments.values():
                closing.push_async_callback(attachment.close)

    def say(self, event: Mapping[str, Any]) -> None:
        if not self.process.is_dead:
            self.process.machine.calls.trace(f"{self.process.name} says {dict(event)}")

    async def _hold(self) -> Owner:
        """The owner of this process. NOT_OWNER when another process holds the store; nothing is held then."""
        async with self._changing:
            if self.owner is None:
                self.owner = await self._take()
            return self.owner

    async def _hold_if_free(self) -> None:
        """As `WriteSide.open`: whoever opens a store takes it if nobody has it."""
        try:
            await self._hold()
        except AtomlogError as error:
            if error.code not in ("NOT_OWNER", "STORE_LOCKED", "STORE_READ_ONLY"):
                raise

    async def _take(self) -> Owner:
        """As `Holder.take`."""
        heads = lock = owner = None
        try:
            await self.log.acquire(0)
            directory = self._directory("heads")
            lock = directory.lock()
            generation, fresh = directory.current_or_new()
            heads = await self.process.workers.run(lambda: self._open_heads(generation))
            if fresh:
                directory.publish(generation)
            owner = Owner(self._world(heads), 0)
            await owner.start()
        except BaseException:
            if owner is not None:
                await owner.close()
            if heads is not None:
                heads.close()
            if lock is not None:
                lock.release()
            if self.log.exclusive:
                await self.log.release(0)  # type: ignore[attr-defined]
            raise
        self._heads, self._heads_lock = heads, lock
        return owner

    def _open_heads(self, generation: Generation) -> SimulatedKv:
        return open_primary(self.process, f"{generation.directory}/db")

    def _directory(self, name: str) -> GenerationDirectory:
        process = self.process
        return GenerationDirectory(process.files, ROOT, name, self.say, process_id=lambda: process.pid)

    def _kinds(self) -> list[ProjectionKind]:
        make: Mapping[str, Callable[[Kv, str], Projection]] = {
            "ids": lambda kv, _: Ids(kv, 1),
            "relations": lambda kv, _: Relations(kv, 1),
            "postings": lambda kv, _: Postings(kv, 1, window=SETTINGS.postings_window),
            "vectors": self._vectors,
        }
        return [Kind(name=name, process=self.process, make=make[name]) for name in self._names]

    def _vectors(self, kv: Kv, directory: str) -> Vectors:
        process, space = self.process, parse_vector_space(SPACE, "space")
        return Vectors(
            kv,
            1,
            spaces=(space,),
            shard_rows=self._config.shard_rows,
            directory=f"{directory}/shards",
            files=process.files,
            workers=process.workers,
            settings=SETTINGS,
            content=self.content,
            encoders={SPACE: QuickEncoder(space, process)},
            cache=None,
        )

    def _world(self, heads: Kv) -> World:
        process = self.process
        return World(
            log=self.log,
            genesis={0: self._config.genesis(0)},
            heads=Heads(heads, 1),
            ring=self.ring,
            content=self.content,
            blobs=self.blobs,
            receipts=None,
            clock=process.clock,
            randomness=process.randomness,
            workers=process.workers,
            rules=Rules(bounds=BOUNDS, spaces={SPACE: parse_vector_space(SPACE, "space")}, rights=RIGHTS),
            settings=SETTINGS,
            node=process.name,
            pid=process.pid,
            endpoint=f"sim:{process.name}",
            say=self.say,
            admit=lambda: None,
            clean_tail=lambda partition: not self._store.tail_was_cut(self.log, partition),
        )
