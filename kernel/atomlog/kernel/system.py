"""The real clock, randomness, workers and files. The only module that may call them."""

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, TypeVar

from atomlog.kernel.errors import EXIT_FATAL
from atomlog.kernel.forking import forget, keep_from_children

T = TypeVar("T")


_process = os.getpid()


def _note_process() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_process)


def process_id() -> int:
    """Known without asking the system: it is looked at in every call of a store."""
    return _process


def end_process(message: str) -> NoReturn:
    """One line to stderr, then exit 70 at once: no handler runs and nothing more is written to any file."""
    os.write(2, f"atomlog: {message}\n".encode())
    os._exit(EXIT_FATAL)


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_AHEAD_BYTES: Final = 4_096
_SHORT_BYTES_MAX: Final = 16  # ids and nonces; keys are longer, and never lie about before they are used


class _Ahead(threading.local):
    """What one thread has drawn ahead: two threads never cut the same bytes."""

    block = b""
    at = 0


_ahead = _Ahead()


def _forget_ahead() -> None:
    """In a forked child, which has only the thread that forked: its parent will hand out the rest of the block."""
    _ahead.block = b""


os.register_at_fork(after_in_child=_forget_ahead)


class SystemRandomness:
    """The system's randomness. Short tokens are cut from a block: asking for each costs more than using it."""

    def token(self, size: int) -> bytes:
        if size > _SHORT_BYTES_MAX:
            return secrets.token_bytes(size)
        start, stop = _ahead.at, _ahead.at + size
        if stop > len(_ahead.block):
            _ahead.block, start, stop = secrets.token_bytes(_AHEAD_BYTES), 0, size
        _ahead.at = stop
        return _ahead.block[start:stop]


class ThreadWorkers:
    """A few threads for calls that wait for a disk."""

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="atomlog")

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class SystemFile:
    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self._locked_by: int | None = None

    def append(self, data: bytes) -> None:
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise self._named(error) from None

    def read_at(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        try:
            while size > 0 and (part := os.pread(self._descriptor, size, offset)):
                parts.append(part)
                offset += len(part)
                size -= len(part)
        except OSError as error:
            raise self._named(error) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write_at(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            raise self._named(error) from None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._named(error) from None

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """The system says which file only when it is opened."""
        return OSError(error.errno, error.strerror, self._path)

    def lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        self._locked_by = os.getpid()
        keep_from_children(self._descriptor)
        return True

    def is_at(self, path: str) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        if self._locked_by == os.getpid():
            forget(self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a child between fork and exec keeps it otherwise
        os.close(self._descriptor)


def _opened(path: str, flags: int, *, directory: bool = True) -> int:
    """A file, or a directory. What else may stand there, a pipe or a device, could let the process wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or (directory and stat.S_ISDIR(mode)):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "this is no regular file", path)


def _beyond_standard_streams(descriptor: int) -> int:
    """After a closed standard stream its number comes next: libraries would write their messages into the file."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


class SystemFiles:
    def open(self, path: str, *, write: bool, create: bool = False) -> SystemFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(_beyond_standard_streams(_opened(path, flags)), path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        while os.path.lexists(path):
            with contextlib.suppress(FileNotFoundError):  # somebody else removes it at the same time
                shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        with os.fdopen(_opened(path, os.O_RDONLY | os.O_CLOEXEC, directory=False), "rb") as file:
            return file.read()

    def mode(self, path: str) -> int:
        return stat.S_IMODE(os.stat(path).st_mode)

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
        self.sync_directory(os.path.dirname(path) or ".")

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free
