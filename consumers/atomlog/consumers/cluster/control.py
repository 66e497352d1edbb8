"""The control topic of one node: says where it stands, and hears where the others do.

It helps and is never needed: while it fails, a healthy owner stays, for its records and its endpoint speak for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from atomlog.consumers.cluster.reports import NodeReport, Reports
from atomlog.consumers.events import OnEvent
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import Clock

RETRY_S: Final = 0.5  # until the topic is tried again after a failure
_FAILURES: Final = (AtomlogError, OSError, TimeoutError)


class ControlTopic(Protocol):
    """Where reports go. AtomlogError, OSError or TimeoutError when it cannot be reached; each call ends in time."""

    async def publish(self, key: bytes, value: bytes) -> None: ...
    async def next(self) -> Sequence[bytes | None]:
        """Values that have come since the last call; waits a moment for one, and may come back without any."""
        ...

    async def close(self) -> None: ...


class Control:
    """Publishes `report()` every `every_ms` and keeps `reports`. Run `run`; it ends only by cancellation."""

    def __init__(
        self,
        topic: ControlTopic,
        clock: Clock,
        *,
        every_ms: int,
        report: Callable[[], Awaitable[NodeReport]],
        on_event: OnEvent,
    ) -> None:
        self.reports = Reports()
        self._topic = topic
        self._clock = clock
        self._every_s = every_ms / 1_000
        self._report = report
        self._on_event = on_event
        self._broken: set[str] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._publish())
            both.create_task(self._follow())

    async def say(self) -> None:
        """One report now. Raises nothing of the topic's."""
        try:
            report = await self._report()
            await self._topic.publish(report.node, report.to_bytes())
            self._works("publish")
        except _FAILURES as error:
            self._fails("publish", error)

    async def close(self) -> None:
        await self._topic.close()

    async def _publish(self) -> None:
        while True:
            await self.say()
            await self._clock.sleep(self._every_s)

    async def _follow(self) -> None:
        while True:
            try:
                values = await self._topic.next()
            except _FAILURES as error:
                self._fails("follow", error)
                await self._clock.sleep(RETRY_S)
                continue
            self._works("follow")
            for value in values:
                self.reports.take(value, self._clock.monotonic_us())

    def _fails(self, what: str, error: Exception) -> None:
        """Said once, not each time."""
        if what not in self._broken:
            self._broken.add(what)
            self._on_event({"event": "control_failed", "what": what, "error": f"{type(error).__name__}: {error}"})

    def _works(self, what: str) -> None:
        if what in self._broken:
            self._broken.discard(what)
            self._on_event({"event": "control_restored", "what": what})
