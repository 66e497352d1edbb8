"""Both ends of a process that runs rebuild jobs: `python -m atomlog.consumers.rebuild_process`.

It gets a job as one line of JSON on stdin and answers with lines of JSON on stdout: `{"done", "total"}` now and then,
`{"event"}`, and at last `{"report"}`, `{"error"}` or `{"crash"}`. Then it may get the next one. It ends when its stdin
does, so it never outlives the process that started it, and it may be killed at any time: `rebuild_job` says why that
leaves nothing that matters.
"""

import asyncio
import signal
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from atomlog.consumers.context import ProjectionKind
from atomlog.consumers.events import Event, OnEvent
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.heads_projection import HeadsProjection
from atomlog.consumers.kinds import RocksKind
from atomlog.consumers.parts import Parts, open_parts, projection_kind
from atomlog.consumers.processes import SAFE_PATH, interpreter, make_no_cycles
from atomlog.consumers.rebuild_job import RebuildJob, RebuildReport, run_job
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail, of_system
from atomlog.kernel.ports import Clock
from atomlog.kernel.system import SystemFiles

LINE_BYTES_MAX: Final = 1024 * 1024  # of one line of a job's output
PROGRESS_EVERY_US: Final = 100_000
END_SECONDS: Final = 5.0  # for a process that was asked to end; then it is killed
MODULE: Final = "atomlog.consumers.rebuild_process"


class RebuildProcess:
    """Runs jobs, one after the other, in a process of its own. `close` ends it."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def run(self, job: RebuildJob, progress: Callable[[int, int], None], on_event: OnEvent) -> RebuildReport:
        """Run a job; its errors stand in the report.

        Raises RuntimeError with the process's traceback when it met a bug. Cancelled: call `close`.
        """
        process = await self._started()
        assert process.stdin is not None
        process.stdin.write(jsontext.dumps(job.to_dict()) + b"\n")
        answer = await _answer(process, progress, on_event)
        if "crash" in answer:
            raise RuntimeError(f"rebuilding {job.name} failed:\n{answer['crash']}")
        if "error" in answer:
            return RebuildReport(name=job.name, positions={}, error=answer["error"])
        return RebuildReport.from_dict(answer["report"])

    async def close(self) -> None:
        """End it: it removes what it was making."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                interpreter(), SAFE_PATH, "-m", MODULE, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES_MAX
            )
        return self._process


async def _answer(process: Process, progress: Callable[[int, int], None], on_event: OnEvent) -> dict[str, Any]:
    """The last line of a job, progress told on the way; an error when the process ended without one."""
    assert process.stdout is not None
    async for line in process.stdout:
        found: dict[str, Any] = jsontext.loads(line)
        if "event" in found:
            on_event(found["event"])
        elif "done" in found:
            progress(found["done"], found["total"])
        else:
            return found
    code = await process.wait()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return {"error": fail("OVERLOADED", f"the process that rebuilt it {how}; is there enough memory?").to_dict()}


# --- the other end -----------------------------------------------------------------------------------------------


async def _main() -> None:
    loop, stdin = asyncio.get_running_loop(), asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C goes to the process above, too: it decides
    line = await stdin.readline()
    while line:
        # The next job comes only after the answer to this one: anything before it is the end of stdin.
        work = asyncio.create_task(_work(RebuildJob.from_dict(jsontext.loads(line))))
        following = asyncio.create_task(stdin.readline())
        await asyncio.wait({work, following}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        with suppress(asyncio.CancelledError, BrokenPipeError):
            _tell(await work)
        line = await following


async def _work(job: RebuildJob) -> dict[str, Any]:
    """The last line of this process."""
    try:
        report = await _run(job)
    except AtomlogError as error:
        return {"error": error.to_dict()}
    except OSError as error:
        return {"error": of_system(error, job.directory).to_dict()}
    except Exception:
        return {"crash": traceback.format_exc()}
    return {"report": report.to_dict()}


async def _run(job: RebuildJob) -> RebuildReport:
    def say(event: Event) -> None:
        _tell({"event": event})

    parts = open_parts(
        job.directory,
        StoreConfig.load(SystemFiles(), job.directory),
        settings=job.settings,
        master_key_file=job.master_key_file,
        read_only=True,
        on_event=say,
    )
    try:
        await parts.start()
        directory = GenerationDirectory(parts.machine.files, job.directory, job.name, say)
        told = _Told(parts.machine.clock)
        return await run_job(job, parts.context, directory, kind_of(parts, job.name), parts.content, told)
    finally:
        await parts.close()


def kind_of(parts: Parts, name: str) -> ProjectionKind:
    """How a projection is opened, heads included."""
    if name != HeadsProjection.name:
        return projection_kind(parts, name)
    partitions, cache = parts.config.partitions, parts.settings.block_cache_bytes
    return RocksKind(name=name, make=lambda kv: HeadsProjection(kv, partitions), block_cache_bytes=cache)


class _Told:
    """Progress as lines, not more often than somebody can look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_us = 0

    def __call__(self, done: int, total: int) -> None:
        now_us = self._clock.monotonic_us()
        if now_us >= self._next_us or done >= total:
            self._next_us = now_us + PROGRESS_EVERY_US
            _tell({"done": done, "total": total})


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(jsontext.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    make_no_cycles()
    asyncio.run(_main())
