"""The ports of one simulated process: its clock, chance, workers, files, key store and key-value stores.

Every call that reaches a disk is counted (`Calls`), may fail there, and may be the last thing the process does.
"""

import asyncio
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from atomlog.kernel.errors import fail
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.ports import KeyPage, KeyPageOutline
from tests.simulation.disk import FREE_BYTES, Directory, Disk, Inode, StoreOnDisk, join, split
from tests.simulation.loop import Life, SimulatedLoop

T = TypeVar("T")

START_US: Final = 1_700_000_000_000_000
WORKER_US: Final = 2_000  # the longest a call waits for a worker's thread

# What can become of a call. The first three are errors, the others end the process, or all of the machine.
EIO, ENOSPC, SHORT, KILLED, KILLED_AFTER, POWER = "EIO", "ENOSPC", "SHORT", "KILLED", "KILLED_AFTER", "POWER"
ENDS: Final = (KILLED, KILLED_AFTER, POWER)
READS: Final = (EIO,)
CHANGES: Final = (EIO, ENOSPC)
WRITES: Final = (EIO, ENOSPC, SHORT)


class Killed(BaseException):
    """The process ended here. Nothing that it does afterwards reaches anything."""


@dataclass(slots=True)
class Calls:
    """Counts the calls of a whole simulation; `faults` by number, for those calls that can have them."""

    trace: Callable[[str], None]
    count: int = 0
    faults: dict[int, str] = field(default_factory=dict)
    met: list[str] = field(default_factory=list)
    made: list[tuple[str, Sequence[str]]] = field(default_factory=list)  # every call, and the faults it could have

    def next(self, what: str, can: Sequence[str]) -> str | None:
        """The fault of this call. One that it cannot have waits for the next call that can."""
        self.count += 1
        self.made.append((what, can))
        self.trace(f"call {self.count} {what}")
        fault = self.faults.get(self.count)
        if fault is None:
            return None
        del self.faults[self.count]
        if fault not in can and fault not in ENDS:
            self.faults.setdefault(self.count + 1, fault)
            return None
        self.met.append(f"{fault} at call {self.count}: {what}")
        self.trace(self.met[-1])
        return fault


class Machine:
    """A computer: one disk, any number of processes on it. `keys`: a key store that may be shared by several."""

    def __init__(self, loop: SimulatedLoop, chance: Random, calls: Calls, keys: MemoryKeyStore | None = None) -> None:
        self.loop = loop
        self.chance = chance
        self.calls = calls
        self.disk = Disk(chance)
        self.keys = keys or MemoryKeyStore()
        self.processes: list[Process] = []

    def cut_power(self) -> None:
        """Every process is gone, and so is some of what they had not synced."""
        self.calls.trace("the power is cut")
        for process in self.processes:
            process.kill()
        self.processes = []
        self.disk.cut_power()


class Process(Life):
    """One process of a machine, and its ports. `pid` is its number."""

    def __init__(self, machine: Machine, name: str, pid: int) -> None:
        super().__init__(name)
        self.machine = machine
        machine.processes.append(self)
        self.pid = pid
        self.context = machine.loop.born(self)
        self.open_files: list[SimulatedFile] = []
        self.open_stores: list[StoreOnDisk] = []
        self.failed_stores: list[str] = []  # those that take nothing more
        self.turns: deque[asyncio.Future[None]] = deque()
        self.callers: dict[asyncio.Future[Any], None] = {}
        self.clock = SimulatedClock(machine.loop, skew_us=machine.chance.randrange(100))
        self.randomness = SimulatedRandomness(machine.chance)
        self.workers = SimulatedWorkers(self)
        self.files = SimulatedFiles(self)
        self.keys = SimulatedKeyStore(self)

    def call(self, what: str, can: Sequence[str]) -> str | None:
        """Count a call and give its fault, unless that ends the process."""
        self.check()
        fault = self.machine.calls.next(f"{self.name} {what}", can)
        if fault == KILLED:
            self.kill()
        elif fault == POWER:
            self.machine.cut_power()
        self.check()
        return fault

    def after(self, fault: str | None) -> None:
        if fault == KILLED_AFTER:
            self.kill()
            self.check()

    def check(self) -> None:
        if self.is_dead:
            raise Killed(self.name)

    def kill(self) -> None:
        """SIGKILL: nothing more of it runs, its locks are free, and whoever asked it something hears of it."""
        if self.is_dead:
            return
        self.is_dead = True
        self.machine.calls.trace(f"{self.name} is killed")
        for file in self.open_files:
            file.release()
        for store in self.open_stores:
            store.opened_by = None
        for caller in self.callers:
            if not caller.done():
                caller.set_exception(ConnectionError(f"{self.name} is gone"))

    def end(self, message: str) -> None:
        """What `on_fatal` of the real log does: the process ends at once."""
        self.machine.calls.trace(f"{self.name} ends itself: {message}")
        self.kill()
        raise Killed(message)

    async def ask(self, work: Callable[[], Any]) -> Any:
        """What a coroutine gives that runs in this process, asked for by somebody outside. ConnectionError.

        Questions begin in the order in which they were asked, as those do that come over one connection.
        """
        reply: asyncio.Future[Any] = self.machine.loop.create_future()
        if self.is_dead:
            raise ConnectionError(f"{self.name} is gone")
        self.callers[reply] = None
        turn: asyncio.Future[None] = self.machine.loop.create_future()
        self.turns.append(turn)
        has_begun = False

        async def inside() -> None:
            while self.turns[0] is not turn:
                await self.turns[0]
            self.turns.popleft().set_result(None)
            nonlocal has_begun
            has_begun = True
            try:
                found = await work()
            except Killed:
                return
            except BaseException as error:
                if not reply.done():
                    reply.set_exception(error)
            else:
                if not reply.done():
                    reply.set_result(found)

        asked = self.machine.loop.create_task(inside(), context=self.context)
        try:
            return await reply
        except asyncio.CancelledError:
            if has_begun and self.machine.chance.random() < 0.5:  # as a caller in the same process would
                asked.cancel()
            raise
        finally:
            del self.callers[reply]


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, *, skew_us: int) -> None:
        self._loop = loop
        self._skew_us = skew_us

    def now_us(self) -> int:
        return START_US + self._skew_us + self._loop.us

    def monotonic_us(self) -> int:
        return self._loop.us

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimulatedRandomness:
    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def token(self, size: int) -> bytes:
        return self._chance.randbytes(size)


class SimulatedWorkers:
    """Each call runs whole, some time later; one whose caller was cancelled may run all the same, as in a thread."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def run(self, call: Callable[[], T]) -> T:
        machine = self._process.machine
        done: asyncio.Future[T] = machine.loop.create_future()
        is_begun = machine.chance.random() < 0.5
        machine.loop.call_later(machine.chance.random() * WORKER_US / 1_000_000, self._run, call, done, is_begun)
        return await done

    def _run(self, call: Callable[[], T], done: "asyncio.Future[T]", is_begun: bool) -> None:
        if done.cancelled() and not is_begun:
            return
        try:
            found = call()
        except Killed:
            return
        except BaseException as error:
            if not done.cancelled():
                done.set_exception(error)
        else:
            if not done.cancelled():
                done.set_result(found)


def _without(name: str) -> Callable[[dict[str, Inode | None]], None]:
    def remove(names: dict[str, Inode | None]) -> None:
        names.pop(name, None)

    return remove


def _checksum(parts: Sequence[bytes]) -> str:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


def _error(fault: str, path: str) -> OSError:
    number = errno.EIO if fault == EIO else errno.ENOSPC
    return OSError(number, os.strerror(number), path)


class SimulatedFile:
    """`File` over an inode."""

    def __init__(self, process: Process, inode: Inode, path: str, *, write: bool) -> None:
        self._process = process
        self._inode = inode
        self._path = path
        self._write = write
        self._is_open = True
        process.open_files.append(self)

    def append(self, data: bytes) -> None:
        self._write_at(len(self._inode.cached), data, "append")

    def write_at(self, offset: int, data: bytes) -> None:
        self._write_at(offset, data, "write_at")

    def read_at(self, offset: int, size: int) -> bytes:
        fault = self._call("read_at", READS)
        if fault == EIO:
            raise _error(fault, self._path)
        found = bytes(self._inode.cached[offset : offset + size])
        self._process.after(fault)
        return found

    def size(self) -> int:
        self._call("size", ())
        return len(self._inode.cached)

    def truncate(self, size: int) -> None:
        fault = self._call("truncate", CHANGES)
        if fault in CHANGES:
            raise _error(fault, self._path)
        self._inode.truncate(size)
        self._process.after(fault)

    def sync(self) -> None:
        fault = self._call("sync", CHANGES)
        if fault in CHANGES:
            self._inode.fail_to_sync()
            raise _error(fault, self._path)
        self._inode.sync()
        self._process.after(fault)

    def lock(self) -> bool:
        self._call("lock", ())
        if self._inode.locked_by not in (None, self):
            return False
        self._inode.locked_by = self
        return True

    def is_at(self, path: str) -> bool:
        self._process.check()
        disk = self._process.machine.disk
        return disk.exists(path) and disk.find(path) is self._inode

    def close(self) -> None:
        self._process.check()
        self.release()
        if self._is_open:
            self._is_open = False
            self._process.open_files.remove(self)

    def release(self) -> None:
        if self._inode.locked_by is self:
            self._inode.locked_by = None

    def _write_at(self, offset: int, data: bytes, what: str) -> None:
        fault = self._call(f"{what} {len(data)} {_checksum([data])}", WRITES)
        if fault in CHANGES:
            raise _error(fault, self._path)
        if fault == SHORT:
            self._inode.write(offset, data[: self._process.machine.chance.randint(0, max(0, len(data) - 1))])
            raise _error(ENOSPC, self._path)
        self._inode.write(offset, data)
        self._process.after(fault)

    def _call(self, what: str, can: Sequence[str]) -> str | None:
        if not self._is_open:
            raise OSError(errno.EBADF, f"{what} of a file that was closed", self._path)
        return self._process.call(f"{what} {self._path}", can)


class SimulatedDirectory(SimulatedFile):
    """An open directory: nothing but whether it still stands where it was opened."""

    def __init__(self, process: Process, path: str) -> None:
        super().__init__(process, Inode(), path, write=False)
        self._directory = process.machine.disk.directory(path)

    def is_at(self, path: str) -> bool:
        self._process.check()
        return self._process.machine.disk.directories.get(path) is self._directory

    def close(self) -> None:
        """Also of a process that was killed: what it was in the middle of is thrown away, and closes it then."""
        if self._is_open:
            self._is_open = False
            self._process.open_files.remove(self)


class SimulatedFiles:
    """`Files` over the machine's disk."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._disk = process.machine.disk

    def open(self, path: str, *, write: bool, create: bool = False) -> SimulatedFile:
        is_new = create and not self._disk.exists(path)
        fault = self._call("create" if is_new else "open", CHANGES if is_new else READS, path)
        if is_new:
            parent, name = split(path)
            inode: Inode | None = Inode()
            self._disk.directory(parent).change(lambda names: names.__setitem__(name, inode))
        else:
            inode = self._disk.find(path)
        if inode is None and write:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._process.after(fault)
        if inode is None:
            return SimulatedDirectory(self._process, path)
        return SimulatedFile(self._process, inode, path, write=write)

    def exists(self, path: str) -> bool:
        self._call("exists", (), path)
        return self._disk.exists(path)

    def list(self, path: str) -> Sequence[str]:
        self._call("list", READS, path)
        try:
            return sorted(self._disk.directory(path).names)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        parent, name = split(path)
        if parent and parent not in self._disk.directories:
            self.make_directory(parent)
        if self._disk.exists(path):
            if self._disk.find(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return
        fault = self._call("make_directory", CHANGES, path)
        self._disk.directory(parent).change(lambda names: names.__setitem__(name, None))
        self._disk.directories[path] = Directory()
        self._process.after(fault)

    def replace(self, source: str, target: str) -> None:
        fault = self._call("replace", CHANGES, target)
        inode = self._disk.find(source)
        (parent, old), (other, new) = split(source), split(target)
        assert parent == other, "a rename into another directory is two changes; none is made"

        def rename(names: dict[str, Inode | None]) -> None:
            names.pop(old, None)
            names[new] = inode

        self._disk.directory(parent).change(rename)
        self._process.after(fault)

    def remove(self, path: str) -> None:
        fault = self._call("remove", READS, path)
        self._disk.find(path)
        parent, name = split(path)
        self._disk.directory(parent).change(_without(name))
        self._process.after(fault)

    def remove_tree(self, path: str) -> None:
        for name in sorted(self._disk.directory(path).names):
            child = join(path, name)
            if child in self._disk.directories:
                self.remove_tree(child)
            else:
                self.remove(child)
        self._call("remove_directory", READS, path)
        parent, name = split(path)
        self._disk.directory(parent).change(_without(name))
        del self._disk.directories[path]
        self._disk.stores.pop(path, None)

    def sync_directory(self, path: str) -> None:
        fault = self._call("sync_directory", CHANGES, path)
        self._disk.directory(path).sync()
        self._process.after(fault)

    def read(self, path: str) -> bytes:
        self._call("read", READS, path)
        inode = self._disk.find(path)
        if inode is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return bytes(inode.cached)

    def mode(self, path: str) -> int:
        """Nobody else is in a simulation."""
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return 0o600

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        temporary = f"{path}.{self._process.machine.chance.randbytes(4).hex()}.tmp"
        file = self.open(temporary, write=True, create=True)
        try:
            try:
                file.append(data)
                file.sync()
            finally:
                file.close()
            self.replace(temporary, path)
        except OSError:
            if self._disk.exists(temporary):
                self.remove(temporary)
            raise
        self.sync_directory(split(path)[0])

    def free_bytes(self, path: str) -> int:
        self._call("free_bytes", READS, path)
        return FREE_BYTES

    def _call(self, what: str, can: Sequence[str], path: str) -> str | None:
        fault = self._process.call(f"{what} {path}", can)
        if fault in (EIO, ENOSPC):
            raise _error(fault, path)
        return fault


class SimulatedKv(MemoryKv):
    """`Kv` over a store on the disk, as RocksDB keeps one: what was written last may be lost, never something before.

    After a write or a sync that failed it takes nothing more until it is opened anew.
    """

    def __init__(self, process: Process, store: StoreOnDisk, path: str, *, writable: bool) -> None:
        super().__init__(store.values)
        if writable:
            self._values = store.values
        self._seen = store.version
        self._process = process
        self._store = store
        self._path = path
        self._is_writable = writable
        self._failed: str | None = None
        self.is_open = True

    @property
    def writable(self) -> bool:
        return self._is_writable

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._check()
        return super().get_many(keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        return super().scan(start, stop)

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        fault = self._call(f"kv.write {_checksum([*deletes, *(part for pair in puts for part in pair)])}")
        super().write(puts, deletes)
        self._store.version += 1
        self._store.writes.append((list(puts), list(deletes)))
        self._process.after(fault)

    def sync(self) -> None:
        fault = self._call("kv.sync")
        self._store.sync()
        self._process.after(fault)

    def catch_up(self) -> None:
        self._check()
        if not self._is_writable and self._store.version != self._seen:
            if self._process.machine.disk.stores.get(self._path) is not self._store:
                raise Exception(f"IO error: no such file: {self._path}/MANIFEST")
            self._seen = self._store.version
            self._values = dict(self._store.values)
            self._keys = sorted(self._values)

    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._values.items())

    def close(self) -> None:
        self._check()
        self.is_open = False
        if self._is_writable:
            self._store.opened_by = None
            self._process.open_stores.remove(self._store)

    def _call(self, what: str) -> str | None:
        self._check()
        assert self._is_writable
        if self._failed is not None:
            raise _error(self._failed, self._path)
        fault = self._process.call(f"{what} {self._path}", CHANGES)
        if fault in CHANGES:
            self._failed = fault
            self._process.failed_stores.append(self._path)
            raise _error(fault, self._path)
        return fault

    def _check(self) -> None:
        self._process.check()
        if not self.is_open:
            raise RuntimeError(f"{self._path} is closed")


def open_primary(process: Process, path: str) -> SimulatedKv:
    """Open for writing, creating it. STORE_LOCKED when a living process has it, OVERLOADED, CORRUPT."""
    disk = process.machine.disk
    fault = process.call(f"kv.open {path}", CHANGES)
    if fault in CHANGES:
        raise fail("OVERLOADED" if fault == ENOSPC else "CORRUPT", f"{path}: {fault}")
    if path not in disk.stores:
        process.files.make_directory(path)
        disk.stores[path] = StoreOnDisk()
    store = disk.stores[path]
    if store.opened_by is not None:
        raise fail("STORE_LOCKED", f"{path} is open in {store.opened_by}", retry_after_ms=1_000)
    store.opened_by = process.name
    process.open_stores.append(store)
    process.after(fault)
    return SimulatedKv(process, store, path, writable=True)


def open_secondary(process: Process, path: str) -> SimulatedKv:
    """Open beside a primary, reading only. CORRUPT when there is none."""
    process.call(f"kv.open_secondary {path}", ())
    store = process.machine.disk.stores.get(path)
    if store is None:
        raise fail("CORRUPT", f"{path}: no CURRENT file")
    return SimulatedKv(process, store, path, writable=False)


class SimulatedKeyStore:
    """`KeyStore` over the machine's: what was put is durable, and a put that fails has done nothing."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def put(self, pages: Sequence[KeyPage]) -> None:
        await self._process.workers.run(lambda: self._put(pages))

    async def get(self, page: bytes) -> KeyPage | None:
        return await self._process.workers.run(lambda: self._do("get", READS, self._inner.get(page)))

    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        return await self._process.workers.run(lambda: self._do("outlines", READS, self._inner.outlines(partition)))

    async def repair(self, partition: int) -> int:
        return 0

    async def close(self) -> None:
        """Nothing is held."""

    @property
    def _inner(self) -> MemoryKeyStore:
        return self._process.machine.keys

    def _put(self, pages: Sequence[KeyPage]) -> None:
        self._do("put", CHANGES, self._inner.put(pages))

    def _do(self, what: str, can: Sequence[str], work: Any) -> Any:
        """Run a coroutine that waits for nothing."""
        try:
            fault = self._process.call(f"keys.{what}", can)
            if fault in CHANGES:
                code = "OVERLOADED" if fault == ENOSPC else "CORRUPT"
                raise fail(code, f"keys: {fault}", retry_after_ms=1_000)
            try:
                work.send(None)
            except StopIteration as done:
                self._process.after(fault)
                return done.value
            raise AssertionError("the key store in memory waited")
        finally:
            work.close()
