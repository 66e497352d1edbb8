"""Writers, the holder of the store among them, and followers are killed at random moments and started again."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from tests.acceptance.writing import collection
from tests.processes.clients import STOP, Journal, Told, made_of
from tests.processes.records import batches_in_the_log
from tests.support.brute import Brute, shown
from tests.support.commands import until
from tests.support.zygote import COMMAND, Forked, zygote

KILLS: Final = int(os.environ.get("ATOMLOG_TEST_KILLS", "26"))  # a run
RUNS: Final = ("first", "second")
CLIENTS: Final = 8
WRITERS: Final = ("a", "b", "c", "d")  # processes of two clients each
FOLLOWERS: Final = {"early": ("ids", "relations"), "late": ("postings", "vectors")}
ANSWER_BYTES: Final = 900  # of a journal, about
ENVIRONMENT: Final = {"ATOMLOG_SEGMENT_BYTES": "65536", "ATOMLOG_WRITE_TIMEOUT_MS": "60000"}


class Crew:
    """Every process of one store, and who is who."""

    def __init__(self, tmp_path: Path, seed: str, space: str, shared: Mapping[str, Any]) -> None:
        self.directory = str(tmp_path / "store")
        self.folder = tmp_path
        self.chance = random.Random(seed)
        self.running: dict[str, Forked] = {}
        self.killed: Counter[str] = Counter()
        self._arguments = (seed, space, dict(shared))

    async def start(self, name: str) -> None:
        log = self.folder / f"{name}.log"
        if name in FOLLOWERS:
            command = ("consume", *FOLLOWERS[name], "--wait", "--store", self.directory)
            self.running[name] = await zygote().fork(COMMAND, *command, log=log, environment=ENVIRONMENT)
            return
        at = WRITERS.index(name)
        numbers = list(range(at, CLIENTS, len(WRITERS)))
        arguments = (self.directory, str(self.folder), numbers, *self._arguments)
        self.running[name] = await zygote().fork(
            "tests.processes.clients:main", *arguments, log=log, environment=ENVIRONMENT
        )

    async def kill_one(self) -> None:
        """The holder half of the time, else anybody."""
        name = self.holder() if self.chance.random() < 0.5 else None
        self.killed["holder" if name is not None else "anybody"] += 1
        name = name or self.chance.choice(sorted(self.running))
        victim = self.running[name]
        assert victim.returncode is None
        victim.kill()
        assert await victim.wait() == -9, f"{name} ended before it was killed:\n{self.said(name)}"
        await self.start(name)

    def holder(self) -> str | None:
        try:
            pid = json.loads(Path(self.directory, "log", "0", "owner.json").read_text())["pid"]
        except (FileNotFoundError, ValueError):
            return None
        return next((name for name, process in self.running.items() if process.pid == pid), None)

    async def progress(self, answers: int) -> None:
        """Until the clients have been told about so many more, as far as bytes can tell: writing goes on."""
        wanted = self.journaled() + answers * ANSWER_BYTES
        await until(lambda: self.journaled() >= wanted, f"{answers} more answers; killed so far: {self.killed}")

    def journaled(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.journal"))

    async def stop(self) -> None:
        """Writers finish what they began; followers are asked to end."""
        (self.folder / STOP).touch()
        for name, process in self.running.items():
            if name in FOLLOWERS:
                process.terminate()
        codes = {name: await process.wait() for name, process in self.running.items()}
        # A follower that was just started is ended by the signal itself: it does not listen yet.
        wrong = [name for name, code in codes.items() if code != 0 and not (name in FOLLOWERS and code == -15)]
        assert not wrong, [(name, codes[name], self.said(name)) for name in wrong]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def told(self) -> list[Told]:
        return [told for number in range(CLIENTS) for told in Journal(self.folder, number).told()]


@pytest.mark.timeout(600 + 10 * KILLS)
@pytest.mark.parametrize("run", RUNS)
async def test_whoever_is_killed_when_each_acknowledged_batch_is_there_once_and_whole(tmp_path: Path, run: str) -> None:
    seed = os.environ.get("ATOMLOG_TEST_SEED", str(random.randrange(1 << 32)))
    print(f"ATOMLOG_TEST_SEED={seed}")
    space = f"shop-{run}"
    await AsyncStore.init(str(tmp_path / "store"), partitions=2)
    first: dict[str, Any] = {"space": space, "idempotency_key": "first", "changes": [collection("shared")]}
    async with await AsyncStore.open(str(tmp_path / "store"), projections=()) as store:
        made = (await store.write(first)).to_dict()
    crew = Crew(tmp_path, f"{seed} {run}", space, made["results"][0])
    for name in (*WRITERS, *FOLLOWERS):
        await crew.start(name)
    for _ in range(KILLS):
        await crew.progress(crew.chance.randint(1, 40))
        await asyncio.sleep(crew.chance.random() * 0.02)  # the moment
        await crew.kill_one()
    await crew.progress(CLIENTS)
    await crew.stop()
    print(f"kills: {dict(crew.killed)}; journals: {crew.journaled()} bytes")
    await check(crew.directory, [Told(batch=first, result=made, refused=None), *crew.told()])


async def check(directory: str, told: Sequence[Told]) -> None:
    """Every client has been told what became of each of its batches; so has the log, and every index."""
    accepted = {one.batch["idempotency_key"]: one for one in told if one.result is not None}
    results = {key: one.result for key, one in accepted.items() if one.result is not None}
    assert len(told) == len({one.batch["idempotency_key"] for one in told})
    async with await AsyncStore.open(directory, create=False) as store:
        # 1. The log holds the accepted batches and no other one, each once and whole.
        logged = await batches_in_the_log(store)
        said = {
            (result["receipt"]["partition"], result["receipt"]["position"]): [
                (made["atom"], made["revision"]) for made in result["results"]
            ]
            for result in results.values()
        }
        assert len(said) == len(accepted), "two batches were told of one place"
        assert logged == said
        assert all(len(said_of) in (1, 3) for said_of in said.values())
        # 2. Whoever asks again is told the same; other content under the key is refused.
        for key, one in random.Random(len(told)).sample(sorted(accepted.items()), min(40, len(accepted))):
            outcome = await store.outcome(key, space=one.batch["space"])
            assert outcome.result is not None
            assert made_of(outcome.result.to_dict()) == made_of(results[key])
            other = {**one.batch, "changes": [collection("other content")]}
            with pytest.raises(AtomlogError) as refused:
                await store.write(other)
            assert refused.value.code == "IDEMPOTENCY_MISMATCH"
        # 3. Reads give what brute force finds.
        brute = Brute()
        for key in sorted(results, key=lambda key: results[key]["receipt"]["position"]):
            brute.record(accepted[key].batch, results[key])
        await store.wait_until_current()
        await check_reads(store, brute, results["first"]["results"][0]["atom"])
        # 4. Every projection is what a clean rebuild makes of the log.
        await check_rebuilt(store)


async def check_rebuilt(store: AsyncStore) -> None:
    vectors = store.views["vectors"].follower
    assert vectors is not None

    async def embedded() -> bool:
        async with vectors.pinned() as projection:
            return not vectors._kind.unfinished(projection)

    await until(embedded, "everything is embedded")
    reports = await store.verify([*PROJECTIONS, "heads"])
    assert {report.name: report.equal for report in reports} == dict.fromkeys((*PROJECTIONS, "heads"), True)


async def check_reads(store: AsyncStore, brute: Brute, shared: str) -> None:
    selectors = ({"type": "history", "atom": shared}, {"type": "members", "group": shared})
    for selector in (*selectors, {"type": "relations", "target": shared}):
        rows, continuation = [], None
        while True:
            page = await store.read(
                selector, limit=1_000, **({} if continuation is None else {"continuation": continuation})
            )
            found = page.to_dict()
            rows += [shown(row) for row in found["atoms"]]
            continuation = found["continuation"]
            if continuation is None:
                break
        positions = {int(p): at["position"] for p, at in found["receipt"]["positions"].items()}
        assert rows == brute.at(positions).answer(selector), selector
