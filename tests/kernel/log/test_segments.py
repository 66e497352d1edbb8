"""Several segment files: beginning them, reading across them, and finding one that is not where it belongs."""

import shutil
from pathlib import Path

import pytest

from atomlog.kernel.log import segments as implementation
from atomlog.kernel.log.embedded import create_log
from atomlog.kernel.log.frames import SegmentHeader
from atomlog.kernel.settings import Settings
from tests.kernel.log.support import (
    LOG_ID,
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

SMALL = Settings(segment_bytes=640, follow_poll_ms=1)


@pytest.fixture
def directory(tmp_path: Path) -> LogDirectory:
    return LogDirectory(tmp_path / "store", partitions=2, settings=SMALL, files=FaultyFiles(syncs=False))


async def filled(directory: LogDirectory, partition: int = 0, *, first: int = 0, groups: int = 12) -> None:
    """Two records a group, two groups a segment."""
    owner = await directory.owner(partition)
    for n in range(first, first + groups):
        await owner.append(partition, records(2 * n, 2 * n + 1))
    await owner.close()


def test_a_new_log_is_a_header_a_partition_and_no_record(directory: LogDirectory) -> None:
    async def body() -> None:
        assert sorted(entry.name for entry in (directory.path / "log").iterdir()) == ["0", "1"]
        for partition in (0, 1):
            (path,) = directory.segments(partition)
            assert path.name == "00000000000000000000.seg"
            header = SegmentHeader(log_id=LOG_ID, partition=partition, first=0, chain=bytes(16))
            assert path.read_bytes() == header.to_bytes()
            assert directory.durable_end(partition).read_bytes() == bytes(8)

    run(directory, body)


def test_a_log_is_not_made_over_another(directory: LogDirectory) -> None:
    async def body() -> None:
        with refused("INVALID_INPUT", "already holds a log"):
            create_log(directory.files, str(directory.path), bytes(16), 2)

    run(directory, body)


def test_a_segment_is_named_by_its_first_position_and_begins_when_the_last_is_full(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory)
        assert [path.name for path in directory.segments()] == [f"{first:020d}.seg" for first in range(0, 24, 4)]
        assert all(path.stat().st_size <= SMALL.segment_bytes for path in directory.segments())

    run(directory, body)


def test_a_group_larger_than_a_segment_gets_one_of_its_own(directory: LogDirectory) -> None:
    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, [record(0, size=5_000)])  # the first segment is empty: no second one beside it
        await owner.append(0, [record(1, size=5_000)])
        await owner.append(0, records(2))
        assert [path.name[17:20] for path in directory.segments()] == ["000", "001", "002"]
        assert await values(directory.open()) == [0, 1, 2]

    run(directory, body)


def test_a_reader_follows_across_segments_that_begin_while_it_reads(directory: LogDirectory) -> None:
    async def body() -> None:
        owner, reader = await directory.owner(), directory.open()
        for n in range(40):
            await owner.append(0, records(n))
            assert (await reader.read(0, n, bytes_max=1))[0].position == n
        assert len(directory.segments()) > 10
        assert await values(directory.open()) == list(range(40))

    run(directory, body)


def test_reading_starts_anywhere_in_any_segment(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory)
        for position in (23, 0, 11, 12, 4, 3, 22, 1):
            found = await directory.open().read(0, position, bytes_max=1)
            assert [entry.position for entry in found] == [position]

    run(directory, body)


def test_more_segments_than_may_be_open_are_read(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory, groups=80)
        assert len(directory.segments()) > 2 * implementation.OPEN_SEGMENTS_MAX
        reader = directory.open()
        assert await values(reader) == list(range(160))
        assert await values(reader) == list(range(160))
        files = directory.files
        assert isinstance(files, FaultyFiles)
        assert len(files.open_files) == implementation.OPEN_SEGMENTS_MAX
        await reader.close()
        assert not files.open_files

    run(directory, body)


def test_an_owner_holds_three_files_open_however_many_segments_it_began(directory: LogDirectory) -> None:
    async def body() -> None:
        owner = await directory.owner()
        for n in range(30):
            await owner.append(0, records(n, size=500))
        files = directory.files
        assert isinstance(files, FaultyFiles)
        last = f"{directory.segments()[-1]}.tmp"  # it was opened under this name
        assert sorted(files.open_files) == sorted([str(directory.segments()[0]), last, str(directory.durable_end())])
        await owner.close()
        assert not files.open_files

    run(directory, body)


def test_the_sparse_index_finds_every_position_of_a_long_segment(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path / "store", files=FaultyFiles(syncs=False))

    async def body() -> None:
        owner = await directory.owner()
        for n in range(100):
            await owner.append(0, [record(4 * n + k, size=5_000) for k in range(4)])
        reader = directory.open()
        for position in [*range(399, 0, -7), *range(0, 400, 11)]:
            found = await reader.read(0, position, bytes_max=1)
            assert [entry.position for entry in found] == [position]
        assert len(directory.segments()) == 1

    run(directory, body)


def test_a_damaged_group_is_named_by_every_read_of_it_and_by_no_other(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory)
        path = directory.segments()[2]  # positions 8 to 11
        begin = group_offsets(path)[1]
        flip(path, begin + 60)
        reader = directory.open()
        for position in (10, 11, 10):
            with corrupt_at(path, begin):
                await reader.read(0, position, bytes_max=1)
        assert len(await reader.read(0, 8, bytes_max=10_000)) == 2
        assert len(await reader.read(0, 12, bytes_max=10_000)) == 4

    run(directory, body)


def test_a_damaged_group_header_is_found_on_the_way_to_a_later_position(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory)
        path = directory.segments()[2]
        flip(path, 56)  # its magic
        with corrupt_at(path, 56):
            await directory.open().read(0, 10, bytes_max=1)

    run(directory, body)


def test_segments_swapped_between_partitions_are_found_by_reader_and_owner(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory, 0)
        await filled(directory, 1, first=100)
        for number in (2, -1):
            one, other = directory.segments(0)[number], directory.segments(1)[number]
            swap(one, other)
            for partition, path in ((0, one), (1, other)):
                with corrupt_at(path, 0):
                    await values(directory.open(), partition)
            if number == -1:
                with corrupt_at(one, 0):
                    await directory.owner(0)
            swap(one, other)
        assert await values(directory.open(), 0) == list(range(24))

    run(directory, body)


def test_segments_swapped_inside_a_partition_are_found(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory)
        one, other = directory.segments()[2:4]
        swap(one, other)
        with corrupt_at(one, 0):
            await values(directory.open())

    run(directory, body)


def test_a_segment_of_another_log_is_found(directory: LogDirectory, tmp_path: Path) -> None:
    foreign = LogDirectory(tmp_path / "foreign", log_id=bytes(16), partitions=2, settings=SMALL)

    async def body() -> None:
        await filled(directory)
        await filled(foreign)
        for number in (0, -1):
            mine = directory.segments()[number]
            kept = mine.read_bytes()
            shutil.copy(foreign.segments()[number], mine)
            with refused("LOG_MISMATCH", str(mine)):
                await values(directory.open())
            if number == -1:
                with refused("LOG_MISMATCH", str(mine)):
                    await directory.owner()
            mine.write_bytes(kept)
        await foreign.close()

    run(directory, body)


def test_a_segment_of_another_history_of_the_same_log_is_found(directory: LogDirectory) -> None:
    """Same log, same partition, same name, all checksums right: a copy from a restored backup that went on."""

    async def body() -> None:
        await filled(directory, groups=3)
        twin = directory.copied_to(directory.path.with_name("twin"))
        await filled(directory, first=3, groups=9)
        await filled(twin, first=103, groups=9)
        assert [path.name for path in twin.segments()] == [path.name for path in directory.segments()]
        shutil.copy(twin.segments()[3], directory.segments()[3])
        with corrupt_at(directory.segments()[3], 0):
            await values(directory.open())
        with corrupt_at(directory.segments()[3], 0):  # not only in passing
            await directory.open().read(0, 13, bytes_max=1)
        await twin.close()

    run(directory, body)


def test_a_group_put_from_one_place_to_another_is_found(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory, groups=2)
        (path,) = directory.segments()
        first, second, stop = group_offsets(path)
        raw = path.read_bytes()
        path.write_bytes(raw[:first] + raw[second:stop] + raw[first:second])
        with corrupt_at(path, first):
            await values(directory.open())
        with corrupt_at(path, first):
            await directory.owner()

    run(directory, body)


def test_a_missing_segment_is_found(directory: LogDirectory) -> None:
    async def body() -> None:
        await filled(directory)
        kept = directory.segments()
        kept[2].unlink()
        with corrupt_at(kept[2], None):
            await values(directory.open())
        with corrupt_at(kept[3], 0):
            await directory.open().read(0, 12, bytes_max=1)
        kept[-1].unlink()
        with corrupt_at(kept[-2], kept[-2].stat().st_size):
            await directory.owner()

    run(directory, body)


def test_a_last_segment_without_a_group_is_kept_and_used(directory: LogDirectory) -> None:
    """What a kill between the beginning of a segment and its first group leaves."""

    async def body() -> None:
        await filled(directory, groups=3)
        last = directory.segments()[-1]
        last.write_bytes(last.read_bytes()[:56])
        directory.set_durable_end(4)
        owner = await directory.owner()
        await owner.append(0, records(40, 50))
        assert await values(directory.open()) == [0, 1, 2, 3, 40, 50]
        assert directory.segments()[-1] == last

    run(directory, body)


@pytest.mark.parametrize("bit", range(0, 56 * 8, 5))
def test_a_damaged_segment_header_is_corruption(directory: LogDirectory, bit: int) -> None:
    async def body() -> None:
        await filled(directory, groups=3)
        last = directory.segments()[-1]
        flip(last, bit // 8, bit % 8)
        with corrupt_at(last, 0):
            await directory.owner()
        with corrupt_at(last, 0):
            await directory.open().read(0, 5, bytes_max=1)

    run(directory, body)


def test_a_segment_of_a_newer_version_says_so(directory: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr("atomlog.kernel.log.frames.SEGMENT_VERSION", 2)
        newer = SegmentHeader(log_id=LOG_ID, partition=0, first=0, chain=bytes(16)).to_bytes()
        monkeypatch.undo()
        directory.segments()[0].write_bytes(newer)
        with refused("STORE_TOO_NEW", "version 2"):
            await directory.owner()

    run(directory, body)


def test_followers_in_the_owners_process_do_not_read_files_for_what_was_just_appended(
    directory: LogDirectory,
) -> None:
    async def body() -> None:
        owner = await directory.owner()
        await owner.append(0, records(0, 1, 2))
        files = directory.files
        assert isinstance(files, FaultyFiles)
        files.calls.clear()
        one, other = [await owner.read(0, 0, bytes_max=10_000) for _ in range(2)]
        assert len(one) == len(other) == 3
        assert all(mine is theirs for mine, theirs in zip(one, other, strict=True))
        assert [entry.position for entry in await owner.read(0, 1, bytes_max=1)] == [1]
        assert not [call for call in files.calls if call[0] == "open"]

    run(directory, body)


def test_the_cache_is_bounded_and_what_it_dropped_is_read_from_files(
    directory: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        monkeypatch.setattr(implementation, "CACHE_BYTES", 10_000)
        owner = await directory.owner()
        for n in range(60):
            await owner.append(0, records(n, size=300))
        cache = owner._readers[0].cache
        assert len(cache._groups) == len(cache._firsts) < 20
        assert await values(owner) == list(range(60))
        assert await values(owner, bytes_max=1) == list(range(60))

    run(directory, body)


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
