"""The log in memory, for tests and simulation: one server, any number of producers, scripted faults.

Deterministic: no clock, no task, no thread. Each call awaits only at points with a name; `on_await` is told each name
just before, and may raise or cancel there. Like a broker, and unlike the embedded log, the server lets everybody
append: what counts is for the commit rule to say.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.log.faults import Fault, InFlight, LogFault, ReadFault
from atomlog.kernel.log.segments import record_bytes
from atomlog.kernel.ports import LogRecord
from atomlog.schemas.record import Malformed, Record

ANYBODY: Final = ""

AWAIT_POINTS: Final = (
    "acquire",
    "append.send",  # nothing was applied yet
    "append.held",  # sent, waiting for another producer's append
    "append.stall",  # no answer comes
    "append.reply",  # whatever happened at the server has happened
    "end",
    "read",
    "read.stall",
    "wait",
    "wait.sleep",  # nothing is there yet
    "renew",
)


@dataclass(slots=True)
class _Request:
    place: InFlight
    records: Sequence[Record]
    is_held: bool = False  # until another producer's request arrives
    applied: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryLogServer:
    """What the handles share: the records, the faults that are still to come, the requests in flight."""

    def __init__(self, *, log_id: bytes, partitions: int) -> None:
        self.log_id = log_id
        self.partitions = partitions
        self._records: list[list[LogRecord]] = [[] for _ in range(partitions)]
        self._grown = [asyncio.Event() for _ in range(partitions)]
        self._append_faults: dict[str, deque[Fault]] = {}
        self._read_faults: dict[str, deque[ReadFault]] = {}
        self._in_flight: dict[int, _Request] = {}
        self._let_go = asyncio.Event()
        self._sent = 0

    def script(self, *faults: Fault, producer: str = ANYBODY) -> None:
        """The next appends meet these, in order. A producer's own script goes before the one for anybody."""
        self._append_faults.setdefault(producer, deque()).extend(faults)

    def script_reads(self, *faults: ReadFault, reader: str = ANYBODY) -> None:
        """The next calls of `read`, `wait` and `end` meet these, in order."""
        self._read_faults.setdefault(reader, deque()).extend(faults)

    def heal(self) -> None:
        """Forget the faults that nobody has met yet."""
        self._append_faults.clear()
        self._read_faults.clear()

    @property
    def in_flight(self) -> Sequence[InFlight]:
        """Requests that may still arrive, held ones too, oldest first."""
        return [request.place for request in self._in_flight.values()]

    def deliver(self, number: int | None = None) -> None:
        """One request in flight arrives now, or all of them, oldest first."""
        numbers = list(self._in_flight) if number is None else [number]
        for n in numbers:
            self._apply(self._in_flight.pop(n))

    def drop(self, number: int | None = None) -> None:
        """One request in flight, or all of them, will never arrive."""
        numbers = list(self._in_flight) if number is None else [number]
        for n in numbers:
            del self._in_flight[n]

    def let_go(self) -> None:
        """Calls that hang or stall now go on."""
        self._let_go.set()
        self._let_go = asyncio.Event()

    def records(self, partition: int) -> Sequence[LogRecord]:
        """Everything in a partition, as it stands."""
        return tuple(self._records[partition])

    def put(self, partition: int, *records: Record | Malformed) -> None:
        """Append as a stranger would, with no fault and no producer."""
        entries = self._records[partition]
        for record in records:
            entries.append(LogRecord(position=len(entries), record=record))
        self._grown[partition].set()
        self._grown[partition] = asyncio.Event()

    def roll_back(self, partition: int, end: int) -> None:
        """Lose every record from position `end` on, as a broker does whose disk was put back."""
        del self._records[partition][end:]

    # ---- for the handles

    def end(self, partition: int) -> int:
        return len(self._records[partition])

    def fitting(self, partition: int, position: int, bytes_max: int) -> Sequence[LogRecord]:
        """Records from `position` on that fit into `bytes_max`; at least one when there is one."""
        found: list[LogRecord] = []
        for entry in islice(self._records[partition], position, None):
            bytes_max -= record_bytes(entry)
            if found and bytes_max < 0:
                break
            found.append(entry)
        return found

    def grown(self, partition: int) -> asyncio.Event:
        """Set at the next append to this partition."""
        return self._grown[partition]

    def stalled(self) -> asyncio.Event:
        """Set at the next `let_go`."""
        return self._let_go

    def next_fault(self, producer: str) -> Fault:
        for name in (producer, ANYBODY):
            if self._append_faults.get(name):
                return self._append_faults[name].popleft()
        return Fault.NONE

    def next_read_fault(self, reader: str) -> ReadFault:
        for name in (reader, ANYBODY):
            if self._read_faults.get(name):
                return self._read_faults[name].popleft()
        return ReadFault.NONE

    def request(self, producer: str, partition: int, records: Sequence[Record]) -> _Request:
        self._sent += 1
        place = InFlight(number=self._sent, producer=producer, partition=partition, record_count=len(records))
        return _Request(place=place, records=tuple(records))

    def apply(self, request: _Request) -> None:
        """The request arrives; then those arrive that were held until another producer's did."""
        self._apply(request)
        for number, held in list(self._in_flight.items()):
            if held.is_held and _frees(request, held):
                del self._in_flight[number]
                self._apply(held)

    def keep_in_flight(self, request: _Request, *, is_held: bool = False) -> None:
        request.is_held = is_held
        self._in_flight[request.place.number] = request

    def _apply(self, request: _Request) -> None:
        self.put(request.place.partition, *request.records)
        request.applied.set()


class MemoryLog:
    """`Log` over a `MemoryLogServer`: one producer and reader among others. `name` is what faults call it by."""

    def __init__(
        self, server: MemoryLogServer, *, name: str = "producer", on_await: Callable[[str], None] | None = None
    ) -> None:
        self.log_id = server.log_id
        self.partitions = server.partitions
        self.name = name
        self.on_await = on_await
        self._server = server
        self._appending: set[int] = set()
        self._is_closed = False

    @property
    def exclusive(self) -> bool:
        return False

    async def acquire(self, partition: int) -> None:
        """Nothing to take: everybody may append."""
        self._check(partition)
        await self._pause("acquire")

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """See `Log.append` and `Fault`."""
        self._check(partition)
        if partition in self._appending:
            raise RuntimeError(f"partition {partition}: an append is already under way")
        if not records:
            return
        self._appending.add(partition)
        try:
            await self._send(self._server.request(self.name, partition, records))
        finally:
            self._appending.discard(partition)

    async def end(self, partition: int) -> int:
        """See `Log.end`."""
        self._check(partition)
        await self._answer("end")
        return self._server.end(partition)

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        """See `Log.read`."""
        self._check(partition)
        await self._answer("read")
        end = self._server.end(partition)
        if position > end:
            message = f"partition {partition}: position {position} was read before, the log ends before {end}"
            raise fail("LOG_DIVERGED", f"{message}. It was rolled back: rebuild what is derived from it")
        return self._server.fitting(partition, position, bytes_max)

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        """See `Log.wait`. The timeout is the event loop's."""
        self._check(partition)
        await self._answer("wait")
        try:
            async with asyncio.timeout(timeout_s):
                while self._server.end(partition) <= position:
                    grown = self._server.grown(partition)
                    self._tell("wait.sleep")
                    await grown.wait()
                    self._check(partition)
        except TimeoutError:
            return self._server.end(partition) > position
        return True

    async def renew(self, partition: int) -> None:
        """See `Log.renew`. Requests in flight stay there."""
        self._check(partition)
        await self._pause("renew")

    async def close(self) -> None:
        """This handle answers no more; the server keeps everything."""
        self._is_closed = True

    async def _send(self, request: _Request) -> None:
        server = self._server
        await self._pause("append.send")
        fault = server.next_fault(self.name)
        if fault is Fault.ERROR_BEFORE:
            raise LogFault(fault.value)
        # What happens at the server.
        if fault in (Fault.NONE, Fault.LOST_APPLIED, Fault.HANGS_APPLIED, Fault.DUPLICATED, Fault.DUPLICATED_LATER):
            server.apply(request)
        if fault is Fault.DUPLICATED:
            server.apply(self._copy(request))
        elif fault is Fault.DUPLICATED_LATER:
            server.keep_in_flight(self._copy(request))
        elif fault is Fault.DELAYED:
            server.keep_in_flight(request)
        elif fault is Fault.TORN:
            server.apply(self._copy(request, len(request.records) // 2))
        elif fault is Fault.REORDERED:
            server.keep_in_flight(request, is_held=True)
            self._tell("append.held")
            await request.applied.wait()
        # What comes back.
        if fault in (Fault.HANGS_APPLIED, Fault.HANGS_NOT_APPLIED):
            stalled = server.stalled()
            self._tell("append.stall")
            await stalled.wait()
        await self._pause("append.reply")
        if fault not in (Fault.NONE, Fault.DUPLICATED, Fault.DUPLICATED_LATER, Fault.REORDERED):
            raise LogFault(fault.value)

    def _copy(self, request: _Request, count: int | None = None) -> _Request:
        return self._server.request(self.name, request.place.partition, request.records[:count])

    async def _answer(self, point: str) -> None:
        fault = self._server.next_read_fault(self.name)
        await self._pause(point)
        if fault is ReadFault.ERROR:
            raise LogFault(f"{point} fails")
        if fault is ReadFault.STALLS:
            stalled = self._server.stalled()
            self._tell("read.stall")
            await stalled.wait()

    async def _pause(self, point: str) -> None:
        self._tell(point)
        await asyncio.sleep(0)

    def _tell(self, point: str) -> None:
        if self.on_await is not None:
            self.on_await(point)

    def _check(self, partition: int) -> None:
        if self._is_closed:
            raise fail("INVALID_INPUT", "the log is closed")
        if not 0 <= partition < self.partitions:
            raise fail("INVALID_INPUT", f"partition {partition}: the log has {self.partitions}, counted from 0")


def _frees(arrived: _Request, held: _Request) -> bool:
    """Another producer's request on the same partition frees a held one."""
    return arrived.place.partition == held.place.partition and arrived.place.producer != held.place.producer
