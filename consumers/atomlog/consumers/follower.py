"""Follows the log for one projection: the loop, its readers, and the exchange of one generation for the next.

One task reads, applies and syncs; a second does the projection's background work (embedding, sealing), so that it
never keeps the first one waiting; a third watches over the first. All run on the event loop; syncs and opening run
on the workers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Final

from atomlog.consumers.applier import PartitionApplier
from atomlog.consumers.context import Context, Lag, ProjectionKind
from atomlog.consumers.generations import Generation, GenerationDirectory, HeldLock
from atomlog.consumers.handles import Handle, opened
from atomlog.consumers.lag import LagMeter
from atomlog.consumers.views import Health, Standing, describe, health_of, is_behind, lagging
from atomlog.consumers.waiting import Signal, first_of
from atomlog.consumers.watchdog import log_ends, watch
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.model import Positions
from atomlog.projections.base import Projection

IDLE_SECONDS_MAX: Final = 0.5  # how long a new CURRENT may go unnoticed while nothing is written
SWAP_RETRY_US: Final = 5_000_000
CLOSE_SECONDS_MAX: Final = 10.0
LOOK_US: Final = 50_000  # between two looks for a new CURRENT that reads cause


class Follower:
    """Runs one projection as the only process that may: it holds the projection's lock until `close`."""

    def __init__(
        self,
        context: Context,
        directory: GenerationDirectory,
        kind: ProjectionKind,
        lock: HeldLock,
        partitions: Sequence[int],
        handle: Handle,
    ) -> None:
        """Use `start`."""
        self.name = kind.name
        self.restarts = 0
        self.is_displaced = False  # another process follows now, although this one never gave up its lock
        self._context = context
        self._directory = directory
        self._kind = kind
        self._lock = lock
        self._partitions = tuple(partitions)
        self._handle = handle
        self._appliers = self._new_appliers(handle.projection)
        self._retired: list[Handle] = []
        self._meter = LagMeter(context)
        self._moved = Signal()  # a position, a stop, a swap: for readers and background work
        self._wake = Signal()  # for the loop itself
        self._holds: Mapping[int, int] | None = None
        self._epoch = 0  # of the loop task: an abandoned one sees that it does not count any more
        self._closing = False
        self._is_preparing = False
        self._dirty = 0  # records applied since the last sync
        self._progress = 0  # for the watchdog: goes up whenever something is applied, to either generation
        self._synced_us = context.clock.monotonic_us()
        self._looked_us = 0  # for a new CURRENT, by a read
        self._swap_after_us = 0
        self._background_error: str | None = None
        self._noted: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        context: Context,
        directory: GenerationDirectory,
        kind: ProjectionKind,
        *,
        partitions: Sequence[int] | None = None,
        lock: HeldLock | None = None,
    ) -> "Follower":
        """Open the current generation, or the first one, and follow the log from where it stands.

        `partitions`: those that are followed, else those that the directory is assigned.
        `lock` is the projection's if the caller has it already; it is released when this fails. A projection that
        does not fit the log starts STOPPED and says why.

        Raises STORE_LOCKED, STORE_READ_ONLY, STORE_TOO_NEW, CORRUPT.
        """
        held = lock or directory.lock()
        try:
            followed = directory.assigned(context.config.partitions) if partitions is None else tuple(partitions)
            generation, fresh = directory.current_or_new()
            handle = await _opened(context, directory, kind, generation, followed, fresh=fresh)
        except BaseException:
            held.release()
            raise
        follower = cls(context, directory, kind, held, followed, handle)
        try:
            directory.sweep({generation.name})  # a rebuild may have published another one since CURRENT was read
            for applier in follower._appliers.values():
                await applier.check()
            await kind.prepare(handle.projection)
            await follower._note_health()
        except BaseException:
            await follower.close()
            raise
        follower._start_loop()
        follower._tasks = [asyncio.create_task(follower._watch()), asyncio.create_task(follower._work())]
        return follower

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> str:
        return self._handle.generation.name

    @property
    def held(self) -> tuple[int, ...]:
        return self._partitions

    @property
    def error(self) -> AtomlogError | None:
        """The first reason why a partition stands still."""
        return next((applier.error for applier in self._appliers.values() if applier.error is not None), None)

    @property
    def is_stopped_for_good(self) -> bool:
        """Every partition stands still and no Repair record can help."""
        return all(one.error is not None and not one.waits_for_repair for one in self._appliers.values())

    @property
    def health(self) -> Health:
        return health_of(self._handle.projection, self.error, troubled=self._background_error is not None)

    @property
    def voids(self) -> Mapping[int, Mapping[str, int]]:
        """Void records that were skipped since this generation was opened, by partition and reason."""
        return {partition: applier.voids for partition, applier in self._appliers.items()}

    def pin(self) -> Handle:
        return self._handle.pin()

    def pinned(self) -> AbstractAsyncContextManager[Projection]:
        return self._handle.pinned()

    def positions(self) -> Positions:
        return {partition: applier.position - 1 for partition, applier in self._appliers.items()}

    async def catch_up(self) -> None:
        """Begin to move over to a generation that was published since; readers need not wait for it."""
        now_us = self._context.clock.monotonic_us()
        if now_us - self._looked_us < LOOK_US:  # reads come faster than generations are published
            return
        self._looked_us = now_us
        if self._new_current() is not None:
            self._wake.notify()

    async def wait_for(self, positions: Positions, deadline_us: int) -> None:
        clock = self._context.clock
        while is_behind(self.positions(), positions):
            stopped = next((one.error for p, one in self._appliers.items() if p in positions and one.error), None)
            left_us = deadline_us - clock.monotonic_us()
            if stopped is not None or left_us <= 0 or self._closing:
                raise lagging(self.name, self.positions(), positions, stopped)
            await self._moved.wait_within(clock, left_us / 1_000_000)

    async def wait_for_generation(self, generation: str, deadline_us: int) -> bool:
        """Until `pinned` gives this generation or a later one, or the deadline; says which."""
        clock = self._context.clock
        while self.generation < generation and (left_us := deadline_us - clock.monotonic_us()) > 0:
            self._wake.notify()
            await self._moved.wait_within(clock, min(left_us / 1_000_000, IDLE_SECONDS_MAX))
        return self.generation >= generation

    async def lag(self) -> Mapping[int, Lag]:
        return {p: await self._meter.measure(p, applier.position) for p, applier in self._appliers.items()}

    async def status(self, revisions: int | None = None) -> dict[str, Any]:
        async with self.pinned() as projection:
            standing = Standing(
                generation=self.generation,
                health=self.health,
                error=self.error,
                lags=await self.lag(),
                follower=self._directory.process_id(),
                restarts=self.restarts,
            )
            return describe(projection, standing, revisions)

    # --- steering ------------------------------------------------------------------------------------------------

    def pause(self, at: Positions | None = None) -> None:
        """Apply nothing beyond these read positions; without any, nothing more at all. At once, and not backwards."""
        self._holds = dict(self.positions() if at is None else at)
        self._wake.notify()

    def resume(self) -> None:
        self._holds = None
        self._wake.notify()

    async def close(self) -> None:
        """Stop, make everything applied durable, wait a little for readers, and release the lock."""
        if self._closing:
            return
        self._closing = True
        self._epoch += 1
        self._wake.notify()
        self._moved.notify()
        tasks = [task for task in (*self._tasks, self._loop) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS_MAX)
        async with AsyncExitStack() as closing:  # whatever of it fails, the lock is given back
            closing.callback(self._lock.release)
            for handle in (self._handle, *self._retired):
                closing.push_async_callback(self._close_handle, handle)
            closing.push_async_callback(self._note_health, is_closing=True)
            await self._context.workers.run(self._handle.projection.sync)

    async def _close_handle(self, handle: Handle) -> None:
        if not await handle.drained(self._context.clock, CLOSE_SECONDS_MAX):
            self._say("closed_under_a_reader", generation=handle.generation.name, pins=handle.pins)
        await handle.close(self._context.workers, self._directory)

    # --- the loop ------------------------------------------------------------------------------------------------

    def _start_loop(self) -> None:
        self._epoch += 1
        self._loop = asyncio.create_task(self._follow(self._epoch))

    async def _follow(self, epoch: int) -> None:
        start, failure = 0, ""
        while self._counts(epoch):
            try:
                moved = await self._applied_and_swapped(start, epoch)
                await self._note_health()
                await (self._context.clock.sleep(0) if moved else self._idle())
            except Exception as error:  # a bug or the machine: said, and tried again, never a silent end
                text = f"{type(error).__name__}: {error}"
                if text != failure:
                    self._say("follower_failed", error=text)
                failure = text
                await self._context.clock.sleep(self._context.settings.apply_retry_ms / 1_000)
            start += 1

    async def _applied_and_swapped(self, start: int, epoch: int) -> bool:
        """A round, and the exchange of generations. A failing generation keeps no later one from taking over."""
        try:
            moved = await self._round(start, epoch)
            await self._sync_if_due()
        except Exception:
            await self._swap_if_published(epoch)
            raise
        await self._swap_if_published(epoch)
        await self._bury()
        return moved

    async def _round(self, start: int, epoch: int) -> bool:
        """Each partition once, a different one first each time; True when one moved."""
        moved = False
        for offset in range(len(self._partitions)):
            partition = self._partitions[(start + offset) % len(self._partitions)]
            moved |= await self._advance(self._appliers[partition], epoch)
        return moved

    async def _advance(self, applier: PartitionApplier, epoch: int) -> bool:
        applied, error = applier.applied, applier.error
        moved = await applier.advance(lambda: self._limit(applier.partition), alive=lambda: self._counts(epoch))
        self._dirty += applier.applied - applied
        self._progress += applier.applied - applied
        if moved or applier.error is not error:
            self._moved.notify()
        return moved

    def _limit(self, partition: int) -> int | None:
        """The next position not to read, where readers or tests hold it."""
        return None if self._holds is None else self._holds.get(partition, -1) + 1

    def _counts(self, epoch: int) -> bool:
        return epoch == self._epoch and not self._closing

    async def _sync_if_due(self) -> None:
        now_us, settings = self._context.clock.monotonic_us(), self._context.settings
        is_due = self._dirty >= settings.sync_records or now_us - self._synced_us >= settings.sync_interval_ms * 1_000
        if not self._dirty or not is_due:
            return
        self._dirty = 0
        try:
            await self._context.workers.run(self._handle.projection.sync)
        except Exception as error:  # what was applied may be lost: nothing may build on it
            text = f"projection {self.name}: syncing failed: {error}; restart once the disk is well"
            for applier in self._appliers.values():
                applier.stop(fail("CORRUPT", text))
            self._moved.notify()
        self._synced_us = self._context.clock.monotonic_us()

    async def _idle(self) -> None:
        """Until there may be something to do."""
        seconds = IDLE_SECONDS_MAX
        if self._dirty:
            seconds = min(seconds, self._context.settings.sync_interval_ms / 1_000)
        waits = [self._wake.wait(), self._context.clock.sleep(seconds)]
        for partition, applier in self._appliers.items():
            limit = self._limit(partition)
            if applier.ready_in_us:
                waits.append(self._context.clock.sleep(applier.ready_in_us / 1_000_000))
            elif applier.error is None and (limit is None or applier.position < limit):
                waits.append(self._new_record(partition, applier.position, seconds))
        await first_of(*waits)

    async def _new_record(self, partition: int, position: int, seconds: float) -> None:
        await self._context.log.wait(partition, position, seconds)

    # --- generations ---------------------------------------------------------------------------------------------

    def _new_current(self) -> Generation | None:
        """The generation that counts, unless it is the one that is followed."""
        current = self._directory.current()
        is_followed = current is not None and current.name == self.generation and self._handle.is_in_place
        return None if is_followed else current

    async def _next_generation(self) -> Handle | None:
        """What to move over to: a generation that somebody published, or a new one where this one was removed."""
        current, fresh = self._new_current(), False
        if current is None and self._handle.is_in_place:
            return None
        if not self._relocked():
            return None
        if current is None:
            current, fresh = self._directory.current_or_new(after=self._handle.generation)
            self._say("generation_lost", reason="its directory was removed", rebuilt_as=current.name, found=[])
        try:
            return await _opened(self._context, self._directory, self._kind, current, self._partitions, fresh=fresh)
        except Exception as error:
            self._put_off(current, error)
            return None

    def _put_off(self, generation: Generation, error: Exception) -> None:
        self._swap_after_us = self._context.clock.monotonic_us() + SWAP_RETRY_US
        self._say("swap_failed", generation=generation.name, error=f"{type(error).__name__}: {error}")

    def _relocked(self) -> bool:
        """The lock may have been removed with its directory. Stops everything when another process has the new one."""
        if self._lock.is_in_place:
            return True
        lock = self._directory.try_lock()
        if lock is not None:
            self._lock.release()
            self._lock = lock
            return True
        message = (
            f"projection {self.name}: its directory was removed, and process {self._directory.holder()} made it anew"
        )
        for applier in self._appliers.values():
            applier.stop(fail("STORE_LOCKED", message, retry_after_ms=1_000))
        self.is_displaced = True
        self._moved.notify()
        return False

    async def _swap_if_published(self, epoch: int) -> None:
        """Move over to another generation once it has come as far as this one."""
        if self.is_displaced or self._context.clock.monotonic_us() < self._swap_after_us:
            return
        handle = await self._next_generation()
        if handle is None:
            return
        appliers: dict[int, PartitionApplier] | None = None
        try:
            appliers = await self._brought_up(handle.projection, epoch)
        except Exception as error:
            self._put_off(handle.generation, error)
        finally:
            if appliers is None:  # failed, cancelled, or the loop has ended: it is opened anew for the next try
                await handle.close(self._context.workers, self._directory)
        if appliers is None:
            return
        self._retired.append(self._handle)
        self._say("generation_followed", generation=handle.generation.name, before=self.generation)
        self._handle, self._appliers = handle, appliers
        self._dirty += 1
        self._moved.notify()

    async def _brought_up(self, projection: Projection, epoch: int) -> dict[int, PartitionApplier] | None:
        """The appliers of a generation that is as far as this one, ready to be read; None when this loop has ended."""
        appliers = self._new_appliers(projection)
        if not await self._bring_up(appliers, epoch):
            return None
        self._is_preparing = True
        try:
            await self._kind.prepare(projection)
        finally:
            self._is_preparing = False
        return appliers

    async def _bring_up(self, appliers: Mapping[int, PartitionApplier], epoch: int) -> bool:
        """Apply to a new generation what the old one has; False when this loop ended meanwhile.

        The old one serves on and stands still until then, so that no reader sees a position go back. A partition
        that is stopped, in the old one or in the new one, is not waited for.
        """
        targets = {p: old.position for p, old in self._appliers.items() if old.error is None}
        for applier in appliers.values():
            await applier.check()
        while self._counts(epoch):
            behind = [one for p, one in appliers.items() if one.position < targets.get(p, 0) and one.error is None]
            if not behind:
                return True
            moved = [await one.advance(partial(targets.get, one.partition)) for one in behind]
            self._progress += sum(moved)
            await self._context.clock.sleep(0 if any(moved) else self._context.settings.follow_poll_ms / 1_000)
        return False

    async def _bury(self) -> None:
        """Close old generations that nobody reads any more, and remove what does not count from the disk."""
        drained = [handle for handle in self._retired if handle.pins == 0]
        for handle in drained:
            self._retired.remove(handle)
            await handle.close(self._context.workers, self._directory)
        if drained:
            self._directory.sweep({self.generation, *(handle.generation.name for handle in self._retired)})

    def _new_appliers(self, projection: Projection) -> dict[int, PartitionApplier]:
        return {partition: PartitionApplier(self._context, projection, partition) for partition in self._partitions}

    # --- beside the loop -----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """The projection's background work, piece by piece; the generation it works on stays open meanwhile."""
        while not self._closing:
            did = False
            try:
                async with self.pinned() as projection:
                    did = await self._kind.step(projection)
                self._background_error = None
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if text != self._background_error:  # said once, shown by `health` until it is over
                    self._say("background_failed", error=text)
                self._background_error = text
            self._dirty += did
            if did:
                await self._context.clock.sleep(0)
            else:
                await self._moved.wait_within(self._context.clock, IDLE_SECONDS_MAX)

    async def _watch(self) -> None:
        clock, settings = self._context.clock, self._context.settings
        await watch(clock, settings.watchdog_ms, lambda: self._progress, self._is_behind, self._restart)

    async def _is_behind(self) -> bool:
        """Whether something is there to apply; a log that does not answer counts as behind."""
        if self._is_preparing:  # shards of a new generation are read: long, and nothing is applied meanwhile
            return False
        ends = await log_ends(self._context.log, self._partitions, self._context.clock)
        for partition, applier in self._appliers.items():
            limit = self._limit(partition)
            end = ends.get(partition, applier.position + 1)
            if applier.error is None and applier.position < (end if limit is None else min(end, limit)):
                return True
        return False

    def _restart(self) -> None:
        """A new loop from what the projection holds. The old one may hang in a call: it is left behind."""
        self.restarts += 1
        self._say("watchdog_restart", positions=dict(self.positions()), restarts=self.restarts)
        if self._loop is not None:
            self._loop.cancel()
        for applier in self._appliers.values():
            applier.reset()
        self._start_loop()

    async def _note_health(self, *, is_closing: bool = False) -> None:
        """Tell other processes when this projection degrades, stops or recovers, and who follows."""
        error = self.error
        note = {
            "pid": None if is_closing else self._directory.process_id(),
            "health": self.health,
            "error": None if error is None else error.to_dict(),
            "background_error": self._background_error,
        }
        if note != self._noted and not self.is_displaced:
            self._noted = note
            await self._context.workers.run(lambda: self._directory.note_health(note))

    def _say(self, event: str, **fields: Any) -> None:
        self._context.on_event({"event": event, "projection": self.name, **fields})


async def _opened(
    context: Context,
    directory: GenerationDirectory,
    kind: ProjectionKind,
    generation: Generation,
    partitions: Sequence[int],
    *,
    fresh: bool,
) -> Handle:
    """A generation to follow with; one that is `fresh` is published."""
    place = directory.hold(generation)
    try:
        projection = await opened(context.workers, lambda: kind.open_primary(generation.directory))
    except BaseException:
        place.close()
        raise
    handle = Handle(generation, projection, place, held=partitions)
    try:
        if fresh:  # only now: a reader opens what CURRENT names
            directory.publish(generation)
    except BaseException:
        await handle.close(context.workers, directory)
        raise
    return handle
