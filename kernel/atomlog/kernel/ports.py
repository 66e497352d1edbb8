"""What the store needs of the world, as interfaces. `system` has the real ones; simulation brings its own.

Nothing above these ports reads a clock, draws randomness, or opens a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from atomlog.schemas.record import Malformed, Record
from atomlog.schemas.revision import Inputs

T = TypeVar("T")

ACK: Final = "ack"  # of a write, from being taken in to its acknowledgement
READ_BACK: Final = "read_back"  # of a group, from being appended to having been read back whole


class Clock(Protocol):
    """`now_us`: microseconds since 1970 UTC, may step. `monotonic_us`: never steps back, no fixed zero."""

    def now_us(self) -> int: ...
    def monotonic_us(self) -> int: ...
    async def sleep(self, seconds: float) -> None: ...


class Randomness(Protocol):
    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        ...


class Workers(Protocol):
    """Where blocking calls run, so that the event loop does not wait for a disk."""

    async def run(self, call: Callable[[], T]) -> T: ...


class File(Protocol):
    """One open file. Any OSError of `sync` means that the process must end: the page cache is unknown."""

    def append(self, data: bytes) -> None:
        """All of `data` at the end, or OSError; a part may then be there."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Data and size are durable on return."""
        ...

    def lock(self) -> bool:
        """Take the exclusive lock of this file without waiting; False when another open file has it."""
        ...

    def is_at(self, path: str) -> bool:
        """Whether the path leads to this very file: not after it was removed, renamed or replaced."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A directory tree. Paths are text; `replace` and `create` are durable after `sync_directory`."""

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        """FileNotFoundError when absent and not `create`; PermissionError when not writable."""
        ...

    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; empty when it is absent."""
        ...

    def make_directory(self, path: str) -> None:
        """With parents; nothing happens when it is there."""
        ...

    def replace(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None:
        """Also what somebody else removes at the same time; nothing is done about what is not there."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def read(self, path: str) -> bytes: ...
    def mode(self, path: str) -> int:
        """The permission bits, e.g. 0o600."""
        ...

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """A temporary file beside `path`, fsynced and renamed over it, directory fsynced."""
        ...

    def free_bytes(self, path: str) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A record as it stands in a partition, effective or not."""

    position: int
    record: Record | Malformed


class Meters(Protocol):
    """Told how long something took: `ACK` or `READ_BACK`, in seconds."""

    def observe(self, name: str, seconds: float) -> None: ...


class Log(Protocol):
    """An append-only log of partitions. Positions count from 0 and never repeat.

    The embedded log, the in-memory log and Kafka pass one contract suite (`tests/contracts`).
    """

    log_id: bytes
    partitions: int

    @property
    def exclusive(self) -> bool:
        """True when nobody else can append while this process may: refusals then need no fence."""
        ...

    async def acquire(self, partition: int) -> None:
        """Become able to append. Raises NOT_OWNER naming the holder, STORE_LOCKED, STORE_READ_ONLY."""
        ...

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """Append `records` as one group, in order, durable on return.

        One call at a time per partition. **Any** exception or cancellation means that the outcome is unknown:
        all, none, or on some logs a prefix may be there, now or later.
        """
        ...

    async def end(self, partition: int) -> int:
        """The position after the last durable record."""
        ...

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        """Durable records from `position` on, in order, without gaps; at least one when there is one.

        Raises LOG_DIVERGED when `position` is after the end, CORRUPT naming file and offset.
        """
        ...

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        """Until a durable record stands at `position`, or the timeout; says which."""
        ...

    async def renew(self, partition: int) -> None:
        """Forget the producer after an unknown outcome; what it still has in flight may yet arrive."""
        ...

    async def close(self) -> None: ...


class Kv(Protocol):
    """A sorted key-value store. Keys and values are bytes, keys sort bytewise."""

    @property
    def writable(self) -> bool: ...
    def get(self, key: bytes) -> bytes | None: ...
    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start ≤ key < stop, ascending. Raises CORRUPT instead of ending early."""
        ...

    def scan_back(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start ≤ key < stop, descending."""
        ...

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """One atomic batch; deletes are applied before puts. Durable after the next `sync`."""
        ...

    def sync(self) -> None: ...
    def catch_up(self) -> None:
        """A secondary takes over what its primary has written; a primary does nothing."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """256 content keys, wrapped. `destroyed` is a 256-bit map, bit i of byte i // 8 = key i."""

    page: bytes
    version: int
    maker_partition: int
    maker_term: int
    maker_owner: bytes
    master_key_id: bytes
    destroyed: bytes
    wrapped: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPageOutline:
    """What a key page says beside its keys."""

    page: bytes
    version: int
    maker_term: int
    master_key_id: bytes
    destroyed: bytes


class KeyStore(Protocol):
    """Durable key pages. Pages are durable when `put` returns."""

    async def put(self, pages: Sequence[KeyPage]) -> None:
        """Insert or replace, all or none.

        A version that is not higher, a `destroyed` that shrinks or another maker is refused (CORRUPT).
        """
        ...

    async def get(self, page: bytes) -> KeyPage | None: ...
    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        """Every page made for a partition, in the order they were first put."""
        ...

    async def repair(self, partition: int) -> int:
        """Write some pages of a partition again that stand in what nodes share in a form that none may take.

        Only its owner does this, from time to time; how many there were. 0 where nothing is shared.
        """
        ...

    async def close(self) -> None: ...


class BlobStore(Protocol):
    """Immutable byte strings by the SHA-256 (32 bytes) of what is stored; durable when `put` returns."""

    async def put(self, data: bytes) -> bytes: ...
    async def get(self, address: bytes) -> bytes:
        """Verified against its address: NOT_FOUND when absent, CORRUPT naming the file when changed."""
        ...


class Receipts(Protocol):
    """Receipts of reads, as the kernel needs them. RECEIPT_EXPIRED when one is not kept any more."""

    async def flush(self) -> None:
        """Every receipt given out so far is durable on return."""
        ...

    async def inputs(self, receipts: Sequence[bytes], path: str) -> Inputs:
        """What the reads behind these receipts saw, merged; `path` names the part of the request in errors."""
        ...

    async def row(self, receipt: bytes, handle: str) -> tuple[bytes, bytes]:
        """(atom, revision) of the row `handle`; NOT_FOUND when the receipt has no such row."""
        ...
