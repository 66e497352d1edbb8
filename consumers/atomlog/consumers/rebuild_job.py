"""Building one projection anew and comparing it with the live one. The work of one process; `rebuild` starts them.

The live projection is opened as a secondary and not caught up any more: it stands still at one position vector,
which is the target, whoever follows it meanwhile. The new generation is replayed from the beginning of the log to
exactly there, and both are digested.

A killed job leaves a generation that does not count; the next one, or the follower's next start, removes it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from atomlog.consumers.applier import PartitionApplier
from atomlog.consumers.content_digest import content_digest as digest_of_content
from atomlog.consumers.context import Context, ProjectionKind
from atomlog.consumers.generations import Generation, GenerationDirectory, HeldLock
from atomlog.consumers.handles import Handle, opened
from atomlog.consumers.heads_projection import HeadsProjection
from atomlog.consumers.place import check_place
from atomlog.consumers.secondary import open_beside
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kv import u16
from atomlog.kernel.model import Positions
from atomlog.kernel.settings import Settings
from atomlog.projections.base import Projection
from atomlog.projections.ids import Ids

REPLAY_BYTES: Final = 1024 * 1024  # of log at once: more waits longer in memory, and falls out of the caches
Progress = Callable[[int, int], None]
"""(records done, records in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildJob:
    """Build `name` anew in the store at `directory`; give it to readers if `swap` and equal, or `force`."""

    directory: str
    name: str
    swap: bool
    force: bool
    master_key_file: str | None
    settings: Settings

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "RebuildJob":
        known = {field.name: found[field.name] for field in fields(cls)}
        return cls(**{**known, "settings": Settings(**found["settings"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What came of it. `positions` are read positions; digests are hex. `digests`: partition → that of the rebuilt one,
    which replicas that are followed for other partitions, too, have in common.

    `equal` and `digest_live` are None when there was no live projection to compare with, `equal` also when the live one
    was not finished; `content_digest` stands for ids alone, and only where the content can be read. `error` says why
    there is no result, or why live is unreadable or not finished, or which content is lost although it was exchanged.
    """

    name: str
    positions: Mapping[int, int]
    rows: int = 0
    digest_live: str | None = None
    digest_rebuilt: str | None = None
    digests: Mapping[int, str] = field(default_factory=dict)
    equal: bool | None = None
    content_digest: str | None = None
    seconds: float = 0.0
    swapped: bool = False
    generation: str | None = None
    unequal_partitions: tuple[int, ...] = ()
    error: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        positions = {str(partition): position for partition, position in sorted(self.positions.items())}
        digests = {str(partition): digest for partition, digest in sorted(self.digests.items())}
        unequal = list(self.unequal_partitions)
        return {**shown, "positions": positions, "digests": digests, "unequal_partitions": unequal}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "RebuildReport":
        positions = {int(partition): position for partition, position in found["positions"].items()}
        digests = {int(partition): digest for partition, digest in found["digests"].items()}
        unequal = tuple(found["unequal_partitions"])
        return cls(**{**found, "positions": positions, "digests": digests, "unequal_partitions": unequal})


@dataclass(frozen=True, slots=True)
class _Live:
    """The live projection standing still, or why it cannot be read, or neither when there is none."""

    handle: Handle | None = None
    error: AtomlogError | None = None
    unfinished: int = 0  # rows that wait for work behind them, which nobody does now


async def run_job(
    job: RebuildJob,
    context: Context,
    directory: GenerationDirectory,
    kind: ProjectionKind,
    content: ContentOpener,
    progress: Progress,
) -> RebuildReport:
    """Build, compare, and exchange.

    Raises:
        STORE_LOCKED: another process rebuilds or verifies it; heads to be exchanged while the store is written to.
        UPGRADE_REQUIRED, CORRUPT, …: the log cannot be applied up to the target.
    """
    started_us = context.clock.monotonic_us()
    locks = _locks(job, directory)
    generation = live = None
    try:
        generation = directory.new_generation()
        # 1. The target: where the live projection stands, or the log's end when it cannot be read.
        live = await _open_live(context, directory, kind)
        held = _held(context, directory, live)
        target = await _ends(context, held) if live.handle is None else live.handle.positions()
        # 2. Replay to exactly there.
        build = await _Build.open(context, kind, generation, held)
        try:
            await build.replay(target, progress)
            # 3. Compare.
            report = await _compared(job, live, build, target, content)
            # 4. Come as far as the log meanwhile, so that readers need not wait for it.
            swap = job.swap and (report.equal is not False or job.force)
            if swap:
                await build.replay(await _ends(context, held), progress, strict=False)
            await context.workers.run(build.projection.sync)
        finally:
            build.projection.close()
        # 5. Exchange.
        if swap:
            directory.publish(generation)
    finally:
        if generation is not None:
            directory.discard(generation)  # unless it is the current one by now
        if live is not None and live.handle is not None:
            await live.handle.close(context.workers, directory)
        for lock in locks:
            lock.release()
    if swap:
        _sweep_if_nobody_follows(directory)
    seconds = (context.clock.monotonic_us() - started_us) / 1_000_000
    return replace(report, seconds=seconds, swapped=swap, generation=generation.name if swap else None)


class _Build:
    """The new generation while it is made."""

    def __init__(
        self, context: Context, kind: ProjectionKind, projection: Projection, partitions: Sequence[int]
    ) -> None:
        self.projection = projection
        self._context = context
        self._kind = kind
        self._appliers = [PartitionApplier(context, projection, partition) for partition in partitions]
        if isinstance(projection, HeadsProjection):
            by_partition = {applier.partition: applier for applier in self._appliers}
            projection.voids_of = lambda partition: by_partition[partition].voids

    @classmethod
    async def open(
        cls, context: Context, kind: ProjectionKind, generation: Generation, partitions: Sequence[int]
    ) -> "_Build":
        projection = await opened(context.workers, lambda: kind.open_primary(generation.directory))
        return cls(context, kind, projection, partitions)

    async def replay(self, target: Positions, progress: Progress, *, strict: bool = True) -> None:
        """Apply up to `target`, then do the work behind the rows. `strict`: what stops a partition before is raised."""
        total = sum(target.values()) + len(target)
        for applier in self._appliers:
            await self._replay_one(applier, target[applier.partition] + 1, lambda done: progress(done, total), strict)
        while await self._kind.step(self.projection):
            await self._context.clock.sleep(0)

    async def _replay_one(
        self, applier: PartitionApplier, stop: int, progress: Callable[[int], None], strict: bool
    ) -> None:
        while applier.position < stop:
            moved = await applier.advance(lambda: stop, bytes_max=REPLAY_BYTES)
            progress(sum(one.position for one in self._appliers))
            if applier.error is not None and not moved:
                if strict:
                    raise applier.error
                return
            await self._context.clock.sleep(applier.ready_in_us / 1_000_000)


async def _open_live(context: Context, directory: GenerationDirectory, kind: ProjectionKind) -> _Live:
    """The live projection, to stand still from here on. What makes it unreadable is part of the result."""
    if directory.current() is None:
        return _Live()
    handle = None
    try:
        handle = await open_beside(context, directory, kind)
        await _settle(context, directory, kind, handle.projection)
        for partition in handle.held:
            place = handle.projection.checkpoint(partition)
            await check_place(context.log, context.genesis(partition), place, kind.name)
    except AtomlogError as error:
        if handle is not None:
            await handle.close(context.workers, directory)
        if error.code not in ("CORRUPT", "LOG_DIVERGED", "STORE_TOO_NEW"):
            raise
        return _Live(error=error)
    return _Live(handle=handle, unfinished=kind.unfinished(handle.projection))


async def _settle(
    context: Context, directory: GenerationDirectory, kind: ProjectionKind, projection: Projection
) -> None:
    """Let its follower finish the work behind what it has applied: only then can digests agree."""
    deadline_us = context.clock.monotonic_us() + context.settings.read_timeout_ms * 1_000
    while kind.unfinished(projection) and context.clock.monotonic_us() < deadline_us:
        lock = directory.try_lock()
        if lock is not None:  # nobody follows: nothing will change
            lock.release()
            return
        await context.clock.sleep(context.settings.follow_poll_ms / 1_000)
        projection.catch_up()


async def _compared(
    job: RebuildJob, live: _Live, build: _Build, target: Positions, content: ContentOpener
) -> RebuildReport:
    rebuilt = _digests(build.projection, list(target))
    content_digest, unread = await _content_digest(job, build.projection, target, content)
    found, error = None, live.error
    if live.handle is not None:
        try:
            live.handle.projection.read_all()
            found = _digests(live.handle.projection, list(target))
        except AtomlogError as failure:
            error = failure
    unequal = () if found is None else tuple(n for n, digest in rebuilt.items() if digest != found[n])
    equal = False if error is not None else None if found is None else not unequal
    if unequal and live.unfinished:  # a difference that says nothing
        equal, error, unequal = None, _unfinished(job.name, live.unfinished), ()
    return RebuildReport(
        name=job.name,
        positions=dict(target),
        rows=sum(build.projection.rows(partition) for partition in target),
        digest_live=None if found is None else _joined(found),
        digest_rebuilt=_joined(rebuilt),
        digests={partition: digest.hex() for partition, digest in rebuilt.items()},
        equal=equal,
        content_digest=content_digest,
        unequal_partitions=unequal,
        error=None if (why := error or unread) is None else why.to_dict(),
    )


def _unfinished(name: str, rows: int) -> AtomlogError:
    message = f"projection {name}: {rows} rows wait to be embedded, and no process follows that would do it"
    return fail("INDEX_LAGGING", f"{message}; open the store for a while, or run `atomlog rebuild {name}`")


def _digests(projection: Projection, partitions: Sequence[int]) -> dict[int, bytes]:
    """Of each of these partitions, after its rows were counted against what was counted while running."""
    for partition in partitions:
        projection.verify(partition)
    return {partition: projection.digest(partition) for partition in partitions}


def _joined(digests: Mapping[int, bytes]) -> str:
    """One digest for all partitions: SHA-256 over `partition u16 BE ‖ digest` of each, in hex."""
    return hashlib.sha256(b"".join(u16(number) + digest for number, digest in digests.items())).hexdigest()


async def _content_digest(
    job: RebuildJob, projection: Projection, at: Positions, content: ContentOpener
) -> tuple[str | None, AtomlogError | None]:
    """The digest, and what kept it from being made.

    A text that is lost is no part of the index: it keeps nobody from an exchange by force.
    """
    if not isinstance(projection, Ids):
        return None, None
    try:
        return await digest_of_content(projection, content, at), None
    except AtomlogError as error:
        if error.code == "KEY_UNAVAILABLE":
            return None, None
        if error.code == "CORRUPT" and job.swap and job.force:
            return None, error
        raise


def _locks(job: RebuildJob, directory: GenerationDirectory) -> list[HeldLock]:
    """The right to build; for heads also that of their only user, who does not look for another generation."""
    locks = [directory.rebuild_lock()]
    try:
        if job.swap and job.name == HeadsProjection.name:
            locks.append(directory.lock())
    except BaseException:
        locks[0].release()
        raise
    return locks


def _sweep_if_nobody_follows(directory: GenerationDirectory) -> None:
    """A follower removes the old generation when its readers are done; without one it goes now."""
    lock = directory.try_lock()
    if lock is not None:
        directory.sweep()
        lock.release()


async def _ends(context: Context, partitions: Sequence[int]) -> Positions:
    """The last position of some partitions of the log."""
    return {partition: await context.log.end(partition) - 1 for partition in partitions}


def _held(context: Context, directory: GenerationDirectory, live: _Live) -> Sequence[int]:
    """The partitions that the projection is followed for."""
    return directory.assigned(context.config.partitions) if live.handle is None else live.handle.held
