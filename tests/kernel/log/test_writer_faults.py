"""Disk full, write errors, failed fsyncs: what the owner does, and what is left on the disk."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import ThreadWorkers
from tests.kernel.log.support import FaultyFiles, LogDirectory, group_offsets, records, refused, run, values

T = TypeVar("T")
SMALL = Settings(segment_bytes=400, follow_poll_ms=1)  # one group of two records fills a segment


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(syncs=False)


@pytest.fixture
def directory(tmp_path: Path, files: FaultyFiles) -> LogDirectory:
    return LogDirectory(tmp_path / "store", files=files)


async def fails(owner: EmbeddedLog, error: int, *numbers: int) -> None:
    with pytest.raises(OSError) as raised:
        await owner.append(0, records(*numbers))
    assert raised.value.errno == error


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("part_bytes", [0, 1, 39, 40, 150, 281])
def test_a_write_error_leaves_a_clean_end_and_appending_goes_on(
    directory: LogDirectory, files: FaultyFiles, error: int, part_bytes: int
) -> None:
    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1))
        files.fail("append", ".seg", error, part_bytes=part_bytes)
        await fails(owner, error, 2, 3)
        (path,) = directory.segments()
        assert path.stat().st_size == group_offsets(path)[-1] == 56 + 282
        assert await owner.end(0) == 2
        await owner.renew(0)
        await owner.append(0, records(4, 5))
        assert await values(owner) == await values(directory.open()) == [0, 1, 4, 5]
        await owner.close()
        assert await values(await directory.owner()) == [0, 1, 4, 5]
        assert not directory.deaths

    run(directory, body)


def test_a_write_error_that_cannot_be_cut_back_ends_the_process(directory: LogDirectory, files: FaultyFiles) -> None:
    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0))
        files.fail("append", ".seg", errno.EIO, part_bytes=77)
        files.fail("truncate", ".seg", errno.EIO)
        await fails(owner, errno.EIO, 1)
        assert len(directory.deaths) == 1
        with refused("CORRUPT", "new process"):
            await owner.append(0, records(2))
        await owner.close()
        again = await directory.owner()  # the next process finds a torn tail
        assert again.tail_was_cut(0)
        assert await values(again) == [0]

    run(directory, body)


def test_a_failed_fsync_ends_the_process_and_nothing_later_is_accepted(tmp_path: Path, files: FaultyFiles) -> None:
    directory = LogDirectory(tmp_path / "store", partitions=2, files=files)

    async def body() -> None:
        owner = await directory.owner(0)
        await owner.acquire(1)
        await owner.append(0, records(0))
        files.fail("sync", ".seg", errno.EIO)
        await fails(owner, errno.EIO, 1)
        (death,) = directory.deaths
        assert "fsync" in death
        assert str(directory.segments()[0]) in death
        writes = [call for call in files.calls if call[0] in ("append", "write_at")]
        for partition in (0, 1, 0):
            with refused("CORRUPT", "fsync"):
                await owner.append(partition, records(2))
            with refused("CORRUPT", "fsync"):
                await owner.acquire(partition)
        assert [call for call in files.calls if call[0] in ("append", "write_at")] == writes
        assert await owner.end(0) == await directory.open().end(0) == 1  # never published
        assert await values(owner) == [0]

    run(directory, body)


def test_a_failed_fsync_while_acquiring_ends_the_process(directory: LogDirectory, files: FaultyFiles) -> None:
    async def body() -> None:
        files.fail("sync", ".seg", errno.EIO)
        with pytest.raises(OSError, match="injected into sync"):
            await directory.owner()
        assert len(directory.deaths) == 1

    run(directory, body)


def test_an_end_that_cannot_be_published_ends_the_process(directory: LogDirectory, files: FaultyFiles) -> None:
    async def body() -> None:
        owner = await directory.owner()
        files.fail("write_at", "durable_end", errno.EIO)
        await fails(owner, errno.EIO, 0)
        assert len(directory.deaths) == 1
        assert await owner.end(0) == 0

    run(directory, body)


def test_a_group_is_written_synced_and_published_in_this_order(directory: LogDirectory, files: FaultyFiles) -> None:
    async def body() -> None:
        owner = await directory.owner()
        files.calls.clear()
        await owner.append(0, records(0, 1))
        await owner.append(0, records(2))
        segment = str(directory.segments()[0])
        one = [("append", segment), ("sync", segment), ("write_at", str(directory.durable_end()))]
        assert files.calls == one * 2

    run(directory, body)


@pytest.mark.parametrize("operation", ["open for writing", "truncate", "append", "replace"])
def test_a_segment_that_cannot_begin_leaves_the_last_one_in_use(
    tmp_path: Path, files: FaultyFiles, operation: str
) -> None:
    directory = LogDirectory(tmp_path / "store", files=files, settings=SMALL)

    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1))
        files.fail(operation, ".seg" if operation == "replace" else ".tmp", errno.ENOSPC, times=2, part_bytes=9)
        await fails(owner, errno.ENOSPC, 2, 3)
        await fails(owner, errno.ENOSPC, 2, 3)
        assert len(directory.segments()) == 1
        await owner.append(0, records(4, 5))
        assert len(directory.segments()) == 2
        assert await values(directory.open()) == [0, 1, 4, 5]
        await owner.close()
        assert await values(await directory.owner()) == [0, 1, 4, 5]
        assert not directory.deaths

    run(directory, body)


def test_a_write_error_right_after_a_segment_began_leaves_it_empty_and_in_use(
    tmp_path: Path, files: FaultyFiles
) -> None:
    directory = LogDirectory(tmp_path / "store", files=files, settings=SMALL)

    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1))
        files.fail("append", ".seg.tmp", errno.ENOSPC, part_bytes=100, skip=1)  # the header goes well
        await fails(owner, errno.ENOSPC, 2, 3)
        assert [path.stat().st_size for path in directory.segments()] == [56 + 282, 56]
        await owner.append(0, records(4))
        assert await values(directory.open()) == [0, 1, 4]
        assert len(directory.segments()) == 2
        assert not directory.deaths

    run(directory, body)


@pytest.mark.parametrize(("operation", "suffix"), [("sync", ".seg.tmp"), ("sync_directory", "log/0")])
def test_a_failed_fsync_of_a_beginning_segment_ends_the_process(
    tmp_path: Path, files: FaultyFiles, operation: str, suffix: str
) -> None:
    directory = LogDirectory(tmp_path / "store", files=files, settings=SMALL)

    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1))
        files.fail(operation, suffix, errno.EIO)
        await fails(owner, errno.EIO, 2, 3)
        assert len(directory.deaths) == 1
        await owner.close()
        assert await values(await directory.owner()) == [0, 1]

    run(directory, body)


class HeldWorkers(ThreadWorkers):
    """Calls that are still to run, until the test runs them: a disk that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_holding = False
        self.held: list[Callable[[], object]] = []
        self._answers: list[tuple[asyncio.Future[object], Callable[[], object]]] = []

    async def run(self, call: Callable[[], T]) -> T:
        if not self.is_holding:
            return call()
        self.held.append(call)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers.append((answer, call))  # type: ignore[arg-type]
        return await answer

    def let_go(self) -> None:
        """Run what somebody still waits for."""
        for answer, call in self._answers:
            if not answer.done():
                answer.set_result(call())


def test_a_cancelled_append_that_had_not_started_never_happens(directory: LogDirectory) -> None:
    workers = HeldWorkers()

    async def body() -> None:
        owner = await directory.owner(workers=workers)
        workers.is_holding = True
        append = asyncio.create_task(owner.append(0, records(0)))
        await asyncio.sleep(0)
        append.cancel()
        await asyncio.gather(append, return_exceptions=True)
        workers.is_holding = False
        await owner.renew(0)
        with pytest.raises(RuntimeError, match="given up"):
            workers.held[0]()
        await owner.append(0, records(1))
        assert await values(owner) == [1]

    run(directory, body)


def test_a_cancelled_append_that_ran_is_there_after_renew(directory: LogDirectory) -> None:
    workers = HeldWorkers()

    async def body() -> None:
        owner = await directory.owner(workers=workers)
        workers.is_holding = True
        append = asyncio.create_task(owner.append(0, records(0, 1)))
        await asyncio.sleep(0)
        append.cancel()
        await asyncio.gather(append, return_exceptions=True)
        workers.held[0]()
        workers.is_holding = False
        waiting = asyncio.create_task(owner.wait(0, 5, 60))
        await asyncio.sleep(0)
        await owner.renew(0)
        assert await values(owner) == [0, 1]
        await owner.append(0, records(2, 3, 4, 5))
        assert await waiting
        assert await values(directory.open()) == [0, 1, 2, 3, 4, 5]

    run(directory, body)


def test_a_second_append_at_the_same_time_is_a_mistake_of_the_caller(directory: LogDirectory) -> None:
    async def body() -> None:
        owner = await directory.owner()
        first = asyncio.create_task(owner.append(0, records(0)))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="under way"):
            await owner.append(0, records(1))
        await first
        assert await values(owner) == [0]

    run(directory, body)


def test_releasing_waits_for_the_append_that_is_under_way(directory: LogDirectory) -> None:
    async def body() -> None:
        owner = await directory.owner()
        append = asyncio.create_task(owner.append(0, records(0)))
        await asyncio.sleep(0)
        await asyncio.gather(owner.release(0), owner.acquire(0), append)
        await owner.append(0, records(1))
        assert await values(owner) == await values(directory.open()) == [0, 1]

    run(directory, body)


def test_an_append_that_comes_while_the_partition_is_released_writes_nothing(directory: LogDirectory) -> None:
    workers = HeldWorkers()

    async def body() -> None:
        owner = await directory.owner(workers=workers)
        workers.is_holding = True
        cancelled = asyncio.create_task(owner.append(0, records(0)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        late = asyncio.create_task(owner.append(0, records(1)))  # waits for the cancelled one
        await asyncio.sleep(0)
        release = asyncio.create_task(owner.release(0))  # so does this
        await asyncio.sleep(0)
        workers.is_holding = False
        workers.let_go()
        await release
        with refused("NOT_OWNER", "released"):
            await late
        assert await values(directory.open()) == []

    run(directory, body)
