"""Making a store: one process makes it, whoever else begins at the same moment, and a killed one is no obstacle."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atomlog.client import AsyncStore, AtomlogError, Store
from atomlog.consumers.creation import MAKING, create_store
from atomlog.consumers.machine import Machine
from atomlog.kernel.system import SystemFiles

SCRIPT = """
import os, sys
from atomlog.client import Store
sys.stdin.readline()
with Store.open(sys.argv[1], projections=["ids"]) as store:
    name = str(os.getpid())
    change = {"op": "create", "key": name, "schema": "source", "value": {"text": name}}
    store.write({"space": "notes", "idempotency_key": name, "changes": [change]})
"""


class Killed(BaseException):
    """The process ends here."""


class KilledFiles(SystemFiles):
    """Ends before the n-th change of a file; a file that is being written leaves its temporary one."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _change(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def make_directory(self, path: str) -> None:
        self._change()
        super().make_directory(path)

    def replace(self, source: str, target: str) -> None:
        self._change()
        super().replace(source, target)

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        try:
            self._change()
        except Killed:
            Path(f"{path}.0123abcd.tmp").write_bytes(data[:5])
            raise
        super().write_atomic(path, data, mode=mode)


def note(name: str) -> dict[str, Any]:
    change = {"op": "create", "key": name, "schema": "source", "value": {"text": name}}
    return {"space": "notes", "idempotency_key": name, "changes": [change]}


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(AtomlogError) as caught:
        call()
    return caught.value.code


def test_a_making_that_was_killed_anywhere_is_made_anew(tmp_path: Path) -> None:
    for changes in range(100):
        directory = tmp_path / str(changes)
        try:
            create_store(str(directory), machine=Machine(files=KilledFiles(changes)))
        except Killed:
            key = (directory / "master.key").read_bytes() if (directory / "master.key").exists() else None
            with Store.open(directory, projections=["ids"]) as store:
                written = store.write(note("tea")).receipt
                assert store.get("key:tea", space="notes", at_least=written).atoms[0].value == {"text": "tea"}
            assert {name for name in os.listdir(directory) if name.endswith(".tmp") or name == MAKING} == set()
            assert key in (None, (directory / "master.key").read_bytes())
        else:
            break
    assert changes > 5, "nothing was interrupted"


def test_a_store_that_lost_its_description_is_not_made_anew(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", projections=["ids"]) as store:
        store.write(note("tea"))
    before = (tmp_path / "s/log/0/00000000000000000000.seg").read_bytes()
    (tmp_path / "s/store.json").unlink()
    assert code_of(lambda: Store.open(tmp_path / "s")) == "STORE_NOT_FOUND"
    assert code_of(lambda: Store.init(tmp_path / "s")) == "INVALID_INPUT"
    assert (tmp_path / "s/log/0/00000000000000000000.seg").read_bytes() == before


def test_who_opens_while_another_makes_the_store_waits_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    directory.mkdir()

    async def scenario() -> None:
        other = SystemFiles().open(str(directory), write=False)
        assert other.lock()
        assert code_of(lambda: create_store(str(directory), machine=Machine())) == "STORE_LOCKED"
        opening = asyncio.ensure_future(_opened(directory))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not opening.done()
        other.close()
        store = await opening
        assert (await store.write(note("tea"))).receipt.position == 1
        await store.close()

    asyncio.run(scenario())


async def _opened(directory: Path) -> AsyncStore:
    return await AsyncStore.open(directory, projections=["ids"])


def test_processes_that_begin_at_the_same_moment_share_one_store(tmp_path: Path) -> None:
    beginning = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "s")], stdin=subprocess.PIPE) for _ in range(3)
    ]
    for process in beginning:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in beginning:
        process.communicate(timeout=60)
    assert [process.returncode for process in beginning] == [0, 0, 0]
    with Store.open(tmp_path / "s", projections=["ids"]) as store:
        store.wait_until_current()
        keys = [f"key:{process.pid}" for process in beginning]
        assert {row.value["text"] for row in store.get(keys, space="notes").atoms} == {key[4:] for key in keys}


def test_a_store_with_a_relative_path_stays_where_it_is_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("s", projections=["ids"]) as store:
        store.write(note("tea"))
        monkeypatch.chdir("/")
        written = store.write(note("coffee"))
        assert store.get("key:coffee", space="notes", at_least=written.receipt).atoms[0].value == {"text": "coffee"}
        assert [report.equal for report in store.rebuild(["ids"])] == [True]
        assert store.directory == str(tmp_path / "s")
    assert sorted(os.listdir(tmp_path)) == ["s"]


def test_a_store_with_an_absolute_path_needs_no_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with Store.open(tmp_path / "s", projections=["ids"]) as store:
        store.write(note("tea"))
