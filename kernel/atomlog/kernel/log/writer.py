"""The owner's side of one partition: a group is written, synced, published, and only then does the next one start."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atomlog.kernel.errors import fail
from atomlog.kernel.log.cache import Group, GroupCache
from atomlog.kernel.log.frames import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_group,
    link,
)
from atomlog.kernel.log.jobs import Job
from atomlog.kernel.log.ownership import check_in_place
from atomlog.kernel.log.places import DURABLE_END_BYTES, Place, Spot
from atomlog.kernel.log.recovery import Recovered
from atomlog.kernel.log.segments import first_spot
from atomlog.kernel.ports import File, Files, LogRecord, Workers
from atomlog.schemas.record import Record

OnFatal = Callable[[str], object]


class Syncer:
    """`File.sync`, and the end of the process when it fails: nobody knows then what is on the disk."""

    def __init__(self, on_fatal: OnFatal) -> None:
        self._on_fatal = on_fatal
        self.failure: str | None = None

    def sync(self, file: File, path: str) -> None:
        try:
            file.sync()
        except OSError as error:
            self.die(f"fsync of {path} failed: {error}")
            raise

    def die(self, message: str) -> None:
        self.failure = f"{message}. What is on the disk is not known: open the store anew in a new process"
        self._on_fatal(self.failure)

    def check(self) -> None:
        """CORRUPT after a failure that the process survived (only where `on_fatal` returns)."""
        if self.failure is not None:
            raise fail("CORRUPT", self.failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One group to be written, and the header of the segment that begins before it, if one does."""

    roll: SegmentHeader | None
    data: bytes
    after: Spot


class PartitionWriter:
    """Appends to a recovered partition. `end`: the position after the last durable record."""

    def __init__(
        self,
        *,
        files: Files,
        workers: Workers,
        place: Place,
        recovered: Recovered,
        lock: File,
        syncer: Syncer,
        segment_bytes: int,
        cache: GroupCache,
    ) -> None:
        self.end = recovered.spot.position
        self.tail_was_cut = recovered.cut_bytes > 0
        self._files = files
        self._workers = workers
        self._place = place
        self._segment = recovered.segment
        self._path = recovered.path
        self._spot = recovered.spot
        self._durable_end = recovered.durable_end
        self._lock = lock
        self._syncer = syncer
        self._segment_bytes = segment_bytes
        self._cache = cache
        self._job: Job[None] | None = None
        self._is_appending = False
        self._is_closing = False
        self._changed = asyncio.Event()

    async def append(self, records: Sequence[Record]) -> None:
        """See `Log.append`. An OSError before the sync leaves a clean end; one of the sync ends the process.

        CORRUPT when the files are not where they were opened; the end is clean then, too.
        """
        if self._is_appending:
            raise RuntimeError(f"partition {self._place.partition}: an append is already under way")
        self._is_appending = True
        try:
            # 1. A group starts only when the one before it is synced or given up, its caller cancelled or not.
            await self.settle()
            self._syncer.check()
            if self._is_closing:
                raise fail("NOT_OWNER", f"partition {self._place.partition} of {self._place.store} is being released")
            # 2. Write, sync, publish, in a worker.
            step = self._plan(records)
            self._job = Job(lambda: self._commit(step))
            await self._job.run(self._workers)
            self._job = None
        finally:
            self._is_appending = False
        # 3. Tell those in this process.
        first = self.end - len(records)
        entries = tuple([LogRecord(position=first + n, record=record) for n, record in enumerate(records)])
        self._cache.put(Group(first=first, records=entries, bytes=len(step.data) - GROUP_HEADER_BYTES))
        self._wake()

    async def settle(self) -> None:
        """After a cancelled append: until its write is over, or will never be."""
        job = self._job
        if job is not None:
            await self._workers.run(job.settle)
            if self._job is job:
                self._job = None
            self._wake()

    async def changed(self, timeout_s: float) -> bool:
        """Until the end has moved, or the timeout; says which."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Give the lock back, durable_end synced. Whatever happens, no thread writes after the files are closed."""
        self._is_closing = True
        try:
            await self.settle()
            if self._syncer.failure is None:
                self._job = Job(lambda: self._syncer.sync(self._durable_end, self._place.durable_end))
                await self._job.run(self._workers)
                if self._is_in_place() and self._files.exists(self._place.owner):
                    self._files.remove(self._place.owner)
        finally:
            if self._job is not None:
                self._job.settle()
            self.close_files()

    def close_files(self) -> None:
        """Close without a word to the disk: all that a forked child may do."""
        for file in (self._segment, self._durable_end, self._lock):
            file.close()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _plan(self, records: Sequence[Record]) -> _Step:
        spot = self._spot
        data = encode_group(records, spot.chain)
        roll = None
        if spot.offset > SEGMENT_HEADER_BYTES and spot.offset + len(data) > self._segment_bytes:
            place = self._place
            roll = SegmentHeader(log_id=place.log_id, partition=place.partition, first=spot.position, chain=spot.chain)
            spot = first_spot(roll)
            data = encode_group(records, spot.chain)
        return _Step(
            roll=roll, data=data, after=Spot(spot.offset + len(data), spot.position + len(records), link(data))
        )

    # ---- in a worker from here on

    def _commit(self, step: _Step) -> None:
        self._check_in_place()
        if step.roll is not None:
            self._roll(step.roll)
        try:
            self._segment.append(step.data)
        except BaseException:
            self._cut_back()
            raise
        self._syncer.sync(self._segment, self._path)
        try:
            self._check_in_place()  # nobody may be told of what went to a file that is not the log's any more
        except BaseException:
            self._cut_back()
            raise
        try:
            self._durable_end.write_at(0, step.after.position.to_bytes(DURABLE_END_BYTES, "little"))
        except OSError as error:
            self._syncer.die(f"{self._place.durable_end} cannot be written: {error}")
            raise
        self._spot = step.after
        self.end = step.after.position

    def _roll(self, header: SegmentHeader) -> None:
        """Begin the next segment, durable in its directory before anything is written to it."""
        path = self._place.segment(header.first)
        raw = header.to_bytes()
        segment = self._files.open(f"{path}.tmp", write=True, create=True)
        try:
            segment.truncate(0)
            segment.append(raw)
            self._syncer.sync(segment, path)
            self._files.replace(f"{path}.tmp", path)
        except BaseException:
            segment.close()
            raise
        self._segment.close()
        self._segment, self._path = segment, path
        self._spot = first_spot(header)
        try:
            self._files.sync_directory(self._place.directory)
        except OSError as error:
            self._syncer.die(f"fsync of {self._place.directory} failed: {error}")
            raise

    def _check_in_place(self) -> None:
        """CORRUPT when somebody took away the locked file, or the one that is written."""
        check_in_place(self._lock, self._place.segment(0))
        check_in_place(self._segment, self._path)

    def _is_in_place(self) -> bool:
        return self._lock.is_at(self._place.segment(0))

    def _cut_back(self) -> None:
        """Nothing of a group that could not be written whole may stand before the next one."""
        try:
            self._segment.truncate(self._spot.offset)
        except OSError as error:
            self._syncer.die(f"{self._path} ends with a part of a group and cannot be cut back: {error}")
