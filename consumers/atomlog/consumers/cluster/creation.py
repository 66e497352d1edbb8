"""Making a node of a shared store, and the store with the first one.

What the store is stands on its key topic, once: who finds nothing there writes it, and who finds it joins. Two that
write at once both read what stands there first. Everything that the new store needs is durable in the directory before
that, so that whoever is killed goes on with it; what turns out to be of no use is set aside.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from atomlog.consumers.cluster import credentials
from atomlog.consumers.creation import MAKING, finish, making, unfinished
from atomlog.consumers.machine import KAFKA_TOML, MASTER_KEY, NODE_PEM, Machine
from atomlog.consumers.paths import checked_path
from atomlog.consumers.processes import absolute
from atomlog.consumers.store_config import (
    PARTITIONS_MAX,
    SHARD_ROWS,
    SHARD_ROWS_MAX,
    VECTOR_SPACES,
    KafkaPlace,
    StoreConfig,
    check_count,
    check_prefix,
)
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import HASH_VERSION, invalid
from atomlog.kernel.kafka_client import KafkaClient, NewTopic, TopicFacts
from atomlog.kernel.kafka_config import KafkaConfig
from atomlog.kernel.kafka_topics import (
    REPLICAS,
    TopicNames,
    TopicSpec,
    atoms_spec,
    check_topics,
    control_spec,
    keys_spec,
    parse_allow_weak,
    reads_spec,
)
from atomlog.kernel.key_topic import StoreRecord, read_store_record, write_store_record
from atomlog.kernel.ports import Files
from atomlog.kernel.sealing import create_master_key, load_master_key
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import parse_vector_space

PREFIX: Final = "atomlog"
PARTITIONS: Final = 8
REPLICAS_MAX: Final = 32_767
UNKNOWN: Final = "unknown"  # the cluster, while it was not reached yet
UNUSED: Final = ".unused"  # added to the name of a file that another node's stands in for


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeNode:
    """A node's configuration, whether it joined a store that was there, and which files of the cluster it lacks."""

    config: StoreConfig
    joined: bool
    lacks: tuple[str, ...] = field(default=())


async def create_node(
    directory: str, request: NodeRequest, *, machine: Machine, settings: Settings | None = None
) -> MadeNode:
    """Make a node in an absent or empty directory, durable on return; its topics and the store, where there are none.

    Raises:
        INVALID_INPUT: the directory is in use; an argument is wrong, or not what the store has.
        KAFKA_UNAVAILABLE, ACCESS_DENIED: about the brokers.
        STORE_UNSAFE, STORE_NOT_FOUND, LOG_MISMATCH: about topics that are there.
        STORE_LOCKED, STORE_READ_ONLY: as for an embedded store.
    """
    files, directory = machine.files, checked_path(directory, "directory")
    _check(request)
    weak = parse_allow_weak(request.allow_weak, machine.environment)
    with making(files, directory, shared=True):
        own = unfinished(files, directory) or _begun(request, machine.randomness.token(16), UNKNOWN)
        own.save(files, directory, MAKING)
        _write_kafka_toml(files, f"{directory}/{KAFKA_TOML}", request)
        config = KafkaConfig.load(files, f"{directory}/{KAFKA_TOML}", machine.environment)
        settings = settings or Settings()
        client = KafkaClient(config, timeout_s=settings.kafka_timeout_ms / 1_000)
        try:
            await client.start()
            cluster_id = await client.cluster_id()
            if own.kafka not in (_place(request, UNKNOWN), _place(request, cluster_id)):
                own = _begun(request, machine.randomness.token(16), cluster_id)  # what was begun was another store
            replace(own, kafka=_place(request, cluster_id)).save(files, directory, MAKING)
            cluster = _Cluster(client=client, request=request, settings=settings, weak=weak)
            store = await cluster.join()
            if store is None:
                _take_files(machine, directory, request, make=True)
                store = await cluster.make(own.log_id)
        finally:
            await client.close()
        joined = store.log_id != own.log_id
        if joined:
            _set_aside(files, directory)
            _take_files(machine, directory, request, make=False)
        made = _config(request, store, cluster_id)
        if made.blobs is not None:
            files.make_directory(made.blobs)
        made.save(files, directory, MAKING)
        finish(files, directory)
    lacks = tuple(name for name in (MASTER_KEY, NODE_PEM) if not files.exists(f"{directory}/{name}"))
    return MadeNode(config=made, joined=joined, lacks=lacks)


@dataclass(slots=True, kw_only=True)
class _Cluster:
    """The topics, as they are and as they are to be."""

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


def _check(request: NodeRequest) -> None:
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


def _begun(request: NodeRequest, log_id: bytes, cluster_id: str) -> StoreConfig:
    """What stands in the directory until the store is known: a log id, which counts only if nobody was faster."""
    return StoreConfig(log_id=log_id, kafka=_place(request, cluster_id))


def _place(request: NodeRequest, cluster_id: str) -> KafkaPlace:
    return KafkaPlace(cluster_id=cluster_id, prefix=request.prefix)


def _record(request: NodeRequest, log_id: bytes, partitions: int) -> StoreRecord:
    return StoreRecord(
        log_id=log_id,
        partitions=partitions,
        hash_version=HASH_VERSION,
        shard_rows=request.shard_rows or SHARD_ROWS,
        vector_spaces=VECTOR_SPACES if request.vector_spaces is None else request.vector_spaces,
    )


def _config(request: NodeRequest, store: StoreRecord, cluster_id: str) -> StoreConfig:
    return StoreConfig(
        log_id=store.log_id,
        partitions=store.partitions,
        hash_version=store.hash_version,
        shard_rows=store.shard_rows,
        vector_spaces=store.vector_spaces,
        kafka=_place(request, cluster_id),
        blobs=None if request.blobs is None else absolute(checked_path(request.blobs, "blobs")),
    )


def _take_files(machine: Machine, directory: str, request: NodeRequest, *, make: bool) -> None:
    """master.key and node.pem: copies of those given; where none is given, new ones if there is to be a new store."""
    files = machine.files
    key_path, pem_path = f"{directory}/{MASTER_KEY}", f"{directory}/{NODE_PEM}"
    if request.master_key is not None:
        given = checked_path(request.master_key, "master_key")
        if load_master_key(files, given) is None:
            raise invalid("master_key", f"{given}: there is no such file")
        files.write_atomic(key_path, files.read(given), mode=0o600)
    elif make and load_master_key(files, key_path) is None:
        create_master_key(files, machine.randomness, key_path)
    if request.node_pem is not None:
        given = checked_path(request.node_pem, "node_pem")
        credentials.Credentials.load(files, given)
        files.write_atomic(pem_path, credentials.read(files, given), mode=0o600)
    elif make and not files.exists(pem_path):
        credentials.create(files, pem_path)


def _set_aside(files: Files, directory: str) -> None:
    """Key and certificate that were made for a store that did not come to be. Nothing was sealed with them."""
    for name in (MASTER_KEY, NODE_PEM):
        if files.exists(f"{directory}/{name}"):
            files.replace(f"{directory}/{name}", f"{directory}/{name}{UNUSED}")


def _write_kafka_toml(files: Files, path: str, request: NodeRequest) -> None:
    """The given file with the addresses that were given; paths in it become absolute, since it moves."""
    values: dict[str, Any] = {}
    if request.kafka_config is not None:
        given = checked_path(request.kafka_config, "kafka_config")
        try:
            values = tomllib.loads(files.read(given).decode())
        except (OSError, ValueError) as error:
            raise invalid("kafka_config", f"{given} cannot be read as TOML: {error}") from None
        folder = absolute(given).rpartition("/")[0]
        for name, value in values.items():
            if name.endswith("_file") and isinstance(value, str) and not value.startswith("/"):
                values[name] = f"{folder}/{value}"
    values["bootstrap"] = request.bootstrap
    for name, value in values.items():
        if not isinstance(value, str):
            raise invalid("kafka_config", f"{name} must be text")
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
    files.write_atomic(path, "".join(lines).encode(), mode=0o600)
