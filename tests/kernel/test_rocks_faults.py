"""What RocksDB says, told apart: what the machine lacks is no damage, and nobody is advised to remove files for it."""

import pytest

from atomlog.kernel import rocks
from atomlog.kernel.errors import AtomlogError

FULL = "IO error: No space left on device: While appending to file: /s/db/000004.log"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FULL, "OVERLOADED"),
        ("IO error: Disk quota exceeded: While open a file", "OVERLOADED"),
        ("IO error: Too many open files: While open a file for random read: /s/db/000009.sst", "OVERLOADED"),
        ("IO error: Permission denied: While open a file", "STORE_READ_ONLY"),
        ("IO error: Read-only file system: While mkdir if missing", "STORE_READ_ONLY"),
        ("IO error: While lock file: /s/db/LOCK: Resource temporarily unavailable", "STORE_LOCKED"),
        ("Corruption: block checksum mismatch", "CORRUPT"),
        ("Corruption: No space left of the checksum", "CORRUPT"),
        ("IO error: No such file or directory: While open a file", "CORRUPT"),
    ],
)
def test_opening_says_what_is_at_fault(text: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Exception(text)  # as the binding does

    monkeypatch.setattr(rocks, "Rdict", refuse)
    with pytest.raises(AtomlogError) as caught:
        rocks.open_primary("/s/db", block_cache_bytes=1024 * 1024)
    assert caught.value.code == code
    assert ("remove this directory" in caught.value.message) == (code == "CORRUPT")
