"""What goes to Kafka and comes from it, in our own words: nothing here knows a client library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRecord:
    """A record to be sent."""

    key: bytes | None = None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecord:
    """A record as a broker keeps it. `timestamp_ms` since 1970 UTC.

    `problem` says why the rest could not be read (a control record, a compressed batch, broken bytes): then there is
    no key, value or header. It stands at an offset like any other.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the brokers have it. `topic_id`: 16 bytes that no topic of that name had before or will have after.

    `replication` is the smallest number of replicas of any partition; `settings` has every setting, defaults too.
    """

    name: str
    topic_id: bytes
    partitions: int
    replication: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be made. `replication` -1: what the brokers do by default."""

    name: str
    partitions: int
    replication: int = -1
    settings: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """A broker answered that it does not do what was asked: nothing happened, but for codes that say otherwise."""

    def __init__(self, code: int, name: str, message: str = "") -> None:
        self.code = code
        self.name = name
        super().__init__(f"{name}: {message}" if message else name)


class Lost(Exception):
    """The connection broke or the answer did not come in time: what was asked may have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """From `host:port`, IPv6 in brackets."""
        host, _, port = text.rpartition(":")
        return cls(host=host.strip("[]"), port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who leads a partition (-1: nobody), since when, and how many replicas there are."""

    node: int
    epoch: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """`error` is the code of what is wrong with the topic, 0 for nothing; `error_name` says it."""

    error: int
    error_name: str
    topic_id: bytes
    leaders: Mapping[int, Leader]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What one broker knows, which may be old."""

    cluster_id: str
    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """`data`: record batches as bytes. `end`: the high watermark, what all in-sync replicas have."""

    first_kept: int
    end: int
    data: bytes
