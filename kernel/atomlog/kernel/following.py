"""The owner's own tail: each record of the log goes into the heads, and only then to who waits for it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from atomlog.kernel.effects import BatchEffects
from atomlog.kernel.errors import AtomlogError, FatalError, fail
from atomlog.kernel.heads import HeadView
from atomlog.kernel.tail import Checkpoint, EffectiveRecord, Tail
from atomlog.kernel.world import World

WAIT_S: Final = 1.0  # how long one wait for the log lasts
RETRY_S: Final = 0.1  # until the next try, when the log or the heads do not answer; doubles up to RETRY_MAX_S
RETRY_MAX_S: Final = 1.0


class Following:
    """Follows one partition. `settled` reads the heads that it applies to; `tell` is given each effective record.

    `tell_voids` is called when there were void ones among them.

    `known` has the effects of a record that this owner wrote and that was read back as it was written.
    """

    def __init__(
        self,
        world: World,
        partition: int,
        settled: HeadView,
        *,
        known: Callable[[EffectiveRecord], BatchEffects | None],
        tell: Callable[[EffectiveRecord], None],
        tell_voids: Callable[[], None],
    ) -> None:
        self._world = world
        self._partition = partition
        self._settled = settled
        self._known = known
        self._tell = tell
        self._tell_voids = tell_voids
        self._tail = Tail(world.log, world.genesis[partition])
        self._moved = asyncio.Event()  # set, and replaced, each time the tail moves
        self._failure: AtomlogError | None = None
        self._apply_failures = 0  # in a row
        self._unsynced = False

    @property
    def checkpoint(self) -> Checkpoint:
        return self._tail.checkpoint

    async def start(self) -> None:
        """Apply what the log holds. LOG_DIVERGED when the heads have seen more than there is."""
        place = self._settled.place(self._partition)
        self._tail.checkpoint = place.checkpoint
        self._tail.voids = Counter(place.voids)
        end = await self._world.log.end(self._partition)
        if place.checkpoint.position > end:
            raise fail(
                "LOG_DIVERGED",
                f"partition {self._partition}: the heads stand at {place.checkpoint.position}, the log ends at {end}: "
                "it was replaced or cut; bring the right log back, or remove the projections to have them rebuilt",
            )
        while self.checkpoint.position < end:
            await self._read_back()

    async def run(self) -> None:
        """Follow the log. Ends with what makes following impossible; anything else is tried again, for ever.

        A log that is away for a while ends nothing.

        OVERLOADED when the heads cannot be written after `apply_retries`: RocksDB takes nothing more until it is
        opened anew.
        """
        failing, retry_s = "", RETRY_S
        while True:
            try:
                if await self._world.log.wait(self._partition, self.checkpoint.position, WAIT_S):
                    await self._read_back()
                if failing == "log_unavailable":
                    self._say("log_available")
                failing, retry_s = "", RETRY_S
            except FatalError:
                raise
            except (AtomlogError, OSError) as error:
                if self._apply_failures > self._world.settings.apply_retries:
                    message = f"partition {self._partition}: the heads cannot be written: {error}; open the store anew"
                    raise fail("OVERLOADED", message) from error
                trouble = "heads_failed" if self._apply_failures else "log_unavailable"
                if trouble != failing:
                    self._say(trouble, error=f"{type(error).__name__}: {error}")
                failing = trouble
                await self._world.clock.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def run_sync(self) -> None:
        """The heads' own log need not be durable for each write: after a power cut they replay."""
        while True:
            await self._world.clock.sleep(self._world.settings.sync_interval_ms / 1_000)
            if not self._unsynced:
                continue
            self._unsynced = False
            try:
                await self._world.workers.run(self._world.heads.kv.sync)
            except OSError as error:
                self._unsynced = True
                self._say("heads_sync_failed", error=str(error))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Until something is so, which is looked at each time the tail moves; raises what ended the following."""
        while not is_so():
            if self._failure is not None:
                raise self._failure
            await self._moved.wait()

    def stop(self, failure: AtomlogError) -> None:
        """The tail will not move any more: tell who waits for it."""
        self._failure = failure
        self._moved.set()

    async def _read_back(self) -> None:
        """Apply the next records, then tell of them: never before they are applied."""
        tail = self._tail
        before, voids = tail.checkpoint, tail.voids.copy()
        try:
            records = await tail.poll()
            if tail.checkpoint.position == before.position:
                return
            self._apply_failures += 1
            self._world.heads.apply(self._partition, records, tail.checkpoint, tail.voids, self._known)
            self._apply_failures = 0
        except BaseException:
            tail.checkpoint, tail.voids = before, voids  # nothing of it is in the heads: read it again
            raise
        self._unsynced = True
        for record in records:
            self._tell(record)
        if sum(tail.voids.values()) > sum(voids.values()):
            self._tell_voids()
        self._moved.set()
        self._moved = asyncio.Event()

    def _say(self, event: str, **fields: Any) -> None:
        self._world.say({"event": event, "partition": self._partition, **fields})
