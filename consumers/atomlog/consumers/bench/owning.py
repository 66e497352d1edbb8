"""A process that owns partitions and writes to them itself: `python -m atomlog.consumers.bench.owning`.

Its arguments are the node's directory, how many batches to write to each partition, and the partitions. It says
`ready` when it owns them and is warm, begins when its standard input has a line, and says how long it took.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomlog.consumers.bench.kafka_nodes import opened_node, owning, requests, space_of
from atomlog.consumers.bench.stopwatch import stopwatch
from atomlog.consumers.bench.writes import CLIENTS
from atomlog.consumers.machine import Machine
from atomlog.consumers.owners import Owners
from atomlog.consumers.processes import SAFE_PATH, interpreter
from atomlog.kernel import jsontext
from atomlog.kernel.model import LOCAL_PRINCIPAL
from atomlog.kernel.requests import parse_write

MODULE: Final = "atomlog.consumers.bench.owning"
READY: Final = b"ready\n"
READY_S: Final = 120.0
DONE_S: Final = 1_800.0


class OwningProcess:
    """The near end: `start`, `ready`, `go`, `done`; `kill` whatever happens."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, directory: str, count: int, partitions: Sequence[int]) -> "OwningProcess":
        process = await asyncio.create_subprocess_exec(
            *(interpreter(), SAFE_PATH, "-m", MODULE, directory, str(count), *map(str, partitions)),
            stdin=PIPE,
            stdout=PIPE,
        )
        return cls(process)

    async def ready(self) -> None:
        line = await self._line(READY_S)
        if line != READY:
            raise RuntimeError(f"it said {line!r}")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def done(self) -> Mapping[str, float]:
        """`wall_s` and `cpu_s` of the writes."""
        found: dict[str, float] = jsontext.loads(await self._line(DONE_S))
        await self._process.wait()
        return found

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(seconds):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"it ended with exit code {await self._process.wait()}")
        return line


# --- the other end ---------------------------------------------------------------------------------------------------


async def _main(directory: str, count: int, partitions: Sequence[int]) -> None:
    machine = Machine()
    async with (
        opened_node(directory, machine, read_only=False) as parts,
        owning(parts, partitions) as owners,
    ):
        spaces = [space_of(partition, parts.config.partitions) for partition in partitions]
        token, warm = machine.randomness.token(8).hex(), max(CLIENTS, count // 10)
        batches = [one for space in spaces for one in requests(token, warm + count, space=space)]
        each = warm + count
        before = [one for number, one in enumerate(batches) if number % each < warm]
        after = [one for number, one in enumerate(batches) if number % each >= warm]
        await _write(owners, before, len(partitions))
        _say(READY)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.readline)
        with stopwatch(machine.clock) as took:
            await _write(owners, after, len(partitions))
        _say(jsontext.dumps({"wall_s": took.wall_s, "cpu_s": took.cpu_s}) + b"\n")


async def _write(owners: Owners, batches: Sequence[Mapping[str, Any]], partitions: int) -> None:
    """Each partition by so many clients of its own."""
    size = len(batches) // partitions

    async def client(mine: Sequence[Mapping[str, Any]]) -> None:
        for one in mine:
            await owners.write(parse_write(one), LOCAL_PRINCIPAL)

    parts = [batches[number * size : (number + 1) * size] for number in range(partitions)]
    await asyncio.gather(*(client(part[number::CLIENTS]) for part in parts for number in range(CLIENTS)))


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _directory, _count, *_partitions = sys.argv[1:]
    asyncio.run(_main(_directory, int(_count), [int(one) for one in _partitions]))
