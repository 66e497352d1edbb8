"""Two real histories through the import, one commit a batch, held against states computed from the events alone."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.store_side import StoreSide
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.rebuild import first_error
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.system import SystemClock
from atomlog.projections.read.page import Row
from tests.consumers.imports.importing import BytesFile
from tests.support.revisions import FILES, State, events, import_lines, states, to_jsonl

SPACE = "history"
KEYS = Keys(space=SPACE, policy=SPACE)
RECEIPTS = 100
AS_OF = 20


@dataclass(slots=True)
class Imported:
    """An import with what was noted on the way: the position of each write, and pages that were read meanwhile."""

    positions: list[int] = field(default_factory=list)
    pages: list[tuple[str, bytes]] = field(default_factory=list)


async def run_import(store: AsyncStore, data: bytes, noted: Imported | None = None) -> Summary:
    side, summary = StoreSide(store, SPACE), Summary(space=SPACE)

    def written() -> None:
        if noted is not None:
            noted.positions.append(side.position)

    job = JsonlImport(store=side, keys=KEYS, file=BytesFile(data), clock=SystemClock(), written=written)
    await job.run(summary)
    return summary


async def read_meanwhile(store: AsyncStore, atoms: Sequence[str], group: str, noted: Imported, seed: int) -> None:
    """Read in different ways while the import goes on, and keep each page's bytes under its receipt."""
    choose = random.Random(seed)
    while len(noted.pages) < RECEIPTS:
        if not noted.positions:
            await asyncio.sleep(0.001)
            continue
        ids = [f"key:{name}" for name in choose.sample(atoms, 5)]
        page = await choose.choice(
            (
                lambda ids=ids: store.get(ids, space=SPACE),
                lambda: store.members(f"key:{group}", space=SPACE, limit=10),
                lambda: store.recall("awesome list of models 日本語", limit=5, consistency="version_pinned"),
            )
        )()
        noted.pages.append((str(page.to_dict()["receipt"]["receipt"]), page.body()))
        await asyncio.sleep(0.005)


async def rows(store: AsyncStore, group: str, **options: Any) -> AsyncIterator[Row]:
    page = await store.members(f"key:{group}", space=SPACE, limit=1_000, **options)
    while True:
        for row in page.atoms:
            yield row
        if page.continuation is None:
            return
        page = await store.members(f"key:{group}", space=SPACE, limit=1_000, continuation=page.continuation)


async def stands(store: AsyncStore, names: Mapping[bytes, str], group: str, **options: Any) -> State:
    """What the store says, in the form of `states`."""
    found = {names[row.atom]: row async for row in rows(store, group, **options)}
    return State(
        texts={name: row.value["text"] for name, row in found.items()},
        speakers={name: row.value["speaker"] for name, row in found.items()},
        paths=dict.fromkeys(found, group),
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_a_history_is_imported_as_it_was(name: str, test_data: Path, tmp_path: Path) -> None:
    found = events(test_data / "revisions" / name)
    data = to_jsonl(import_lines(found))
    expected = list(states(found))
    seed = int(os.environ.get("ATOMLOG_TEST_SEED") or random.randrange(10**9))
    print(f"ATOMLOG_TEST_SEED={seed}")
    asyncio.run(_is_imported_as_it_was(str(tmp_path / "store"), found, data, expected, seed))


async def _is_imported_as_it_was(
    directory: str, found: list[dict[str, Any]], data: bytes, expected: list[tuple[str, State]], seed: int
) -> None:
    atoms = sorted({event["atom"] for event in found})
    (group,) = {event["path"] for event in found}
    names = {KEYS.atom(name): name for name in atoms}
    noted = Imported()
    async with await AsyncStore.open(directory) as store:
        # 1. One commit is one batch; pages are read meanwhile.
        summary, _ = await asyncio.gather(
            run_import(store, data, noted), read_meanwhile(store, atoms, group, noted, seed)
        )
        assert summary.written == summary.batches == len(expected) == len(noted.positions)
        await store.wait_until_current(60)
        # 2. The heads are the last state.
        assert await stands(store, names, group) == expected[-1][1]
        # 3. So is each earlier state, as of its commit.
        for index in random.Random(seed).sample(range(len(expected)), AS_OF):
            assert await stands(store, names, group, at=noted.positions[index]) == expected[index][1]
        # 4. A second import adds no record.
        ends = [partition["end"] for partition in (await store.status()).partitions]
        again = await run_import(store, data)
        assert (again.written, again.skipped) == (0, len(expected))
        assert ends == [partition["end"] for partition in (await store.status()).partitions]
        # 5. Receipts replay to the same bytes, now and after every projection was built anew, to the same digests.
        await _replays(store, noted)
        await store.wait_until_current(60)
        reports = await store.rebuild()
        assert first_error(reports) is None
        assert all(report.equal and report.swapped for report in reports)
        await _replays(store, noted)
        digest = await store.content_digest()
    async with await AsyncStore.open(directory) as store:
        await _replays(store, noted)
        assert await store.content_digest() == digest


async def _replays(store: AsyncStore, noted: Imported) -> None:
    assert len(noted.pages) == RECEIPTS
    for receipt, body in noted.pages:
        assert (await store.replay(receipt)).body() == body


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_a_killed_import_ends_as_an_uninterrupted_one(name: str, test_data: Path, tmp_path: Path) -> None:
    data = to_jsonl(import_lines(events(test_data / "revisions" / name)))
    file = tmp_path / "history.jsonl"
    file.write_bytes(data)
    seed = int(os.environ.get("ATOMLOG_TEST_SEED") or random.randrange(10**9))
    print(f"ATOMLOG_TEST_SEED={seed}")
    killed, whole = str(tmp_path / "killed"), str(tmp_path / "whole")
    written = kill_after(random.Random(seed).randrange(20, 300), killed, file)
    assert asyncio.run(_finish(killed, data, written)) == asyncio.run(_finish(whole, data, 0))


def kill_after(writes: int, directory: str, file: Path) -> int:
    """Import in a process of its own until so many writes are acknowledged, then kill it."""
    command = [sys.executable, "-m", "atomlog.consumers.demo.child", directory, str(file), SPACE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= writes:
                break
        child.kill()
        rest = child.stdout.read().split()
    return int(rest[-1]) if rest else writes


async def _finish(directory: str, data: bytes, acknowledged: int) -> str:
    """Import what is missing; the content digest."""
    async with await AsyncStore.open(directory) as store:
        summary = await run_import(store, data)
        assert summary.skipped >= acknowledged
        assert summary.skipped + summary.written == summary.batches
        await store.wait_until_current(60)
        return await store.content_digest()
