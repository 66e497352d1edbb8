"""The log on files of the local machine: the port `Log` without a server. docs/formats.md has the layout.

Any number of processes read, below the published `durable_end`; the one that holds a partition's lock appends.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atomlog.kernel.errors import fail
from atomlog.kernel.log.frames import SegmentHeader
from atomlog.kernel.log.jobs import Job
from atomlog.kernel.log.ownership import read_note, read_only, take_lock, write_note
from atomlog.kernel.log.places import DURABLE_END_BYTES, Place, corrupt, read_durable_end
from atomlog.kernel.log.recovery import Recovered, find_end, recover
from atomlog.kernel.log.segments import PartitionReader, first_spot, read_segment_header
from atomlog.kernel.log.writer import OnFatal, PartitionWriter, Syncer
from atomlog.kernel.ports import Clock, Files, LogRecord, Workers
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import end_process, process_id
from atomlog.schemas.record import ZERO16, Record


def create_log(files: Files, directory: str, log_id: bytes, partitions: int) -> None:
    """The empty log of a new store in `directory`, durable on return: a header and no record, so no Claim either.

    Raises:
        INVALID_INPUT: there is a log already.
    """
    places = [Place(store=directory, log_id=log_id, partition=partition) for partition in range(partitions)]
    for place in places:
        if files.exists(place.segment(0)):
            raise fail("INVALID_INPUT", f"{place.directory} already holds a log")
    for place in places:
        files.make_directory(place.directory)
        files.write_atomic(place.durable_end, bytes(DURABLE_END_BYTES))
        header = SegmentHeader(log_id=log_id, partition=place.partition, first=0, chain=ZERO16)
        files.write_atomic(place.segment(0), header.to_bytes())
    files.sync_directory(f"{directory}/log")
    files.sync_directory(directory)


class EmbeddedLog:
    """`Log` on the files of the store in `directory`.

    `owner_info` goes into `owner.json` while this process owns a partition (its `endpoint`; `pid` is added), for the
    NOT_OWNER of others. `on_fatal` is called from a worker's thread after a failed fsync; the real one never returns.
    """

    def __init__(
        self,
        *,
        files: Files,
        workers: Workers,
        clock: Clock,
        directory: str,
        log_id: bytes,
        partitions: int,
        settings: Settings,
        on_fatal: OnFatal = end_process,
        owner_info: Mapping[str, Any] | None = None,
        process_id: Callable[[], int] = process_id,
    ) -> None:
        self.log_id = log_id
        self.partitions = partitions
        self._files = files
        self._workers = workers
        self._clock = clock
        self._settings = settings
        self._syncer = Syncer(on_fatal)
        self._owner_info = dict(owner_info or {})
        self._process_id = process_id
        self._made_by = process_id()
        self._places = [Place(store=directory, log_id=log_id, partition=n) for n in range(partitions)]
        self._readers = [PartitionReader(files, place) for place in self._places]
        self._writers: dict[int, PartitionWriter] = {}
        self._changing_hands = [asyncio.Lock() for _ in range(partitions)]
        self._stood_ahead: dict[int, tuple[int, int]] = {}
        self._is_closed = False

    @property
    def exclusive(self) -> bool:
        return True

    async def acquire(self, partition: int) -> None:
        """Lock the partition, cut off a torn tail, make the rest durable and publish it. Nothing when already owned.

        Raises:
            NOT_OWNER: another process owns it; `details` has its `pid` and `endpoint`.
            STORE_LOCKED: the file system keeps no locks. STORE_READ_ONLY: the files cannot be written.
            CORRUPT, LOG_MISMATCH, STORE_TOO_NEW: the files are not what this log wrote; nothing was changed.
        """
        place = self._place(partition)
        async with self._changing_hands[partition]:
            self._syncer.check()
            if self._own_writer(partition) is None:
                inherited = self._writers.pop(partition, None)
                if inherited is not None:
                    inherited.close_files()
                self._writers[partition] = await self._recovered_writer(place)

    async def release(self, partition: int) -> None:
        """Give a partition back; nothing when it is not owned."""
        async with self._changing_hands[partition]:
            writer = self._writers.pop(partition, None)
            if writer is None:
                return
            if self._is_forked():
                writer.close_files()
            else:
                await writer.close()

    def tail_was_cut(self, partition: int) -> bool:
        """Whether `acquire` found and cut off a torn group: content keys may have been used in what is gone."""
        return partition in self._writers and self._writers[partition].tail_was_cut

    def owner_note(self, partition: int) -> Mapping[str, Any]:
        """What the owner says of itself (`pid`, `endpoint`, …); it may be dead. Empty when there is no note."""
        return read_note(self._files, self._place(partition))

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """See `Log.append`. A cancelled append goes on in its thread; `renew` and the next append wait for it.

        Raises:
            NOT_OWNER: the partition was not acquired, or this process was forked from the one that did.
            ValueError: a record that no reader could read back; nothing was written.
            OSError: it could not be written. The end is clean and writing may go on.
        """
        place = self._place(partition)
        writer = self._writers.get(partition)
        if writer is None or self._is_forked():
            why = "this process was forked from its owner" if writer else "it was not acquired"
            raise fail("NOT_OWNER", f"partition {partition} of {place.store}: {why}. Open the store anew")
        if records:
            await writer.append(records)

    async def end(self, partition: int) -> int:
        """See `Log.end`. CORRUPT when `durable_end` is missing or damaged and no owner has made it anew."""
        return self._end(partition)

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        """See `Log.read`. A checkpoint may stand after `durable_end` for a while.

        `durable_end` is not synced with each group. After a power cut it may be older than the log, and older than a
        projection's checkpoint, until the next owner has set it right. Such a reader gets nothing yet; one that
        stands after the last whole group gets LOG_DIVERGED.
        """
        end = self._end(partition)
        if position < end:
            return self._readers[partition].read(position, end, bytes_max)
        if position > end and not self._stands_ahead(partition, position, end):
            message = f"partition {partition}: position {position} was read before, the log ends before {end}"
            raise fail("LOG_DIVERGED", f"{message}. It was rolled back: rebuild what is derived from it")
        return []

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        """See `Log.wait`. Without owning the partition, `durable_end` is looked at every `follow_poll_ms`."""
        deadline_us = self._clock.monotonic_us() + int(timeout_s * 1_000_000)
        while self._end(partition) <= position:
            left_s = (deadline_us - self._clock.monotonic_us()) / 1_000_000
            if left_s <= 0:
                return False
            writer = self._own_writer(partition)
            if writer is None:
                await self._clock.sleep(min(left_s, self._settings.follow_poll_ms / 1_000))
            elif not await writer.changed(left_s):
                return self._end(partition) > position
        return True

    async def renew(self, partition: int) -> None:
        """See `Log.renew`. Here nothing is in flight any more on return: it is in the log, or never will be."""
        writer = self._own_writer(partition)
        if writer is not None:
            await writer.settle()

    async def close(self) -> None:
        """Give everything back; twice does nothing."""
        self._is_closed = True
        for partition in list(self._writers):
            await self.release(partition)
        for reader in self._readers:
            reader.close()

    def _place(self, partition: int) -> Place:
        if self._is_closed:
            raise fail("INVALID_INPUT", "the log is closed")
        if not 0 <= partition < self.partitions:
            raise fail("INVALID_INPUT", f"partition {partition}: the log has {self.partitions}, counted from 0")
        return self._places[partition]

    def _is_forked(self) -> bool:
        return self._process_id() != self._made_by

    def _own_writer(self, partition: int) -> PartitionWriter | None:
        return None if self._is_forked() else self._writers.get(partition)

    async def _recovered_writer(self, place: Place) -> PartitionWriter:
        lock = take_lock(self._files, place)
        job = Job(lambda: self._recover(place))
        try:
            recovered = await job.run(self._workers)
        except BaseException as error:
            job.settle()  # cancelled: the thread must be out of the files before the lock goes
            try:
                if job.result is not None:
                    job.result.close()
                if self._files.exists(place.owner):
                    self._files.remove(place.owner)
            finally:
                lock.close()
            if isinstance(error, OSError):
                raise read_only(error, place.directory) from error
            raise
        return PartitionWriter(
            files=self._files,
            workers=self._workers,
            place=place,
            recovered=recovered,
            lock=lock,
            syncer=self._syncer,
            segment_bytes=self._settings.segment_bytes,
            cache=self._readers[place.partition].cache,
        )

    def _recover(self, place: Place) -> Recovered:
        write_note(self._files, place, {"pid": self._process_id(), **self._owner_info})
        return recover(self._files, place, self._syncer.sync)

    def _end(self, partition: int) -> int:
        place = self._place(partition)
        writer = self._own_writer(partition)
        if writer is not None:
            return writer.end
        end = read_durable_end(self._files, place.durable_end)
        if end is None:
            what = "it is missing or not 8 bytes long, so nobody knows what is durable"
            raise corrupt(place.durable_end, None, what, "Open the store for writing: the owner makes it anew.")
        return end

    def _stands_ahead(self, partition: int, position: int, end: int) -> bool:
        """Whether whole groups reach at least to `position`, although `durable_end` does not say so yet."""
        if self._own_writer(partition) is not None:
            return False
        known = self._stood_ahead.get(partition)
        if known is None or known[0] != end:
            known = self._stood_ahead[partition] = (end, self._whole_end(partition))
        return position <= known[1]

    def _whole_end(self, partition: int) -> int:
        place = self._place(partition)
        firsts = place.segments(self._files)
        if not firsts:
            return 0
        path = place.segment(firsts[-1])
        file = self._files.open(path, write=False)
        try:
            header = read_segment_header(file, path, place, firsts[-1])
            return find_end(file, path, first_spot(header), acknowledged=0).position
        finally:
            file.close()
