"""Which inboxes there are: a compacted topic of its own, one record a principal, that every kernel follows.

The principal of a request is the one that its topic was registered for. A registration names both topics by the ids
that Kafka gave them, so that a topic that was deleted and made anew is another inbox: its offsets count from 0 again.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import parse_name
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient, KafkaRecord, KafkaStream, records_to
from atomlog.kernel.kafka.topics import TopicNames
from atomlog.kernel.model import LOCAL_PRINCIPAL
from atomlog.kernel.ports import Clock
from atomlog.kernel.times import format_time
from atomlog.schemas import codec
from atomlog.schemas.revision import time_bytes, time_of
from atomlog.schemas.varint import WireError

SCHEMA: Final = "InboxV1"
KEY_PREFIX: Final = b"inbox:"
PARTITION: Final = 0  # of the topic of registrations, which has one
PARTITIONS_MAX: Final = 256  # of one inbox
RIGHTS: Final = ("write", "mark-source")  # that an inbox may give, the first in any case
FETCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One inbox. `topic_id` and `results_id`: 16 bytes each. `partitions`: of both topics."""

    principal: str
    topic: str
    topic_id: bytes
    results: str
    results_id: bytes
    partitions: int
    rights: frozenset[str]
    created_us: int

    @property
    def id_text(self) -> str:
        """What requests are known by: it is in the headers of outcomes and in the batches."""
        return self.topic_id.hex()

    @property
    def topics(self) -> tuple[str, str]:
        return self.topic, self.results

    def to_dict(self) -> dict[str, Any]:
        return {
            "principal": self.principal,
            "registration": self.id_text,
            "inbox": self.topic,
            "results": self.results,
            "partitions": self.partitions,
            "rights": sorted(self.rights),
            "created_at": format_time(self.created_us),
        }


def registry_topic(prefix: str) -> str:
    return TopicNames(prefix=prefix).inboxes


def registration_record(one: Registration) -> KafkaRecord:
    datum = {
        "registration": one.topic_id,
        "principal": one.principal,
        "topic": one.topic,
        "results": one.results,
        "results_id": one.results_id,
        "partitions": one.partitions,
        "rights": sorted(one.rights),
        "created_at": time_bytes(one.created_us),
    }
    return KafkaRecord(key=KEY_PREFIX + one.principal.encode(), value=codec.encode_as(SCHEMA, datum))


def removal_record(principal: str) -> KafkaRecord:
    return KafkaRecord(key=KEY_PREFIX + principal.encode(), value=None)


def registration_of(record: FetchedRecord) -> Registration:
    """What a record says; WireError when it is no registration, as it may be anybody's."""
    datum = codec.decode_as(SCHEMA, record.value or b"")
    if record.key != KEY_PREFIX + datum["principal"].encode():
        raise WireError("the principal is not the one that the key names")
    if datum["principal"] == LOCAL_PRINCIPAL:
        raise WireError(f"{LOCAL_PRINCIPAL} is who writes on a node")
    if not 0 < datum["partitions"] <= PARTITIONS_MAX:
        raise WireError(f"{datum['partitions']} partitions")
    try:
        principal = parse_name(datum["principal"], "principal")
    except AtomlogError as error:
        raise WireError(error.message) from None
    return Registration(
        principal=principal,
        topic=datum["topic"],
        topic_id=datum["registration"],
        results=datum["results"],
        results_id=datum["results_id"],
        partitions=datum["partitions"],
        rights=frozenset(datum["rights"]) & frozenset(RIGHTS),
        created_us=time_of(datum["created_at"]),
    )


class Registrations:
    """All of them, by principal, as far as the topic was read."""

    def __init__(self) -> None:
        self._found: dict[str, Registration] = {}
        self.unreadable = 0  # records that are no registration: of strangers, or of a later version

    def __iter__(self) -> Iterator[Registration]:
        return iter(sorted(self._found.values(), key=lambda one: one.principal))

    def get(self, principal: str) -> Registration | None:
        return self._found.get(principal)

    def take(self, records: Sequence[FetchedRecord]) -> None:
        for record in records:
            if record.key is None or not record.key.startswith(KEY_PREFIX):
                self.unreadable += 1
            elif record.value is None and not record.problem:
                self._found.pop(record.key[len(KEY_PREFIX) :].decode("utf-8", "replace"), None)
            else:
                self._take_one(record)

    def _take_one(self, record: FetchedRecord) -> None:
        try:
            one = registration_of(record)
        except WireError:
            self.unreadable += 1
        else:
            self._found[one.principal] = one


async def read_registrations(client: KafkaClient, prefix: str) -> Registrations:
    """Those that count up to the present end of the topic; none where there is no topic yet."""
    found = Registrations()
    topic = registry_topic(prefix)
    if (await client.topics([topic]))[topic] is None:
        return found
    first, end = await client.bounds(topic, PARTITION)
    stream = await client.stream(topic, PARTITION, first)
    try:
        async for records in records_to(stream, topic, end):
            found.take(records)
    finally:
        await stream.close()
    return found


class Follower:
    """Follows the registrations while a kernel runs; a topic that is not there yet, or away, is waited for."""

    def __init__(self, client: KafkaClient, prefix: str, clock: Clock) -> None:
        self._client = client
        self._topic = registry_topic(prefix)
        self._clock = clock
        self._stream: KafkaStream | None = None
        self.registrations = Registrations()

    async def step(self, wait_s: float) -> None:
        """Take what has come, or wait so long. Raises what the client raises; the next step begins anew."""
        if self._stream is None and not await self._open():
            await self._clock.sleep(wait_s)
            return
        assert self._stream is not None
        try:
            self.registrations.take(await self._stream.next(FETCH_BYTES, wait_s))
        except AtomlogError:
            await self.close()
            raise

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _open(self) -> bool:
        if (await self._client.topics([self._topic]))[self._topic] is None:
            self.registrations = Registrations()
            return False
        first, end = await self._client.bounds(self._topic, PARTITION)
        stream = await self._client.stream(self._topic, PARTITION, first)
        found = Registrations()
        try:
            async for records in records_to(stream, self._topic, end):
                found.take(records)
        except BaseException:
            await asyncio.shield(stream.close())
            raise
        self._stream, self.registrations = stream, found
        return True
