"""Stores to accept the program on: one directory, and who does what around it.

`embedded-together`: one process writes, follows every projection and reads. `embedded-apart`: this process only
writes, each projection has its own `atomlog consume`, a third process reads. `kafka`: as the latter, on a node of a
shared store, whose partitions another node owns. All give the same methods, so that a test does not know which one it
runs on.
"""

import asyncio
import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, partition_of
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import Tail
from atomlog.schemas.revision import decode_clear
from tests.cluster.kernels import Kernel, Kernels
from tests.support.brute import Brute, shown
from tests.support.commands import Done, atomlog, until
from tests.support.kafka import SharedBroker
from tests.support.store_process import Shown, StoreProcess
from tests.support.zygote import COMMAND, Forked, zygote


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a test wants of its store. `settings`: field of `Settings` → value, for every process."""

    partitions: int = 1
    shard_rows: int = 512
    vector_spaces: Sequence[str] = ("hashing/1/512/cosine",)
    settings: Mapping[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {f"ATOMLOG_{name.upper()}": str(value) for name, value in self.settings.items()}


class Deployment(ABC):
    """A running store. Batches go in, pages come out as `Shown`; errors are the store's own.

    `brute` has seen every batch that went through `write`.
    """

    kind: ClassVar[str]
    needs_broker: ClassVar[bool] = False
    recalls_snapshot: ClassVar[bool] = True  # a recall can be read in a snapshot, which is the default
    writer_is_disturbed: ClassVar[bool]  # nothing may be written during `disturb`

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.directory = str(folder / "store")
        self.shape = shape
        self.brute = Brute()
        self._folder = folder
        self._keys = 0
        self._writer: AsyncStore | None = None

    @property
    def writer(self) -> AsyncStore:
        """The store of this process, which holds the log."""
        assert self._writer is not None, "the deployment is not started"
        return self._writer

    async def start(self) -> None:
        await AsyncStore.init(
            self.directory,
            partitions=self.shape.partitions,
            shard_rows=self.shape.shard_rows,
            vector_spaces=self.shape.vector_spaces,
        )
        await self._start()

    async def write(self, space: str, changes: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """The result of one batch under a key of its own, unless `idempotency_key` is given."""
        self._keys += 1
        batch = {"space": space, "idempotency_key": f"{space} {self._keys}", "changes": list(changes), **more}
        result = (await self.writer.write(batch)).to_dict()
        self.brute.record(batch, result)
        return result

    async def write_from_elsewhere(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The same from a second process, which does not hold the log."""
        process = await self._second_process()
        result: dict[str, Any] = await process.ask("write", batch=dict(batch))
        return result

    @abstractmethod
    async def _second_process(self) -> StoreProcess: ...

    @abstractmethod
    async def read(self, selector: Mapping[str, Any], **options: Any) -> Shown: ...
    @abstractmethod
    async def replay(self, receipt: str) -> Shown: ...
    @abstractmethod
    async def verify(self, receipt: str) -> dict[str, Any]: ...
    @abstractmethod
    async def projections(self) -> dict[str, dict[str, Any]]:
        """The entries of `status`, by name, as the reader sees them."""
        ...

    async def pages(self, selector: Mapping[str, Any], *, limit: int, **options: Any) -> list[Shown]:
        """Every page of a read, by its continuations."""
        page = await self.read(selector, limit=limit, **options)
        found = [page]
        space = {"space": options["space"]} if "space" in options else {}
        while (continuation := page.continuation) is not None:
            page = await self.read(selector, limit=limit, continuation=continuation, **space)
            found.append(page)
        return found

    def check(self, selector: Mapping[str, Any], pages: Sequence[Shown]) -> None:
        """The pages of one read are what brute force finds at their one position, no more and no less."""
        positions = {tuple(page.positions.items()) for page in pages}
        assert len(positions) == 1, "the pages of one read are as of one state"
        rows = [shown(row) for page in pages for row in page.rows]
        expected = self.brute.at(pages[0].positions).answer(selector)
        assert rows == expected, f"{selector} at {pages[0].positions}:\n{rows}\nis not\n{expected}"

    async def current(self) -> Mapping[int, int]:
        """Wait until every index has what the log holds now; the last positions."""
        ends = {partition: await self.end(partition) - 1 for partition in range(self.shape.partitions)}

        async def reached() -> bool:
            entries = await self.projections()
            return all(
                part["position"] >= ends[part["partition"]]
                for entry in entries.values()
                for part in entry["partitions"]
            )

        await until(reached, f"every index has applied {ends}")
        return ends

    async def kept(self, page: Shown) -> None:
        """Wait until the receipt of a page outlives its reader: it is written within a moment."""

        async def found() -> bool:
            try:
                await self.writer.receipt(page.receipt_id)
            except AtomlogError as error:
                assert error.code == "RECEIPT_EXPIRED", error
                return False
            return True

        await until(found, f"receipt {page.receipt_id} is kept")

    async def end(self, partition: int = 0) -> int:
        """The log's next position."""
        return await self.writer._parts.log.end(partition)

    async def batches(self, partition: int = 0) -> int:
        """How many batches of a partition count. A refused one leaves none, though perhaps a Fence."""
        parts, count = self.writer._parts, 0
        end, tail = await self.end(partition), Tail(parts.log, parts.config.genesis(partition))
        while tail.checkpoint.position < end:
            count += sum(record.kind == "Batch" for record in await tail.poll())
        return count

    def partition(self, space: str) -> int:
        return partition_of(space, self.shape.partitions)

    @abstractmethod
    async def pause(self, projection: str) -> None:
        """It applies nothing more until `resume`."""

    @abstractmethod
    async def resume(self, projection: str) -> None: ...
    @abstractmethod
    async def disturb(self) -> None:
        """What a deployment survives without a trace: killed and restarted, as far as it has processes for that."""

    async def cli(self, *arguments: str) -> Done:
        """Run a command on this store, beside everything else."""
        return await atomlog(*arguments, "--store", self.directory, environment=self.shape.environment)

    @abstractmethod
    async def _start(self) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...

    async def revisions_in_the_log(self, atom: str) -> list[tuple[str | None, str]]:
        """(previous, revision) of each effective revision of an atom, from the records themselves."""
        parts = self.writer._parts
        found: list[tuple[str | None, str]] = []
        for partition in range(self.shape.partitions):
            end, tail = await self.end(partition), Tail(parts.log, parts.config.genesis(partition))
            while tail.checkpoint.position < end:
                batches = [record.batch() for record in await tail.poll() if record.kind == "Batch"]
                clears = [decode_clear(revision)[0] for batch in batches for revision in batch.revisions]
                found += [
                    (None if clear.previous is None else format_id(clear.previous), format_id(clear.revision_id))
                    for clear in clears
                    if format_id(clear.atom_id) == atom
                ]
        return found

    async def start_client(self, name: str) -> StoreProcess:
        """One more process that writes through this one and reads what others follow. The test ends it."""
        return await StoreProcess.start(
            self.directory, log=self._log(name), projections=PROJECTIONS, environment=self.shape.environment
        )

    async def open_reader(self, projections: Sequence[str]) -> AsyncStore:
        """One more store of this process, which reads these projections and follows none."""
        return await self._open(projections, follow=False)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    async def _open(self, projections: Sequence[str], *, follow: bool = True) -> AsyncStore:
        settings = Settings.from_environment(self.shape.environment)
        return await AsyncStore.open(
            self.directory, create=False, settings=settings, projections=projections, follow=follow
        )


class Together(Deployment):
    """One process does it all; a second one is started only to write from."""

    kind = "embedded-together"
    writer_is_disturbed = True

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(folder, shape)
        self._second: StoreProcess | None = None

    async def read(self, selector: Mapping[str, Any], **options: Any) -> Shown:
        return Shown.of(await self.writer.read(selector, **options))

    async def replay(self, receipt: str) -> Shown:
        return Shown.of(await self.writer.replay(receipt))

    async def verify(self, receipt: str) -> dict[str, Any]:
        verified: dict[str, Any] = (await self.writer.verify_receipt(receipt)).to_dict()
        return verified

    async def projections(self) -> dict[str, dict[str, Any]]:
        return _by_name((await self.writer.status()).to_dict())

    async def pause(self, projection: str) -> None:
        self._follower(projection).pause()

    async def resume(self, projection: str) -> None:
        self._follower(projection).resume()

    async def disturb(self) -> None:
        """The store is closed and opened again."""
        await self.writer.close()
        self._writer = await self._open(PROJECTIONS)

    async def close(self) -> None:
        if self._second is not None:
            await self._second.close()
        if self._writer is not None:
            await self._writer.close()

    async def _start(self) -> None:
        self._writer = await self._open(PROJECTIONS)

    async def _second_process(self) -> StoreProcess:
        if self._second is None:
            self._second = await StoreProcess.start(self.directory, log=self._log("second"), projections=())
        return self._second

    def _follower(self, projection: str) -> Any:
        follower = self.writer.views[projection].follower
        assert follower is not None, f"{projection} is followed by another process"
        return follower


class Apart(Deployment):
    """This process writes, each projection has a process of its own, and another process reads."""

    kind = "embedded-apart"
    writer_is_disturbed = False

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(folder, shape)
        self._reader: StoreProcess | None = None
        self._consumers: dict[str, Forked] = {}
        self._turn = 0

    async def read(self, selector: Mapping[str, Any], **options: Any) -> Shown:
        return await self.reader.shown("read", selector=dict(selector), options=options)

    async def replay(self, receipt: str) -> Shown:
        return await self.reader.shown("replay", receipt=receipt)

    async def verify(self, receipt: str) -> dict[str, Any]:
        verified: dict[str, Any] = await self.reader.ask("verify", receipt=receipt)
        return verified

    async def projections(self) -> dict[str, dict[str, Any]]:
        return _by_name(await self.reader.ask("status"))

    async def pause(self, projection: str) -> None:
        self._consumers[projection].send_signal(signal.SIGSTOP)

    async def resume(self, projection: str) -> None:
        self._consumers[projection].send_signal(signal.SIGCONT)

    async def disturb(self) -> None:
        """The reader and one consumer, another one each time, are killed and started again."""
        self._turn += 1
        await asyncio.gather(self.restart_reader(), self.kill_and_restart(PROJECTIONS[self._turn % len(PROJECTIONS)]))

    async def restart_reader(self) -> None:
        """Killed, so that what it had not written is lost."""
        await self.reader.kill()
        await self._start_reader()

    async def kill_and_restart(self, projection: str) -> None:
        await self.kill(projection)
        await self.revive(projection)

    async def kill(self, projection: str) -> None:
        """Nobody follows for it any more until `revive`."""
        await self._consumers[projection].killed()

    async def revive(self, projection: str) -> None:
        await self._start_consumer(projection)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        for consumer in self._consumers.values():
            with suppress(ProcessLookupError):
                consumer.send_signal(signal.SIGCONT)
                consumer.terminate()
        for name, consumer in self._consumers.items():
            code = await consumer.wait()
            # One that was just started is ended by the signal itself: it does not listen yet.
            assert code in (0, -signal.SIGTERM), (
                f"atomlog consume {name} ended with {code}:\n{self._log(name).read_text()}"
            )
        if self._writer is not None:
            await self._writer.close()

    @property
    def reader(self) -> StoreProcess:
        assert self._reader is not None, "the deployment is not started"
        return self._reader

    async def _start(self) -> None:
        self._writer = await self._open(())
        await asyncio.gather(*(self._start_consumer(name) for name in PROJECTIONS))
        made = [Path(self.directory, "projections", name, "CURRENT") for name in PROJECTIONS]
        await until(lambda: all(path.exists() for path in made), "each consumer has made its projection")
        await self._start_reader()

    async def _start_reader(self) -> None:
        self._reader = await StoreProcess.start(
            self.directory, log=self._log("reader"), projections=PROJECTIONS, environment=self.shape.environment
        )

    async def _start_consumer(self, name: str) -> None:
        command = ("consume", name, "--wait", "--store", self.directory)
        environment = self.shape.environment
        self._consumers[name] = await zygote().fork(
            COMMAND, *command, log=self._log(name), environment=environment, logs_stdout=True
        )

    async def _second_process(self) -> StoreProcess:
        return self.reader


class OnKafka(Apart):
    """A node where every projection has a process of its own, another process reads and this one writes.

    What it writes goes to another node, `kernel`, which owns every partition, or to a second one after `move_owners`.
    """

    kind = "kafka"
    needs_broker = True
    recalls_snapshot = False

    def __init__(self, folder: Path, shape: Shape, broker: SharedBroker) -> None:
        super().__init__(folder, shape)
        self.kernels = Kernels(
            folder / "nodes",
            broker,
            f"t{uuid.uuid4().hex[:12]}",
            partitions=shape.partitions,
            shard_rows=shape.shard_rows,
            vector_spaces=tuple(shape.vector_spaces),
        )
        self._owner: Kernel | None = None

    async def start(self) -> None:
        self._owner = await self._start_kernel("kernel")
        self.directory = str(await self.kernels.directory("node"))
        await self._start()

    async def move_owners(self) -> None:
        """Another kernel takes over every partition, and the one before ends."""
        former = self._owner
        assert former is not None, "the deployment is not started"
        name = "kernel" if former.name != "kernel" else "other-kernel"
        ended = asyncio.create_task(former.terminate())
        self._owner = await self._start_kernel(name)
        assert await ended == 0
        self.kernels.running.remove(former)

    async def close(self) -> None:
        await super().close()
        if self._owner is not None:
            assert await self._owner.terminate() == 0, self._owner.events
        await self.kernels.__aexit__()

    async def _start_kernel(self, name: str) -> Kernel:
        """Returns when it owns every partition."""
        kernel = await self.kernels.start(name, environment=self.shape.environment)
        await self.kernels.kept(kernel)
        for partition in range(self.shape.partitions):
            await self.kernels.owner(partition, [kernel])
        return kernel


KINDS: Final[Mapping[str, type[Together | Apart]]] = {kind.kind: kind for kind in (Together, Apart, OnKafka)}


async def deploy(
    kind: str, folder: Path, shape: Shape | None = None, *, broker: SharedBroker | None = None
) -> Deployment:
    """Make a store in a folder of its own and start everything around it. `broker`: for kinds that need one."""
    shape = shape or Shape()
    deployment: Deployment
    if kind == OnKafka.kind:
        assert broker is not None, "ask for the fixture `kafka`"
        deployment = OnKafka(folder, shape, broker)
    else:
        deployment = {Together.kind: Together, Apart.kind: Apart}[kind](folder, shape)
    try:
        await deployment.start()
    except BaseException:
        await deployment.close()
        raise
    return deployment


def _by_name(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in status["projections"]}
