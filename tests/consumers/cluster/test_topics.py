"""What the topics of a shared store must be: each weaker setting is named with the way out, or allowed by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atomlog.consumers.cluster.topics import TopicNames, check_topics, message_bytes, new_topics, weak_names
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka_values import TopicFacts
from atomlog.kernel.settings import Settings

NAMES = TopicNames(prefix="team.notes")
SETTINGS = Settings()


def as_made(replication: int = 3) -> dict[str, TopicFacts | None]:
    """What a broker says of topics that were made as asked."""
    return {
        one.name: TopicFacts(
            name=one.name,
            topic_id=bytes(16),
            partitions=one.partitions,
            replication=one.replication,
            settings=one.settings,
        )
        for one in new_topics(NAMES, partitions=4, replication=replication, settings=SETTINGS)
    }


def changed(topic: str, name: str, value: str) -> Mapping[str, TopicFacts | None]:
    facts = as_made()
    found = facts[topic]
    assert found is not None
    if name == "replication.factor":
        return {**facts, topic: replace(found, replication=int(value))}
    return {**facts, topic: replace(found, settings={**found.settings, name: value})}


def check(found: Mapping[str, TopicFacts | None], *allow: str, partitions: int = 4) -> None:
    check_topics(NAMES, found, partitions=partitions, settings=SETTINGS, allow_weak=allow)


def refused(found: Mapping[str, TopicFacts | None], *allow: str, **more: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        check(found, *allow, **more)
    return caught.value


def test_topics_that_were_made_as_asked_are_safe() -> None:
    check(as_made())
    assert [one.name for one in new_topics(NAMES, partitions=4, replication=3, settings=SETTINGS)] == [
        f"team.notes.{name}" for name in ("atoms", "keys", "reads", "control")
    ]


WEAKER = [
    ("team.notes.atoms", "replication.factor", "2"),
    ("team.notes.atoms", "min.insync.replicas", "1"),
    ("team.notes.atoms", "min.insync.replicas", "4"),
    ("team.notes.atoms", "unclean.leader.election.enable", "true"),
    ("team.notes.atoms", "message.timestamp.type", "CreateTime"),
    ("team.notes.atoms", "max.message.bytes", str(message_bytes(SETTINGS) - 1)),
    ("team.notes.atoms", "cleanup.policy", "compact,delete"),
    ("team.notes.atoms", "retention.ms", "604800000"),
    ("team.notes.atoms", "retention.bytes", "1000000"),
    ("team.notes.keys", "replication.factor", "1"),
    ("team.notes.keys", "min.insync.replicas", "1"),
    ("team.notes.keys", "unclean.leader.election.enable", "true"),
    ("team.notes.keys", "cleanup.policy", "delete"),
    ("team.notes.keys", "max.compaction.lag.ms", "9223372036854775807"),
    ("team.notes.keys", "segment.ms", "604800000"),
    ("team.notes.keys", "delete.retention.ms", "nonsense"),
]


@pytest.mark.parametrize(("topic", "name", "value"), WEAKER)
def test_a_weaker_setting_is_refused_with_topic_setting_and_way_out_unless_allowed(
    topic: str, name: str, value: str
) -> None:
    found = changed(topic, name, value)
    error = refused(found)
    assert (error.code, error.kind) == ("STORE_UNSAFE", "invalid")
    (detail,) = (one for one in error.details if one["setting"] == name)
    assert (detail["topic"], detail["found"]) == (topic, value)
    for part in (topic, name, value, detail["needed"], f"--allow-weak {name}"):
        assert part in detail["message"]
    others = [one["setting"] for one in error.details if one["setting"] != name]
    check(found, name, *others)


def test_a_stronger_setting_is_right() -> None:
    check(changed("team.notes.atoms", "replication.factor", "5"))
    check(changed("team.notes.atoms", "max.message.bytes", "100000000"))
    check(changed("team.notes.keys", "max.compaction.lag.ms", "1000"))


def test_one_broker_is_not_enough_unless_both_risks_are_named() -> None:
    found = as_made(replication=1)
    assert {(one["topic"], one["setting"]) for one in refused(found).details} == {
        (topic, name)
        for topic in ("team.notes.atoms", "team.notes.keys")
        for name in ("replication.factor", "min.insync.replicas")
    }
    assert refused(found, "replication.factor").code == "STORE_UNSAFE"
    check(found, "replication.factor", "min.insync.replicas")


def test_a_topic_that_is_not_there_or_has_other_partitions_is_told_apart() -> None:
    assert refused({**as_made(), "team.notes.keys": None}).code == "STORE_NOT_FOUND"
    error = refused(as_made(), "replication.factor", partitions=8)
    assert (error.code, "4 partitions, the store 8" in error.message) == ("LOG_MISMATCH", True)


def test_risks_are_named_in_arguments_and_in_the_environment() -> None:
    found = weak_names(["replication.factor"], {"ATOMLOG_ALLOW_WEAK": "min.insync.replicas, max.message.bytes,"})
    assert found == {"replication.factor", "min.insync.replicas", "max.message.bytes"}
    for given, environment in ((["replication"], {}), ([], {"ATOMLOG_ALLOW_WEAK": "everything"})):
        with pytest.raises(AtomlogError, match="no setting that is checked"):
            weak_names(given, environment)
