"""Clients that know Kafka and JSON only: requests to an inbox, outcomes from the results, with plain aiokafka.

Each request has an idempotency key, so one of which nobody knows whether it arrived is sent again.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from atomlog.kernel.errors import AtomlogError, from_dict
from tests.chaos.store_clients import PAUSE_S
from tests.processes.clients import STOP, Client, Journal

INBOX: Final = "chaos.inbox.crew"
RESULTS: Final = "chaos.results.crew"
OUTCOME_S: Final = 20.0  # then the same request is sent again
REQUEST_MS: Final = 5_000
METADATA_MS: Final = 5_000
TRANSPORT: Final = (KafkaError, OSError, TimeoutError)


class Result:
    """As much of a write result as a client looks at."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    def to_dict(self) -> dict[str, Any]:
        return self._told


class Inbox:
    """What the store is to `Client`: `write`, over the two topics."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer: AIOKafkaProducer | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def write(self, batch: Mapping[str, Any]) -> Result:
        """Raises what the outcome says; IN_DOUBT when none came."""
        key = str(batch["idempotency_key"])
        answer = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            producer = await self._connected()
            async with asyncio.timeout(OUTCOME_S):
                await producer.send_and_wait(INBOX, json.dumps(batch).encode(), key=key.encode())
                told = await answer
        except TRANSPORT as error:
            await self.close()  # the next request goes over connections of its own
            raise _doubt(error) from None
        finally:
            self._waiting.pop(key, None)
        if not told["ok"]:
            raise from_dict(told["error"])
        return Result({name: part for name, part in told.items() if name != "inbox"})

    async def outcome(self, key: str, *, space: str) -> Any:
        """There is none to ask over topics; who asks is told that nothing is known."""
        raise _doubt(TimeoutError(f"{space} {key}"))

    async def follow(self) -> None:
        """Hand outcomes to who waits for them, for ever."""
        while True:
            # Who asks a broker that stands still must ask another one soon.
            patience = {"request_timeout_ms": REQUEST_MS, "metadata_max_age_ms": METADATA_MS}
            where = {"bootstrap_servers": self._bootstrap, "auto_offset_reset": "latest"}
            consumer = AIOKafkaConsumer(RESULTS, **where, **patience)
            try:
                async with asyncio.timeout(10):
                    await consumer.start()
                async for outcome in consumer:
                    answer = self._waiting.get(outcome.key.decode())
                    if answer is not None and not answer.done():
                        answer.set_result(json.loads(outcome.value))
            except TRANSPORT:
                await asyncio.sleep(0.2)
            finally:
                with contextlib.suppress(*TRANSPORT):
                    async with asyncio.timeout(5):
                        await consumer.stop()

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(*TRANSPORT):
                async with asyncio.timeout(5):
                    await producer.stop()

    async def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            patience = {"request_timeout_ms": REQUEST_MS, "metadata_max_age_ms": METADATA_MS}
            producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", **patience)
            await producer.start()
            self._producer = producer
        return self._producer


def _doubt(error: Exception) -> AtomlogError:
    said = {"code": "IN_DOUBT", "message": f"no outcome: {type(error).__name__}: {error}", "details": []}
    return from_dict({**said, "retry_after_ms": None})


def main(
    bootstrap: str, folder: str, numbers: Sequence[int], seed: str, spaces: Mapping[str, str], shared: Mapping[str, Any]
) -> None:
    """A process with these clients, each in its space with the atom that it shares."""

    async def running() -> None:
        inbox = Inbox(bootstrap)
        following = asyncio.create_task(inbox.follow())
        journals = {number: Journal(Path(folder), number) for number in numbers}
        async with asyncio.TaskGroup() as tasks:
            for number, journal in journals.items():
                journal.open()
                name = str(number)
                store: Any = inbox
                client = Client(store, journal, number, seed, spaces[name], shared[name], pause_s=PAUSE_S)
                tasks.create_task(client.run(Path(folder, STOP)))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await inbox.close()

    asyncio.run(running())
