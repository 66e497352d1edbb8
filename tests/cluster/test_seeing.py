"""What operators and analysts see of a shared store: status over its nodes, metrics, exports, dumps, replays."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cluster.kernels import SETTINGS, Kernels
from tests.metrics.test_metrics import value
from tests.support.commands import ATOMLOG, ROOT, atomlog, until
from tests.support.kafka import SharedBroker
from tests.support.kernel_world import batch, create

pytestmark = pytest.mark.timeout(240)
WRITES = 7


async def scraped(endpoint: str) -> bytes:
    def get() -> bytes:
        with urllib.request.urlopen(endpoint, timeout=30) as answer:
            page: bytes = answer.read()
            return page

    return await asyncio.to_thread(get)


async def status(directory: Path) -> dict[str, Any]:
    done = await atomlog("status", "--json", "--store", str(directory), environment=SETTINGS)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


class Consumer:
    """`atomlog consume` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[Mapping[str, Any]] = []

    @classmethod
    async def start(cls, directory: Path, *arguments: str) -> "Consumer":
        process = await asyncio.create_subprocess_exec(
            *ATOMLOG, "consume", *arguments, "--store", str(directory), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        return cls(process)

    async def heard(self, name: str) -> Mapping[str, Any]:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError(f"it ended without saying {name}")

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def test_every_node_is_seen_from_any_node_and_what_it_measures_is_so(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        kernel = await kernels.start("kernel-1", "--metrics", "0")
        await kernels.kept(kernel)
        assert await kernels.owner() is kernel
        receipt: Mapping[str, Any] = {}
        for number in range(WRITES):
            receipt = (await kernels.write([kernel], batch(f"k{number}", create(f"a{number}"))))["receipt"]
        index = await kernels.directory("index-1")
        consumer = await Consumer.start(index, "ids", "relations", "--name", "index-1", "--metrics", "0")
        try:
            endpoint = (await consumer.heard("metrics"))["endpoint"]

            async def applied() -> bool:
                page = await scraped(endpoint)
                names = ("ids", "relations")
                places = [value(page, "projection_position", projection=name, partition="0") for name in names]
                return min(places) > int(receipt["position"])

            await until(applied, "both projections have applied what was acknowledged")
            page = await scraped(kernel.said("metrics")[0]["endpoint"])
            assert value(page, "partition_owned", partition="0") == 1
            assert value(page, "batches_total", partition="0") == WRITES
            assert value(page, "claims_total", partition="0") == 1
            assert value(page, "ack_seconds_count") == WRITES
            assert 1 <= value(page, "read_back_seconds_count") <= WRITES
            assert value(page, "in_flight", partition="0") == value(page, "overlay_records", partition="0") == 0

            onlooker = await kernels.directory("onlooker")
            seen: dict[str, Any] = {}

            async def all_are_seen() -> bool:
                seen.update(await status(onlooker))
                nodes = {node["name"]: node for node in seen["nodes"]}
                if not {"kernel-1", "index-1"} <= nodes.keys():
                    return False
                places = [place for one in nodes["index-1"]["projections"] for place in one["partitions"]]
                sizes = [one["bytes_per_revision"] for one in nodes["index-1"]["projections"]]
                return all(place["position"] > receipt["position"] for place in places) and min(sizes) > 0

            await until(all_are_seen, "a third node sees both")
            (partition,) = seen["partitions"]
            assert (partition["term"], partition["effective_batches"], partition["in_flight"]) == (1, WRITES, 0)
            assert partition["owner"]["endpoint"] == kernel.endpoint
            assert partition["last_claim_at"].endswith("Z")
            assert seen["projections"] == [], "it indexes nothing, and looking does not make it begin"
            assert not (onlooker / "projections").exists()
            replica = {node["name"]: node for node in seen["nodes"]}["index-1"]
            assert {one["name"] for one in replica["projections"]} == {"ids", "relations"}
            assert replica["disk"]["free_bytes"] > 0
            table = await atomlog("status", "--store", str(onlooker), environment=SETTINGS)
            assert "index-1" in table.out
            assert kernel.endpoint in table.out
        finally:
            await consumer.kill()


async def test_analysts_export_dump_and_replay_a_shared_store_and_disturb_nobody(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=2) as kernels:
        kernel = await kernels.start("kernel-1")
        await kernels.kept(kernel)
        receipts = [
            (await kernels.write([kernel], batch(f"k{number}", create(f"a{number}"), space=f"space-{number}")))[
                "receipt"
            ]
            for number in range(WRITES)
        ]
        analyst = await kernels.directory("analyst")
        done = await atomlog(
            "export", "--to", str(tmp_path / "out"), "--json", "--store", str(analyst), environment=SETTINGS
        )
        assert done.code == 0, done.err
        report = json.loads(done.out)
        assert report["rows"]["revisions"] == WRITES
        rows = [row for file in (tmp_path / "out" / "revisions").iterdir() for row in pq.read_table(file).to_pylist()]
        assert {(row["partition"], row["position"]) for row in rows} == {
            (one["partition"], one["position"]) for one in receipts
        }
        assert not any(row["sealed"] for row in rows)

        dumped = await atomlog("log", "dump", "--json", "--store", str(analyst), environment=SETTINGS)
        assert dumped.code == 0, dumped.err
        records = [json.loads(line) for line in dumped.out.splitlines()]
        batches = {(one["partition"], one["position"]) for one in records if one["kind"] == "Batch"}
        assert batches == {(one["partition"], one["position"]) for one in receipts}
        assert {one["verdict"] for one in records} == {"effective"}

        ends = {one["partition"]: one["position"] for one in records}
        until_ = ",".join(f"{partition}:{position}" for partition, position in sorted(ends.items()))
        then = tmp_path / "then"
        replayed = await atomlog(
            "replay", "--until", until_, "--to", str(then), "--json", "--store", str(analyst), environment=SETTINGS
        )
        assert replayed.code == 0, replayed.err
        again = await atomlog("export", "--to", str(tmp_path / "out-2"), "--json", "--store", str(then))
        assert again.code == 0, again.err
        assert json.loads(again.out)["rows"]["revisions"] == WRITES
        assert (await kernels.write([kernel], batch("still", create("still"))))["receipt"]["term"] == 1
