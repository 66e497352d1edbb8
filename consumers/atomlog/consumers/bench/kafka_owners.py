"""P11: the same writes by two owners in two processes, and by one process that owns both partitions."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.consumers.bench.kafka_nodes import effective, make_nodes, opened_node, revisions
from atomlog.consumers.bench.ladder import Bench, Goal, KafkaRung, Measure, Sample, Scale
from atomlog.consumers.bench.owning import OwningProcess
from atomlog.consumers.bench.stopwatch import loopback_bytes
from atomlog.consumers.bench.writes import CLIENTS

COUNTS: Final[Mapping[Scale, int]] = {"smoke": 60, "small": 1_000, "normal": 8_000, "large": 30_000}
NODES: Final = ("one", "two")
PARTITIONS: Final = (0, 1)
BOTH: Final = ((0, 1),)
ONE_EACH: Final = ((0,), (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoOwners:
    """Clients are in the owners' processes, so that nothing else takes of the cores but the broker."""

    id: str = "P11"
    title: str = f"Acknowledged writes to two partitions, {CLIENTS} clients each: two owners in a process each"
    nodes: int = 1
    unit: str = "revisions/s"
    measure: Measure = "rate"
    base_name: str = "one process that owns both partitions"
    goals: Sequence[Goal] = (Goal(text="near-linear: ≥ 1.8 ×", of="ratio", value=1.8, better="higher"),)
    peers: Sequence[str] = ()
    notes: str = (
        "Writes of one revision by clients in the owners' own processes, so that these and the broker alone share the "
        "cores. `cpu_ms_write` is of the owners, without the broker. `log_bytes_write` is what a write adds to the "
        "log; `lo_bytes_write` is what went over the loopback device meanwhile, everything of the machine included: "
        "the record to the broker, back to its owner, and what is told around it."
    )

    def prepare(self, bench: Bench) -> None:
        asyncio.run(make_nodes(bench, NODES, partitions=len(PARTITIONS)))

    def ours(self, bench: Bench) -> Sample:
        return asyncio.run(self._measured(bench, ONE_EACH))

    def base(self, bench: Bench) -> Sample:
        return asyncio.run(self._measured(bench, BOTH))

    async def _measured(self, bench: Bench, owned: Sequence[Sequence[int]]) -> Sample:
        count = COUNTS[bench.scale]
        before = await self._ends(bench)
        processes = [
            await OwningProcess.start(f"{bench.directory}/{name}", count, partitions)
            for name, partitions in zip(NODES, owned, strict=False)
        ]
        try:
            await asyncio.gather(*(process.ready() for process in processes))
            began_bytes = loopback_bytes()
            for process in processes:
                process.go()
            took = await asyncio.gather(*(process.done() for process in processes))
            over_bytes = loopback_bytes() - began_bytes
        finally:
            for process in processes:
                await process.kill()
        units = count * len(PARTITIONS)
        written, size = await self._written(bench, before)
        cpu_s = sum(one["cpu_s"] for one in took)
        figures = {
            "cpu_ms_write": cpu_s / units * 1_000,
            "log_bytes_write": size / written,
            "lo_bytes_write": over_bytes / units,
        }
        checked = written - len(PARTITIONS) * max(CLIENTS, count // 10)
        wall_s = max(one["wall_s"] for one in took)
        return Sample(units=units, wall_s=wall_s, cpu_s=cpu_s, checked=checked, figures=figures)

    async def _ends(self, bench: Bench) -> Sequence[int]:
        async with opened_node(f"{bench.directory}/{NODES[0]}", bench.machine) as parts:
            return [await parts.log.end(partition) for partition in PARTITIONS]

    async def _written(self, bench: Bench, before: Sequence[int]) -> tuple[int, int]:
        """Revisions since then, and bytes of their records' values."""
        async with opened_node(f"{bench.directory}/{NODES[0]}", bench.machine) as parts:
            found = [
                one
                for partition, position in zip(PARTITIONS, before, strict=True)
                for one in await effective(parts, partition, position)
            ]
        return revisions(found), sum(len(one.record.value) for one in found)


OWNER_RUNGS: Final[tuple[KafkaRung, ...]] = (TwoOwners(),)
