"""What a process of a store says of itself while it runs: where its projections stand, and how long its disk lasts."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from atomlog.consumers.attachment import Attachment
from atomlog.consumers.capacity import Recent, days_to_full, recent_writes, revisions_per_day
from atomlog.consumers.cluster.holdings import projection_reports
from atomlog.consumers.cluster.reports import NodeReport
from atomlog.consumers.follower import Follower
from atomlog.consumers.parts import Parts
from atomlog.consumers.processes import process_id
from atomlog.kernel.errors import AtomlogError

LOOK_US: Final = 60_000_000  # between two looks at what was written lately: each reads a piece of the log
UNKNOWN: Final = -1  # of a number in a report


class Lately:
    """What was written to partitions lately, looked at now and then. A log that does not answer is asked later."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._found: dict[int, Recent] = {}
        self._looked_us: int | None = None
        self._looking: asyncio.Task[None] | None = None

    def known(self, partitions: Collection[int]) -> Mapping[int, Recent]:
        """By partition, as far as it is known by now: nobody waits for a log here."""
        now_us = self._parts.machine.clock.monotonic_us()
        is_due = self._looked_us is None or now_us - self._looked_us >= LOOK_US
        if is_due and (self._looking is None or self._looking.done()):
            self._looked_us = now_us
            self._looking = asyncio.create_task(self._look(partitions))
        return {number: self._found[number] for number in partitions if number in self._found}

    async def found(self, partitions: Collection[int]) -> Mapping[int, Recent]:
        """The same, and waits for a look that is under way."""
        self.known(partitions)
        if self._looking is not None:
            await asyncio.wait((self._looking,))
        return self.known(partitions)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self, partitions: Collection[int]) -> None:
        log = self._parts.log
        for number in partitions:
            with suppress(AtomlogError, OSError):  # said by who follows it
                self._found[number] = await recent_writes(log, number, await log.end(number))

    def days_to_full(self, recent: Iterable[Recent], bytes_per_revision: float | None) -> int:
        """Of the disk of the directory; UNKNOWN when it is not known."""
        parts = self._parts
        days = days_to_full(
            free_bytes=parts.machine.files.free_bytes(parts.directory),
            reserve_bytes=parts.settings.disk_reserve_bytes,
            bytes_per_revision=bytes_per_revision,
            per_day=revisions_per_day(recent, parts.machine.clock.now_us()),
        )
        return UNKNOWN if days is None else int(days)


def partitions_of(views: Sequence[Follower | Attachment]) -> Collection[int]:
    """Those that any of them is followed for."""
    return sorted({partition for view in views for partition in view.held})


async def consumer_report(
    parts: Parts,
    views: Sequence[Follower | Attachment],
    lately: Lately,
    recent: Mapping[int, Recent],
    *,
    node: bytes,
    name: str,
    endpoint: str = "",
) -> NodeReport:
    """Of a process that follows, or reads, these projections; `recent` is what `lately` knows of their partitions."""
    found = await projection_reports(views, recent)
    sizes = [report.bytes_per_revision for report in found]
    return NodeReport(
        node=node,
        name=name,
        role="consumer",
        endpoint=endpoint,
        pid=process_id(),
        at_us=parts.machine.clock.now_us(),
        projections=found,
        disk_free_bytes=parts.machine.files.free_bytes(parts.directory),
        disk_reserve_bytes=parts.settings.disk_reserve_bytes,
        disk_days_to_full=lately.days_to_full(recent.values(), None if UNKNOWN in sizes else sum(sizes)),
    )
