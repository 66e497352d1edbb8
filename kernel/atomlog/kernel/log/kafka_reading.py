"""Reading one partition of a Kafka log: the end, what is new, what is old.

New records are asked for by one loop for all readers of the process, while somebody wants them; the broker holds each
question until there is something. Old ones are read where the reader stands. Both go through one bounded cache, so
readers that are near one another parse each record once.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import KafkaClient, Page
from atomlog.kernel.kafka.cluster import Lane
from atomlog.kernel.kafka.trust import unavailable
from atomlog.kernel.kafka.values import FetchedRecord
from atomlog.kernel.log.cache import Group, GroupCache
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.rounds import Rounds
from atomlog.schemas.record import Malformed, Record, parse

CACHE_BYTES_MAX, CACHE_BYTES_MIN = 64 * 1024 * 1024, 1024 * 1024  # of all partitions of a log, and of each one
RECORD_OVERHEAD_BYTES: Final = 120  # headers and framing of a record in a batch
POLL_BYTES_MAX: Final = 1024 * 1024
POLL_S: Final = 0.5  # how long the broker holds a question for what is new
IDLE_S: Final = 5.0  # after so long without a reader the loop ends
REASON_CHARS_MAX: Final = 200
OTHER_TOPIC: Final = ("LOG_DIVERGED", "STORE_NOT_FOUND")  # says that the topic was cut, or is gone


class PartitionReader:
    """Everything that is read of one partition, for any number of readers."""

    def __init__(self, client: KafkaClient, topic: str, partition: int, partitions: int) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._cache_bytes = max(CACHE_BYTES_MIN, CACHE_BYTES_MAX // partitions)
        self._cache = GroupCache(self._cache_bytes)
        self._end = 0  # the highest that a broker has told
        self._grown: asyncio.Future[None] | None = None  # of who waits
        self._wanted = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._ends = Rounds(self._ask_end, _closed)
        self._old = client.lane()
        self._new = client.lane()
        self._reading = asyncio.Lock()

    async def end(self) -> int:
        """From the leader, asked after this call."""
        return await self._ends.ask()

    async def read(self, position: int, bytes_max: int) -> Sequence[LogRecord]:
        """See `Log.read`."""
        self._wanted.set()
        group = self._cache.get(position)
        if group is None:
            try:
                async with asyncio.timeout(2 * self._client.timeout_s), self._reading:
                    group = self._cache.get(position)  # who stood here before may have read it
                    if group is None:
                        group = await self._read_from_leader(position, bytes_max)
            except TimeoutError:
                raise unavailable(f"{self._where}: the reads before this one take too long") from None
        return () if group is None else _fitting(group, position, bytes_max)

    async def wait(self, position: int, timeout_s: float) -> bool:
        """See `Log.wait`. Raises what keeps the records from coming; LOG_DIVERGED when the end is before `position`."""
        if self._end > position:
            return True
        if timeout_s <= 0:
            return await self.end() > position
        try:
            async with asyncio.timeout(timeout_s):
                while self._end <= position:
                    await self._growth()
        except TimeoutError:
            if position > self._end:
                await self._read_from_leader(position, 1)  # it was read before, so it must still be there
            return self._end > position
        return True

    async def close(self) -> None:
        """Who waits is told; the sockets are closed on return."""
        if self._polling is not None:
            self._polling.cancel()
        await self._ends.close()
        await self._new.close()
        await self._old.close()
        if self._polling is not None:
            await asyncio.gather(self._polling, return_exceptions=True)
        self._tell(_closed())

    async def _ask_end(self) -> int:
        end = await self._client.end(self._topic, self._partition)
        self._learn(end)
        return end

    async def _growth(self) -> None:
        """Until the end has moved, or the error that keeps it from being known."""
        if self._grown is None:
            self._grown = asyncio.get_running_loop().create_future()
        grown = self._grown
        self._wanted.set()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        await asyncio.shield(grown)

    async def _poll(self) -> None:
        """Ask for what is new, one page ahead of the readers. Ends when nobody wants it, or with an error for them."""
        try:
            await self.end()
            position = self._end  # not the answer: where a log was rolled back, asking there tells
            while True:
                page = await self._page(position, POLL_BYTES_MAX, POLL_S, self._new)
                self._keep(page, position)
                position = page.after
                if self._grown is None and not await self._is_wanted():
                    return
        except Exception as error:
            self._tell(error)

    async def _is_wanted(self) -> bool:
        """Until a reader came again; False when none does for a while."""
        self._wanted.clear()
        try:
            async with asyncio.timeout(IDLE_S):
                await self._wanted.wait()
        except TimeoutError:
            return self._grown is not None  # it came in this very moment
        return True

    async def _read_from_leader(self, position: int, bytes_max: int) -> Group | None:
        """What was durable once is there, though a new leader may need a moment to say so."""
        deadline = asyncio.get_running_loop().time() + self._client.timeout_s
        wait_s = 0.0
        while True:
            page = await self._page(position, bytes_max, wait_s, self._old)
            group = self._keep(page, position)
            if group is not None or position >= self._end:
                return group
            if asyncio.get_running_loop().time() >= deadline:
                message = f"{self._where}: the leader does not give out position {position}, the end was {self._end}"
                raise unavailable(message)
            wait_s = POLL_S

    async def _page(self, position: int, bytes_max: int, wait_s: float, lane: Lane) -> Page:
        try:
            return await self._client.page(
                self._topic, self._partition, position, bytes_max=bytes_max, wait_s=wait_s, lane=lane
            )
        except AtomlogError as error:
            if error.code in OTHER_TOPIC:  # what is kept here may be of another history than what is there now
                self._cache, self._end = GroupCache(self._cache_bytes), 0
            raise

    def _keep(self, page: Page, position: int) -> Group | None:
        """Parse and check a page that was read at `position`. LOG_DIVERGED when one is missing."""
        for number, record in enumerate(page.records, position):
            if record.offset != number:
                raise self._gap(number, record.offset)
        if page.after != position + len(page.records):
            raise self._gap(position + len(page.records), page.after)
        group = None
        if page.records:
            group = Group(
                first=position,
                records=tuple(log_record(record) for record in page.records),
                bytes=sum(_size(record) for record in page.records),
            )
            self._cache.put(group)
        self._learn(page.end)
        return group

    def _learn(self, end: int) -> None:
        if end > self._end:
            self._end = end
            self._tell(None)

    def _tell(self, error: Exception | None) -> None:
        grown, self._grown = self._grown, None
        if grown is None:
            return
        if error is None:
            grown.set_result(None)
        else:
            grown.set_exception(error)
            grown.exception()  # nobody may be waiting any more

    def _gap(self, wanted: int, found: int) -> AtomlogError:
        what = f"position {wanted} is missing, the next one is {found}"
        detail = {"path": self._topic, "code": "LOG_DIVERGED", "message": what, "wanted": wanted, "first": found}
        message = f"{self._where}: {what}. A log is never compacted (cleanup.policy=delete): restore it from a backup"
        return fail("LOG_DIVERGED", message, details=[detail | {"partition": self._partition}])

    @property
    def _where(self) -> str:
        return f"topic {self._topic}, partition {self._partition}"


def log_record(fetched: FetchedRecord) -> LogRecord:
    """Whatever it is: what is no record of ours is `Malformed`."""
    record = parse(fetched.headers, fetched.value or b"")
    if isinstance(record, Malformed):
        reason = fetched.problem or record.reason
        if len(reason) > REASON_CHARS_MAX:
            reason = f"{reason[:REASON_CHARS_MAX]}…"
        record = Malformed(reason=reason, term=record.term, owner=record.owner, kind=record.kind)
    elif fetched.value is None:
        record = Malformed(reason="it has no value", term=record.term, owner=record.owner, kind=record.kind)
    return LogRecord(position=fetched.offset, record=record)


def _size(record: FetchedRecord) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.value or b"")


def _fitting(group: Group, position: int, bytes_max: int) -> Sequence[LogRecord]:
    """Records from `position` on, up to `bytes_max`, at least one."""
    start = position - group.first
    if group.bytes <= bytes_max:
        return group.records[start:]
    total, stop = 0, start
    while stop < len(group.records):
        record = group.records[stop].record
        total += RECORD_OVERHEAD_BYTES + (len(record.value) if isinstance(record, Record) else 0)
        if total > bytes_max and stop > start:
            break
        stop += 1
    return group.records[start:stop]


def _closed() -> AtomlogError:
    return fail("INVALID_INPUT", "the log is closed")
