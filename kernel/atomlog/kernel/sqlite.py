"""SQLite behind a few typed helpers. The only module that imports sqlite3.

Two uses: the key store (rollback journal, `secure_delete`: with a write-ahead log and an open reader the old page
would stay in the file) and the receipts (write-ahead log: many processes write beside readers).
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal
from urllib.parse import quote

from atomlog.kernel.errors import fail

Journal = Literal["delete", "wal"]
Row = tuple[Any, ...]

BUSY_TIMEOUT_S: Final = 5.0  # how long a statement waits for another process's transaction
_RETRY_MS: Final = 100
_MODE: Final = 0o600  # journals get the mode of the database file

# With a rollback journal a commit is the unlinking of the journal: EXTRA syncs the directory after it. With a
# write-ahead log NORMAL keeps every commit through the death of a process; a power cut may undo the last ones.
_SYNCHRONOUS: Final = {"delete": "EXTRA", "wal": "NORMAL"}


class Database:
    """One connection, usable from any thread, one statement or transaction at a time."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._lock = threading.RLock()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Every row of a SELECT or PRAGMA."""
        with self._lock, _mapped(self._path):
            return self._connection.execute(sql, parameters).fetchall()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement changed (−1 where that has no meaning)."""
        with self._lock, _mapped(self._path):
            return self._connection.execute(sql, parameters).rowcount

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._lock, _mapped(self._path):
            self._connection.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A write transaction: all of it is there on leaving, or nothing when an exception leaves it."""
        with self._lock:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.rollback()
                raise

    def version(self) -> int:
        """`user_version`: 0 in a new file."""
        return int(self.query("PRAGMA user_version")[0][0])

    def set_version(self, version: int) -> None:
        self.execute(f"PRAGMA user_version = {version:d}")

    def close(self) -> None:
        with self._lock, _mapped(self._path):
            self._connection.close()


def connect(path: str, *, journal: Journal, secure_delete: bool = False, read_only: bool = False) -> Database:
    """Open a database file; unless `read_only`, an absent one is made, readable by its owner alone.

    Raises:
        STORE_NOT_FOUND: `read_only`, and the file is absent.
        STORE_LOCKED, STORE_READ_ONLY, OVERLOADED (no space), CORRUPT: here or at any later call, naming the file.
        OSError: the disk failed.
    """
    if not read_only:
        _create(path)
    elif not os.path.exists(path):
        raise fail("STORE_NOT_FOUND", f"{path}: there is no such file")
    mode = "ro" if read_only else "rw"
    with _mapped(path):
        connection = sqlite3.connect(
            f"file:{quote(os.path.abspath(path))}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
    database = Database(connection, path)
    try:
        _configure(database, path, journal, secure_delete=secure_delete, read_only=read_only)
    except BaseException:
        connection.close()
        raise
    return database


def exists(path: str) -> bool:
    return os.path.exists(path)


def _create(path: str) -> None:
    """Make the file before SQLite does, for its mode. Never open one that is there: closing it drops SQLite's locks."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    except FileExistsError:
        return
    except FileNotFoundError:
        raise fail("STORE_NOT_FOUND", f"{path}: its directory is absent") from None
    except OSError as error:
        raise of_os_error(error, path) from error


def _configure(database: Database, path: str, journal: Journal, *, secure_delete: bool, read_only: bool) -> None:
    if secure_delete and database.query("PRAGMA secure_delete = ON") != [(1,)]:
        raise fail("CORRUPT", f"{path}: this SQLite cannot overwrite what is deleted; use one with secure_delete")
    if not read_only:
        [(mode,)] = database.query(f"PRAGMA journal_mode = {journal}")
        if mode != journal:
            raise fail("STORE_READ_ONLY", f"{path}: journal mode is {mode} and could not be made {journal}")
        database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[journal]}")
    database.query("SELECT count(*) FROM sqlite_schema")  # reads the header: a file that is none is told here


@contextmanager
def _mapped(path: str) -> Iterator[None]:
    """Raise SQLite's errors as ours, naming the file."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes damaged names in its messages
        raise _of(sqlite3.SQLITE_CORRUPT, "text that is no UTF-8", path) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None and "decode to UTF-8" in str(error):
            code = sqlite3.SQLITE_CORRUPT
        if code is None:  # misuse of the module: a mistake of ours
            raise
        raise _of(code, str(error), path) from error


def _of(code: int, message: str, path: str) -> Exception:
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        text = f"{path}: another process holds it ({message}); try again"
        return fail("STORE_LOCKED", text, retry_after_ms=_RETRY_MS)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return fail("CORRUPT", f"{path}: {message}; restore this file from a backup")
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return fail("CORRUPT", f"{path}: it was removed or exchanged while it was open; start this process again")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return fail("STORE_READ_ONLY", f"{path}: {message}; make the file and its directory writable")
    if primary == sqlite3.SQLITE_FULL:
        return fail("OVERLOADED", f"{path}: no space left; free some", retry_after_ms=_RETRY_MS)
    if primary == sqlite3.SQLITE_IOERR:
        return OSError(errno.EIO, f"{message} (SQLite {code})", path)
    return fail("CORRUPT", f"{path}: {message} (SQLite {code})")


def of_os_error(error: OSError, path: str) -> Exception:
    """The error of a file that could not be written: no rights, no space, or the disk's own."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return fail("STORE_READ_ONLY", f"{path}: {error.strerror}; make the file and its directory writable")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return fail("OVERLOADED", f"{path}: no space left; free some", retry_after_ms=_RETRY_MS)
    return error
