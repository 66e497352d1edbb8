"""What a shared store is: found on its key topic, or said there for the first time, with the topics that it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.consumers.store_config import (
    PARTITIONS_MAX,
    SHARD_ROWS,
    SHARD_ROWS_MAX,
    VECTOR_SPACES,
    check_count,
    check_prefix,
)
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import HASH_VERSION, invalid
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient, NewTopic, TopicFacts
from atomlog.kernel.kafka.key_topic import (
    FETCH_BYTES,
    FETCH_WAIT_S,
    PARTITION,
    StoreRecord,
    is_page,
    page_of,
    read_store_record,
    write_store_record,
)
from atomlog.kernel.kafka.topics import (
    REPLICAS,
    TopicNames,
    TopicSpec,
    atoms_spec,
    check_topics,
    control_spec,
    keys_spec,
    reads_spec,
)
from atomlog.kernel.ports import KeyPage
from atomlog.kernel.sealing import MasterKey
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.schemas.varint import WireError

PREFIX: Final = "atomlog"
PARTITIONS: Final = 8
REPLICAS_MAX: Final = 32_767
PAGES_LOOKED_AT: Final = 4_096  # of the key topic, to tell whether a master key is this store's


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """What is asked of `init --kafka`. None: what the store has, or the default of a new one.

    `bootstrap` is `host:port,host:port`; `kafka_config` a kafka.toml with everything else. `master_key` and `node_pem`
    are files to be copied. `allow_weak` names settings of topics that may be weaker than needed.
    """

    bootstrap: str
    kafka_config: str | None = None
    prefix: str = PREFIX
    replication: int = REPLICAS
    partitions: int | None = None
    shard_rows: int | None = None
    vector_spaces: tuple[str, ...] | None = None
    blobs: str | None = None
    master_key: str | None = None
    node_pem: str | None = None
    allow_weak: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Founding:
    """The topics of a store, as they are and as they are to be."""

    client: KafkaClient
    request: NodeRequest
    settings: Settings
    weak: frozenset[str]

    @property
    def names(self) -> TopicNames:
        return TopicNames(prefix=self.request.prefix)

    async def join(self) -> StoreRecord | None:
        """What the store is that stands there; None when there is none."""
        facts = await self._facts()
        if facts[self.names.keys] is None:
            return None
        store = await read_store_record(self.client, self.names.keys)
        if store is not None:
            self._check(facts, store.partitions)
            _check_same(self.request, store)
        return store

    async def make(self, log_id: bytes) -> StoreRecord:
        """Make what topics are absent, and say what the store is; another one's word may stand there by then."""
        wanted = self.request.partitions or PARTITIONS
        facts = await self._facts()
        absent = [one.new for one in self._specs(wanted) if facts[one.new.name] is None]
        planned = {new.name: _as_made(new) for new in absent}
        check_topics({**facts, **planned}, self._specs(wanted)[:2], self.weak)  # before anything is made
        await self.client.create_topics(absent)
        facts = await self._facts()
        log = facts[self.names.atoms]
        partitions = wanted if log is None or self.request.partitions is not None else log.partitions
        self._check(facts, partitions)
        if await self._is_written(partitions):
            store = await read_store_record(self.client, self.names.keys)
            if store is None:
                message = f"topic {self.names.atoms} holds records, and {self.names.keys} does not say of which store"
                raise fail("LOG_MISMATCH", f"{message}; use another --prefix, or put the key topic back")
        else:
            store = await write_store_record(self.client, self.names.keys, _record(self.request, log_id, partitions))
        _check_same(self.request, store)
        return store

    async def check_master(self, master: MasterKey) -> None:
        """INVALID_INPUT when pages on the key topic were wrapped with other master keys, and none with this one."""
        topic, others = self.names.keys, set[str]()
        first, end = await self.client.bounds(topic, PARTITION)
        stream = await self.client.stream(topic, PARTITION, first)
        try:
            while stream.position < min(end, first + PAGES_LOOKED_AT):
                for record in await stream.next(FETCH_BYTES, FETCH_WAIT_S):
                    page = _page(record)
                    if page is not None and page.master_key_id == master.id:
                        return
                    others |= set() if page is None else {page.master_key_id.hex()}
        finally:
            await stream.close()
        if others:
            message = f"its id is {master.id.hex()}, this store's keys are wrapped with {', '.join(sorted(others)[:3])}"
            raise invalid("master_key", f"{message}; copy master.key from another node of this store")

    def _specs(self, partitions: int) -> Sequence[TopicSpec]:
        names, replication = self.names, self.request.replication
        return (
            atoms_spec(names.atoms, partitions, replication, self.settings, Bounds()),
            keys_spec(names.keys, replication),
            reads_spec(names.reads, replication, self.settings),
            control_spec(names.control, replication),
        )

    async def _facts(self) -> Mapping[str, TopicFacts | None]:
        names = self.names
        return await self.client.topics([names.atoms, names.keys, names.reads, names.control])

    def _check(self, facts: Mapping[str, TopicFacts | None], partitions: int) -> None:
        """Log and keys, without which the store is lost. STORE_UNSAFE, STORE_NOT_FOUND, LOG_MISMATCH."""
        check_topics(facts, self._specs(partitions)[:2], self.weak)
        log = facts[self.names.atoms]
        if log is not None and log.partitions != partitions:
            message = f"topic {log.name} has {log.partitions} partitions, not {partitions}, and they never change"
            raise fail("LOG_MISMATCH", f"{message}; put the topic back as it was, or use another --prefix")

    async def _is_written(self, partitions: int) -> bool:
        for partition in range(partitions):
            if (await self.client.bounds(self.names.atoms, partition))[1] > 0:
                return True
        return False


def _as_made(new: NewTopic) -> TopicFacts:
    """What the brokers will say of a topic that they make as asked."""
    return TopicFacts(
        name=new.name,
        topic_id=bytes(16),
        partitions=new.partitions,
        replication=new.replication,
        settings=new.settings,
    )


def _page(record: FetchedRecord) -> KeyPage | None:
    try:
        return page_of(record) if is_page(record) else None
    except WireError:
        return None  # anybody may have written it


def _record(request: NodeRequest, log_id: bytes, partitions: int) -> StoreRecord:
    return StoreRecord(
        log_id=log_id,
        partitions=partitions,
        hash_version=HASH_VERSION,
        shard_rows=request.shard_rows or SHARD_ROWS,
        vector_spaces=VECTOR_SPACES if request.vector_spaces is None else request.vector_spaces,
    )


def check_request(request: NodeRequest) -> None:
    """INVALID_INPUT for what no store can have."""
    check_prefix(request.prefix)
    check_count(request.replication, "replication", REPLICAS_MAX)
    if request.partitions is not None:
        check_count(request.partitions, "partitions", PARTITIONS_MAX)
    if request.shard_rows is not None:
        check_count(request.shard_rows, "shard_rows", SHARD_ROWS_MAX)
    for index, space in enumerate(request.vector_spaces or ()):
        parse_vector_space(space, f"vector_spaces[{index}]")


def _check_same(request: NodeRequest, store: StoreRecord) -> None:
    """INVALID_INPUT when something was asked for that the store, which is there, has otherwise."""
    if store.hash_version > HASH_VERSION:
        message = f"the store has hash_version {store.hash_version}, this program knows {HASH_VERSION}"
        raise fail("STORE_TOO_NEW", f"{message}; use a newer version")
    asked = {
        "partitions": (request.partitions, store.partitions),
        "shard_rows": (request.shard_rows, store.shard_rows),
        "vector_spaces": (request.vector_spaces, store.vector_spaces),
    }
    for name, (wanted, has) in asked.items():
        if wanted is not None and wanted != has:
            shown = ", ".join(has) if isinstance(has, tuple) else str(has)
            message = f"the store below the prefix {request.prefix} has {shown}, for ever"
            raise invalid(name, f"{message}; leave it out, or use another --prefix for another store")
