"""Nodes that share a key topic on the broker of the run."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from atomlog.kernel.ids import HASH_VERSION
from atomlog.kernel.kafka.client import KafkaClient
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.key_topic import StoreRecord, write_store_record
from atomlog.kernel.kafka.keystore import KafkaKeyStore
from atomlog.kernel.kafka.topics import keys_spec
from atomlog.kernel.kafka.values import KafkaRecord
from atomlog.kernel.sealing import MasterKey
from atomlog.kernel.system import SystemClock
from tests.support.kernel_world import LOG_ID
from tests.support.sealed import MASTER, InlineWorkers

TIMEOUT_S = 20.0


def store_record(log_id: bytes = LOG_ID, **changes: Any) -> StoreRecord:
    values: dict[str, Any] = {
        "log_id": log_id,
        "partitions": 1,
        "hash_version": HASH_VERSION,
        "shard_rows": 50_000,
        "vector_spaces": ("hashing/1/8/cosine",),
    }
    return StoreRecord(**{**values, **changes})


class Keys:
    """A key topic and what is opened on it; leaving closes everything."""

    def __init__(self, address: str, topic: str, directory: Path) -> None:
        self.config = KafkaConfig(bootstrap=(address,))
        self.topic = topic
        self.directory = directory
        self.events: dict[str, list[Mapping[str, Any]]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Keys":
        self.client = await self.open_client()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stack.aclose()

    async def open_client(self, timeout_s: float = TIMEOUT_S) -> KafkaClient:
        client = KafkaClient(self.config, timeout_s=timeout_s)
        await client.start()
        self._stack.push_async_callback(client.close)
        return client

    async def make(self, *, said: StoreRecord | None = store_record()) -> "Keys":  # noqa: B008
        await self.client.create_topics([keys_spec(self.topic, 1).new])
        if said is not None:
            await write_store_record(self.client, self.topic, said)
        return self

    async def node(
        self,
        name: str,
        *,
        master: MasterKey | None = MASTER,
        log_id: bytes = LOG_ID,
        timeout_s: float = TIMEOUT_S,
        client: KafkaClient | None = None,
    ) -> KafkaKeyStore:
        """The key store of one node, with a client of its own, as a process has."""
        events = self.events.setdefault(name, [])
        store = KafkaKeyStore(
            client or await self.open_client(),
            self.topic,
            self.path(name),
            log_id=log_id,
            master=master,
            workers=InlineWorkers(),
            clock=SystemClock(),
            timeout_s=timeout_s,
            say=events.append,
        )
        await store.start()
        self._stack.push_async_callback(store.close)
        return store

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.sqlite")

    def said(self, name: str) -> list[str]:
        return [event["event"] for event in self.events[name]]

    async def send(self, *records: tuple[bytes | None, bytes | None]) -> int:
        """Write as anybody who has the right may."""
        producer = await self.client.producer()
        sent: Sequence[KafkaRecord] = [KafkaRecord(key=key, value=value) for key, value in records]
        first = await producer.send(self.topic, 0, sent)
        await producer.close()
        return first

    async def end(self) -> int:
        return (await self.client.bounds(self.topic, 0))[1]


async def until(is_so: Callable[[], bool]) -> None:
    """The test's own deadline ends it when it never is."""
    while not is_so():
        await asyncio.sleep(0.01)
