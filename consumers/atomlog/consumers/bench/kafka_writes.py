"""P7: acknowledged writes over Kafka, against aiokafka alone with the same bytes.

Ours are written by an owner in this process, or through the encrypted channel by a client of `atomlog kernel`.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.bench import kafka_peers
from atomlog.consumers.bench.kafka_nodes import (
    effective,
    make_nodes,
    opened_node,
    owning,
    requests,
    required_brokers,
    revisions,
)
from atomlog.consumers.bench.kernel_process import KernelProcess
from atomlog.consumers.bench.ladder import Bench, Goal, KafkaRung, Measure, Sample, Scale
from atomlog.consumers.bench.stopwatch import stopwatch
from atomlog.consumers.bench.writes import CLIENTS
from atomlog.consumers.parts import Parts
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.kafka.topics import TopicNames, atoms_spec
from atomlog.kernel.kafka.values import KafkaRecord
from atomlog.kernel.model import LOCAL_PRINCIPAL
from atomlog.kernel.requests import parse_write
from atomlog.schemas import record as wire

ONE_BY_ONE: Final[Mapping[Scale, int]] = {"smoke": 30, "small": 300, "normal": 2_000, "large": 10_000}
AT_ONCE: Final[Mapping[Scale, int]] = {"smoke": 100, "small": 1_500, "normal": 10_000, "large": 50_000}
BATCHES: Final[Mapping[Scale, int]] = {"smoke": 10, "small": 100, "normal": 500, "large": 2_000}
SAMPLE: Final = 50  # records of ours that the base sends over and over
BASE_FACTOR: Final = 5  # the base sends more of them: it is done too soon otherwise
BARE: Final = "bare"  # of the base's topic: PREFIX.bare
Write = Callable[[Mapping[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaWrites:
    """`changes` of one batch, `clients` that each send their next batch when the last one is answered."""

    id: str
    title: str
    nodes: int
    clients: int
    changes: int
    counts: Mapping[Scale, int]
    unit: str
    measure: Measure
    base_name: str
    goals: Sequence[Goal]
    notes: str
    through_channel: bool
    peers: Sequence[str] = ()

    def prepare(self, bench: Bench) -> None:
        asyncio.run(self._prepare(bench))

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._through_channel(bench) if self.through_channel else self._in_process(bench))

    def base(self, bench: Bench) -> Sample:
        return asyncio.run(self._base(bench))

    async def _prepare(self, bench: Bench) -> None:
        """Two nodes, a few records for the base to take its bytes from, and the base's topic."""
        await make_nodes(bench, ("kernel", "client"))
        async with opened_node(f"{bench.directory}/kernel", bench.machine, read_only=False) as parts:
            async with owning(parts, (0,)) as owners:
                for one in requests("sample", SAMPLE, changes=self.changes):
                    await owners.write(parse_write(one), LOCAL_PRINCIPAL)
            assert parts.shared is not None
            replication = len(required_brokers(bench).split(","))
            spec = atoms_spec(_bare(parts), 1, replication, parts.settings, Bounds())
            await parts.shared.client.create_topics([spec.new])

    async def _in_process(self, bench: Bench) -> Sample:
        async with opened_node(f"{bench.directory}/kernel", bench.machine, read_only=False) as parts:
            before = await parts.log.end(0)
            async with owning(parts, (0,)) as owners:

                async def write(one: Mapping[str, Any]) -> None:
                    await owners.write(parse_write(one), LOCAL_PRINCIPAL)

                sample = await self._measured(bench, write, lambda: 0.0)
            return await self._checked(bench, parts, before, sample)

    async def _through_channel(self, bench: Bench) -> Sample:
        kernel = await KernelProcess.start(f"{bench.directory}/kernel", "kernel", environment=bench.machine.environment)
        client = f"{bench.directory}/client"
        try:
            await kernel.keeps()
            async with (
                AsyncStore.open(client, machine=bench.machine, projections=(), follow=False) as store,
                opened_node(client, bench.machine) as parts,
            ):
                before = await parts.log.end(0)
                sample = await self._measured(bench, store.write, kernel.cpu_seconds)
                return await self._checked(bench, parts, before, sample)
        finally:
            await kernel.kill()

    async def _measured(self, bench: Bench, write: Write, others_cpu_s: Callable[[], float]) -> Sample:
        """`checked` is not known yet. `others_cpu_s`: processor seconds of processes that take part."""
        count, warm, clock = self.counts[bench.scale], self._warm(bench), bench.machine.clock
        waiting = requests(bench.machine.randomness.token(8).hex(), warm + count, changes=self.changes)
        seconds: list[float] = []

        async def client(batches: Sequence[Mapping[str, Any]]) -> None:
            for one in batches:
                began_us = clock.monotonic_us()
                await write(one)
                seconds.append((clock.monotonic_us() - began_us) / 1_000_000)

        async def clients(batches: Sequence[Mapping[str, Any]]) -> None:
            await asyncio.gather(*(client(batches[number :: self.clients]) for number in range(self.clients)))

        await clients(waiting[:warm])
        seconds.clear()
        others_s = others_cpu_s()
        with stopwatch(clock) as took:
            await clients(waiting[warm:])
        cpu_s = took.cpu_s + others_cpu_s() - others_s
        return self._sample(count * self.changes, took.wall_s, cpu_s, seconds)

    def _sample(self, units: int, wall_s: float, cpu_s: float, seconds: Sequence[float]) -> Sample:
        """A time is the median of all, as if each had taken that long."""
        median = statistics.median(seconds)
        wall_s = median * len(seconds) if self.measure == "time" else wall_s
        return Sample(units=units, wall_s=wall_s, cpu_s=cpu_s, checked=0, figures=_quantiles(seconds))

    async def _checked(self, bench: Bench, parts: Parts, before: int, sample: Sample) -> Sample:
        found = await effective(parts, 0, before)
        checked = revisions(found) - self._warm(bench) * self.changes
        size = sum(len(one.record.value) for one in found) / len(found)
        return Sample(
            units=sample.units,
            wall_s=sample.wall_s,
            cpu_s=sample.cpu_s,
            checked=checked,
            figures={**sample.figures, "value_bytes": size},
        )

    async def _base(self, bench: Bench) -> Sample:
        """The records of the sample, value and headers, over and over."""
        bootstrap, clock = required_brokers(bench), bench.machine.clock
        async with opened_node(f"{bench.directory}/kernel", bench.machine) as parts:
            assert parts.shared is not None
            topic, client = _bare(parts), parts.shared.client
            sample = [one.record for one in (await effective(parts, 0))[:SAMPLE]]
            ready = [KafkaRecord(value=one.value, headers=wire.headers(one)) for one in sample]
            factor = 1 if self.measure == "time" else BASE_FACTOR
            count, warm = self.counts[bench.scale] * factor, self._warm(bench)
            records = [ready[number % len(ready)] for number in range(warm + count)]
            before, figures = await client.end(topic, 0), {}
            if self.measure == "time":
                took, seconds = await kafka_peers.send_each(bootstrap, topic, records, warm=warm, clock=clock)
                wall_s, figures = statistics.median(seconds) * count, _quantiles(seconds)
            else:
                took = await kafka_peers.send_all(bootstrap, topic, records, warm=warm, clock=clock)
                wall_s = took.wall_s
            found = await client.end(topic, 0) - before - warm
        units = count * self.changes
        return Sample(units=units, wall_s=wall_s, cpu_s=took.cpu_s, checked=found * self.changes, figures=figures)

    def _warm(self, bench: Bench) -> int:
        return max(self.clients, self.counts[bench.scale] // 10)


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """`p10_ms` is what it takes while nobody else wants the processor, or nearly so."""
    found = statistics.quantiles(seconds, n=100)
    return {f"p{percent}_ms": found[percent - 1] * 1_000 for percent in (10, 50, 99)}


def _bare(parts: Parts) -> str:
    assert parts.shared is not None
    names: TopicNames = parts.shared.names
    return f"{names.prefix}.{BARE}"


_OWNER: Final = "By an owner in the measuring process, every check and sealing on, answered when it has been read back."
_CHANNEL: Final = (
    "By a client of `atomlog kernel` over TLS: client, kernel and broker are processes of their own; "
    "of CPU time counts that of client and kernel."
)
_BYTES: Final = "The base sends the same records, value and headers."


def _of(nodes: int, *, through_channel: bool) -> list[KafkaWrites]:
    brokers = "one broker" if nodes == 1 else "three brokers, three replicas, two in sync"
    by, via = (_CHANNEL, "-channel") if through_channel else (_OWNER, "")
    how = " through the channel" if through_channel else ""
    rate: dict[str, Any] = {
        "nodes": nodes,
        "clients": CLIENTS,
        "measure": "rate",
        "unit": "revisions/s",
        "goals": (Goal(text="≥ 0.7 ×", of="ratio", value=0.7, better="higher"),),
        "notes": f"{by} {_BYTES}",
        "through_channel": through_channel,
    }
    latency: dict[str, Any] = {
        **rate,
        "clients": 1,
        "measure": "time",
        "unit": "s/write",
        "goals": (Goal(text="p50 ≤ 2 ×", of="ratio", value=2, better="lower"),),
    }
    made = [
        KafkaWrites(
            id=f"P7{via}-latency-{nodes}",
            title=f"Acknowledged write of one revision by one client{how}, median, {brokers}",
            changes=1,
            counts=ONE_BY_ONE,
            base_name="aiokafka send_and_wait, acks=all, median",
            **latency,
        ),
        KafkaWrites(
            id=f"P7{via}-rate-{nodes}",
            title=f"Acknowledged writes of one revision by {CLIENTS} clients{how}, {brokers}",
            changes=1,
            counts=AT_ONCE,
            base_name="aiokafka send, pipelined, acks=all",
            **rate,
        ),
    ]
    if not through_channel:
        made.append(
            KafkaWrites(
                id=f"P7-batches-{nodes}",
                title=f"Acknowledged batches of 50 revisions by {CLIENTS} clients, {brokers}",
                changes=50,
                counts=BATCHES,
                base_name="aiokafka send, pipelined, acks=all",
                **rate,
            )
        )
    return made


KAFKA_WRITE_RUNGS: Final[tuple[KafkaRung, ...]] = tuple(
    rung
    for nodes in (1, 3)
    for through_channel in (False, True)
    for rung in _of(nodes, through_channel=through_channel)
)
