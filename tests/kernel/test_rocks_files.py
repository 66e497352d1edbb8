"""What RocksDB would hang on, or take for another state, is refused before it opens."""

import shutil
import struct
from pathlib import Path
from typing import Final

import crc32c
import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.rocks import RocksKv, open_primary, open_secondary
from atomlog.kernel.rocks_files import check_database, identity_of, tables_of

CACHE_BYTES: Final = 1024 * 1024
ALL: Final = {b"a": b"1", b"b": b"1", b"c": b"1", b"place": b"2"}
OLDER: Final = {b"a": b"1", b"b": b"1", b"place": b"1"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a killed process leaves it: `a` in a table, `b` moved to one while it was open, `c` in the log after that."""
    live, kept = tmp_path_factory.mktemp("live") / "db", tmp_path_factory.mktemp("kept") / "db"
    kv = open_primary(str(live), block_cache_bytes=CACHE_BYTES)
    kv.write([(b"a", b"1")])
    kv.close()
    kv = open_primary(str(live), block_cache_bytes=CACHE_BYTES)
    kv.write([(b"b", b"1"), (b"place", b"1")])
    kv.sync()
    shutil.copytree(live, kept.with_name("older"))
    kv._database.flush()
    kv.write([(b"c", b"1"), (b"place", b"2")])
    kv.sync()
    shutil.copytree(live, kept)
    kv.close()
    return kept


@pytest.fixture
def database(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "db"))


def manifest(database: Path) -> Path:
    (found,) = database.glob("MANIFEST-*")
    return found


def content(kv: RocksKv) -> dict[bytes, bytes]:
    try:
        return dict(kv.scan(b"", b"\xff"))  # without the row of the identity
    finally:
        kv.close()


def opened(database: Path) -> dict[bytes, bytes]:
    return content(open_primary(str(database), block_cache_bytes=CACHE_BYTES))


def refused(database: Path) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        opened(database)
    assert caught.value.code == "CORRUPT", caught.value
    return caught.value


def test_an_undamaged_one_is_whole(database: Path) -> None:
    assert opened(database) == ALL


def test_an_older_manifest_beside_a_newer_log_is_refused_since_what_lies_between_would_be_missing(
    directory: Path, database: Path
) -> None:
    shutil.copy(manifest(directory.with_name("older")), manifest(database))
    error = refused(database)
    assert ".log, byte 0: it begins with change" in error.message
    assert error.details[0]["offset"] == 0


def test_a_reader_beside_the_primary_refuses_it_too(directory: Path, database: Path) -> None:
    shutil.copy(manifest(directory.with_name("older")), manifest(database))
    with pytest.raises(AtomlogError, match="it begins with change"):
        open_secondary(str(database), str(database.with_name("scratch")), block_cache_bytes=CACHE_BYTES)


def test_a_manifest_that_ends_anywhere_gives_no_state_with_a_hole(directory: Path, tmp_path: Path) -> None:
    whole = manifest(directory).read_bytes()
    for end in range(0, len(whole), 3):
        whole_or_refused(directory, tmp_path / f"{end}", whole[:end])


def test_no_flipped_bit_of_a_manifest_hangs_or_gives_another_state(directory: Path, tmp_path: Path) -> None:
    whole = manifest(directory).read_bytes()
    found = 0
    bits = range(0, len(whole) * 8, 3)
    for number in bits:
        flipped = bytearray(whole)
        flipped[number // 8] ^= 1 << number % 8
        found += whole_or_refused(directory, tmp_path / "db", bytes(flipped))
    assert found > len(bits) - 10  # the others make the last edit, which changes nothing, look like a torn end


def whole_or_refused(directory: Path, copy: Path, raw: bytes) -> bool:
    """Whether a database with this MANIFEST is refused; if not it holds everything."""
    if not copy.exists():
        shutil.copytree(directory, copy)
    manifest(copy).write_bytes(raw)
    try:
        found = opened(copy)
    except AtomlogError as error:
        assert error.code == "CORRUPT", error
        return True
    assert found == ALL
    shutil.rmtree(copy)
    return False


def test_a_log_that_ends_early_is_an_earlier_state_and_one_that_is_lost_too(database: Path) -> None:
    (log,) = (path for path in database.glob("*.log") if path.stat().st_size)
    log.write_bytes(log.read_bytes()[:-1])
    assert opened(database) == OLDER


def test_bytes_after_zeros_in_a_log_are_refused(database: Path) -> None:
    (log,) = (path for path in database.glob("*.log") if path.stat().st_size)
    raw = log.read_bytes()
    log.write_bytes(raw + bytes(40))
    assert opened(Path(shutil.copytree(database, database.with_name("zeros")))) == ALL
    log.write_bytes(bytes(40) + raw)
    assert "zeros, and bytes after them" in refused(database).message


@pytest.mark.parametrize("raw", [b"", b"MANIFEST-", b"MANIFEST-000001", b"\xff" * 20, b"MANIFEST-999999\n", b"../x\n"])
def test_a_current_that_leads_nowhere_is_refused(database: Path, raw: bytes) -> None:
    (database / "CURRENT").write_bytes(raw)
    refused(database)


def test_without_current_there_is_no_new_database_over_what_is_left(database: Path) -> None:
    (database / "CURRENT").unlink()
    refused(database)


@pytest.mark.parametrize("how", ["removed", "cut", "flipped"])
def test_a_reader_beside_the_primary_refuses_a_table_that_it_cannot_open(database: Path, how: str) -> None:
    table = max(database.glob("*.sst"))
    raw = table.read_bytes()
    changed = raw[:-1] if how == "cut" else raw[:-30] + bytes((raw[-30] ^ 1,)) + raw[-29:]
    table.unlink() if how == "removed" else table.write_bytes(changed)
    with pytest.raises(AtomlogError, match=table.name) as caught:
        open_secondary(str(database), str(database.with_name("scratch")), block_cache_bytes=CACHE_BYTES)
    assert caught.value.code == "CORRUPT"


def test_a_reader_goes_over_to_the_tables_that_its_primary_makes_meanwhile(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    primary = open_primary(path, block_cache_bytes=CACHE_BYTES)
    reader = open_secondary(path, str(tmp_path / "scratch"), block_cache_bytes=CACHE_BYTES)
    for number in range(30):
        primary.write([(b"%03d" % number, b"1"), (b"place", b"%d" % number)])
        if number % 3 == 0:
            primary._database.flush()
        if number % 10 == 9:
            primary._database.compact_range(None, None)
        reader.catch_up()
        assert reader.get(b"place") == b"%d" % number
        assert sum(1 for _ in reader.scan(b"", b"a")) == number + 1
    reader.close()
    primary.close()


def test_a_log_of_another_database_is_refused(database: Path, tmp_path: Path) -> None:
    other = open_primary(str(tmp_path / "other"), block_cache_bytes=CACHE_BYTES)
    other.write([(b"b", b"another")])
    other.sync()
    (foreign,) = (path for path in (tmp_path / "other").glob("*.log") if path.stat().st_size)
    (log,) = (path for path in database.glob("*.log") if path.stat().st_size)
    shutil.copy(foreign, log)
    other.close()
    assert f"{log}, byte 0: a batch of another database" in refused(database).message


DAMAGE: Final = b"\xff" * 20


def frame(kind: int, payload: bytes) -> bytes:
    crc = crc32c.crc32c(bytes((kind,)) + payload)
    return struct.pack("<IHB", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF, len(payload), kind) + payload


def the_log(database: Path) -> Path:
    (found,) = (path for path in database.glob("*.log") if path.stat().st_size)
    return found


def test_an_edit_that_may_be_ignored_is_passed_over(database: Path) -> None:
    tag = 1 << 13 | 1 << 12
    with manifest(database).open("ab") as file:
        file.write(frame(1, bytes((tag & 0x7F | 0x80, tag >> 7)) + b"\x02hi"))
    assert tables_of(str(database))
    assert opened(database) == ALL


@pytest.mark.parametrize("where", ["an edit", "a frame of MANIFEST", "a frame of a log"])
def test_what_a_newer_rocksdb_has_written_is_left_to_rocksdb_and_nothing_behind_it_is_looked_at(
    directory: Path, database: Path, where: str
) -> None:
    newer = frame(1, b"\x7f\x01") if where == "an edit" else frame(130, b"new")
    file = the_log(database) if where == "a frame of a log" else manifest(database)
    identity = identity_of(str(directory))
    whole = file.read_bytes()
    file.write_bytes(whole + newer + DAMAGE)
    check_database(str(database))
    assert identity_of(str(database)) == identity
    assert tables_of(str(database)) == (tables_of(str(directory)) if where == "a frame of a log" else ())
    file.write_bytes(whole + newer[:-1] + bytes((newer[-1] ^ 1,)) + DAMAGE)  # it was not written so
    with pytest.raises(AtomlogError, match=f"{file.name}, byte {len(whole)}"):
        check_database(str(database))


def test_a_damaged_block_is_told_by_scans_and_does_not_keep_the_database_open(database: Path) -> None:
    table = min(database.glob("*.sst"))
    raw = bytearray(table.read_bytes())
    raw[5] ^= 1
    table.write_bytes(raw)
    kv = open_primary(str(database), block_cache_bytes=CACHE_BYTES)
    kept = []
    for scan in (kv.scan, kv.scan_back):
        with pytest.raises(AtomlogError, match=rf"checksum mismatch.*{table.name}") as caught:
            list(scan(b"", b"\xff"))
        kept.append(caught.value)
    kv.close()
    open_primary(str(database), block_cache_bytes=CACHE_BYTES).close()
