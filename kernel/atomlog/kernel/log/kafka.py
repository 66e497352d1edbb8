"""The log on Kafka: one topic, `Log` positions are offsets.

An append is one produce request with one record batch, acknowledged by all in-sync replicas. No transactions and no
idempotent producer: what a retry or a late request doubles is void by the commit rule.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.commit_rule import INITIAL, Effective, Genesis, Stop, fold
from atomlog.kernel.errors import AtomlogError, UnavailableError, fail
from atomlog.kernel.kafka.client import KafkaClient, KafkaProducer
from atomlog.kernel.kafka.topics import atoms_spec, check_topics
from atomlog.kernel.kafka.values import KafkaRecord, TopicFacts
from atomlog.kernel.log.kafka_reading import PartitionReader
from atomlog.kernel.ports import Clock, LogRecord
from atomlog.kernel.settings import Settings
from atomlog.schemas import record as wire
from atomlog.schemas.record import Record

GENESIS_RECORDS_MAX: Final = 100  # looked at for the first effective Claim; strangers may stand before it
_GENESIS_BYTES: Final = 64 * 1024


class KafkaLog:
    """`Log` over a topic that every node of the store shares. The client is the caller's to start and to close."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        log_id: bytes,
        partitions: int,
        clock: Clock,
        settings: Settings,
        *,
        cluster_id: str | None = None,
        allow_weak: Collection[str] = (),
        bounds: Bounds | None = None,
    ) -> None:
        """Nothing is asked yet. `cluster_id`: of the only cluster that this log is on; None: whichever is reached."""
        self.log_id = log_id
        self.partitions = partitions
        self.topic = topic
        self._client = client
        self._clock = clock
        self._refresh_us = settings.metadata_refresh_ms * 1_000
        self._cluster_id = cluster_id
        self._allow_weak = frozenset(allow_weak)
        self._spec = atoms_spec(topic, partitions, -1, settings, bounds or Bounds())
        self._facts: TopicFacts | None = None
        self._checked_us = 0
        self._topic_id: bytes | None = None  # of the topic that was first read
        self._looked_us = 0
        self._other_topic: AtomlogError | None = None
        self._checking = asyncio.Lock()
        self._readers: dict[int, PartitionReader] = {}
        self._producers: dict[int, KafkaProducer] = {}
        self._appending: set[int] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def exclusive(self) -> bool:
        """Never: anybody who may write to the topic can append."""
        return False

    async def check(self) -> None:
        """Compare the topic with what this store is. At the start, and every `metadata_refresh_ms`.

        Raises:
            STORE_NOT_FOUND: the topic is not there.
            LOG_MISMATCH: another cluster, other partitions, or the log of another store.
            LOG_DIVERGED: the topic was deleted and made anew since it was first looked at.
            STORE_UNSAFE: it is kept less safely than is needed, or allowed.
            KAFKA_UNAVAILABLE, ACCESS_DENIED.
        """
        self._check_open()
        cluster_id = await self._client.cluster_id()
        if self._cluster_id is not None:
            check_cluster(cluster_id, self._cluster_id)
        facts = (await self._client.topics([self.topic]))[self.topic]
        check_topics({self.topic: facts}, [self._spec], self._allow_weak)
        assert facts is not None, "checked"
        self._compare(facts)
        if self._facts is None:
            for partition in range(self.partitions):
                await self._check_genesis(partition)
        self._facts = facts
        self._checked_us = self._clock.monotonic_us()

    async def acquire(self, partition: int) -> None:
        """Nothing to take: everybody may append. The topic is checked when that was not done for a while."""
        self._check(partition)
        async with self._checking:
            if self._facts is None or self._clock.monotonic_us() - self._checked_us > self._refresh_us:
                await self.check()

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """See `Log.append`. BOUND_EXCEEDED: the group is larger than the topic takes; nothing of it was sent."""
        self._check(partition)
        if partition in self._appending:
            raise RuntimeError(f"partition {partition}: an append is already under way")
        if not records:
            return
        self._appending.add(partition)
        try:
            producer = await self._producer(partition)
            group = [KafkaRecord(value=record.value, headers=wire.headers(record)) for record in records]
            await producer.send(self.topic, partition, group)
        finally:
            self._appending.discard(partition)

    async def end(self, partition: int) -> int:
        """See `Log.end`: the high watermark, asked of the leader."""
        return await self._reader(partition).end()

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        """See `Log.read`.

        LOG_DIVERGED also when `position` is not kept any more, one is missing, or the topic was made anew;
        LOG_MISMATCH, STORE_NOT_FOUND as `check`.
        """
        await self._look_again()
        return await self._reader(partition).read(position, bytes_max)

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        """See `Log.wait`. The timeout is the event loop's."""
        return await self._reader(partition).wait(position, timeout_s)

    async def renew(self, partition: int) -> None:
        """See `Log.renew`: the producer's connection is closed, the next append makes a new one."""
        self._check(partition)
        producer = self._producers.pop(partition, None)
        if producer is not None:
            closing = asyncio.create_task(producer.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Everything in flight ends with an error. The topic keeps everything."""
        self._is_closed = True
        for producer in tuple(self._producers.values()):
            await producer.close()
        for reader in tuple(self._readers.values()):
            await reader.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _look_again(self) -> None:
        """Every `metadata_refresh_ms` whether it is still the topic that was first read.

        In one that was made anew and has grown past a reader, the reader would go on without noticing.
        """
        if self._other_topic is not None:
            raise self._other_topic
        now_us = self._clock.monotonic_us()
        if self._topic_id is not None and now_us - self._looked_us < self._refresh_us:
            return
        self._looked_us = now_us
        try:
            identity = await self._client.identity(self.topic)
        except UnavailableError:
            return  # reading tells by itself
        if identity is None:
            raise fail("STORE_NOT_FOUND", f"topic {self.topic} is not there any more: restore it")
        topic_id, partitions = identity
        if self._topic_id is None:
            self._topic_id = topic_id
        if topic_id != self._topic_id:
            self._other_topic = self._made_anew()
            raise self._other_topic
        self._compare_partitions(partitions)

    def _made_anew(self) -> AtomlogError:
        message = f"topic {self.topic} was deleted and made anew"
        return fail("LOG_DIVERGED", f"{message}. Restore it, and rebuild what is derived from it")

    def _compare(self, facts: TopicFacts) -> None:
        self._compare_partitions(facts.partitions)
        if self._facts is not None and facts.topic_id != self._facts.topic_id:
            raise self._made_anew()

    def _compare_partitions(self, found: int) -> None:
        if found != self.partitions:
            added = found - self.partitions
            what = f"{added} partitions were added" if added > 0 else "it is another topic"
            message = f"topic {self.topic} has {found} partitions, this store {self.partitions}: {what}"
            raise fail("LOG_MISMATCH", f"{message}. Partitions of a store never change: restore the topic")

    async def _check_genesis(self, partition: int) -> None:
        """The first effective Claim must be of this log; none is there before the first owner came."""
        genesis = Genesis(log_id=self.log_id, partition=partition, partitions=self.partitions)
        first, _ = await self._client.bounds(self.topic, partition)
        if first > 0:
            return  # who needs what is not kept any more is told when it reads there
        found = await self._reader(partition).read(0, _GENESIS_BYTES)
        for entry in found[:GENESIS_RECORDS_MAX]:
            verdict = fold(INITIAL, entry.record, genesis, entry.position)
            if isinstance(verdict, Stop):
                raise verdict.error
            if isinstance(verdict, Effective):
                return

    async def _producer(self, partition: int) -> KafkaProducer:
        if self._facts is None:
            await self.acquire(partition)
        assert self._facts is not None, "acquired"
        producer = self._producers.get(partition)
        if producer is None:
            producer = await self._client.producer(bytes_max=int(self._facts.settings["max.message.bytes"]))
            self._producers[partition] = producer
        return producer

    def _reader(self, partition: int) -> PartitionReader:
        self._check(partition)
        reader = self._readers.get(partition)
        if reader is None:
            reader = PartitionReader(self._client, self.topic, partition, self.partitions)
            self._readers[partition] = reader
        return reader

    def _check(self, partition: int) -> None:
        self._check_open()
        if not 0 <= partition < self.partitions:
            raise fail("INVALID_INPUT", f"partition {partition}: the log has {self.partitions}, counted from 0")

    def _check_open(self) -> None:
        if self._is_closed:
            raise fail("INVALID_INPUT", "the log is closed")


def check_cluster(found: str, wanted: str) -> None:
    """LOG_MISMATCH when the brokers are not of the cluster that a store is on."""
    if found != wanted:
        message = f"the brokers are of cluster {found}, this store is on {wanted}"
        raise fail("LOG_MISMATCH", f"{message}; look at `bootstrap` in kafka.toml")
