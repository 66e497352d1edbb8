"""A log on a real broker that is filled by hand, and a follower of it. Another builder is another history."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from atomlog.consumers.context import Context
from atomlog.consumers.follower import Follower
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.topics import atoms_spec
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock, SystemFiles, ThreadWorkers
from atomlog.schemas.record import Record
from tests.consumers.worlds import fill, toy, until
from tests.support.batches import LOG_ID, LogBuilder

QUICK = Settings(sync_interval_ms=20, follow_poll_ms=2, apply_retry_ms=20, apply_retries=2, metadata_refresh_ms=500)
WEAK = ("replication.factor", "min.insync.replicas")


class History:
    """A topic of one partition, and the directory of a projection that follows it."""

    def __init__(self, address: str, topic: str, directory: Path) -> None:
        self.address = address
        self.topic = topic
        self.root = str(directory)
        self.events: list[dict[str, Any]] = []
        self._clients: list[KafkaClient] = []
        self._logs: list[KafkaLog] = []

    async def make_topic(self) -> None:
        client = await self._client()
        await client.create_topics([atoms_spec(self.topic, 1, 1, QUICK, Bounds()).new])

    async def open_log(self) -> KafkaLog:
        log = KafkaLog(await self._client(), self.topic, LOG_ID, 1, SystemClock(), QUICK, allow_weak=WEAK)
        self._logs.append(log)
        return log

    async def write(self, builder: LogBuilder, start: int = 0) -> None:
        """Append what the builder has from `start` on."""
        log = await self.open_log()
        records = [one.record for one in builder.log_records[start:]]
        plain = [record for record in records if isinstance(record, Record)]
        for first in range(0, len(plain), 50):
            await log.append(0, plain[first : first + 50])
        assert await log.end(0) == builder.end

    async def follow(self) -> Follower:
        config = StoreConfig(log_id=LOG_ID)
        context = Context(
            log=await self.open_log(),
            config=config,
            clock=SystemClock(),
            workers=ThreadWorkers(),
            settings=QUICK,
            on_event=lambda event: self.events.append(dict(event)),
        )
        directory = GenerationDirectory(SystemFiles(), self.root, "toy", context.on_event)
        return await Follower.start(context, directory, toy())

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Follower]:
        follower = await self.follow()
        try:
            yield follower
        finally:
            await follower.close()

    async def applied(self, position: int) -> None:
        """A follower has come so far and has ended."""
        async with self.following() as follower:
            await reached(follower, position)

    async def delete_topic(self) -> None:
        async with self._admin() as admin:
            await admin.delete_topics([self.topic])
        client = await self._client()

        async def gone() -> bool:
            return (await client.topics([self.topic]))[self.topic] is None

        await until(gone, "the topic is gone")

    async def delete_records(self, before: int) -> None:
        async with self._admin() as admin:
            partition = TopicPartition(self.topic, 0)
            await admin.delete_records({partition: RecordsToDelete(before_offset=before)})

    async def close(self) -> None:
        for log in self._logs:
            await log.close()
        for client in self._clients:
            await client.close()

    async def _client(self) -> KafkaClient:
        client = KafkaClient(KafkaConfig(bootstrap=(self.address,)), timeout_s=10)
        self._clients.append(client)
        await client.start()
        return client

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


@asynccontextmanager
async def history(address: str, topic: str, directory: Path) -> AsyncIterator[History]:
    """A topic that was just made, with nothing in it."""
    made = History(address, topic, directory)
    try:
        await made.make_topic()
        yield made
    finally:
        await made.close()


def built(batches: int, **options: Any) -> LogBuilder:
    """The same for the same arguments."""
    builder = LogBuilder(**options)
    fill(builder, batches)
    return builder


async def reached(follower: Follower, position: int) -> None:
    await until(lambda: follower.positions()[0] >= position or follower.error is not None, f"position {position}")
    assert follower.error is None, follower.error


async def stopped(follower: Follower, codes: Sequence[str] = ("LOG_DIVERGED",)) -> AtomlogError:
    """The error that it stops with, which names the projection and a way out."""
    await until(lambda: follower.error is not None, "the follower stops")
    error = follower.error
    assert error is not None
    assert error.code in codes, error
    assert "projection toy, partition 0" in error.message
    assert follower.health == "STOPPED"
    return error
