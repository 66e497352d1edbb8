"""Several partitions: spaces spread over them, positions are vectors, one read is one state of all of them."""

import asyncio
from typing import Any

import pytest

from tests.acceptance.expect import refused
from tests.acceptance.writing import collection, history, ids, members, membership, retire, revise, source
from tests.support.deployments import Deployment, Shape

PARTITIONS = 3


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(partitions=PARTITIONS)


def spaces(deployment: Deployment, space: str) -> list[str]:
    """One space for each partition, in their order."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < PARTITIONS:
        name = f"{space}.{number}"
        found.setdefault(deployment.partition(name), name)
        number += 1
    return [found[partition] for partition in range(PARTITIONS)]


class Spread:
    """A group in the first space, whose members and memberships live in all of them."""

    def __init__(self, deployment: Deployment, space: str) -> None:
        self.deployment = deployment
        self.spaces = spaces(deployment, space)
        self.group = ""
        self.other = ""
        self.made: list[list[dict[str, Any]]] = []

    async def plant(self) -> dict[int, int]:
        changes = [collection("everywhere"), collection("half of it")]
        groups = (await self.deployment.write(self.spaces[0], changes))["results"]
        self.group, self.other = (made["atom"] for made in groups)
        receipts = []
        for number, name in enumerate(self.spaces):
            changes = [source(f"{name} {n}", **{"as": f"@{n}"}) for n in range(4)]
            changes += [membership(self.group, f"@{n}", order_key=f"{n}{number}") for n in range(4)]
            changes += [membership(self.other, f"@{n}") for n in (0, 1)]
            written = await self.deployment.write(name, changes)
            self.made.append(written["results"])
            receipts.append(written["receipt"])
        assert sorted(receipt["partition"] for receipt in receipts) == list(range(PARTITIONS))
        return {receipt["partition"]: receipt["position"] for receipt in receipts}

    @property
    def selectors(self) -> list[dict[str, Any]]:
        return [
            members(self.group),
            members(self.group, **{"and": [self.other]}),
            members(self.group, **{"not": [self.other]}),
            members(self.other, **{"or": [self.group]}),
            {"type": "relations", "target": self.group, "role": "group"},
            ids(self.group, *(made["atom"] for partition in self.made for made in partition)),
            *({"type": "groups", "member": partition[0]["atom"]} for partition in self.made),
        ]

    async def churn(self, turn: int) -> list[dict[str, Any]]:
        """One change in each partition, at once; the receipts."""
        writes = []
        for name, made in zip(self.spaces, self.made, strict=True):
            head = self.deployment.brute.versions[made[turn % 4]["atom"]][-1]
            expected = {"atom": head.atom, "revision": head.revision}
            left = self.deployment.brute.versions[made[4 + turn % 4]["atom"]][-1]
            changes = [revise(expected, {"text": f"{name} turn {turn}"})]
            if not left.retired:
                changes.append(retire({"atom": left.atom, "revision": left.revision}))
            changes += [source("late", **{"as": "@late"}), membership(self.group, "@late", order_key=f"9{turn}")]
            writes.append(self.deployment.write(name, changes))
        return [result["receipt"] for result in await asyncio.gather(*writes)]


async def test_a_read_is_as_of_one_position_of_each_partition_and_exact_at_every_vector(
    deployment: Deployment, space: str
) -> None:
    spread = Spread(deployment, space)
    at = await spread.plant()
    vectors = [at]
    for turn in range(4):
        receipts = await spread.churn(turn)
        if turn == 1:
            await deployment.disturb()
        for receipt in receipts:  # every partition moves on by itself
            at = {**at, receipt["partition"]: receipt["position"]}
            vectors.append(at)
    for at in vectors:
        for selector in spread.selectors:
            pages = await deployment.pages(selector, limit=5, at=at)
            assert pages[0].positions == at
            deployment.check(selector, pages)


async def test_pages_go_on_over_partitions_while_each_of_them_is_written(deployment: Deployment, space: str) -> None:
    spread = Spread(deployment, space)
    await spread.plant()
    await deployment.current()
    selector = members(spread.group)
    pages = [await deployment.read(selector, limit=2)]
    turn = 0
    while (continuation := pages[-1].continuation) is not None:
        await spread.churn(turn)
        turn += 1
        pages.append(await deployment.read(selector, limit=2, continuation=continuation))
    assert len(pages) == 4 * PARTITIONS // 2
    deployment.check(selector, pages)
    await deployment.current()
    deployment.check(selector, await deployment.pages(selector, limit=100))


async def test_as_of_a_time_is_the_last_position_of_each_partition_by_then(deployment: Deployment, space: str) -> None:
    spread = Spread(deployment, space)
    await spread.plant()
    for turn in range(3):
        await spread.churn(turn)
    await deployment.current()
    # Every revision of these spaces: when it was recorded, and where.
    recorded: dict[int, list[tuple[str, int]]] = {partition: [] for partition in range(PARTITIONS)}
    for atom, versions in deployment.brute.versions.items():
        if versions[0].partition < PARTITIONS:
            page = await deployment.read(history(atom), limit=100)
            for row, version in zip(page.rows, versions, strict=True):
                recorded[version.partition].append((row["recorded_at"], version.position))
    times = sorted({time for found in recorded.values() for time, _ in found})
    for time in times[len(times) // 3 :: 3]:
        for selector in (members(spread.group), members(spread.group, **{"not": [spread.other]})):
            page = await deployment.read(selector, as_of=time, limit=100)
            for partition, found in recorded.items():
                last = max((position for when, position in found if when <= time), default=-1)
                assert page.positions[partition] == last
            deployment.check(selector, [page])


async def test_at_least_waits_for_one_partition_and_a_bare_position_is_of_the_atoms_own(
    deployment: Deployment, space: str
) -> None:
    spread = Spread(deployment, space)
    at = await spread.plant()
    receipts = await spread.churn(0)
    for receipt in receipts:
        page = await deployment.read(members(spread.group), at_least=receipt)
        assert page.positions[receipt["partition"]] >= receipt["position"]
        deployment.check(members(spread.group), [page])
    await deployment.current()
    for partition, made in enumerate(spread.made):
        atom = made[0]["atom"]
        page = await deployment.read(ids(atom), at=at[partition])
        assert page.positions[partition] == at[partition]
        assert page.versions == [(atom, made[0]["revision"])]
    for wrong in ({PARTITIONS: 0}, {0: at[0] + 1_000_000}, {0: -2}):
        await refused(deployment.read(members(spread.group), at=wrong), "INVALID_INPUT")
    await refused(
        deployment.read(members(spread.group), at_least={"partition": PARTITIONS, "position": 0}), "INVALID_INPUT"
    )


async def test_an_atom_of_another_partition_is_referred_to_and_not_changed(deployment: Deployment, space: str) -> None:
    spread = Spread(deployment, space)
    await spread.plant()
    there = spread.made[1][0]
    before = [await deployment.batches(partition) for partition in range(PARTITIONS)]
    error = await refused(deployment.write(spread.spaces[0], [revise(there, {"text": "no"})]), "ATOMICITY_UNAVAILABLE")
    assert spread.spaces[1] in error.message
    guard = {"type": "head", "atom": there["atom"], "revision": there["revision"]}
    guarded = deployment.write(spread.spaces[0], [source("guarded")], preconditions=[guard])
    await refused(guarded, "CONSISTENCY_UNAVAILABLE")
    assert [await deployment.batches(partition) for partition in range(PARTITIONS)] == before
    nobody = "01980000-0000-7000-8000-0000000000ff"
    missing = await refused(
        deployment.write(spread.spaces[0], [membership(spread.group, nobody)]), "REFERENCE_UNAVAILABLE"
    )
    assert [found["path"] for found in missing.details] == ["changes[0].slots[1].target"]
