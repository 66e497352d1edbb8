"""Owners of one partition on a real broker, each with heads, key copy and connections of its own, as nodes have."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.commit_rule import INITIAL, Effective, Genesis, Void, fold
from atomlog.kernel.content import Opened
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient
from atomlog.kernel.kafka.topics import atoms_spec
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.model import WriteResult
from atomlog.kernel.owner import Owner
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.rocks import open_primary
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas.record import Record
from tests.kernel.on_kafka.support import Keys, until
from tests.support.kafka import SharedBroker, own_brokers
from tests.support.kernel_world import LOG_ID, Bench, batch, create, outcome, write

WEAK = ("replication.factor", "min.insync.replicas")
SETTINGS = Settings(write_timeout_ms=15_000, key_wait_ms=2_000, kafka_timeout_ms=5_000)


class PausingLog(KafkaLog):
    """Reads nothing while the gate is closed; what its process appends still leaves it."""

    gate: asyncio.Event

    async def wait(self, partition: int, position: int, timeout_s: float) -> bool:
        await self.gate.wait()
        return await super().wait(partition, position, timeout_s)

    async def read(self, partition: int, position: int, *, bytes_max: int) -> Sequence[LogRecord]:
        await self.gate.wait()
        return await super().read(partition, position, bytes_max=bytes_max)


@dataclass(frozen=True)
class KernelNode:
    owner: Owner
    log: PausingLog
    bench: Bench

    def said(self) -> list[str]:
        return [event["event"] for event in self.bench.events]


class Cluster:
    """Topics of one store on some broker, and nodes over them."""

    def __init__(self, address: str, prefix: str, directory: Path, settings: Settings = SETTINGS) -> None:
        self.keys = Keys(address, f"{prefix}.keys", directory)
        self.topic = f"{prefix}.atoms"
        self.settings = settings
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Cluster":
        await self._stack.enter_async_context(self.keys)
        await self.keys.make()
        await self.keys.client.create_topics([atoms_spec(self.topic, 1, 1, self.settings, Bounds()).new])
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stack.aclose()

    async def node(self, name: str) -> KernelNode:
        client = KafkaClient(self.keys.config, timeout_s=self.settings.kafka_timeout_ms / 1_000)
        await client.start()
        self._stack.push_async_callback(client.close)
        log = PausingLog(client, self.topic, LOG_ID, 1, SystemClock(), self.settings, allow_weak=WEAK)
        log.gate = asyncio.Event()
        log.gate.set()
        heads = open_primary(str(self.keys.directory / f"{name}-heads"), block_cache_bytes=1 << 20)
        self._stack.callback(heads.close)
        bench = Bench(
            log=log,
            keys=await self.keys.node(name, client=client, timeout_s=self.settings.kafka_timeout_ms / 1_000),
            heads=heads,  # type: ignore[arg-type]
            clock=SystemClock(),  # type: ignore[arg-type]
            settings=self.settings,
            seed=name,
        )
        owner = await bench.owner()
        self._stack.push_async_callback(log.close)
        self._stack.push_async_callback(owner.close)
        return KernelNode(owner=owner, log=log, bench=bench)

    async def history(self) -> "History":
        return await History.of(self)


@dataclass(frozen=True)
class History:
    """The whole log, judged anew from its start."""

    effective: Sequence[EffectiveRecord]
    void: Sequence[Record]
    reasons: Mapping[str, int]

    @classmethod
    async def of(cls, cluster: Cluster) -> "History":
        client = await cluster.keys.open_client()
        log = KafkaLog(client, cluster.topic, LOG_ID, 1, SystemClock(), cluster.settings, allow_weak=WEAK)
        genesis = Genesis(log_id=LOG_ID, partition=0, partitions=1)
        state, effective, void, reasons = INITIAL, list[EffectiveRecord](), list[Record](), Counter[str]()
        position, end = 0, await log.end(0)
        while position < end:
            for entry in await log.read(0, position, bytes_max=1 << 20):
                verdict = fold(state, entry.record, genesis, entry.position)
                position = entry.position + 1
                assert isinstance(entry.record, Record)
                if isinstance(verdict, Effective):
                    state = verdict.state
                    effective.append(EffectiveRecord(position=entry.position, record=entry.record, chain=state.chain))
                else:
                    assert isinstance(verdict, Void)
                    reasons[verdict.reason] += 1
                    void.append(entry.record)
        await log.close()
        return cls(effective=effective, void=void, reasons=reasons)

    def batches(self) -> dict[int, EffectiveRecord]:
        return {one.position: one for one in self.effective if one.kind == "Batch"}

    def void_revisions(self) -> list[bytes]:
        """Of void batches that are no copies of effective ones."""
        known = {one.record.value for one in self.effective}
        fresh = [one for one in self.void if one.kind == "Batch" and one.value not in known]
        return [data for one in fresh for data in EffectiveRecord(position=0, record=one, chain=b"").batch().revisions]


async def told(owner: Owner, request: Mapping[str, Any]) -> WriteResult | str:
    try:
        return await write(owner, request)
    except AtomlogError as error:
        return error.code


async def opened(node: KernelNode, revision: bytes) -> str:
    try:
        found = await node.bench.world().content.open(revision)
    except AtomlogError as error:
        return error.code
    return "opened" if isinstance(found, Opened) else "sealed"


def request(key: str) -> dict[str, Any]:
    return batch(key, create(key, text=f"the text of {key}"))


@pytest.mark.timeout(120)
async def test_a_zombie_loses_nothing_that_was_acknowledged_and_nothing_of_its_late_text_can_be_read(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    async with Cluster(kafka.address, kafka_prefix, tmp_path) as cluster:
        a, b = await cluster.node("a"), await cluster.node("b")
        await a.owner.claim()
        acknowledged = {key: await write(a.owner, request(key)) for key in (f"first {n}" for n in range(20))}

        before = await a.log.end(0)
        a.log.gate.clear()
        late = {f"late {n}": asyncio.create_task(told(a.owner, request(f"late {n}"))) for n in range(10)}
        await until(lambda: a.owner.in_flight == len(late))
        while await a.log.end(0) == before:  # some of it is there before the claim
            await asyncio.sleep(0.01)
        await b.owner.claim()
        more = {
            f"later {n}": asyncio.create_task(told(a.owner, batch(f"later {n}", *creates(f"later {n}", 400))))
            for n in range(4)  # more keys than it has: it makes pages that its successor has not seen
        }
        acknowledged |= {key: await write(b.owner, request(key)) for key in (f"second {n}" for n in range(20))}
        await until_void(cluster, 1)
        assert [(await outcome(b.owner, key)).state for key in ("first 0", "second 0")] == ["accepted"] * 2
        assert (await outcome(b.owner, "nothing")).state == "never"
        asking = asyncio.create_task(outcome(a.owner, "nothing"))
        a.log.gate.set()
        answers = {key: await task for key, task in (late | more).items()}
        assert {answer for answer in answers.values() if isinstance(answer, str)} <= {"IN_DOUBT", "NOT_OWNER"}
        acknowledged |= {key: answer for key, answer in answers.items() if isinstance(answer, WriteResult)}
        assert (await asking).state == "unknown"
        assert a.owner.phase == "standby"
        for key in late:
            again = await write(b.owner, request(key))
            assert key not in acknowledged or again.receipt == acknowledged[key].receipt
            acknowledged[key] = again

        history = await cluster.history()
        batches = history.batches()
        keys = Counter(one.batch().request_key for one in batches.values())
        assert set(keys.values()) == {1}, "nothing twice"
        assert len(batches) == len(acknowledged)
        for key, result in acknowledged.items():
            record = batches[result.receipt.position]
            assert (record.record.term, record.chain) == (result.receipt.term, result.receipt.chain)
            replay = await write(a.owner, request(key)) if not key.startswith("later") else result
            assert replay.receipt == result.receipt
        assert history.reasons["stale_term"] >= 1
        void = history.void_revisions()
        assert len(void) >= 400, "of pages that were made after the claim, too"
        for revision in void:
            while (code := await opened(b, revision)) == "opened":  # its owner has read the void record just now
                await asyncio.sleep(0.02)
            assert code == "PURGED"
        for record in batches.values():
            assert [await opened(b, data) for data in record.batch().revisions] == ["opened"] * len(
                record.batch().revisions
            )


def creates(name: str, count: int) -> list[dict[str, Any]]:
    return [create(f"{name}-{n}", text=f"late text {name} {n}") for n in range(count)]


async def until_void(cluster: Cluster, count: int) -> None:
    while len((await cluster.history()).void) < count:
        await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_a_node_that_releases_hands_over_at_once_and_each_term_uses_pages_of_its_own(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    async with Cluster(kafka.address, kafka_prefix, tmp_path) as cluster:
        nodes = [await cluster.node(name) for name in "abc"]
        written: dict[str, WriteResult] = {}
        for turn in range(6):
            node = nodes[turn % 3]
            await node.owner.claim()
            written |= {key: await write(node.owner, request(key)) for key in (f"t{turn}-{n}" for n in range(5))}
            await node.owner.release("planned")
            assert await told(node.owner, request("after")) == "NOT_OWNER"
            other = nodes[(turn + 1) % 3].owner
            await heard_of_release(other)
        history = await cluster.history()
        assert history.reasons == {}
        makers: dict[bytes, tuple[int, bytes]] = {}
        for record in history.batches().values():
            for revision in record.batch().revisions:
                page = await nodes[2].bench.keys.get(revision[48:56])
                assert page is not None
                makers[page.page] = (page.maker_term, page.maker_owner)
                assert makers[page.page] == (record.record.term, record.record.owner)
        assert len({term for term, _ in makers.values()}) == 6
        for node in nodes:
            for key, result in written.items():
                again = await write(node.owner, request(key))
                assert (again.replayed, again.receipt) == (True, result.receipt)


async def heard_of_release(owner: Owner) -> None:
    await owner.until(lambda: owner.place().claim.get("released") == "planned")


async def heard_of_outage(node: KernelNode, count: int) -> None:
    await until(lambda: node.said().count("log_unavailable") >= count)


@pytest.mark.timeout(180)
@pytest.mark.kafka
async def test_a_broker_that_stands_still_or_dies_for_a_while_ends_no_partition(tmp_path: Path) -> None:
    quick = replace(SETTINGS, kafka_timeout_ms=1_500, write_timeout_ms=4_000)
    brokers = own_brokers(tmp_path / "broker")
    with brokers:
        await asyncio.to_thread(brokers.start)
        async with Cluster(brokers.bootstrap, "store", tmp_path, quick) as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            await a.owner.claim()
            written = {"k0": await write(a.owner, request("k0"))}
            for n, (leave, come_back) in enumerate(
                [
                    (brokers.node(1).pause, brokers.node(1).resume),
                    (brokers.node(1).kill, lambda: brokers.restart(1)),
                ]
            ):
                await asyncio.to_thread(leave)
                codes = [await told(a.owner, request(f"away {n}-{i}")) for i in range(3)]
                assert set(codes) <= {"IN_DOUBT", "KAFKA_UNAVAILABLE"}, codes
                for node in (a, b):
                    await heard_of_outage(node, n + 1)
                assert "writes_stopped" not in a.said()
                await asyncio.to_thread(come_back)
                while isinstance(answer := await told(a.owner, request(f"back {n}")), str):
                    assert answer in ("IN_DOUBT", "KAFKA_UNAVAILABLE", "OVERLOADED")
                written[f"back {n}"] = answer
                for i in range(3):
                    written[f"away {n}-{i}"] = await write(a.owner, request(f"away {n}-{i}"))
            assert a.owner.phase == "owner"
            last = max(result.receipt.position for result in written.values())
            await b.owner.until(lambda: b.owner.applied > last)
            assert {event for event in b.said() if event.startswith("log_")} == {"log_unavailable", "log_available"}
            history = await cluster.history()
            assert len(history.batches()) == len(written)
            assert {result.receipt.position for result in written.values()} == history.batches().keys()
            await a.owner.release("planned")
            await b.owner.claim()
            assert (await write(b.owner, request("k0"))).receipt == written["k0"].receipt
