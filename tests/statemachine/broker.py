"""The log on a real broker, as processes of a simulation have it.

The simulation knows no sockets, so clients and logs live in an event loop of a thread of their own. Each call of a
process is made there, and the simulation stands still until it is over: what a broker does takes none of its time, and
an example is the same each time. What may go wrong on the way goes wrong in a TCP proxy that each process has to
itself: connections are cut, requests and answers lost, requests held back that arrive when nobody waits any more.
"""

import asyncio
import concurrent.futures
import itertools
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.answers import left
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig
from atomlog.kernel.kafka.topics import ALLOWABLE, atoms_spec
from atomlog.kernel.kafka.values import Address
from atomlog.kernel.kafka.wire import Connection
from atomlog.kernel.log.faults import Fault, InFlight, LogFault, ReadFault
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.log.memory import MemoryLogServer
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock
from atomlog.schemas.record import Record
from tests.chaos.proxy import Proxy
from tests.simulation.loop import Life

T = TypeVar("T")
TIMEOUT_S: Final = 60.0  # of each call of a client, by a clock that no test waits for
GIVEN_UP_S: Final = 120.0  # the broker does not do what it does
PRODUCE: Final = b"\x00\x00"  # the number of the request
READ_BYTES: Final = 1 << 20
REAL_FAULTS: Final = (
    Fault.LOST_NOT_APPLIED,
    Fault.LOST_APPLIED,
    Fault.DELAYED,
    Fault.REORDERED,
    Fault.HANGS_NOT_APPLIED,
    Fault.HANGS_APPLIED,
)
HELD: Final = (Fault.LOST_NOT_APPLIED, Fault.DELAYED, Fault.REORDERED, Fault.HANGS_NOT_APPLIED)  # on their way


class Bridge:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What it gives; whoever asks stands still until then."""
        return self.begin(work).result(GIVEN_UP_S)

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GIVEN_UP_S)
        self._loop.close()


class Frames:
    """Tells the first bytes of a produce request, and when it has gone by whole, from the chunks of a connection."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def begins(self, sender: str, chunk: bytes) -> bool:
        return not self._left.get(sender) and chunk[4:6] == PRODUCE

    def is_over(self, sender: str, chunk: bytes) -> bool:
        """To be told every chunk from the first of a produce request on."""
        if self.begins(sender, chunk):
            self._left[sender] = 4 + int.from_bytes(chunk[:4], "big")
        if not self._left.get(sender):
            return False
        self._left[sender] -= len(chunk)
        return self._left[sender] <= 0


class Way:
    """One process's way to the broker: client and log, and the proxy that its connections go through."""

    def __init__(self, life: Life, address: str, topic: str, log_id: bytes) -> None:
        self.life = life
        self._address = address
        self._topic = topic
        self._log_id = log_id
        self.is_closed = False

    async def open(self) -> "Way":
        self.proxy = await self._new_proxy()
        self.client = KafkaClient(KafkaConfig(bootstrap=(self._address,)), timeout_s=TIMEOUT_S)
        self.client._cluster.connect = self._connect  # type: ignore[method-assign]
        await self.client.start()
        self.log = KafkaLog(self.client, self._topic, self._log_id, 1, SystemClock(), Settings(), allow_weak=ALLOWABLE)
        return self

    async def leave(self) -> Proxy:
        """New connections go another way; the proxy that has the ones from before."""
        before, self.proxy = self.proxy, await self._new_proxy()
        return before

    def forget(self) -> None:
        """The connection of the append that is under way is reset on this side; what has left may yet arrive."""
        for producer in self.log._producers.values():
            producer._lane.drop()

    async def close(self) -> None:
        self.is_closed = True
        await self.log.close()
        await self.client.close()
        await self.proxy.close()

    async def _new_proxy(self) -> Proxy:
        proxy = Proxy()
        host, _, port = self._address.rpartition(":")
        proxy.target = host, int(port)
        await proxy.start()
        return proxy

    async def _connect(self, address: Address, deadline: float) -> Connection:
        here = Address(host="127.0.0.1", port=self.proxy.port)
        connection = await Connection.connect(here, self.client.config, None, left(deadline))
        connection.address = address  # where it leads
        return connection


@dataclass(kw_only=True)
class Held:
    """A request that stands in a proxy. `sending`: the append that waits for its answer, if one still does."""

    place: InFlight
    proxy: Proxy
    is_over: asyncio.Event  # of the simulation
    sending: "asyncio.Task[None] | None"
    until_another: bool


class BrokerServer(MemoryLogServer):
    """The topic, and what the processes share: faults that are still to come, requests in flight.

    Scripts are those of the log in memory, as far as a broker can do them.
    """

    def __init__(self, address: str, *, log_id: bytes) -> None:
        super().__init__(log_id=log_id, partitions=1)
        self.bridge = Bridge()
        self._address = address
        self._topic = f"m{uuid.uuid4().hex[:12]}.atoms"
        self._ways: list[Way] = []
        self._held: dict[int, Held] = {}
        self._seen: list[LogRecord] = []
        self._numbers = itertools.count(1)
        self.witness = self.way(Life("witness"), is_new=True)

    def way(self, life: Life, *, is_new: bool = False) -> Way:
        return self.bridge.do(self._open(life, is_new=is_new))

    async def _open(self, life: Life, *, is_new: bool) -> Way:
        way = await Way(life, self._address, self._topic, self.log_id).open()
        if is_new:
            await way.client.create_topics([atoms_spec(self._topic, 1, 1, Settings(), Bounds()).new])
        self._ways.append(way)
        return way

    # ---- what everybody sees

    def records(self, partition: int) -> Sequence[LogRecord]:
        self.bury()
        self.bridge.do(self._read_on(partition))
        return tuple(self._seen)

    def end(self, partition: int) -> int:
        return self.bridge.do(self.witness.log.end(partition))

    async def _read_on(self, partition: int) -> None:
        while part := await self.witness.log.read(partition, len(self._seen), bytes_max=READ_BYTES):
            self._seen += part

    # ---- what is on its way

    @property
    def in_flight(self) -> Sequence[InFlight]:
        self.bury()
        return [held.place for held in self._held.values()]

    def deliver(self, number: int | None = None) -> None:
        for held in self._taken(number):
            self.bridge.do(self._deliver(held))
            held.is_over.set()
            self.grew(0, held.place.producer)

    def drop(self, number: int | None = None) -> None:
        for held in self._taken(number):
            self.bridge.do(held.proxy.close())
            held.is_over.set()

    def grew(self, partition: int, producer: str) -> None:
        """Something was applied: who waits for the end is woken; so is what waits for another's append."""
        self._grown[partition].set()
        self._grown[partition] = asyncio.Event()
        for number, held in list(self._held.items()):
            if held.until_another and held.place.producer != producer:
                self.deliver(number)

    def bury(self) -> None:
        """The sockets of dead processes close; what they had sent may still arrive."""
        for way in [way for way in self._ways if way.life.is_dead]:
            self._ways.remove(way)
            self.bridge.do(way.close())

    def close(self) -> None:
        self.drop()
        for way in self._ways:
            self.bridge.do(way.close())
        self.bridge.close()

    def _taken(self, number: int | None) -> list[Held]:
        numbers = list(self._held) if number is None else [number] if number in self._held else []
        return [self._held.pop(one) for one in numbers]

    async def _deliver(self, held: Held) -> None:
        """Returns when the broker has it; one connection has one request on it, which is applied whole."""
        before = await self.witness.log.end(0)
        held.proxy.release()
        await self.grown_past(before)
        if held.sending is not None:
            await asyncio.wait((held.sending,))
        await held.proxy.close()

    async def grown_past(self, end: int) -> None:
        async with asyncio.timeout(GIVEN_UP_S):
            while await self.witness.log.end(0) <= end:
                await asyncio.sleep(0.001)

    # ---- appends

    def send(self, way: Way, name: str, partition: int, records: Sequence[Record], fault: Fault) -> Held | None:
        """None: applied and acknowledged. Raises where the sender hears of a failure. Else what stands in a proxy."""
        if fault in HELD:
            place = InFlight(number=next(self._numbers), producer=name, partition=partition, record_count=len(records))
            held = self.bridge.do(self._hold(way, place, records, fault))
            if fault is not Fault.LOST_NOT_APPLIED:
                self._held[place.number] = held
                return held
            self.bridge.do(held.proxy.close())
            self.result(held)
        elif fault is Fault.LOST_APPLIED:
            try:
                self.bridge.do(self._lose_the_answer(way, partition, records))
            finally:
                self.grew(partition, name)
        else:
            self.bridge.do(way.log.append(partition, records))
            self.grew(partition, name)
        return None

    def result(self, held: Held) -> None:
        """What the sender is told in the end."""
        assert held.sending is not None
        self.bridge.do(_outcome(held.sending))

    def give_up(self, way: Way, held: Held) -> None:
        """Nobody waits for the answer any more."""
        self.bridge.do(_forget(way, held))

    async def _hold(self, way: Way, place: InFlight, records: Sequence[Record], fault: Fault) -> Held:
        frames, proxy = Frames(), way.proxy
        proxy.hold(frames.begins)
        sending = asyncio.create_task(way.log.append(place.partition, records))
        sending.add_done_callback(_is_seen)
        held = Held(
            place=place,
            proxy=proxy,
            is_over=asyncio.Event(),
            sending=sending,
            until_another=fault is Fault.REORDERED,
        )
        while not proxy.held and not sending.done():
            await asyncio.sleep(0.001)
        assert proxy.held == 1, "the request of an append is what is held back"
        await way.leave()
        if fault is Fault.DELAYED:
            await _forget(way, held)
        return held

    async def _lose_the_answer(self, way: Way, partition: int, records: Sequence[Record]) -> None:
        frames, proxy, before = Frames(), way.proxy, await self.witness.log.end(partition)

        def stall(sender: str, chunk: bytes) -> bool:
            if frames.is_over(sender, chunk):
                proxy.stall()  # this chunk goes on, the answer to it does not come back
            return False

        proxy.hold(stall)
        sending = asyncio.create_task(way.log.append(partition, records))
        await self.grown_past(before)
        proxy.release()
        proxy.cut()
        proxy.flow()
        await sending


async def _outcome(sending: "asyncio.Task[None]") -> None:
    await sending


def _is_seen(sending: "asyncio.Task[None]") -> None:
    """The process that waited for it may be dead."""
    if not sending.cancelled():
        sending.exception()


async def _forget(way: Way, held: Held) -> None:
    sending, held.sending = held.sending, None
    if sending is not None:
        way.forget()
        await asyncio.gather(sending, return_exceptions=True)


class BrokerLog:
    """`Log` of one process: a `KafkaLog` that the simulation waits for. Awaits at the points of `MemoryLog`."""

    exclusive = False

    def __init__(self, server: BrokerServer, life: Life, on_await: Callable[[str], None]) -> None:
        self.log_id = server.log_id
        self.partitions = server.partitions
        self.name = life.name
        self._server = server
        self._tell = on_await
        self._way = server.way(life)

    async def acquire(self, partition: int) -> None:
        await self._pause("acquire")
        self._do(self._way.log.acquire(partition))

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """See `Log.append` and `REAL_FAULTS`."""
        await self._pause("append.send")
        fault = self._server.next_fault(self.name)
        held = self._server.send(self._way, self.name, partition, records, fault)
        if fault is Fault.HANGS_APPLIED:
            await self._stall("append.stall")
            self._way.forget()
            raise LogFault(fault.value)
        if held is not None:
            await self._answer_to(held, fault)
        await self._pause("append.reply")

    async def end(self, partition: int) -> int:
        return await self._answer("end", lambda: self._way.log.end(partition))

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        return await self._answer("read", lambda: self._way.log.read(partition, position, bytes_max=bytes_max))

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        """The time is the simulation's, so the log is asked whenever something was applied."""

        async def is_there() -> bool:
            return await self._answer("wait", lambda: self._way.log.wait(partition, position, 0))

        try:
            async with asyncio.timeout(timeout_s):
                while not await is_there():
                    grown = self._server.grown(partition)
                    self._tell("wait.sleep")
                    await grown.wait()
        except TimeoutError:
            return await is_there()
        return True

    async def renew(self, partition: int) -> None:
        await self._pause("renew")
        self._do(self._way.log.renew(partition))

    async def close(self) -> None:
        if not self._way.is_closed:
            self._do(self._way.close())
            self._server._ways.remove(self._way)

    async def _answer_to(self, held: Held, fault: Fault) -> None:
        """Of a request that stands in a proxy: whatever becomes of it, or nothing for now."""
        try:
            if fault is Fault.HANGS_NOT_APPLIED:
                await self._stall("append.stall")
                self._server.drop(held.place.number)
            elif fault is Fault.REORDERED:
                self._tell("append.held")
                await held.is_over.wait()
        finally:
            if not held.is_over.is_set():
                self._server.give_up(self._way, held)
        if fault is Fault.DELAYED:
            raise LogFault(fault.value)
        self._server.result(held)

    async def _answer(self, point: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        fault = self._server.next_read_fault(self.name)
        await self._pause(point)
        if fault is ReadFault.ERROR:
            self._server.bridge._loop.call_soon_threadsafe(self._way.proxy.cut)
        found = self._do(ask())
        if fault is ReadFault.STALLS:
            await self._stall("read.stall")
        return found

    async def _stall(self, point: str) -> None:
        stalled = self._server.stalled()
        self._tell(point)
        await stalled.wait()

    async def _pause(self, point: str) -> None:
        self._tell(point)
        await asyncio.sleep(0)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._way.is_closed:
            work.close()
            raise fail("INVALID_INPUT", "the log is closed")
        try:
            return self._server.bridge.do(work)
        except AtomlogError as error:
            error.__traceback__ = None  # of another event loop
            raise
