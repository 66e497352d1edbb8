"""What analysts do on a node of a shared store, beside everybody else: look at the log, compare, rebuild, replay.

None of it joins a consumer group or disturbs an owner: the terms are those of before, and writes go on.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import partition_of
from tests.acceptance.writing import collection, history, members, membership, revise, source
from tests.support.brute import shown
from tests.support.commands import atomlog
from tests.support.deployments import Deployment, OnKafka, Shape, deploy
from tests.support.kafka import SharedBroker

PARTITIONS = 2
TEAS = 6

pytestmark = pytest.mark.timeout(400)


def space_in(partition: int) -> str:
    return next(name for name in (f"s{n}" for n in range(100)) if partition_of(name, PARTITIONS) == partition)


async def plant(deployment: Deployment) -> dict[str, Any]:
    """Teas and their group in each partition; what was made by name, with the last receipt of each."""
    made: dict[str, Any] = {}
    for partition in range(PARTITIONS):
        changes = [collection(f"teas {partition}", **{"as": "@group"})]
        changes += [source(f"tea {n} of {partition}", **{"as": f"@{n}"}) for n in range(TEAS)]
        changes += [membership("@group", f"@{n}") for n in range(TEAS)]
        written = await deployment.write(space_in(partition), changes)
        results = {result["as"]: result for result in written["results"] if result.get("as")}
        made |= {f"{name}{partition}": result for name, result in results.items()}
        revised = await deployment.write(space_in(partition), [revise(results["@0"], {"text": f"new {partition}"})])
        made[f"receipt{partition}"] = revised["receipt"]
    return made


async def terms(deployment: Deployment) -> list[dict[str, Any]]:
    """The Claims in the log."""
    return [record async for record in deployment.writer.log_dump() if record["kind"] == "Claim"]


async def groups_of(broker: SharedBroker) -> list[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await admin.start()
    try:
        return list(await admin.list_consumer_groups())
    finally:
        await admin.close()


async def test_the_log_is_dumped_projections_are_verified_rebuilt_and_replayed_beside_everybody_else(
    tmp_path: Path, kafka: SharedBroker
) -> None:
    deployment = await deploy("kafka", tmp_path / "store", Shape(partitions=PARTITIONS, shard_rows=4), broker=kafka)
    assert isinstance(deployment, OnKafka)
    try:
        made = await plant(deployment)
        await deployment.current()
        claims = await terms(deployment)

        # The log, each record with its verdict.
        dumped = await deployment.cli("log", "dump", "--json")
        assert dumped.code == 0, dumped.err
        records = [json.loads(line) for line in dumped.out.splitlines()]
        assert {record["verdict"] for record in records} == {"effective"}
        assert sum(record["kind"] == "Batch" for record in records) == 2 * PARTITIONS
        part = await deployment.cli("log", "dump", "--json", "--partition", "1", "--since", "1", "--until", "2")
        assert [json.loads(line)["position"] for line in part.out.splitlines()] == [1]

        # What each projection is, is what the log gives.
        verified = await deployment.cli("verify", *PROJECTIONS, "--json")
        assert verified.code == 0, verified.err
        before = {report["name"]: report for report in map(json.loads, verified.out.splitlines())}
        assert all(report["equal"] and len(report["digests"]) == PARTITIONS for report in before.values())
        rebuilt = await deployment.cli("rebuild", "--json")
        assert rebuilt.code == 0, rebuilt.err
        after = {report["name"]: report for report in map(json.loads, rebuilt.out.splitlines())}
        assert all(report["swapped"] for report in after.values())
        assert {name: report["digests"] for name, report in after.items()} == {
            name: report["digests"] for name, report in before.items()
        }

        # A store as of then, for reading only, with content and all, without the brokers.
        then = {partition: made[f"receipt{partition}"]["position"] - 1 for partition in range(PARTITIONS)}
        copy = str(tmp_path / "then")
        until = ",".join(f"{partition}:{position}" for partition, position in then.items())
        writing = asyncio.create_task(deployment.write(space_in(0), [source("written meanwhile")]))
        replayed = await deployment.cli("replay", "--until", until, "--to", copy, "--json")
        assert replayed.code == 0, replayed.err
        await writing
        async with AsyncStore.open(copy, create=False, read_only=True) as store:
            for partition in range(PARTITIONS):
                selector = members(made[f"@group{partition}"]["atom"])
                page = await store.read(selector)
                assert [shown(row) for row in page.to_dict()["atoms"]] == deployment.brute.at(then).answer(selector)
                assert page.atoms[0].value is not None
                past = await store.read(history(made[f"@0{partition}"]["atom"]))
                assert [row.value for row in past.atoms] == [{"text": f"tea 0 of {partition}"}]
        everything = {partition: await deployment.end(partition) - 1 for partition in range(PARTITIONS)}
        until = ",".join(f"{partition}:{position}" for partition, position in everything.items())
        whole = await deployment.cli("replay", "--until", until, "--to", str(tmp_path / "whole"), "--json")
        assert whole.code == 0, whole.err
        await deployment.current()
        digests = [
            json.loads(done.out.splitlines()[0])["digests"]
            for done in (
                await deployment.cli("verify", "ids", "--json"),
                await atomlog("verify", "ids", "--json", "--store", str(tmp_path / "whole")),
            )
        ]
        assert digests[0] == digests[1], "a copy has what a node has"

        end = await deployment.end()
        refused = await deployment.cli("replay", "--until", f"0:{end},1:0", "--to", str(tmp_path / "nothing"))
        assert refused.code == 2, refused
        assert f"positions from 0 to {end - 1}" in refused.err
        assert not (tmp_path / "nothing").exists()

        # Nobody noticed.
        assert await terms(deployment) == claims
        assert await groups_of(kafka) == []
        assert await deployment.write(space_in(1), [source("writes go on")])
    finally:
        await deployment.close()
