"""Two real histories, one commit a batch, imported by the command while processes follow, read and are killed."""

import asyncio
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.times import format_time, parse_time
from tests.acceptance.writing import ids, members
from tests.support.commands import ATOMLOG, ROOT, atomlog, until
from tests.support.deployments import KINDS, Deployment, deploy
from tests.support.kafka import SharedBroker
from tests.support.revisions import FILES, State, events, import_lines, states, to_jsonl
from tests.support.store_process import Shown

NOBODY: Final = "01980000-0000-7000-8000-000000000001"
RECEIPTS: Final = 100
EVERY: Final = 5  # records between two reads: 1,371 commits give many more than RECEIPTS
AS_OF: Final = 10  # commits of each history: 20 in all


@dataclass(kw_only=True)
class History:
    """One file: what it says after each commit, worked out from it alone, and where its commits stand in the log."""

    space: str
    file: Path
    events: list[dict[str, Any]]
    states: list[State]
    positions: list[int] = field(default_factory=list)

    @classmethod
    def load(cls, space: str, path: Path, folder: Path) -> "History":
        found = events(path)
        file = folder / f"{space}.jsonl"
        file.write_bytes(to_jsonl(import_lines(found)))
        return cls(space=space, file=file, events=found, states=[state for _, state in states(found)])

    def named(self, state: State) -> dict[str, str]:
        """Text by atom id."""
        return {format_id(keyed_id(self.space, self.space, name)): text for name, text in state.texts.items()}

    @property
    def group(self) -> dict[str, Any]:
        (path,) = {event["path"] for event in self.events}
        return members(f"key:{path}")

    def changed_by(self, index: int) -> str:
        """An atom that a commit changed."""
        commits = list(dict.fromkeys(event["commit"] for event in self.events))
        return next(str(event["atom"]) for event in self.events if event["commit"] == commits[index])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
async def test_two_real_histories_are_imported_killed_read_and_rebuilt(
    kind: str, test_data: Path, tmp_path: Path, broker: SharedBroker | None
) -> None:
    seed = int(os.environ.get("ATOMLOG_TEST_SEED") or random.randrange(10**9))
    print(f"ATOMLOG_TEST_SEED={seed}")
    choose = random.Random(seed)
    histories = [
        History.load(f"history.{number}", test_data / "revisions" / name, tmp_path) for number, name in enumerate(FILES)
    ]
    whole = asyncio.create_task(import_without_a_break(histories[0], tmp_path / "whole"))
    deployment = await deploy(kind, tmp_path, broker=broker)
    try:
        # Each is imported, killed in the middle, and imported again, while 100 pages and more are read.
        pages = await import_and_kill(deployment, histories[0], choose)
        assert await digest(deployment.directory) == await whole, "as if it had never been killed"
        pages += await import_and_kill(deployment, histories[1], choose)
        await locate(deployment, histories)
        for history in histories:
            await check_heads_and_past(deployment, history, choose)
        await check_second_import(deployment, histories)

        # What was read is there again: now, after a rebuild of everything, and after everything was killed.
        pages = choose.sample(pages, RECEIPTS)
        await check_replay(deployment, pages)
        done = await deployment.cli("rebuild", "--json")
        reports = [json.loads(line) for line in done.out.splitlines()]
        assert done.code == 0, done
        assert {report["name"] for report in reports} >= {"ids", "relations", "postings", "vectors"}
        assert all(report["equal"] and report["digest_live"] == report["digest_rebuilt"] for report in reports)
        await check_replay(deployment, pages)
        await deployment.disturb()
        await check_replay(deployment, pages)
    finally:
        whole.cancel()
        await asyncio.gather(whole, return_exceptions=True)
        await deployment.close()


async def import_without_a_break(history: History, store: Path) -> str:
    done = await atomlog("import", "jsonl", str(history.file), "--space", history.space, "--store", str(store))
    assert done.code == 0, done
    return await digest(str(store))


async def digest(directory: str) -> str:
    """Of everything that a store says."""
    async with await AsyncStore.open(directory, create=False, projections=("ids",)) as store:
        await store.wait_until_current(60)
        return await store.content_digest()


async def import_and_kill(deployment: Deployment, history: History, choose: random.Random) -> list[Shown]:
    """Import in a process, kill it at a random commit, and the reader with it; then import again to the end."""
    start, commits = await deployment.end(), len(history.states)
    others = await deployment.batches()
    kill_at = start + choose.randrange(commits // 4, 3 * commits // 4)
    command = ("import", "jsonl", str(history.file), "--space", history.space, "--json")
    pages: list[Shown] = []

    process = await start_command(deployment, command)
    while (end := await deployment.end()) < kill_at:
        assert process.returncode is None, "the import ended before it was killed"
        await until(partial(moved, deployment, process, end), "the import goes on")
        pages.append(await read_something(deployment, history, choose))
    process.kill()
    await process.communicate()
    written = await deployment.batches() - others
    assert written > 0
    await deployment.kept(pages[-1])
    await deployment.disturb()

    process = await start_command(deployment, command)
    ended = asyncio.create_task(process.communicate())
    while not ended.done():
        end = await deployment.end()
        await until(partial(moved, deployment, process, end), "the import goes on")
        pages.append(await read_something(deployment, history, choose))
    out, err = await ended
    assert process.returncode == 0, err.decode()
    summary = json.loads(out)
    assert summary["batches"] == summary["written"] + summary["skipped"] == commits
    assert summary["skipped"] >= written, "what was acknowledged is not written again"
    assert summary["written"] > 0
    await deployment.kept(pages[-1])
    return pages


async def moved(deployment: Deployment, process: asyncio.subprocess.Process, end: int) -> bool:
    """A page is read every few records, so that the import has the machine in between."""
    return process.returncode is not None or await deployment.end() >= end + EVERY


async def start_command(deployment: Deployment, command: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*ATOMLOG, *command, "--store", deployment.directory),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )


async def read_something(deployment: Deployment, history: History, choose: random.Random) -> Shown:
    some = choose.sample(sorted({event["atom"] for event in history.events}), 5)
    selector = choose.choice(
        (
            ids(*(f"key:{atom}" for atom in some)),
            history.group,
            {"type": "recall", "text": "awesome list of models 日本語"},
        )
    )
    mode = choose.choice(("snapshot", "version_pinned"))
    if selector["type"] == "recall" and not deployment.recalls_snapshot:
        mode = "version_pinned"
    return await deployment.read(selector, space=history.space, consistency=mode, limit=10)


async def locate(deployment: Deployment, histories: Sequence[History]) -> None:
    """Each commit is one batch, in order, however often the import began."""
    dumped = deployment.writer.log_dump()
    batches = [one["position"] async for one in dumped if (one["kind"], one["verdict"]) == ("Batch", "effective")]
    assert len(batches) == sum(len(history.states) for history in histories)
    for history in histories:
        history.positions = batches[: len(history.states)]
        del batches[: len(history.states)]


async def check_heads_and_past(deployment: Deployment, history: History, choose: random.Random) -> None:
    """The heads are the last state. As of a commit, by position or by time, its own; just before it, the one before."""
    await deployment.current()
    assert texts(await everything(deployment, history)) == history.named(history.states[-1])
    for index in choose.sample(range(1, len(history.states)), AS_OF):
        position = history.positions[index]
        found = await everything(deployment, history, at=position)
        assert texts(found) == history.named(history.states[index])
        changed = await deployment.read(ids(f"key:{history.changed_by(index)}"), space=history.space, at=position)
        time = changed.rows[0]["recorded_at"]
        timed = await everything(deployment, history, as_of=time)
        assert timed[0].positions == {0: position}
        assert [page.body for page in timed] == [page.body for page in found]
        earlier = await deployment.read(ids(*changed.atoms, NOBODY), as_of=just_before(time))
        assert earlier.positions == {0: history.positions[index - 1]}


def just_before(time: str) -> str:
    return format_time(parse_time(time, "time") - 1)


async def everything(deployment: Deployment, history: History, **options: Any) -> list[Shown]:
    return await deployment.pages(history.group, space=history.space, limit=1_000, **options)


def texts(pages: Sequence[Shown]) -> Mapping[str, str]:
    """Text by atom id."""
    return {row["atom"]: row["value"]["text"] for page in pages for row in page.rows}


async def check_second_import(deployment: Deployment, histories: Sequence[History]) -> None:
    batches = await deployment.batches()
    for history in histories:
        done = await deployment.cli("import", "jsonl", str(history.file), "--space", history.space, "--json")
        assert (done.code, json.loads(done.out)["written"]) == (0, 0), done
    assert await deployment.batches() == batches


async def check_replay(deployment: Deployment, pages: Sequence[Shown]) -> None:
    for page in pages:
        assert (await deployment.replay(page.receipt_id)).body == page.body
