"""A sync of one file fails, by a preloaded library: nothing acknowledged is lost, and no failure is forgotten."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import EXIT_FATAL, AtomlogError
from atomlog.kernel.settings import Settings
from tests.acceptance.writing import source
from tests.processes.records import batches_in_the_log
from tests.processes.test_kills import check_rebuilt
from tests.support.zygote import Zygote

WRITES: Final = 12
LONG: Final = "x" * 70_000  # goes to a blob
SETTINGS: Final = {"ATOMLOG_SYNC_INTERVAL_MS": "1", "ATOMLOG_SEGMENT_BYTES": "2048"}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def failing() -> Iterator[Zygote]:
    """Processes in which a sync fails where they are told."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("A FAILED SYNC IS NOT TESTED: no C compiler (cc)")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/failing_sync.so"
        source_file = str(Path(__file__).with_name("failing_sync.c"))
        command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-o", library, source_file, "-ldl"]
        subprocess.run(command, check=True)
        zygote = Zygote({"LD_PRELOAD": library})
        yield zygote
        zygote.close()


def batch(n: int) -> dict[str, Any]:
    text = LONG if n % 4 == 3 else f"note {n}"
    return {"space": "notes", "idempotency_key": f"{n}", "changes": [source(text), source(f"{n} too")]}


def write_some(directory: str) -> None:
    """Says on stdout what became of each batch, what the store says of itself in the end, and of its closing."""

    def say(**line: Any) -> None:
        print(json.dumps(line), flush=True)

    async def writing() -> None:
        settings = Settings.from_environment(os.environ)
        async with await AsyncStore.open(directory, create=False, settings=settings) as store:
            for n in range(WRITES):
                try:
                    say(result=(await store.write(batch(n))).to_dict())
                except AtomlogError as error:
                    say(error=error.code)
                await asyncio.sleep(0.01)
            entries = (await store.status()).to_dict()["projections"]
            say(health={entry["name"]: entry["health"] for entry in entries})

    try:
        asyncio.run(writing())
    except AtomlogError as error:
        say(ended=error.code, message=error.message)


class Run:
    """What a process with a failing sync did and said."""

    def __init__(self, folder: Path, code: int, lines: list[dict[str, Any]]) -> None:
        self.code = code
        self.told = [line["result"] for line in lines if "result" in line]
        self.errors = [line["error"] for line in lines if "error" in line]
        self.health: dict[str, str] | None = next((line["health"] for line in lines if "health" in line), None)
        ended = next((line for line in lines if "ended" in line), {})
        self.ended: str | None = ended.get("ended")
        self.message = str(ended.get("message", ""))
        self.messages = (folder / "messages.log").read_text()
        report = folder / "syncs"
        self.syncs = [line.split(" ", 1) for line in report.read_text().splitlines()] if report.exists() else []

    @property
    def failed(self) -> str:
        """The file whose sync failed."""
        (path,) = [path for what, path in self.syncs if what == "fails"]
        return path

    @property
    def synced_again(self) -> bool:
        return ["succeeds", self.failed] in self.syncs


async def run(failing: Zygote, folder: Path, fault: str) -> Run:
    directory = str(folder / "store")
    await AsyncStore.init(directory)
    environment = {
        **SETTINGS,
        "ATOMLOG_TEST_SYNC_FAILS": fault,
        "ATOMLOG_TEST_SYNC_REPORT": str(folder / "syncs"),
    }
    target = "tests.processes.test_failing_sync:write_some"
    process = await failing.fork(target, directory, log=folder / "messages.log", environment=environment)
    lines = [json.loads(line) for line in (await process.stdout.read()).splitlines()]
    return Run(folder, await process.wait(), lines)


async def check(folder: Path, ran: Run, *, rebuilt: bool = False) -> None:
    """On a disk that is well again: what was acknowledged is there, the rest can be written, all indexes are right."""
    async with await AsyncStore.open(str(folder / "store")) as store:
        logged = await batches_in_the_log(store)
        for result in ran.told:
            place = result["receipt"]["partition"], result["receipt"]["position"]
            assert logged[place] == [(made["atom"], made["revision"]) for made in result["results"]]
        for n in range(WRITES):
            await store.write(batch(n))
        assert len(await batches_in_the_log(store)) == WRITES
        await store.wait_until_current()
        for result in ran.told:
            row = (await store.get(result["results"][0]["atom"])).to_dict()["atoms"][0]
            assert row["value"]["text"]
        if rebuilt:
            await check_rebuilt(store)


@pytest.mark.parametrize("fault", ["1 *.seg", "7 *.seg", "1 */durable_end", "2 */log/0", "1 *.seg.tmp"])
async def test_a_failed_sync_of_the_log_ends_the_process_at_once(failing: Zygote, tmp_path: Path, fault: str) -> None:
    ran = await run(failing, tmp_path, fault)
    assert ran.code == EXIT_FATAL, ran.messages
    assert f"atomlog: fsync of {tmp_path}/store/log/0" in ran.messages.splitlines()[-1]
    assert ran.messages.endswith("open the store anew in a new process\n")
    assert not ran.synced_again
    assert len(ran.told) < WRITES
    assert ran.health is None
    await check(tmp_path, ran)


async def test_a_note_of_the_owner_that_cannot_be_made_durable_is_a_typed_error(
    failing: Zygote, tmp_path: Path
) -> None:
    ran = await run(failing, tmp_path, "1 */log/0")
    assert (ran.code, ran.ended, ran.told) == (0, "CORRUPT", [])
    assert f"{tmp_path}/store/log/0: Input/output error" in ran.message
    await check(tmp_path, ran)


@pytest.mark.parametrize(("part", "number"), [("heads", 1), ("heads", 4), ("ids", 4), ("vectors", 2)])
async def test_after_a_failed_sync_a_projection_stands_still_and_is_right_when_it_is_opened_anew(
    failing: Zygote, tmp_path: Path, part: str, number: int
) -> None:
    ran = await run(failing, tmp_path, f"{number} */projections/{part}/g000001/db/*.log")
    assert not ran.synced_again, "a later success would hide what was lost"
    assert (ran.code, ran.ended) == (0, "CORRUPT"), "closing says that not everything is durable"
    assert "Input/output error" in ran.message
    assert ran.health == {name: "STOPPED" if name == part else "OK" for name in PROJECTIONS}
    # Heads are what writing rests on; another projection keeps no write from being accepted.
    assert set(ran.errors) <= ({"IN_DOUBT", "OVERLOADED"} if part == "heads" else set())
    assert (len(ran.told) == WRITES) == (part != "heads")
    await check(tmp_path, ran, rebuilt=True)


@pytest.mark.parametrize("fault", ["1 *keys.sqlite*", "3 *keys.sqlite*", "1 */blobs/*", "2 */blobs/*"])
async def test_a_failed_sync_of_keys_or_of_a_blob_refuses_that_write_alone(
    failing: Zygote, tmp_path: Path, fault: str
) -> None:
    """A repetition writes them again before it syncs them again."""
    ran = await run(failing, tmp_path, fault)
    assert (ran.code, ran.ended) == (0, None), ran.messages
    assert ran.errors == ["OVERLOADED"]
    assert len(ran.told) == WRITES - 1
    assert ran.health == dict.fromkeys(PROJECTIONS, "OK")
    await check(tmp_path, ran)
