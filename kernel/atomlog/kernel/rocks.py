"""RocksDB behind the `Kv` port. The only module that imports rocksdict.

Raw mode only (the other one pickles). Recovery tolerates a torn tail of the write-ahead log and refuses a flipped
bit in it. Iterators of the binding end quietly on a corrupt block, so every scan ends with a look at the status.
"""

import errno
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.rocks_files import IDENTITY_KEY, Mark, check_database, damaged, identity_of, mark_of, tables_of

WRITE_BUFFER_BYTES: Final = 32 * 1024 * 1024
MEMTABLE_BLOOM_SHARE: Final = 0.02  # of the write buffer
_CHECK_TRIES: Final = 5
WAL_BYTES_MAX: Final = 128 * 1024 * 1024
_LACKING: Final = {
    "No space left": "free space on the disk",
    "quota exceeded": "free space within the quota",
    "Too many open files": "let the process have more open files (ulimit -n)",
    "Cannot allocate memory": "give the machine more memory",
}


class RocksKv:
    """One RocksDB. Close it before another process, or this one again, opens the directory as primary."""

    def __init__(
        self,
        database: Rdict,
        path: str,
        *,
        writable: bool,
        identity: bytes = b"",
        mark: Mark | None = None,
        open_again: Callable[[], Rdict] | None = None,
    ) -> None:
        """`identity` of a primary. `open_again` of a secondary; `mark` is MANIFEST's, from before it was opened."""
        self._database: Any = database
        self._path = path
        self._writable = writable
        self._identity = identity
        self._mark = mark
        self._open_again = open_again
        self._write_options = WriteOptions()
        self._scans: WeakSet[Generator[tuple[bytes, bytes], None, None]] = WeakSet()
        self._syncing = threading.Lock()  # closing waits for a sync in another thread: the binding would refuse

    @property
    def writable(self) -> bool:
        return self._writable

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._database.get(key)
        except DbClosedError:
            raise
        except Exception as error:  # the binding raises bare Exception for every RocksDB status
            raise self._corrupt(error) from None
        return value

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        if len(keys) < 2:  # the binding takes a list apart more slowly than one key
            return [self.get(key) for key in keys]
        try:
            values: Any = self._database.get(list(keys))
        except DbClosedError:
            raise
        except Exception as error:
            raise self._corrupt(error) from None
        return list(values)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._tracked(self._scan(start, stop))

    def scan_back(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._tracked(self._scan_back(start, stop))

    def _tracked(self, scan: Generator[tuple[bytes, bytes], None, None]) -> Iterator[tuple[bytes, bytes]]:
        self._scans.add(scan)
        return scan

    def _scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        cursor = self._database.iter(options)
        cursor.seek(start)
        while cursor.valid() and (key := cursor.key()) < stop:
            yield key, cursor.value()
            cursor.next()
        end = self._end_of(cursor)
        del cursor  # the error may be kept for long, and with it this frame: it would hold the database open
        if end is not None:
            raise end

    def _scan_back(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        cursor = self._database.iter(ReadOptions())
        cursor.seek_for_prev(stop)
        if cursor.valid() and cursor.key() == stop:
            cursor.prev()
        while cursor.valid() and (key := cursor.key()) >= start:
            yield key, cursor.value()
            cursor.prev()
        end = self._end_of(cursor)
        del cursor
        if end is not None:
            raise end

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        batch = WriteBatch(raw_mode=True)
        # First: a log that is put beside another database's tables is told by it.
        batch.put(IDENTITY_KEY, self._identity)
        for key in deletes:
            batch.delete(key)
        put = batch.put
        for key, value in puts:
            put(key, value)
        try:
            self._database.write(batch, self._write_options)
        except DbClosedError:
            raise
        except Exception as error:
            raise self._unwritable(error) from None

    def sync(self) -> None:
        """Everything written is durable on return; releases the interpreter lock while it waits."""
        with self._syncing:
            try:
                self._database.flush_wal(sync=True)
            except DbClosedError:
                raise
            except Exception as error:
                raise self._unwritable(error) from None

    def catch_up(self) -> None:
        """See what the primary has written; nothing for a primary.

        RocksDB goes on to answer point reads from what it had read of the primary's log, also after that moved to a
        table and the table has newer values. So a secondary is opened anew when its primary's MANIFEST has changed.
        """
        if self._open_again is None:
            return
        mark = mark_of(self._path)
        if mark != self._mark:
            self._database = self._open_again()  # scans that are under way keep the one before open
            self._mark = mark
            return
        try:
            self._database.try_catch_up_with_primary()
        except DbClosedError:
            raise
        except Exception as error:
            raise self._corrupt(error) from None

    def size_bytes(self) -> int:
        """Bytes of live table files plus memory tables, as RocksDB estimates them."""
        return sum(
            self._database.property_int_value(name) or 0
            for name in ("rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        )

    def close(self) -> None:
        """Release the directory; scans that were not read to their end are ended first, they would keep its lock."""
        for scan in list(self._scans):
            scan.close()
        with self._syncing:
            try:
                self._database.close()
            except Exception as error:
                # One whose last flush failed keeps its files, and its lock, until it is gone.
                self._database = _Closed()
                raise self._unwritable(error) from None

    def _end_of(self, cursor: RdictIter) -> Exception | None:
        """None for an end that is one; a corrupt block ends an iterator quietly, too."""
        try:
            cursor.status()
        except Exception as error:
            return self._corrupt(error)
        return None

    def _corrupt(self, error: Exception) -> Exception:
        text = str(error)
        return _of_the_machine(self._path, text) or fail("CORRUPT", f"{self._path}: {text}")

    def _unwritable(self, error: Exception) -> Exception:
        """Nothing of a write is there: the disk is at fault (OSError), or what stands on it."""
        text = str(error)
        if "Corruption" in text:
            return self._corrupt(error)
        full = "No space left" in text or "quota exceeded" in text
        return OSError(errno.ENOSPC if full else errno.EIO, text, self._path)


class _Closed:
    """In the place of a database that could not be closed well."""

    def __getattr__(self, name: str) -> Any:
        raise DbClosedError("the database is closed")


def open_primary(path: str, *, block_cache_bytes: int, write_buffer_bytes: int = WRITE_BUFFER_BYTES) -> RocksKv:
    """Open for writing, creating the directory. STORE_LOCKED when another has it, CORRUPT when unreadable."""
    check_database(path)
    options = _options(block_cache_bytes, write_buffer_bytes)
    database = _rdict(path, AccessType.read_write(), options)
    return RocksKv(database, path, writable=True, identity=identity_of(path))


def open_secondary(path: str, scratch: str, *, block_cache_bytes: int) -> RocksKv:
    """Open beside a primary, reading only; `scratch` is a directory of this process alone."""
    options = _options(block_cache_bytes)
    options.set_max_open_files(-1)  # files that the primary deletes stay readable through open descriptors
    os.makedirs(scratch, exist_ok=True)

    def open_once() -> Rdict:
        return _opened_with_all_tables(path, AccessType.secondary(scratch), options)

    mark = mark_of(path)
    return RocksKv(open_once(), path, writable=False, mark=mark, open_again=open_once)


def _opened_with_all_tables(path: str, access: AccessType, options: Options) -> Rdict:
    """CORRUPT when a table cannot be opened: a secondary then has the state before it, and what logs say since."""
    lost: set[int] = set()
    for _ in range(_CHECK_TRIES):  # its primary may be just replacing tables
        check_database(path)
        wanted = tables_of(path)
        database = _rdict(path, access, options)
        lost = set(wanted) - {int(file["name"].strip("/").split(".")[0]) for file in database.live_files()}
        if not lost:
            return database
        database.close()
    raise damaged(f"{path}/{min(lost):06d}.sst", "the table is missing or cannot be opened")


def _rdict(path: str, access: AccessType, options: Options) -> Rdict:
    try:
        return Rdict(path, options, access_type=access)
    except Exception as error:  # the binding raises bare Exception for every RocksDB status
        text = str(error)
        if "/LOCK: " in text and "IO error" in text:
            raise fail("STORE_LOCKED", f"{path}: {text}", retry_after_ms=1_000) from None
        if (machine := _of_the_machine(path, text)) is not None:
            raise machine from None
        raise fail("CORRUPT", f"{path}: {text}; remove this directory to have it rebuilt from the log") from None


def _of_the_machine(path: str, text: str) -> AtomlogError | None:
    """What the machine lacks, as opposed to what stands in the files: nothing is damaged, and nothing to remove."""
    if "Corruption" in text:
        return None
    if "Permission denied" in text or "Read-only file system" in text:
        return fail("STORE_READ_ONLY", f"{path}: {text}")
    lacking = next((way_out for word, way_out in _LACKING.items() if word in text), None)
    return None if lacking is None else fail("OVERLOADED", f"{path}: {text}; {lacking}", retry_after_ms=1_000)


def _options(block_cache_bytes: int, write_buffer_bytes: int = WRITE_BUFFER_BYTES) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_memtable_whole_key_filtering(True)  # with the next: half the cost of asking for a key that is new
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_SHARE)
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_is_fd_close_on_exec(True)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(block_cache_bytes))
    table.set_bloom_filter(10, False)
    # Filters and indexes stay beside the cache, about 2 bytes a row. Inside, the filter of a large table of small rows
    # (1 to 2 MiB) fits into no shard of the cache, so that each read loads it: writes took four times as long.
    table.set_cache_index_and_filter_blocks(False)
    options.set_block_based_table_factory(table)
    return options
