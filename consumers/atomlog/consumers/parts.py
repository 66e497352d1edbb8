"""The parts of an open store. This is the composition root: the one module that names what stands behind the ports."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from atomlog.consumers.context import Context, ProjectionKind
from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.kinds import RocksKind
from atomlog.consumers.machine import MASTER_KEY, Machine
from atomlog.consumers.owner_socket import NAME as OWNER_SOCKET
from atomlog.consumers.paths import checked_path
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.blobs import DirectoryBlobStore
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import SqliteKeyStore
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.log.places import check_partitions
from atomlog.kernel.ports import KeyStore, Kv, Log, Meters, Workers
from atomlog.kernel.sealing import load_master_key
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import VectorSpace, parse_vector_space
from atomlog.projections.base import Projection
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.read.journal import Journal
from atomlog.projections.read.shelf import ReadOnlyShelf, Shelf, SqliteShelf
from atomlog.projections.relations import Relations

if TYPE_CHECKING:  # a client of Kafka and TLS come with the one, numpy with the other
    from atomlog.consumers.cluster.receipt_exchange import KafkaReceipts
    from atomlog.consumers.cluster.shared import Shared
    from atomlog.projections.encoders import Encoder

PROJECTIONS: Final = ("ids", "relations", "postings", "vectors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What stands behind an open store: `embedded` where the log is in the directory, `shared` where it is on Kafka."""

    directory: str
    config: StoreConfig
    machine: Machine
    settings: Settings
    bounds: Bounds
    read_only: bool
    on_event: OnEvent
    log: Log
    embedded: EmbeddedLog | None
    shared: "Shared | None"
    keys: KeyStore
    ring: KeyRing
    blobs: DirectoryBlobStore
    blob_directory: str
    content: ContentOpener
    journal: Journal
    receipts: "KafkaReceipts | None"
    spaces: Mapping[str, VectorSpace]
    encoders: "Mapping[str, Encoder]"
    meters: Meters | None = None

    @property
    def context(self) -> Context:
        """What the consumers of this store follow the log with."""
        machine = self.machine
        return Context(
            log=self.log,
            config=self.config,
            clock=machine.clock,
            workers=machine.workers,
            settings=self.settings,
            on_event=self.on_event,
        )

    async def start(self) -> None:
        """Reach what is outside the directory; see `Shared.start` for the errors. An embedded store needs nothing."""
        if self.shared is not None:
            await self.shared.start()

    async def close(self) -> None:
        """Whatever of it fails, the rest of it is given back, too."""
        async with AsyncExitStack() as closing:
            if self.shared is not None:
                closing.push_async_callback(self.shared.close)
            closing.push_async_callback(self.keys.close)
            closing.push_async_callback(self.log.close)
            closing.push_async_callback(self.journal.close)


def open_parts(
    directory: str,
    config: StoreConfig,
    *,
    settings: Settings,
    master_key_file: str | None = None,
    read_only: bool = False,
    machine: Machine | None = None,
    on_event: OnEvent = log_event,
    meters: Meters | None = None,
    follow_keys: bool = True,
    allow_weak: Collection[str] | None = None,
) -> Parts:
    """Put together everything but the projections and the write side. Takes no lock; `start` it before it is used.

    Of a node: `follow_keys` False leaves that to other processes of the node. `allow_weak` for who will own partitions:
    which settings of the log's topic may be weaker than is safe; None = any, for who will not.
    """
    machine = machine or Machine()
    master = load_master_key(machine.files, _key_path(directory, config, master_key_file))
    if master is None and master_key_file is not None:
        raise fail("INVALID_INPUT", f"{master_key_file}: there is no such master key file")
    embedded, shared = None, None
    if config.kafka is None:
        embedded = _embedded_log(directory, config, settings, machine)
        log: Log = embedded
        keys: KeyStore = SqliteKeyStore(f"{directory}/keys.sqlite", machine.workers)
    else:
        from atomlog.consumers.cluster.shared import shared_of

        shared = shared_of(
            directory,
            config,
            settings=settings,
            machine=machine,
            master=master,
            follow_keys=follow_keys,
            allow_weak=allow_weak,
            on_event=on_event,
        )
        log, keys = shared.log, shared.keys
    ring = KeyRing(
        keys,
        master=master,
        randomness=machine.randomness,
        clock=machine.clock,
        key_wait_ms=settings.key_wait_ms,
    )
    shelf, receipts = _shelf(directory, read_only=read_only), None
    if shared is not None:
        shared.forget_rewritten(ring.forget)
        receipts = shared.receipts(shelf, on_event)
    blob_directory = config.blobs or f"{directory}/blobs"
    blobs = DirectoryBlobStore(machine.files, machine.workers, blob_directory)
    spaces = {space: parse_vector_space(space, "vector_spaces") for space in config.vector_spaces}
    return Parts(
        directory=directory,
        config=config,
        machine=machine,
        settings=settings,
        bounds=Bounds(),
        read_only=read_only or config.read_only,
        on_event=on_event,
        log=log,
        embedded=embedded,
        shared=shared,
        keys=keys,
        ring=ring,
        blobs=blobs,
        blob_directory=blob_directory,
        content=ContentOpener(ring, blobs),
        journal=Journal(
            shelf,
            clock=machine.clock,
            randomness=machine.randomness,
            workers=machine.workers,
            settings=settings,
            exchange=receipts,
        ),
        receipts=receipts,
        spaces=spaces,
        encoders=Encoders(spaces, machine.workers),
        meters=meters,
    )


def _embedded_log(directory: str, config: StoreConfig, settings: Settings, machine: Machine) -> EmbeddedLog:
    check_partitions(machine.files, directory, config.partitions)
    return EmbeddedLog(
        files=machine.files,
        workers=machine.workers,
        clock=machine.clock,
        directory=directory,
        log_id=config.log_id,
        partitions=config.partitions,
        settings=settings,
        owner_info={"endpoint": f"unix:{OWNER_SOCKET}"},
    )


class Encoders(Mapping[str, "Encoder"]):
    """Vector space id → encoder. Each is made, and what it needs is loaded, when it is first asked for."""

    def __init__(self, spaces: Mapping[str, VectorSpace], workers: Workers) -> None:
        self._spaces = spaces
        self._workers = workers
        self._made: dict[str, Encoder] = {}

    def __getitem__(self, space: str) -> "Encoder":
        if space not in self._made:
            from atomlog.projections.encoders import encoder_of

            self._made[space] = encoder_of(self._spaces[space], self._workers)
        return self._made[space]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)


def projection_kind(parts: Parts, name: str) -> ProjectionKind:
    """How a projection of a store is opened."""
    partitions, settings = parts.config.partitions, parts.settings
    if name == "vectors":
        return _vectors_kind(parts)
    make: Mapping[str, Callable[[Kv], Projection]] = {
        "ids": lambda kv: Ids(kv, partitions),
        "relations": lambda kv: Relations(kv, partitions),
        "postings": lambda kv: Postings(kv, partitions, window=settings.postings_window),
    }
    return RocksKind(name=name, make=make[name], block_cache_bytes=settings.block_cache_bytes)


def _vectors_kind(parts: Parts) -> ProjectionKind:
    from atomlog.consumers.vectors_kind import VectorsKind  # loads engines that nothing else needs

    return VectorsKind(
        partitions=parts.config.partitions,
        shard_rows=parts.config.shard_rows,
        spaces=tuple(parts.spaces.values()),
        encoders=parts.encoders,
        content=parts.content,
        directory=GenerationDirectory(parts.machine.files, parts.directory, "vectors", parts.on_event),
        files=parts.machine.files,
        workers=parts.machine.workers,
        settings=parts.settings,
        on_event=parts.on_event,
    )


def _key_path(directory: str, config: StoreConfig, given: str | None) -> str:
    if given is not None:
        return checked_path(given, "master_key_file")
    return config.replay.master_key if config.replay is not None else f"{directory}/{MASTER_KEY}"


def _shelf(directory: str, *, read_only: bool) -> Shelf:
    """Receipts in `reads.sqlite`; new ones in memory where the directory is not written."""
    path = f"{directory}/reads.sqlite"
    if read_only:
        return ReadOnlyShelf(path)
    try:
        return SqliteShelf(path)
    except AtomlogError as error:
        if error.code != "STORE_READ_ONLY":
            raise
        return ReadOnlyShelf(path)
