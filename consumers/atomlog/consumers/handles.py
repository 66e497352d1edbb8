"""One opened generation of a projection, and the readers that use it at the moment."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from atomlog.consumers.generations import Generation, GenerationDirectory, Scratch
from atomlog.consumers.waiting import Signal, first_of
from atomlog.kernel.ids import invalid
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Clock, File, Workers
from atomlog.projections.base import Projection


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Handle:
    """An opened generation. It is closed only when nobody has it pinned."""

    def __init__(
        self,
        generation: Generation,
        projection: Projection,
        place: File,
        scratch: Scratch | None = None,
        *,
        held: Sequence[int],
    ) -> None:
        """`place`: what `GenerationDirectory.hold` gave. `held`: the partitions that it is followed for."""
        self.generation = generation
        self.projection = projection
        self.held = tuple(held)
        self._place = place
        self.pins = 0
        self._scratch = scratch
        self._unpinned = Signal()
        self._draining = 0  # who waits for it
        self._is_closed = False

    @property
    def is_in_place(self) -> bool:
        """False when its directory was removed: it can be read through its open files, and never be caught up again.

        Another one of the same name may stand there by now, which was written by another hand.
        """
        return self._place.is_at(self.generation.directory)

    def pin(self) -> "Handle":
        """This handle, not to be closed before as many `unpin`. INVALID_INPUT when it is closed, with its store."""
        if self._is_closed:
            raise invalid("store", "the store is closed")
        self.pins += 1
        return self

    def unpin(self) -> None:
        self.pins -= 1
        if self.pins == 0 and self._draining:
            self._unpinned.notify()

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator[Projection]:
        """The projection, not to be closed inside."""
        self.pin()
        try:
            yield self.projection
        finally:
            self.unpin()

    def positions(self) -> Positions:
        """The read position of each partition that it is followed for."""
        return {partition: self.projection.checkpoint(partition).position - 1 for partition in self.held}

    async def drained(self, clock: Clock, seconds: float) -> bool:
        """Until nobody has it pinned, or for `seconds`; says which."""
        deadline_us = clock.monotonic_us() + int(seconds * 1_000_000)
        self._draining += 1
        try:
            while self.pins and (left_us := deadline_us - clock.monotonic_us()) > 0:
                await first_of(self._unpinned.wait(), clock.sleep(left_us / 1_000_000))
        finally:
            self._draining -= 1
        return self.pins == 0

    async def close(self, workers: Workers, directory: GenerationDirectory) -> None:
        self._is_closed = True
        try:
            await workers.run(self.projection.close)
        except OSError:
            if self.is_in_place:
                raise  # of what was removed nothing can be made durable, and nobody misses it
        finally:
            self._place.close()
            if self._scratch is not None:
                directory.drop(self._scratch)
                self._scratch = None


async def opened(workers: Workers, open_it: Callable[[], C]) -> C:
    """What `open_it` gives, on a worker. Cancelled meanwhile: it is closed when it is open, not lost."""
    opening = asyncio.ensure_future(workers.run(open_it))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(opening: "asyncio.Future[C]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
