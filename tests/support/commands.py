"""The command line in processes of its own, and waiting for what other processes do."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS: Final = 150.0  # only ends a test that has failed
ATOMLOG: Final = (sys.executable, "-m", "atomlog.consumers.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


async def atomlog(*arguments: str, environment: Mapping[str, str] | None = None) -> Done:
    """Run the command line in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(*ATOMLOG, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(code=process.returncode, out=out.decode(), err=err.decode())


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that must come true; `condition` may be a coroutine function."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert asyncio.get_running_loop().time() < deadline, f"did not come true: {what}"
        await asyncio.sleep(0.005)
