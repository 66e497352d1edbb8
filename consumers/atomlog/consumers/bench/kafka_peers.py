"""aiokafka alone, as its users call it: what every write and every read over Kafka is compared with.

Its own defaults are kept but for what decides whether a write is safe: acknowledged by all replicas, as ours are.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from atomlog.consumers.bench.stopwatch import Took, stopwatch
from atomlog.kernel.kafka.values import KafkaRecord
from atomlog.kernel.ports import Clock

FETCH_BYTES: Final = 4 * 1024 * 1024  # a partition and a question
POLL_MS: Final = 1_000


async def send_each(
    bootstrap: str, topic: str, records: Sequence[KafkaRecord], *, warm: int, clock: Clock
) -> tuple[Took, list[float]]:
    """`send_and_wait` one after the other; how many seconds each took. The first `warm` are not counted."""
    seconds = []
    async with _producer(bootstrap) as producer:
        for record in records[:warm]:
            await producer.send_and_wait(topic, **_arguments(record))
        with stopwatch(clock) as took:
            for record in records[warm:]:
                began_us = clock.monotonic_us()
                await producer.send_and_wait(topic, **_arguments(record))
                seconds.append((clock.monotonic_us() - began_us) / 1_000_000)
    return took, seconds


async def send_all(bootstrap: str, topic: str, records: Sequence[KafkaRecord], *, warm: int, clock: Clock) -> Took:
    """`send`, without waiting before all are on their way."""
    async with _producer(bootstrap) as producer:
        await asyncio.gather(*[await producer.send(topic, **_arguments(record)) for record in records[:warm]])
        with stopwatch(clock) as took:
            sent = [await producer.send(topic, **_arguments(record)) for record in records[warm:]]
            await producer.flush()
        await asyncio.gather(*sent)
    return took


async def consume(bootstrap: str, topic: str, partition: int, end: int, *, clock: Clock) -> tuple[Took, int, int]:
    """`getmany` from the beginning to `end`: how long it took, records, and bytes of their values."""
    place, count, size = TopicPartition(topic, partition), 0, 0
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        with stopwatch(clock) as took:
            while await consumer.position(place) < end:
                for record in (await consumer.getmany(timeout_ms=POLL_MS)).get(place, ()):
                    count += 1
                    size += len(record.value or b"")
    finally:
        await consumer.stop()
    return took, count, size


def _producer(bootstrap: str) -> Any:
    return AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=False)


def _arguments(record: KafkaRecord) -> dict[str, Any]:
    return {"value": record.value, "headers": list(record.headers), "partition": 0}
