"""A store directory with a real log and real projections, for tests of followers and rebuilds."""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from atomlog.consumers.context import Context, ProjectionKind
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.kinds import RocksKind
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.kv import Staged, u16, u64
from atomlog.kernel.log.embedded import EmbeddedLog, create_log
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock, SystemFiles, ThreadWorkers
from atomlog.kernel.tail import EffectiveRecord
from atomlog.projections.base import KvProjection, Projection
from atomlog.projections.ids import Ids
from tests.support.batches import LOG_ID, LogBuilder, create, member, revise

T = TypeVar("T")
CACHE = 8 * 1024 * 1024
QUICK = Settings(sync_interval_ms=20, follow_poll_ms=2, apply_retry_ms=1, apply_retries=2)
SECONDS = 20.0  # a deadline of tests: long, because reaching it means failure


class Toy(KvProjection):
    """One row a batch: position → SHA-256 of its value. `poison` are positions that it cannot apply."""

    name = "toy"
    content = (b"T",)
    poison: frozenset[int] = frozenset()
    tries: list[int]

    def _effects(self, partition: int, record: EffectiveRecord, staged: Staged) -> None:
        if record.position in self.poison:
            raise ValueError(f"cannot digest {record.position}")
        staged.insert(b"T" + u16(partition) + u64(record.position), hashlib.sha256(record.record.value).digest())


class Stubborn(Toy):
    name = "stubborn"
    skips_poison = False


class ToyKind(RocksKind):
    """Background work is the toy's own `step`, where it has one."""

    async def step(self, projection: Projection) -> bool:
        step: Callable[[], Awaitable[bool]] | None = getattr(projection, "step", None)
        return False if step is None else await step()

    def unfinished(self, projection: Projection) -> int:
        return int(getattr(projection, "unfinished", 0))


def toy(partitions: int = 1, *, poison: Sequence[int] = (), of: type[Toy] = Toy) -> RocksKind:
    broken = type(of.__name__, (of,), {"poison": frozenset(poison)})
    return ToyKind(name=of.name, make=lambda kv: broken(kv, partitions), block_cache_bytes=CACHE)


def ids(partitions: int = 1) -> RocksKind:
    return RocksKind(name="ids", make=lambda kv: Ids(kv, partitions), block_cache_bytes=CACHE)


@dataclass(slots=True)
class World:
    """A store directory; the log in it is filled from `builders`, one a partition."""

    root: str
    config: StoreConfig
    context: Context
    log: EmbeddedLog
    builders: list[LogBuilder]
    events: list[dict[str, Any]] = field(default_factory=list)
    _written: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, path: Path, *, partitions: int = 1, settings: Settings = QUICK, **config: Any) -> "World":
        files, root = SystemFiles(), str(path / "store")
        files.make_directory(root)
        store = StoreConfig(log_id=LOG_ID, partitions=partitions, **config)
        store.save(files, root)
        create_log(files, root, LOG_ID, partitions)
        return cls.open(path, settings=settings)

    @classmethod
    def open(cls, path: Path, *, settings: Settings = QUICK) -> "World":
        files, root = SystemFiles(), str(path / "store")
        config = StoreConfig.load(files, root)
        log = open_log(root, config, settings)
        events: list[dict[str, Any]] = []
        context = Context(
            log=log,
            config=config,
            clock=SystemClock(),
            workers=ThreadWorkers(),
            settings=settings,
            on_event=lambda event: events.append(dict(event)),
        )
        builders = [LogBuilder(partition=n, partitions=config.partitions) for n in range(config.partitions)]
        return cls(root, config, context, log, builders, events)

    def directory(self, name: str) -> GenerationDirectory:
        return GenerationDirectory(SystemFiles(), self.root, name, self.context.on_event)

    async def flush(self, partition: int = 0) -> int:
        """Append what was built since; the log's end after it."""
        await self.log.acquire(partition)
        records = self.builders[partition].log_records[self._written.get(partition, 0) :]
        for start in range(0, len(records), 50):
            await self.log.append(partition, [_plain(one) for one in records[start : start + 50]])
        self._written[partition] = len(self.builders[partition].log_records)
        return self._written[partition]

    async def write(self, batches: int, partition: int = 0) -> int:
        """Append some batches of creations, revisions and memberships; the log's end after them."""
        fill(self.builders[partition], batches)
        return await self.flush(partition)

    def deadline_us(self) -> int:
        return self.context.clock.monotonic_us() + int(SECONDS * 1_000_000)

    def said(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    async def close(self) -> None:
        await self.log.close()


def open_log(root: str, config: StoreConfig, settings: Settings = QUICK) -> EmbeddedLog:
    return EmbeddedLog(
        files=SystemFiles(),
        workers=ThreadWorkers(),
        clock=SystemClock(),
        directory=root,
        log_id=config.log_id,
        partitions=config.partitions,
        settings=settings,
    )


def fill(builder: LogBuilder, batches: int) -> None:
    for _ in range(batches):
        number = builder.end
        name = f"{builder.partition}/{number}"
        changes = [create(name, value={"text": f"text {number}"})]
        if builder.heads and number % 3 == 0:
            changes.append(revise(sorted(builder.heads)[number % len(builder.heads)], value={"text": f"new {number}"}))
        if number % 2 == 0:
            changes.append(member(f"{name}/m", group=f"group {number % 5}", of=name))
        builder.batch("notes", changes)


def open_files(world: World, part: str = "") -> list[str]:
    """Files that this process has open below `projections`, those of a path with `part` in it."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in found if path.startswith(f"{world.root}/projections") and part in path)


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str = "the condition") -> None:
    """Wait for something that must come true; the deadline only ends a test that has failed."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true"
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.002)


def run(work: Awaitable[T]) -> T:
    async def inner() -> T:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(inner())


def kinds(*given: ProjectionKind) -> dict[str, ProjectionKind]:
    return {kind.name: kind for kind in given}


def _plain(one: LogRecord) -> Any:
    return one.record


async def built_beside(world: World, kind: Any, upto: int) -> None:
    """What a rebuild does: a later generation up to some position, published."""
    directory = world.directory(kind.name)
    generation = directory.new_generation()
    projection = kind.open_primary(generation.directory)
    builder = world.builders[0]
    records = [record for record in builder.records if record.position < upto]
    projection.apply(0, records, builder.checkpoints[upto])
    projection.sync()
    projection.close()
    directory.publish(generation)
