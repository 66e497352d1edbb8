"""What each topic of a store is called, how it is made, and what it must be for the store to be safe.

A topic is looked at as the brokers really have it. What is weaker than it must be is a `Weakness`; some of them may be
allowed by name, for development on one broker.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import shown
from atomlog.kernel.kafka.values import NewTopic, TopicFacts
from atomlog.kernel.settings import Settings

REPLICATION: Final = "replication.factor"
MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
TIMESTAMPS: Final = "message.timestamp.type"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
SEGMENT_MS: Final = "segment.ms"
COMPACTION_LAG_MS: Final = "max.compaction.lag.ms"
ALLOWABLE: Final = (
    REPLICATION,
    MIN_IN_SYNC,
    UNCLEAN,
    TIMESTAMPS,
    RETENTION_MS,
    RETENTION_BYTES,
    SEGMENT_MS,
    COMPACTION_LAG_MS,
)
WEAK_VARIABLE: Final = "ATOMLOG_ALLOW_WEAK"
REPLICAS, IN_SYNC = 3, 2  # needed: one broker may be lost and writing goes on
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_SMALL_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """One setting of one topic that is not what it must be."""

    topic: str
    setting: str
    found: str
    needed: str
    reason: str

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.setting} is {self.found}, needed is {self.needed}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNames:
    """The topics of the store with this prefix."""

    prefix: str = "atomlog"

    @property
    def atoms(self) -> str:
        return f"{self.prefix}.atoms"

    @property
    def keys(self) -> str:
        return f"{self.prefix}.keys"

    @property
    def reads(self) -> str:
        return f"{self.prefix}.reads"

    @property
    def control(self) -> str:
        return f"{self.prefix}.control"

    @property
    def inboxes(self) -> str:
        return f"{self.prefix}.inboxes"

    def inbox(self, principal: str) -> str:
        return f"{self.prefix}.inbox.{principal}"

    def results(self, principal: str) -> str:
        return f"{self.prefix}.results.{principal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """How a topic is made, and what of it must hold beside what holds for every topic."""

    new: NewTopic
    needs: Sequence["Need"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """`is_met` gets the broker's value."""

    setting: str
    needed: str
    reason: str
    is_met: Callable[[str], bool]


def atoms_spec(name: str, partitions: int, replication: int, settings: Settings, bounds: Bounds) -> TopicSpec:
    """The log: nothing of it is ever deleted, and a group of writes fits into one batch."""
    needs = (
        _equals("cleanup.policy", "delete", "compaction would take records out of the log"),
        _equals(RETENTION_MS, "-1", "the log is never deleted"),
        _equals(RETENTION_BYTES, "-1", "the log is never deleted"),
        message_bytes(group_bytes(settings, bounds)),
    )
    values = {"cleanup.policy": "delete", RETENTION_MS: "-1", RETENTION_BYTES: "-1"}
    return _spec(name, partitions, replication, values, needs, bytes_max=group_bytes(settings, bounds))


def keys_spec(name: str, replication: int) -> TopicSpec:
    """Key pages: an old version goes soon after there is a new one."""
    soon = "a destroyed key is gone only when its old page is cleaned away"
    needs = (
        _equals("cleanup.policy", "compact", "each key page is kept, and only its last version"),
        _at_most(SEGMENT_MS, _HOUR_MS, soon),
        _at_most(COMPACTION_LAG_MS, _HOUR_MS, soon),
        message_bytes(_SMALL_BYTES),
    )
    values = {
        "cleanup.policy": "compact",
        SEGMENT_MS: "10000",
        COMPACTION_LAG_MS: "10000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "1000",
    }
    return _spec(name, 1, replication, values, needs)


def reads_spec(name: str, replication: int, settings: Settings) -> TopicSpec:
    """Events of reads, kept as long as receipts are."""
    return _kept(name, replication, settings.receipt_retention_days * _DAY_MS)


def control_spec(name: str, replication: int) -> TopicSpec:
    """Reports of nodes: hints, soon gone."""
    return _kept(name, replication, _HOUR_MS)


def group_bytes(settings: Settings, bounds: Bounds) -> int:
    """What a group of one commit may take as a record batch: values up to its limit, one batch beyond, and headers.

    The smallest records have fewer bytes of headers than of value, so headers never take more than that again.
    """
    return 2 * (settings.group_bytes_max + bounds.batch_bytes_max)


def message_bytes(needed: int) -> Need:
    return Need(
        setting="max.message.bytes",
        needed=f"{needed} or more",
        reason="a whole group of records is sent as one batch",
        is_met=lambda value: _number(value) >= needed,
    )


def parse_allow_weak(names: Collection[str], environment: Mapping[str, str]) -> frozenset[str]:
    """The weaknesses that are allowed: by option, and by the variable, names with commas between. INVALID_INPUT."""
    more = [name.strip() for name in environment.get(WEAK_VARIABLE, "").split(",") if name.strip()]
    for path, given in (("allow-weak", names), (WEAK_VARIABLE, more)):
        for name in given:
            if name not in ALLOWABLE:
                raise fail("INVALID_INPUT", f"{path}: {shown(name)} is none of {', '.join(ALLOWABLE)}")
    return frozenset((*names, *more))


def weaknesses(facts: TopicFacts, spec: TopicSpec) -> Sequence[Weakness]:
    """All of them, allowed or not."""
    replicas, in_sync = facts.replication, _number(facts.settings.get(MIN_IN_SYNC, ""))
    found: list[Weakness] = []

    def add(setting: str, value: object, needed: str, reason: str) -> None:
        found.append(Weakness(topic=facts.name, setting=setting, found=str(value), needed=needed, reason=reason))

    if replicas < REPLICAS:
        add(REPLICATION, replicas, f"{REPLICAS} or more", "with fewer a lost broker stops the store or loses data")
    if in_sync < IN_SYNC:
        add(MIN_IN_SYNC, in_sync, f"{IN_SYNC} or more", "what one broker alone has is lost with it")
    elif in_sync > replicas:
        add(MIN_IN_SYNC, in_sync, f"at most {replicas}, the replicas", "more is not to be had, and brokers ignore it")
    for need in (*_ALWAYS, *spec.needs):
        value = facts.settings.get(need.setting, "")
        if not need.is_met(value):
            add(need.setting, value or "not known", need.needed, need.reason)
    return found


def check_topics(found: Mapping[str, TopicFacts | None], specs: Sequence[TopicSpec], allowed: Collection[str]) -> None:
    """Raises STORE_NOT_FOUND for a topic that is not there, STORE_UNSAFE with every weakness that is not allowed."""
    weak: list[Weakness] = []
    for spec in specs:
        facts = found.get(spec.new.name)
        if facts is None:
            message = f"topic {spec.new.name}: there is no such topic. Restore it if it was deleted"
            raise fail("STORE_NOT_FOUND", f"{message}; `atomlog init` makes those of a store that is new")
        weak += [one for one in weaknesses(facts, spec) if one.setting not in allowed]
    if weak:
        raise unsafe(weak)


def unsafe(weak: Sequence[Weakness]) -> AtomlogError:
    """STORE_UNSAFE; the first one in the message, with what allows them all, and each in the details."""
    details = [
        {
            "path": one.setting,
            "code": "STORE_UNSAFE",
            "message": str(one),
            "topic": one.topic,
            "found": one.found,
            "needed": one.needed,
        }
        for one in weak
    ]
    first = weak[0]
    names = dict.fromkeys(one.setting for one in weak)
    options = " ".join(f"--allow-weak {name}" for name in names)
    way_out = f", or take the risk with {options}" if all(name in ALLOWABLE for name in names) else ""
    more = f" (and {len(weak) - 1} more)" if len(weak) > 1 else ""
    return fail("STORE_UNSAFE", f"{first}{more}; change it{way_out}", details=details)


def _kept(name: str, replication: int, keep_ms: int) -> TopicSpec:
    needs = (_equals("cleanup.policy", "delete", "compaction would take out what is still to be read"),)
    values = {"cleanup.policy": "delete", RETENTION_MS: str(keep_ms), SEGMENT_MS: str(max(keep_ms // 6, 60_000))}
    return _spec(name, 1, replication, values, needs)


def _spec(
    name: str,
    partitions: int,
    replication: int,
    values: Mapping[str, str],
    needs: Sequence[Need],
    *,
    bytes_max: int = _SMALL_BYTES,
) -> TopicSpec:
    settings = {
        MIN_IN_SYNC: str(min(IN_SYNC, replication)),
        UNCLEAN: "false",
        TIMESTAMPS: "LogAppendTime",
        "compression.type": "uncompressed",
        "max.message.bytes": str(max(bytes_max, _SMALL_BYTES)),
    }
    new = NewTopic(name=name, partitions=partitions, replication=replication, settings={**settings, **values})
    return TopicSpec(new=new, needs=needs)


def _equals(setting: str, needed: str, reason: str) -> Need:
    return Need(setting=setting, needed=needed, reason=reason, is_met=lambda value: value == needed)


def _at_most(setting: str, most: int, reason: str) -> Need:
    return Need(
        setting=setting, needed=f"{most} or less", reason=reason, is_met=lambda value: 0 <= _number(value) <= most
    )


def _number(value: str) -> int:
    """-1 for what is no number."""
    return int(value) if value.removeprefix("-").isdecimal() else -1


_ALWAYS: Final = (
    _equals(UNCLEAN, "false", "a broker without the last records could become the leader"),
    _equals(TIMESTAMPS, "LogAppendTime", "a producer could set a time that keeps or deletes records wrongly"),
    _equals("compression.type", "uncompressed", "what a stranger compressed is not decompressed here"),
)
