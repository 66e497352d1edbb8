"""A follower over the real embedded log and real RocksDB: order, faults, holding, waiting, lag, exchange."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.follower import Follower
from atomlog.consumers.kinds import RocksKind
from atomlog.consumers.watchdog import watch
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kv import Staged
from atomlog.kernel.ports import Log
from atomlog.kernel.system import SystemFiles
from atomlog.kernel.tail import Checkpoint, EffectiveRecord
from atomlog.projections.base import Projection
from tests.consumers.worlds import QUICK, Stubborn, Toy, World, built_beside, ids, open_files, run, toy, until
from tests.support.batches import STEP_US
from tests.support.sealed import SleptClock


async def start(world: World, kind: Any, **rest: Any) -> Follower:
    return await Follower.start(world.context, world.directory(kind.name), kind, **rest)


async def reach(world: World, follower: Follower, position: int, partition: int = 0) -> None:
    await follower.wait_for({partition: position}, world.deadline_us())


def test_a_follower_applies_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)
        follower = await start(world, ids())
        await reach(world, follower, end - 1)
        end = await world.write(20)
        await reach(world, follower, end - 1)
        async with follower.pinned() as projection:
            assert projection.checkpoint(0) == world.builders[0].checkpoint
        assert follower.health == "OK"
        await follower.close()

    run(scenario())


def test_void_records_move_the_position(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(2)
        world.builders[0].void()
        world.builders[0].void()
        end = await world.flush()
        follower = await start(world, toy())
        await reach(world, follower, end - 1)
        assert (await follower.lag())[0].records == 0
        await follower.close()

    run(scenario())


def test_a_restarted_follower_goes_on_where_it_stood(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(30)
        follower = await start(world, toy())
        await reach(world, follower, end - 1)
        await follower.close()
        end = await world.write(5)
        follower = await start(world, toy())
        assert follower.positions() == {0: end - 6}
        await reach(world, follower, end - 1)
        async with follower.pinned() as projection:
            assert projection.verify(0) == 35
        await follower.close()

    run(scenario())


def test_partitions_take_turns(tmp_path: Path) -> None:
    """A long backlog in one partition does not keep the others waiting for its end."""

    async def scenario() -> None:
        world = World.make(tmp_path, partitions=3)
        for partition, batches in enumerate((600, 3, 3)):
            await world.write(batches, partition)
        order: list[int] = []

        class Spied(Toy):
            def apply(self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint) -> None:
                order.append(partition)
                super().apply(partition, records, after)

        follower = await start(world, toy(3, of=Spied))
        for partition in range(3):
            await reach(world, follower, world.builders[partition].end - 1, partition)
        assert order.count(0) > 1, "the backlog must need several reads, or this shows nothing"
        assert {1, 2} <= set(order[:3])
        await follower.close()

    run(scenario())


def test_only_the_given_partitions_are_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, partitions=2)
        for partition in range(2):
            await world.write(3, partition)
        follower = await start(world, toy(2), partitions=[1])
        await reach(world, follower, 3, 1)
        assert follower.positions() == {1: 3}
        async with follower.pinned() as projection:
            assert projection.checkpoint(0).position == 0
        await follower.close()

    run(scenario())


# --- faults ------------------------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_applied_is_tried_then_quarantined_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)
        follower = await start(world, toy(poison=[7, 8]))
        await reach(world, follower, end - 1)
        async with follower.pinned() as projection:
            assert [row.position for row in projection.quarantined()] == [7, 8]
            assert "cannot digest 7" in projection.quarantined()[0].error
            assert projection.verify(0) == 18
        assert follower.health == "DEGRADED"
        assert (await follower.status())["quarantined"] == 2
        tries = [event for event in world.said("apply_failed") if event["position"] == 7]
        assert [event["attempt"] for event in tries] == [1, 2]
        await follower.close()

    run(scenario())


def test_a_fault_that_passes_leaves_no_trace(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(5)
        left = [2]

        class Shaky(Toy):
            def _commit(self, *args: Any) -> None:
                if left[0]:
                    left[0] -= 1
                    raise OSError("no space just now")
                super()._commit(*args)

        follower = await start(world, toy(of=Shaky))
        await reach(world, follower, end - 1)
        assert follower.health == "OK"
        assert len(world.said("apply_failed")) == 2
        await follower.close()

    run(scenario())


def test_a_store_that_takes_nothing_stops_the_follower_instead_of_quarantining_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(5)

        class Full(Toy):
            def _commit(self, *args: Any) -> None:
                raise OSError("no space left on device")

        follower = await start(world, toy(of=Full))
        await until(lambda: follower.health == "STOPPED", "the stop")
        assert follower.positions() == {0: -1}
        assert follower.error is not None
        assert "no space left" in follower.error.message
        await follower.close()

    run(scenario())


def test_when_no_record_at_all_can_be_applied_the_store_is_at_fault_and_it_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, settings=replace(QUICK, apply_retries=0))
        end = await world.write(150)
        follower = await start(world, toy(poison=range(end)))
        await until(lambda: follower.health == "STOPPED", "the stop")
        async with follower.pinned() as projection:
            assert len(projection.quarantined()) == 100
        await follower.close()

    run(scenario())


def test_a_record_that_needs_a_newer_program_is_never_skipped(tmp_path: Path) -> None:
    """Skipped, it would be missing for ever; the newer program applies it."""

    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)

        class Old(Toy):
            def _effects(self, partition: int, record: EffectiveRecord, staged: Staged) -> None:
                if record.position == 7:
                    raise fail("UPGRADE_REQUIRED", "a schema of tomorrow")
                super()._effects(partition, record, staged)

        follower = await start(world, toy(of=Old))
        await until(lambda: follower.error is not None, "the stop")
        assert follower.error is not None
        assert follower.error.code == "UPGRADE_REQUIRED"
        assert follower.is_stopped_for_good
        assert follower.positions() == {0: 6}
        async with follower.pinned() as projection:
            assert projection.quarantined() == []
        await follower.close()
        follower = await start(world, toy())
        await reach(world, follower, end - 1)
        assert follower.health == "OK"
        await follower.close()

    run(scenario())


def test_a_projection_that_never_skips_stops_and_says_where(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(20)
        follower = await start(world, toy(poison=[7], of=Stubborn))
        await until(lambda: follower.error is not None, "the stop")
        assert follower.positions() == {0: 6}
        assert follower.health == "STOPPED"
        assert not follower.is_stopped_for_good
        assert follower.error is not None
        assert "position 7" in follower.error.message
        assert "Repair" in follower.error.message
        with pytest.raises(AtomlogError) as caught:  # at once, and not at the deadline
            await reach(world, follower, 10)
        assert caught.value.code == "INDEX_LAGGING"
        assert "cannot digest 7" in caught.value.message
        assert caught.value.details[0]["position"] == 6
        assert caught.value.details[0]["wanted"] == 10
        noted = world.directory("stubborn").noted_health
        await until(lambda: noted().get("health") == "STOPPED", "the word for other processes")
        await follower.close()

    run(scenario())


def test_an_effective_repair_for_that_very_record_lets_it_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(20)
        builder = world.builders[0]
        follower = await start(world, toy(poison=[7], of=Stubborn))
        await until(lambda: follower.error is not None, "the stop")
        chain = next(record.chain for record in builder.records if record.position == 7)
        verdict = {"position": 7, "verdict": "skip", "reason": "bad bytes", "issued_by": "operator"}
        builder.other("Repair", {**verdict, "chain": bytes(16)})  # another history's record 7
        builder.other("Repair", {**verdict, "position": 6, "chain": chain})
        builder.other("Repair", {**verdict, "chain": chain, "verdict": "other"})
        builder.other("Repair", {**verdict, "chain": chain})
        end = await world.flush()
        await until(lambda: follower.error is None, "the repair")
        await reach(world, follower, end - 1)
        assert follower.health == "DEGRADED"
        async with follower.pinned() as projection:
            assert [row.position for row in projection.quarantined()] == [7]
            assert projection.quarantined()[0].error == f"skipped by the Repair at position {end - 1}: bad bytes"
        await follower.close()

    run(scenario())


def test_a_stopped_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, partitions=2)
        await world.write(10, 0)
        await world.write(3, 1)
        follower = await start(world, toy(2, poison=[7], of=Stubborn))
        await until(lambda: follower.error is not None, "the stop")
        end = await world.write(2, 1)  # up to position 5: the poisonous one is not among them
        await reach(world, follower, end - 1, 1)
        await follower.close()

    run(scenario())


# --- another history ---------------------------------------------------------------------------------------------


async def followed_then_replaced(tmp_path: Path, change: Callable[[World], Any]) -> tuple[World, Follower]:
    """Follow a log, then put another one in its place while nobody looks, and follow again."""
    world = World.make(tmp_path)
    end = await world.write(20)
    follower = await start(world, toy())
    await reach(world, follower, end - 1)
    await follower.close()
    await world.close()
    SystemFiles().remove_tree(f"{world.root}/log")
    (tmp_path / "other").mkdir()
    other = World.make(tmp_path / "other")
    await change(other)
    await other.close()
    SystemFiles().replace(f"{other.root}/log", f"{world.root}/log")
    world = World.open(tmp_path)
    return world, await start(world, toy())


def test_a_checkpoint_after_the_logs_end_is_a_diverged_log_with_the_way_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, follower = await followed_then_replaced(tmp_path, lambda other: other.write(10))
        assert follower.error is not None
        assert follower.error.code == "LOG_DIVERGED"
        assert "toy" in follower.error.message
        assert "atomlog rebuild toy --force" in follower.error.message
        assert follower.is_stopped_for_good
        assert follower.positions() == {0: 20}
        await follower.close()
        await world.close()

    run(scenario())


def test_another_history_of_the_same_length_is_noticed_although_nothing_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def other_texts(other: World) -> None:
            other.builders[0].now_us += 17
            await other.write(20)

        world, follower = await followed_then_replaced(tmp_path, other_texts)
        assert follower.error is not None
        assert follower.error.code == "LOG_DIVERGED"
        await follower.close()
        await world.close()

    run(scenario())


def test_the_same_history_that_grew_meanwhile_is_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, follower = await followed_then_replaced(tmp_path, lambda other: other.write(25))
        await reach(world, follower, 25)
        assert follower.health == "OK"
        await follower.close()
        await world.close()

    run(scenario())


def test_a_record_of_a_newer_format_stops_the_follower_for_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(3)
        follower = await start(world, toy())
        await reach(world, follower, 3)
        await world.log.append(0, [replace(world.builders[0].records[-1].record, seq=3, rule=2)])
        await until(lambda: follower.error is not None, "the stop")
        assert follower.error is not None
        assert follower.error.code == "UPGRADE_REQUIRED"
        assert follower.is_stopped_for_good
        assert follower.positions() == {0: 3}
        await follower.close()

    run(scenario())


# --- holding, waiting, lag ---------------------------------------------------------------------------------------


def test_a_paused_follower_stands_exactly_where_it_is_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)
        follower = await start(world, toy())
        follower.pause({0: 4})
        await reach(world, follower, 4)
        for position in (5, 11):
            follower.pause({0: position})
            await reach(world, follower, position)
            assert follower.positions() == {0: position}
        with pytest.raises(AtomlogError, match="INDEX_LAGGING"):
            await follower.wait_for({0: 12}, world.context.clock.monotonic_us() + 50_000)
        assert follower.positions() == {0: 11}
        follower.pause()
        await world.write(1)
        follower.resume()
        await reach(world, follower, end)
        await follower.close()

    run(scenario())


def test_waiting_names_what_is_missing_and_can_be_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(3)
        follower = await start(world, toy())
        with pytest.raises(AtomlogError) as caught:
            await follower.wait_for({0: end}, world.context.clock.monotonic_us() + 20_000)
        assert caught.value.code == "INDEX_LAGGING"
        assert caught.value.retry_after_ms is not None
        assert "toy" in caught.value.message
        await world.write(1)
        await reach(world, follower, end)
        await follower.close()

    run(scenario())


def test_lag_is_counted_in_records_and_in_the_age_of_the_first_waiting_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        builder = world.builders[0]
        end = await world.write(10)
        world.context = replace(world.context, clock=ClockAt(builder.now_us + 7_500_000))
        follower = await start(world, toy())
        follower.pause({0: 6})
        await reach(world, follower, 6)
        lag = (await follower.lag())[0]
        assert (lag.position, lag.end, lag.records) == (6, end, end - 7)
        # Batches are a second apart; the first waiting one is at 7, the last one was written 7.5 s ago.
        assert lag.seconds == pytest.approx(7.5 + (end - 1 - 7) * STEP_US / 1_000_000)
        follower.resume()
        await reach(world, follower, end - 1)
        assert (await follower.lag())[0].to_dict() == {"position": end - 1, "lag_records": 0, "lag_s": 0.0}
        await follower.close()

    run(scenario())


def test_lag_behind_records_that_are_no_batches_has_no_age(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        world.builders[0].fence()
        end = await world.flush()
        follower = await start(world, toy())
        follower.pause({0: -1})
        lag = (await follower.lag())[0]
        assert (lag.records, lag.seconds) in ((end, 0.0), (0, 0.0))
        await follower.close()

    run(scenario())


def test_status_has_the_shape_that_is_promised(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(4)
        follower = await start(world, ids())
        await reach(world, follower, end - 1)
        status = await follower.status(revisions=4)
        assert status["name"] == "ids"
        assert status["generation"] == "g000001"
        assert status["asof"] == {"kind": "exact", "floor": -1}
        assert status["partitions"] == [{"partition": 0, "position": end - 1, "lag_records": 0, "lag_s": 0.0}]
        assert (status["health"], status["quarantined"], status["error"]) == ("OK", 0, None)
        assert status["bytes_per_revision"] > 0
        await follower.close()

    run(scenario())


# --- the watchdog ------------------------------------------------------------------------------------------------


class HangingLog:
    """The real log until `hang` is set: then a read never returns."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.hang = False
        self.hanging = 0
        self.stubborn = False
        self.ends = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def end(self, partition: int) -> int:
        self.ends += 1
        return await self._log.end(partition)

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Any:
        found = await self._log.read(partition, position, bytes_max=bytes_max)
        if self.hang:
            self.hang = False
            self.hanging += 1
            while True:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    if not self.stubborn:
                        raise
                    self.stubborn = False
                    return found  # a library that answers instead of ending: too late to count
        return found


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_watchdog_starts_a_silent_follower_again_and_counts(tmp_path: Path, stubborn: bool) -> None:
    async def scenario() -> None:
        settings = replace(QUICK, watchdog_ms=40)
        world = World.make(tmp_path, settings=settings)
        log = HangingLog(world.log)
        world.context = replace(world.context, log=log)
        follower = await start(world, toy())
        await reach(world, follower, -1)
        log.hang, log.stubborn = True, stubborn
        end = await world.write(10)
        await reach(world, follower, end - 1)
        assert log.hanging == 1
        assert follower.restarts >= 1
        assert (await follower.status())["restarts"] == follower.restarts
        async with follower.pinned() as projection:
            assert projection.verify(0) == 10
        await follower.close()

    run(scenario())


def test_bringing_a_new_generation_up_counts_as_progress_for_the_watchdog(tmp_path: Path) -> None:
    """Else a long one would be ended and begun again for ever."""

    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(50)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, end - 1)
        before = follower._progress
        await built_beside(world, kind, 0)
        assert await follower.wait_for_generation("g000002", world.deadline_us())
        assert follower._progress > before
        await follower.close()

    run(scenario())


class TicksClock(SleptClock):
    """Ends the test after some sleeps; tells what happened at each."""

    def __init__(self, ticks: int, at_tick: Callable[[int], None]) -> None:
        super().__init__()
        self._left = ticks
        self._at_tick = at_tick

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self._left -= 1
        self._at_tick(len(self.slept))
        if not self._left:
            raise EndOfTestError


class EndOfTestError(Exception):
    pass


def restarts_of(*, progress: Sequence[int], behind: Sequence[bool]) -> list[int]:
    """The ticks, a quarter of the limit each, at which the watchdog restarts."""
    tick, restarts = [0], []
    clock = TicksClock(len(progress), lambda number: tick.__setitem__(0, number - 1))

    async def is_behind() -> bool:
        return behind[tick[0]]

    with pytest.raises(EndOfTestError):
        run(watch(clock, 4_000, lambda: progress[tick[0]], is_behind, lambda: restarts.append(tick[0])))
    return restarts


def test_the_watchdog_counts_from_the_last_progress_and_only_while_behind() -> None:
    assert restarts_of(progress=[0] * 12, behind=[True] * 12) == [3, 7]
    assert restarts_of(progress=range(12), behind=[True] * 12) == []
    assert restarts_of(progress=[0] * 12, behind=[False] * 12) == []
    assert restarts_of(progress=[0, 0, 0, 1, 1, 1, 1, 1, 1], behind=[True] * 9) == [7]
    assert restarts_of(progress=[0] * 9, behind=[True, True, False, True, True, True, True, True, True]) == [6]


def test_the_watchdog_leaves_an_idle_or_held_follower_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, settings=replace(QUICK, watchdog_ms=10))
        log = HangingLog(world.log)
        world.context = replace(world.context, log=log)
        end = await world.write(5)
        follower = await start(world, toy())
        await reach(world, follower, end - 1)
        follower.pause()
        await world.write(5)
        asked, restarts = log.ends, follower.restarts
        await until(lambda: log.ends > asked + 20, "twenty looks of the watchdog")
        assert follower.restarts == restarts
        await follower.close()

    run(scenario())


# --- generations -------------------------------------------------------------------------------------------------


def test_a_published_generation_is_followed_and_positions_never_go_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(30)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, end - 1)
        seen: list[tuple[str, int]] = []

        async def watch() -> None:
            while follower.generation == "g000001":
                async with follower.pinned() as projection:
                    seen.append((follower.generation, projection.checkpoint(0).position))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await built_beside(world, kind, 10)
        assert await follower.wait_for_generation("g000002", world.deadline_us())
        await watching
        assert {position for _, position in seen} == {end}
        assert follower.positions() == {0: end - 1}
        end = await world.write(1)
        await reach(world, follower, end - 1)
        await until(lambda: not Path(world.root, "projections/toy/g000001").exists(), "the removal")
        async with follower.pinned() as projection:
            assert projection.verify(0) == 31
        await follower.close()

    run(scenario())


def test_a_generation_that_is_published_while_a_follower_opens_the_old_one_does_not_take_its_files(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(30)
        kind = toy()
        await built_beside(world, kind, end)
        old = Path(world.root, "projections/toy/g000001")

        class Late(RocksKind):
            """A rebuild publishes just after the follower has read which generation counts."""

            def open_primary(self, directory: str) -> Projection:
                projection = super().open_primary(directory)
                if directory == str(old):
                    world.directory("toy").publish(world.directory("toy").new_generation())
                return projection

        late = Late(name="toy", make=kind.make, block_cache_bytes=kind.block_cache_bytes)
        holding = await Follower.start(world.context, world.directory("toy"), late)
        assert holding.generation == "g000001"
        assert (old / "db" / "CURRENT").exists()
        await until(lambda: holding.generation == "g000002", "the exchange")
        await reach(world, holding, end - 1)
        await until(lambda: not old.exists(), "the removal")
        assert not world.said("follower_failed")
        await holding.close()

    run(scenario())


def test_a_generation_that_fails_at_every_write_gives_way_to_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(5)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, end - 1)

        def failing(*_: object) -> None:
            raise OSError("its directory is gone")

        monkeypatch.setattr(follower._appliers[0], "advance", failing)
        end = await world.write(5)
        await until(lambda: bool(world.said("follower_failed")), "the failure")
        await built_beside(world, kind, end)
        await until(lambda: follower.generation == "g000002", "the exchange")
        await reach(world, follower, end - 1)
        await follower.close()

    run(scenario())


def test_a_generation_that_cannot_be_made_ready_is_closed_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("atomlog.consumers.follower.SWAP_RETRY_US", 1_000)
        world = World.make(tmp_path)
        end = await world.write(5)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, end - 1)

        async def damaged(self: RocksKind, projection: Projection) -> None:
            raise OSError("a shard cannot be read")

        with monkeypatch.context() as patched:
            patched.setattr(type(kind), "prepare", damaged)
            await built_beside(world, kind, end)
            await until(lambda: len(world.said("swap_failed")) > 2, "the third try")
            assert {event["error"] for event in world.said("swap_failed")} == {"OSError: a shard cannot be read"}
            assert len(open_files(world, "g000002")) <= 30, "what was given up is open no more"
            end = await world.write(5)
            await reach(world, follower, end - 1)
            assert follower.generation == "g000001"
        await until(lambda: follower.generation == "g000002", "the exchange")
        await reach(world, follower, end - 1)
        await follower.close()
        assert open_files(world) == []

    run(scenario())


def test_a_follower_that_is_closed_while_it_brings_a_generation_up_lets_go_of_both(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(5)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, end - 1)
        reading = asyncio.Event()

        async def never(*_: object, **__: object) -> bool:
            reading.set()
            await asyncio.Event().wait()
            return False

        follower._bring_up = never  # type: ignore[method-assign]
        await built_beside(world, kind, end)
        await reading.wait()
        assert open_files(world, "g000002")
        await follower.close()
        assert open_files(world) == []
        again = await start(world, kind)
        assert again.generation == "g000002"
        await again.close()

    run(scenario())


def test_a_reader_keeps_its_generation_open_until_it_lets_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(30)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, end - 1)
        async with follower.pinned() as old:
            digest = old.digest(0)
            await built_beside(world, kind, end)
            assert await follower.wait_for_generation("g000002", world.deadline_us())
            await world.write(5)
            await reach(world, follower, world.builders[0].end - 1)
            assert old.digest(0) == digest, "the old generation must neither close nor move under its reader"
            assert Path(world.root, "projections/toy/g000001").exists()
            async with follower.pinned() as new:
                assert new is not old
        await until(lambda: not Path(world.root, "projections/toy/g000001").exists(), "the removal")
        await follower.close()

    run(scenario())


def test_a_lost_current_is_said_and_the_projection_is_made_again_from_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        follower = await start(world, toy())
        await reach(world, follower, end - 1)
        await follower.close()
        Path(world.root, "projections/toy/CURRENT").write_text("nonsense")
        follower = await start(world, toy())
        assert len(world.said("generation_lost")) == 1
        await reach(world, follower, end - 1)
        assert follower.generation == "g000002"
        assert not Path(world.root, "projections/toy/g000001").exists()
        await follower.close()

    run(scenario())


def test_a_second_follower_is_refused_and_names_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        follower = await start(world, toy())
        with pytest.raises(AtomlogError) as caught:
            await start(world, toy())
        assert caught.value.code == "STORE_LOCKED"
        await follower.close()
        follower = await start(world, toy())
        await follower.close()

    run(scenario())


# --- background work ---------------------------------------------------------------------------------------------


def test_background_work_goes_on_beside_applying_and_its_failure_is_seen_and_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        done: list[int] = []
        failures = [2]

        class Embeds(Toy):
            async def step(self) -> bool:
                await asyncio.sleep(0)
                if failures[0]:
                    failures[0] -= 1
                    raise OSError("encoder is down")
                if len(done) >= self.checkpoint(0).position:
                    return False
                done.append(self.checkpoint(0).position)
                return True

        follower = await start(world, toy(of=Embeds))
        await until(lambda: len(world.said("background_failed")) == 1, "the failure")
        health = [follower.health]
        end = await world.write(10)
        await reach(world, follower, end - 1)
        await until(lambda: len(done) == end, "the background work")
        assert [*health, follower.health] == ["DEGRADED", "OK"]
        await follower.close()

    run(scenario())


def test_a_background_step_that_takes_long_does_not_hold_up_applying(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        gate = asyncio.Event()

        class Slow(Toy):
            async def step(self) -> bool:
                await gate.wait()
                return False

        follower = await start(world, toy(of=Slow))
        end = await world.write(10)
        await reach(world, follower, end - 1)
        gate.set()
        await follower.close()

    run(scenario())


class ClockAt:
    """A clock whose wall time stands still; waiting is real."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000_000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# --- ends --------------------------------------------------------------------------------------------------------


def test_the_lock_is_given_back_although_nothing_can_be_synced_noted_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        kind = toy()
        follower = await start(world, kind)
        await reach(world, follower, await world.write(5) - 1)

        def full(*_: Any, **__: Any) -> Any:
            raise OSError("the disk is full")

        async with follower.pinned() as projection:
            closing = projection.close
            for name in ("sync", "close"):
                monkeypatch.setattr(projection, name, full)
        monkeypatch.setattr(follower._directory.__class__, "note_health", full)
        with pytest.raises(OSError, match="full"):
            await follower.close()
        closing()
        lock = world.directory(kind.name).try_lock()
        assert lock is not None
        lock.release()

    run(scenario())
