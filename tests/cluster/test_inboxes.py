"""Producers of Kafka alone, and kernels that are killed under them: each request once, each outcome told."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from atomlog.consumers.cluster.inbox.outcomes import place_of
from atomlog.kernel.kafka.client import FetchedRecord
from tests.cluster.inboxes import avro_outcome, avro_request, batches, connected, outcomes, registered, told
from tests.cluster.kernels import Kernels
from tests.support.commands import until
from tests.support.kafka import SharedBroker

pytestmark = pytest.mark.timeout(300)

COUNT = 160
SPACES = ("notes", "default", "c")
POISON = (b"rubbish", None, b"\xc3\x01rubbish", b"[" * 10_000, b"\x00\x00\x00\x00\x01registry", b"{}")


def kind_of(n: int) -> str:
    return "poison" if n % 8 == 3 else "repeat" if n % 8 == 6 else "avro" if n % 2 else "json"


def value_of(n: int) -> bytes | None:
    """Every eighth is poison, every eighth the same as the one two before it, under the same key."""
    if kind_of(n) == "poison":
        return POISON[n // 8 % len(POISON)]
    of = n - 2 if kind_of(n) == "repeat" else n
    change = {"op": "create", "key": f"a{of}", "schema": "source", "value": {"text": f"text {of}"}}
    key = f"k{of}" if of % 8 == 4 else ""
    if kind_of(of) == "avro":
        return avro_request(SPACES[of % 3], change, key)
    return json.dumps(
        {"space": SPACES[of % 3], "changes": [change], **({"idempotency_key": key} if key else {})}
    ).encode()


def result_of(record: FetchedRecord) -> tuple[bool, Mapping[str, Any]]:
    assert record.value is not None
    if record.value.startswith(b"\xc3\x01"):
        found = avro_outcome(record.value)
        return found["ok"], json.loads(found["result"]) if found["ok"] else found
    found = json.loads(record.value)
    return found["ok"], found if found["ok"] else found["error"]


async def test_kernels_that_are_killed_mid_stream_carry_out_each_request_once_and_tell_every_outcome(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    sent: dict[tuple[int, int], int] = {}  # (partition, offset) → n
    async with connected(kafka) as client, Kernels(tmp_path, kafka, kafka_prefix, partitions=2) as kernels:
        first = await kernels.start("one")
        await kernels.kept(first)
        one = await registered(client, kafka_prefix, "alice", 2)

        async def all_told() -> int:
            return sum([len(await told(client, one, partition)) for partition in (0, 1)])

        async def produce() -> None:
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all") as producer:
                for n in range(COUNT):
                    place = await producer.send_and_wait(
                        one.topic, value_of(n), partition=n // 8 % 2, key=b"%d" % n, headers=[("n", b"%d" % n)]
                    )
                    sent[place.partition, place.offset] = n
                    await asyncio.sleep(0.03)

        producing = asyncio.create_task(produce())
        second = await kernels.start("two")
        for victim, after in ((first, 20), (second, 70)):
            await kernels.kept(victim)
            await until(partial(_at_least, all_told, after), f"{after} are told")
            await victim.kill()
            await kernels.start(f"after-{victim.name}")
        await producing
        await until(partial(_at_least, all_told, COUNT), "all are told")
        records = [record for partition in (0, 1) for record in await outcomes(client, one, partition)]
        written = await batches(client, kafka_prefix, first.directory)
    assert len(sent) == COUNT
    by_place: dict[tuple[int, int], FetchedRecord] = {}
    for record in records:
        place = place_of(record)
        assert place is not None
        assert place.topic == one.id_text
        before = by_place.setdefault((place.partition, place.offset), record)
        assert before.value == record.value, f"{place} has two outcomes"
        assert (record.key, dict(record.headers)["n"]) == (b"%d" % sent[place.partition, place.offset],) * 2
    origins = {
        (batch.inbox.partition, batch.inbox.offset): (partition, position)
        for partition, position, batch in written
        if batch.inbox is not None and (batch.principal, batch.inbox.topic) == ("alice", one.id_text)
    }
    assert len(written) == len(origins), "a record was written twice, or by somebody else"
    results = {n: result_of(by_place[at]) for at, n in sent.items()}
    for at, n in sent.items():
        ok, result = results[n]
        if kind_of(n) == "poison":
            assert (ok, result["kind"], at in origins) == (False, "invalid", False), n
            continue
        assert ok, (n, result)
        stands = (result["receipt"]["partition"], result["receipt"]["position"])
        assert stands == origins[at] if not result["replayed"] else at not in origins
        twin = n - 2 if kind_of(n) == "repeat" else n + 2 if kind_of(n + 2) == "repeat" else n
        assert results[twin][1]["receipt"] == result["receipt"]
        assert twin == n or {result["replayed"], results[twin][1]["replayed"]} == {True, False}, "one write of two"


async def _at_least(count: Any, wanted: int) -> bool:
    return bool(await count() >= wanted)
