"""At every position of a random log, every page is what brute force says, while writes go on and indexes lag."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.kernel.errors import AtomlogError
from tests.acceptance.random_log import RandomLog
from tests.acceptance.writing import history, ids, members
from tests.support.deployments import Deployment, Shape, deploy

AHEAD_MAX = 60  # records the writer may be ahead of who checks
SEED = int(os.environ.get("ATOMLOG_TEST_SEED", "20261130"))


class Course:
    """The writer, those that check, and the one that makes indexes lag, around one deployment."""

    def __init__(self, deployment: Deployment, space: str, records: int, seed: int) -> None:
        self.deployment = deployment
        self.space = space
        self.partition = deployment.partition(space)
        self.records = records
        self.random = random.Random(seed + 1)
        self.log = RandomLog(deployment.brute, seed)
        self.written = -1  # the last position that brute force knows
        self.checked = -1
        self.pages = 0
        self.lags = 0
        self._moved = asyncio.Condition()
        self._writing = asyncio.Lock()

    async def run(self, *, disturbed_at: int | None = None) -> None:
        """From the first position to the last; at one of them everything is killed that may be."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.write())
            await self.until(lambda: self.written >= 0)
            if disturbed_at is not None:
                await self.leg(range(disturbed_at))
                await self.disturb()
            await self.leg(range(disturbed_at or 0, self.records + 1))

    async def leg(self, positions: range) -> None:
        """Check positions in order, while others read and indexes lag."""
        beside = asyncio.create_task(self.roam()), asyncio.create_task(self.lag())
        try:
            await self.check_every(positions)
        finally:
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
            for name in PROJECTIONS:
                await self.deployment.resume(name)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise AssertionError("what ran beside the checks has failed") from error

    async def disturb(self) -> None:
        if self.deployment.writer_is_disturbed:
            async with self._writing:
                await self.deployment.disturb()
        else:
            await self.deployment.disturb()

    async def write(self) -> None:
        changes = self.log.plant()
        while self.written < self.records:
            await self.until(lambda: self.written - self.checked < AHEAD_MAX)
            async with self._writing:
                result = await self.deployment.write(self.space, changes)
            if self.written < 0:
                self.log.planted(result)
            else:
                self.log.note(changes, result)
            self.written = result["receipt"]["position"]
            await self.tell()
            changes = []
            while not changes:
                changes = self.log.next_batch()

    async def check_every(self, positions: range) -> None:
        """As of each position, in order: the reads wait for the indexes."""
        for position in positions:
            await self.knows(position)
            for selector in self.questions(position):
                await self.check(selector, at={self.partition: position})
            self.checked = position
            await self.tell()

    async def roam(self) -> None:
        """What is newest, in either mode, and any position of the past, however far the indexes are."""
        while True:
            await self.moves()
            selector = self.question()
            match self.random.choice(("snapshot", "version_pinned", "past")):
                case "past":
                    await self.check(selector, at={self.partition: self.random.randint(0, max(self.checked, 0))})
                case mode:
                    await self.check(selector, consistency=mode)

    async def lag(self) -> None:
        """Some indexes stand still until somebody needs them; then others do."""
        while True:
            await self.moves()
            chosen = self.random.sample(PROJECTIONS, self.random.choice((1, 1, 2, 3)))
            entries = await self.deployment.projections()
            targets = {name: self.random.randint(self.checked, self.reached(entries[name])) for name in chosen}
            for name in chosen:
                await self.deployment.pause(name)
            for name, target in sorted(targets.items(), key=lambda pair: pair[1]):
                await self.until(partial(self.has_checked, target - 1))
                await self.deployment.resume(name)
            self.lags += 1

    def reached(self, entry: dict[str, Any]) -> int:
        """A position that an index has applied for certain: nobody waits for more while it stands still."""
        positions = (int(part["position"]) for part in entry["partitions"] if part["partition"] == self.partition)
        return max(self.checked, *positions)

    def questions(self, position: int) -> Iterator[dict[str, Any]]:
        """At every position the algebra and a relation; of the rest one after the other."""
        p, q, r, s = self.log.groups
        yield members(p, **{"and": [q], "not": [r]})
        yield {"type": "relations", "target": self.log.any_atom()}
        if position % 4 == 0:
            yield {"type": "relations", "target": (p, q, r, s)[position // 4 % 4], "role": "group"}
        if position % 4 == 2:
            yield self.question()

    def question(self) -> dict[str, Any]:
        p, q, r, s = self.log.groups
        atom = self.log.any_atom()
        chosen: dict[str, Any] = self.random.choice(
            (
                members(p, **{"and": [q], "not": [r]}),
                members(self.random.choice((p, s)), **{"or": [q, r], "not": [self.random.choice((s, p))]}),
                members(p, include_retired=True),
                members(q, **{"or": [p], "and": [s]}, include_retired=self.random.random() < 0.5),
                {"type": "relations", "target": atom},
                {"type": "relations", "target": atom, "role": self.random.choice(("member", "about", "cites"))},
                {"type": "slots", "atom": atom},
                {"type": "groups", "member": atom},
                history(atom),
                ids(*dict.fromkeys(self.log.any_atom() for _ in range(9))),
            )
        )
        return chosen

    async def check(self, selector: dict[str, Any], **options: Any) -> None:
        """Every page of a read; between two of them others write, lag and read."""
        seen = options["at"][self.partition] if "at" in options else self.checked
        try:
            pages = await self.deployment.pages(
                selector, limit=self.random.choice((7, 25, 50, 50)), timeout_s=60, **options
            )
        except AtomlogError as error:
            asked = selector["ids"] if selector["type"] == "ids" else [selector["atom"]]
            assert error.code == "NOT_FOUND", error
            assert all(self.deployment.brute.versions[atom][0].position > seen for atom in asked), error
            return
        self.pages += len(pages)
        read = pages[0].positions[self.partition]
        await self.knows(read)
        self.deployment.check(selector, pages)

    async def knows(self, position: int) -> None:
        """Until brute force has seen what was written there."""
        await self.until(lambda: self.written >= position)

    def has_checked(self, position: int) -> bool:
        return self.checked >= position

    async def moves(self) -> None:
        """Until something was written or checked again, once there is a little to look at."""
        before = self.written, self.checked
        await self.until(lambda: self.written > AHEAD_MAX // 2 and (self.written, self.checked) != before)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(condition)

    async def tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(shard_rows=50_000)


@pytest.mark.timeout(300)
async def test_every_page_at_every_position_of_2000_records_is_what_brute_force_finds(
    tmp_path: Any, space: str, shape: Shape
) -> None:
    print(f"seed {SEED}")
    deployment = await deploy("embedded-together", tmp_path, shape)
    try:
        course = Course(deployment, space, 2_000, SEED)
        await course.run()
    finally:
        await deployment.close()
    assert course.checked == 2_000
    assert course.lags > 20, "the indexes did not lag"


@pytest.mark.timeout(300)
async def test_every_page_is_what_brute_force_finds_while_processes_are_killed(
    deployment: Deployment, space: str
) -> None:
    print(f"seed {SEED}")
    course = Course(deployment, space, 240, SEED + 7)
    await course.run(disturbed_at=120)
    assert course.checked == 240
    assert course.lags, "the indexes did not lag"
