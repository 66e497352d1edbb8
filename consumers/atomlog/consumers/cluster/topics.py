"""The topics of a shared store: their names, how they are made, and what they must be for nothing to be lost."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import Detail, fail
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.kafka_values import NewTopic, TopicFacts
from atomlog.kernel.settings import Settings

ALLOW_WEAK_VARIABLE: Final = "ATOMLOG_ALLOW_WEAK"
REPLICATION: Final = 3
OVERHEAD_BYTES: Final = 64 * 1024  # of a record batch around its records
DAY_MS: Final = 86_400_000
_REPLICATION: Final = "replication.factor"
_MIN_IN_SYNC: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"
_MESSAGE_BYTES: Final = "max.message.bytes"
_TIMESTAMP: Final = "message.timestamp.type"
_LOG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    _TIMESTAMP: "LogAppendTime",
}
# An old version of a key page must be gone soon: what it held is what a purge destroyed.
_KEYS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.ms": "10000",
    "max.compaction.lag.ms": "10000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    _TIMESTAMP: "LogAppendTime",
}
_SHORT: Final[Mapping[str, str]] = {"cleanup.policy": "delete", _TIMESTAMP: "LogAppendTime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNames:
    """What the topics of a store are called."""

    prefix: str

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one setting must be. `is_met` of the broker's real value and the topic's facts."""

    name: str
    needed: str
    why: str
    is_met: Callable[[str, TopicFacts], bool]


def new_topics(names: TopicNames, *, partitions: int, replication: int, settings: Settings) -> Sequence[NewTopic]:
    """The topics that every shared store has. `replication` copies, one of which may be out of sync."""
    safe = {_MIN_IN_SYNC: str(max(1, replication - 1)), _UNCLEAN: "false"}
    log = {**_LOG, _MESSAGE_BYTES: str(message_bytes(settings)), **safe}
    reads = {**_SHORT, "retention.ms": str(settings.receipt_retention_days * DAY_MS)}
    control = {**_SHORT, "retention.ms": "600000", "segment.ms": "600000"}
    made = [(names.atoms, partitions, log), (names.keys, 1, {**_KEYS, **safe})]
    made += [(names.reads, 1, {**reads, **safe}), (names.control, 1, control)]
    return [
        NewTopic(name=name, partitions=count, replication=replication, settings=values) for name, count, values in made
    ]


def message_bytes(settings: Settings) -> int:
    """`max.message.bytes` that the log needs: a group that is full but for one byte, and the batch that filled it."""
    return settings.group_bytes_max + Bounds().batch_bytes_max + OVERHEAD_BYTES


def weak_names(given: Collection[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Settings that may be weaker than needed. INVALID_INPUT for a name that no check has."""
    from_variable = [name.strip() for name in environment.get(ALLOW_WEAK_VARIABLE, "").split(",") if name.strip()]
    known = {need.name for need in (*_log_needs(Settings()), *_key_needs())}
    for name in (*given, *from_variable):
        if name not in known:
            raise invalid(
                "allow_weak", f"{shown(name)} is no setting that is checked; there are {', '.join(sorted(known))}"
            )
    return frozenset([*given, *from_variable])


def check_topics(
    names: TopicNames,
    found: Mapping[str, TopicFacts | None],
    *,
    partitions: int,
    settings: Settings,
    allow_weak: Collection[str],
) -> None:
    """Hold log and key topic, as the brokers have them now, against what they must be.

    Raises:
        STORE_NOT_FOUND: one of them is not there.
        LOG_MISMATCH: the log has another number of partitions than the store.
        STORE_UNSAFE: acknowledged writes could be lost, or erased keys stay; `details` has every setting.
    """
    log, keys = (_there(found, name) for name in (names.atoms, names.keys))
    if log.partitions != partitions:
        message = f"topic {log.name} has {log.partitions} partitions, the store {partitions}; partitions never change"
        raise fail("LOG_MISMATCH", f"{message}: put the topic back as it was")
    if keys.partitions != 1:
        raise fail("LOG_MISMATCH", f"topic {keys.name} has {keys.partitions} partitions, it must have 1")
    wrong = [*_unmet(log, _log_needs(settings), allow_weak), *_unmet(keys, _key_needs(), allow_weak)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise fail("STORE_UNSAFE", f"{wrong[0]['message']}{more}", details=wrong)


def _there(found: Mapping[str, TopicFacts | None], name: str) -> TopicFacts:
    facts = found.get(name)
    if facts is None:
        raise fail("STORE_NOT_FOUND", f"topic {name} is not there; `atomlog init --kafka …` makes it for a new store")
    return facts


def _unmet(facts: TopicFacts, needs: Sequence[Need], allow_weak: Collection[str]) -> list[Detail]:
    wrong: list[Detail] = []
    for need in needs:
        value = str(facts.replication) if need.name == _REPLICATION else facts.settings.get(need.name, "not known")
        if need.name in allow_weak or need.is_met(value, facts):
            continue
        message = (
            f"topic {facts.name}: {need.name} is {value}, needed is {need.needed}: {need.why}; "
            f"change it, or take the risk with --allow-weak {need.name}"
        )
        more = {"topic": facts.name, "setting": need.name, "found": value, "needed": need.needed}
        wrong.append({"path": facts.name, "code": "STORE_UNSAFE", "message": message, **more})
    return wrong


def _safe_needs() -> Sequence[Need]:
    return (
        Need(
            name=_REPLICATION,
            needed=f"{REPLICATION} or more",
            why="with fewer copies one lost disk may lose what was acknowledged",
            is_met=lambda value, facts: facts.replication >= REPLICATION,
        ),
        Need(
            name=_MIN_IN_SYNC,
            needed="2 or more, and no more than there are replicas",
            why="what one copy alone has is acknowledged otherwise; with more than there are the brokers take less",
            is_met=lambda value, facts: 2 <= _number(value) <= facts.replication,
        ),
        Need(
            name=_UNCLEAN,
            needed="false",
            why="a copy that lags would become the log, without what was acknowledged",
            is_met=lambda value, facts: value == "false",
        ),
    )


def _log_needs(settings: Settings) -> Sequence[Need]:
    bytes_min = message_bytes(settings)
    whys = {
        "cleanup.policy": "the log is never compacted",
        "retention.ms": "the log is kept for ever: everything is derived from it",
        "retention.bytes": "the log is kept for ever: everything is derived from it",
        _TIMESTAMP: "times are those of the brokers, not of who sends",
    }
    return (
        *_safe_needs(),
        *(_exactly(name, value, whys[name]) for name, value in _LOG.items()),
        Need(
            name=_MESSAGE_BYTES,
            needed=f"{bytes_min} or more",
            why="a group and one more batch must fit",
            is_met=lambda value, facts: _number(value) >= bytes_min,
        ),
    )


def _key_needs() -> Sequence[Need]:
    gone = "a destroyed key must be gone from the brokers' files soon"
    return (
        *_safe_needs(),
        _exactly(
            "cleanup.policy", _KEYS["cleanup.policy"], "the newest version of each key page is kept, older ones go"
        ),
        _exactly(_TIMESTAMP, _KEYS[_TIMESTAMP], "times are those of the brokers, not of who sends"),
        *(_at_most(name, DAY_MS, gone) for name in ("segment.ms", "max.compaction.lag.ms", "delete.retention.ms")),
    )


def _exactly(name: str, value: str, why: str) -> Need:
    return Need(name=name, needed=value, why=why, is_met=lambda found, facts: found == value)


def _at_most(name: str, limit: int, why: str) -> Need:
    return Need(name=name, needed=f"{limit} or less", why=why, is_met=lambda found, facts: 0 <= _number(found) <= limit)


def _number(value: str) -> int:
    """−1 for what is none."""
    return int(value) if value.removeprefix("-").isdecimal() else -1
