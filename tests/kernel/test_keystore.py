"""Key pages on disk: one contract for both stores, and what the file itself must and must not hold."""

import asyncio
import hashlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel import sealing, sqlite
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.keystore import MemoryKeyStore, SqliteKeyStore
from atomlog.kernel.ports import KeyPage, KeyStore
from atomlog.kernel.system import ThreadWorkers
from tests.support.sealed import MASTER, OWNER, InlineWorkers, bitmap

KEYS = hashlib.shake_256(b"keystore").digest(8_192)


def page_of(name: bytes = b"pageAAAA", *, version: int = 1, destroyed: bytes = bytes(32), **changes: Any) -> KeyPage:
    page = KeyPage(
        page=name,
        version=version,
        maker_partition=0,
        maker_term=1,
        maker_owner=OWNER,
        master_key_id=bytes(8),
        destroyed=destroyed,
        wrapped=b"",
    )
    nonce = hashlib.sha256(name + bytes((version,))).digest()[:12]
    return replace(sealing.wrap_page(MASTER, nonce, page, KEYS), **changes)


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    if request.param == "memory":
        return MemoryKeyStore()
    return opened(str(tmp_path / "keys.sqlite"))


_OPENED: list[SqliteKeyStore] = []


@pytest.fixture(autouse=True)
def _closed_afterwards() -> Iterator[None]:
    yield
    while _OPENED:
        asyncio.run(_OPENED.pop().close())


def opened(path: str) -> SqliteKeyStore:
    """A store as a process of its own would open it; closed after the test."""
    _OPENED.append(SqliteKeyStore(path, InlineWorkers()))
    return _OPENED[-1]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "keys.sqlite")


def put(store: KeyStore, *pages: KeyPage) -> None:
    asyncio.run(store.put(pages))


def get(store: KeyStore, name: bytes = b"pageAAAA") -> KeyPage | None:
    return asyncio.run(store.get(name))


def refused(store: KeyStore, *pages: KeyPage) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        put(store, *pages)
    return caught.value


def test_an_empty_store_has_no_pages(store: KeyStore) -> None:
    assert get(store) is None
    assert asyncio.run(store.outlines(0)) == []


def test_a_page_is_read_as_it_was_put(store: KeyStore) -> None:
    page = page_of(destroyed=bitmap(0, 255), maker_term=2**40)
    put(store, page)
    assert get(store) == page


def test_a_higher_version_replaces(store: KeyStore) -> None:
    put(store, page_of())
    newer = page_of(version=2, destroyed=bitmap(3))
    put(store, newer)
    assert get(store) == newer


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_version_that_is_not_higher_is_refused(store: KeyStore, version: int) -> None:
    put(store, page_of(version=3))
    error = refused(store, page_of(version=version, destroyed=bitmap(1)))
    assert error.code == "CORRUPT"
    assert b"pageAAAA".hex() in error.message
    assert get(store) == page_of(version=3)


def test_destroyed_keys_cannot_come_back(store: KeyStore) -> None:
    put(store, page_of(destroyed=bitmap(1, 2)))
    assert refused(store, page_of(version=2, destroyed=bitmap(1, 3))).code == "CORRUPT"
    assert get(store) == page_of(destroyed=bitmap(1, 2))


@pytest.mark.parametrize("change", [{"maker_partition": 1}, {"maker_term": 2}, {"maker_owner": b"x" * 16}])
def test_the_maker_of_a_page_never_changes(store: KeyStore, change: dict[str, Any]) -> None:
    put(store, page_of())
    assert refused(store, page_of(version=2, **change)).code == "CORRUPT"


def test_several_pages_are_put_all_or_none(store: KeyStore) -> None:
    put(store, page_of(version=2))
    refused(store, page_of(b"pageBBBB"), page_of(version=2))
    assert get(store, b"pageBBBB") is None
    put(store, page_of(b"pageBBBB"), page_of(version=3))
    assert get(store, b"pageBBBB") == page_of(b"pageBBBB")


def test_the_same_page_twice_in_one_put_is_refused(store: KeyStore) -> None:
    refused(store, page_of(), page_of())
    assert get(store) is None


def test_outlines_are_in_the_order_of_the_first_put(store: KeyStore) -> None:
    names = [b"pageCCCC", b"pageAAAA", b"pageBBBB"]
    for name in names:
        put(store, page_of(name))
    put(store, page_of(b"pageDDDD", maker_partition=1))
    put(store, page_of(b"pageCCCC", version=2, destroyed=bitmap(9)))
    outlines = asyncio.run(store.outlines(0))
    assert [outline.page for outline in outlines] == names
    first = outlines[0]
    assert (first.version, first.maker_term, first.master_key_id, first.destroyed) == (2, 1, MASTER.id, bitmap(9))
    assert [outline.page for outline in asyncio.run(store.outlines(1))] == [b"pageDDDD"]


def test_another_process_reads_what_was_put(path: str) -> None:
    writer = opened(path)
    reader = opened(path)
    assert get(reader) is None
    put(writer, page_of())
    assert get(reader) == page_of()
    put(writer, page_of(version=2, destroyed=bitmap(5)))
    assert get(reader) == page_of(version=2, destroyed=bitmap(5))


def test_reading_makes_no_file(path: str) -> None:
    store = opened(path)
    assert get(store) is None
    assert asyncio.run(store.outlines(0)) == []
    assert not os.path.exists(path)


def test_a_file_that_was_made_and_not_filled_is_an_empty_store(path: str) -> None:
    Path(path).touch()
    store = opened(path)
    assert get(store) is None
    put(store, page_of())
    assert get(store) == page_of()


def test_the_file_is_for_its_owner_alone(path: str) -> None:
    before = os.umask(0)
    try:
        put(opened(path), page_of())
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_commits_are_synced_with_the_directory(path: str) -> None:
    """A rollback journal is committed by being unlinked: only EXTRA makes that durable."""
    database = sqlite.connect(path, journal="delete", secure_delete=True)
    assert database.query("PRAGMA synchronous") == [(3,)]
    assert database.query("PRAGMA journal_mode") == [("delete",)]
    assert database.query("PRAGMA secure_delete") == [(1,)]
    database.close()


@pytest.mark.parametrize("reader", [False, True])
def test_the_old_wrapped_keys_are_gone_from_the_file(path: str, reader: bool) -> None:
    """Every 16 bytes of the old page are looked for, also while another process has the file open."""
    store = opened(path)
    pages = [page_of(b"page%04d" % n) for n in range(20)]
    put(store, *pages)
    other = opened(path)
    if reader:
        assert get(other, pages[3].page) == pages[3]
    found = set(range(20))
    assert traces(path, pages) == found
    put(store, *(page_of(page.page, version=2, destroyed=bitmap(0)) for page in pages[:10]))
    assert traces(path, pages) == found - set(range(10))
    assert sorted(os.listdir(os.path.dirname(path))) == ["keys.sqlite"]


def traces(path: str, pages: list[KeyPage]) -> set[int]:
    """Which pages have left any 16 bytes of their wrapped keys in the file."""
    raw = Path(path).read_bytes()
    windows = {page.wrapped[at : at + 16]: n for n, page in enumerate(pages) for at in range(0, 8_204, 16)}
    return {n for window, n in windows.items() if window in raw}


def test_a_flipped_byte_never_yields_other_keys(path: str) -> None:
    put(opened(path), page_of(destroyed=bitmap(7)))
    sound = Path(path).read_bytes()
    outcomes: set[str] = set()
    for at in range(0, len(sound), 37):
        Path(path).write_bytes(sound[:at] + bytes((sound[at] ^ 0x41,)) + sound[at + 1 :])
        outcomes.add(_outcome(path))
    assert outcomes <= {"same", "CORRUPT", "absent", "broken seal", "STORE_TOO_NEW", "STORE_READ_ONLY"}
    assert {"same", "CORRUPT", "broken seal"} <= outcomes


def _outcome(path: str) -> str:
    store = opened(path)
    try:
        asyncio.run(store.outlines(0))
        page = get(store)
        if page is None:
            return "absent"
        assert sealing.unwrap_page(MASTER, page) == KEYS
        return "same"
    except AtomlogError as error:
        return error.code if path in error.message else "an error without the file's name"
    except sealing.SealBroken:
        return "broken seal"
    finally:
        asyncio.run(store.close())


def test_a_file_that_is_no_database_is_corrupt(path: str) -> None:
    Path(path).write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(AtomlogError, match=path) as caught:
        get(opened(path))
    assert caught.value.code == "CORRUPT"


def test_a_file_that_is_cut_off_is_corrupt(path: str) -> None:
    put(opened(path), page_of())
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(AtomlogError, match=path) as caught:
        get(opened(path))
    assert caught.value.code == "CORRUPT"


def test_a_newer_format_is_refused(path: str) -> None:
    put(opened(path), page_of())
    database = sqlite.connect(path, journal="delete")
    database.set_version(2)
    database.close()
    with pytest.raises(AtomlogError, match="use a newer version") as caught:
        get(opened(path))
    assert caught.value.code == "STORE_TOO_NEW"


def test_a_file_that_another_process_holds_is_locked(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.0)
    put(opened(path), page_of())
    holder = sqlite.connect(path, journal="delete")
    store = opened(path)
    with holder.transaction():
        error = refused(store, page_of(version=2))
        assert error.code == "STORE_LOCKED"
        assert error.retry_after_ms is not None
        assert path in error.message
    put(store, page_of(version=2))


def test_a_read_only_file_can_be_read_and_not_written(path: str) -> None:
    put(opened(path), page_of())
    database = sqlite.connect(path, journal="delete", read_only=True)
    assert database.query("SELECT version FROM pages") == [(1,)]
    with pytest.raises(AtomlogError, match=path) as caught:
        database.execute("DELETE FROM pages")
    assert caught.value.code == "STORE_READ_ONLY"
    database.close()


def test_a_file_that_was_removed_while_it_was_open_is_said_to_be_that(path: str) -> None:
    database = sqlite.connect(path, journal="delete")
    database.execute("CREATE TABLE kept (n)")
    os.remove(path)
    with pytest.raises(AtomlogError, match="removed or exchanged while it was open") as caught:
        database.execute("INSERT INTO kept VALUES (1)")
    assert caught.value.code == "CORRUPT"
    database.close()


def test_an_absent_file_cannot_be_opened_to_read(path: str) -> None:
    with pytest.raises(AtomlogError, match="no such file") as caught:
        sqlite.connect(path, journal="wal", read_only=True)
    assert caught.value.code == "STORE_NOT_FOUND"


def test_an_absent_directory_is_told(path: str) -> None:
    with pytest.raises(AtomlogError, match="directory is absent"):
        sqlite.connect(f"{path}/nowhere/keys.sqlite", journal="wal")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "STORE_LOCKED"),
        (sqlite3.SQLITE_LOCKED, "STORE_LOCKED"),
        (sqlite3.SQLITE_CORRUPT_INDEX, "CORRUPT"),
        (sqlite3.SQLITE_NOTADB, "CORRUPT"),
        (sqlite3.SQLITE_READONLY_ROLLBACK, "STORE_READ_ONLY"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "CORRUPT"),
        (sqlite3.SQLITE_CANTOPEN, "STORE_READ_ONLY"),
        (sqlite3.SQLITE_FULL, "OVERLOADED"),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, "CORRUPT"),
    ],
)
def test_an_error_of_the_library_becomes_one_of_ours(code: int, expected: str) -> None:
    error = sqlite._of(code, "said", "/some/file")
    assert isinstance(error, AtomlogError)
    assert error.code == expected
    assert error.message.startswith("/some/file: ")


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xc5", 0, 1, "invalid continuation byte"),
        sqlite3.OperationalError("Could not decode to UTF-8 column 'page' with text 'x'"),
    ],
)
def test_damaged_text_in_a_file_or_in_a_message_about_it_is_corrupt(error: Exception) -> None:
    with pytest.raises(AtomlogError, match="/some/file") as caught, sqlite._mapped("/some/file"):
        raise error
    assert caught.value.code == "CORRUPT"


def test_a_failing_disk_stays_an_os_error() -> None:
    error = sqlite._of(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error", "/some/file")
    assert isinstance(error, OSError)
    assert error.filename == "/some/file"


def test_a_transaction_that_fails_leaves_nothing(path: str) -> None:
    database = sqlite.connect(path, journal="wal")
    database.execute("CREATE TABLE t (x INTEGER)")
    with pytest.raises(AtomlogError), database.transaction():
        _insert_and_fail(database)
    assert database.query("SELECT * FROM t") == []
    with database.transaction():
        database.execute("INSERT INTO t VALUES (3)")
    assert database.query("SELECT * FROM t") == [(3,)]
    database.close()


def _insert_and_fail(database: sqlite.Database) -> None:
    database.execute_many("INSERT INTO t VALUES (?)", [(1,), (2,)])
    database.execute("INSERT INTO absent VALUES (3)")


def test_a_path_is_taken_literally(tmp_path: Path) -> None:
    for name in ("a b?mode=ro.sqlite", "100%.sqlite", "#x.sqlite", "ü日.sqlite"):
        database = sqlite.connect(str(tmp_path / name), journal="wal")
        database.execute("CREATE TABLE t (x INTEGER)")
        database.close()
        assert (tmp_path / name).stat().st_size > 0


def test_a_store_may_be_used_from_many_threads_at_once(path: str) -> None:
    async def work() -> int:
        workers = ThreadWorkers(8)
        store = SqliteKeyStore(path, workers)
        names = [b"page%04d" % n for n in range(24)]
        await asyncio.gather(*(store.put([page_of(name)]) for name in names))
        found = await asyncio.gather(*(store.get(name) for name in names))
        await store.close()
        workers.close()
        return sum(page == page_of(name) for page, name in zip(found, names, strict=True))

    assert asyncio.run(work()) == 24


def test_a_closed_store_says_so(path: str) -> None:
    store = opened(path)
    put(store, page_of())
    asyncio.run(store.close())
    asyncio.run(store.close())
    with pytest.raises(RuntimeError, match="closed"):
        get(store)
