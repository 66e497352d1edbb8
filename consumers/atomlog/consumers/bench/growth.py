"""P9: what grows with the store. The same operations on a small and on a large store, in turns, in one process."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.bench.corpus import Draws
from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale
from atomlog.consumers.bench.stopwatch import stopwatch
from atomlog.consumers.bench.writes import SPACE, text, write_all
from atomlog.consumers.machine import Machine
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import keyed_id
from atomlog.projections.read.page import Page

SMALL: Final[Mapping[Scale, int]] = {"smoke": 400, "small": 2_000, "normal": 10_000, "large": 10_000}
LARGE: Final[Mapping[Scale, int]] = {"smoke": 1_200, "small": 10_000, "normal": 200_000, "large": 1_000_000}
TURNS: Final[Mapping[Scale, int]] = {"smoke": 4, "small": 20, "normal": 60, "large": 100}
PAIRS: Final = 20  # texts with their memberships in one batch of the history
TOPICS: Final = 4  # that texts refer to: the larger the store, the longer the range of each
PAGE: Final = 50
WORKING_SET: Final = 1_000  # texts that are read, spread over the whole store; its blocks are in the cache in both
READS_A_TURN: Final = 10
CURRENT_S: Final = 1_800.0
INDEXES: Final = ("ids", "relations", "postings")
OPERATIONS: Final = ("write", "read", "page", "member", "group_page")


def history(first: int) -> dict[str, Any]:
    """Texts that refer to a topic, each a member of the one group: an atom for the text, one for the membership."""
    changes = [change for number in range(first, first + PAIRS) for change in (_text(number), _membership(number))]
    return {"space": SPACE, "idempotency_key": f"growth-{first}", "changes": changes}


def _text(number: int) -> dict[str, Any]:
    slots = [{"role": "about", "target": f"key:topic-{number % TOPICS}"}]
    return {"op": "create", "key": str(number), "schema": "source", "value": {"text": text(number)}, "slots": slots}


def _membership(number: int, group: str = "group") -> dict[str, Any]:
    member = {"role": "member", "target": f"key:{number}", "order_key": f"{number:09d}"}
    return {"op": "create", "schema": "membership", "slots": [{"role": "group", "target": f"key:{group}"}, member]}


async def fill(directory: str, atoms: int, machine: Machine) -> None:
    """A store of about so many atoms, half of them texts in one group and half their memberships."""
    names = ["group", "new group", *(f"topic-{number}" for number in range(TOPICS))]
    first = [{"op": "create", "key": name, "schema": "collection", "value": {"title": name}} for name in names]
    async with AsyncStore.open(directory, machine=machine, projections=INDEXES) as store:
        await store.write({"space": SPACE, "idempotency_key": "growth", "changes": first})
        await write_all(store, [history(number) for number in range(0, atoms // 2, PAIRS)])
        await store.wait_until_current(CURRENT_S)


@dataclass(slots=True)
class Grown:
    """An open store of some size, and the operations that are measured on it. Each returns whether it was right."""

    store: AsyncStore
    texts: int
    group: str  # where new members come in: the one that has grown, or a new one
    draws: Draws
    token: str  # what this process writes is named with it
    written: int = 0

    async def write(self) -> bool:
        """A durable write of one text."""
        change = _text(self.texts + self.written)
        del change["key"]  # every round makes another one
        return bool((await self.store.write(self._batch(change))).results)

    async def read(self) -> bool:
        """A few texts of the working set, one after the other."""
        right = True
        for one in self.draws.some(READS_A_TURN, min(WORKING_SET, self.texts)):
            right &= await self._read(one)
        return right

    async def warm(self) -> None:
        """What every turn needs is in the cache."""
        for one in range(min(WORKING_SET, self.texts)):
            await self._read(one)

    async def _read(self, one: int) -> bool:
        number = one * self.texts // min(WORKING_SET, self.texts)
        page = await self.store.get(keyed_id(SPACE, SPACE, str(number)))
        return bool(page.atoms[0].value["text"] == text(number))

    async def page(self) -> bool:
        """The first page of those that refer to a topic."""
        topic = keyed_id(SPACE, SPACE, f"topic-{self.draws.one(TOPICS)}")
        return self._is_full(await self.store.relations(target=topic, role="about", limit=PAGE), self.texts // TOPICS)

    async def member(self) -> bool:
        """One more member of the group, until every index has it."""
        change = _membership(self.draws.one(self.texts), self.group)
        await self.store.write(self._batch(change))
        await self.store.wait_until_current(CURRENT_S)
        return True

    async def group_page(self) -> bool:
        """The first page of the group that has grown."""
        group = keyed_id(SPACE, SPACE, "group")
        return self._is_full(await self.store.members(group, limit=PAGE), self.texts)

    def _batch(self, change: Mapping[str, Any]) -> dict[str, Any]:
        self.written += 1
        return {"space": SPACE, "idempotency_key": f"more-{self.token}-{self.written}", "changes": [change]}

    def _is_full(self, page: Page, there: int) -> bool:
        return len(page.atoms) == min(PAGE, there)


@dataclass(slots=True)
class Times:
    """Seconds of each turn of one operation, by the clock and of the processor."""

    wall_s: list[float]
    cpu_s: list[float]


async def timed(machine: Machine, operation: Callable[[], Awaitable[bool]], times: Times) -> bool:
    with stopwatch(machine.clock) as took:
        right = await operation()
    times.wall_s.append(took.wall_s)
    times.cpu_s.append(took.cpu_s)
    return right


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`ours` is the factor of the operation that grows most: a median of the large store over one of the small."""

    id: str = "P9"
    title: str = "Growth: write, point read, relation page and new member in a large store against a small one"
    unit: str = "× the small store"
    measure: Measure = "time"
    base_name: str = "the same in a store of 10,000 atoms"
    goals: Sequence[Goal] = (
        Goal(text="≤ 1.3 × each", of="ratio", value=1.3, better="lower"),
        Goal(text="first page of the huge group ≤ 5 ms", of="group_page_ms", value=5, better="lower"),
    )
    peers: Sequence[str] = ()
    notes: str = (
        "Both stores are open in one process and are asked in turns; each figure `growth_…` is a ratio of medians, the "
        "rung's ratio is the worst of them. Half of the atoms are members of one group. `write` is a durable text, "
        "`read` ten of a working set of 1,000 that is spread over the store, `page` the first 50 of who refers to a "
        "topic, `group_page` the first 50 members of the group and `member` one more member until ids, relations and "
        "postings have it: of the huge group in the large store, "
        "of an empty one in the small."
    )

    def prepare(self, bench: Bench) -> None:
        for name, sizes in (("small", SMALL), ("large", LARGE)):
            asyncio.run(fill(f"{bench.directory}/{name}", sizes[bench.scale], bench.machine))

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._ours(bench))

    def base(self, bench: Bench) -> Sample:
        """No growth."""
        return Sample(units=1, wall_s=1, cpu_s=1, checked=1)

    async def _ours(self, bench: Bench) -> Sample:
        times = {(size, name): Times([], []) for size in ("small", "large") for name in OPERATIONS}
        right = True
        async with AsyncExitStack() as opened:
            grown = {size: await self._grown(opened, bench, size) for size in ("small", "large")}
            for turn in range(-2, TURNS[bench.scale]):
                for name in OPERATIONS:
                    for size in ("small", "large") if turn % 2 else ("large", "small"):
                        kept = times[size, name] if turn >= 0 else Times([], [])
                        right &= await timed(bench.machine, getattr(grown[size], name), kept)
                        await grown[size].store.wait_until_current(CURRENT_S)
        wall = {name: _growth(times["large", name].wall_s, times["small", name].wall_s) for name in OPERATIONS}
        cpu = {name: _growth(times["large", name].cpu_s, times["small", name].cpu_s) for name in OPERATIONS}
        figures = {f"growth_{name}": factor for name, factor in wall.items()}
        figures |= {f"growth_cpu_{name}": factor for name, factor in cpu.items()}
        figures |= {f"{name}_ms": statistics.median(times["large", name].wall_s) * 1_000 for name in OPERATIONS}
        return Sample(units=1, wall_s=max(wall.values()), cpu_s=max(cpu.values()), checked=int(right), figures=figures)

    async def _grown(self, opened: AsyncExitStack, bench: Bench, size: str) -> Grown:
        directory, atoms = f"{bench.directory}/{size}", {"small": SMALL, "large": LARGE}[size][bench.scale]
        token = bench.machine.randomness.token(4).hex()  # every round writes its own
        store = await opened.enter_async_context(AsyncStore.open(directory, machine=bench.machine, projections=INDEXES))
        await store.wait_until_current(CURRENT_S)
        group = "group" if size == "large" else "new group"
        grown = Grown(store=store, texts=atoms // 2, group=group, draws=Draws("growth"), token=token)
        await grown.warm()
        return grown


def _growth(large: Sequence[float], small: Sequence[float]) -> float:
    return statistics.median(large) / statistics.median(small)


GROWTH_RUNGS: Final[tuple[Rung, ...]] = (Growth(),)
