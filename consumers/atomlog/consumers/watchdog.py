"""Notices a loop that has something to do and does nothing: a client library that never answers, a lost wake-up."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from atomlog.consumers.waiting import first_of
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Clock, Log

ANSWER_SECONDS: Final = 1.0  # for the log to say where it ends


async def watch(
    clock: Clock,
    limit_ms: int,
    progress: Callable[[], object],
    is_behind: Callable[[], Awaitable[bool]],
    restart: Callable[[], None],
) -> None:
    """Call `restart` whenever it was behind and `progress` stayed equal for `limit_ms`. Never returns."""
    seen, since_us = progress(), clock.monotonic_us()
    while True:
        await clock.sleep(max(limit_ms / 4_000, 0.001))
        now = progress()
        if now != seen or not await is_behind():
            seen, since_us = now, clock.monotonic_us()
        elif clock.monotonic_us() - since_us >= limit_ms * 1_000:
            restart()
            since_us = clock.monotonic_us()


async def log_ends(log: Log, partitions: Sequence[int], clock: Clock) -> Positions:
    """The next position of each partition; those are missing for which the log does not answer."""
    ends: dict[int, int] = {}

    async def ask() -> None:
        for partition in partitions:
            ends[partition] = await log.end(partition)

    with suppress(Exception):  # a log that fails is one that does not answer
        await first_of(ask(), clock.sleep(ANSWER_SECONDS))
    return ends
