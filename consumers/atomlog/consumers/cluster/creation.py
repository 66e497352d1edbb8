"""Making a node of a shared store, and the store with the first one.

What the store is stands on its key topic, once: who finds nothing there writes it, and who finds it joins. Two that
write at once both read what stands there first. Everything that the new store needs is durable in the directory before
that, so that whoever is killed goes on with it; what turns out to be of no use is set aside.
"""

import json
import tomllib
from dataclasses import dataclass, field, replace
from typing import Any, Final

from atomlog.consumers.cluster import credentials
from atomlog.consumers.cluster.founding import Founding, NodeRequest, check_request
from atomlog.consumers.creation import MAKING, finish, making, unfinished
from atomlog.consumers.machine import KAFKA_TOML, MASTER_KEY, NODE_PEM, Machine
from atomlog.consumers.paths import checked_path
from atomlog.consumers.processes import absolute
from atomlog.consumers.store_config import (
    KafkaPlace,
    StoreConfig,
)
from atomlog.kernel.ids import invalid
from atomlog.kernel.kafka.client import KafkaClient
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.key_topic import (
    StoreRecord,
)
from atomlog.kernel.kafka.topics import (
    parse_allow_weak,
)
from atomlog.kernel.ports import Files
from atomlog.kernel.sealing import MasterKey, create_master_key, load_master_key
from atomlog.kernel.settings import Settings

UNKNOWN: Final = "unknown"  # the cluster, while it was not reached yet
UNUSED: Final = ".unused"  # added to the name of a file that another node's stands in for


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
    check_request(request)
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
            founding = Founding(client=client, request=request, settings=settings, weak=weak)
            store = await founding.join()
            if store is None:
                _take_files(machine, directory, request, make=True)
                store = await founding.make(own.log_id)
            if store.log_id != own.log_id and request.master_key is not None:
                await founding.check_master(_given_master(files, request.master_key))
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


def _begun(request: NodeRequest, log_id: bytes, cluster_id: str) -> StoreConfig:
    """What stands in the directory until the store is known: a log id, which counts only if nobody was faster."""
    return StoreConfig(log_id=log_id, kafka=_place(request, cluster_id))


def _place(request: NodeRequest, cluster_id: str) -> KafkaPlace:
    return KafkaPlace(cluster_id=cluster_id, prefix=request.prefix)


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
        text = _given_master(files, request.master_key).to_text()
        files.write_atomic(key_path, text.encode(), mode=0o600)
    elif make and load_master_key(files, key_path) is None:
        create_master_key(files, machine.randomness, key_path)
    if request.node_pem is not None:
        given = checked_path(request.node_pem, "node_pem")
        credentials.Credentials.load(files, given)
        files.write_atomic(pem_path, credentials.read(files, given), mode=0o600)
    elif make and not files.exists(pem_path):
        credentials.create(files, pem_path)


def _given_master(files: Files, path: str) -> MasterKey:
    master = load_master_key(files, checked_path(path, "master_key"))
    if master is None:
        raise invalid("master_key", f"{path}: there is no such file")
    return master


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
