"""A projection of an open store: followed by this process if nobody else does, read beside the follower otherwise.

When the following process ends, one of the others takes its lock over and goes on where it stopped.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

from atomlog.consumers.context import Context, Lag, ProjectionKind
from atomlog.consumers.follower import Follower
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.handles import Handle
from atomlog.consumers.secondary import SecondaryView
from atomlog.consumers.views import Health
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.model import Positions
from atomlog.projections.base import Projection

PROMOTE_SECONDS: Final = 1.0  # between two tries to take over from a follower that may have ended

UNREAD_US: Final = 60_000_000  # between two looks at a projection that perhaps nobody reads


class Attachment:
    """A `ProjectionView` that becomes the follower when it can. `may_follow` False: it only ever reads."""

    def __init__(
        self,
        context: Context,
        directory: GenerationDirectory,
        kind: ProjectionKind,
        view: Follower | SecondaryView,
        *,
        may_follow: bool,
    ) -> None:
        """Use `open`."""
        self.name = kind.name
        self._context = context
        self._directory = directory
        self._kind = kind
        self._view = view
        self._may_follow = may_follow
        self._promoting = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None  # closes the view before this one
        self._looked_us = context.clock.monotonic_us()
        self._task = asyncio.create_task(self._try_now_and_then())

    @classmethod
    async def open(
        cls,
        context: Context,
        directory: GenerationDirectory,
        kind: ProjectionKind,
        *,
        deadline_us: int,
        may_follow: bool = True,
    ) -> "Attachment":
        """Follow if the lock is free, else read. Raises what `Follower.start` and `SecondaryView.open` raise."""
        lock = directory.try_lock() if may_follow else None
        view: Follower | SecondaryView
        if lock is not None:
            view = await Follower.start(context, directory, kind, lock=lock)
        else:
            view = await SecondaryView.open(context, directory, kind, deadline_us=deadline_us)
        return cls(context, directory, kind, view, may_follow=may_follow)

    @property
    def follower(self) -> Follower | None:
        """The follower, when this process is the one; to pause it, or to wait for a generation."""
        return self._view if isinstance(self._view, Follower) else None

    @property
    def generation(self) -> str:
        return self._view.generation

    @property
    def held(self) -> tuple[int, ...]:
        return self._view.held

    @property
    def health(self) -> Health:
        return self._view.health

    @property
    def error(self) -> AtomlogError | None:
        return self._view.error

    def pin(self) -> Handle:
        return self._view.pin()

    def pinned(self) -> AbstractAsyncContextManager[Projection]:
        return self._view.pinned()

    def positions(self) -> Positions:
        return self._view.positions()

    async def catch_up(self) -> None:
        await self._view.catch_up()

    async def wait_for(self, positions: Positions, deadline_us: int) -> None:
        await self._view.wait_for(positions, deadline_us)

    async def wait_for_generation(self, generation: str, deadline_us: int) -> bool:
        return await self._view.wait_for_generation(generation, deadline_us)

    async def lag(self) -> Mapping[int, Lag]:
        return await self._view.lag()

    async def status(self, revisions: int | None = None) -> dict[str, Any]:
        return await self._view.status(revisions)

    async def try_promote(self) -> bool:
        """Become the follower if nobody is; True when this process follows now."""
        async with self._promoting:
            view = self._view
            if isinstance(view, Follower):
                return True
            lock = self._directory.try_lock() if self._may_follow else None
            if lock is None:
                return False
            follower = await Follower.start(self._context, self._directory, self._kind, lock=lock)
            await self._reach(follower, view.positions())
            self._view = follower
            self._context.on_event({"event": "took_over", "projection": self.name})
        await self._leave(view)
        return True

    async def _look_unread(self) -> None:
        """Files that its follower has removed take up space for as long as they are open here."""
        now_us = self._context.clock.monotonic_us()
        if now_us - self._looked_us >= UNREAD_US:
            self._looked_us = now_us
            with suppress(Exception):  # it is told to who reads
                await self._view.catch_up()

    async def _give_over(self, follower: Follower) -> None:
        """Read beside the process that follows instead of this one."""
        async with self._promoting:
            view = await SecondaryView.open(self._context, self._directory, self._kind, deadline_us=self._deadline_us())
            await self._reach(view, follower.positions())
            self._view = view
            self._context.on_event({"event": "gave_over", "projection": self.name})
        await self._leave(follower)

    async def _reach(self, view: Follower | SecondaryView, positions: Positions) -> None:
        """What readers saw last they see again: a rebuilt generation may first have to come as far."""
        try:
            with suppress(AtomlogError):
                await view.wait_for(positions, self._deadline_us())
        except BaseException:  # given up: nobody will have it
            await view.close()
            raise

    async def _leave(self, view: Follower | SecondaryView) -> None:
        """Close a view that another one stands in for. Goes on when the caller is cancelled; `close` waits for it."""
        self._leaving = asyncio.create_task(view.close())
        await asyncio.shield(self._leaving)

    def _deadline_us(self) -> int:
        return self._context.clock.monotonic_us() + self._context.settings.read_timeout_ms * 1_000

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._leaving is not None:
            await asyncio.gather(self._leaving, return_exceptions=True)
        async with self._promoting:
            await self._view.close()

    async def _try_now_and_then(self) -> None:
        while True:
            await self._context.clock.sleep(PROMOTE_SECONDS)
            follower = self.follower
            try:
                if follower is None:
                    if not await self.try_promote():
                        await self._look_unread()
                elif follower.is_displaced:
                    await self._give_over(follower)
            except Exception as error:  # the next try may find another world
                text = f"{type(error).__name__}: {error}"
                self._context.on_event({"event": "promotion_failed", "projection": self.name, "error": text})
