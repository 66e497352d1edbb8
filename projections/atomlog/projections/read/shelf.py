"""Where receipts and cursors are kept: `reads.sqlite`, which every process of a store writes beside the others.

No text of a page is in it. Every row has its own digest, since a flipped bit in SQLite's file is not noticed by it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.sqlite import Database, connect

FORMAT: Final = 1
MEMORY_ROWS_MAX: Final = 10_000
SYNCED: Final = "synced"

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS receipts (id BLOB PRIMARY KEY, body BLOB, search BLOB, digest BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS kept (id BLOB PRIMARY KEY, expires_at INTEGER, body BLOB, digest BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS secrets (id INTEGER PRIMARY KEY, secret BLOB)",
    "CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, number INTEGER)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReceipt:
    """`search` is what the receipt's read asked for, with vectors in place of texts."""

    id: bytes
    body: bytes
    search: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a continuation needs, until it expires."""

    id: bytes
    expires_at_us: int
    body: bytes


class Shelf(Protocol):
    """Blocking. Rows once put never change."""

    def put(self, receipts: Sequence[KeptReceipt], kept: Sequence[Kept] = (), *, sync: bool = False) -> None:
        """All of it at once; with `sync`, this and everything put before is on disk on return."""
        ...

    def receipt(self, receipt_id: bytes) -> KeptReceipt | None:
        """CORRUPT when what is kept is not what was put."""
        ...

    def receipts(self, after: bytes, limit: int) -> Sequence[KeptReceipt]:
        """Up to so many receipts with higher ids, in the order of ids; CORRUPT as `receipt`."""
        ...

    def kept(self, kept_id: bytes) -> Kept | None: ...
    def secrets(self, draw: Callable[[], bytes]) -> Mapping[int, bytes]:
        """The keys of the store's continuations by number; the first one is drawn when there is none."""
        ...

    def prune(self, receipts_below: bytes, expired_before_us: int) -> None:
        """Forget receipts whose id is lower, and what expired."""
        ...

    def close(self) -> None: ...


class SqliteShelf:
    """Raises STORE_TOO_NEW for a file of a newer program, CORRUPT for one that is damaged.

    `read_only`: STORE_NOT_FOUND when there is none; `put` and `prune` may not be called.
    """

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        try:
            self._database: Database = connect(path, journal="wal", read_only=read_only)
            self._make_tables()
        except AtomlogError as error:
            if error.code != "CORRUPT":
                raise
            message = f"{error.message}, or move it away: only receipts and continuations are lost with it"
            raise fail("CORRUPT", message) from error

    def put(self, receipts: Sequence[KeptReceipt], kept: Sequence[Kept] = (), *, sync: bool = False) -> None:
        # A commit under FULL syncs the write-ahead log, and with it every commit before: the mark makes it happen.
        if sync:
            self._database.execute("PRAGMA synchronous = FULL")
        try:
            with self._database.transaction():
                self._database.execute_many(
                    "INSERT OR REPLACE INTO receipts VALUES (?, ?, ?, ?)",
                    [(row.id, row.body, row.search, _digest(row.id, row.body, row.search)) for row in receipts],
                )
                self._database.execute_many(
                    "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)",
                    [(row.id, row.expires_at_us, row.body, _digest(row.id, row.body)) for row in kept],
                )
                if sync:
                    self._database.execute("UPDATE marks SET number = number + 1 WHERE name = ?", (SYNCED,))
        finally:
            if sync:
                self._database.execute("PRAGMA synchronous = NORMAL")

    def take(self, receipts: Sequence[KeptReceipt], topic: str, position: int) -> None:
        """Receipts that stood on a topic before `position`, all at once. One that is here already stays as it is."""
        with self._database.transaction():
            self._database.execute_many(
                "INSERT OR IGNORE INTO receipts VALUES (?, ?, ?, ?)",
                [(row.id, row.body, row.search, _digest(row.id, row.body, row.search)) for row in receipts],
            )
            self._database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (topic, position))

    def taken(self, topic: str) -> int:
        """The position that `take` was last given for a topic; 0 when it never was."""
        found = self._database.query("SELECT number FROM marks WHERE name = ?", (topic,))
        return next((number for (number,) in found if isinstance(number, int)), 0)

    def receipt(self, receipt_id: bytes) -> KeptReceipt | None:
        found = self._database.query("SELECT body, search, digest FROM receipts WHERE id = ?", (receipt_id,))
        for body, search, digest in found:
            self._check(digest, receipt_id, body, search)
            return KeptReceipt(id=receipt_id, body=body, search=search)
        return None

    def receipts(self, after: bytes, limit: int) -> Sequence[KeptReceipt]:
        found = self._database.query(
            "SELECT id, body, search, digest FROM receipts WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        for row_id, body, search, digest in found:
            self._check(digest, row_id, body, search)
        return [KeptReceipt(id=row_id, body=body, search=search) for row_id, body, search, _ in found]

    def kept(self, kept_id: bytes) -> Kept | None:
        found = self._database.query("SELECT expires_at, body, digest FROM kept WHERE id = ?", (kept_id,))
        for expires_at_us, body, digest in found:
            self._check(digest, kept_id, body)
            return Kept(id=kept_id, expires_at_us=expires_at_us, body=body)
        return None

    def secrets(self, draw: Callable[[], bytes]) -> Mapping[int, bytes]:
        if not self._read_only:
            with self._database.transaction():
                self._database.execute("INSERT OR IGNORE INTO secrets VALUES (1, ?)", (draw(),))
        found: dict[Any, Any] = dict(self._database.query("SELECT id, secret FROM secrets"))
        if not all(0 <= number < 256 and isinstance(secret, bytes) and secret for number, secret in found.items()):
            raise fail("CORRUPT", f"{self._path}: the keys of continuations are damaged; restore a backup")
        return found

    def prune(self, receipts_below: bytes, expired_before_us: int) -> None:
        with self._database.transaction():
            self._database.execute("DELETE FROM receipts WHERE id < ?", (receipts_below,))
            self._database.execute("DELETE FROM kept WHERE expires_at < ?", (expired_before_us,))

    def close(self) -> None:
        self._database.close()

    def _make_tables(self) -> None:
        version = self._database.version()
        if version > FORMAT:
            message = f"{self._path} is in format {version}, this program reads up to {FORMAT}"
            raise fail("STORE_TOO_NEW", f"{message}; use a newer version of the program")
        if self._read_only:
            if version < FORMAT:
                raise fail("STORE_NOT_FOUND", f"{self._path}: nothing was written to it yet")
            return
        with self._database.transaction():
            for statement in _TABLES:
                self._database.execute(statement)
            self._database.execute("INSERT OR IGNORE INTO marks VALUES (?, 0)", (SYNCED,))
            self._database.set_version(FORMAT)

    def _check(self, digest: object, row_id: bytes, *parts: object) -> None:
        whole = all(isinstance(part, bytes) for part in parts)
        if not whole or digest != _digest(row_id, *(part for part in parts if isinstance(part, bytes))):
            raise fail("CORRUPT", f"{self._path}: the row {row_id.hex()} is not what was written; restore a backup")


class MemoryShelf:
    """The newest rows, as long as the process lives."""

    def __init__(self) -> None:
        self._receipts: OrderedDict[bytes, KeptReceipt] = OrderedDict()
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self._secrets: dict[int, bytes] = {}

    def put(self, receipts: Sequence[KeptReceipt], kept: Sequence[Kept] = (), *, sync: bool = False) -> None:
        self._receipts.update((row.id, row) for row in receipts)
        self._kept.update((row.id, row) for row in kept)
        while len(self._receipts) > MEMORY_ROWS_MAX:
            self._receipts.popitem(last=False)
        while len(self._kept) > MEMORY_ROWS_MAX:
            self._kept.popitem(last=False)

    def receipt(self, receipt_id: bytes) -> KeptReceipt | None:
        return self._receipts.get(receipt_id)

    def receipts(self, after: bytes, limit: int) -> Sequence[KeptReceipt]:
        return [self._receipts[row_id] for row_id in sorted(self._receipts) if row_id > after][:limit]

    def kept(self, kept_id: bytes) -> Kept | None:
        return self._kept.get(kept_id)

    def secrets(self, draw: Callable[[], bytes]) -> Mapping[int, bytes]:
        if not self._secrets:
            self._secrets[1] = draw()
        return dict(self._secrets)

    def prune(self, receipts_below: bytes, expired_before_us: int) -> None:
        for receipt_id in [receipt_id for receipt_id in self._receipts if receipt_id < receipts_below]:
            del self._receipts[receipt_id]
        for kept_id in [row.id for row in self._kept.values() if row.expires_at_us < expired_before_us]:
            del self._kept[kept_id]

    def close(self) -> None:
        """Nothing to release."""


class ReadOnlyShelf:
    """For a store that this process does not write: what others kept is read, what is put lives with the process."""

    def __init__(self, path: str) -> None:
        self._own = MemoryShelf()
        self._others: SqliteShelf | None = None
        self._refusal: AtomlogError | None = None
        try:
            self._others = SqliteShelf(path, read_only=True)
        except AtomlogError as error:
            if error.code == "STORE_READ_ONLY":  # a write-ahead log that nobody may recover here
                self._refusal = error
            elif error.code != "STORE_NOT_FOUND":
                raise

    def put(self, receipts: Sequence[KeptReceipt], kept: Sequence[Kept] = (), *, sync: bool = False) -> None:
        self._own.put(receipts, kept)

    def receipt(self, receipt_id: bytes) -> KeptReceipt | None:
        """Raises STORE_READ_ONLY when it may be among what cannot be read here."""
        found = self._own.receipt(receipt_id)
        if found is None and self._refusal is not None:
            raise self._refusal
        return found or (self._others.receipt(receipt_id) if self._others else None)

    def receipts(self, after: bytes, limit: int) -> Sequence[KeptReceipt]:
        """Raises STORE_READ_ONLY when those of others cannot be read here."""
        if self._refusal is not None:
            raise self._refusal
        others = self._others.receipts(after, limit) if self._others else ()
        found = {row.id: row for row in (*others, *self._own.receipts(after, limit))}
        return [found[row_id] for row_id in sorted(found)][:limit]

    def kept(self, kept_id: bytes) -> Kept | None:
        return self._own.kept(kept_id) or (self._others.kept(kept_id) if self._others else None)

    def secrets(self, draw: Callable[[], bytes]) -> Mapping[int, bytes]:
        known = self._others.secrets(draw) if self._others else {}
        return known or self._own.secrets(draw)

    def prune(self, receipts_below: bytes, expired_before_us: int) -> None:
        self._own.prune(receipts_below, expired_before_us)

    def close(self) -> None:
        if self._others is not None:
            self._others.close()


def _digest(*parts: bytes) -> bytes:
    """SHA-256 over the parts, each with its length before it."""
    sized = [piece for part in parts for piece in (len(part).to_bytes(8, "big"), part)]
    return hashlib.sha256(b"".join(sized)).digest()
