"""`atomlog kernel` in a process of its own, for rungs that measure what others see of it."""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from atomlog.consumers.bench.kafka_nodes import WEAK
from atomlog.consumers.processes import SAFE_PATH, interpreter
from atomlog.kernel import jsontext
from atomlog.kernel.kafka.topics import WEAK_VARIABLE

STARTED_S: Final = 120.0
LINE_BYTES_MAX: Final = 1024 * 1024


class KernelProcess:
    """Use `start`, and `kill` it whatever happens."""

    def __init__(self, process: Process) -> None:
        self.endpoint = ""  # once it keeps its partitions
        self._process = process
        self._keeping: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, directory: str, name: str, *arguments: str, environment: Mapping[str, str] = os.environ
    ) -> "KernelProcess":
        """Returns before it keeps anything."""
        process = await asyncio.create_subprocess_exec(
            *(interpreter(), SAFE_PATH, "-m", "atomlog.consumers.cli"),
            *("kernel", "--store", directory, "--listen", "127.0.0.1:0", "--name", name, *arguments),
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            env={**environment, WEAK_VARIABLE: ",".join(WEAK)},
        )
        return cls(process)

    async def keeps(self) -> None:
        """Until it has applied the log and looks after its partitions; RuntimeError when it ended instead."""
        async with asyncio.timeout(STARTED_S):
            self.endpoint = await asyncio.shield(self._keeping)

    def cpu_seconds(self) -> float:
        """Of its processors so far, in user and system mode."""
        with open(f"/proc/{self._process.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def kill(self) -> None:
        """SIGKILL, and wait. Repeating it does nothing."""
        self.kill_now()
        await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)
        if self._keeping.done() and not self._keeping.cancelled():
            self._keeping.exception()  # nobody may have asked

    def kill_now(self) -> None:
        """SIGKILL, without waiting."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event: dict[str, Any] = jsontext.loads(line)
            if event.get("event") == "keeping" and not self._keeping.done():
                self._keeping.set_result(event["endpoint"])
        if not self._keeping.done():
            self._keeping.set_exception(RuntimeError("the kernel ended before it kept anything"))
