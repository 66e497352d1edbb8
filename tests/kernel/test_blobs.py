"""Blobs: one contract for both stores; on disk each one is durable when `put` returns, and verified when read."""

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from atomlog.kernel.blobs import DirectoryBlobStore, MemoryBlobStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ports import BlobStore
from atomlog.kernel.system import SystemFiles
from tests.support.sealed import InlineWorkers

DATA = hashlib.shake_256(b"blob").digest(1_000)
ADDRESS = hashlib.sha256(DATA).digest()


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return MemoryBlobStore() if request.param == "memory" else directory(tmp_path)


def directory(tmp_path: Path, files: SystemFiles | None = None) -> DirectoryBlobStore:
    return DirectoryBlobStore(files or SystemFiles(), InlineWorkers(), str(tmp_path / "store" / "blobs"))


def place(tmp_path: Path) -> Path:
    text = ADDRESS.hex()
    return tmp_path / "store" / "blobs" / text[:2] / text[2:4] / text


def error_of(store: BlobStore, address: bytes = ADDRESS) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        asyncio.run(store.get(address))
    return caught.value


@pytest.mark.parametrize("data", [DATA, b"", b"\0", bytes(3_000_000)], ids=["some", "none", "NUL", "much"])
def test_a_blob_is_read_as_it_was_put(store: BlobStore, data: bytes) -> None:
    address = asyncio.run(store.put(data))
    assert address == hashlib.sha256(data).digest()
    assert asyncio.run(store.get(address)) == data


def test_an_absent_blob_is_not_found(store: BlobStore) -> None:
    error = error_of(store)
    assert error.code == "NOT_FOUND"
    assert ADDRESS.hex() in error.message


def test_the_same_blob_twice_is_one(store: BlobStore, tmp_path: Path) -> None:
    assert asyncio.run(store.put(DATA)) == asyncio.run(store.put(DATA))
    assert asyncio.run(store.get(ADDRESS)) == DATA


def test_a_blob_stands_in_two_levels_of_directories_for_its_owner_alone(tmp_path: Path) -> None:
    asyncio.run(directory(tmp_path).put(DATA))
    path = place(tmp_path)
    assert path.read_bytes() == DATA
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("at", [0, 1, 500, 999])
def test_a_flipped_bit_is_corrupt_and_the_file_is_named(tmp_path: Path, at: int) -> None:
    store = directory(tmp_path)
    asyncio.run(store.put(DATA))
    place(tmp_path).write_bytes(DATA[:at] + bytes((DATA[at] ^ 1,)) + DATA[at + 1 :])
    error = error_of(store)
    assert error.code == "CORRUPT"
    assert str(place(tmp_path)) in error.message


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"\0"], ids=["emptied", "cut off", "longer"])
def test_a_blob_of_another_length_is_corrupt(tmp_path: Path, data: bytes) -> None:
    store = directory(tmp_path)
    asyncio.run(store.put(DATA))
    place(tmp_path).write_bytes(data)
    assert error_of(store).code == "CORRUPT"


def test_putting_a_damaged_blob_again_mends_it(tmp_path: Path) -> None:
    store = directory(tmp_path)
    asyncio.run(store.put(DATA))
    place(tmp_path).write_bytes(b"damaged")
    asyncio.run(store.put(DATA))
    assert asyncio.run(store.get(ADDRESS)) == DATA


class RecordedFiles(SystemFiles):
    """Notes what makes a blob durable, in order; may fail at a write."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.error: OSError | None = None

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if self.error is not None:
            raise self.error
        self.steps.append(("write", path))
        super().write_atomic(path, data, mode=mode)

    def sync_directory(self, path: str) -> None:
        self.steps.append(("sync", path))
        super().sync_directory(path)


def test_every_new_directory_is_durable_before_the_blob_in_it(tmp_path: Path) -> None:
    files = RecordedFiles()
    store = directory(tmp_path, files)
    asyncio.run(store.put(DATA))
    path = place(tmp_path)
    root = path.parents[2]
    assert files.steps == [
        ("sync", str(root.parent)),
        ("sync", str(root)),
        ("sync", str(path.parents[1])),
        ("write", str(path)),
        ("sync", str(path.parent)),  # by write_atomic, after its rename
    ]
    files.steps.clear()
    asyncio.run(store.put(DATA))
    assert files.steps == [("write", str(path)), ("sync", str(path.parent))]


def test_a_directory_that_another_process_made_is_synced_all_the_same(tmp_path: Path) -> None:
    """It may have died between making and syncing it."""
    place(tmp_path).parent.mkdir(parents=True)
    files = RecordedFiles()
    asyncio.run(directory(tmp_path, files).put(DATA))
    assert len(files.steps) == 5


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EACCES, "STORE_READ_ONLY"), (errno.EROFS, "STORE_READ_ONLY"), (errno.ENOSPC, "OVERLOADED")],
)
def test_a_blob_that_cannot_be_written_says_why(tmp_path: Path, number: int, code: str) -> None:
    files = RecordedFiles()
    files.error = OSError(number, os.strerror(number))
    with pytest.raises(AtomlogError, match=ADDRESS.hex()) as caught:
        asyncio.run(directory(tmp_path, files).put(DATA))
    assert caught.value.code == code


def test_a_failing_disk_is_not_hidden(tmp_path: Path) -> None:
    files = RecordedFiles()
    files.error = OSError(errno.EIO, "disk")
    with pytest.raises(OSError, match="disk"):
        asyncio.run(directory(tmp_path, files).put(DATA))


@pytest.mark.parametrize("address", [b"", bytes(31), bytes(33)])
def test_what_is_no_address_is_refused(tmp_path: Path, address: bytes) -> None:
    with pytest.raises(ValueError, match="32"):
        asyncio.run(directory(tmp_path).get(address))


@pytest.mark.parametrize("parent", ["", "./"])
def test_a_relative_directory_works(tmp_path: Path, parent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = DirectoryBlobStore(SystemFiles(), InlineWorkers(), f"{parent}blobs")
    addresses: Sequence[bytes] = [asyncio.run(store.put(data)) for data in (DATA, b"other")]
    assert [asyncio.run(store.get(address)) for address in addresses] == [DATA, b"other"]
