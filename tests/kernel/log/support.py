"""Embedded logs in a directory of the test's, and a file system that fails when told to."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.log.embedded import EmbeddedLog, create_log
from atomlog.kernel.ports import File, Files
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock, SystemFile, SystemFiles, ThreadWorkers
from atomlog.schemas.record import Record

LOG_ID = bytes(range(100, 116))
MUCH = 1 << 30


def record(n: int, *, size: int = 40) -> Record:
    value = n.to_bytes(8, "big").ljust(size, b"v")
    return Record(
        rule=1, kind="Batch", term=3, owner=bytes(16), seq=n, schema=b"8 bytes!", chain=bytes(16), value=value
    )


def records(*numbers: int, size: int = 40) -> list[Record]:
    return [record(n, size=size) for n in numbers]


class LogDirectory:
    """A store's log and every handle that the test opens on it."""

    def __init__(
        self,
        path: Path,
        *,
        log_id: bytes = LOG_ID,
        partitions: int = 1,
        settings: Settings = Settings(follow_poll_ms=1),  # noqa: B008 -- a frozen value
        files: Files | None = None,
    ) -> None:
        self.path = path
        self.log_id = log_id
        self.partitions = partitions
        self.settings = settings
        self.files = files or SystemFiles()
        self.workers = ThreadWorkers()
        self.deaths: list[str] = []
        self._opened: list[EmbeddedLog] = []
        if not (path / "log").exists():
            create_log(self.files, str(path), log_id, partitions)

    def open(self, **changes: Any) -> EmbeddedLog:
        arguments: dict[str, Any] = {
            "files": self.files,
            "workers": self.workers,
            "clock": SystemClock(),
            "directory": str(self.path),
            "log_id": self.log_id,
            "partitions": self.partitions,
            "settings": self.settings,
            "on_fatal": self.deaths.append,
        }
        log = EmbeddedLog(**{**arguments, **changes})
        self._opened.append(log)
        return log

    async def owner(self, partition: int = 0, **changes: Any) -> EmbeddedLog:
        log = self.open(**changes)
        await log.acquire(partition)
        return log

    async def close(self) -> None:
        for log in self._opened:
            await log.close()
        self.workers.close()

    def copied_to(self, path: Path) -> "LogDirectory":
        shutil.copytree(self.path, path)
        return LogDirectory(
            path, log_id=self.log_id, partitions=self.partitions, settings=self.settings, files=self.files
        )

    def segments(self, partition: int = 0) -> list[Path]:
        return sorted((self.path / "log" / str(partition)).glob("*.seg"))

    def durable_end(self, partition: int = 0) -> Path:
        return self.path / "log" / str(partition) / "durable_end"

    def set_durable_end(self, end: int, partition: int = 0) -> None:
        self.durable_end(partition).write_bytes(end.to_bytes(8, "little"))


def run(directory: LogDirectory, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`body` on a fresh loop; every handle is closed afterwards."""

    async def whole() -> None:
        try:
            await body()
        finally:
            await directory.close()

    asyncio.run(whole())


async def values(log: EmbeddedLog, partition: int = 0, *, bytes_max: int = MUCH) -> list[int]:
    """The numbers of all records, in order; positions are checked on the way."""
    found: list[int] = []
    while part := await log.read(partition, len(found), bytes_max=bytes_max):
        for entry in part:
            assert entry.position == len(found)
            assert isinstance(entry.record, Record)
            found.append(int.from_bytes(entry.record.value[:8], "big"))
    return found


class Fault(NamedTuple):
    operation: str
    suffix: str
    error: OSError | None
    part_bytes: int


class FaultyFiles(SystemFiles):
    """Fails the next `operation` on a path that ends in `suffix`, as often as told.

    `part_bytes`: how much of an append arrives before it fails. `skip`: how many calls go well before that.
    Without `syncs` nothing is synced, for tests that open a log hundreds of times and pull no plug.
    """

    def __init__(self, *, syncs: bool = True) -> None:
        self.syncs = syncs
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str]] = []
        self.open_files: list[str] = []

    def fail(
        self, operation: str, suffix: str, error: int, *, times: int = 1, part_bytes: int = 0, skip: int = 0
    ) -> None:
        fault = Fault(operation, suffix, OSError(error, f"injected into {operation}"), part_bytes)
        self.faults += [fault._replace(error=None)] * skip + [fault] * times

    def check(self, operation: str, path: str, partly: Callable[[int], None] = lambda _: None) -> None:
        self.calls.append((operation, path))
        for fault in self.faults:
            if fault.operation == operation and path.endswith(fault.suffix):
                self.faults.remove(fault)
                if fault.error is None:
                    return
                partly(fault.part_bytes)
                raise fault.error

    def open(self, path: str, *, write: bool, create: bool = False) -> SystemFile:
        self.check("open for writing" if write else "open", path)
        return FaultyFile(super().open(path, write=write, create=create), path, self)  # type: ignore[return-value]

    def replace(self, source: str, target: str) -> None:
        self.check("replace", target)
        super().replace(source, target)

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.check("write_atomic", path)
        if self.syncs:
            super().write_atomic(path, data, mode=mode)
        else:
            Path(path).write_bytes(data)

    def sync_directory(self, path: str) -> None:
        self.check("sync_directory", path)
        if self.syncs:
            super().sync_directory(path)


class FaultyFile:
    def __init__(self, file: File, path: str, files: FaultyFiles) -> None:
        self._file, self._path, self._files = file, path, files
        files.open_files.append(path)

    def append(self, data: bytes) -> None:
        self._files.check("append", self._path, lambda size: self._file.append(data[:size]))
        self._file.append(data)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._file.read_at(offset, size)

    def write_at(self, offset: int, data: bytes) -> None:
        self._files.check("write_at", self._path)
        self._file.write_at(offset, data)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._files.check("truncate", self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._files.check("sync", self._path)
        if self._files.syncs:
            self._file.sync()

    def lock(self) -> bool:
        self._files.check("lock", self._path)
        return self._file.lock()

    def is_at(self, path: str) -> bool:
        return self._file.is_at(path)

    def close(self) -> None:
        self._file.close()
        self._files.open_files.remove(self._path)


def group_offsets(path: Path) -> Sequence[int]:
    """Where the groups of a whole segment start, and at last its size; counted from the layout, not by our reader."""
    raw = path.read_bytes()
    offsets = [56]
    while offsets[-1] < len(raw):
        offsets.append(offsets[-1] + 40 + int.from_bytes(raw[offsets[-1] + 4 : offsets[-1] + 8], "big"))
    return offsets


def flip(path: Path, offset: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)


@contextmanager
def corrupt_at(path: Path, offset: int | None) -> Iterator[None]:
    """CORRUPT must be raised, naming this file and this byte in its details and its message."""
    with pytest.raises(AtomlogError) as raised:
        yield
    error = raised.value
    assert error.code == "CORRUPT", error
    assert [(detail["path"], detail["offset"]) for detail in error.details] == [(str(path), offset)], error
    assert (str(path) if offset is None else f"{path}, byte {offset}:") in error.message


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    with pytest.raises(AtomlogError) as raised:
        yield
    assert raised.value.code == code, raised.value
    assert all(word in raised.value.message for word in words), raised.value.message
