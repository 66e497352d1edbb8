"""Nodes of one store in one process: real owners, keepers and TLS channels over the in-memory log; no Kafka."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from atomlog.consumers.cluster import credentials
from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.consumers.cluster.node import KernelNode
from atomlog.consumers.creation import create_store
from atomlog.consumers.machine import Machine
from atomlog.consumers.parts import Parts, open_parts
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from tests.support.commands import until
from tests.support.sealed import MASTER

SETTINGS: Final = Settings(
    lease_ms=1_500, heartbeat_ms=200, standby_backoff_ms=400, node_call_timeout_ms=10_000, write_timeout_ms=10_000
)


class SharedTopic:
    """A control topic in memory: everybody hears everything from the moment on that they join."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def joined(self) -> "Listener":
        return Listener(self)


class Listener:
    def __init__(self, topic: SharedTopic) -> None:
        self._topic = topic
        self._position = len(topic.values)

    async def publish(self, key: bytes, value: bytes) -> None:
        self._topic.values.append(value)

    async def next(self) -> Sequence[bytes]:
        await asyncio.sleep(0.02)
        found = self._topic.values[self._position :]
        self._position += len(found)
        return found

    async def close(self) -> None:
        pass


@dataclass
class Running:
    """A node that runs, and the events that it said."""

    node: KernelNode
    parts: Parts
    stop: asyncio.Event
    task: "asyncio.Task[None]"
    events: list[Mapping[str, Any]]

    @property
    def endpoint(self) -> str:
        return self.node.endpoint

    def owns(self, partition: int = 0) -> bool:
        return self.node.owns(partition)

    def said(self, event: str) -> list[Mapping[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    async def end(self) -> None:
        """As after SIGTERM."""
        self.stop.set()
        try:
            await self.task
        finally:
            await self.close()

    async def close(self) -> None:
        await self.node.close()
        await self.parts.close()


@dataclass
class Cluster:
    """Nodes below one directory, on one log. `ask` asks as another node would."""

    root: Path
    partitions: int = 1
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        create_store(str(self.root / "first"), partitions=self.partitions, machine=Machine())
        self.files = SystemFiles()
        credentials.create(self.files, str(self.root / "first" / "node.pem"))
        self.config = StoreConfig.load(self.files, str(self.root / "first"))
        self.server = MemoryLogServer(log_id=self.config.log_id, partitions=self.partitions)
        self.topic = SharedTopic()
        self.keys = MemoryKeyStore()
        self.own = Credentials.load(self.files, str(self.root / "first" / "node.pem"))
        self.connections = Connections(lambda: self.own)

    async def node(self, name: str, **options: Any) -> Running:
        """Start one; it keeps its directory by its name."""
        directory = self.root / name
        if not directory.exists():
            shutil.copytree(self.root / "first", directory)
        events: list[Mapping[str, Any]] = []
        parts = self._parts(str(directory), name, events)
        try:
            node = await KernelNode.open(
                parts,
                host="127.0.0.1",
                port=0,
                credentials=self.own,
                topic=self.topic.joined(),
                name=name,
                **options,
            )
        except BaseException:
            await parts.close()
            raise
        stop = asyncio.Event()
        running = Running(node, parts, stop, asyncio.create_task(node.run(stop)), events)
        self.running.append(running)
        return running

    async def ask(self, running: Running, op: str, **sent: Any) -> Any:
        return await self.connections.ask(running.endpoint, op, 10, **sent)

    async def owner(self, partition: int = 0, but: Running | None = None) -> Running:
        """Wait for one."""
        found: list[Running] = []

        def owned() -> bool:
            found[:] = [one for one in self.running if one.owns(partition) and one is not but]
            return bool(found)

        await until(owned, f"partition {partition} has an owner")
        return found[0]

    async def close(self) -> None:
        await self.connections.close()
        for running in self.running:
            if not running.task.done():
                await running.end()

    def _parts(self, directory: str, name: str, events: list[Mapping[str, Any]]) -> Parts:
        opened = open_parts(directory, self.config, settings=SETTINGS, on_event=events.append)
        ring = KeyRing(
            self.keys,
            master=MASTER,
            randomness=opened.machine.randomness,
            clock=opened.machine.clock,
            key_wait_ms=SETTINGS.key_wait_ms,
        )
        log = MemoryLog(self.server, name=name)
        content = ContentOpener(ring, opened.blobs)
        return replace(opened, log=log, embedded=None, ring=ring, content=content)
