"""Reads a projection that another process follows, or that nobody follows at the moment.

The store is opened as a RocksDB secondary: it sees what the following process wrote up to the last `catch_up`.
Catching up happens on the event loop between two calls of a projection, so no single call sees two states; a read
of several calls is held together by its positions. A generation that takes over is opened beside the old one and
given to readers once it has come as far.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final

from atomlog.consumers.context import Context, Lag, ProjectionKind
from atomlog.consumers.generations import Generation, GenerationDirectory
from atomlog.consumers.handles import Handle, opened
from atomlog.consumers.lag import LagMeter
from atomlog.consumers.views import Health, Standing, describe, health_of, is_behind, lagging
from atomlog.kernel.errors import AtomlogError, fail, from_dict
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import File
from atomlog.projections.base import Projection

OPEN_TRIES: Final = 5
OPEN_PAUSE_SECONDS: Final = 0.05
CLOSE_SECONDS_MAX: Final = 10.0
LOOK_US: Final = 200_000  # between two catch-ups while the store has everything that the log has


class SecondaryView:
    """A projection as it stands on disk, in a process that does not follow for it."""

    def __init__(self, context: Context, directory: GenerationDirectory, kind: ProjectionKind, handle: Handle) -> None:
        """Use `open`."""
        self.name = kind.name
        self._context = context
        self._directory = directory
        self._kind = kind
        self._handle = handle
        self._next: Handle | None = None  # a newer generation that has not come as far yet
        self._retired: list[Handle] = []
        self._meter = LagMeter(context)
        self._catching_up = asyncio.Lock()
        self._looked_us = 0  # when the store was last caught up
        self._is_closed = False

    @classmethod
    async def open(
        cls, context: Context, directory: GenerationDirectory, kind: ProjectionKind, *, deadline_us: int
    ) -> "SecondaryView":
        """Open the current generation, waiting for the following process to make the first one.

        Raises STORE_LOCKED when there is none by the deadline (clock's `monotonic_us`), CORRUPT, also when CURRENT
        does not lead to it by then, STORE_TOO_NEW, STORE_READ_ONLY.
        """
        clock = context.clock
        while directory.current() is None:
            if clock.monotonic_us() >= deadline_us:
                if (lost := directory.lost()) is not None:
                    raise fail("CORRUPT", f"{lost}; open the store for writing: it is built anew")
                message = f"projection {kind.name} is not made yet by process {directory.holder()}, which has its lock"
                raise fail("STORE_LOCKED", message, retry_after_ms=1_000)
            await clock.sleep(context.settings.follow_poll_ms / 1_000)
        handle = await open_beside(context, directory, kind)
        try:
            await kind.prepare(handle.projection)
        except BaseException:
            await handle.close(context.workers, directory)
            raise
        return cls(context, directory, kind, handle)

    @property
    def generation(self) -> str:
        return self._handle.generation.name

    @property
    def held(self) -> tuple[int, ...]:
        return self._handle.held

    @property
    def error(self) -> AtomlogError | None:
        """Why the following process stopped, as it noted."""
        noted = self._directory.noted_health().get("error")
        return from_dict(noted) if isinstance(noted, Mapping) else None

    @property
    def health(self) -> Health:
        noted = self._directory.noted_health()
        return health_of(self._handle.projection, self.error, troubled=noted.get("background_error") is not None)

    def pin(self) -> Handle:
        return self._handle.pin()

    def pinned(self) -> AbstractAsyncContextManager[Projection]:
        return self._handle.pinned()

    def positions(self) -> Positions:
        return self._handle.positions()

    async def catch_up(self) -> None:
        async with self._catching_up:
            # Whoever waited for this lock while the view was closed has another view to turn to.
            if self._is_closed or await self._has_everything():
                return
            current = self._directory.current()
            if current is not None and not self._has(current):
                await self._open_next()
            await self._catch_up_current()
            await self._kind.prepare(self._handle.projection)
            await self._take_over_if_as_far()
            await self._bury()

    async def wait_for(self, positions: Positions, deadline_us: int) -> None:
        clock = self._context.clock
        async with self.pinned():  # a view that is given up meanwhile stays readable for this caller
            await self.catch_up()
            while is_behind(self.positions(), positions):
                left_us = deadline_us - clock.monotonic_us()
                if left_us <= 0:
                    raise lagging(self.name, self.positions(), positions, self.error)
                await clock.sleep(min(left_us / 1_000_000, self._context.settings.follow_poll_ms / 1_000))
                await self.catch_up()

    async def wait_for_generation(self, generation: str, deadline_us: int) -> bool:
        clock = self._context.clock
        while self.generation < generation and clock.monotonic_us() < deadline_us:
            self._looked_us = 0
            await self.catch_up()
            await clock.sleep(self._context.settings.follow_poll_ms / 1_000)
        return self.generation >= generation

    async def lag(self) -> Mapping[int, Lag]:
        return {p: await self._meter.measure(p, position + 1) for p, position in self.positions().items()}

    async def status(self, revisions: int | None = None) -> dict[str, Any]:
        await self.catch_up()  # how far the follower is, not how far the last read was
        async with self.pinned() as projection:
            standing = Standing(
                generation=self.generation,
                health=self.health,
                error=self.error,
                lags=await self.lag(),
                follower=self._directory.noted_health().get("pid"),
            )
            return describe(projection, standing, revisions)

    async def close(self) -> None:
        """Wait a little for readers, then release everything and remove the scratch directories."""
        for handle in (*self._retired, self._handle):  # readers that wait inside still catch up meanwhile
            await handle.drained(self._context.clock, CLOSE_SECONDS_MAX)
        async with self._catching_up, AsyncExitStack() as closing:
            self._is_closed = True
            for handle in (*self._retired, self._handle, *([self._next] if self._next else [])):
                closing.push_async_callback(handle.close, self._context.workers, self._directory)

    async def _has_everything(self) -> bool:
        """Nothing is missing up to the log's end: a look now and then is enough (new shards, a new generation)."""
        now_us = self._context.clock.monotonic_us()
        if now_us - self._looked_us < LOOK_US and self._next is None and not self._retired:
            ends = {p: await self._context.log.end(p) - 1 for p in self.held}
            if not is_behind(self.positions(), ends) and not self._kind.unfinished(self._handle.projection):
                return True
        self._looked_us = now_us
        return False

    def _has(self, current: Generation) -> bool:
        """Whether this generation is open: of its name and for its partitions, and not one that was removed since."""
        held = self._directory.assigned(self._context.config.partitions)
        handles = [one for one in (self._handle, self._next) if one is not None and one.held == held]
        return any(one.generation == current and one.is_in_place for one in handles)

    async def _catch_up_current(self) -> None:
        """Both generations, if there are two. One that cannot be caught up any more is opened anew.

        The following process may have restarted, or removed this generation after a later one took over.
        """
        if self._next is not None and self._next.is_in_place:
            self._next.projection.catch_up()
        if not self._handle.is_in_place:  # what stands there now would be mixed into what was read of the old one
            return
        try:
            self._handle.projection.catch_up()
        except Exception as error:  # what a binding raises when files went away under it
            if self._next is None:
                self._say("secondary_reopened", error=f"{type(error).__name__}: {error}")
                await self._open_next()

    async def _open_next(self) -> None:
        """What is open goes on to serve while there is none, as when the directory was removed and is made again."""
        try:
            opened_next = await open_beside(self._context, self._directory, self._kind)
        except AtomlogError as error:
            if error.code != "STORE_LOCKED":
                raise
            return
        former, self._next = self._next, opened_next
        if former is not None:
            await former.close(self._context.workers, self._directory)

    async def _take_over_if_as_far(self) -> None:
        """Give readers the newer generation, unless their positions would go back."""
        if self._next is None:
            return
        reached = self._next.positions()
        ends = {partition: await self._context.log.end(partition) for partition in reached}
        # A position after the log's end belongs to a log that is gone: a rebuilt generation never gets there.
        wanted = {p: min(position, ends[p] - 1) for p, position in self.positions().items() if p in ends}
        if is_behind(reached, wanted):
            return
        await self._kind.prepare(self._next.projection)
        self._retired.append(self._handle)
        self._handle, self._next = self._next, None

    async def _bury(self) -> None:
        for handle in [handle for handle in self._retired if handle.pins == 0]:
            self._retired.remove(handle)
            await handle.close(self._context.workers, self._directory)

    def _say(self, event: str, **fields: Any) -> None:
        self._context.on_event({"event": event, "projection": self.name, **fields})


async def open_beside(context: Context, directory: GenerationDirectory, kind: ProjectionKind) -> Handle:
    """The current generation as a secondary. Its files may move while it is opened: then once more.

    Raises CORRUPT, STORE_TOO_NEW, STORE_READ_ONLY; STORE_LOCKED when there is no current generation.
    """
    error: Exception | None = None
    for _ in range(OPEN_TRIES):
        generation = directory.current()
        if generation is not None:
            try:
                return await _open_once(context, directory, kind, generation)
            except AtomlogError as failure:
                if failure.code != "CORRUPT":
                    raise
                error = failure
        await context.clock.sleep(OPEN_PAUSE_SECONDS)
    if error is not None:
        raise error
    raise fail("STORE_LOCKED", f"projection {kind.name} has no current generation; try again", retry_after_ms=1_000)


async def _open_once(
    context: Context, directory: GenerationDirectory, kind: ProjectionKind, generation: Generation
) -> Handle:
    scratch, place = directory.scratch(), None
    try:
        held = directory.assigned(context.config.partitions)
        place = _held(directory, generation)
        projection = await opened(context.workers, lambda: kind.open_secondary(generation.directory, scratch.directory))
    except BaseException:
        if place is not None:
            place.close()
        directory.drop(scratch)
        raise
    return Handle(generation, projection, place, scratch, held=held)


def _held(directory: GenerationDirectory, generation: Generation) -> File:
    """CORRUPT when it was removed since CURRENT was read."""
    try:
        return directory.hold(generation)
    except FileNotFoundError:
        raise fail("CORRUPT", f"{generation.directory} was removed while it was opened; try again") from None
