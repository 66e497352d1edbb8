"""The control topic on Kafka. What failed is begun anew by the next call."""

from collections.abc import Sequence
from typing import Final

from atomlog.kernel.brokers_clock import BrokersClock
from atomlog.kernel.kafka.client import KafkaClient, KafkaProducer, KafkaRecord, KafkaStream

PARTITION: Final = 0  # the topic has one
FETCH_BYTES: Final = 1024 * 1024
WAIT_S: Final = 1.0


class KafkaControl:
    """Implements `ControlTopic`. Hears what comes from its first `next` on; the client is the caller's."""

    def __init__(self, client: KafkaClient, topic: str, clock: BrokersClock | None = None) -> None:
        """`clock` is told of what is sent and heard."""
        self._client = client
        self._clock = clock
        self._topic = topic
        self._producer: KafkaProducer | None = None
        self._stream: KafkaStream | None = None

    async def publish(self, key: bytes, value: bytes) -> None:
        """Sent once: a report that is lost is followed by the next one."""
        self._producer = self._producer or await self._client.producer()
        if self._clock is not None:
            self._clock.sending(value)
        await self._producer.send(self._topic, PARTITION, [KafkaRecord(key=key, value=value)])

    async def next(self) -> Sequence[bytes | None]:
        try:
            if self._stream is None:
                end = await self._client.end(self._topic, PARTITION)
                self._stream = await self._client.stream(self._topic, PARTITION, end)
            records = await self._stream.next(FETCH_BYTES, WAIT_S)
        except BaseException:
            await self._close_stream()
            raise
        for record in records:
            if self._clock is not None:
                self._clock.heard(record.value, record.timestamp_ms)
        return [record.value for record in records]

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()
        await self._close_stream()

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
