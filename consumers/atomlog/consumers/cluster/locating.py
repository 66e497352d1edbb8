"""Who owns what, as heard on the control topic by a process that does not own anything itself."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from atomlog.consumers.cluster.channel import is_endpoint
from atomlog.consumers.cluster.reports import SERVES, Heard, Reports
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.client import KafkaClient, KafkaStream
from atomlog.kernel.ports import Clock

LOOK_BACK: Final = 5_000  # records of the control topic: more than a minute of many nodes
STALE_US: Final = 60_000_000  # a node that has said nothing for so long is gone; no clock may be further off
LOOK_UP_US: Final = 1_000_000  # who has fallen silent is found that much later
FIRST_LOOK_S: Final = 5.0  # for what stands there already
FETCH_BYTES: Final = 1024 * 1024
FETCH_WAIT_S: Final = 1.0
RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    """What is asked with every write, worked out once for all writes between two reports."""

    endpoints: Sequence[str]
    serving: Mapping[int, Sequence[str]]  # by partition, the highest term first
    until_us: int


class HeardOwners:
    """Implements `Owners`. Listens from the first question on, until it is closed."""

    def __init__(self, client: KafkaClient, topic: str, clock: Clock) -> None:
        self._client = client
        self._topic = topic
        self._clock = clock
        self._reports = Reports()
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()  # what stood there at the start is known
        self._known: _Kernels | None = None  # None: something else was heard since
        self._trouble: AtomlogError | None = None
        self._wait_until = 0.0  # by the time of the event loop

    async def endpoint(self, partition: int) -> str | None:
        """Of the owner with the highest term; None when none is known. KAFKA_UNAVAILABLE before anything was heard."""
        await self._listen()
        return next(iter(self._kernels().serving.get(partition, ())), None)

    async def candidates(self, partition: int) -> Sequence[str]:
        """Those that say that they own the partition, the highest term first, then the other kernels."""
        await self._listen()
        known = self._kernels()
        return list(dict.fromkeys([*known.serving.get(partition, ()), *known.endpoints]))

    async def kernels(self) -> Sequence[str]:
        await self._listen()
        return self._kernels().endpoints

    async def heard(self) -> Sequence[Heard]:
        """What every process said last, by name; without those that have been silent for long."""
        await self._listen()
        return self._lately()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _kernels(self) -> _Kernels:
        now_us = self._clock.monotonic_us()
        if self._known is None or self._known.until_us <= now_us:
            self._known = self._looked_up(now_us + LOOK_UP_US)
        return self._known

    def _looked_up(self, until_us: int) -> _Kernels:
        kernels = [
            heard for heard in self._lately() if heard.report.role == "kernel" and is_endpoint(heard.report.endpoint)
        ]
        found: dict[int, list[tuple[int, int, str]]] = {}
        for heard in kernels:
            for one in heard.report.partitions:
                if one.phase == SERVES:
                    found.setdefault(one.partition, []).append((one.term, heard.at_us, heard.report.endpoint))
        return _Kernels(
            endpoints=list(dict.fromkeys(heard.report.endpoint for heard in kernels)),
            serving={
                partition: [endpoint for _, _, endpoint in sorted(said, reverse=True)]
                for partition, said in found.items()
            },
            until_us=until_us,
        )

    def _lately(self) -> Sequence[Heard]:
        oldest_us = self._clock.monotonic_us() - STALE_US
        return [heard for heard in self._reports.heard() if heard.at_us >= oldest_us]

    async def _listen(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
            self._wait_until = asyncio.get_running_loop().time() + FIRST_LOOK_S
        if not self._looked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._wait_until):  # once, not with each question
                    await self._looked.wait()
        if not self._looked.is_set():
            message = f"topic {self._topic} cannot be read, so that no owner is known"
            raise self._trouble or fail("KAFKA_UNAVAILABLE", message, retry_after_ms=1_000)

    async def _follow(self) -> None:
        """Goes on after every failure: what is known stays known meanwhile."""
        while True:
            try:
                first, end = await self._client.bounds(self._topic, 0)
                stream = await self._client.stream(self._topic, 0, max(first, end - LOOK_BACK))
                try:
                    await self._read(stream, end)
                finally:
                    await stream.close()
            except AtomlogError as error:
                self._trouble = error
            except Exception as error:  # whatever it is, the next look may find another world
                text = f"topic {self._topic}: {type(error).__name__}: {error}"
                self._trouble = fail("KAFKA_UNAVAILABLE", text, retry_after_ms=1_000)
            await self._clock.sleep(RETRY_S)

    async def _read(self, stream: KafkaStream, end: int) -> None:
        while True:
            if stream.position >= end:
                self._looked.set()
            for record in await stream.next(FETCH_BYTES, FETCH_WAIT_S):
                age_us = max(0, self._clock.now_us() - record.timestamp_ms * 1_000)
                if age_us < STALE_US:
                    self._reports.take(record.value, self._clock.monotonic_us() - age_us)
                    self._known = None
