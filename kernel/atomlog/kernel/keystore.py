"""Key pages in a SQLite file of their own, and in memory for simulation.

Keys never go to RocksDB or to the canonical log: there a destroyed key could not be overwritten. The file has a
rollback journal and `secure_delete`, so that a page that was rewritten is gone from it when `put` returns.
"""

import threading
from collections.abc import Sequence
from typing import Any, Final

from atomlog.kernel import sqlite
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import KeyPage, KeyPageOutline, Workers

_FORMAT: Final = 1
_COLUMNS: Final = "page, version, maker_partition, maker_term, maker_owner, master_key_id, destroyed, wrapped"
_OUTLINE: Final = "page, version, maker_term, master_key_id, destroyed"
_COLUMN_SIZES: Final = (8, None, None, None, 16, 8, 32)  # of a page's columns but the last; None = an integer
_OUTLINE_SIZES: Final = (8, None, None, 8, 32)
_SCHEMA: Final = (
    """
    CREATE TABLE pages (
        made            INTEGER PRIMARY KEY AUTOINCREMENT,
        page            BLOB NOT NULL UNIQUE CHECK (length(page) = 8),
        version         INTEGER NOT NULL CHECK (version > 0),
        maker_partition INTEGER NOT NULL CHECK (maker_partition >= 0),
        maker_term      INTEGER NOT NULL CHECK (maker_term >= 0),
        maker_owner     BLOB NOT NULL CHECK (length(maker_owner) = 16),
        master_key_id   BLOB NOT NULL CHECK (length(master_key_id) = 8),
        destroyed       BLOB NOT NULL CHECK (length(destroyed) = 32),
        wrapped         BLOB NOT NULL
    )
    """,
    # Covers `outlines`: without it each of them would cost the disk page of a row of 8 KiB.
    f"CREATE INDEX outlines ON pages (maker_partition, made, {_OUTLINE})",
)


class SqliteKeyStore:
    """Implements `KeyStore`. An absent file is an empty store; the first `put` makes it, mode 0600."""

    def __init__(self, path: str, workers: Workers) -> None:
        self._path = path
        self._workers = workers
        self._lock = threading.Lock()
        self._opened: sqlite.Database | None = None
        self._closed = False

    async def put(self, pages: Sequence[KeyPage]) -> None:
        await self._workers.run(lambda: self._put(pages))

    async def get(self, page: bytes) -> KeyPage | None:
        return await self._workers.run(lambda: self._get(page))

    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        return await self._workers.run(lambda: self._outlines(partition))

    async def repair(self, partition: int) -> int:
        return 0

    async def close(self) -> None:
        await self._workers.run(self._close)

    def _put(self, pages: Sequence[KeyPage]) -> None:
        database = self._database(create=True)
        assert database is not None
        with database.transaction():
            self._make_tables(database)
            for page in pages:
                self._put_one(database, page)

    def _make_tables(self, database: sqlite.Database) -> None:
        if database.version() == 0:
            for statement in _SCHEMA:
                database.execute(statement)
            database.set_version(_FORMAT)

    def _put_one(self, database: sqlite.Database, page: KeyPage) -> None:
        old = self._read(database, page.page)
        if old is None:
            database.execute(f"INSERT INTO pages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _row(page))
            return
        check_successor(old, page, self._path)
        database.execute(
            "UPDATE pages SET version = ?, master_key_id = ?, destroyed = ?, wrapped = ? WHERE page = ?",
            (page.version, page.master_key_id, page.destroyed, page.wrapped, page.page),
        )

    def _get(self, page: bytes) -> KeyPage | None:
        database = self._database(create=False)
        return None if database is None or database.version() == 0 else self._read(database, page)

    def _read(self, database: sqlite.Database, page: bytes) -> KeyPage | None:
        rows = database.query(f"SELECT {_COLUMNS} FROM pages WHERE page = ?", (page,))
        return self._page(rows[0]) if rows else None

    def _outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        database = self._database(create=False)
        if database is None or database.version() == 0:
            return []
        rows = database.query(
            f"SELECT {_OUTLINE} FROM pages WHERE maker_partition = ? ORDER BY made",
            (partition,),
        )
        for row in rows:
            self._check(row, _OUTLINE_SIZES)
        return [
            KeyPageOutline(page=page, version=version, maker_term=term, master_key_id=master, destroyed=destroyed)
            for page, version, term, master, destroyed in rows
        ]

    def _check(self, row: sqlite.Row, sizes: Sequence[int | None]) -> None:
        """SQLite has no checksums and no types: a flipped bit may be read as another value or kind of value."""
        for value, size in zip(row, sizes, strict=True):
            sound = isinstance(value, int) if size is None else isinstance(value, bytes) and len(value) == size
            if not sound:
                shown = row[0].hex() if isinstance(row[0], bytes) else "?"
                raise fail("CORRUPT", f"{self._path}: key page {shown} is damaged; restore this file from a backup")

    def _page(self, row: sqlite.Row) -> KeyPage:
        self._check(row[:-1], _COLUMN_SIZES)
        page, version, partition, term, owner, master, destroyed, wrapped = row
        return KeyPage(
            page=page,
            version=version,
            maker_partition=partition,
            maker_term=term,
            maker_owner=owner,
            master_key_id=master,
            destroyed=destroyed,
            wrapped=wrapped if isinstance(wrapped, bytes) else b"",
        )

    def _database(self, *, create: bool) -> sqlite.Database | None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._path}: the key store is closed")
            if self._opened is None and (create or sqlite.exists(self._path)):
                self._opened = self._open()
            return self._opened

    def _open(self) -> sqlite.Database:
        database = sqlite.connect(self._path, journal="delete", secure_delete=True)
        version = database.version()
        if version > _FORMAT:
            database.close()
            raise fail(
                "STORE_TOO_NEW",
                f"{self._path}: key store format {version}, this program knows {_FORMAT}; use a newer version",
            )
        return database

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
                self._opened = None


class MemoryKeyStore:
    """Implements `KeyStore` without a disk, for simulation."""

    def __init__(self) -> None:
        self._pages: dict[bytes, KeyPage] = {}

    async def put(self, pages: Sequence[KeyPage]) -> None:
        staged: dict[bytes, KeyPage] = {}
        for page in pages:
            old = staged.get(page.page) or self._pages.get(page.page)
            if old is not None:
                check_successor(old, page, "key store")
            staged[page.page] = page
        self._pages.update(staged)

    async def get(self, page: bytes) -> KeyPage | None:
        return self._pages.get(page)

    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        return [
            KeyPageOutline(
                page=page.page,
                version=page.version,
                maker_term=page.maker_term,
                master_key_id=page.master_key_id,
                destroyed=page.destroyed,
            )
            for page in self._pages.values()
            if page.maker_partition == partition
        ]

    async def repair(self, partition: int) -> int:
        return 0

    async def close(self) -> None:
        pass


def check_successor(old: KeyPage, new: KeyPage, where: str) -> None:
    """CORRUPT unless `new` may replace `old`: a higher version that brings no destroyed key back."""
    problem = None
    if new.version <= old.version:
        problem = f"version {new.version} after {old.version}"
    elif int.from_bytes(old.destroyed, "big") & ~int.from_bytes(new.destroyed, "big"):
        problem = "it would bring destroyed keys back"
    elif (new.maker_partition, new.maker_term, new.maker_owner) != (
        old.maker_partition,
        old.maker_term,
        old.maker_owner,
    ):
        problem = "another maker"
    if problem is not None:
        raise fail("CORRUPT", f"{where}: key page {old.page.hex()} is not replaced: {problem}")


def _row(page: KeyPage) -> tuple[Any, ...]:
    return (
        page.page,
        page.version,
        page.maker_partition,
        page.maker_term,
        page.maker_owner,
        page.master_key_id,
        page.destroyed,
        page.wrapped,
    )
