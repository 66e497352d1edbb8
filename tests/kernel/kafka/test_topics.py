"""What the topics must be, against made-up answers of brokers; `test_log` and `test_client` ask real ones."""

from dataclasses import replace

import pytest

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.topics import (
    ALLOWABLE,
    TopicNames,
    TopicSpec,
    atoms_spec,
    check_topics,
    control_spec,
    group_bytes,
    keys_spec,
    parse_allow_weak,
    reads_spec,
    weaknesses,
)
from atomlog.kernel.kafka.values import TopicFacts
from atomlog.kernel.settings import Settings

NAMES = TopicNames(prefix="p")
ATOMS = atoms_spec(NAMES.atoms, 4, 3, Settings(), Bounds())
KEYS = keys_spec(NAMES.keys, 3)
SPECS = (
    ATOMS,
    KEYS,
    reads_spec(NAMES.reads, 3, Settings()),
    control_spec(NAMES.control, 3),
)


def as_made(spec: TopicSpec) -> TopicFacts:
    """The topic that brokers make of the spec."""
    new = spec.new
    return TopicFacts(
        name=new.name, topic_id=bytes(16), partitions=new.partitions, replication=new.replication, settings=new.settings
    )


def changed(spec: TopicSpec, **settings: str) -> TopicFacts:
    facts = as_made(spec)
    return replace(
        facts, settings={**facts.settings, **{name.replace("_", "."): text for name, text in settings.items()}}
    )


def test_topics_are_named_below_their_prefix() -> None:
    assert [spec.new.name for spec in SPECS] == ["p.atoms", "p.keys", "p.reads", "p.control"]
    assert [NAMES.inboxes, NAMES.inbox("mail"), NAMES.results("mail")] == [
        "p.inboxes",
        "p.inbox.mail",
        "p.results.mail",
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.new.name)
def test_a_topic_that_is_as_it_was_made_has_no_weakness(spec: TopicSpec) -> None:
    assert weaknesses(as_made(spec), spec) == []


@pytest.mark.parametrize(
    ("spec", "setting", "text"),
    [
        (ATOMS, "min.insync.replicas", "1"),
        (ATOMS, "min.insync.replicas", "4"),
        (ATOMS, "unclean.leader.election.enable", "true"),
        (ATOMS, "message.timestamp.type", "CreateTime"),
        (ATOMS, "max.message.bytes", "1048588"),
        (ATOMS, "cleanup.policy", "compact"),
        (ATOMS, "cleanup.policy", "compact,delete"),
        (ATOMS, "retention.ms", "604800000"),
        (ATOMS, "retention.bytes", "1000000000"),
        (ATOMS, "compression.type", "producer"),
        (KEYS, "cleanup.policy", "delete"),
        (KEYS, "segment.ms", "604800000"),
        (KEYS, "max.compaction.lag.ms", "9223372036854775807"),
    ],
)
def test_each_setting_that_is_weaker_is_named_with_what_was_found(spec: TopicSpec, setting: str, text: str) -> None:
    facts = replace(as_made(spec), settings={**as_made(spec).settings, setting: text})
    (found,) = weaknesses(facts, spec)
    assert (found.topic, found.setting, found.found) == (spec.new.name, setting, text)
    with pytest.raises(AtomlogError) as raised:
        check_topics({spec.new.name: facts}, [spec], ())
    error = raised.value
    assert error.code == "STORE_UNSAFE"
    assert all(part in error.message for part in (spec.new.name, setting, text, found.needed))
    assert ("--allow-weak" in error.message) == (setting in ALLOWABLE)


def test_a_setting_that_the_broker_does_not_tell_counts_as_weak() -> None:
    settings = {name: text for name, text in as_made(ATOMS).settings.items() if name != "retention.ms"}
    assert [one.setting for one in weaknesses(replace(as_made(ATOMS), settings=settings), ATOMS)] == ["retention.ms"]


def test_fewer_replicas_are_a_weakness_and_so_is_one_that_must_be_in_sync() -> None:
    facts = replace(changed(ATOMS, min_insync_replicas="1"), replication=1)
    assert [one.setting for one in weaknesses(facts, ATOMS)] == ["replication.factor", "min.insync.replicas"]
    check_topics({ATOMS.new.name: facts}, [ATOMS], ("replication.factor", "min.insync.replicas"))


def test_more_in_sync_than_there_are_replicas_is_not_what_it_seems() -> None:
    facts = replace(as_made(ATOMS), replication=1)
    assert "brokers ignore it" in [one.reason for one in weaknesses(facts, ATOMS)][1]


def test_a_topic_made_on_one_broker_asks_for_one_in_sync() -> None:
    assert atoms_spec("p.atoms", 1, 1, Settings(), Bounds()).new.settings["min.insync.replicas"] == "1"


def test_all_weaknesses_are_in_the_details_and_the_allowed_ones_are_not() -> None:
    facts = replace(changed(ATOMS, retention_ms="5", cleanup_policy="compact"), replication=1)
    with pytest.raises(AtomlogError) as raised:
        check_topics({ATOMS.new.name: facts}, [ATOMS], ("retention.ms",))
    assert [detail["path"] for detail in raised.value.details] == [
        "replication.factor",
        "min.insync.replicas",
        "cleanup.policy",
    ]


def test_a_topic_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(AtomlogError) as raised:
        check_topics({ATOMS.new.name: None}, [ATOMS], ALLOWABLE)
    assert (raised.value.code, ATOMS.new.name in raised.value.message) == ("STORE_NOT_FOUND", True)


def test_weaknesses_are_allowed_by_name_alone() -> None:
    environment = {"ATOMLOG_ALLOW_WEAK": "retention.ms, replication.factor"}
    assert parse_allow_weak(["min.insync.replicas"], environment) == {
        "min.insync.replicas",
        "retention.ms",
        "replication.factor",
    }
    for name in ("cleanup.policy", "max.message.bytes", "all", ""):
        with pytest.raises(AtomlogError) as raised:
            parse_allow_weak([name], {})
        assert raised.value.code == "INVALID_INPUT"


def test_a_topic_takes_the_largest_group_of_the_settings() -> None:
    large = Settings(group_bytes_max=6 * 1024 * 1024)
    needed = group_bytes(large, Bounds())
    assert atoms_spec("p.atoms", 1, 1, large, Bounds()).new.settings["max.message.bytes"] == str(needed)
    small = as_made(atoms_spec("p.atoms", 4, 3, Settings(), Bounds()))
    with pytest.raises(AtomlogError, match=r"max\.message\.bytes"):
        check_topics({"p.atoms": small}, [atoms_spec("p.atoms", 4, 3, large, Bounds())], ALLOWABLE)
