"""What the tests of the Kafka client and log share: records, a topic on the broker of the run, a bad proxy."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

import pytest

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import UnavailableError
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig
from atomlog.kernel.kafka.topics import TopicNames, atoms_spec
from atomlog.kernel.kafka.values import Address
from atomlog.kernel.kafka.wire import Connection
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock
from atomlog.schemas.record import Record

LOG_ID = bytes(range(40, 56))
WEAK = ("replication.factor", "min.insync.replicas")
PARTITIONS = 2
SETTINGS = Settings()
MUCH = 1 << 26
PROXIED = "proxied"


def record(n: int, *, size: int = 40) -> Record:
    value = n.to_bytes(8, "big").ljust(size, b"v")
    return Record(rule=1, kind="Batch", term=3, owner=LOG_ID, seq=n, schema=b"8 bytes!", chain=bytes(16), value=value)


def records(*numbers: int) -> list[Record]:
    return [record(n) for n in numbers]


def numbers(entries: Sequence[LogRecord]) -> list[int]:
    """Which records these are; -1 for what is none of ours."""
    return [entry.record.seq if isinstance(entry.record, Record) else -1 for entry in entries]


@dataclass
class Place:
    """One topic, and as many clients and logs on it as a test opens."""

    address: str
    topic: str
    timeout_s: float = 20.0
    client_id: str = "direct"
    clients: list[KafkaClient] = field(default_factory=list)
    logs: list[KafkaLog] = field(default_factory=list)

    async def client(self) -> KafkaClient:
        client = KafkaClient(KafkaConfig(bootstrap=(self.address,), client_id=self.client_id), timeout_s=self.timeout_s)
        self.clients.append(client)
        await client.start()
        return client

    async def make(self) -> None:
        await (await self.client()).create_topics([atoms_spec(self.topic, PARTITIONS, 1, SETTINGS, Bounds()).new])

    async def log(self, **changes: Any) -> KafkaLog:
        options = {"partitions": PARTITIONS, "log_id": LOG_ID, "allow_weak": WEAK, "settings": SETTINGS, **changes}
        log = KafkaLog(await self.client(), self.topic, clock=SystemClock(), **options)
        self.logs.append(log)
        return log

    async def log_at_last(self) -> KafkaLog:
        """When the broker is there: one that stood still is a stranger to its own cluster for a moment."""
        while True:
            try:
                return await self.log()
            except UnavailableError:
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        for log in self.logs:
            await log.close()
        for client in self.clients:
            await client.close()


def run(
    address: str, prefix: str, body: Callable[[Place], Coroutine[Any, Any, None]], *, timeout_s: float = 20.0
) -> None:
    """`body` with a topic that is there and empty."""

    async def whole() -> None:
        place = Place(address, TopicNames(prefix=prefix).atoms)
        try:
            await place.make()
            place.timeout_s = timeout_s
            await body(place)
        finally:
            await place.close()

    asyncio.run(whole())


@dataclass
class Proxy:
    """Between a client and the broker. What it swallows never arrives."""

    target: tuple[str, int]
    swallows_answers: bool = False
    swallows_requests: bool = False
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    requested: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        for writer in tuple(self.writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        self.writers |= {writer, there_writer}
        try:
            await asyncio.gather(self._pump(reader, there_writer, True), self._pump(there_reader, writer, False))
        finally:
            for one in (writer, there_writer):
                self.writers.discard(one)
                one.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_request: bool) -> None:
        try:
            while data := await source.read(65_536):
                if is_request:
                    self.requested.set()
                if not (self.swallows_requests if is_request else self.swallows_answers):
                    sink.write(data)
        except ConnectionError:
            pass
        sink.transport.abort()


@asynccontextmanager
async def proxied(monkeypatch: pytest.MonkeyPatch, place: Place) -> AsyncIterator[Proxy]:
    """Clients made inside reach the broker through the proxy alone, whatever it says of itself."""
    host, _, port = place.address.rpartition(":")
    proxy = Proxy((host, int(port)))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    here = server.sockets[0].getsockname()[1]
    connect = Connection.connect

    async def detour(address: Address, config: KafkaConfig, context: SSLContext | None, timeout_s: float) -> Connection:
        if config.client_id == PROXIED:
            address = Address(host="127.0.0.1", port=here)
        return await connect(address, config, context, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "connect", detour)
        place.client_id = PROXIED
        try:
            yield proxy
        finally:
            await place.close()
            server.close()
            proxy.cut()
            await asyncio.sleep(0.01)  # the event loop lets the sockets go
