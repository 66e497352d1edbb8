"""Writing through a store: two of one process, full disks, copies, heads that lost their end, forks."""

import asyncio
import errno
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.events import log_event
from atomlog.consumers.machine import Machine
from atomlog.consumers.owner_socket import OwnerServer
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.owner import Owner
from atomlog.kernel.rocks import RocksKv
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFile, SystemFiles
from tests.support.kernel_world import batch, create

ROOT = Path(__file__).resolve().parents[3]


async def opened(directory: Path, **options: Any) -> AsyncStore:
    return await AsyncStore.open(str(directory), projections=(), **options)


async def code_of(store: AsyncStore, request: Mapping[str, Any]) -> str:
    try:
        await store.write(request)
    except AtomlogError as error:
        return error.code
    return "accepted"


async def kinds(store: AsyncStore) -> list[str]:
    records = [record async for record in store.log_dump()]
    assert all(record["verdict"] == "effective" for record in records)
    return [record["kind"] for record in records]


async def test_two_stores_of_one_process_write_through_one_holder_and_the_other_takes_over(tmp_path: Path) -> None:
    one = await opened(tmp_path / "s")
    two = await opened(tmp_path / "s")
    assert [store._writing.holder is not None for store in (one, two)] == [True, False]
    both = (("one", one), ("two", two))
    asked = [store.write(batch(f"{name}{n}", create(f"{name}{n}"))) for n in range(30) for name, store in both]
    results = await asyncio.gather(*asked)
    assert len({result.results[0].atom for result in results}) == 60
    assert (await two.write(batch("one0", create("one0")))).replayed
    contended = await asyncio.gather(*(code_of(store, batch(f"c{n}", create("same"))) for n, store in both))
    assert sorted(contended) == ["REVISION_CONFLICT", "accepted"]
    late = asyncio.create_task(code_of(two, batch("late", create("late"))))
    await one.close()
    assert await late == "accepted"
    assert two._writing.holder is not None
    assert (await two.write(batch("one0", create("one0")))).replayed
    assert (await kinds(two)).count("Batch") == 62
    await two.close()


async def test_a_write_that_comes_after_the_close_does_not_take_the_store_back(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    await store.write(batch("k", create("a")))
    writing = store._writing
    await store.close()
    with pytest.raises(AtomlogError) as refused:
        await writing.write(batch("k2", create("b")), "local")
    assert refused.value.code == "NOT_OWNER"
    again = await opened(tmp_path / "s")
    assert again._writing.holder is not None
    await again.close()


async def test_a_holder_that_cannot_listen_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await AsyncStore.init(str(tmp_path / "s"))

    async def start(self: OwnerServer) -> None:
        raise fail("STORE_LOCKED", "no sockets here")

    with monkeypatch.context() as patched:
        patched.setattr(OwnerServer, "start", start)
        store = await opened(tmp_path / "s")
        assert await code_of(store, batch("k", create("a"))) == "STORE_LOCKED"
    other = await opened(tmp_path / "s")
    assert await code_of(other, batch("k", create("a"))) == "accepted"
    assert await code_of(store, batch("k", create("a"))) == "accepted"
    await store.close()
    await other.close()


async def test_a_holder_that_can_neither_begin_nor_make_its_heads_durable_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await AsyncStore.init(str(tmp_path / "s"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Owner, "start", lambda self: asyncio.to_thread(full))
        patched.setattr(RocksKv, "sync", full)
        with pytest.raises(AtomlogError) as refused:
            await opened(tmp_path / "s")
        assert refused.value.code == "OVERLOADED"
    again = await opened(tmp_path / "s")
    assert await code_of(again, batch("k", create("a"))) == "accepted"
    await again.close()


class FullFile(SystemFile):
    """Takes half of what is appended, and fails, while `full` says so."""

    def append(self, data: bytes) -> None:
        if FullFiles.full == "log":
            super().append(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(data)


class FullFiles(SystemFiles):
    """Files of a disk that is full for what `full` names."""

    full = ""

    def open(self, path: str, *, write: bool, create: bool = False) -> SystemFile:
        file = super().open(path, write=write, create=create)
        if path.endswith(".seg"):
            file.__class__ = FullFile
        return file

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if FullFiles.full == "blobs" and "/blobs/" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_atomic(path, data, mode=mode)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> type[FullFiles]:
    monkeypatch.setattr(FullFiles, "full", "")
    return FullFiles


async def test_a_blob_that_finds_no_space_is_refused_and_other_writes_go_on(
    tmp_path: Path, full_disk: type[FullFiles]
) -> None:
    store = await opened(tmp_path / "s", machine=Machine(files=full_disk()))
    await store.write(batch("k0", create("a0")))
    full_disk.full = "blobs"
    long = batch("long", create("long", text="x" * 200_000))
    told = await asyncio.gather(code_of(store, batch("k1", create("a1"))), code_of(store, long))
    assert list(told) == ["accepted", "OVERLOADED"]
    assert (await store.outcome("long", space="notes")).state == "never"
    full_disk.full = ""
    assert await code_of(store, long) == "accepted"
    assert (await kinds(store)).count("Batch") == 3
    await store.close()


async def test_a_log_that_finds_no_space_takes_nothing_and_goes_on_when_there_is_some(
    tmp_path: Path, full_disk: type[FullFiles]
) -> None:
    store = await opened(tmp_path / "s", machine=Machine(files=full_disk()))
    await store.write(batch("k0", create("a0")))
    full_disk.full = "log"
    requests = [batch(f"k{n}", create(f"a{n}")) for n in range(1, 9)]
    told = await asyncio.gather(*(code_of(store, request) for request in requests))
    assert set(told) <= {"IN_DOUBT", "OVERLOADED"}
    assert (await store.outcome("k1", space="notes")).state == "never"
    full_disk.full = ""
    assert await asyncio.gather(*(code_of(store, request) for request in requests)) == ["accepted"] * 8
    assert (await kinds(store)).count("Batch") == 9
    await store.close()
    again = await opened(tmp_path / "s")
    assert all([(await again.write(request)).replayed for request in requests])
    await again.close()


async def test_a_disk_below_its_reserve_takes_no_writes_and_still_knows_the_old_ones(tmp_path: Path) -> None:
    first = await opened(tmp_path / "s")
    made = await first.write(batch("k", create("a")))
    await first.close()
    store = await opened(tmp_path / "s", settings=Settings(disk_reserve_bytes=2**50))
    assert await code_of(store, batch("k2", create("b"))) == "OVERLOADED"
    assert (await store.write(batch("k", create("a")))).receipt == made.receipt
    await store.close()


async def test_a_copy_of_a_directory_is_a_store_of_its_own(tmp_path: Path) -> None:
    original = await opened(tmp_path / "s")
    made = await original.write(batch("k", create("a")))
    shutil.copytree(tmp_path / "s", tmp_path / "copy", ignore=shutil.ignore_patterns("owner.sock", "LOCK"))
    copy = await opened(tmp_path / "copy")
    assert copy._writing.holder is not None
    assert (await copy.write(batch("k", create("a")))).receipt == made.receipt
    here, there = await original.write(batch("k2", create("b"))), await copy.write(batch("k2", create("b")))
    assert here.results[0].atom == there.results[0].atom
    assert here.receipt.chain != there.receipt.chain
    await original.close()
    await copy.close()


async def test_heads_that_lost_their_end_apply_it_again_and_decide_the_same(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    early = await store.write(batch("k0", create("a"), create("g", schema="collection")))
    await store.close()
    heads, kept = tmp_path / "s" / "projections" / "heads", tmp_path / "kept"
    shutil.copytree(heads, kept)
    store = await opened(tmp_path / "s")
    late = await store.write(batch("k1", create("b")))
    holder = store._writing.holder
    assert holder is not None
    place = dict(await holder.places())
    await store.close()
    shutil.rmtree(heads)
    shutil.copytree(kept, heads)
    store = await opened(tmp_path / "s")
    assert store._writing.holder is not None
    assert dict(await store._writing.holder.places()) == place
    assert (await store.write(batch("k0", create("a"), create("g", schema="collection")))).receipt == early.receipt
    assert (await store.write(batch("k1", create("b")))).receipt == late.receipt
    assert await code_of(store, batch("k2", create("b"))) == "REVISION_CONFLICT"
    await store.close()


async def test_a_store_tells_what_troubles_its_writing_although_nobody_asked(
    tmp_path: Path, full_disk: type[FullFiles], caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(tmp_path / "s", machine=Machine(files=full_disk()), on_event=log_event)
    await store.write(batch("k0", create("a0")))
    full_disk.full = "log"
    await code_of(store, batch("k1", create("a1")))
    assert '"event":"in_doubt"' in caplog.text
    full_disk.full = ""
    await store.close()


FORKED = """
import os, sys
from atomlog.client import Store
from atomlog.kernel.errors import AtomlogError, fail

def source(name):
    change = {"op": "create", "key": name, "schema": "source", "value": {"text": name}}
    return {"space": "notes", "idempotency_key": name, "changes": [change]}

store = Store.open(sys.argv[1], projections=["ids"])
beside = Store.open(sys.argv[1], projections=["ids"])  # writes through the first
for one in (store, beside):
    one.write(source(f"before {id(one)}"))
child = os.fork()
if child == 0:
    for one in (store, beside):
        try:
            one.write(source("by the child"))
        except AtomlogError as error:
            print(error.code, flush=True)
        one.close()
    {leave}
os.waitpid(child, 0)
for one in (store, beside):
    one.write(source(f"after {id(one)}"))
    assert one.outcome("by the child", space="notes").state == "never"
beside.close()
store.close()
with Store.open(sys.argv[1], projections=["ids"]) as again:
    again.wait_until_current()
    print(len(again.get([f"key:after {id(one)}" for one in (store, beside)], space="notes").atoms), flush=True)
"""


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_cannot_use_the_store_and_leaves_its_parent_alone(tmp_path: Path, leave: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED.replace("{leave}", leave), str(tmp_path / "s")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("INVALID_INPUT\nINVALID_INPUT\n2\n", 0), done.stderr
