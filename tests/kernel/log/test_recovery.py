"""What a new owner finds at the end of the log: torn tails are cut, damage is refused with file and byte."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomlog.kernel.log import frames
from atomlog.kernel.settings import Settings
from tests.kernel.log.support import (
    FaultyFiles,
    LogDirectory,
    corrupt_at,
    flip,
    group_offsets,
    record,
    records,
    refused,
    run,
    values,
)


@pytest.fixture
def directory(tmp_path: Path) -> LogDirectory:
    return LogDirectory(tmp_path / "store", files=FaultyFiles(syncs=False))


async def three_groups(directory: LogDirectory) -> tuple[Path, list[int]]:
    """Positions 0–1, 2–4, 5–7 in one segment, all acknowledged; its path and the offsets of its groups."""
    owner = await directory.owner()
    for group in (records(0, 1), records(2, 3, 4), records(5, 6, 7)):
        await owner.append(0, group)
    await owner.close()
    (path,) = directory.segments()
    return path, list(group_offsets(path))


def test_a_torn_tail_of_every_length_is_cut_whole(directory: LogDirectory) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        whole = path.read_bytes()
        for size in range(offsets[2], offsets[3]):
            path.write_bytes(whole[:size])
            directory.set_durable_end(5)
            owner = await directory.owner()
            assert await owner.end(0) == 5
            assert owner.tail_was_cut(0) == (size > offsets[2])
            assert path.stat().st_size == offsets[2]
            assert await values(owner) == [0, 1, 2, 3, 4]
            await owner.close()

    run(directory, body)


def test_after_a_cut_the_log_goes_on_where_it_was_cut(directory: LogDirectory) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        path.write_bytes(path.read_bytes()[: offsets[3] - 1])
        directory.set_durable_end(5)
        owner = await directory.owner()
        await owner.append(0, records(50, 60))
        assert await values(owner) == [0, 1, 2, 3, 4, 50, 60]
        assert await values(directory.open()) == [0, 1, 2, 3, 4, 50, 60]

    run(directory, body)


def test_a_whole_tail_that_was_not_yet_published_is_kept(directory: LogDirectory) -> None:
    async def body() -> None:
        await three_groups(directory)
        directory.set_durable_end(2)
        assert await values(directory.open()) == [0, 1]  # a reader before any owner
        owner = await directory.owner()
        assert await values(owner) == list(range(8))
        assert not owner.tail_was_cut(0)
        assert await values(directory.open()) == list(range(8))

    run(directory, body)


def test_a_tail_is_synced_before_it_is_published(tmp_path: Path) -> None:
    files = FaultyFiles()
    directory = LogDirectory(tmp_path / "store", files=files)

    async def body() -> None:
        path, offsets = await three_groups(directory)
        path.write_bytes(path.read_bytes()[: offsets[3] - 1])
        directory.set_durable_end(2)
        files.calls.clear()
        await directory.owner()
        steps = [(operation, Path(where).name) for operation, where in files.calls]
        order = [steps.index(step) for step in (("truncate", path.name), ("sync", path.name))]
        assert order == sorted(order)
        assert order[-1] < steps.index(("write_at", "durable_end")) < steps.index(("sync", "durable_end"))

    run(directory, body)


def test_every_flipped_bit_in_a_last_group_that_nobody_was_told_of_cuts_it(directory: LogDirectory) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        whole = path.read_bytes()
        for offset in range(offsets[2], offsets[3]):
            path.write_bytes(whole)
            flip(path, offset, offset % 8)
            directory.set_durable_end(5)
            owner = await directory.owner()
            assert owner.tail_was_cut(0)
            assert await owner.end(0) == 5
            await owner.close()

    run(directory, body)


def test_every_flipped_bit_below_durable_end_is_corruption_and_changes_nothing(directory: LogDirectory) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        whole = path.read_bytes()
        for offset in range(offsets[0], offsets[3], 3):
            path.write_bytes(whole)
            flip(path, offset, offset % 8)
            damaged = path.read_bytes()
            begin = max(start for start in offsets if start <= offset)
            owner = directory.open()
            with corrupt_at(path, begin):
                await owner.acquire(0)
            assert path.read_bytes() == damaged
            assert not (path.parent / "owner.json").exists()

    run(directory, body)


def test_a_bad_group_before_a_whole_one_is_corruption_even_when_nobody_was_told_of_either(
    directory: LogDirectory,
) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        whole = path.read_bytes()
        for offset in range(offsets[1], offsets[2]):
            path.write_bytes(whole)
            flip(path, offset, offset % 8)
            directory.set_durable_end(2)
            owner = directory.open()
            with corrupt_at(path, offsets[1]):
                await owner.acquire(0)

    run(directory, body)


def test_a_whole_group_is_found_behind_many_megabytes_of_a_bad_one(directory: LogDirectory) -> None:
    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, [record(0, size=9_000_000)])
        await owner.append(0, records(1))
        await owner.close()
        (path,) = directory.segments()
        flip(path, 5_000_000)
        directory.set_durable_end(0)
        with corrupt_at(path, 56):
            await directory.owner()

    run(directory, body)


def test_a_group_of_zeros_or_of_the_magic_alone_is_cut(directory: LogDirectory) -> None:
    async def body() -> None:
        path, _ = await three_groups(directory)
        whole = path.read_bytes()
        for tail in (bytes(1), bytes(10_000), frames.GROUP_MAGIC * 3_000, b"\xa7AG"):
            path.write_bytes(whole + tail)
            owner = await directory.owner()
            assert owner.tail_was_cut(0)
            assert path.read_bytes() == whole
            await owner.close()

    run(directory, body)


def test_a_lost_tail_that_was_acknowledged_is_corruption(directory: LogDirectory) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        path.write_bytes(path.read_bytes()[: offsets[2]])
        with corrupt_at(path, offsets[2]):
            await directory.owner()
        with corrupt_at(path, offsets[2]):
            await values(directory.open())

    run(directory, body)


@pytest.mark.parametrize("content", [None, b"", b"1234567", b"123456789"])
def test_a_durable_end_that_is_missing_or_misshapen_is_made_anew_by_an_owner_only(
    directory: LogDirectory, content: bytes | None
) -> None:
    async def body() -> None:
        await three_groups(directory)
        end = directory.durable_end()
        end.unlink() if content is None else end.write_bytes(content)
        reader = directory.open()
        with corrupt_at(end, None):
            await reader.end(0)
        await directory.owner()
        assert end.read_bytes() == (8).to_bytes(8, "little")
        assert await values(reader) == list(range(8))

    run(directory, body)


def test_a_durable_end_inside_a_group_stops_a_reader_until_an_owner_sets_it_right(directory: LogDirectory) -> None:
    async def body() -> None:
        path, offsets = await three_groups(directory)
        directory.set_durable_end(6)
        with corrupt_at(path, offsets[2]):
            await values(directory.open())
        await directory.owner()
        assert await values(directory.open()) == list(range(8))

    run(directory, body)


def test_a_checkpoint_after_a_stale_durable_end_waits_for_an_owner(directory: LogDirectory) -> None:
    """After a power cut durable_end may be older than a projection that was synced."""

    async def body() -> None:
        await three_groups(directory)
        directory.set_durable_end(2)
        reader = directory.open()
        assert await reader.end(0) == 2
        for position in range(3, 9):
            assert not await reader.read(0, position, bytes_max=100)
            assert not await reader.wait(0, position, 0)
        with refused("LOG_DIVERGED", "position 9"):
            await reader.read(0, 9, bytes_max=100)
        await directory.owner()
        assert len(await reader.read(0, 5, bytes_max=1_000_000)) == 3

    run(directory, body)


def test_the_first_segment_missing_is_corruption(directory: LogDirectory) -> None:
    async def body() -> None:
        path, _ = await three_groups(directory)
        path.unlink()
        with corrupt_at(path, None):
            await directory.owner()
        with corrupt_at(path.parent, None):
            await values(directory.open())

    run(directory, body)


def test_temporary_files_of_a_killed_owner_are_removed(directory: LogDirectory) -> None:
    async def body() -> None:
        path, _ = await three_groups(directory)
        (path.parent / "00000000000000000008.seg.tmp").write_bytes(b"half a header")
        (path.parent / "owner.json.0a0b0c0d.tmp").write_bytes(b"{")
        owner = await directory.owner()
        assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, "durable_end", "owner.json"]
        assert await values(owner) == list(range(8))

    run(directory, body)


SECTOR = 64


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    lost=st.lists(st.booleans(), min_size=40, max_size=40),
    cut=st.integers(0, 3_000),
    rolled=st.booleans(),
)
def test_a_power_cut_in_the_last_group_never_refuses_and_never_loses_an_acknowledged_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], lost: list[bool], cut: int, rolled: bool
) -> None:
    """Any of the sectors of the group that was being written may be missing, and the end of the file too."""
    path = tmp_path_factory.mktemp("cut") / "store"
    small = Settings(segment_bytes=300 if rolled else 1 << 20)
    directory = LogDirectory(path, files=FaultyFiles(syncs=False), settings=small)

    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1))
        await owner.append(0, records(2))
        before = directory.segments()
        await owner.append(0, [record(10 + n, size=8 + size) for n, size in enumerate(sizes)])
        await owner.close()
        last = directory.segments()[-1]
        start = group_offsets(last)[-2]
        assert (last in before) != rolled
        raw = bytearray(last.read_bytes())
        for number, is_lost in enumerate(lost):
            at = start + number * SECTOR
            if is_lost and at < len(raw):
                raw[at : at + SECTOR] = bytes(min(SECTOR, len(raw) - at))
        damaged = bytes(raw[: max(start, len(raw) - cut)])
        is_whole = damaged == last.read_bytes()
        last.write_bytes(damaged)
        directory.set_durable_end(3)
        again = await directory.owner()
        assert await values(again) == [0, 1, 2] + ([10 + n for n in range(len(sizes))] if is_whole else [])
        await again.append(0, records(99))
        assert (await values(again))[-1] == 99

    run(directory, body)
