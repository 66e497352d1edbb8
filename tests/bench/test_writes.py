"""P1 and P2 in small: both sides do the same number of units, and what ours wrote is durable and can be read."""

import asyncio
import json
from pathlib import Path

import pytest

from atomlog.consumers.bench.ladder import Bench
from atomlog.consumers.bench.registry import RUNGS
from atomlog.consumers.bench.writes import BATCHES, SPACE, TEXT_BYTES, WRITES, Writes, text
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import format_id
from tests.support.commands import Done
from tests.support.commands import atomlog as run_atomlog


@pytest.mark.parametrize(("rung_id", "units"), [("P1", WRITES["smoke"]), ("P2", BATCHES["smoke"] * 50)])
def test_what_was_measured_is_durable_and_can_be_read(rung_id: str, units: int, tmp_path: Path) -> None:
    rung = RUNGS[rung_id]
    assert isinstance(rung, Writes)
    sample = rung.ours(Bench(directory=str(tmp_path), scale="smoke"))
    assert (sample.units, sample.checked) == (units, units)
    assert sample.wall_s > 0
    assert sample.cpu_s > 0
    (store,) = tmp_path.iterdir()
    first = rung.warm(Bench(directory=str(tmp_path), scale="smoke")) * rung.changes
    last = first + units - rung.changes
    for number in (0, first, last):
        texts = asyncio.run(_texts(store, number))
        assert texts == [text(number + one) for one in range(rung.changes)]


async def _texts(store: Path, number: int) -> list[str]:
    """The texts of the batch whose first one has this number, by its idempotency key."""
    async with AsyncStore.open(str(store), create=False, projections=("ids",)) as opened:
        outcome = await opened.outcome(f"bench-{number}", space=SPACE)
        assert outcome.result is not None
        page = await opened.get([format_id(one.atom) for one in outcome.result.results], space=SPACE)
        return [str(row.value["text"]) for row in page.atoms]


def test_each_text_is_another_of_the_same_size() -> None:
    texts = {text(number) for number in range(2_000)}
    assert len(texts) == 2_000
    assert {len(one.encode()) for one in texts} == {TEXT_BYTES}


def atomlog(*arguments: str) -> Done:
    return asyncio.run(run_atomlog(*arguments))


def test_the_command_measures_both_sides_in_processes_of_their_own() -> None:
    done = atomlog("bench", "--only", "P2-file", "--scale", "smoke", "--rounds", "1", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found.keys() == {"P2-file"}
    rung = found["P2-file"]
    assert rung["ratio"] == pytest.approx(rung["ours"] / rung["base"])
    assert rung["unit"] == "revisions/s"
    assert rung["figures"]["base_bytes_revision"] > TEXT_BYTES


def test_an_unknown_rung_is_refused_with_the_known_ones() -> None:
    done = atomlog("bench", "--only", "P99", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["message"].startswith("--only: there is no P99; there are P1, P2, P2-file")
