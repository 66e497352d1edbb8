"""Reads that span nodes, by processes on a real broker: who holds what is heard on the control topic."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import partition_of
from tests.acceptance.expect import refused
from tests.acceptance.writing import collection, membership, source
from tests.cluster.kernels import SETTINGS, Kernels
from tests.support.commands import atomlog, until
from tests.support.kafka import SharedBroker
from tests.support.zygote import COMMAND, Forked, zygote

PARTITIONS = 2

pytestmark = pytest.mark.timeout(240)


def space_in(partition: int) -> str:
    return next(name for name in (f"s{n}" for n in range(100)) if partition_of(name, PARTITIONS) == partition)


@asynccontextmanager
async def consuming(kernels: Kernels, node: str, *arguments: str) -> AsyncIterator[Forked]:
    """`atomlog consume` of every projection of a node, which has come up."""
    directory = await kernels.directory(node)
    process = await zygote().fork(
        COMMAND,
        *("consume", *PROJECTIONS, "--wait", "--store", str(directory), "--name", node, *arguments),
        log=directory / f"{node}.log",
        environment=SETTINGS,
    )
    try:
        while line := await process.stdout.readline():
            if json.loads(line)["event"] == "consuming":
                break
        else:
            raise AssertionError((directory / f"{node}.log").read_text())
        yield process
    finally:
        await process.killed()


async def test_a_read_goes_to_the_node_that_holds_its_partitions_and_says_what_nobody_holds(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=PARTITIONS) as kernels:
        kernel = await kernels.start("kernel")
        await kernels.kept(kernel)
        here = await kernels.directory("half")
        async with (
            consuming(kernels, "half", "--partitions", "0"),
            AsyncStore.open(here, create=False, follow=False) as store,
        ):
            async with consuming(kernels, "whole", "--listen", "127.0.0.1:0"):
                there, tea = source("tea of 1", **{"as": "@there"}), source("tea of 0", **{"as": "@here"})
                far = await store.write({"space": space_in(1), "idempotency_key": "k", "changes": [there]})
                group = [collection("teas", **{"as": "@g"}), tea, membership("@g", "@here")]
                changes = [*group, membership("@g", far.to_dict()["results"][0]["atom"])]
                near = await store.write({"space": space_in(0), "idempotency_key": "k", "changes": changes})
                atoms = {one["as"]: one["atom"] for one in near.to_dict()["results"] if one.get("as")}

                # What is here is read here, what is not is read there, to the byte and with a receipt on both sides.
                local = await store.get(atoms["@here"], at_least=near.receipt)
                assert "network_calls" not in local.receipt.budget
                page = await store.members(atoms["@g"], at_least=near.receipt)
                assert sorted(row.value["text"] for row in page.atoms) == ["tea of 0", "tea of 1"]
                assert page.receipt.budget["network_calls"] == 1
                assert (await store.replay(page.receipt)).body() == page.body()
                assert (await store.verify_receipt(page.receipt)).equal
                first = await store.members(atoms["@g"], limit=1, consistency="snapshot")
                assert first.continuation is not None
                second = await store.members(atoms["@g"], limit=1, continuation=first.continuation)
                assert [row.atom for row in (*first.atoms, *second.atoms)] == [row.atom for row in page.atoms]
                found = await store.recall("tea", limit=5)
                assert {row.atom for row in page.atoms} <= {row.atom for row in found.atoms}

            # That node is gone: a snapshot is refused, another page says what it lacks.
            error = await refused(store.members(atoms["@g"], consistency="snapshot"), "CONSISTENCY_UNAVAILABLE")
            assert "whole at tls:127.0.0.1" in error.message
            lacking = await store.members(atoms["@g"])
            named = [cut for cut in lacking.receipt.truncations if cut["part"] == "partitions"]
            assert {cut["index"] for cut in named} == {"ids", "relations"}
            assert all(list(cut["partitions"]) == [1] for cut in named)
            assert [row.value for row in lacking.atoms] == [{"text": "tea of 0"}]
            await refused(store.members(atoms["@g"], limit=1, continuation=first.continuation), "CURSOR_EXPIRED")

            # It comes back, elsewhere, and is found again.
            async with consuming(kernels, "whole", "--listen", "127.0.0.1:0"):

                async def whole() -> bool:
                    try:
                        return len((await store.members(atoms["@g"], consistency="snapshot")).atoms) == 2
                    except AtomlogError as error:
                        assert error.code == "CONSISTENCY_UNAVAILABLE", error
                        return False

                await until(whole, "the node that came back is asked")
                again = await asyncio.gather(*(store.members(atoms["@g"]) for _ in range(20)))
                assert {one.body() for one in again} == {page.body()}

                # Replicas of a partition are the same, whatever else a node follows.
                digests = [await verified(str(await kernels.directory(node))) for node in ("half", "whole")]
                assert [sorted(one["ids"]) for one in digests] == [["0"], ["0", "1"]]
                assert {name: one["0"] for name, one in digests[0].items()} == {
                    name: one["0"] for name, one in digests[1].items()
                }


async def verified(directory: str) -> dict[str, dict[str, str]]:
    """Projection → partition → digest, of projections that are what the log gives."""
    done = await atomlog("verify", *PROJECTIONS, "--json", "--store", directory, environment=SETTINGS)
    assert done.code == 0, done.err
    reports = list(map(json.loads, done.out.splitlines()))
    assert all(report["equal"] for report in reports), reports
    return {report["name"]: report["digests"] for report in reports}
