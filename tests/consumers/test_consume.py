"""`consume`: processes of their own that follow, are killed and started again, and end as they should."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.consume import run_consumer
from atomlog.consumers.parts import open_parts, projection_kind
from atomlog.consumers.rebuild import first_error, verify
from atomlog.consumers.secondary import SecondaryView
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError
from tests.consumers.worlds import QUICK, World, run, until
from tests.house.tree import ROOT

ALL = ("ids", "relations", "postings", "vectors")


class Consumer:
    """A consuming process and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def heard(self, name: str) -> dict[str, Any]:
        """Read on until it says this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = jsontext.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"the process ended without saying {name}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        assert self.process.stdout is not None
        self.process.stdout.read()
        return self.process.wait(30)


@contextmanager
def consuming(world: World, *arguments: str) -> Iterator[Consumer]:
    command = [sys.executable, "-m", "tests.consumers.consume_process", world.root, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Consumer(process)
        finally:
            process.kill()


async def views(world: World) -> dict[str, SecondaryView]:
    parts = open_parts(world.root, world.config, settings=QUICK, read_only=True)
    kinds = {name: projection_kind(parts, name) for name in ALL}
    return {
        name: await SecondaryView.open(
            world.context, world.directory(name), kinds[name], deadline_us=world.deadline_us()
        )
        for name in ALL
    }


def test_each_projection_in_its_own_process_killed_and_started_again_equals_a_clean_rebuild(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path, shard_rows=512)
        await world.write(200)
        with ExitStack() as processes:
            consumers = {name: processes.enter_context(consuming(world, name)) for name in ALL}
            for consumer in consumers.values():
                consumer.heard("consuming")
            reading = await views(world)
            for name in ALL:
                end = await world.write(100)
                consumers[name].process.kill()
                consumers[name] = processes.enter_context(consuming(world, name))
                consumers[name].heard("consuming")
            for view in reading.values():
                await view.wait_for({0: end - 1}, world.deadline_us())
            reports = await verify(world.root, list(ALL), settings=QUICK)
            assert first_error(reports) is None
            assert [(report.equal, report.positions) for report in reports] == [(True, {0: end - 1})] * 4
            for view in reading.values():
                await view.close()
            assert [consumer.end() for consumer in consumers.values()] == [0] * 4

    run(scenario())


def test_one_process_may_follow_several_and_tells_how_they_stand(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        end = await world.write(20)
        with consuming(world, "ids", "postings", "ids") as consumer:
            assert [one["name"] for one in consumer.heard("consuming")["projections"]] == ["ids", "postings"]
            while True:
                status = consumer.heard("status")["projections"]
                if all(one["partitions"][0]["position"] == end - 1 for one in status):
                    break
            assert {one["health"] for one in status} == {"OK"}
            assert consumer.end(signal.SIGINT) == 130

    run(scenario())


def test_a_second_process_for_the_same_projection_is_refused_or_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        with consuming(world, "ids") as first:
            first.heard("consuming")
            with consuming(world, "ids") as second:
                error = second.heard("failed")["error"]
                assert error["code"] == "STORE_LOCKED"
                assert str(first.process.pid) in error["message"]
                assert second.process.wait(30) == 4
            with consuming(world, "ids", "--wait") as third:
                assert third.heard("waiting")["pid"] == first.process.pid
                first.process.kill()
                third.heard("consuming")
                assert third.end() == 0
            with consuming(world, "ids") as holder:
                holder.heard("consuming")
                with consuming(world, "ids", "--wait") as fourth:
                    fourth.heard("waiting")
                    assert fourth.end() == 0

    run(scenario())


def test_a_log_that_cannot_be_followed_ends_the_process_with_its_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(5)
        await world.log.append(0, [replace(world.builders[0].records[-1].record, seq=5, rule=2)])
        with consuming(world, "ids") as consumer:
            assert consumer.heard("failed")["error"]["code"] == "UPGRADE_REQUIRED"
            assert consumer.process.wait(30) == 70

    run(scenario())


@pytest.mark.parametrize(
    ("names", "told"),
    [([], "at least one"), (["ids", "nonsense"], "names[1]"), (["heads"], "writes")],
)
def test_what_cannot_be_consumed_is_refused_with_what_can(tmp_path: Path, names: list[str], told: str) -> None:
    with pytest.raises(AtomlogError) as caught:
        run(run_consumer(str(tmp_path), names))
    assert caught.value.code == "INVALID_INPUT"
    assert told in caught.value.message


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtomlogError, match="STORE_NOT_FOUND"):
        run(run_consumer(str(tmp_path), ["ids"]))


def test_a_consumer_of_this_process_ends_when_it_is_told_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        stop = asyncio.Event()
        events: list[str] = []
        working = asyncio.create_task(
            run_consumer(
                world.root, ["ids"], settings=QUICK, stop=stop, on_event=lambda event: events.append(event["event"])
            )
        )
        await until(lambda: "consuming" in events, "the start")
        stop.set()
        assert await working == 0
        world.directory("ids").lock().release()

    run(scenario())
