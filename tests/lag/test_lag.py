"""One index after the other stands still, is killed, or loses its directory while writes and reads go on elsewhere.

Every page that was read meanwhile is held against brute force at the positions of its own receipt: it may be old, it
may be refused with the index named, it never mixes two states. Afterwards the index catches up without help.
"""

import asyncio
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.kernel.errors import AtomlogError
from tests.acceptance.writing import collection, ids, members, membership, retire, revise, source
from tests.support.brute import shown
from tests.support.deployments import Apart, Shape, deploy
from tests.support.store_process import Shown

SPACE: Final = "tea"
TEAS: Final = 6
BATCHES: Final = 6  # before and after the index is back
PATIENCE_S: Final = 0.05
REFUSED: Final = ("INDEX_LAGGING", "CONSISTENCY_UNAVAILABLE")
PLANS: Final = {  # selector type → the indexes that a page of it needs
    "ids": {"ids"},
    "history": {"ids"},
    "relations": {"ids", "relations"},
    "groups": {"ids", "relations"},
}

pytestmark = pytest.mark.timeout(600)


class Shop:
    """Teas in two groups that change all the time, and everything that was read of them."""

    def __init__(self, deployment: Apart, chance: random.Random) -> None:
        self.deployment = deployment
        self.chance = chance
        self.made: dict[str, Any] = {}
        self.pages: list[tuple[dict[str, Any], Shown]] = []
        self.refusals: Counter[tuple[str, str]] = Counter()  # (code, index) → how often
        self.last: dict[str, Any] = {}
        self._reached: dict[Any, int] = {}  # who reads what → the last position

    async def plant(self) -> None:
        changes = [collection(name, **{"as": f"@{name}"}) for name in ("p", "q")]
        changes += [source(f"tea {n}", **{"as": f"@{n}"}) for n in range(TEAS)]
        changes += [membership(f"@{g}", f"@{n}", **{"as": f"@{g}{n}"}) for g in ("p", "q") for n in range(TEAS)]
        written = await self.deployment.write(SPACE, changes)
        self.made = {result["as"].removeprefix("@"): result for result in written["results"]}
        self.last = written["receipt"]
        await self.deployment.current()

    async def write(self, batches: int = 1) -> None:
        """Each batch revises, retires or adds teas and memberships: states differ in every index."""
        for _ in range(batches):
            tea = f"{self.chance.randrange(TEAS)}"
            group, number = self.chance.choice("pq"), len(self.deployment.brute.versions)
            written = await self.deployment.write(
                SPACE,
                [
                    revise(self.made[tea], {"text": f"tea {tea}, infusion {number}"}),
                    retire(self.made[f"{group}{tea}"]),
                    membership(self.made[group]["atom"], self.made[tea]["atom"], **{"as": f"@{group}{tea}"}),
                    source(f"new tea {number}", **{"as": "@new"}),
                    membership(self.made["p"]["atom"], "@new"),
                    membership(self.made["q"]["atom"], "@new"),
                ],
            )
            self.made[tea] = written["results"][0]
            self.made[f"{group}{tea}"] = written["results"][2]
            self.last = written["receipt"]

    def selectors(self) -> list[dict[str, Any]]:
        p, q, tea = self.made["p"]["atom"], self.made["q"]["atom"], self.made["0"]["atom"]
        return [
            ids(p, tea),
            {"type": "history", "atom": tea},
            {"type": "relations", "target": p},
            {"type": "groups", "member": tea},
            members(p),
            members(p, **{"and": [q]}),
            members(p, **{"not": [q]}),
            {"type": "recall", "text": "tea", "scope": {"groups": {"and": [p]}}},
        ]

    async def read(self, selector: dict[str, Any], **options: Any) -> None:
        try:
            page = await self.deployment.read(selector, limit=500, timeout_s=PATIENCE_S, **options)
        except AtomlogError as error:
            assert error.code in REFUSED, error
            named = {str(detail.get("index", detail["path"])) for detail in error.details} or set(PROJECTIONS)
            named = {name for name in named if name in error.message}
            assert named <= PLANS.get(selector["type"], set(PROJECTIONS)), f"{selector} does not need {named}: {error}"
            self.refusals.update((error.code, name) for name in named)
        else:
            self.pages.append((selector, page))
            place = (asyncio.current_task(), json.dumps([selector, *sorted(options)]))
            assert page.positions[0] >= self._reached.get(place, -1), "no reader is sent back"
            self._reached[place] = page.positions[0]

    async def read_all(self) -> None:
        for selector in self.selectors():
            await self.read(selector)
            await self.read(selector, consistency="version_pinned")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads of every kind go on until the end."""
        stopping = asyncio.Event()

        async def read_on() -> None:
            while not stopping.is_set():
                await self.read(self.chance.choice(self.selectors()))
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_on())
            try:
                yield
            finally:
                stopping.set()

    def check(self) -> None:
        """Every page so far shows one state, its own."""
        for selector, page in self.pages:
            if selector["type"] == "recall":
                self._check_recall(selector, page)
            else:
                self.deployment.check(selector, [page])
        self.pages.clear()

    def _check_recall(self, selector: dict[str, Any], page: Shown) -> None:
        state = self.deployment.brute.at(page.positions)
        assert [shown(row) for row in page.rows] == state.ids(page.atoms), "no row is of another state"
        inside = {row["atom"] for row in state.members(selector["scope"]["groups"]["and"][0])}
        assert inside.issuperset(page.atoms)
        assert page.lag["vectors"] or len(page.atoms) + page.page["diagnostics"]["unembedded"] == len(inside)


async def stands_still(deployment: Apart, index: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    await deployment.pause(index)
    try:
        await meanwhile()
    finally:
        await deployment.resume(index)


async def is_killed(deployment: Apart, index: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    await deployment.kill(index)
    await meanwhile()
    await deployment.revive(index)


async def is_killed_and_its_directory_removed(
    deployment: Apart, index: str, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    await deployment.kill(index)
    shutil.rmtree(Path(deployment.directory, "projections", index))
    await meanwhile()
    await deployment.revive(index)


async def loses_its_directory_while_it_works(
    deployment: Apart, index: str, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    removed = Path(deployment.directory, "removed")
    os.rename(Path(deployment.directory, "projections", index), removed)  # at once, as somebody writes into it
    shutil.rmtree(removed)
    await meanwhile()


LAGS: Final = (stands_still, is_killed, is_killed_and_its_directory_removed, loses_its_directory_while_it_works)


@pytest.mark.parametrize("index", PROJECTIONS)
@pytest.mark.parametrize("lag", LAGS, ids=lambda lag: lag.__name__.replace("_", "-"))
async def test_an_index_that_lags_is_read_at_one_state_or_named_and_catches_up(
    tmp_path: Path, index: str, lag: Callable[..., Awaitable[None]]
) -> None:
    seed = int(os.environ.get("ATOMLOG_TEST_SEED", random.randrange(1 << 32)))
    print(f"ATOMLOG_TEST_SEED={seed}")
    deployment = await deploy("embedded-apart", tmp_path, Shape(settings={"postings_window": 10_000}))
    assert isinstance(deployment, Apart)
    try:
        shop = Shop(deployment, random.Random(seed))
        await shop.plant()
        async with shop.reading():
            await shop.write(BATCHES)

            async def meanwhile() -> None:
                await shop.write(BATCHES)
                await shop.read_all()
                # Who asks for what the index has not seen is told which one it is.
                if lag is not loses_its_directory_while_it_works:
                    before = shop.refusals.total()
                    await shop.read(
                        members(shop.made["p"]["atom"], **{"and": [shop.made["q"]["atom"]]}), at_least=shop.last
                    )
                    if index != "vectors":
                        assert shop.refusals.total() > before
                        assert shop.refusals["INDEX_LAGGING", index] > 0

            await lag(deployment, index, meanwhile)
            await shop.write(BATCHES)
        await deployment.current()
        assert {name for _, name in shop.refusals} <= {index}, shop.refusals
        shop.check()
        await shop.read_all()
        assert len(shop.pages) == 2 * len(shop.selectors()), "nothing is refused any more"
        end = await deployment.end() - 1
        for selector, page in shop.pages:
            assert page.positions == {0: end}, selector
        shop.check()
    finally:
        await deployment.close()
