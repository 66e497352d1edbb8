"""What stands behind the ports of a node: the log and the key topic of its store, and one way to the brokers."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.credentials import Credentials, secret
from atomlog.consumers.cluster.locating import HeardOwners
from atomlog.consumers.cluster.receipt_exchange import PURPOSE, KafkaReceipts
from atomlog.consumers.events import OnEvent
from atomlog.consumers.machine import KAFKA_TOML, NODE_PEM, Machine
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.kafka.client import KafkaClient
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.keystore import KafkaKeyStore
from atomlog.kernel.kafka.topics import ALLOWABLE, TopicNames
from atomlog.kernel.keystore import SqliteKeyStore
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.sealing import MasterKey
from atomlog.kernel.settings import Settings
from atomlog.projections.read.shelf import Shelf, SqliteShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """`keys` is followed from the key topic, or what others have followed into the same file."""

    directory: str
    machine: Machine
    names: TopicNames
    client: KafkaClient
    log: KafkaLog
    keys: KafkaKeyStore | SqliteKeyStore

    async def start(self) -> None:
        """Reach the brokers, see that they have this very store's log, and follow its keys.

        Raises KAFKA_UNAVAILABLE, ACCESS_DENIED, STORE_NOT_FOUND, STORE_UNSAFE, LOG_MISMATCH.
        """
        await self.client.start()
        await self.log.check()
        if isinstance(self.keys, KafkaKeyStore):
            await self.keys.start()

    async def close(self) -> None:
        await self.client.close()

    def forget_rewritten(self, forget: Callable[[Sequence[bytes]], None]) -> None:
        """`forget` is given key pages that stand in place of others: cached keys of theirs may be destroyed."""
        if isinstance(self.keys, KafkaKeyStore):
            self.keys.listen(forget)

    def credentials(self) -> Credentials:
        """What this node shows others. STORE_NOT_FOUND, INVALID_INPUT."""
        return Credentials.load(self.machine.files, f"{self.directory}/{NODE_PEM}")

    def connections(self) -> Connections:
        """A pool of its own to other nodes; nothing is opened or loaded yet."""
        return Connections(self.credentials)

    def receipts(self, shelf: Shelf, on_event: OnEvent) -> KafkaReceipts | None:
        """Receipts to and from other nodes. None without node.pem, and where new receipts are kept in memory."""
        path, files = f"{self.directory}/{NODE_PEM}", self.machine.files
        if not isinstance(shelf, SqliteShelf) or not files.exists(path):
            return None
        return KafkaReceipts(
            self.client,
            self.names.reads,
            shelf,
            log_id=self.log.log_id,
            secret=cache(lambda: secret(files, path, PURPOSE)),
            workers=self.machine.workers,
            clock=self.machine.clock,
            timeout_s=self.client.timeout_s,
            say=on_event,
        )

    def owners(self) -> HeardOwners:
        """Where the owners are; listens from the first question on."""
        return HeardOwners(self.client, self.names.control, self.machine.clock)


def shared_of(
    directory: str,
    config: StoreConfig,
    *,
    settings: Settings,
    machine: Machine,
    master: MasterKey | None,
    follow_keys: bool,
    allow_weak: Collection[str] | None,
    on_event: OnEvent,
) -> Shared:
    """Put together, not started. `allow_weak` None: this process owns nothing, so that nothing is lost by it.

    Raises INVALID_INPUT or STORE_NOT_FOUND about kafka.toml and the files that it names.
    """
    assert config.kafka is not None
    kafka = KafkaConfig.load(machine.files, f"{directory}/{KAFKA_TOML}", machine.environment)
    timeout_s = settings.kafka_timeout_ms / 1_000
    names, client = TopicNames(prefix=config.kafka.prefix), KafkaClient(kafka, timeout_s=timeout_s)
    log = KafkaLog(
        client,
        names.atoms,
        config.log_id,
        config.partitions,
        machine.clock,
        settings,
        cluster_id=config.kafka.cluster_id,
        allow_weak=ALLOWABLE if allow_weak is None else allow_weak,
    )
    path = f"{directory}/keys.sqlite"
    keys = (
        KafkaKeyStore(
            client,
            names.keys,
            path,
            log_id=config.log_id,
            master=master,
            workers=machine.workers,
            clock=machine.clock,
            timeout_s=timeout_s,
            say=on_event,
        )
        if follow_keys
        else SqliteKeyStore(path, machine.workers)
    )
    return Shared(directory=directory, machine=machine, names=names, client=client, log=log, keys=keys)
