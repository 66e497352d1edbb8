"""One question for everybody who asks it at about the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from atomlog.kernel.errors import AtomlogError

T = TypeVar("T")


class Rounds(Generic[T]):
    """Who asks while a question is on its way shares the next one, never that one: its answer may be too old."""

    def __init__(self, question: Callable[[], Awaitable[T]], ended: Callable[[], AtomlogError]) -> None:
        """`ended`: what is raised to those who wait when it is closed."""
        self._question = question
        self._ended = ended
        self._now: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def ask(self) -> T:
        """The answer to a question that was put after this call, or what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._put(self._now))
            self._next.add_done_callback(_is_seen)
        asked = self._next
        await asyncio.wait((asked,))  # not awaited itself: who gives up ends it for nobody else
        if asked.cancelled():
            raise self._ended()
        return asked.result()

    async def close(self) -> None:
        """Ends what is on its way."""
        tasks = [task for task in (self._now, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait((before,))
        self._now, self._next = self._next, None
        return await self._question()


def _is_seen(task: asyncio.Task[T]) -> None:
    """Who asked may have gone: an error that nobody takes is no news."""
    if not task.cancelled():
        task.exception()
