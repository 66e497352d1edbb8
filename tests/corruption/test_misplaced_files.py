"""Something else in the place of a file of the store: a typed error that names it, and nobody waits for ever."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from atomlog.client import AtomlogError, Store
from atomlog.kernel.system import SystemFiles
from tests.consumers.cli.driving import atomlog

BATCH: Final = {
    "space": "notes",
    "idempotency_key": "k1",
    "changes": [{"op": "create", "key": "a", "schema": "source", "value": {"text": "tea " * 20_000}}],
}
PLACES: Final = (
    "store.json",
    "master.key",
    "keys.sqlite",
    "reads.sqlite",
    "log/0/00000000000000000000.seg",
    "log/0/durable_end",
    "projections",
    "blobs",
)
HARMLESS: Final = {("directory", "projections"), ("file", "reads.sqlite"), ("file", "log/0/durable_end")}  # made anew


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound") / "store"
    with Store.open(directory) as store:
        store.write(BATCH)
        store.wait_until_current()
    return directory


@pytest.mark.parametrize("what", ["directory", "file", "pipe"])
@pytest.mark.parametrize("place", PLACES)
def test_something_else_in_the_place_of_a_file_is_named(sound: Path, tmp_path: Path, place: str, what: str) -> None:
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    path = root / place
    was_directory = path.is_dir()
    shutil.rmtree(path) if was_directory else path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "file":
        path.write_bytes(b"")
    else:
        os.mkfifo(path)
    done = atomlog("get", "key:a", "--space", "notes", store=root)  # raises what is no typed error
    if (what, place) in HARMLESS:
        return
    assert done.code not in (0, 1), done
    assert any(word in done.err for word in (place.split("/")[0], "blob", "key store")), done.err
    with pytest.raises((AtomlogError, OSError)), Store.open(root) as store:
        store.get("key:a", space="notes")


def test_a_fault_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    file = SystemFiles().open(str(tmp_path / "d"), write=False)
    with pytest.raises(IsADirectoryError) as caught:
        file.read_at(0, 8)
    assert caught.value.filename == str(tmp_path / "d")
    file.close()
    with pytest.raises(IsADirectoryError) as caught:
        SystemFiles().read(str(tmp_path / "d"))
    assert caught.value.filename == str(tmp_path / "d")
    with pytest.raises(OSError, match="no regular file"):
        SystemFiles().read("/dev/zero")
