"""The two worlds: one machine whose processes share an embedded log, and machines that share a log like a broker's."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.blobs import DirectoryBlobStore, MemoryBlobStore
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.log.embedded import EmbeddedLog, create_log
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.ports import BlobStore, Log
from tests.simulation.loop import SimulatedLoop
from tests.simulation.node import ROOT, SETTINGS, SPACE, Node
from tests.simulation.ports import Calls, Machine, Process
from tests.support.kernel_world import LOG_ID

CONFIG: Final = StoreConfig(log_id=LOG_ID, partitions=1, vector_spaces=(SPACE,))


class EmbeddedWorld:
    """One machine, one store directory, an `EmbeddedLog` in it; `nodes` processes have it open."""

    server: MemoryLogServer | None = None

    def __init__(self, loop: SimulatedLoop, chance: Random, calls: Calls, nodes: int) -> None:
        self._machine = Machine(loop, chance, calls)
        self._pids = 100
        maker = self._process("maker")
        _make_store(maker)
        create_log(maker.files, ROOT, LOG_ID, 1)
        maker.kill()

    def machine(self, place: int) -> Machine:
        return self._machine

    def node(self, place: int, life: int, names: tuple[str, ...]) -> Node:
        return Node(self._process(f"p{place}.{life}"), CONFIG, self, names)

    def log(self, process: Process, say: Callable[[Mapping[str, Any]], None]) -> Log:
        return EmbeddedLog(
            files=process.files,
            workers=process.workers,
            clock=process.clock,
            directory=ROOT,
            log_id=LOG_ID,
            partitions=1,
            settings=SETTINGS,
            on_fatal=process.end,
            owner_info={"endpoint": f"sim:{process.name}"},
            process_id=lambda: process.pid,
        )

    def blobs(self, process: Process) -> BlobStore:
        return DirectoryBlobStore(process.files, process.workers, f"{ROOT}/blobs")

    def tail_was_cut(self, log: Log, partition: int) -> bool:
        assert isinstance(log, EmbeddedLog)
        return log.tail_was_cut(partition)

    def _process(self, name: str) -> Process:
        self._pids += 1
        return Process(self._machine, name, self._pids)


class BrokerWorld:
    """A machine for each node, with a disk of its own, and one log that everybody may append to."""

    def __init__(self, loop: SimulatedLoop, chance: Random, calls: Calls, nodes: int) -> None:
        self.server = MemoryLogServer(log_id=LOG_ID, partitions=1)
        self._blobs = MemoryBlobStore()
        self._pids = 100
        keys = MemoryKeyStore()
        self._machines = [Machine(loop, chance, calls, keys) for _ in range(nodes)]
        for place in range(nodes):
            maker = self._process(place, f"maker {place}")
            _make_store(maker)
            maker.kill()

    def machine(self, place: int) -> Machine:
        return self._machines[place]

    def node(self, place: int, life: int, names: tuple[str, ...]) -> Node:
        return Node(self._process(place, f"p{place}.{life}"), CONFIG, self, names)

    def log(self, process: Process, say: Callable[[Mapping[str, Any]], None]) -> Log:
        return MemoryLog(self.server, name=process.name)

    def blobs(self, process: Process) -> BlobStore:
        return self._blobs

    def tail_was_cut(self, log: Log, partition: int) -> bool:
        return False

    def _process(self, place: int, name: str) -> Process:
        self._pids += 1
        return Process(self._machines[place], name, self._pids)


World = EmbeddedWorld | BrokerWorld


def _make_store(maker: Process) -> None:
    """The directory of a store, durable, as `create_store` makes it."""
    maker.files.make_directory(ROOT)
    CONFIG.save(maker.files, ROOT)
    maker.files.make_directory(f"{ROOT}/projections")
    for path in (f"{ROOT}/projections", ROOT, ""):
        maker.files.sync_directory(path)
