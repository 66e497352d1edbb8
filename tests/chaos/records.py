"""The canonical topic as it stands on the brokers, read by a plain consumer, without the program."""

from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.oracle.brute_model import Model
from tests.oracle.commit_model import kind_of
from tests.oracle.readers import decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One record as it came."""

    partition: int
    position: int
    headers: list[tuple[str, bytes]]
    value: bytes


@dataclass(slots=True, kw_only=True)
class Log:
    """Every record of a topic, replayed by the brute-force model. `voids`: the records that do not count."""

    model: Model
    records: list[Raw] = field(default_factory=list)
    voids: list[Raw] = field(default_factory=list)
    terms: dict[int, list[int]] = field(default_factory=dict)  # partition → position of each effective Claim

    def take(self, record: Raw) -> None:
        effective_before = len(self.model.effective.get(record.partition, []))
        self.model.replay(record.partition, record.position, record.headers, record.value)
        self.records.append(record)
        effective = self.model.effective.get(record.partition, [])
        if len(effective) == effective_before:
            self.voids.append(record)
        elif effective[-1][1] == "Claim":
            self.terms.setdefault(record.partition, []).append(record.position)

    def revisions_of_voids(self) -> list[bytes]:
        """The revisions of void batches that are not the ones of a batch that counts (a repetition is the same)."""
        effective = {version.revision for versions in self.model.versions.values() for version in versions}
        found = []
        for record in self.voids:
            if kind_of(dict(record.headers).get("kind", b"")) != "Batch":
                continue
            for revision in decoded("BatchV1", record.value[10:])["revisions"]:
                if decoded("RevisionV1", revision)["revision_id"] not in effective:
                    found.append(revision)
        return found


async def read_log(bootstrap: str, topic: str, log_id: bytes, partitions: int) -> Log:
    """Every record of the topic's partitions, in order. Offsets must be contiguous from 0."""
    log = Log(model=Model(log_id=log_id, partitions=partitions))
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none")
    await consumer.start()
    try:
        for partition in range(partitions):
            await _read(consumer, TopicPartition(topic, partition), log)
    finally:
        await consumer.stop()
    return log


async def _read(consumer: AIOKafkaConsumer, place: TopicPartition, log: Log) -> None:
    consumer.assign([place])
    end = (await consumer.end_offsets([place]))[place]
    consumer.seek(place, 0)
    position = 0
    while position < end:
        for record in (await consumer.getmany(place, timeout_ms=1_000)).get(place, ()):
            assert record.offset == position, f"{place}: {record.offset} follows {position - 1}"
            raw = Raw(partition=place.partition, position=position, headers=list(record.headers), value=record.value)
            log.take(raw)
            position += 1
