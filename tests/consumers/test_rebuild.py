"""Rebuild and verify: live and rebuilt agree, a difference is refused, readers move over and never notice."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.content_digest import content_digest
from atomlog.consumers.context import ProjectionKind
from atomlog.consumers.follower import Follower
from atomlog.consumers.parts import Parts, open_parts, projection_kind
from atomlog.consumers.rebuild import first_error, rebuild, verify
from atomlog.consumers.rebuild_job import RebuildJob, RebuildReport, run_job
from atomlog.consumers.rebuild_process import kind_of
from atomlog.kernel.errors import AtomlogError
from atomlog.projections.base import Projection
from atomlog.projections.ids import Ids
from tests.consumers.worlds import QUICK, Stubborn, Toy, World, run, toy, until
from tests.house.tree import ROOT
from tests.support.batches import LogBuilder, create

ALL = ("ids", "relations", "postings", "vectors")


def parts_of(world: World) -> Parts:
    return open_parts(world.root, world.config, settings=QUICK, read_only=True, on_event=world.context.on_event)


async def start(world: World, kind: Any) -> Follower:
    return await Follower.start(world.context, world.directory(kind.name), kind)


async def finished(world: World, follower: Follower, kind: ProjectionKind, end: int) -> None:
    """Everything applied, embedded and sealed."""
    await follower.wait_for(dict.fromkeys(follower.positions(), end - 1), world.deadline_us())
    async with follower.pinned() as projection:
        await until(lambda: kind.unfinished(projection) == 0, "the background work")


async def job(world: World, kind: Any, *, swap: bool = True, force: bool = False) -> RebuildReport:
    work = RebuildJob(
        directory=world.root, name=kind.name, swap=swap, force=force, master_key_file=None, settings=QUICK
    )
    parts = parts_of(world)
    done: list[tuple[int, int]] = []
    report = await run_job(
        work, world.context, world.directory(kind.name), kind, parts.content, lambda *seen: done.append(seen)
    )
    assert done == sorted(done)
    assert all(some <= total for some, total in done)
    await parts.close()
    return report


def generations(world: World, name: str = "toy") -> list[str]:
    return sorted(path.name for path in Path(world.root, "projections", name).glob("g*"))


async def damage(world: World, kind: Any) -> None:
    """Change a row of the live projection behind its back."""
    directory = world.directory(kind.name).current()
    assert directory is not None
    projection = kind.open_primary(directory.directory)
    key, value = next(iter(projection.kv.scan(b"T", b"U")))
    projection.kv.write([(key, value[::-1])])
    projection.sync()
    projection.close()


# --- one job -----------------------------------------------------------------------------------------------------


def test_the_first_rebuild_without_a_live_projection_makes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        report = await job(world, toy())
        assert (report.equal, report.digest_live, report.swapped) == (None, None, True)
        assert (report.positions, report.rows) == ({0: end - 1}, 10)
        assert first_error([report]) is None
        assert world.directory("toy").current() is not None

    run(scenario())


def test_live_and_rebuilt_agree_and_the_new_generation_takes_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, partitions=2)
        for partition in range(2):
            end = await world.write(20, partition)
        follower = await start(world, toy(2))
        await finished(world, follower, toy(2), end)
        report = await job(world, toy(2))
        assert (report.equal, report.swapped, report.generation) == (True, True, "g000002")
        assert report.digest_live == report.digest_rebuilt
        assert report.positions == {0: end - 1, 1: end - 1}
        assert await follower.wait_for_generation("g000002", world.deadline_us())
        await until(lambda: generations(world) == ["g000002"], "the removal of the old one")
        await follower.close()

    run(scenario())


def test_verify_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        follower = await start(world, toy())
        await finished(world, follower, toy(), end)
        report = await job(world, toy(), swap=False)
        assert (report.equal, report.swapped, report.generation) == (True, False, None)
        assert generations(world) == ["g000001"]
        assert follower.generation == "g000001"
        await follower.close()

    run(scenario())


def test_the_target_is_fixed_at_the_start_while_writes_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        target = await world.write(400)
        follower = await start(world, toy())
        await finished(world, follower, toy(), target)
        working = asyncio.create_task(job(world, toy()))
        while not working.done():
            await world.write(1)
            await asyncio.sleep(0)
        report = working.result()
        assert report.equal is True
        end = await world.write(1)
        assert target - 1 <= report.positions[0] < end - 1
        assert await follower.wait_for_generation("g000002", world.deadline_us())
        await finished(world, follower, toy(), end)
        async with follower.pinned() as projection:
            assert projection.verify(0) == end - 1
        await follower.close()

    run(scenario())


def test_a_projection_that_is_not_what_the_log_gives_is_named_and_not_exchanged(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        follower = await start(world, toy())
        await finished(world, follower, toy(), end)
        await follower.close()
        await damage(world, toy())
        report = await job(world, toy())
        assert (report.equal, report.swapped, report.unequal_partitions) == (False, False, (0,))
        assert report.digest_live != report.digest_rebuilt
        assert generations(world) == ["g000001"]
        error = first_error([report])
        assert error is not None
        assert (error.code, error.exit_code) == ("CORRUPT", 70)
        assert "toy" in error.message
        assert "--force" in error.message
        forced = await job(world, toy(), force=True)
        assert (forced.equal, forced.swapped) == (False, True)
        assert first_error([forced]) is None
        assert (await job(world, toy(), swap=False)).equal is True
        assert generations(world) == ["g000002"]

    run(scenario())


def test_a_row_count_that_is_wrong_makes_live_unreadable_and_not_equal(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        follower = await start(world, toy())
        await finished(world, follower, toy(), end)
        await follower.close()
        generation = world.directory("toy").current()
        assert generation is not None
        projection: Any = toy().open_primary(generation.directory)
        projection.kv.write([], [next(iter(projection.kv.scan(b"T", b"U")))[0]])
        projection.close()
        report = await job(world, toy())
        assert (report.equal, report.digest_live, report.swapped) == (False, None, False)
        error = first_error([report])
        assert error is not None
        assert error.code == "CORRUPT"
        assert (await job(world, toy(), force=True)).swapped

    run(scenario())


def test_a_store_that_cannot_be_opened_is_rebuilt_with_force_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        follower = await start(world, toy())
        await finished(world, follower, toy(), end)
        await follower.close()
        for path in Path(world.root, "projections/toy/g000001/db").glob("MANIFEST-*"):
            path.write_bytes(b"nonsense")
        report = await job(world, toy())
        assert (report.equal, report.swapped) == (False, False)
        assert report.error is not None
        assert report.error["code"] == "CORRUPT"
        assert report.positions == {0: end - 1}
        assert (await job(world, toy(), force=True)).swapped
        follower = await start(world, toy())
        assert follower.positions() == {0: end - 1}
        await follower.close()

    run(scenario())


def test_a_projection_of_another_log_is_rebuilt_with_force_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(5)
        foreign = LogBuilder(owner=bytes([3]) * 16)
        foreign.batch("notes", [create("elsewhere")])
        generation = world.directory("toy").new_generation()
        projection = toy().open_primary(generation.directory)
        projection.apply(0, foreign.records, foreign.checkpoint)
        projection.close()
        world.directory("toy").publish(generation)
        report = await job(world, toy())
        assert report.error is not None
        assert report.error["code"] == "LOG_DIVERGED"
        assert (report.equal, report.swapped) == (False, False)
        assert (await job(world, toy(), force=True)).swapped
        follower = await start(world, toy())
        assert follower.health == "OK"
        assert follower.positions() == {0: 5}
        await follower.close()

    run(scenario())


def test_what_live_has_skipped_the_rebuilt_one_skips_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)
        kind = toy(poison=[7])
        follower = await start(world, kind)
        await follower.wait_for({0: end - 1}, world.deadline_us())
        report = await job(world, kind)
        assert (report.equal, report.rows, report.swapped) == (True, 19, True)
        await follower.close()

    run(scenario())


def test_a_record_that_stops_it_below_the_target_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(20)
        with pytest.raises(AtomlogError, match="position 7"):
            await job(world, toy(poison=[7], of=Stubborn))
        assert generations(world, "stubborn") == []

    run(scenario())


def test_two_rebuilds_of_one_projection_at_once_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(2)
        held = world.directory("toy").rebuild_lock()
        with pytest.raises(AtomlogError, match="STORE_LOCKED") as caught:
            await job(world, toy())
        assert str(os.getpid()) in caught.value.message
        held.release()
        assert (await job(world, toy())).swapped

    run(scenario())


def test_a_live_projection_that_still_embeds_is_waited_for(tmp_path: Path) -> None:
    """The digest of a projection with background work says what has been done of it."""

    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(10)
        steps: list[int] = []

        class Works(Toy):
            @property
            def unfinished(self) -> int:
                return int(self.kv.get(b"W") is None)

            def digest(self, partition: int) -> bytes:
                return super().digest(partition)[:-1] + (self.kv.get(b"W") or b"-")

            async def step(self) -> bool:
                steps.append(1)
                if len(steps) < 30 or self.kv.get(b"W") is not None:
                    return False
                self.kv.write([(b"W", b"+")])
                return True

        kind = toy(of=Works)
        follower = await start(world, kind)
        await follower.wait_for({0: end - 1}, world.deadline_us())
        working = asyncio.create_task(job(world, kind))
        while len(steps) < 40:
            await world.write(1)
            await asyncio.sleep(0.001)
        assert (await working).equal is True
        await follower.close()

    run(scenario())


class Waits(Toy):
    """A row of it waits for work until somebody does it, which only happens where it `works`."""

    works = True

    @property
    def unfinished(self) -> int:
        return int(self.kv.get(b"W") is None)

    def digest(self, partition: int) -> bytes:
        return super().digest(partition)[:-1] + (self.kv.get(b"W") or b"-")

    async def step(self) -> bool:
        if Waits.works and self.unfinished:
            self.kv.write([(b"W", b"+")])
        return False


@pytest.mark.parametrize("swap", [False, True])
def test_a_live_projection_whose_work_nobody_does_is_not_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool
) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(3)
        kind = toy(of=Waits)
        monkeypatch.setattr(Waits, "works", False)
        follower = await start(world, kind)
        await follower.wait_for({0: end - 1}, world.deadline_us())
        await follower.close()
        monkeypatch.setattr(Waits, "works", True)
        report = await job(world, kind, swap=swap)
        assert (report.equal, report.swapped, report.unequal_partitions) == (None, swap, ())
        assert report.error is not None
        assert report.error["code"] == "INDEX_LAGGING"
        error = first_error([report])
        assert (error is None) if swap else (error is not None and error.code == "INDEX_LAGGING")

    run(scenario())


# --- whole stores, in processes -----------------------------------------------------------------------------------


async def whole_store(path: Path, **config: Any) -> World:
    world = World.make(path, shard_rows=512, **config)
    for partition in range(world.config.partitions):
        await world.write(150, partition)
    return world


async def followed(world: World, names: Sequence[str] = ALL) -> dict[str, Follower]:
    parts = parts_of(world)
    kinds = {name: projection_kind(parts, name) for name in names}
    followers = {name: await start(world, kinds[name]) for name in names}
    for name, follower in followers.items():
        await finished(world, follower, kinds[name], world.builders[0].end)
    return followers


def test_every_projection_of_a_store_is_verified_and_rebuilt_beside_its_followers(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await whole_store(tmp_path)
        followers = await followed(world)
        seen: dict[str, tuple[int, int]] = {}

        def progress(name: str, done: int, total: int) -> None:
            assert done <= total
            seen[name] = done, total

        verified = await verify(world.root, list(ALL), settings=QUICK)
        assert [(one.name, one.equal, one.swapped, one.error) for one in verified] == [
            (name, True, False, None) for name in ALL
        ]
        rebuilt = await rebuild(world.root, settings=QUICK, progress=progress)
        assert [(one.name, one.equal, one.swapped, one.error) for one in rebuilt] == [
            (name, True, True, None) for name in ALL
        ]
        assert seen == dict.fromkeys(ALL, (world.builders[0].end, world.builders[0].end))
        assert [one.digest_rebuilt for one in rebuilt] == [one.digest_rebuilt for one in verified]
        assert first_error(rebuilt) is None
        for follower in followers.values():
            assert await follower.wait_for_generation("g000002", world.deadline_us())
        shape = rebuilt[0].to_dict()
        assert shape.keys() >= {
            *("name", "positions", "rows", "digest_live", "digest_rebuilt"),
            *("equal", "content_digest", "seconds", "swapped"),
        }
        assert shape["positions"] == {"0": world.builders[0].end - 1}
        parts = parts_of(world)
        async with followers["ids"].pinned() as projection:
            assert isinstance(projection, Ids)
            expected = await content_digest(projection, parts.content, rebuilt[0].positions)
        assert rebuilt[0].content_digest == expected
        assert [one.content_digest for one in rebuilt[1:]] == [None] * 3
        for follower in followers.values():
            await follower.close()

    run(scenario())


def test_modules_that_lie_in_the_working_directory_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(3)
        (tmp_path / "copy.py").write_text("raise SystemExit('ran a stranger')\n")
        monkeypatch.chdir(tmp_path)
        [report] = await rebuild(world.root, ["ids"], settings=QUICK)
        assert (report.error, report.swapped) == (None, True)

    run(scenario())


def test_heads_are_verified_beside_their_user_and_rebuilt_only_without_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await whole_store(tmp_path, partitions=2)
        world.builders[0].void()
        await world.flush()
        kind = kind_of(parts_of(world), "heads")
        first = await rebuild(world.root, ["heads"], settings=QUICK)
        assert [(one.equal, one.swapped, one.error) for one in first] == [(None, True, None)]
        lock = world.directory("heads").lock()  # as whoever holds the store for writing
        generation = world.directory("heads").current()
        assert generation is not None
        user = kind.open_primary(generation.directory)
        assert [(one.equal, one.error) for one in await verify(world.root, ["heads"], settings=QUICK)] == [(True, None)]
        refused = await rebuild(world.root, ["heads"], settings=QUICK)
        assert refused[0].error is not None
        assert refused[0].error["code"] == "STORE_LOCKED"
        _same_counts(user)
        user.close()
        lock.release()
        assert (await rebuild(world.root, ["heads"], settings=QUICK))[0].swapped

    run(scenario())


def _same_counts(heads: Any) -> None:
    """A rebuilt head state must have counted void records as the one that read them live."""
    assert heads._view.place(0).voids == {"stale_term": 1}
    assert heads._view.place(1).voids == {}
    assert heads._view.place(0).batches == 150


def test_unknown_names_and_directories_that_are_no_store_are_refused_before_anything_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(AtomlogError, match="STORE_NOT_FOUND"):
            await rebuild(str(tmp_path / "nowhere"))
        world = World.make(tmp_path)
        with pytest.raises(AtomlogError, match="INVALID_INPUT") as caught:
            await rebuild(world.root, ["ids", "lexicon"])
        assert "names[1]" in caught.value.message
        assert "relations" in caught.value.message
        assert generations(world, "ids") == []

    run(scenario())


def test_a_rebuild_that_is_cancelled_takes_its_processes_and_generations_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await whole_store(tmp_path)
        started = asyncio.Event()
        working = asyncio.create_task(
            rebuild(world.root, ["ids", "relations"], settings=QUICK, progress=lambda *_: started.set())
        )
        await started.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        for name in ("ids", "relations"):
            world.directory(name).rebuild_lock().release()
            assert world.directory(name).current() is None or generations(world, name) == ["g000001"]

    run(scenario())


ORPHAN = """
import asyncio, sys
from atomlog.consumers.rebuild import rebuild
def progress(name, done, total):
    print("working", flush=True)
asyncio.run(rebuild(sys.argv[1], ["postings"], progress=progress))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_rebuild_leaves_nothing_that_matters(tmp_path: Path, how: signal.Signals) -> None:
    async def scenario() -> None:
        world = await whole_store(tmp_path)
        followers = await followed(world, ["postings"])
        with subprocess.Popen(
            [sys.executable, "-c", ORPHAN, world.root], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n"
            process.send_signal(how)

        def ended() -> bool:
            lock = world.directory("postings").try_rebuild_lock()
            if lock is not None:
                lock.release()
            return lock is not None

        await until(ended, "the end of the job's own process")
        report = (await rebuild(world.root, ["postings"], settings=QUICK))[0]
        assert (report.equal, report.error) == (True, None)
        assert report.generation is not None
        assert await followers["postings"].wait_for_generation(report.generation, world.deadline_us())
        await until(lambda: generations(world, "postings") == [report.generation], "the sweep")
        await followers["postings"].close()

    run(scenario())


def test_swaps_under_a_reader_never_change_what_it_reads(tmp_path: Path) -> None:
    """F13's half that lies here: positions do not go back and no read sees two generations."""

    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(200)
        kind = toy()
        follower = await start(world, kind)
        await finished(world, follower, kind, end)
        reads: list[tuple[bytes, bytes]] = []
        stop = asyncio.Event()

        async def read() -> None:
            while not stop.is_set():
                async with follower.pinned() as projection:
                    before = _upto(projection, end)
                    await asyncio.sleep(0.001)
                    reads.append((before, _upto(projection, end)))
                    assert projection.checkpoint(0).position >= end

        reading = asyncio.create_task(read())
        for number in range(2, 5):
            assert (await job(world, kind)).equal is True
            assert await follower.wait_for_generation(f"g{number:06d}", world.deadline_us())
            await world.write(1)
        stop.set()
        await reading
        assert len(reads) > 3
        assert {digest for pair in reads for digest in pair} == {reads[0][0]}
        await follower.close()

    run(scenario())


def _upto(projection: Projection, end: int) -> bytes:
    assert isinstance(projection, Toy)
    prefix = b"T\x00\x00"
    return b"".join(value for _, value in projection.kv.scan(prefix, prefix + end.to_bytes(8, "big")))


def test_a_job_survives_being_sent_to_another_process() -> None:
    work = RebuildJob(
        directory="d", name="ids", swap=True, force=False, master_key_file="k", settings=replace(QUICK, sync_records=3)
    )
    assert RebuildJob.from_dict(work.to_dict()) == work
    report = RebuildReport(name="ids", positions={0: 3, 1: -1}, rows=2, equal=False, unequal_partitions=(1,))
    assert RebuildReport.from_dict(report.to_dict()) == report


def test_a_fault_of_the_system_stands_in_the_report_of_its_projection_and_is_no_traceback(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(5)
        await world.close()
        in_the_way = Path(world.root, "projections/postings")
        in_the_way.parent.mkdir(exist_ok=True)
        in_the_way.write_text("a file where a directory belongs")
        reports = await rebuild(world.root, ["ids", "postings"], swap=False)
        assert [(report.name, report.positions) for report in reports] == [("ids", {0: end - 1}), ("postings", {})]
        assert reports[1].error is not None
        assert reports[1].error["code"] == "CORRUPT"
        assert str(in_the_way) in reports[1].error["message"]

    run(scenario())
