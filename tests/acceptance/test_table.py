"""The acceptance table: each row a test named by its number, on every deployment."""

import asyncio
from typing import Any

from atomlog.kernel.errors import AtomlogError
from tests.acceptance.expect import refused
from tests.acceptance.writing import collection, history, ids, members, membership, retire, revise, source
from tests.support.deployments import Deployment


async def family(deployment: Deployment, space: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """P and Q hold B; G holds P and GG holds G. The results by name, and the write's receipt."""
    groups = ("gg", "g", "p", "q")
    pairs = (("gg", "g"), ("g", "p"), ("p", "b"), ("q", "b"))
    changes = [collection(name.upper(), **{"as": f"@{name}"}) for name in groups]
    changes.append(source("Green tea wants water of 80 °C.", **{"as": "@b"}))
    changes += [membership(f"@{group}", f"@{member}", **{"as": f"@{group}-{member}"}) for group, member in pairs]
    written = await deployment.write(space, changes)
    made = {result["as"].removeprefix("@"): result for result in written["results"]}
    return made, written["receipt"]


async def test_F01_an_atom_in_two_groups_is_one_atom_with_two_relations(deployment: Deployment, space: str) -> None:
    made, receipt = await family(deployment, space)
    b = made["b"]["atom"]
    await deployment.disturb()

    in_p = await deployment.read(members(made["p"]["atom"]), at_least=receipt)
    in_q = await deployment.read(members(made["q"]["atom"]), at_least=receipt)
    assert in_p.versions == in_q.versions == [(b, made["b"]["revision"])]
    assert len((await deployment.read(history(b), at_least=receipt)).rows) == 1

    relations = await deployment.read({"type": "relations", "target": b, "role": "member"}, at_least=receipt)
    assert sorted(relations.atoms) == sorted((made["p-b"]["atom"], made["q-b"]["atom"]))
    groups = await deployment.read({"type": "groups", "member": b}, at_least=receipt)
    assert sorted(groups.atoms) == sorted((made["p"]["atom"], made["q"]["atom"]))


async def test_F02_adding_a_member_revises_neither_the_group_nor_any_ancestor(
    deployment: Deployment, space: str
) -> None:
    made, receipt = await family(deployment, space)
    ancestors = [made[name]["atom"] for name in ("p", "g", "gg")]
    before = await deployment.read(ids(*ancestors), at_least=receipt)

    added = await deployment.write(space, [source("Black tea", **{"as": "@n"}), membership(ancestors[0], "@n")])
    await deployment.disturb()

    after = await deployment.read(ids(*ancestors), at_least=added["receipt"])
    assert after.versions == before.versions
    for ancestor in ancestors:
        assert len((await deployment.read(history(ancestor), at_least=added["receipt"])).rows) == 1
    now = await deployment.read(members(ancestors[0]), at_least=added["receipt"])
    assert sorted(now.atoms) == sorted((made["b"]["atom"], added["results"][0]["atom"]))


async def test_F03_retiring_a_membership_removes_that_relation_and_nothing_else(
    deployment: Deployment, space: str
) -> None:
    made, _ = await family(deployment, space)
    b = made["b"]["atom"]

    retired = (await deployment.write(space, [retire(made["p-b"])]))["receipt"]
    await deployment.disturb()

    assert (await deployment.read(members(made["p"]["atom"]), at_least=retired)).rows == []
    in_q = await deployment.read(members(made["q"]["atom"]), at_least=retired)
    assert in_q.versions == [(b, made["b"]["revision"])]
    groups = await deployment.read({"type": "groups", "member": b}, at_least=retired)
    assert groups.atoms == [made["q"]["atom"]]
    kept = await deployment.read(ids(b), at_least=retired)
    assert (kept.rows[0]["state"], kept.rows[0]["status"]) == ("active", "current")
    assert len((await deployment.read(history(b), at_least=retired)).rows) == 1


async def test_F05_of_two_revisions_from_one_head_one_is_refused_with_the_new_head(
    deployment: Deployment, space: str
) -> None:
    made, _ = await family(deployment, space)
    b, p = made["b"], made["p"]

    def batch(who: str) -> dict[str, Any]:
        changes = [revise(b, {"text": f"{who} says so"}), revise(p, {"title": f"{who}'s group"})]
        return {"space": space, "idempotency_key": f"{space} {who}", "changes": changes}

    here = deployment.writer.write(batch("one"))
    elsewhere = deployment.write_from_elsewhere(batch("two"))
    answers = await asyncio.gather(here, elsewhere, return_exceptions=True)

    (conflict,) = (one for one in answers if isinstance(one, AtomlogError))
    (won,) = (one if isinstance(one, dict) else one.to_dict() for one in answers if not isinstance(one, Exception))
    assert conflict.code == "REVISION_CONFLICT"
    heads = [(result["atom"], result["revision"]) for result in won["results"]]
    assert [(found["atom"], found["head"]) for found in conflict.details] == heads
    assert [found["expected"] for found in conflict.details] == [b["revision"], p["revision"]]

    await deployment.disturb()
    now = await deployment.read(ids(b["atom"], p["atom"]), at_least=won["receipt"])
    assert now.versions == heads
    for atom in (b["atom"], p["atom"]):
        assert len((await deployment.read(history(atom), at_least=won["receipt"])).rows) == 2


async def test_F07_an_include_cycle_is_refused_before_anything_is_published(deployment: Deployment, space: str) -> None:
    def including(key: str, alias: str, target: str) -> dict[str, Any]:
        slots = [{"role": "part", "target": target, "mode": "include"}]
        return {"op": "create", "schema": "note", "key": key, "as": alias, "value": {"text": key}, "slots": slots}

    changes = [including("a", "@a", "@b"), including("b", "@b", "@c"), including("c", "@c", "@a")]
    await deployment.write(space, [source("so that the partition has an owner")])
    batches = await deployment.batches(deployment.partition(space))

    error = await refused(deployment.write(space, changes), "INCLUDE_CYCLE")
    (found,) = error.details
    assert set(found["cycle"]) == {"changes[0]", "changes[1]", "changes[2]"}

    await deployment.disturb()
    assert await deployment.batches(deployment.partition(space)) == batches
    await deployment.current()
    read = await deployment.read(ids("key:a", "key:b", "key:c"), space=space)
    assert read.rows == []
    assert len(read.page["diagnostics"]["missing"]) == 3


async def test_F15_a_batch_that_cannot_be_atomic_is_refused_before_any_append(
    deployment: Deployment, space: str
) -> None:
    other = f"{space}-other"
    made = (await deployment.write(other, [source("of the other space")]))["results"][0]
    mine = (await deployment.write(space, [source("of this space", key="mine")]))["results"][0]
    before = [await deployment.batches(partition) for partition in range(deployment.shape.partitions)]

    one, two = source("one", key="new-1"), source("two", key="new-2")
    named = await refused(deployment.write(space, [one, {**two, "space": other}]), "ATOMICITY_UNAVAILABLE")
    assert [found["path"] for found in named.details] == ["changes[1].space"]
    for foreign in (revise(made, {"text": "new"}), retire(made)):
        changes = [one, revise(mine, {"text": "new"}), foreign]
        error = await refused(deployment.write(space, changes), "ATOMICITY_UNAVAILABLE")
        assert [found["path"] for found in error.details] == ["changes[2].atom"]

    assert [await deployment.batches(partition) for partition in range(deployment.shape.partitions)] == before
    await deployment.disturb()
    assert [await deployment.batches(partition) for partition in range(deployment.shape.partitions)] == before
    await deployment.current()
    read = await deployment.read(ids("key:mine", "key:new-1", "key:new-2"), space=space)
    assert read.versions == [(mine["atom"], mine["revision"])]


async def test_F19_a_key_with_the_same_content_gives_the_result_again_and_with_other_content_is_refused(
    deployment: Deployment, space: str
) -> None:
    batch: dict[str, Any] = {"space": space, "idempotency_key": "once", "changes": [source("tea", key="tea")]}
    both = await asyncio.gather(deployment.writer.write(batch), deployment.writer.write(dict(batch)))
    first, joined = sorted((one.to_dict() for one in both), key=lambda one: bool(one["replayed"]))
    assert (first["replayed"], joined) == (False, {**first, "replayed": True})
    deployment.brute.record(batch, first)

    # A retry is recognised though the head has moved on, after a restart, and from another process.
    await deployment.disturb()
    moved = await deployment.write(space, [revise(first["results"][0], {"text": "coffee"})])
    batches = await deployment.batches(deployment.partition(space))
    here = (await deployment.writer.write(batch)).to_dict()
    elsewhere = await deployment.write_from_elsewhere(batch)
    assert here == elsewhere == {**first, "replayed": True}

    other = {**batch, "changes": [source("coffee", key="tea")]}
    await refused(deployment.writer.write(other), "IDEMPOTENCY_MISMATCH")
    await refused(deployment.write_from_elsewhere(other), "IDEMPOTENCY_MISMATCH")

    # So are two contents under one key at once, whichever comes first.
    rivals = [{**batch, "idempotency_key": "rivals", "changes": [source(text)]} for text in ("milk", "sugar")]
    answers = await asyncio.gather(*map(deployment.writer.write, rivals), return_exceptions=True)
    (loser,) = (one for one in answers if isinstance(one, AtomlogError))
    assert loser.code == "IDEMPOTENCY_MISMATCH"
    assert await deployment.batches(deployment.partition(space)) == batches + 1
    read = await deployment.read(history("key:tea"), space=space, at_least=moved["receipt"])
    assert [row["value"]["text"] for row in read.rows] == ["tea", "coffee"]
