"""The power goes while a store is made, written, followed, sealed and rebuilt: what was acknowledged is there then.

SIGKILL leaves everything in the kernel's cache and so tests no durability. Here the store lies on an ext4 of its own
that writes nothing back unless it is told to; its processes are stopped, and the image is copied below the cache.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.system import SystemFile
from tests.acceptance.writing import collection, source
from tests.processes.clients import Journal
from tests.processes.clients import main as write_until_stopped
from tests.processes.disks import Disk, disk
from tests.processes.records import batches_in_the_log
from tests.processes.test_kills import check_rebuilt
from tests.support.commands import until
from tests.support.zygote import COMMAND, Forked, zygote

SPACE: Final = "shop"
CLIENTS: Final = 6
SMALL_SEGMENTS: Final = {"ATOMLOG_SEGMENT_BYTES": "16384"}
VECTORS: Final = "supplied.points/1/8/l2"
CUTS: Final = int(os.environ.get("ATOMLOG_TEST_CUTS", "3"))  # while clients write

pytestmark = pytest.mark.timeout(300 + 60 * CUTS)


class Plant:
    """The processes of one store on one disk."""

    def __init__(self, on: Disk, folder: Path) -> None:
        self.on = on
        self.folder = folder
        self.directory = str(on.place / "store")
        self.processes: list[Forked] = []

    async def fork(self, target: str, *arguments: Any, environment: Mapping[str, str] | None = None) -> Forked:
        log = self.folder / "processes.log"
        process = await zygote().fork(target, *arguments, log=log, environment=environment)
        self.processes.append(process)
        return process

    async def write(self, target: str = "tests.processes.clients:main") -> None:
        """Clients in two processes, and a process for every two projections."""
        await AsyncStore.init(self.directory, partitions=2)
        batch = {"space": SPACE, "idempotency_key": "first", "changes": [collection("shared")]}
        async with await AsyncStore.open(self.directory, projections=()) as store:
            shared = (await store.write(batch)).to_dict()["results"][0]
        for numbers in (range(0, CLIENTS, 2), range(1, CLIENTS, 2)):
            arguments = (self.directory, str(self.folder), list(numbers), "power", SPACE, shared)
            await self.fork(target, *arguments, environment=SMALL_SEGMENTS)
        for names in (("ids", "vectors"), ("relations", "postings")):
            await self.fork(COMMAND, "consume", *names, "--wait", "--store", self.directory)

    async def written(self, answers: int) -> None:
        await until(lambda: sum(1 for _ in self.told()) >= answers, f"{answers} answers")

    def told(self) -> Sequence[Mapping[str, Any]]:
        """The results that clients have been told by now."""
        told = [one for number in range(CLIENTS) for one in Journal(self.folder, number).told()]
        return [one.result for one in told if one.result is not None]

    def stop(self) -> None:
        """All at once, as far as nothing that one writes after another was stopped can make the disk younger."""
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        for process in self.processes:
            await process.killed()
        self.processes.clear()


class Plants:
    """Ends every process before the disk goes."""

    def __init__(self, tmp_path: Path) -> None:
        self._disk = disk(tmp_path)
        self._folder = tmp_path

    async def __aenter__(self) -> Plant:
        self.plant = Plant(self._disk.__enter__(), self._folder)
        return self.plant

    async def __aexit__(self, *raised: object) -> None:
        try:
            await self.plant.kill()
        finally:
            self._disk.__exit__(None, None, None)


async def check(directory: str, told: Sequence[Mapping[str, Any]]) -> None:
    """What was acknowledged is there, whole; every projection opens and is no further than the log; writing goes on."""
    said = {
        (result["receipt"]["partition"], result["receipt"]["position"]): [
            (made["atom"], made["revision"]) for made in result["results"]
        ]
        for result in told
    }
    async with await AsyncStore.open(directory, create=False) as store:
        logged = await batches_in_the_log(store)
        assert {place: logged.get(place) for place in said} == said
        assert all(len(made) in (1, 3) for made in logged.values() if made), "no half batch"
        status = (await store.status()).to_dict()
        ends = {entry["partition"]: entry["end"] for entry in status["partitions"]}
        for entry in status["projections"]:
            assert (entry["health"], entry["error"]) == ("OK", None), entry
            assert all(part["position"] < ends[part["partition"]] for part in entry["partitions"])
        written = await store.write({"space": SPACE, "idempotency_key": "afterwards", "changes": [source("light")]})
        await store.wait_until_current()
        atoms = [atom for atom, _ in logged[max(said)]] if said else []
        for atom in [*atoms, format_id(written.results[0].atom)]:
            row = (await store.get(atom)).to_dict()["atoms"][0]
            assert row["value"] is not None or row["schema"] == "membership", "its key is durable, too"
        await check_rebuilt(store)


async def test_after_a_power_cut_while_clients_write_everything_acknowledged_is_there(tmp_path: Path) -> None:
    seed = os.environ.get("ATOMLOG_TEST_SEED", str(random.randrange(1 << 32)))
    print(f"ATOMLOG_TEST_SEED={seed}")
    chance = random.Random(seed)
    async with Plants(tmp_path) as plant:
        await plant.write()
        for cut in range(CUTS):
            await plant.written(len(plant.told()) + chance.randint(20, 60))
            await asyncio.sleep(chance.random() * 0.05)  # the moment
            plant.stop()
            told = plant.told()
            with plant.on.cut(f"cut{cut}") as after:
                assert len(list((after.place / "store" / "log" / "0").glob("*.seg"))) > 0
                await check(str(after.place / "store"), told)
            for process in plant.processes:
                process.send_signal(signal.SIGCONT)
        segments = [len(list((plant.on.place / "store" / "log" / str(p)).glob("*.seg"))) for p in (0, 1)]
        assert max(segments) > 2, "the log went through several segments"


def write_carelessly(*arguments: Any) -> None:
    """The same clients in a program that forgets to sync its log."""
    SystemFile.sync = lambda self: None  # type: ignore[method-assign]
    write_until_stopped(*arguments)


async def test_a_log_that_is_not_synced_loses_what_was_acknowledged_and_the_check_says_so(tmp_path: Path) -> None:
    async with Plants(tmp_path) as plant:
        await plant.write("tests.processes.test_power:write_carelessly")
        await plant.written(60)
        plant.stop()
        told = plant.told()
        with plant.on.cut("cut") as after, pytest.raises((AssertionError, AtomlogError)) as lost:
            await check(str(after.place / "store"), told)
        print(f"found: {lost.value!r:.300}")


def make_store(directory: str) -> None:
    asyncio.run(AsyncStore.init(directory, partitions=3))


async def test_a_store_that_is_made_is_durable_and_one_that_is_being_made_can_be_made(tmp_path: Path) -> None:
    seed = os.environ.get("ATOMLOG_TEST_SEED", str(random.randrange(1 << 32)))
    print(f"ATOMLOG_TEST_SEED={seed}")
    chance = random.Random(seed)
    async with Plants(tmp_path) as plant:
        await AsyncStore.init(plant.directory, partitions=2)
        with plant.on.cut("made") as after:
            await check(str(after.place / "store"), [])
        for turn in range(4):
            name = f"being-made-{turn}"
            process = await plant.fork("tests.processes.test_power:make_store", str(plant.on.place / name))
            await until((plant.on.place / name).exists, "it has begun")
            time.sleep(chance.random() * 0.03)  # the moment
            plant.stop()
            with plant.on.cut(name) as after:
                async with await AsyncStore.open(str(after.place / name), projections=("ids",)) as store:
                    await store.write({"space": SPACE, "idempotency_key": "k", "changes": [source("light")]})
                    assert len(await batches_in_the_log(store)) == 1
            process.send_signal(signal.SIGCONT)
            assert await process.wait() == 0


def hold(directory: str, batches: int, rows: int) -> None:
    """Hold the store, follow everything, and write rows with vectors; then go on sealing."""

    async def holding() -> None:
        chance = random.Random(7)
        async with await AsyncStore.open(directory) as store:
            for n in range(batches):
                changes = [
                    source(f"{n} {m}", vectors={VECTORS: [chance.uniform(-1, 1) for _ in range(8)]})
                    for m in range(rows)
                ]
                result = await store.write({"space": SPACE, "idempotency_key": f"{n}", "changes": changes})
                print(result.receipt.position, flush=True)
            await asyncio.Event().wait()

    asyncio.run(holding())


async def test_a_power_cut_while_a_shard_is_sealed_leaves_shards_that_serve_or_are_made_anew(tmp_path: Path) -> None:
    async with Plants(tmp_path) as plant:
        await AsyncStore.init(plant.directory, shard_rows=512, vector_spaces=(VECTORS,))
        holder = await plant.fork("tests.processes.test_power:hold", plant.directory, 8, 300)
        seen: set[str] = set()
        for cut in range(3):
            await until(partial(_is_new_file, plant.directory, seen), "another file of a shard")
            plant.stop()
            seen = _shard_files(plant.directory)
            print(f"cut {cut} at {sorted(seen)}")
            positions = await _so_far(holder)
            with plant.on.cut(f"cut{cut}") as after:
                async with await AsyncStore.open(str(after.place / "store")) as store:
                    logged = await batches_in_the_log(store)
                    assert len(logged) >= positions
                    assert all(len(made) == 300 for made in logged.values())
                    await store.wait_until_current()
                    await check_rebuilt(store)
                    recall = {"type": "recall", "vectors": {VECTORS: [0.0] * 8}}
                    assert len((await store.read(recall, limit=20)).atoms) == 20
            holder.send_signal(signal.SIGCONT)


def _is_new_file(directory: str, seen: set[str]) -> bool:
    return bool(_shard_files(directory) - seen)


def _shard_files(directory: str) -> set[str]:
    found: set[str] = set()
    with suppress(FileNotFoundError):  # a temporary file became another one
        found = {path.name for path in Path(directory, "projections", "vectors").glob("g*/shards/**/*")}
    return found


async def _so_far(holder: Forked) -> int:
    """Batches that were acknowledged."""
    lines = 0
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.2):
                await holder.stdout.readuntil()
                lines += 1
    return lines


async def test_a_power_cut_after_a_rebuild_leaves_the_generation_that_current_names(tmp_path: Path) -> None:
    async with Plants(tmp_path) as plant:
        await AsyncStore.init(plant.directory)
        async with await AsyncStore.open(plant.directory) as store:
            for n in range(20):
                await store.write({"space": SPACE, "idempotency_key": f"{n}", "changes": [source(f"note {n}")]})
            await store.wait_until_current()
        current = Path(plant.directory, "projections", "ids", "CURRENT")
        assert current.read_text() == "g000001\n"
        rebuild = await plant.fork(COMMAND, "rebuild", "ids", "relations", "--store", plant.directory)
        await until(lambda: current.read_text() != "g000001\n", "a new generation counts")
        plant.stop()
        with plant.on.cut("cut") as after:
            assert (after.place / "store/projections/ids/CURRENT").read_text() == "g000002\n"
            async with await AsyncStore.open(str(after.place / "store")) as store:
                await store.wait_until_current()
                await check_rebuilt(store)
                assert {entry["health"] for entry in (await store.status()).to_dict()["projections"]} == {"OK"}
                assert set(PROJECTIONS) == {entry["name"] for entry in (await store.status()).to_dict()["projections"]}
        rebuild.send_signal(signal.SIGCONT)
