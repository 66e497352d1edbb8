"""The log contract, for each log."""

from pathlib import Path

import pytest

from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.ports import Log
from atomlog.kernel.settings import Settings
from atomlog.schemas.record import Malformed
from tests.contracts.log_contract import LOG_ID, PARTITIONS, LogContract, LogWorld
from tests.kernel.log.support import LogDirectory


class MemoryWorld:
    carries_malformed = True

    def __init__(self) -> None:
        self.server = MemoryLogServer(log_id=LOG_ID, partitions=PARTITIONS)

    async def open(self) -> Log:
        return MemoryLog(self.server)

    async def open_reader(self) -> Log:
        return MemoryLog(self.server, name="reader")

    def put_malformed(self, partition: int, record: Malformed) -> None:
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

    def put_malformed(self, partition: int, record: Malformed) -> None:
        raise AssertionError("the embedded log carries no malformed record")

    async def close(self) -> None:
        await self.directory.close()


class TestMemoryLog(LogContract):
    @pytest.fixture
    def world(self) -> LogWorld:
        return MemoryWorld()


class TestEmbeddedLog(LogContract):
    @pytest.fixture(params=[128 * 1024 * 1024, 2_000], ids=["one-segment", "small-segments"])
    def world(self, tmp_path: Path, request: pytest.FixtureRequest) -> LogWorld:
        return EmbeddedWorld(tmp_path, segment_bytes=request.param)
