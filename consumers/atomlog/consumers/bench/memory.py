"""Resident memory of a process that only writes: `python -m atomlog.consumers.bench.memory [WRITES]`.

After the first writes every cache and buffer has its size; what is still added by a write after them is what a process
that never ends would pay. Prints a line of JSON for each step, and at last the growth.
"""

import asyncio
import gc
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.bench.stopwatch import cpu_seconds, rss_bytes
from atomlog.consumers.bench.writes import batch, write_all
from atomlog.consumers.machine import Machine
from atomlog.consumers.store import AsyncStore
from atomlog.kernel import jsontext

WRITES: Final = 1_000_000
STEPS: Final = 20
SETTLED: Final = 0.2  # of the writes: by then caches and buffers are full


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """After so many writes of one revision."""

    writes: int
    rss_bytes: int
    cpu_s: float

    def to_dict(self) -> dict[str, Any]:
        return {"writes": self.writes, "rss_bytes": self.rss_bytes, "cpu_s": round(self.cpu_s, 1)}


async def steps(directory: str, writes: int, machine: Machine) -> AsyncGenerator[Step, None]:
    """Write to a new store, and measure `STEPS` times. Nothing is followed in this process."""
    size = writes // STEPS
    async with AsyncStore.open(directory, machine=machine, projections=(), follow=False) as store:
        for first in range(0, size * STEPS, size):
            await write_all(store, (batch(number, 1) for number in range(first, first + size)))
            gc.collect()
            yield Step(writes=first + size, rss_bytes=rss_bytes(), cpu_s=cpu_seconds())


def growth(found: list[Step]) -> float:
    """Bytes of resident memory that a write has added, after the first `SETTLED` of them."""
    settled = next(step for step in found if step.writes >= SETTLED * found[-1].writes)
    return (found[-1].rss_bytes - settled.rss_bytes) / (found[-1].writes - settled.writes)


async def main(writes: int) -> None:
    found: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="atomlog-memory-") as directory:
        async with aclosing(steps(f"{directory}/store", writes, Machine())) as measured:
            async for step in measured:
                found.append(step)
                _print(step.to_dict())
    _print({"writes": found[-1].writes, "growth_bytes_write": round(growth(found), 2)})


def _print(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(jsontext.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else WRITES))
