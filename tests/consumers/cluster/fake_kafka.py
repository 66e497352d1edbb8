"""A broker in memory that says of itself what `KafkaClient` says, with the faults that a test asks for."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient, KafkaRecord, NewTopic, TopicFacts


@dataclass(slots=True)
class FakeTopic:
    facts: TopicFacts
    records: list[list[FetchedRecord]]
    first: list[int]

    def end(self, partition: int) -> int:
        records = self.records[partition]
        return records[-1].offset + 1 if records else self.first[partition]


@dataclass(slots=True)
class FakeBroker:
    """`on_send(topic, partition, records)` may raise; `lose` answers are lost after the records were taken."""

    found: dict[str, FakeTopic] = field(default_factory=dict)
    made: int = 0
    on_send: Callable[[str, int, Sequence[KafkaRecord]], None] = lambda *_: None
    lost_answers: int = 0
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self, name: str, partitions: int, settings: Mapping[str, str], replication: int = 1) -> None:
        self.made += 1
        facts = TopicFacts(
            name=name,
            topic_id=self.made.to_bytes(16, "big"),
            partitions=partitions,
            replication=replication,
            settings=settings,
        )
        self.found[name] = FakeTopic(facts, [[] for _ in range(partitions)], [0] * partitions)

    def put(
        self, name: str, partition: int, *values: bytes | None, problem: str = "", key: bytes | None = None
    ) -> None:
        self.write(name, partition, [KafkaRecord(key=key, value=value) for value in values], problem)

    def write(self, name: str, partition: int, records: Sequence[KafkaRecord], problem: str = "") -> int:
        topic = self.found[name]
        first = topic.end(partition)
        for n, one in enumerate(records):
            topic.records[partition].append(
                FetchedRecord(
                    offset=first + n,
                    timestamp_ms=0,
                    key=one.key,
                    value=one.value,
                    headers=one.headers,
                    problem=problem,
                )
            )
        self.written.set()
        self.written = asyncio.Event()
        return first

    def expire(self, name: str, partition: int, first: int) -> None:
        """Records before this offset are not kept any more."""
        topic = self.found[name]
        topic.records[partition] = [one for one in topic.records[partition] if one.offset >= first]
        topic.first[partition] = first

    def values(self, name: str, partition: int = 0) -> list[FetchedRecord]:
        return list(self.found[name].records[partition])

    def client(self) -> KafkaClient:
        return cast(KafkaClient, _FakeClient(self))


class _FakeClient:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def topics(self, names: Sequence[str]) -> Mapping[str, TopicFacts | None]:
        found = {name: self._broker.found.get(name) for name in names}
        return {name: None if topic is None else topic.facts for name, topic in found.items()}

    async def identity(self, topic: str) -> tuple[bytes, int] | None:
        found = self._broker.found.get(topic)
        return None if found is None else (found.facts.topic_id, found.facts.partitions)

    async def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, bool]:
        made = {one.name: one.name not in self._broker.found for one in topics}
        for one in topics:
            if made[one.name]:
                self._broker.make(one.name, one.partitions, one.settings, one.replication)
        return made

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found = self._broker.found[topic]
        return found.first[partition], found.end(partition)

    async def producer(self) -> "_FakeProducer":
        return _FakeProducer(self._broker)

    async def stream(self, topic: str, partition: int, position: int) -> "_FakeStream":
        return _FakeStream(self._broker, topic, partition, position)


class _FakeProducer:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def send(self, topic: str, partition: int, records: Sequence[KafkaRecord]) -> int:
        await asyncio.sleep(0)
        self._broker.on_send(topic, partition, records)
        offset = self._broker.write(topic, partition, records)
        if self._broker.lost_answers:
            self._broker.lost_answers -= 1
            raise lost()
        return offset

    async def close(self) -> None:
        pass


class _FakeStream:
    def __init__(self, broker: FakeBroker, topic: str, partition: int, position: int) -> None:
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self.position = position

    async def next(self, bytes_max: int, timeout_s: float) -> Sequence[FetchedRecord]:
        written = self._broker.written
        await asyncio.sleep(0)
        found = self._records()
        if not found:
            try:
                async with asyncio.timeout(min(timeout_s, 0.05)):
                    await written.wait()
            except TimeoutError:
                return ()
            found = self._records()
        if found:
            self.position = found[-1].offset + 1
        return found

    def _records(self) -> list[FetchedRecord]:
        topic = self._broker.found[self._topic]
        if not topic.first[self._partition] <= self.position <= topic.end(self._partition):
            raise fail("LOG_DIVERGED", f"topic {self._topic}: position {self.position} is out of range")
        return [one for one in topic.records[self._partition] if one.offset >= self.position][:100]

    async def close(self) -> None:
        pass


def lost() -> AtomlogError:
    return fail("KAFKA_UNAVAILABLE", "no answer came; whether it was written is not known", retry_after_ms=100)
