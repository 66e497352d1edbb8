"""The log contract, for each log."""

from pathlib import Path

import pytest

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig, KafkaRecord
from atomlog.kernel.kafka.topics import TopicNames, atoms_spec
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.ports import Log
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock
from atomlog.schemas.record import Malformed
from tests.contracts.log_contract import LOG_ID, PARTITIONS, LogContract, LogWorld
from tests.kernel.log.support import LogDirectory
from tests.support.kafka import SharedBroker


class MemoryWorld:
    carries_malformed = True

    def __init__(self) -> None:
        self.server = MemoryLogServer(log_id=LOG_ID, partitions=PARTITIONS)

    async def open(self) -> Log:
        return MemoryLog(self.server)

    async def open_reader(self) -> Log:
        return MemoryLog(self.server, name="reader")

    async def put_malformed(self, partition: int, record: Malformed) -> None:
        self.server.put(partition, record)

    async def close(self) -> None:
        pass


class EmbeddedWorld:
    carries_malformed = False

    def __init__(self, directory: Path, *, segment_bytes: int) -> None:
        settings = Settings(segment_bytes=segment_bytes, follow_poll_ms=1)
        self.directory = LogDirectory(directory, log_id=LOG_ID, partitions=PARTITIONS, settings=settings)

    async def open(self) -> Log:
        return self.directory.open()

    async def open_reader(self) -> Log:
        return self.directory.open()

    async def put_malformed(self, partition: int, record: Malformed) -> None:
        raise AssertionError("the embedded log carries no malformed record")

    async def close(self) -> None:
        await self.directory.close()


class KafkaWorld:
    """A topic of its own on the broker of the run; each handle has its own connections, as a process has."""

    carries_malformed = True

    def __init__(self, address: str, topic: str) -> None:
        self.config = KafkaConfig(bootstrap=(address,))
        self.topic = topic
        self._settings = Settings(group_bytes_max=8 * 1024 * 1024)  # the contract has a record of 9 MB
        self._clients: list[KafkaClient] = []
        self._logs: list[KafkaLog] = []

    async def open(self) -> Log:
        client = KafkaClient(self.config, timeout_s=20)
        self._clients.append(client)
        await client.start()
        if len(self._clients) == 1:
            await client.create_topics([atoms_spec(self.topic, PARTITIONS, 1, self._settings, Bounds()).new])
        weak = ("replication.factor", "min.insync.replicas")
        log = KafkaLog(client, self.topic, LOG_ID, PARTITIONS, SystemClock(), self._settings, allow_weak=weak)
        self._logs.append(log)
        return log

    async def open_reader(self) -> Log:
        return await self.open()

    async def put_malformed(self, partition: int, record: Malformed) -> None:
        assert record.term is not None, "the contract's has one"
        assert record.owner is not None, "the contract's has one"
        headers = [
            ("owner", record.owner),
            ("term", record.term.to_bytes(8, "big")),
            ("kind", (record.kind or "").encode()),
        ]
        producer = await self._clients[0].producer()
        await producer.send(self.topic, partition, [KafkaRecord(value=b"", headers=headers)])
        await producer.close()

    async def close(self) -> None:
        for log in self._logs:
            await log.close()
        for client in self._clients:
            await client.close()


class TestMemoryLog(LogContract):
    @pytest.fixture
    def world(self) -> LogWorld:
        return MemoryWorld()


class TestEmbeddedLog(LogContract):
    @pytest.fixture(params=[128 * 1024 * 1024, 2_000], ids=["one-segment", "small-segments"])
    def world(self, tmp_path: Path, request: pytest.FixtureRequest) -> LogWorld:
        return EmbeddedWorld(tmp_path, segment_bytes=request.param)


class TestKafkaLog(LogContract):
    @pytest.fixture
    def world(self, kafka: SharedBroker, kafka_prefix: str) -> LogWorld:
        return KafkaWorld(kafka.address, TopicNames(prefix=kafka_prefix).atoms)
