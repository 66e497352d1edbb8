"""One partition of one opened projection: read, apply, and what to do when that fails. A follower turns the crank.

A record that cannot be applied is tried again `apply_retries` times. Then the records of its read are applied one by
one, and the one at fault is put in quarantine, or, by a projection that never skips, stops the partition until the
log holds an operator's `Repair` for it. What stops the reader itself (another history, a newer format) stops the
partition for good.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from atomlog.consumers.context import Context
from atomlog.consumers.place import WAY_OUT, check_place, expired, first_kept
from atomlog.kernel.errors import AtomlogError, UnavailableError, fail
from atomlog.kernel.ports import Clock
from atomlog.kernel.tail import Checkpoint, EffectiveRecord, Tail
from atomlog.projections.base import Projection

APPLY_BYTES: Final = 256 * 1024  # of log applied at a stretch: the event loop waits that long, and no longer
QUARANTINE_RUN_MAX: Final = 100  # records in a row; then the store is at fault, not the records
NEVER_SKIPPED: Final = frozenset({"UPGRADE_REQUIRED", "STORE_TOO_NEW"})  # a newer program can apply the record


class PartitionApplier:
    """Moves one partition of a projection along the log. `error` is set while it is stopped."""

    def __init__(self, context: Context, projection: Projection, partition: int) -> None:
        self.partition = partition
        self.error: AtomlogError | None = None
        self.applied = 0  # records read and applied by this object, void ones too
        self._context = context
        self._projection = projection
        self._tail = self._new_tail(projection.checkpoint(partition))
        self._attempts = 0
        self._retry_at_us = 0
        self._careful_until = 0  # below it, one record at a time
        self._skipped_in_a_row = 0
        self._repair: _RepairSearch | None = None
        self._unproved = 0  # void records in a row: nothing has proved since that this is still the same history
        self._prove_at = 1

    @property
    def position(self) -> int:
        """The next position to apply."""
        return self._tail.checkpoint.position

    @property
    def voids(self) -> Mapping[str, int]:
        """Records that this object's reader skipped, by reason."""
        return self._tail.voids

    @property
    def waits_for_repair(self) -> bool:
        return self._repair is not None

    @property
    def ready_in_us(self) -> int:
        """Microseconds until a failed apply is tried again; 0 when nothing failed."""
        return max(0, self._retry_at_us - self._context.clock.monotonic_us())

    async def check(self) -> None:
        """Stop with LOG_DIVERGED unless the log is the one that was applied before."""
        try:
            await check_place(self._context.log, self._tail.genesis, self._tail.checkpoint, self._projection.name)
        except AtomlogError as error:
            self.stop(error)

    def reset(self) -> None:
        """Forget every doubt and start again from what the projection holds."""
        self._tail = self._new_tail(self._projection.checkpoint(self.partition))
        self._attempts = self._retry_at_us = 0

    async def advance(
        self, limit: Callable[[], int | None], *, bytes_max: int = APPLY_BYTES, alive: Callable[[], bool] | None = None
    ) -> bool:
        """Read and apply once; True when the projection moved.

        `limit` gives the position not to go beyond and is asked again after the read; `alive` says whether the
        caller still counts by then.
        """
        if self._repair is not None:
            return await self._look_for_repair()
        if self.error is not None or self.ready_in_us:
            return False
        before = self._tail.checkpoint
        records = await self._read(limit(), bytes_max)
        after = self._tail.checkpoint
        if records is not None and not await self._is_proved(records, after.position - before.position):
            records = None
        stop = limit()
        if records is None or (alive is not None and not alive()) or (stop is not None and after.position > stop):
            self._tail.checkpoint = before
            return False
        return after.position > before.position and self._apply(records, before, after)

    async def _read(self, until: int | None, bytes_max: int) -> Sequence[EffectiveRecord] | None:
        """The next effective records; None when reading failed."""
        at = self._tail.checkpoint.position
        if at < self._careful_until:
            until, bytes_max = at + 1 if until is None else min(until, at + 1), 1
        try:
            return await self._tail.poll(until=until, bytes_max=bytes_max)
        except UnavailableError as error:
            self._retry("read_failed", error)
        except AtomlogError as error:
            self.stop(self._named(error))
        except OSError as error:
            self._retry("read_failed", error)
        return None

    async def _is_proved(self, records: Sequence[EffectiveRecord], read: int) -> bool:
        """False when a log of void records alone is not the one that was applied.

        Each effective record proves all before it by its chain. Of another history with lower terms every record is
        void: that one is found by looking for the last record that counted, after 1, 2, 4, … void ones in a row.
        """
        self._unproved = 0 if records else self._unproved + read
        if self._unproved < self._prove_at:
            self._prove_at = self._prove_at if self._unproved else 1
            return True
        self._prove_at = self._unproved * 2
        return await self._checked()

    async def _checked(self) -> bool:
        try:
            await check_place(self._context.log, self._tail.genesis, self._tail.checkpoint, self._projection.name)
        except UnavailableError as error:
            self._retry("read_failed", error)
        except AtomlogError as error:
            self.stop(error)
        else:
            return True
        return False

    def _apply(self, records: Sequence[EffectiveRecord], before: Checkpoint, after: Checkpoint) -> bool:
        try:
            self._projection.apply(self.partition, records, after)
        except Exception as error:  # anything a store or a decoder raises: told apart by trying again
            self._tail.checkpoint = before
            return self._failed(error, records, after)
        self._attempts = self._skipped_in_a_row = 0
        self.applied += after.position - before.position
        return True

    def _failed(self, error: Exception, records: Sequence[EffectiveRecord], after: Checkpoint) -> bool:
        """Try again, narrow down, skip or stop, in that order."""
        needs_upgrade = isinstance(error, AtomlogError) and error.code in NEVER_SKIPPED
        # 1. The same again: a passing fault of the machine.
        if not needs_upgrade and self._attempts < self._context.settings.apply_retries:
            self._attempts += 1
            self._retry("apply_failed", error)
            return False
        self._attempts = 0
        # 2. One by one, to find the record at fault.
        if after.position - self.position > 1:
            self._careful_until = after.position
            return False
        # 3. Skip it where that is allowed, unless nothing works any more, or this program is too old for it.
        if needs_upgrade or not records or self._skipped_in_a_row >= QUARANTINE_RUN_MAX:
            self.stop(self._named(error))
            return False
        if self._projection.skips_poison:
            return self._skip(records[0].position, _text(error), after)
        # 4. Stop, and look ahead for a Repair.
        self.stop(self._named(error, records[0].position))
        self._repair = _RepairSearch(record=records[0], after=after, tail=self._new_tail(after))
        return False

    def _skip(self, position: int, why: str, after: Checkpoint) -> bool:
        try:
            self._projection.quarantine(self.partition, position, why, after)
        except Exception as error:  # the store takes nothing any more
            self.stop(self._named(error, position))
            return False
        self._tail.checkpoint = after
        self._skipped_in_a_row += 1
        self.applied += 1
        self._say("quarantined", position=position, error=why)
        return True

    async def _look_for_repair(self) -> bool:
        """Read on behind the record at fault; True when a Repair let the partition go on."""
        search = self._repair
        assert search is not None
        try:
            repair = await search.poll(self._context.clock)
        except (AtomlogError, OSError) as error:
            self._say("repair_search_failed", error=_text(error))
            return False
        if repair is None:
            return False
        self._repair, self.error = None, None
        why = f"skipped by the Repair at position {repair.position}: {repair.datum()['reason']}"
        return self._skip(search.record.position, why, search.after)

    def _retry(self, event: str, error: Exception) -> None:
        self._retry_at_us = self._context.clock.monotonic_us() + self._context.settings.apply_retry_ms * 1_000
        self._say(event, position=self.position, attempt=self._attempts, error=_text(error))

    def stop(self, error: AtomlogError) -> None:
        """Stand still for this reason. Callers outside: nothing that was applied may be built on."""
        self.error = error
        self._say("stopped", position=self.position, error=error.to_dict())

    def _named(self, error: Exception, position: int | None = None) -> AtomlogError:
        """The error with the projection, the partition and, for a record, what to do about it."""
        name, partition = self._projection.name, self.partition
        if isinstance(error, AtomlogError) and (first := first_kept(error)) is not None:
            return expired(name, partition, self.position, first)
        place = f"projection {name}, partition {partition}, position {self.position if position is None else position}"
        code = error.code if isinstance(error, AtomlogError) else "CORRUPT"
        text = error.message if isinstance(error, AtomlogError) else _text(error)
        if code == "LOG_DIVERGED":
            way_out = WAY_OUT.format(name=name)
        else:
            way_out = "" if position is None else "; it goes on after a Repair record for this position"
        details = [{"path": name, "code": code, "message": text, "partition": partition, "position": self.position}]
        return fail(code, f"{place}: {text}{way_out}", details=details)

    def _new_tail(self, place: Checkpoint) -> Tail:
        return Tail(self._context.log, self._context.genesis(self.partition), place)

    def _say(self, event: str, **fields: Any) -> None:
        self._context.on_event(
            {"event": event, "projection": self._projection.name, "partition": self.partition, **fields}
        )


class _RepairSearch:
    """Looks behind a record for the operator's verdict on it."""

    def __init__(self, *, record: EffectiveRecord, after: Checkpoint, tail: Tail) -> None:
        self.record = record
        self.after = after
        self._tail = tail

    async def poll(self, clock: Clock) -> EffectiveRecord | None:
        """The effective Repair{skip} for this very record, if the log holds one by now."""
        while True:
            before = self._tail.checkpoint.position
            for found in await self._tail.poll():
                if found.kind == "Repair" and self._is_meant(found):
                    return found
            if self._tail.checkpoint.position == before:
                return None
            await clock.sleep(0)

    def _is_meant(self, repair: EffectiveRecord) -> bool:
        datum = repair.datum()
        meant = (datum["position"], datum["chain"]) == (self.record.position, self.record.chain)
        return meant and datum["verdict"] == "skip"


def _text(error: Exception) -> str:
    return error.message if isinstance(error, AtomlogError) else f"{type(error).__name__}: {error}"
