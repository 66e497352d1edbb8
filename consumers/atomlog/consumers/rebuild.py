"""`rebuild` and `verify`: projections built anew by processes of their own, as many as there are cores."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.heads_projection import HeadsProjection
from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.processes import processors
from atomlog.consumers.rebuild_job import RebuildJob, RebuildReport
from atomlog.consumers.rebuild_process import RebuildProcess
from atomlog.consumers.store_arguments import name_list
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import AtomlogError, fail, from_dict
from atomlog.kernel.ports import Files
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles

HEADS: Final = HeadsProjection.name

Progress = Callable[[str, int, int], None]
"""(projection, or `log` while that is copied; records done, records in all)."""


async def rebuild(
    directory: str,
    names: Sequence[str] | None = None,
    *,
    swap: bool = True,
    force: bool = False,
    settings: Settings | None = None,
    master_key_file: str | None = None,
    progress: Progress | None = None,
    on_event: OnEvent = log_event,
    processes: int | None = None,
    files: Files | None = None,
) -> list[RebuildReport]:
    """Build projections anew and give them to readers, wherever they are open; one report each, in order of names.

    Each is compared with the live one at the position where that stands when it begins. An unequal one is exchanged
    only with `force`. Without `names`: every projection but heads, which can be exchanged only while nobody has the
    store open for writing. `processes` at a time (default: one a core). What goes wrong with one projection stands in
    its report and does not concern the others: see `first_error`.

    Raises STORE_NOT_FOUND, STORE_TOO_NEW, CORRUPT about the store itself; INVALID_INPUT for an unknown name.
    """
    StoreConfig.load(files or SystemFiles(), directory)
    jobs = [
        RebuildJob(
            directory=directory,
            name=name,
            swap=swap,
            force=force,
            master_key_file=master_key_file,
            settings=settings or Settings(),
        )
        for name in _chosen(names, with_heads=not swap)
    ]
    reports: dict[str, RebuildReport] = {}
    waiting = iter(jobs)

    async def work() -> None:
        process = RebuildProcess()
        try:
            for job in waiting:
                reports[job.name] = await process.run(job, partial(progress or silent, job.name), on_event)
        finally:
            await process.close()

    workers = [asyncio.create_task(work()) for _ in range(min(len(jobs), max(1, processes or processors())))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            if not worker.cancelling():  # a second cancellation would interrupt the ending of its process
                worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return [reports[job.name] for job in jobs]


async def verify(
    directory: str,
    names: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    master_key_file: str | None = None,
    progress: Progress | None = None,
    on_event: OnEvent = log_event,
    processes: int | None = None,
    files: Files | None = None,
) -> list[RebuildReport]:
    """`rebuild` without exchanging anything; without `names` heads are verified, too."""
    return await rebuild(
        directory,
        names,
        swap=False,
        settings=settings,
        master_key_file=master_key_file,
        progress=progress,
        on_event=on_event,
        processes=processes,
        files=files,
    )


def first_error(reports: Sequence[RebuildReport]) -> AtomlogError | None:
    """What a process should end with: an error of a job, or CORRUPT for digests that differ; None when all is well.

    A projection that was unequal and was exchanged by force is well now.
    """
    for report in reports:
        if report.error is not None and not report.swapped:
            return from_dict(report.error)
    unequal = [report for report in reports if report.equal is False and not report.swapped]
    if not unequal:
        return None
    details = [
        {"path": one.name, "code": "CORRUPT", "message": _difference(one), "partitions": list(one.unequal_partitions)}
        for one in unequal
    ]
    names = " ".join(one.name for one in unequal)
    message = f"{'; '.join(_difference(one) for one in unequal)}. Run `atomlog rebuild {names} --force` to exchange"
    return fail("CORRUPT", f"{message} what is live for what the log gives", details=details)


def _difference(report: RebuildReport) -> str:
    partitions = ", ".join(map(str, report.unequal_partitions))
    return f"projection {report.name} is not what the log gives, in partition {partitions}"


def silent(name: str, done: int, total: int) -> None:
    """Nobody watches."""


def _chosen(names: Sequence[str] | None, *, with_heads: bool) -> list[str]:
    known = [*PROJECTIONS, HEADS]
    if names is None:
        return known if with_heads else list(PROJECTIONS)
    return name_list(names, "names", known)
