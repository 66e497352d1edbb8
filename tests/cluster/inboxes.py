"""Producers that know nothing of atomlog, and what stands in the log and on the results topic afterwards."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastavro

from atomlog.consumers.cluster.inbox.admin import InboxAdmin
from atomlog.consumers.cluster.inbox.outcomes import place_of
from atomlog.consumers.cluster.inbox.registry import Registration
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.topics import TopicNames
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock, SystemFiles
from atomlog.kernel.tail import Tail
from atomlog.schemas.batch import Batch
from tests.cluster.kernels import WEAK
from tests.support.kafka import SharedBroker

ROOT = Path(__file__).resolve().parents[2]
AVSC = ROOT / "schemas/atomlog/schemas/avsc"


@asynccontextmanager
async def connected(kafka: SharedBroker) -> AsyncIterator[KafkaClient]:
    client = KafkaClient(KafkaConfig(bootstrap=(kafka.bootstrap,)), timeout_s=30)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def registered(client: KafkaClient, prefix: str, principal: str, partitions: int) -> Registration:
    admin = InboxAdmin(client=client, prefix=prefix, clock=SystemClock())
    return await admin.create(principal, partitions=partitions, rights=frozenset({"mark-source"}))


def avro_request(space: str, change: Mapping[str, Any], key: str = "") -> bytes:
    """As any program would build it, from the schema file and fastavro alone."""
    schema = json.loads((AVSC / "WriteRequestV1.avsc").read_text("utf-8"))
    parsed = fastavro.parse_schema(schema)
    texts = dict.fromkeys(("as", "key", "schema", "policy", "atom", "expected"), "")
    parts = dict.fromkeys(("value", "slots", "valid_time", "origins", "provenance"), b"")
    given = {name: json.dumps(value).encode() if name in parts else value for name, value in change.items()}
    datum = {
        "space": space,
        "idempotency_key": key,
        "changes": [{**texts, **parts, "vectors": [], **given}],
        "preconditions": b"",
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, datum)
    form = fastavro.schema.to_parsing_canonical_form(schema)
    fingerprint = bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO"))
    return b"\xc3\x01" + fingerprint + out.getvalue()


def avro_outcome(value: bytes) -> dict[str, Any]:
    """As any program would read it."""
    parsed = fastavro.parse_schema(json.loads((AVSC / "WriteOutcomeV1.avsc").read_text("utf-8")))
    found: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), parsed, None)
    return dict(found)


async def outcomes(client: KafkaClient, one: Registration, partition: int) -> list[FetchedRecord]:
    """All that are there now."""
    first, end = await client.bounds(one.results, partition)
    stream = await client.stream(one.results, partition, first)
    found: list[FetchedRecord] = []
    while stream.position < end:
        found += await stream.next(1 << 20, 5.0)
    await stream.close()
    return found


async def told(client: KafkaClient, one: Registration, partition: int) -> set[int]:
    """Offsets that an outcome tells of."""
    return {place.offset for record in await outcomes(client, one, partition) if (place := place_of(record))}


async def batches(client: KafkaClient, prefix: str, directory: Path) -> Sequence[tuple[int, int, Batch]]:
    """(partition, position, batch) of every batch that counts."""
    config = StoreConfig.load(SystemFiles(), str(directory))
    names = TopicNames(prefix=prefix)
    log = KafkaLog(client, names.atoms, config.log_id, config.partitions, SystemClock(), Settings(), allow_weak=WEAK)
    found: list[tuple[int, int, Batch]] = []
    for partition in range(config.partitions):
        tail, end = Tail(log=log, genesis=config.genesis(partition)), await log.end(partition)
        while tail.checkpoint.position < end:
            for record in await tail.poll(until=end):
                if record.kind == "Batch":
                    found.append((partition, record.position, record.batch()))
            await asyncio.sleep(0)
    await log.close()
    return found
