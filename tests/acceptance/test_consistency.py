"""F13 and F14: what a read says while indexes lag, are exchanged, or cannot be read as of where it was asked for."""

import asyncio
from typing import Any

import pytest

from atomlog.consumers.parts import PROJECTIONS
from tests.acceptance.expect import refused
from tests.acceptance.writing import collection, ids, members, membership, retire, revise, source
from tests.support.brute import shown
from tests.support.commands import until
from tests.support.deployments import Deployment, Shape

WINDOW = 64
TEXTS = ("green tea", "black tea", "white tea", "mint tea", "smoked tea", "sweet tea")


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(settings={"postings_window": WINDOW})


class Tea:
    """Six teas in P and Q, so that a page of two needs every index; and what happens to them later."""

    def __init__(self, deployment: Deployment, space: str) -> None:
        self.deployment = deployment
        self.space = space
        self.made: dict[str, Any] = {}
        self.position: dict[int, int] = {}

    async def plant(self) -> None:
        changes = [collection(name, **{"as": f"@{name}"}) for name in ("p", "q")]
        changes += [source(text, **{"as": f"@{n}"}) for n, text in enumerate(TEXTS)]
        for group in ("p", "q"):
            changes += [membership(f"@{group}", f"@{n}", **{"as": f"@{group}{n}"}) for n in range(len(TEXTS))]
        written = await self.deployment.write(self.space, changes)
        self.made = {result["as"].removeprefix("@"): result for result in written["results"]}
        self.position = {written["receipt"]["partition"]: written["receipt"]["position"]}
        await self.deployment.current()
        await until(self.embedded, "every tea has its vector")

    async def embedded(self) -> bool:
        page = await self.deployment.read(self.recall, limit=1)
        return bool(page.page["diagnostics"]["unembedded"] == 0)

    async def change(self) -> dict[str, Any]:
        """One revised, one out of Q, one new in both: every read of them differs from before."""
        changes = [
            revise(self.made["0"], {"text": "green tea, second infusion"}),
            retire(self.made["q1"]),
            source("blue tea", **{"as": "@new"}),
            membership(self.made["p"]["atom"], "@new"),
            membership(self.made["q"]["atom"], "@new"),
        ]
        receipt: dict[str, Any] = (await self.deployment.write(self.space, changes))["receipt"]
        return receipt

    @property
    def both(self) -> dict[str, Any]:
        return members(self.made["p"]["atom"], **{"and": [self.made["q"]["atom"]]})

    @property
    def recall(self) -> dict[str, Any]:
        return {"type": "recall", "text": "green tea", "scope": {"groups": {"and": [self.made["p"]["atom"]]}}}


async def all_but(deployment: Deployment, paused: str, receipt: dict[str, Any]) -> None:
    """Every other index has applied the write; the paused one has not."""

    def reached(entry: dict[str, Any]) -> bool:
        return all(
            part["position"] >= receipt["position"]
            for part in entry["partitions"]
            if part["partition"] == receipt["partition"]
        )

    async def so() -> bool:
        entries = await deployment.projections()
        return all(reached(entry) != (name == paused) for name, entry in entries.items())

    await until(so, f"every index but {paused} has applied {receipt['position']}")


@pytest.mark.parametrize("index", PROJECTIONS)
async def test_F13_while_an_index_lags_a_read_keeps_one_state_and_says_how_far_each_index_is(
    deployment: Deployment, space: str, index: str
) -> None:
    tea = Tea(deployment, space)
    await tea.plant()
    before = await deployment.current()
    plans = {"members": {"ids", "relations", "postings"}, "recall": {"ids", "postings", "vectors"}}
    await deployment.pause(index)
    try:
        later = await tea.change()
        await all_but(deployment, index, later)
        now = {later["partition"]: later["position"]}

        # A snapshot is of the state that all its indexes have; version_pinned goes on without vectors.
        first = await deployment.read(tea.both, limit=2)
        assert first.positions == (before if index in plans["members"] else now)
        recalled = await deployment.read(tea.recall, limit=3)
        recalled_from = plans["recall"] if deployment.recalls_snapshot else {"ids", "postings"}
        assert recalled.positions == (before if index in recalled_from else now)
        pinned = await deployment.read(tea.recall, limit=20, consistency="version_pinned")
        assert pinned.positions == (before if index in ("ids", "postings") else now)
        for page, plan in ((first, "members"), (recalled, "recall"), (pinned, "recall")):
            behind = {name for name, lag in page.lag.items() if lag}
            assert behind == {index} & plans[plan]
            state = deployment.brute.at(page.positions)
            inside = {row["atom"] for row in state.members(tea.made["p"]["atom"])}
            assert [shown(row) for row in page.rows] == state.ids(page.atoms), "no row is of another state"
            assert inside.issuperset(page.atoms)
            assert page.rows

        # Who asks for what the index has not seen is told which index it is and how far it came.
        if index in plans["members"]:
            error = await refused(deployment.read(tea.both, at_least=later, timeout_s=0.05), "INDEX_LAGGING")
            assert [(found["index"], found["wanted"]) for found in error.details] == [(index, later["position"])]
    finally:
        await deployment.resume(index)

    # The index catches up, writes go on, a process is killed: the pages that follow are still of the first state.
    await deployment.current()
    await deployment.write(space, [retire(tea.made["p5"]), retire(tea.made["q4"])])
    await deployment.kept(first)
    await deployment.disturb()
    await deployment.current()
    pages = [first, *await rest(deployment, first, tea.both)]
    deployment.check(tea.both, pages)
    for page in pages:
        assert (await deployment.replay(page.receipt_id)).body == page.body


async def rest(deployment: Deployment, page: Any, selector: dict[str, Any], limit: int = 2) -> list[Any]:
    pages = []
    while page.continuation is not None:
        page = await deployment.read(selector, limit=limit, continuation=page.continuation)
        pages.append(page)
    return pages


@pytest.mark.parametrize("index", PROJECTIONS)
async def test_F13_a_rebuilt_index_takes_over_between_pages_and_inside_reads_that_wait(
    deployment: Deployment, space: str, index: str
) -> None:
    tea = Tea(deployment, space)
    await tea.plant()
    selectors = (tea.both, tea.recall)
    first, recalled = [await deployment.read(one, limit=2) for one in selectors]
    generation = (await deployment.projections())[index]["generation"]
    partition = deployment.partition(space)
    next_one = {"partition": partition, "position": await deployment.end(partition)}
    waiting = [asyncio.create_task(deployment.read(one, at_least=next_one, timeout_s=30)) for one in selectors]

    done = await deployment.cli("rebuild", index, "--json")
    assert done.code == 0, done.err

    async def exchanged() -> bool:
        return bool((await deployment.projections())[index]["generation"] != generation)

    await until(exchanged, f"the rebuilt {index} is read")
    assert not any(task.done() for task in waiting)
    later = await tea.change()

    # Pages that began before go on as they were, and each names the build it was made from.
    pages = [first, *await rest(deployment, first, tea.both)]
    deployment.check(tea.both, pages)
    if index in first.receipt["indexes"]:
        builds = [page.receipt["indexes"][index]["generation"] for page in pages]
        assert builds[0] == generation
        assert generation not in builds[1:], "no page hides that it was made from another build"
    recalled_pages = [recalled, *await rest(deployment, recalled, tea.recall)]
    atoms = [atom for page in recalled_pages for atom in page.atoms]
    assert len(atoms) == len(set(atoms)) == len(TEXTS)
    for page in (*pages, *recalled_pages):
        assert page.positions == first.positions
        assert (await deployment.replay(page.receipt_id)).body == page.body

    # Reads that waited meanwhile see what they waited for, all of it as of one state.
    both, found = await asyncio.gather(*waiting)
    assert both.positions[partition] >= later["position"]
    assert found.positions[partition] >= later["position"]
    deployment.check(tea.both, [both])
    state = deployment.brute.at(found.positions)
    assert [shown(row) for row in found.rows] == state.ids(found.atoms)
    inside = state.members(tea.made["p"]["atom"])
    assert len(found.atoms) + found.page["diagnostics"]["unembedded"] == len(inside)


async def test_F14_a_snapshot_that_an_index_cannot_give_is_refused_and_never_weakened(
    deployment: Deployment, space: str
) -> None:
    tea = Tea(deployment, space)
    await tea.plant()
    for n in range(WINDOW + 2):
        await deployment.write(space, [source(f"note {n}")])
    await deployment.current()
    await deployment.disturb()
    floor = (await deployment.projections())["postings"]["asof"]["floor"]
    (old,) = tea.position.values()
    assert floor > old

    for mode in ("snapshot", "version_pinned"):
        for selector in (tea.both, tea.recall):
            error = await refused(
                deployment.read(selector, at=dict(tea.position), consistency=mode), "CONSISTENCY_UNAVAILABLE"
            )
            never = selector == tea.recall and mode == "snapshot" and not deployment.recalls_snapshot
            why = "a recall has no snapshot" if never else f"postings can be read as of position {floor}"
            assert why in error.message
    # What the index can give, it gives exactly; and the same state is there for reads that do without it.
    exact = await deployment.read(tea.both, at={deployment.partition(space): floor})
    deployment.check(tea.both, [exact])
    alone = members(tea.made["p"]["atom"])
    deployment.check(alone, await deployment.pages(alone, limit=2, at=dict(tea.position)))


async def test_F14_a_read_that_needs_an_index_which_is_not_there_is_refused_and_names_it(
    deployment: Deployment, space: str
) -> None:
    tea = Tea(deployment, space)
    await tea.plant()
    store = await deployment.open_reader(("ids", "relations"))
    async with store:
        for selector, missing in ((tea.both, "postings"), (tea.recall, "postings")):
            error = await refused(store.read(selector), "CONSISTENCY_UNAVAILABLE")
            assert missing in error.message
        assert len((await store.read(members(tea.made["p"]["atom"]))).atoms) == len(TEXTS)
        assert len((await store.read(ids(tea.made["p"]["atom"]))).atoms) == 1
