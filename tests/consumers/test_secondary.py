"""Reading beside a follower of another process, and taking over from it. The other process is a real one."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.attachment import Attachment
from atomlog.consumers.follower import Follower
from atomlog.consumers.kinds import RocksKind
from atomlog.consumers.secondary import LOOK_US, SecondaryView
from atomlog.kernel.errors import AtomlogError
from atomlog.projections.base import Projection
from tests.consumers.worlds import World, built_beside, ids, open_files, run, toy, until
from tests.house.tree import ROOT


@contextmanager
def following(path: Path, name: str = "toy") -> Iterator[subprocess.Popen[str]]:
    """Another process that follows; killed at the end if it is still there."""
    command = [sys.executable, "-m", "tests.consumers.follow_process", str(path), name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("following")
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0


async def view_of(world: World, kind: Any) -> SecondaryView:
    directory = world.directory(kind.name)
    return await SecondaryView.open(world.context, directory, kind, deadline_us=world.deadline_us())


def scratches(world: World, name: str = "toy") -> list[str]:
    return [path.name for path in Path(world.root, "projections", name).glob("secondary-*")]


def test_a_secondary_sees_what_the_following_process_applied(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(10)
        with following(tmp_path, "ids") as process:
            view = await view_of(world, ids())
            await view.wait_for({0: stop - 1}, world.deadline_us())
            stop = await world.write(10)
            await view.wait_for({0: stop - 1}, world.deadline_us())
            async with view.pinned() as projection:
                digest = projection.digest(0)
                assert projection.checkpoint(0) == world.builders[0].checkpoint
            assert (await view.status())["follower"] == process.pid
            assert view.health == "OK"
            assert len(scratches(world, "ids")) == 1
            await view.close()
            assert scratches(world, "ids") == []
            end(process)
        primary = await Follower.start(world.context, world.directory("ids"), ids())
        async with primary.pinned() as projection:
            assert projection.digest(0) == digest
        await primary.close()

    run(scenario())


def test_a_secondary_goes_on_after_the_following_process_was_killed_and_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(10)
        with following(tmp_path) as first:
            view = await view_of(world, toy())
            await view.wait_for({0: stop - 1}, world.deadline_us())
            first.kill()
        stop = await world.write(10)
        with pytest.raises(AtomlogError, match="INDEX_LAGGING"):
            await view.wait_for({0: stop - 1}, world.context.clock.monotonic_us() + 50_000)
        with following(tmp_path) as second:
            await view.wait_for({0: stop - 1}, world.deadline_us())
            async with view.pinned() as projection:
                assert projection.verify(0) == 20
            await view.close()
            end(second)

    run(scenario())


def test_waiting_names_index_and_positions(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(3)
        with following(tmp_path) as process:
            view = await view_of(world, toy())
            await view.wait_for({0: stop - 1}, world.deadline_us())
            with pytest.raises(AtomlogError) as caught:
                await view.wait_for({0: stop + 5}, world.context.clock.monotonic_us() + 30_000)
            detail = caught.value.details[0]
            assert (detail["path"], detail["position"], detail["wanted"]) == ("toy", stop - 1, stop + 5)
            assert (await view.lag())[0].records == 0
            await view.close()
            end(process)

    run(scenario())


def test_a_secondary_without_any_generation_waits_and_then_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        held = world.directory("toy").lock()
        with pytest.raises(AtomlogError, match="STORE_LOCKED"):
            await SecondaryView.open(
                world.context,
                world.directory("toy"),
                toy(),
                deadline_us=world.context.clock.monotonic_us() + 20_000,
            )
        held.release()

    run(scenario())


def test_a_generation_that_another_process_takes_over_changes_under_a_reader_without_going_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(30)
        with following(tmp_path) as process:
            view = await view_of(world, toy())
            await view.wait_for({0: stop - 1}, world.deadline_us())
            async with view.pinned() as old:
                digest = old.digest(0)
                await built_beside(world, toy(), 10)

                async def moved() -> bool:
                    await view.catch_up()
                    assert view.positions()[0] >= stop - 1, "positions went back"
                    return view.generation == "g000002"

                await until(moved, "the new generation")
                assert await view.wait_for_generation("g000002", world.deadline_us())
                assert not await view.wait_for_generation("g000003", world.context.clock.monotonic_us() + 10_000)
                await until(lambda: not Path(world.root, "projections/toy/g000001").exists(), "the removal")
                assert old.digest(0) == digest, "a removed generation stays readable for who has it open"
                async with view.pinned() as new:
                    assert new is not old
                    assert new.digest(0) == digest
            stop = await world.write(5)
            await view.wait_for({0: stop - 1}, world.deadline_us())
            assert len(scratches(world)) == 1, "the old generation's scratch is gone"
            await view.close()
            end(process)

    run(scenario())


def test_a_newer_generation_is_not_read_before_it_has_come_as_far(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(30)
        with following(tmp_path) as process:
            view = await view_of(world, toy())
            await view.wait_for({0: stop - 1}, world.deadline_us())
            process.send_signal(signal.SIGSTOP)  # nobody brings the new one up
            await built_beside(world, toy(), 10)
            for _ in range(5):
                await asyncio.sleep(LOOK_US / 1_000_000)  # a view looks at most so often
                await view.catch_up()
                assert view._next is not None, "it is open"
                assert (view.generation, view.positions()) == ("g000001", {0: stop - 1})
            process.send_signal(signal.SIGCONT)
            assert await view.wait_for_generation("g000002", world.deadline_us())
            assert view.positions() == {0: stop - 1}
            await view.close()
            end(process)

    run(scenario())


def test_readers_of_a_stopped_follower_are_told_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(5)
        follower = await Follower.start(world.context, world.directory("toy"), toy())
        view = await view_of(world, toy())
        await view.wait_for({0: stop - 1}, world.deadline_us())
        await world.log.append(0, [_of_a_newer_rule(world)])
        await until(lambda: view.health == "STOPPED", "the note")
        assert view.error is not None
        assert view.error.code == "UPGRADE_REQUIRED"
        with pytest.raises(AtomlogError) as caught:
            await view.wait_for({0: stop}, world.context.clock.monotonic_us() + 10_000)
        assert "UPGRADE_REQUIRED" in caught.value.message
        await view.close()
        await follower.close()

    run(scenario())


def _of_a_newer_rule(world: World) -> Any:
    from dataclasses import replace

    builder = world.builders[0]
    return replace(builder.records[-1].record, seq=builder.checkpoint.state.next_seq, rule=2)


def test_whoever_comes_first_follows_and_the_next_one_takes_over_when_it_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(10)
        with following(tmp_path) as process:
            attached = await Attachment.open(
                world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us()
            )
            assert attached.follower is None
            await attached.wait_for({0: stop - 1}, world.deadline_us())
            assert not await attached.try_promote()
            async with attached.pinned() as before:
                process.kill()
                process.wait()
                stop = await world.write(10)
                promoting = asyncio.create_task(attached.try_promote())
                await until(lambda: attached.follower is not None, "the promotion")
                assert before.verify(0) == 10, "the reader's store is not closed under it"
            assert await promoting
        await attached.wait_for({0: stop - 1}, world.deadline_us())
        async with attached.pinned() as projection:
            assert projection.verify(0) == 20
        assert len(world.said("took_over")) == 1
        assert scratches(world) == []
        await attached.close()

    run(scenario())


def test_an_attachment_takes_over_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        with following(tmp_path) as process:
            attached = await Attachment.open(
                world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us()
            )
            reader = await Attachment.open(
                world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us(), may_follow=False
            )
            process.kill()
        stop = await world.write(10)
        await until(lambda: attached.follower is not None, "the promotion")
        await reader.wait_for({0: stop - 1}, world.deadline_us())
        assert not await reader.try_promote()
        await reader.close()
        await attached.close()

    run(scenario())


def test_a_follower_killed_while_it_applies_ends_in_the_state_of_one_that_never_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(2_000)  # several reads, so that the kill comes between or inside them
        for _ in range(3):
            with following(tmp_path, "ids") as process:
                process.kill()
        survivor = await Follower.start(world.context, world.directory("ids"), ids())
        await survivor.wait_for({0: stop - 1}, world.deadline_us())
        clean = ids().open_primary(str(tmp_path / "clean"))
        builder = world.builders[0]
        clean.apply(0, builder.records, builder.checkpoint)
        async with survivor.pinned() as projection:
            assert projection.digest(0) == clean.digest(0)
            assert projection.verify(0) == clean.verify(0)
            assert projection.checkpoint(0) == clean.checkpoint(0)
        clean.close()
        await survivor.close()

    run(scenario())


def test_whoever_waits_to_catch_a_view_up_while_it_is_closed_finds_it_closed_and_not_broken(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(3)
        follower = await Follower.start(world.context, world.directory("toy"), toy())
        view = await view_of(world, toy())
        await asyncio.gather(view.close(), view.catch_up())
        await follower.close()
        await world.close()

    run(scenario())


def test_a_projection_that_is_closed_says_so_to_who_comes_late(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        follower = await Follower.start(world.context, world.directory("toy"), toy())
        view = await view_of(world, toy())
        for one in (view, follower):
            await one.close()
            for ask in (one.status, one.pinned().__aenter__):
                with pytest.raises(AtomlogError, match="the store is closed"):
                    await ask()

    run(scenario())


def test_a_view_that_cannot_be_made_ready_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        kind = toy()
        follower = await Follower.start(world.context, world.directory("toy"), toy())

        async def damaged(self: RocksKind, projection: Projection) -> None:
            raise OSError("a shard cannot be read")

        with monkeypatch.context() as patched:
            patched.setattr(type(kind), "prepare", damaged)
            with pytest.raises(OSError, match="shard"):
                await view_of(world, kind)
        assert scratches(world) == []
        await follower.close()
        assert open_files(world) == []

    run(scenario())


@pytest.mark.parametrize("may_follow", [True, False])
def test_a_view_that_nobody_reads_lets_go_of_a_generation_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_follow: bool
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("atomlog.consumers.attachment.PROMOTE_SECONDS", 0.01)
        monkeypatch.setattr("atomlog.consumers.attachment.UNREAD_US", 1_000)
        world = World.make(tmp_path)
        stop = await world.write(10)
        follower = await Follower.start(world.context, world.directory("toy"), toy())
        await follower.wait_for({0: stop - 1}, world.deadline_us())
        attached = await Attachment.open(
            world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us(), may_follow=may_follow
        )
        generation = world.directory("toy").new_generation()
        projection = toy().open_primary(generation.directory)
        projection.apply(0, world.builders[0].records, world.builders[0].checkpoint)
        projection.close()
        world.directory("toy").publish(generation)
        assert await follower.wait_for_generation("g000002", world.deadline_us())
        await until(lambda: open_files(world, "g000001") == [], "the end of the former generation")
        assert attached.generation == "g000002"
        await attached.close()
        await follower.close()

    run(scenario())


def test_a_takeover_that_is_given_up_gives_the_lock_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing comes while the generation that is taken over has not come as far as what was read here."""

    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(10)
        follower = await Follower.start(world.context, world.directory("toy"), toy())
        await follower.wait_for({0: stop - 1}, world.deadline_us())
        attached = await Attachment.open(world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us())
        await attached.wait_for({0: stop - 1}, world.deadline_us())
        waiting = asyncio.Event()

        async def never(self: Follower, positions: object, deadline_us: int) -> None:
            waiting.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(Follower, "wait_for", never)
            await follower.close()
            await waiting.wait()
            await attached.close()
        assert open_files(world) == []
        lock = world.directory("toy").try_lock()
        assert lock is not None
        lock.release()

    run(scenario())


def test_a_store_that_closes_while_it_leaves_its_former_view_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        follower = await Follower.start(world.context, world.directory("toy"), toy())
        attached = await Attachment.open(world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us())
        async with attached.pinned():
            await follower.close()
            await until(lambda: attached.follower is not None, "the promotion")
            closing = asyncio.create_task(attached.close())
            await asyncio.sleep(0)
            assert scratches(world), "its reader is still in it"
        await closing
        assert scratches(world) == []
        assert open_files(world) == []

    run(scenario())


def test_a_follower_whose_directory_was_removed_makes_it_anew_or_gives_over_to_who_did(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = await world.write(10)
        attached = await Attachment.open(world.context, world.directory("toy"), toy(), deadline_us=world.deadline_us())
        await attached.wait_for({0: stop - 1}, world.deadline_us())

        # 1. Nobody else is there: it goes on in a new directory, under a lock that counts.
        removed(world)
        await attached.wait_for_generation("g000002", world.deadline_us())
        assert world.directory("toy").try_lock() is None
        assert world.directory("toy").current() is not None
        assert attached.positions() == {0: stop - 1}

        # 2. Another process was faster: it says so, and reads what that one writes.
        removed(world)
        lock = world.directory("toy").lock()
        follower = attached.follower
        assert follower is not None
        await until(lambda: follower.is_displaced)
        assert follower.error is not None
        assert follower.error.code == "STORE_LOCKED"
        lock.release()
        with following(tmp_path) as process:
            await until(lambda: attached.follower is None)
            stop = await world.write(10)
            await attached.wait_for({0: stop - 1}, world.deadline_us())
            async with attached.pinned() as projection:
                assert projection.verify(0) == 20
            assert (await attached.status())["follower"] == process.pid
            await attached.close()
            end(process)

    run(scenario())


def removed(world: World) -> None:
    """All of the projection, at once, although somebody writes into it."""
    aside = Path(world.root, "removed")
    Path(world.root, "projections", "toy").rename(aside)
    shutil.rmtree(aside)
