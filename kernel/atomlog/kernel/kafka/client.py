"""Kafka as the store needs it: topics, bounds, a producer that sends once, a stream that is never silent.

Every call ends within the time that the client was given, or that it was given itself. All sockets are closed when
`close` returns, whatever the brokers do.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.answers import TOPIC_EXISTS, error_of
from atomlog.kernel.kafka.cluster import Cluster, Lane, LeaderWatch
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.trust import unavailable
from atomlog.kernel.kafka.values import (
    Fetched,
    FetchedRecord,
    KafkaRecord,
    Lost,
    NewTopic,
    Refusal,
    TopicFacts,
    TopicMetadata,
)
from atomlog.kernel.kafka.wire import EARLIEST, LATEST, Connection, build_batch, parse_batches

__all__ = [
    "FetchedRecord",
    "KafkaClient",
    "KafkaConfig",
    "KafkaProducer",
    "KafkaRecord",
    "KafkaStream",
    "NewTopic",
    "TopicFacts",
    "records_to",
]

FETCH_BYTES_MIN, FETCH_BYTES_MAX = 64 * 1024, 4 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024 - 64  # what brokers take when nobody told them otherwise
POLL_S = 0.5  # how long a broker holds a question for what is not there yet
SILENT_S, SILENT_MAX = 1.0, 10  # how long, and how often, what is known to be there is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one fetch gave. `after`: the next position to read. `end`: after the last record that is replicated."""

    records: Sequence[FetchedRecord]
    after: int
    end: int


class KafkaClient:
    """One process's way to one cluster. `timeout_s`: of every call."""

    def __init__(self, config: KafkaConfig, *, timeout_s: float) -> None:
        """INVALID_INPUT when a TLS file cannot be used."""
        self.config = config
        self.timeout_s = timeout_s
        self._cluster = Cluster(config, timeout_s)
        self._asking = self._cluster.lane()
        self._reading = self._cluster.lane()

    async def start(self) -> None:
        """Reach a broker: each address is tried once.

        Raises:
            KAFKA_UNAVAILABLE: nobody is there. INVALID_INPUT: TLS or SASL is not as the brokers have it.
            ACCESS_DENIED: user or password are not taken.
        """
        await self._cluster.refresh((), self._cluster.deadline())

    async def close(self) -> None:
        """Everything in flight ends with an error; calls after it are refused."""
        await self._cluster.close()

    async def cluster_id(self) -> str:
        """Asked anew. LOG_MISMATCH when it is another one than at the start."""
        await self._cluster.refresh((), self._cluster.deadline())
        return self._cluster.cluster_id

    async def topics(self, names: Sequence[str]) -> Mapping[str, TopicFacts | None]:
        """As the brokers have them now; None for one that is not there. ACCESS_DENIED when they may not be seen."""
        deadline = self._cluster.deadline()
        metadata = await self._cluster.topics(names, deadline)
        there = [name for name in names if not metadata[name].error]
        try:
            settings = await self._cluster.any_broker(lambda to, seconds: to.settings(there, seconds))
        except Refusal as error:
            raise error_of(error, ", ".join(there)) from error
        found: dict[str, TopicFacts | None] = dict.fromkeys(names)
        for name in there:
            if name in settings:
                found[name] = _facts(name, metadata[name], settings[name])
        return found

    async def identity(self, topic: str) -> tuple[bytes, int] | None:
        """The id of a topic and its number of partitions now, from one short question; None when it is not there."""
        found = (await self._cluster.topics([topic], self._cluster.deadline()))[topic]
        return None if found.error else (found.topic_id, len(found.leaders))

    async def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, bool]:
        """Made and led by somebody on return. False: it was there already, with whatever settings.

        Raises:
            INVALID_INPUT: more replicas than brokers, a setting that there is not. ACCESS_DENIED.
        """
        if not topics:
            return {}
        try:
            answers = await self._cluster.any_broker(lambda to, seconds: to.create_topics(topics, seconds))
        except Refusal as error:
            raise error_of(error, ", ".join(one.name for one in topics)) from error
        for name, refusal in answers.items():
            if refusal is not None and refusal.code != TOPIC_EXISTS:
                raise error_of(refusal, name)
        for one in topics:
            for partition in range(one.partitions if answers[one.name] is None else 1):
                await self.end(one.name, partition)
        return {name: refusal is None for name, refusal in answers.items()}

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset kept, and the position after the last record that all in-sync replicas have."""
        first = await self._offset(topic, partition, EARLIEST)
        return first, await self._offset(topic, partition, LATEST)

    async def end(self, topic: str, partition: int) -> int:
        """The second of `bounds`, asked of the leader."""
        return await self._offset(topic, partition, LATEST)

    async def producer(self, *, bytes_max: int = BATCH_BYTES_MAX) -> "KafkaProducer":
        """With a connection of its own. `bytes_max`: of a group as a record batch, `max.message.bytes` of the topic."""
        return KafkaProducer(self._cluster, bytes_max)

    async def stream(self, topic: str, partition: int, position: int) -> "KafkaStream":
        """With a connection of its own. Nothing is asked yet."""
        return KafkaStream(self, topic, partition, position, self._cluster.lane())

    def lane(self) -> Lane:
        """Connections of one's own, for `page`; to be closed by who asked for them."""
        return self._cluster.lane()

    async def page(
        self,
        topic: str,
        partition: int,
        position: int,
        *,
        bytes_max: int,
        wait_s: float = 0.0,
        lane: Lane | None = None,
    ) -> Page:
        """One fetch: what stands at `position` and after it, in about `bytes_max`; at least one record if there is one.

        The broker waits up to `wait_s` for something to give.

        Raises:
            LOG_DIVERGED: nothing was ever at `position`, or it is not kept any more.
            CORRUPT: what came is no record batch.
            KAFKA_UNAVAILABLE, ACCESS_DENIED, STORE_NOT_FOUND, LOG_MISMATCH: see the module `answers`.
        """
        size = min(max(bytes_max, FETCH_BYTES_MIN), FETCH_BYTES_MAX)

        async def ask(to: Connection, seconds: float) -> Fetched:
            return await to.fetch(
                topic, partition, position, bytes_max=size, wait_ms=int(wait_s * 1_000), timeout_s=seconds
            )

        lane = lane or self._reading
        deadline = self._cluster.deadline() + wait_s
        try:
            fetched = await self._cluster.leader(topic, partition, lane, ask, deadline=deadline, wait_s=wait_s)
        except Refusal:
            # An old leader that is cut off may still answer: it is believed the second time, by new metadata.
            self._cluster.doubt(topic)
            try:
                fetched = await self._cluster.leader(topic, partition, lane, ask, deadline=deadline, wait_s=wait_s)
            except Refusal as refusal:
                raise await self._out_of_range(topic, partition, position) from refusal
        try:
            records, after = parse_batches(fetched.data, position)
        except ValueError as error:
            raise fail("CORRUPT", f"topic {topic}, partition {partition}, near offset {position}: {error}") from error
        return Page(records=records, after=after, end=fetched.end)

    async def _offset(self, topic: str, partition: int, which: int) -> int:
        async def ask(to: Connection, seconds: float) -> int:
            return await to.offset(topic, partition, which, seconds)

        return await self._cluster.leader(topic, partition, self._asking, ask, deadline=self._cluster.deadline())

    async def _out_of_range(self, topic: str, partition: int, position: int) -> AtomlogError:
        first, end = await self.bounds(topic, partition)
        where = f"topic {topic}, partition {partition}"
        detail = {"path": topic, "partition": partition, "wanted": position, "first": first, "end": end}
        if position < first:
            what = f"position {position} is not kept any more, the first one kept is {first}"
            way_out = "Start from a copy that has more, or begin anew; a log of the store has retention.ms=-1"
        else:
            what = f"position {position} was read before, the log ends before {end}"
            way_out = "It was rolled back, or made anew: rebuild what is derived from it"
        return fail(
            "LOG_DIVERGED", f"{where}: {what}. {way_out}", details=[detail | {"code": "LOG_DIVERGED", "message": what}]
        )


class KafkaProducer:
    """Sends each group once, and waits until all in-sync replicas have it. One call at a time for each partition.

    After a failure it goes on, over another connection.
    """

    def __init__(self, cluster: Cluster, bytes_max: int) -> None:
        self._cluster = cluster
        self._bytes_max = bytes_max
        self._lane = cluster.lane()

    async def send(self, topic: str, partition: int, records: Sequence[KafkaRecord]) -> int:
        """The offset of the first one. **Any** exception or cancellation but BOUND_EXCEEDED: the outcome is unknown.

        Raises:
            BOUND_EXCEEDED: the group does not fit into a record batch; nothing was sent, or the broker refused it.
            KAFKA_UNAVAILABLE, ACCESS_DENIED, STORE_NOT_FOUND, INVALID_INPUT, LOG_MISMATCH.
        """
        batch = build_batch(records, self._bytes_max)

        async def ask(to: Connection, seconds: float) -> int:
            with LeaderWatch(self._cluster, topic, partition, to):
                return await to.produce(topic, partition, batch, seconds)

        deadline = self._cluster.deadline()
        try:
            return await self._cluster.leader(topic, partition, self._lane, ask, deadline=deadline, is_repeatable=False)
        except Lost as error:
            message = f"topic {topic}, partition {partition}: {error}; whether it was written is not known"
            raise unavailable(message) from error
        except BaseException:
            self._lane.drop()
            raise

    async def close(self) -> None:
        """Bytes that have not left are thrown away; what has left may yet arrive."""
        await self._lane.close()


class KafkaStream:
    """Records of one partition from a position on. Each question has a deadline: it is never silent for longer."""

    def __init__(self, client: KafkaClient, topic: str, partition: int, position: int, lane: Lane) -> None:
        self.position = position
        self._client = client
        self._topic = topic
        self._partition = partition
        self._lane = lane

    async def next(self, bytes_max: int, timeout_s: float) -> Sequence[FetchedRecord]:
        """The next records in about `bytes_max`; nothing after `timeout_s`. Moves `position` behind them.

        Offsets ascend from `position` on; only a compacted topic leaves some out. Raises as `KafkaClient.page` does.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            wait_s = min(max(0.0, deadline - loop.time()), POLL_S)
            page = await self._client.page(
                self._topic, self._partition, self.position, bytes_max=bytes_max, wait_s=wait_s, lane=self._lane
            )
            self.position = page.after
            if page.records or loop.time() >= deadline:
                return page.records

    async def close(self) -> None:
        await self._lane.close()


async def records_to(
    stream: KafkaStream, topic: str, end: int, *, bytes_max: int = 1024 * 1024
) -> AsyncGenerator[Sequence[FetchedRecord], None]:
    """What stands before `end`, and maybe more, in groups of about `bytes_max`. `stream` stands behind each.

    Raises as `KafkaClient.page` does. KAFKA_UNAVAILABLE: nothing comes, although the partition ends at `end`.
    """
    silent = 0
    while (position := stream.position) < end:
        records = await stream.next(bytes_max, SILENT_S)
        if stream.position > position:  # maybe without a record: compaction leaves gaps
            silent = 0
            yield records
            continue
        silent += 1
        if silent >= SILENT_MAX:
            raise unavailable(f"topic {topic}: nothing comes from offset {position} on, although it ends at {end}")


def _facts(name: str, topic: TopicMetadata, settings: Mapping[str, str]) -> TopicFacts:
    return TopicFacts(
        name=name,
        topic_id=topic.topic_id,
        partitions=len(topic.leaders),
        replication=min((leader.replicas for leader in topic.leaders.values()), default=0),
        settings=settings,
    )
