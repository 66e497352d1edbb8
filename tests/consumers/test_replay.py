"""`replay --until`: a store as of then, that opens and reads like any other, and takes no writes."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.content_digest import content_digest
from atomlog.consumers.log_dump import log_dump
from atomlog.consumers.parts import open_parts
from atomlog.consumers.rebuild import first_error, verify
from atomlog.consumers.replay import replay_until, resolve_until
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import AtomlogError, DeniedError, UnavailableError, fail
from atomlog.kernel.system import SystemFiles
from atomlog.projections.ids import Ids
from tests.consumers.worlds import QUICK, World, run, until
from tests.house.tree import ROOT

LONG = "長い文 " * 12_000  # over 64 KiB: lies in the blob store


async def filled(path: Path) -> tuple[str, list[int]]:
    """A real store with sealed content, a blob, revisions and memberships; the position after each write."""
    directory = str(path / "store")
    places: list[int] = []
    async with await AsyncStore.open(directory, settings=QUICK) as store:
        for number in range(8):
            changes: list[dict[str, Any]] = [
                {"op": "create", "key": f"t{number}", "schema": "source", "value": {"text": f"tea {number}"}}
            ]
            if number == 2:
                changes.append({"op": "create", "key": "long", "schema": "source", "value": {"text": LONG}})
            result = await store.write({"space": "notes", "idempotency_key": f"k{number}", "changes": changes})
            places.append(result.receipt.position)
    return directory, places


async def texts(directory: str, **options: Any) -> list[str]:
    """The texts of all keys that are there, in order."""
    found = []
    async with await AsyncStore.open(directory, create=False, settings=QUICK, **options) as store:
        for key in [*(f"key:t{number}" for number in range(8)), "key:long"]:
            try:
                page = await store.get(key, space="notes")
            except DeniedError:  # not there yet
                continue
            found.append(page.to_dict()["atoms"][0]["value"]["text"])
    return found


async def digest_of(directory: str, at: int) -> str:
    config = StoreConfig.load(SystemFiles(), directory)
    parts = open_parts(directory, config, settings=QUICK, read_only=True)
    async with await AsyncStore.open(directory, create=False, settings=QUICK, projections=("ids",)) as store:
        await store.views["ids"].wait_for({0: at}, parts.machine.clock.monotonic_us() + 10_000_000)
        async with store.views["ids"].pinned() as ids:
            assert isinstance(ids, Ids)
            found = await content_digest(ids, parts.content, {0: at})
    await parts.close()
    return found


def test_a_store_as_of_a_position_reads_as_the_source_did_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        source, places = await filled(tmp_path)
        target = str(tmp_path / "then")
        seen: list[tuple[str, int, int]] = []
        report = await replay_until(
            source, target, positions={0: places[3]}, settings=QUICK, progress=lambda *step: seen.append(step)
        )
        assert report.positions == {0: places[3]}
        assert report.records == places[3] + 1
        assert ("log", report.records, report.records) in seen
        assert {name for name, _, _ in seen} == {"log", "ids", "relations", "postings", "vectors"}
        assert await texts(target) == ["tea 0", "tea 1", "tea 2", "tea 3", LONG]
        assert len(await texts(source)) == 9
        assert await digest_of(target, places[3]) == await digest_of(source, places[3])
        assert not Path(f"{target}.partial").exists()
        # The same history, cut: not another one that only looks alike.
        chains = []
        for directory in (source, target):
            config = StoreConfig.load(SystemFiles(), directory)
            parts = open_parts(directory, config, settings=QUICK, read_only=True)
            rows = [row async for row in log_dump(parts.log, config.genesis(0), 0, until=places[3] + 1)]
            chains.append([(row["chain"], row["verdict"]) for row in rows])
            await parts.close()
        assert chains[0] == chains[1]
        assert first_error(await verify(target, ["ids", "vectors"], settings=QUICK)) is None

    run(scenario())


def test_the_copy_says_where_it_came_from_and_takes_no_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        source, places = await filled(tmp_path)
        target = str(tmp_path / "then")
        await replay_until(source, target, positions={0: places[1]}, settings=QUICK)
        config = StoreConfig.load(SystemFiles(), target)
        assert config.replay is not None
        assert config.replay.source == source
        assert config.replay.positions == {0: places[1]}
        assert config.read_only
        assert config.log_id == StoreConfig.load(SystemFiles(), source).log_id
        assert not Path(target, "master.key").exists()
        async with await AsyncStore.open(target, create=False, settings=QUICK) as store:
            change = {"op": "create", "key": "x", "schema": "source", "value": {"text": "x"}}
            with pytest.raises(AtomlogError) as caught:
                await store.write({"space": "notes", "idempotency_key": "x", "changes": [change]})
            assert caught.value.code == "STORE_READ_ONLY"

    run(scenario())


def test_a_time_means_the_last_batch_recorded_at_or_before_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, partitions=2)
        for partition, batches in enumerate((6, 3)):
            await world.write(batches, partition)
        times = [record.batch().recorded_at_us for record in world.builders[0].records if record.kind == "Batch"]
        parts = open_parts(world.root, world.config, settings=QUICK, read_only=True)
        found = [await resolve_until(parts, None, time_us) for time_us in (times[3], times[3] - 1, times[0] - 1)]
        assert found == [{0: 4, 1: 3}, {0: 3, 1: 3}, {0: -1, 1: -1}]
        await parts.close()
        report = await replay_until(world.root, str(tmp_path / "then"), time_us=times[0], settings=QUICK)
        assert report.positions == {0: 1, 1: 1}
        assert [one.positions for one in report.projections] == [{0: 1, 1: 1}] * 4

    run(scenario())


def test_a_target_that_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, partitions=2)
        end = await world.write(3)
        await world.close()
        target = str(tmp_path / "then")
        year_3000_us = 32_503_680_000_000_000
        cases: list[tuple[dict[str, Any], str]] = [
            ({"positions": {0: end, 1: -1}}, "from 0 to"),
            ({"positions": {0: -2, 1: -1}}, "from 0 to"),
            ({"positions": {0: 1}}, "each of the 2 partitions"),
            ({"positions": {0: 1, 1: -1, 2: 0}}, "each of the 2 partitions"),
            ({"time_us": year_3000_us}, "future"),
            ({}, "either"),
            ({"positions": {0: 1, 1: -1}, "time_us": 1}, "either"),
        ]
        for arguments, told in cases:
            with pytest.raises(AtomlogError) as caught:
                await replay_until(world.root, target, settings=QUICK, **arguments)
            assert caught.value.code == "INVALID_INPUT"
            assert told in caught.value.message
        for taken in (world.root, str(Path(world.root, "store.json"))):
            with pytest.raises(AtomlogError, match="in use"):
                await replay_until(world.root, taken, positions={0: 1, 1: -1}, settings=QUICK)
        (tmp_path / "other.partial").mkdir()
        (tmp_path / "other.partial" / "mine").touch()
        with pytest.raises(AtomlogError, match="in use by something else"):
            await replay_until(world.root, str(tmp_path / "other"), positions={0: 1, 1: -1}, settings=QUICK)
        assert (tmp_path / "other.partial" / "mine").exists()
        with pytest.raises(AtomlogError, match="STORE_NOT_FOUND"):
            await replay_until(str(tmp_path / "nowhere"), target, positions={0: 1}, settings=QUICK)
        assert not Path(target).exists()
        assert not Path(f"{target}.partial").exists()

    run(scenario())


REPLAY = """
import asyncio, sys
from atomlog.consumers.replay import replay_until
def progress(name, done, total):
    print(name, flush=True)
    sys.stdin.readline()
asyncio.run(replay_until(sys.argv[1], sys.argv[2], positions={0: int(sys.argv[3])}, progress=progress))
"""


@pytest.mark.parametrize("phase", ["log", "ids"])
def test_a_killed_replay_is_no_store_and_the_next_one_goes_on_with_the_log(tmp_path: Path, phase: str) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(40)
        await world.close()
        target = str(tmp_path / "then")
        command = [sys.executable, "-c", REPLAY, world.root, target, str(end - 5)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            while process.stdout.readline().strip() != phase:
                process.stdin.write("\n")
                process.stdin.flush()
            with pytest.raises(AtomlogError, match="STORE_LOCKED"):
                await replay_until(world.root, target, positions={0: 3}, settings=QUICK)
            process.send_signal(signal.SIGKILL)
        assert not Path(target).exists()
        assert Path(f"{target}.partial").exists()

        resumed = 0

        async def again() -> bool:
            nonlocal resumed
            try:
                report = await replay_until(world.root, target, positions={0: end - 5}, settings=QUICK)
                resumed = report.resumed
            except UnavailableError:  # the killed one's own processes are still ending
                return False
            return True

        await until(again, "the second replay")
        assert resumed == end - 4
        assert StoreConfig.load(SystemFiles(), target).replay is not None
        assert first_error(await verify(target, ["ids"], settings=QUICK)) is None

    run(scenario())


def test_a_log_that_cannot_be_read_to_there_gives_no_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(5)
        await world.log.append(0, [replace(world.builders[0].records[-1].record, seq=5, rule=2)])
        await world.close()
        target = str(tmp_path / "then")
        with pytest.raises(AtomlogError, match="UPGRADE_REQUIRED"):
            await replay_until(world.root, target, positions={0: 6}, settings=QUICK)
        assert not Path(target).exists()
        assert not Path(f"{target}.partial").exists()
        report = await replay_until(world.root, target, positions={0: 5}, settings=QUICK)
        assert report.records == 6

    run(scenario())


def test_the_source_may_be_written_to_meanwhile_and_may_itself_be_a_copy(tmp_path: Path) -> None:
    async def scenario() -> None:
        source, places = await filled(tmp_path)
        first, second = str(tmp_path / "first"), str(tmp_path / "second")
        async with await AsyncStore.open(source, settings=QUICK) as store:
            replaying = asyncio.create_task(replay_until(source, first, positions={0: places[5]}, settings=QUICK))
            number = 100
            while not replaying.done():
                changes = [{"op": "create", "key": f"n{number}", "schema": "source", "value": {"text": "new"}}]
                await store.write({"space": "notes", "idempotency_key": f"n{number}", "changes": changes})
                number += 1
                await asyncio.sleep(0.01)
            await replaying
        await replay_until(first, second, positions={0: places[2]}, settings=QUICK)
        assert await texts(first) == [*(f"tea {n}" for n in range(6)), LONG]
        assert await texts(second) == ["tea 0", "tea 1", "tea 2", LONG]

    run(scenario())


async def cut_off(world: World, target: str, until_: int, error: BaseException) -> None:
    """A replay that ends with this error in the middle of copying the log."""

    def progress(_name: str, _done: int, _total: int) -> None:
        raise error

    with pytest.raises(type(error)):
        await replay_until(world.root, target, positions={0: until_}, settings=QUICK, progress=progress)


def test_a_replay_that_was_cut_off_from_the_log_goes_on_and_one_to_elsewhere_begins_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)
        await world.close()
        target = str(tmp_path / "then")
        await cut_off(world, target, end - 2, fail("KAFKA_UNAVAILABLE", "the brokers are away"))
        assert Path(f"{target}.partial").exists()
        other = await replay_until(world.root, str(tmp_path / "other"), positions={0: end - 2}, settings=QUICK)
        report = await replay_until(world.root, target, positions={0: end - 2}, settings=QUICK)
        assert (report.resumed, other.resumed) == (end - 1, 0)
        assert report.records == other.records == end - 1
        assert [one.digest_rebuilt for one in report.projections] == [one.digest_rebuilt for one in other.projections]
        assert not Path(f"{target}.partial").exists()
        elsewhere = str(tmp_path / "elsewhere")
        await cut_off(world, elsewhere, end - 2, fail("KAFKA_UNAVAILABLE", "the brokers are away"))
        report = await replay_until(world.root, elsewhere, positions={0: 3}, settings=QUICK)
        assert (report.resumed, report.records) == (0, 4)

    run(scenario())


def test_a_copy_that_was_begun_of_another_history_is_never_gone_on_with(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path / "one")
        end = await world.write(10)
        await world.close()
        target = str(tmp_path / "then")
        await cut_off(world, target, end - 1, fail("KAFKA_UNAVAILABLE", "the brokers are away"))
        other = World.make(tmp_path / "two")
        other.builders[0].now_us += 1_000
        await other.write(10)
        await other.close()
        with pytest.raises(AtomlogError, match=r"CORRUPT|LOG_DIVERGED"):
            await replay_until(other.root, target, positions={0: end - 1}, settings=QUICK)
        assert not Path(f"{target}.partial").exists(), "nothing of it is kept"
        report = await replay_until(other.root, target, positions={0: end - 1}, settings=QUICK)
        assert report.resumed == 0

    run(scenario())
