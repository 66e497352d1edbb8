"""Who may append: one process, by a lock on the first segment, and the note that names it."""

import asyncio
import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFile, end_process
from tests.kernel.log.support import LOG_ID, FaultyFiles, LogDirectory, corrupt_at, records, refused, run, values

# A process of its own that owns the log in argv[1] and says on stdout the end after each append it was told is durable.
OWNER = """
import asyncio, sys
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock, SystemFiles, ThreadWorkers
from atomlog.schemas.record import Record

async def main(directory, log_id, appends):
    log = EmbeddedLog(files=SystemFiles(), workers=ThreadWorkers(), clock=SystemClock(), directory=directory,
                      log_id=log_id, partitions=1, settings=Settings(segment_bytes=20_000),
                      owner_info={"endpoint": "/run/owner.sock"})
    await log.acquire(0)
    print(await log.end(0), flush=True)
    n = 0
    while n < appends:
        group = [Record(rule=1, kind="Batch", term=3, owner=bytes(16), seq=k, schema=bytes(8), chain=bytes(16),
                        value=k.to_bytes(8, "big")) for k in range(3 * n, 3 * n + 3)]
        await log.append(0, group)
        n += 1
        print(await log.end(0), flush=True)
    sys.stdin.read()

asyncio.run(main(sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.fixture
def directory(tmp_path: Path) -> LogDirectory:
    return LogDirectory(tmp_path / "store")


def start_owner(directory: LogDirectory, appends: int) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", OWNER, str(directory.path), LOG_ID.hex(), str(appends)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def note(directory: LogDirectory) -> Path:
    return directory.path / "log" / "0" / "owner.json"


def test_a_second_owner_is_refused_and_told_who_the_first_is(directory: LogDirectory) -> None:
    async def body() -> None:
        with start_owner(directory, 2) as process:
            assert [line(process) for _ in range(3)] == ["0\n", "3\n", "6\n"]
            second = directory.open()
            with pytest.raises(AtomlogError) as raised:
                await second.acquire(0)
            assert raised.value.code == "NOT_OWNER"
            assert f"process {process.pid}" in raised.value.message
            (detail,) = raised.value.details
            assert (detail["pid"], detail["endpoint"], detail["partition"]) == (process.pid, "/run/owner.sock", 0)
            assert second.owner_note(0)["pid"] == process.pid
            assert await values(second) == list(range(6))  # reading needs no lock
            with refused("NOT_OWNER", "not acquired"):
                await second.append(0, records(9))
            process.kill()

    run(directory, body)


def test_nothing_acknowledged_is_lost_when_the_owner_is_killed(directory: LogDirectory) -> None:
    async def body() -> None:
        acknowledged = 0
        with start_owner(directory, 1_000_000) as process:
            while acknowledged < 300:
                acknowledged = int(line(process))
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            for late in process.stdout:
                acknowledged = int(late) if late.endswith("\n") else acknowledged
        owner = await directory.owner()
        found = await values(owner)
        assert found == list(range(len(found)))
        assert acknowledged <= len(found) <= acknowledged + 3
        assert len(directory.segments()) > 1
        assert owner.owner_note(0)["pid"] == os.getpid()
        await owner.append(0, records(len(found)))

    run(directory, body)


def test_the_note_is_there_while_the_partition_is_owned(directory: LogDirectory) -> None:
    async def body() -> None:
        owner = await directory.owner(owner_info={"endpoint": "here", "user": "é"})
        assert json.loads(note(directory).read_text()) == {"pid": os.getpid(), "endpoint": "here", "user": "é"}
        await owner.release(0)
        assert not note(directory).exists()
        with refused("NOT_OWNER", "not acquired"):
            await owner.append(0, records(0))
        other = await directory.owner()
        with refused("NOT_OWNER", f"process {os.getpid()}"):
            await owner.acquire(0)
        await other.close()
        await owner.acquire(0)
        await owner.append(0, records(0))

    run(directory, body)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": 1, "pid": 2}'])
def test_an_unreadable_note_leaves_the_owner_unnamed(directory: LogDirectory, text: str) -> None:
    async def body() -> None:
        await directory.owner()
        note(directory).write_text(text)
        with refused("NOT_OWNER", "another process"):
            await directory.owner()
        note(directory).unlink()
        with refused("NOT_OWNER", "another process"):
            await directory.owner()

    run(directory, body)


def test_two_that_acquire_at_once_become_one_owner(directory: LogDirectory) -> None:
    async def body() -> None:
        log, other = directory.open(), directory.open()
        answers = await asyncio.gather(
            log.acquire(0), log.acquire(0), other.acquire(0), log.acquire(0), return_exceptions=True
        )
        assert [type(answer).__name__ for answer in answers] == ["NoneType", "NoneType", "UnavailableError", "NoneType"]
        await log.append(0, records(0))

    run(directory, body)


def test_a_cancelled_acquire_gives_the_lock_back(tmp_path: Path) -> None:
    files = FaultyFiles(syncs=False)
    directory = LogDirectory(tmp_path / "store", files=files)

    async def body() -> None:
        for turns in range(6):
            acquire = asyncio.create_task(directory.owner())
            for _ in range(turns):
                await asyncio.sleep(0)
            acquire.cancel()
            (answer,) = await asyncio.gather(acquire, return_exceptions=True)
            if isinstance(answer, BaseException):
                assert isinstance(answer, asyncio.CancelledError)
                assert not note(directory).exists()
                assert not files.open_files
            else:
                await answer.close()
        await directory.owner()

    run(directory, body)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EPERM])
@pytest.mark.parametrize(
    ("operation", "suffix"), [("open for writing", ".seg"), ("write_atomic", "owner.json"), ("write_at", "durable_end")]
)
def test_a_read_only_directory_is_read_and_not_owned(tmp_path: Path, error: int, operation: str, suffix: str) -> None:
    files = FaultyFiles()
    directory = LogDirectory(tmp_path / "store", files=files)

    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1))
        await owner.close()
        files.fail(operation, suffix, error)
        log = directory.open()
        with refused("STORE_READ_ONLY", "cannot be written"):
            await log.acquire(0)
        assert await values(log) == [0, 1]
        await directory.owner()  # nothing stayed locked

    run(directory, body)


def test_a_file_system_without_locks_is_refused(tmp_path: Path) -> None:
    files = FaultyFiles()
    directory = LogDirectory(tmp_path / "store", files=files)

    async def body() -> None:
        files.fail("lock", ".seg", errno.ENOLCK)
        with refused("STORE_LOCKED", "keeps no locks", "local disk"):
            await directory.owner()

    run(directory, body)


def test_a_file_system_whose_locks_lock_nothing_is_refused(
    directory: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SystemFile, "lock", lambda _: True)
            with refused("STORE_LOCKED", "locked again"):
                await directory.owner()
        await directory.owner()

    run(directory, body)


def child(path: Path, answers: Connection) -> None:
    """In a forked process: what the inherited log answers."""
    log, codes = INHERITED[0], []

    async def ask() -> None:
        for call in (log.append(0, records(9)), log.acquire(0)):
            try:
                await call
                codes.append("done")
            except AtomlogError as error:
                codes.append(error.code)
        codes.append(str(await log.end(0)))
        await log.close()

    asyncio.run(ask())
    answers.send(codes)


INHERITED: list[EmbeddedLog] = []


def test_a_forked_child_can_neither_append_nor_disturb_the_owner(directory: LogDirectory) -> None:
    """The child's pid differs; the lock is the same open file, so only the pid can tell."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")

    async def before() -> None:
        INHERITED[:] = [await directory.owner()]
        await INHERITED[0].append(0, records(0))

    async def after() -> None:
        owner = INHERITED.pop()
        with refused("NOT_OWNER", f"process {os.getpid()}"):
            await directory.owner()
        await owner.append(0, records(1))
        assert await values(directory.open()) == [0, 1]

    asyncio.run(before())
    process = context.Process(target=child, args=(directory.path, there))
    process.start()
    try:
        assert here.poll(30)
        assert here.recv() == ["NOT_OWNER", "NOT_OWNER", "1"]
    finally:
        process.kill()
        process.join()
    run(directory, after)


def test_a_child_that_lives_on_does_not_keep_a_released_lock(directory: LogDirectory) -> None:
    context = multiprocessing.get_context("fork")
    stop = context.Event()

    async def body() -> None:
        owner = await directory.owner()
        process = context.Process(target=stop.wait)
        process.start()
        await owner.close()
        await directory.owner()
        stop.set()
        process.join()

    run(directory, body)


def test_the_real_end_of_a_process_is_exit_70_with_one_line() -> None:
    code = f"from {end_process.__module__} import end_process; import atexit; atexit.register(print, 'no'); "
    code += "end_process('fsync of x failed')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (70, "", "atomlog: fsync of x failed\n")


def taken_away(path: Path, how: str) -> None:
    """What backup programs and editors do to a file: another one stands in its place afterwards, or none."""
    if how == "removed":
        path.unlink()
        return
    aside = path.with_suffix(".aside")
    shutil.copy(path, aside)
    if how == "replaced":
        os.replace(aside, path)
    else:
        os.rename(path, path.with_suffix(".old"))
        os.rename(aside, path)


@pytest.mark.parametrize("how", ["removed", "replaced", "renamed"])
@pytest.mark.parametrize("which", [0, -1], ids=["the locked segment", "the last segment"])
def test_an_owner_whose_segment_is_taken_away_writes_nothing_more(tmp_path: Path, how: str, which: int) -> None:
    directory = LogDirectory(tmp_path / "store", settings=Settings(segment_bytes=400, follow_poll_ms=1))

    async def body() -> None:
        owner = await directory.owner()
        for n in range(5):
            await owner.append(0, records(n))
        assert len(directory.segments()) > 2
        path = directory.segments()[which]
        kept = path.read_bytes()
        os.link(path, path.with_suffix(".kept"))
        taken_away(path, how)
        before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
        for _ in range(2):
            with corrupt_at(path, None):
                await owner.append(0, records(5))
        assert await owner.end(0) == 5
        assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before, "nothing was written"
        # Put back, the file is the one that is locked and written, and everything goes on.
        os.replace(path.with_suffix(".kept"), path)
        assert path.read_bytes() == kept
        await owner.append(0, records(5))
        assert await values(directory.open()) == [0, 1, 2, 3, 4, 5]

    run(directory, body)


def test_a_group_that_went_to_a_segment_taken_away_meanwhile_is_not_acknowledged(tmp_path: Path) -> None:
    class TakenAway(FaultyFiles):
        def check(self, operation: str, path: str, partly: Callable[[int], None] = lambda _: None) -> None:
            super().check(operation, path, partly)
            if operation == "sync" and path.endswith(".seg") and self.faults:
                self.faults.clear()
                os.rename(path, f"{path}.old")

    files = TakenAway()
    directory = LogDirectory(tmp_path / "store", files=files)

    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0))
        path = directory.segments()[0]
        files.fail("never", "", errno.EIO)
        with corrupt_at(path, None):
            await owner.append(0, records(1))
        os.rename(f"{path}.old", path)
        await owner.append(0, records(2))
        assert await values(directory.open()) == [0, 2]

    run(directory, body)


def test_a_note_of_the_process_that_owns_the_file_in_place_is_left_alone(directory: LogDirectory) -> None:
    async def body() -> None:
        first = await directory.owner()
        taken_away(directory.segments()[0], "renamed")
        second = await directory.owner()
        await second.append(0, records(0))
        await first.close()
        assert note(directory).exists()

    run(directory, body)
