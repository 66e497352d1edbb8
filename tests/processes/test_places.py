"""Several processes at one directory, a directory that is copied beside its store, a log that is taken away."""

import asyncio
import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from tests.acceptance.writing import source
from tests.processes.records import batches_in_the_log
from tests.support.store_process import StoreProcess

WRITES = 24


def batch(key: str) -> dict[str, Any]:
    return {"space": "notes", "idempotency_key": key, "changes": [source(key)]}


def content(directory: str, *parts: str) -> dict[str, str]:
    """Every file of some parts of a store → a digest of its bytes."""
    found: dict[str, str] = {}
    for part in parts:
        paths = [Path(directory, part), *Path(directory, part).rglob("*")]
        found |= {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths if p.is_file()}
    return found


@pytest.mark.timeout(300)
async def test_processes_that_open_one_store_at_the_same_moment_share_it(tmp_path: Path) -> None:
    """One of them writes and one follows each projection; all of them write and read all."""
    directory = str(tmp_path / "store")
    await AsyncStore.init(directory)
    processes = [
        await StoreProcess.start(directory, log=tmp_path / f"{n}.log", projections=PROJECTIONS, follow=True)
        for n in range(4)
    ]
    answers = await asyncio.gather(
        *(process.ask("write", batch=batch(f"{n} {turn}")) for turn in range(6) for n, process in enumerate(processes))
    )
    made = [answer["results"][0] for answer in answers]
    assert len({one["revision"] for one in made}) == WRITES
    end = {"partition": 0, "position": max(answer["receipt"]["position"] for answer in answers)}
    selector = {"type": "ids", "ids": [one["atom"] for one in made]}
    pages = [
        await one.shown("read", selector=selector, options={"at_least": end, "limit": WRITES}) for one in processes
    ]
    for page in pages:
        assert sorted(page.versions) == sorted((one["atom"], one["revision"]) for one in made)
    statuses = [await process.ask("status") for process in processes]
    assert len({status["partitions"][0]["owner"]["pid"] for status in statuses}) == 1
    for name in PROJECTIONS:
        followers = {
            entry["follower"] for status in statuses for entry in status["projections"] if entry["name"] == name
        }
        assert len(followers) == 1
        assert followers <= {process.process.pid for process in processes}
    for process in processes:
        await process.close()


@pytest.mark.timeout(300)
async def test_a_copy_opened_beside_its_original_touches_nothing_of_it(tmp_path: Path) -> None:
    """As docs/operations has it: whatever was copied, its locks, notes and socket mean nothing in the copy."""
    original, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    await AsyncStore.init(original)
    holder = await StoreProcess.start(original, log=tmp_path / "holder.log", projections=PROJECTIONS, follow=True)
    first = await holder.ask("write", batch=batch("first"))
    at = {"partition": 0, "position": first["receipt"]["position"]}
    selector = {"type": "ids", "ids": [first["results"][0]["atom"]]}
    await holder.shown("read", selector=selector, options={"at_least": at})
    holder.process.send_signal(signal.SIGSTOP)  # so that all of it is of one moment
    shutil.copytree(original, copy, ignore=lambda _, names: [name for name in names if name == "owner.sock"])
    before = content(original, "log", "projections", "store.json", "keys.sqlite", "master.key")

    async with await AsyncStore.open(copy, read_only=True) as reading:
        assert len((await reading.get(first["results"][0]["atom"])).atoms) == 1
    async with await AsyncStore.open(copy) as store:
        assert store._writing.holder is not None, "the lock of the original is another file's"
        assert (await store.write(batch("first"))).receipt.position == at["position"]
        await store.write(batch("of the copy"))
        await store.wait_until_current()
    assert content(original, "log", "projections", "store.json", "keys.sqlite", "master.key") == before
    assert json_pid(original) == holder.process.pid

    holder.process.send_signal(signal.SIGCONT)
    second = await holder.ask("write", batch=batch("of the original"))
    assert second["receipt"]["position"] == at["position"] + 1
    page = await holder.shown("read", selector=selector, options={"at_least": second["receipt"]})
    assert page.rows[0]["value"]["text"] == "first"
    await holder.close()


def json_pid(directory: str) -> int:
    note = Path(directory, "log", "0", "owner.json").read_text()
    return int(note.split('"pid":')[1].split(",")[0].rstrip("}"))


async def test_a_holder_whose_log_is_taken_away_stops_writing_and_goes_on_when_it_is_put_back(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    async with await AsyncStore.open(directory) as store:
        first = (await store.write(batch("first"))).to_dict()
        segment = Path(directory, "log", "0", f"{0:020d}.seg")
        aside = segment.with_suffix(".aside")
        os.rename(segment, aside)
        shutil.copy(aside, segment)

        codes = [await code(store, "second") for _ in range(3)]
        assert codes[-2:] == ["CORRUPT", "CORRUPT"], codes
        assert codes[0] in ("IN_DOUBT", "CORRUPT")
        with pytest.raises(AtomlogError) as stopped:
            await store.write(batch("second"))
        assert str(segment) in stopped.value.message
        assert "removed, renamed or replaced" in stopped.value.message
        assert aside.read_bytes() == segment.read_bytes(), "nothing was written to either"
        assert len((await store.get(first["results"][0]["atom"])).atoms) == 1

        os.rename(aside, segment)
        second = (await store.write(batch("second"))).to_dict()
        assert set(await batches_in_the_log(store)) == {
            (0, result["receipt"]["position"]) for result in (first, second)
        }


async def code(store: AsyncStore, key: str) -> str:
    try:
        await store.write(batch(key))
    except AtomlogError as error:
        return error.code
    return "accepted"


async def test_a_store_that_is_exchanged_under_its_holder_is_another_processes(tmp_path: Path) -> None:
    """The whole directory is moved away and a copy put there: the old holder writes to neither of them."""
    directory = str(tmp_path / "store")
    async with await AsyncStore.open(directory, projections=()) as store:
        await store.write(batch("first"))
        shutil.copytree(directory, tmp_path / "copy", ignore=lambda _, names: [n for n in names if n == "owner.sock"])
        os.rename(directory, tmp_path / "moved")
        os.rename(tmp_path / "copy", directory)
        other = await StoreProcess.start(directory, log=tmp_path / "other.log", projections=(), follow=False)
        await other.ask("write", batch=batch("by the other"))
        before = content(str(tmp_path / "moved"), "log")
        while (said := await code(store, "by the old one")) == "IN_DOUBT":
            pass
        assert said == "CORRUPT"
        assert content(str(tmp_path / "moved"), "log") == before
        await store.close()
        assert Path(directory, "owner.sock").exists(), "the other one's"
        assert json_pid(directory) == other.process.pid
        await other.ask("write", batch=batch("and again"))
        await other.close()
    async with await AsyncStore.open(directory, projections=()) as after:
        assert len(await batches_in_the_log(after)) == 3
