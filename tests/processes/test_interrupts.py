"""Ctrl-C in the middle of an import and of group commits: what was told stays, and a repetition finishes the rest."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import EXIT_INTERRUPTED
from tests.acceptance.writing import source
from tests.processes.records import batches_in_the_log
from tests.support.commands import until
from tests.support.zygote import COMMAND, Forked, zygote

LINES: Final = 1_000
BATCHES: Final = 1_000
ROUNDS: Final = 2

pytestmark = pytest.mark.timeout(300)


def chance() -> random.Random:
    seed = os.environ.get("ATOMLOG_TEST_SEED", str(random.randrange(1 << 32)))
    print(f"ATOMLOG_TEST_SEED={seed}")
    return random.Random(seed)


async def start(tmp_path: Path, *words: str) -> Forked:
    return await zygote().fork(COMMAND, *words, "--store", str(tmp_path / "store"), log=tmp_path / "messages.log")


def log_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "store" / "log" / "0").glob("*.seg"))


async def interrupted(process: Forked, tmp_path: Path) -> int:
    """Its exit code after a Ctrl-C; its end is one line and no traceback."""
    process.send_signal(signal.SIGINT)
    code = await process.wait()
    said = (tmp_path / "messages.log").read_text()
    assert "Traceback" not in said, said
    return code


async def test_an_import_that_is_interrupted_is_finished_by_a_repetition(tmp_path: Path) -> None:
    moments = chance()
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"id": f"{n}", "text": f"note {n}"}) + "\n" for n in range(LINES)))
    await AsyncStore.init(tmp_path / "store")
    words = ("import", "jsonl", str(lines), "--space", "notes")
    codes = []
    for _ in range(ROUNDS):
        process = await start(tmp_path, *words)
        wanted = log_bytes(tmp_path) + moments.randint(1, 60_000)
        ended = asyncio.create_task(process.stdout.read())
        await until(partial(_is_as_far, tmp_path, wanted, ended), "it is writing")
        codes.append(await interrupted(process, tmp_path))
        await ended
    assert codes[0] == EXIT_INTERRUPTED
    assert set(codes) <= {EXIT_INTERRUPTED, 0}
    process = await start(tmp_path, *words)
    assert await process.wait() == 0
    async with await AsyncStore.open(tmp_path / "store", projections=("ids",)) as store:
        made = [atom for batch in (await batches_in_the_log(store)).values() for atom, _ in batch]
        assert len(made) == len(set(made)) == LINES, "each line once, and no other atom"


async def test_group_commits_that_are_interrupted_keep_what_was_told_and_no_half_batch(tmp_path: Path) -> None:
    moments = chance()
    await AsyncStore.init(tmp_path / "store")
    batches = [
        {"space": "notes", "idempotency_key": f"{n}", "changes": [source(f"{n}"), source(f"{n} too")]}
        for n in range(BATCHES)
    ]
    for _ in range(ROUNDS):
        process = await start(tmp_path, "write")
        sending = asyncio.create_task(_send(process, batches))
        told = [json.loads(await process.stdout.readuntil()) for _ in range(moments.randint(1, 200))]
        code, rest = await asyncio.gather(interrupted(process, tmp_path), process.stdout.read())
        await sending
        assert code == EXIT_INTERRUPTED
        told += [json.loads(line) for line in rest.splitlines()]
        async with await AsyncStore.open(tmp_path / "store", projections=()) as store:
            logged = await batches_in_the_log(store)
            assert all(len(made) == 2 for made in logged.values())
            for result in told:
                place = result["receipt"]["partition"], result["receipt"]["position"]
                assert logged[place] == [(made["atom"], made["revision"]) for made in result["results"]]
            known = {result["receipt"]["position"]: result for result in told}
            for n in range(0, BATCHES, 100):
                outcome = await store.outcome(f"{n}", space="notes")
                assert outcome.state in ("accepted", "never")
                if outcome.result is not None:
                    assert outcome.result.receipt.position in {position for _, position in logged}
            assert len(known) == len(told)


def _is_as_far(tmp_path: Path, wanted: int, ended: "asyncio.Task[bytes]") -> bool:
    return ended.done() or log_bytes(tmp_path) >= wanted


async def _send(process: Forked, batches: Sequence[dict[str, Any]]) -> None:
    """Until the process does not read any more."""
    try:
        for batch in batches:
            process.stdin.write(json.dumps(batch).encode() + b"\n")
            await process.stdin.drain()
    except (ConnectionError, BrokenPipeError):
        pass
