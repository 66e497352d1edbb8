"""`atomlog kernel` in processes of their own, on a real broker, and who asks them."""

import asyncio
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.creation import create_node
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.consumers.cluster.founding import NodeRequest
from atomlog.consumers.machine import Machine
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.topics import MIN_IN_SYNC, REPLICATION
from atomlog.kernel.system import SystemFiles
from tests.support.commands import until
from tests.support.zygote import COMMAND, Forked, zygote

WEAK: Final = (REPLICATION, MIN_IN_SYNC)
PATIENT: Final = {"ATOMLOG_LEASE_MS": "100000"}  # who waits for a lease waits for longer than the test lasts
SETTINGS: Final = {
    "ATOMLOG_LEASE_MS": "2000",
    "ATOMLOG_HEARTBEAT_MS": "300",
    "ATOMLOG_STANDBY_BACKOFF_MS": "500",
    "ATOMLOG_ALLOW_WEAK": ",".join(WEAK),
}
AGAIN: Final = ("NOT_OWNER", "IN_DOUBT", "KAFKA_UNAVAILABLE", "OVERLOADED")


class Reached(Protocol):
    """Brokers, or a way to them."""

    @property
    def bootstrap(self) -> str: ...


@dataclass
class Kernel:
    """One process. `events` is what it printed so far."""

    name: str
    directory: Path
    process: Forked
    events: list[dict[str, Any]] = field(default_factory=list)
    reading: "asyncio.Task[None] | None" = None

    @property
    def endpoint(self) -> str:
        return str(self.said("keeping")[0]["endpoint"])

    def said(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        await self.process.killed()
        await self._read_out()

    async def terminate(self) -> int:
        """SIGTERM; its exit code."""
        self.process.terminate()
        code = await self.process.wait()
        await self._read_out()
        return code

    async def read(self) -> None:
        while line := await self.process.stdout.readline():
            self.events.append(json.loads(line))

    async def _read_out(self) -> None:
        assert self.reading is not None
        await self.reading


class Kernels:
    """Nodes of one store below one directory. Use as a context manager: no process outlives it."""

    def __init__(self, root: Path, kafka: Reached, prefix: str, *, partitions: int = 1, **of_store: Any) -> None:
        """`of_store`: more of a NodeRequest."""
        self._root = root
        self._request = NodeRequest(
            bootstrap=kafka.bootstrap,
            prefix=prefix,
            replication=1,
            allow_weak=WEAK,
            blobs=str(root / "blobs"),
            partitions=partitions,
            **of_store,
        )
        self._made: list[str] = []
        self.running: list[Kernel] = []
        self.connections = Connections(self._credentials)

    async def __aenter__(self) -> "Kernels":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.connections.close()
        for kernel in self.running:
            kernel.go_on()
            await kernel.kill()

    async def directory(self, name: str) -> Path:
        """Of a node; made when it is first named, with the files of the first one."""
        path = self._root / name
        if name not in self._made:
            request = self._request
            if self._made:
                first = self._root / self._made[0]
                request = replace(request, master_key=str(first / "master.key"), node_pem=str(first / "node.pem"))
            await create_node(str(path), request, machine=Machine())
            self._made.append(name)
        return path

    async def start(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Kernel:
        """Returns before it keeps anything."""
        directory = await self.directory(name)
        command = ("kernel", "--store", str(directory), "--listen", f"{self.host(name)}:0", "--name", name, *arguments)
        log = self._root / f"{name}.log"
        process = await self.fork(name, *command, log=log, environment={**SETTINGS, **(environment or {})})
        kernel = Kernel(name=name, directory=directory, process=process)
        kernel.reading = asyncio.create_task(kernel.read())
        self.running.append(kernel)
        return kernel

    def host(self, name: str) -> str:
        """Where the kernel of that name listens."""
        return "127.0.0.1"

    async def fork(self, name: str, *command: str, log: Path, environment: Mapping[str, str]) -> Forked:
        """The process of the kernel of that name."""
        return await zygote().fork(COMMAND, *command, log=log, environment=environment)

    async def kept(self, *kernels: Kernel) -> None:
        """Until they look after their partitions."""
        names = ", ".join(kernel.name for kernel in kernels)
        await until(lambda: all(kernel.said("keeping") for kernel in kernels), f"{names} keep their partitions")

    async def owner(self, partition: int = 0, among: "list[Kernel] | None" = None) -> Kernel:
        """Wait for one that says that it owns the partition in the last term of its log."""
        found: list[Kernel] = []

        async def owned() -> bool:
            for kernel in self.running if among is None else among:
                if kernel.said("keeping") and await self._owns(kernel, partition):
                    found.append(kernel)
                    return True
            return False

        await until(owned, f"partition {partition} has an owner")
        return found[0]

    async def ask(self, kernel: Kernel, op: str, **parts: Any) -> Any:
        return await self.connections.ask(kernel.endpoint, op, 20, **parts)

    async def write(self, among: "list[Kernel]", batch: Mapping[str, Any]) -> Any:
        """The result of a batch, asked for again and again until somebody gives one."""
        found: list[Any] = []
        tries = 0

        async def written() -> bool:
            nonlocal tries
            tries += 1
            try:
                found.append(await self.ask(among[tries % len(among)], "write", batch=batch))
            except OSError:
                return False
            except AtomlogError as error:
                if error.code not in AGAIN:
                    raise
                return False
            return True

        await until(written, f"{batch['idempotency_key']} is accepted")
        return found[0]

    async def _owns(self, kernel: Kernel, partition: int) -> bool:
        try:
            places = await self.connections.ask(kernel.endpoint, "places", 5)
            owner = (places[str(partition)]["owner"] or {}).get("owner", "")
            found = await self.connections.ask(kernel.endpoint, "probe", 5, partition=partition, owner=owner)
        except (OSError, AtomlogError):
            return False
        return bool(found["serves"])

    def _credentials(self) -> Credentials:
        return Credentials.load(SystemFiles(), str(self._root / self._made[0] / "node.pem"))
