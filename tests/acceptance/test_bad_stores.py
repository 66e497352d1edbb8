"""Directories that are no store, not this program's, not whole, or not open to it: each its own code and words."""

import asyncio
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import CODES, AtomlogError
from tests.acceptance.expect import refused
from tests.acceptance.writing import source
from tests.support.commands import atomlog

SPACE = "notes"


def batch(key: str, **more: Any) -> dict[str, Any]:
    changes = [source(f"text of {key}", key=key, **more)]
    return {"space": SPACE, "idempotency_key": f"write {key}", "changes": changes}


@pytest.fixture(scope="module")
def good(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a few batches, closed. Tests work on copies."""
    directory = tmp_path_factory.mktemp("good") / "store"

    async def fill() -> None:
        async with await AsyncStore.open(str(directory)) as store:
            for number in range(5):
                await store.write(batch(f"k{number}"))
            await store.wait_until_current()

    runner.run(fill())
    return directory


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "store"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """How a good store becomes a bad one, what opening it to read says, and with which words."""

    spoil: Callable[[Path], None]
    code: str
    words: str
    writing_too: bool = False


def emptied(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir()


def another_directory(store: Path) -> None:
    emptied(store)
    (store / "letter.txt").write_text("Dear store")


def a_file(store: Path) -> None:
    shutil.rmtree(store)
    store.write_text("I am a file")


def config(**changes: Any) -> Callable[[Path], None]:
    def spoil(store: Path) -> None:
        path = store / "store.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def half_a_config(store: Path) -> None:
    path = store / "store.json"
    path.write_text(path.read_text()[:20])


def segment(store: Path) -> Path:
    (found,) = (store / "log" / "0").glob("*.seg")
    return found


def a_flipped_bit(store: Path) -> None:
    raw = bytearray(segment(store).read_bytes())
    raw[len(raw) // 3] ^= 1
    segment(store).write_bytes(raw)


def no_log(store: Path) -> None:
    segment(store).unlink()


BAD = {
    "absent": Bad(spoil=shutil.rmtree, code="STORE_NOT_FOUND", words="no such directory"),
    "empty": Bad(spoil=emptied, code="STORE_NOT_FOUND", words="empty"),
    "another directory": Bad(spoil=another_directory, code="STORE_NOT_FOUND", words="letter.txt", writing_too=True),
    "a file": Bad(spoil=a_file, code="STORE_NOT_FOUND", words="is a file", writing_too=True),
    "a newer format": Bad(spoil=config(format=99), code="STORE_TOO_NEW", words="format 99", writing_too=True),
    "a newer hash": Bad(spoil=config(hash_version=99), code="STORE_TOO_NEW", words="hash_version 99"),
    "half a config": Bad(spoil=half_a_config, code="CORRUPT", words="store.json"),
    "wrong values": Bad(spoil=config(partitions=0, log_id="x"), code="CORRUPT", words="log_id, partitions"),
    "another log": Bad(spoil=config(log_id="0" * 32), code="LOG_MISMATCH", words="log"),
    "more partitions": Bad(spoil=config(partitions=2), code="CORRUPT", words="log/1"),
    "a flipped bit": Bad(spoil=a_flipped_bit, code="CORRUPT", words=".seg"),
    "no log": Bad(spoil=no_log, code="CORRUPT", words=".seg"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_directory_is_refused_with_its_own_code_and_the_way_out(store: Path, name: str) -> None:
    bad = BAD[name]
    bad.spoil(store)
    error = await opening(store)
    assert error.code == bad.code, error
    assert bad.words in error.message
    assert not store.is_dir() or not list(store.rglob("*.json.tmp"))


@pytest.mark.parametrize("name", BAD)
async def test_the_command_line_says_the_same_without_a_traceback(store: Path, name: str) -> None:
    bad = BAD[name]
    bad.spoil(store)
    commands: list[tuple[str, ...]] = [("get", "key:k1", "--space", SPACE)]
    if bad.writing_too:
        file = store.parent / "batches.jsonl"
        file.write_text(json.dumps(batch("more")) + "\n")
        commands.append(("write", str(file)))
    for done in await asyncio.gather(*(atomlog(*command, "--store", str(store)) for command in commands)):
        assert done.code == CODES[bad.code].exit_code, done
        assert "Traceback" not in done.err + done.out
        assert bad.words in done.err + done.out


async def opening(store: Path) -> AtomlogError:
    """What opening it to read, and reading, ends with."""
    with pytest.raises(AtomlogError) as caught:
        async with await AsyncStore.open(str(store), create=False) as opened:
            await opened.get("key:k1", space=SPACE)
            await opened.wait_until_current()
    return caught.value


async def test_a_store_is_not_made_in_a_directory_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear store")
    await refused(AsyncStore.init(str(tmp_path)), "INVALID_INPUT")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


async def test_a_store_that_is_locked_by_a_process_without_a_socket_is_read_but_not_written(store: Path) -> None:
    file = store.parent / "batches.jsonl"
    file.write_text(json.dumps(batch("other")) + "\n")
    with segment(store).open("r+b") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = asyncio.create_task(atomlog("write", str(file), "--store", str(store)))
        async with await AsyncStore.open(str(store), create=False) as opened:
            assert len((await opened.get("key:k1", space=SPACE)).atoms) == 1
            error = await refused(opened.write(batch("more")), "NOT_OWNER")
        done = await command
    assert "owned by" in error.message
    assert error.retry_after_ms is not None
    assert done.code == CODES["NOT_OWNER"].exit_code, done
    assert "Traceback" not in done.err + done.out


async def test_a_log_that_lost_its_end_is_refused_and_never_taken_for_the_old_one(store: Path) -> None:
    """The projections have seen more than the log holds: it was rolled back, e.g. by a backup of a part."""
    raw = segment(store).read_bytes()
    segment(store).write_bytes(raw[: len(raw) * 2 // 3])
    (store / "log" / "0" / "durable_end").write_bytes((3).to_bytes(8, "little"))
    error = await opening(store)
    assert error.code == "LOG_DIVERGED", error
    assert "bring the right log back" in error.message
    done = await atomlog("get", "key:k1", "--space", SPACE, "--store", str(store))
    assert (done.code, "Traceback" in done.err) == (CODES["LOG_DIVERGED"].exit_code, False), done


async def test_without_the_master_key_reads_say_sealed_and_writes_are_refused(store: Path) -> None:
    (store / "master.key").rename(store.parent / "elsewhere.key")
    async with await AsyncStore.open(str(store), create=False) as opened:
        row = (await opened.get("key:k1", space=SPACE)).to_dict()["atoms"][0]
        assert (row["value"], row["sealed"]) == (None, True)
        await refused(opened.write(batch("more")), "KEY_UNAVAILABLE")
        end = (await opened.status()).to_dict()["partitions"][0]["end"]
    done = await atomlog("get", "key:k1", "--space", SPACE, "--json", "--store", str(store))
    shown = json.loads(done.out)["atoms"][0]
    assert (done.code, shown["value"], shown["sealed"]) == (0, None, True)

    # With the key in another place all is there again, and nothing was appended meanwhile.
    key = str(store.parent / "elsewhere.key")
    async with await AsyncStore.open(str(store), create=False, master_key_file=key) as opened:
        row = (await opened.get("key:k1", space=SPACE)).to_dict()["atoms"][0]
        assert row["value"] == {"text": "text of k1"}
        assert (await opened.status()).to_dict()["partitions"][0]["end"] == end


async def test_a_wrong_master_key_is_told_from_a_missing_one(store: Path, tmp_path: Path) -> None:
    await AsyncStore.init(str(tmp_path / "other"))
    key = str(tmp_path / "other" / "master.key")
    async with await AsyncStore.open(str(store), create=False, master_key_file=key) as opened:
        error = await refused(opened.get("key:k1", space=SPACE), "KEY_UNAVAILABLE")
        assert "master key" in error.message
        await refused(opened.write(batch("more")), "KEY_UNAVAILABLE")
    missing = str(tmp_path / "nowhere.key")
    error = await refused(AsyncStore.open(str(store), create=False, master_key_file=missing), "INVALID_INPUT")
    assert "nowhere.key" in error.message
    done = await atomlog("get", "key:k1", "--space", SPACE, "--store", str(store), "--master-key", key)
    assert (done.code, "Traceback" in done.err) == (CODES["KEY_UNAVAILABLE"].exit_code, False)


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may write everywhere")
async def test_a_store_that_cannot_be_written_is_read_and_says_why_it_is_not_written(store: Path) -> None:
    with ExitStack() as afterwards:
        for path in (store, *store.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(mode & ~0o222)
            afterwards.callback(path.chmod, mode)
        async with await AsyncStore.open(str(store), create=False) as opened:
            assert len((await opened.get("key:k1", space=SPACE)).atoms) == 1
            await refused(opened.write(batch("more")), "STORE_READ_ONLY")
