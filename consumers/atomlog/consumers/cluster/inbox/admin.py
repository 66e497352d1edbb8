"""Making and removing inboxes: two topics for a principal, as safe as the log's, and who may do what on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.consumers.cluster.inbox.registry import (
    PARTITION,
    PARTITIONS_MAX,
    RIGHTS,
    Registration,
    read_registrations,
    registration_record,
    registry_topic,
    removal_record,
)
from atomlog.kernel.errors import fail
from atomlog.kernel.findings import detail
from atomlog.kernel.ids import invalid, parse_name, shown
from atomlog.kernel.kafka.client import KafkaClient, KafkaRecord, NewTopic, TopicFacts
from atomlog.kernel.kafka.topics import TopicNames
from atomlog.kernel.model import LOCAL_PRINCIPAL
from atomlog.kernel.ports import Clock

RETENTION_MS: Final = 12 * 3_600_000  # of requests
RESULTS_RETENTION_MS: Final = 24 * 3_600_000  # longer: the outcomes say how far an inbox has been worked through
SEGMENT_MS: Final = 3_600_000
MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024  # of a record, and of a batch of records
OUTCOME_ROOM: Final = 1024 * 1024  # that the topic of the outcomes must have for one group
ID_TRIES_MAX: Final = 50  # until every broker knows a topic that was just made
ID_RETRY_S: Final = 0.1

_SAFETY: Final = ("min.insync.replicas", "unclean.leader.election.enable")  # as those of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxAdmin:
    """Makes and removes inboxes. It acts as who runs it; the brokers say what that is allowed."""

    client: KafkaClient
    prefix: str
    clock: Clock

    async def create(self, principal: str, *, partitions: int | None, rights: frozenset[str]) -> Registration:
        """Make both topics where they are not there, as safe as the log's, and register them. Again: change the rights.

        `partitions` None: those that are there, or 1. Raises:
            INVALID_INPUT: the name, the number of partitions, also when the topics have another one, a right.
            STORE_NOT_FOUND: the topic of the log is not there. STORE_UNSAFE: a topic was there that is of no use.
        """
        if parse_name(principal, "principal") == LOCAL_PRINCIPAL:
            raise invalid(
                "principal", f"{LOCAL_PRINCIPAL} is who writes on a node, with every right; take another name"
            )
        if partitions is not None and not 0 < partitions <= PARTITIONS_MAX:
            raise invalid("partitions", f"{partitions} is out of range: 1 to {PARTITIONS_MAX}")
        if wrong := sorted(rights - set(RIGHTS)):
            raise invalid("right", f"{shown(wrong[0])} is none of {', '.join(RIGHTS)}")
        names = TopicNames(prefix=self.prefix)
        topic, results = names.inbox(principal), names.results(principal)
        await self._make(topic, results, partitions or 1)
        facts = await self._known((topic, results))
        if partitions is not None and partitions != facts[topic].partitions:
            has = facts[topic].partitions
            raise invalid(
                "partitions", f"topic {topic} is there and has {has}; leave it out, or delete the topics first"
            )
        check_usable(facts[topic], facts[results])
        made = Registration(
            principal=principal,
            topic=topic,
            topic_id=facts[topic].topic_id,
            results=results,
            results_id=facts[results].topic_id,
            partitions=facts[topic].partitions,
            rights=rights | {RIGHTS[0]},
            created_us=self.clock.now_us(),
        )
        await self._write(registration_record(made))
        return made

    async def all(self) -> Sequence[Registration]:
        """Those that there are, by principal."""
        return list(await read_registrations(self.client, self.prefix))

    async def delete(self, principal: str) -> Registration:
        """End the registration. The topics stay, with requests in plain text until their retention is over.

        NOT_FOUND when there is none.
        """
        found = (await read_registrations(self.client, self.prefix)).get(principal)
        if found is None:
            raise fail(
                "NOT_FOUND", f"there is no inbox of {shown(principal)}; `atomlog inbox list` shows those there are"
            )
        await self._write(removal_record(principal))
        return found

    async def _make(self, topic: str, results: str, partitions: int) -> None:
        log = TopicNames(prefix=self.prefix).atoms
        like = (await self.client.topics([log]))[log]
        if like is None:
            raise fail("STORE_NOT_FOUND", f"there is no topic {log}: no shared store begins with {self.prefix}")
        safety = {name: like.settings[name] for name in _SAFETY if name in like.settings}
        await self.client.create_topics(
            [
                NewTopic(
                    name=registry_topic(self.prefix),
                    partitions=1,
                    replication=like.replication,
                    settings={**safety, "cleanup.policy": "compact"},
                ),
                *(
                    NewTopic(
                        name=name,
                        partitions=partitions,
                        replication=like.replication,
                        settings={**safety, **topic_settings(retention_ms)},
                    )
                    for name, retention_ms in ((topic, RETENTION_MS), (results, RESULTS_RETENTION_MS))
                ),
            ]
        )

    async def _known(self, names: Sequence[str]) -> Mapping[str, TopicFacts]:
        """What the brokers say of topics that are there."""
        for _ in range(ID_TRIES_MAX):
            found = {name: facts for name, facts in (await self.client.topics(names)).items() if facts is not None}
            if len(found) == len(names):
                return found
            await self.clock.sleep(ID_RETRY_S)
        raise fail("KAFKA_UNAVAILABLE", f"topics {', '.join(names)} were made and are not there", retry_after_ms=1_000)

    async def _write(self, record: KafkaRecord) -> None:
        producer = await self.client.producer()
        try:
            await producer.send(registry_topic(self.prefix), PARTITION, [record])
        finally:
            await producer.close()


def topic_settings(retention_ms: int) -> dict[str, str]:
    """Of the topics of an inbox. The brokers undo whatever compression a producer uses."""
    return {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "max.message.bytes": str(MESSAGE_BYTES_MAX),
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(retention_ms),
        "segment.ms": str(SEGMENT_MS),
    }


def check_usable(requests: TopicFacts, results: TopicFacts) -> None:
    """STORE_UNSAFE naming each setting of the two topics, real values, that an inbox cannot work with."""
    wrong: list[tuple[TopicFacts, str, str, str]] = []
    for topic in (requests, results):
        for name in ("cleanup.policy", "compression.type", "message.timestamp.type"):
            needed = topic_settings(0)[name]
            if topic.settings.get(name) != needed:
                wrong.append((topic, name, topic.settings.get(name, ""), needed))
    least = _number(requests, "retention.ms") + _number(requests, "segment.ms")
    if 0 <= _number(results, "retention.ms") < least or _number(requests, "retention.ms") < 0:
        wrong.append((results, "retention.ms", results.settings.get("retention.ms", ""), f"at least {least}"))
    if _number(results, "max.message.bytes") < OUTCOME_ROOM:
        wrong.append(
            (results, "max.message.bytes", results.settings.get("max.message.bytes", ""), f"at least {OUTCOME_ROOM}")
        )
    if requests.partitions != results.partitions:
        wrong.append((results, "partitions", str(results.partitions), str(requests.partitions)))
    if wrong:
        details = [
            detail(topic.name, "STORE_UNSAFE", f"{name} is {found}, needed is {needed}", found=found, needed=needed)
            for topic, name, found, needed in wrong
        ]
        message = f"topic {details[0]['path']}: {details[0]['message']}; change it, or delete the topic and repeat"
        raise fail("STORE_UNSAFE", message, details=details)


def _number(topic: TopicFacts, name: str) -> int:
    text = topic.settings.get(name, "")
    return int(text) if text.lstrip("-").isdecimal() else 0


def access_commands(one: Registration, prefix: str, bootstrap: Sequence[str], kernel_user: str | None) -> list[str]:
    """What gives Write to the principal alone, Read of the outcomes to it, and the kernels what they need."""
    acl = f"kafka-acls.sh --bootstrap-server {','.join(bootstrap)} --add"
    producer, kernel = f"User:{one.principal}", f"User:{kernel_user or 'KERNEL'}"
    return [
        f"{acl} --allow-principal {producer} --operation Write --operation Describe --topic {one.topic}",
        f"{acl} --allow-principal {producer} --operation Read --operation Describe --topic {one.results}",
        f"{acl} --allow-principal {producer} --operation Read --group {one.principal} --resource-pattern-type prefixed",
        f"{acl} --allow-principal {kernel} --operation Read --operation DescribeConfigs --topic {one.topic}"
        f" --topic {registry_topic(prefix)}",
        f"{acl} --allow-principal {kernel} --operation Read --operation Write --operation DescribeConfigs"
        f" --topic {one.results}",
    ]
