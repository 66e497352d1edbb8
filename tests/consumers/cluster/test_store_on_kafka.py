"""A node of a shared store, end to end on a real broker: written through owners elsewhere, read from indexes here."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomlog.client import AsyncStore
from atomlog.consumers.cluster.creation import create_node
from atomlog.consumers.cluster.founding import NodeRequest
from atomlog.consumers.cluster.kernel import run_kernel
from atomlog.consumers.machine import Machine
from atomlog.consumers.replay import replay_until
from atomlog.kernel.kafka.topics import MIN_IN_SYNC, REPLICATION
from atomlog.kernel.settings import Settings
from tests.support.kafka import SharedBroker

WEAK = (REPLICATION, MIN_IN_SYNC)
QUICK = Settings(
    lease_ms=1_000,
    heartbeat_ms=200,
    standby_backoff_ms=300,
    read_timeout_ms=30_000,
    disk_reserve_bytes=0,
)


async def nodes(path: Path, kafka: SharedBroker, prefix: str, *names: str, **of_first: str) -> list[Path]:
    """Directories of nodes of one store of two partitions; each has the first one's files."""
    made: list[Path] = []
    for name in names:
        files = (
            of_first if not made else {"master_key": str(made[0] / "master.key"), "node_pem": str(made[0] / "node.pem")}
        )
        request = NodeRequest(
            bootstrap=kafka.bootstrap,
            prefix=prefix,
            replication=1,
            partitions=2,
            allow_weak=WEAK,
            blobs=str(path / "blobs"),
            **files,  # type: ignore[arg-type]
        )
        await create_node(str(path / name), request, machine=Machine())
        made.append(path / name)
    return made


@asynccontextmanager
async def kernel(directory: Path) -> AsyncIterator[None]:
    """A kernel of this node, from its start until it has given everything back."""
    stop = asyncio.Event()
    running = asyncio.create_task(
        run_kernel(str(directory), listen="127.0.0.1:0", allow_weak=WEAK, settings=QUICK, stop=stop)
    )
    try:
        yield
    finally:
        stop.set()
        await running


def store_of(directory: Path, **more: Any) -> Any:
    return AsyncStore.open(directory, settings=QUICK, create=False, **more)


def batch(space: str, key: str, *changes: Mapping[str, Any]) -> dict[str, Any]:
    return {"space": space, "idempotency_key": key, "changes": list(changes)}


def note(key: str, **more: Any) -> dict[str, Any]:
    return {"op": "create", "key": key, "schema": "source", "value": {"text": f"{key} steeps for 3 minutes"}, **more}


async def written(store: AsyncStore, request: Mapping[str, Any]) -> Any:
    """Once somebody owns the partition."""
    while True:
        try:
            return await store.write(request)
        except Exception as error:
            if getattr(error, "code", "") not in ("NOT_OWNER", "KAFKA_UNAVAILABLE", "IN_DOUBT"):
                raise
            await asyncio.sleep(0.1)


@pytest.mark.timeout(180)
async def test_what_one_node_owns_the_others_write_and_read(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second = await nodes(tmp_path, kafka, kafka_prefix, "1", "2")
    async with kernel(first), store_of(second) as store:
        spaces = ("notes", "mail", "papers")  # in both partitions
        receipts = [(await written(store, batch(space, "k", note("tea")))).receipt for space in spaces]
        assert {receipt.partition for receipt in receipts} == {0, 1}
        assert (await store.write(batch("notes", "k", note("tea")))).replayed
        for space, receipt in zip(spaces, receipts, strict=True):
            page = await store.get("key:tea", space=space, at_least=receipt)
            assert page.atoms[0].value == {"text": "tea steeps for 3 minutes"}
        found = await store.recall("how long does tea steep", scope={"space": "notes"}, at_least=receipts[0])
        assert "tea steeps" in found.atoms[0].value["text"]
        # What was read here is cited there.
        cited = {"kind": "generated", "activity": "test", "receipts": [found.receipt.to_dict()["receipt"]]}
        slot = {"role": "about", "target": f"{found.receipt.to_dict()['receipt']}#{found.receipt.rows[0].handle}"}
        answer = note("answer", provenance=cited, slots=[slot])
        done = await store.write(batch("notes", "a", {**answer, "schema": "answer"}))
        page = await store.relations(target="key:tea", space="notes", at_least=done.receipt)
        assert [row.value["text"] for row in page.atoms] == ["answer steeps for 3 minutes"]
        # A text too long for the log is put down by one node and read by the other.
        text = "tea " * 50_000
        long = await store.write(batch("mail", "long", {**note("long"), "value": {"text": text}}))
        assert (await store.get("key:long", space="mail", at_least=long.receipt)).atoms[0].value["text"] == text
        assert (await store.outcome("a", space="notes")).state == "accepted"
        assert (await store.outcome("nothing", space="notes")).state == "never"


@pytest.mark.timeout(180)
async def test_operators_see_a_shared_store_as_any_other(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second = await nodes(tmp_path, kafka, kafka_prefix, "1", "2")
    async with kernel(first), store_of(second) as store:
        for n in range(20):
            last = await written(store, batch("notes", f"k{n}", note(f"tea {n}")))
        await store.wait_until_current(30)
        status = (await store.status()).to_dict()
        owner = status["partitions"][last.receipt.partition]["owner"]
        assert owner["endpoint"].startswith("tls:127.0.0.1:")
        assert status["partitions"][last.receipt.partition]["effective_batches"] == 20
        records = [record async for record in store.log_dump(last.receipt.partition)]
        assert {record["verdict"] for record in records} == {"effective"}
        assert [record["kind"] for record in records].count("Batch") == 20
        reports = await store.verify(["ids", "relations", "postings", "vectors"])
        assert [report.equal for report in reports] == [True] * 4
        reports = await store.rebuild(["relations"])
        assert [report.swapped for report in reports] == [True]
        digest = await store.content_digest()
        ends = {number: one["end"] - 1 for number, one in enumerate(status["partitions"])}
    await replay_until(str(second), str(tmp_path / "copy"), positions=ends, settings=QUICK)
    async with AsyncStore.open(tmp_path / "copy", read_only=True) as copy:
        assert copy.config.kafka is None
        assert await copy.content_digest() == digest
        assert (await copy.get("key:tea 7", space="notes")).atoms[0].value["text"].startswith("tea 7")


@pytest.mark.timeout(180)
async def test_when_the_owner_goes_another_takes_over_and_writes_wait_for_it(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second, third = await nodes(tmp_path, kafka, kafka_prefix, "1", "2", "3")
    async with store_of(third, projections=["ids"]) as store:
        async with kernel(first):
            one = await written(store, batch("notes", "one", note("one")))
            async with kernel(second):
                two = await store.write(batch("notes", "two", note("two")))
                assert two.receipt.term == one.receipt.term
        async with kernel(second):
            late = await written(store, batch("notes", "late", note("late")))
            assert late.receipt.term > one.receipt.term
            again = await store.write(batch("notes", "one", note("one")))
            assert (again.replayed, again.receipt) == (True, one.receipt)
            page = await store.get(["key:one", "key:two", "key:late"], space="notes", at_least=late.receipt)
            assert len(page.atoms) == 3
