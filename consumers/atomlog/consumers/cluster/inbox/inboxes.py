"""The inboxes that a kernel works through: those partitions whose number, modulo the store's, is a partition it owns.

So each has one kernel, and moves with the ownership. Nothing rests on that: two that carry out the same record write it
once, since its place is its idempotency key.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from atomlog.consumers.cluster.inbox.registry import Follower, Registration
from atomlog.consumers.cluster.inbox.worker import InboxWorker, Moved, Surroundings
from atomlog.kernel.errors import AtomlogError, fail

STEP_S: Final = 1.0  # until ownership is looked at again, when no registration comes
RETRY_S: Final = 0.2  # doubles up to RETRY_MAX_S
RETRY_MAX_S: Final = 5.0

_Key = tuple[Registration, int]


class Inboxes:
    """Runs a worker for each inbox partition that is this process's. Run `run`; it ends only by cancellation."""

    def __init__(self, around: Surroundings, prefix: str, owns: Callable[[int], bool]) -> None:
        """`owns`: whether this process owns a partition of the store now."""
        self._around = around
        self._owns = owns
        self._follower = Follower(around.client, prefix, around.clock)
        self._working: dict[_Key, asyncio.Task[None]] = {}
        self._failing = False

    async def run(self) -> None:
        retry_s = RETRY_S
        try:
            while True:
                try:
                    await self._follower.step(STEP_S)
                except Exception as error:  # whatever it is, the kernel owns and writes on
                    self._tell_failure("registrations", _told(error))
                    await self._around.clock.sleep(retry_s)
                    retry_s = min(2 * retry_s, RETRY_MAX_S)
                else:
                    self._failing, retry_s = False, RETRY_S
                await self._give_work()
        finally:
            await self._stop(list(self._working))
            await self._follower.close()

    def _is_own(self, partition: int) -> bool:
        return self._owns(partition % self._around.partitions)

    async def _give_work(self) -> None:
        wanted = {
            (one, partition)
            for one in self._follower.registrations
            for partition in range(one.partitions)
            if self._is_own(partition)
        }
        await self._stop([key for key in self._working if key not in wanted])
        for key in sorted(wanted - self._working.keys(), key=lambda key: (key[0].principal, key[1])):
            self._working[key] = asyncio.create_task(self._work(*key))

    async def _stop(self, keys: list[_Key]) -> None:
        tasks = [self._working.pop(key) for key in keys]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, one: Registration, partition: int) -> None:
        """For as long as it is this process's; begun anew after a failure."""
        retry_s, told = RETRY_S, ""
        while True:
            if not self._is_own(partition):
                await self._around.clock.sleep(RETRY_S)
                continue
            worker = InboxWorker(self._around, one, partition, lambda: self._is_own(partition))
            try:
                await worker.run()
            except Moved:
                continue
            except Exception as error:
                failure = _told(error)
                if failure.message != told:
                    self._say_failure(one, partition, failure)
                told = failure.message
            retry_s = RETRY_S if worker.told else min(2 * retry_s, RETRY_MAX_S)
            await self._around.clock.sleep(retry_s)

    def _say_failure(self, one: Registration, partition: int, error: AtomlogError) -> None:
        self._around.say(
            {
                "event": "inbox_failed",
                "principal": one.principal,
                "inbox_partition": partition,
                "error": error.to_dict(),
            }
        )

    def _tell_failure(self, what: str, error: AtomlogError) -> None:
        """Once, until it works again."""
        if not self._failing:
            self._around.say({"event": "inbox_failed", "principal": None, "part": what, "error": error.to_dict()})
        self._failing = True


def _told(error: Exception) -> AtomlogError:
    if isinstance(error, AtomlogError):
        return error
    return fail("CORRUPT", f"an inbox stopped: {type(error).__name__}: {error}")
