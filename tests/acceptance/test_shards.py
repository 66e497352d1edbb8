"""Vectors of a store in many sealed shards: exact as of a position, renewed over dead rows, rebuilt alike."""

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.acceptance.expect import refused
from tests.acceptance.writing import revise, source
from tests.support.brute import State, shown
from tests.support.commands import until
from tests.support.deployments import Deployment, Shape
from tests.support.store_process import Shown

SPACE_ID: Final = "supplied.points/1/8/l2"
DIM: Final = 8
SHARD_ROWS: Final = 512
ROWS: Final = 8 * SHARD_ROWS + 100
BATCH: Final = 900
DEAD: Final = 170  # of one shard: 33 %
SEED: Final = 4711


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(shard_rows=SHARD_ROWS, vector_spaces=(SPACE_ID,))


class Points:
    """Sources with a vector each, and the exact neighbours among them as of any state."""

    def __init__(self, deployment: Deployment, space: str) -> None:
        self.deployment = deployment
        self.space = space
        self.random = random.Random(SEED)
        self.vectors: dict[str, list[float]] = {}  # revision → vector
        self.made: list[dict[str, Any]] = []

    def point(self) -> list[float]:
        return [float(np.float32(self.random.uniform(-1, 1))) for _ in range(DIM)]

    async def write(self, changes: list[dict[str, Any]]) -> dict[str, Any]:
        points = [self.point() for _ in changes]
        changes = [{**change, "vectors": {SPACE_ID: point}} for change, point in zip(changes, points, strict=True)]
        written = await self.deployment.write(self.space, changes)
        for made, point in zip(written["results"], points, strict=True):
            self.vectors[made["revision"]] = point
        return written

    async def plant(self) -> None:
        for start in range(0, ROWS, BATCH):
            numbers = range(start, min(start + BATCH, ROWS))
            self.made += (await self.write([source(f"point {number}") for number in numbers]))["results"]

    async def settled(self) -> None:
        """Until every point has its vector where it is read."""
        await self.deployment.current()

        async def embedded() -> bool:
            page = await self.deployment.read(recall([0.0] * DIM), limit=1)
            return bool(page.page["diagnostics"]["unembedded"] == 0)

        await until(embedded, "every point has its vector")

    def nearest(self, state: State, query: Sequence[float], count: int) -> list[str]:
        heads = [head for head in state.heads.values() if not head.retired]
        rows = np.array([self.vectors[head.revision] for head in heads], dtype=np.float64)
        distances = ((rows - np.array(query, dtype=np.float64)) ** 2).sum(axis=1)
        order = sorted(range(len(heads)), key=lambda number: (distances[number], heads[number].atom))
        return [heads[number].atom for number in order[:count]]

    def check(self, query: Sequence[float], pages: Sequence[Shown]) -> None:
        """Rows of several pages of one recall are the nearest, each in the version of that state."""
        state = self.deployment.brute.at(pages[0].positions)
        rows = [row for page in pages for row in page.rows]
        assert [row["atom"] for row in rows] == self.nearest(state, query, len(rows))
        assert [shown(row) for row in rows] == state.ids([row["atom"] for row in rows])


def manifest(deployment: Deployment) -> list[dict[str, Any]]:
    """The shards of the current build, as its newest manifest names them."""
    folder = Path(deployment.directory) / "projections" / "vectors"
    shards = folder / (folder / "CURRENT").read_text().strip() / "shards"
    files = sorted(shards.glob("manifest-*.json"))
    return json.loads(files[-1].read_text())["shards"] if files else []


def sealed(deployment: Deployment) -> list[tuple[Any, ...]]:
    """What two builds of the same log must agree on."""
    names = ("partition", "space", "range", "count", "floor", "content_sha256")
    return [(*(shard[name] for name in names), shard["graph"]["sha256"]) for shard in manifest(deployment)]


async def has_floor(deployment: Deployment, floor: int) -> bool:
    asof = (await deployment.projections())["vectors"]["asof"]
    return bool(asof == {"kind": "exact", "floor": floor})


def recall(query: Sequence[float]) -> dict[str, Any]:
    return {"type": "recall", "vectors": {SPACE_ID: list(query)}}


@pytest.mark.timeout(180)
async def test_shards_seal_are_renewed_stay_pinned_and_are_rebuilt_alike(deployment: Deployment, space: str) -> None:
    points = Points(deployment, space)
    await points.plant()
    await until(lambda: len(manifest(deployment)) == ROWS // SHARD_ROWS, "eight shards are sealed")
    await points.settled()
    old = await deployment.current()
    queries = [points.point() for _ in range(10)]
    for query in queries:
        points.check(query, [await deployment.read(recall(query), limit=10)])
    first = await deployment.read(recall(queries[0]), limit=10)
    assert first.positions == old
    before = sealed(deployment)
    assert [shard[4] for shard in before] == [-1] * len(before)

    # A third of one shard dies: it is renewed, and nobody can ask for what it held before.
    dying = points.made[2 * SHARD_ROWS : 2 * SHARD_ROWS + DEAD]
    written = await points.write([revise(made, {"text": "moved"}) for made in dying])
    floor = written["receipt"]["position"]
    await until(lambda: manifest(deployment)[2]["floor"] == floor, "the shard is renewed")
    await points.settled()
    assert [shard["floor"] for shard in manifest(deployment)] == [-1, -1, floor, *[-1] * 5]
    assert manifest(deployment)[2]["count"] == SHARD_ROWS - DEAD
    assert [one for one in sealed(deployment) if one[2] != 2] == [one for one in before if one[2] != 2]
    await until(partial(has_floor, deployment, floor), "the reader sees the renewed shard")

    # The recall that began before goes on over what it saw; a new one as of then is refused.
    pages = [first]
    while (continuation := pages[-1].continuation) is not None and len(pages) < 8:
        pages.append(await deployment.read(recall(queries[0]), limit=10, continuation=continuation))
        if len(pages) == 4:
            await deployment.kept(pages[-1])
            await deployment.disturb()
    assert {tuple(page.positions.items()) for page in pages} == {tuple(old.items())}
    points.check(queries[0], pages)
    for page in pages:
        assert (await deployment.replay(page.receipt_id)).body == page.body
    error = await refused(deployment.read(recall(queries[1]), at=dict(old)), "CONSISTENCY_UNAVAILABLE")
    assert f"vectors can be read as of position {floor}" in error.message
    await points.settled()
    for query in queries:
        points.check(query, [await deployment.read(recall(query), limit=10)])

    # Two rebuilds seal what the first build has sealed, and find the same.
    live = sealed(deployment)
    for _ in range(2):
        done = await deployment.cli("rebuild", "vectors", "--json")
        report = json.loads(done.out)
        assert (done.code, report["equal"], report["swapped"]) == (0, True, True), done
        await until(lambda: len(manifest(deployment)) == len(live), "the rebuilt shards are sealed")
        assert sealed(deployment) == live
    await points.settled()
    for query in queries:
        points.check(query, [await deployment.read(recall(query), limit=10)])
