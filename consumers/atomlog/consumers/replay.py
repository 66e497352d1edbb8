"""`replay --until`: a store as of then, in a directory of its own, for analysts.

The log is copied up to the target and ends there; keys, blobs and embeddings are copied whole; the projections are
built from the copied log. The copy has the log id of its source, so a write to it would fork that history: store.json
says where it came from, and it opens for reading only. Content that was erased since is erased in it, too: keys are
those of today. The master key is not copied; store.json names the source's.

Everything is made in `<target>.partial` and becomes the target by one rename. A killed replay leaves that directory,
and the next one begins anew.
"""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from atomlog.consumers.machine import MASTER_KEY, Machine
from atomlog.consumers.parts import PROJECTIONS, Parts, open_parts
from atomlog.consumers.paths import checked_path
from atomlog.consumers.processes import absolute
from atomlog.consumers.rebuild import Progress, first_error, rebuild, silent
from atomlog.consumers.rebuild_job import RebuildReport
from atomlog.consumers.replay_copy import GROUP_BYTES, copy_blobs, copy_embeddings, copy_keys, copy_log
from atomlog.consumers.store_config import ReplayOf, StoreConfig
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import File, Files
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import Tail
from atomlog.kernel.times import format_time

MARKER: Final = "replay-unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The new store, its read positions, and what building each projection gave."""

    directory: str
    source: str
    positions: Mapping[int, int]
    records: int
    projections: Sequence[RebuildReport]

    def to_dict(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "source": self.source,
            "positions": {str(partition): position for partition, position in sorted(self.positions.items())},
            "records": self.records,
            "projections": [report.to_dict() for report in self.projections],
        }


async def replay_until(
    source: str,
    target: str,
    *,
    positions: Positions | None = None,
    time_us: int | None = None,
    settings: Settings | None = None,
    master_key_file: str | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> ReplayReport:
    """Make the store at `source`, as it was after these read positions or at a time, in the directory `target`.

    `positions` names every partition (−1: nothing of it). A time means the last batch recorded at or before it, in
    each partition. `target` is absent or empty. The source may be in use meanwhile.

    Raises:
        STORE_NOT_FOUND, STORE_TOO_NEW: about the source. STORE_LOCKED: another replay makes this target.
        INVALID_INPUT: a target that is in use, a position after the log's end, a time in the future, both or neither.
        UPGRADE_REQUIRED, LOG_MISMATCH, LOG_DIVERGED, CORRUPT: the log cannot be read up to there.
    """
    machine, settings = machine or Machine(), settings or Settings()
    progress = progress or silent
    target = checked_path(target, "target").rstrip("/") or "/"
    config = StoreConfig.load(machine.files, source)
    parts = open_parts(source, config, settings=settings, read_only=True, machine=machine)
    try:
        await parts.start()
        until = await resolve_until(parts, positions, time_us)
        with _Workshop(machine, target) as work:
            records = await copy_log(parts, work.store, until, lambda done, total: progress("log", done, total))
            # Keys, blobs and embeddings after the log: then all that its records name are among them.
            await copy_keys(parts, work.store)
            await copy_blobs(parts, work.store)
            copy_embeddings(parts, work.store, f"{work.directory}/scratch")
            origin = ReplayOf(source=absolute(source), positions=until, master_key=_key(parts, master_key_file))
            replace(config, kafka=None, blobs=None, replay=origin).save(machine.files, work.store)
            reports = await rebuild(work.store, PROJECTIONS, settings=settings, progress=progress)
            error = first_error(reports)
            if error is not None:
                raise error
            work.finish()
    finally:
        await parts.close()
    return ReplayReport(directory=target, source=origin.source, positions=until, records=records, projections=reports)


class _Workshop:
    """`<target>.partial`, which this process alone works in. Whatever is in it after an error is removed."""

    def __init__(self, machine: Machine, target: str) -> None:
        self.directory = f"{target}.partial"
        # A process that a killed replay had started may still write below the name of its own store.
        self.store = f"{self.directory}/store-{machine.randomness.token(4).hex()}"
        self._files = machine.files
        self._target = target
        self._marker: File | None = None

    def __enter__(self) -> "_Workshop":
        """INVALID_INPUT when the target or the workshop is something else, STORE_LOCKED when somebody works in it."""
        files = self._files
        if files.exists(self._target) and _names(files, self._target) != []:
            raise invalid(
                "target", f"{self._target} is in use; a replayed store is made in an absent or empty directory"
            )
        if _names(files, self.directory) not in ([], None) and not files.exists(f"{self.directory}/{MARKER}"):
            raise invalid("target", f"{self.directory} is in use by something else; choose another target")
        files.make_directory(self.directory)
        marker = files.open(f"{self.directory}/{MARKER}", write=True, create=True)
        if not marker.lock():
            marker.close()
            raise fail(
                "STORE_LOCKED", f"another process replays into {self._target}; wait for it", retry_after_ms=1_000
            )
        self._marker = marker
        try:
            self._clear()
        except BaseException:
            marker.close()
            raise
        files.make_directory(self.store)
        return self

    def _clear(self) -> None:
        """Remove what a killed replay left. STORE_LOCKED while a process that it had started still writes there."""
        for name in self._files.list(self.directory):
            if name == MARKER:
                continue
            try:
                self._files.remove_tree(f"{self.directory}/{name}")
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
                raise fail(
                    "STORE_LOCKED",
                    f"what a killed replay had started still ends in {self.directory}; try again",
                    retry_after_ms=1_000,
                ) from error

    def finish(self) -> None:
        """The store becomes the target, at once and durably."""
        self._files.sync_directory(self.store)
        self._files.replace(self.store, self._target)
        self._files.sync_directory(self._target.rpartition("/")[0] or ("/" if self._target.startswith("/") else "."))

    def __exit__(self, *error: object) -> None:
        self._files.remove_tree(self.directory)
        if self._marker is not None:
            self._marker.close()


def _names(files: Files, path: str) -> Sequence[str] | None:
    """What is in a directory; None when there is none. A file counts as in use."""
    if not files.exists(path):
        return None
    try:
        return files.list(path)
    except NotADirectoryError:
        return [path]


async def resolve_until(parts: Parts, positions: Positions | None, time_us: int | None) -> dict[int, int]:
    """The target as read positions of every partition. INVALID_INPUT: see `replay_until`."""
    if (positions is None) == (time_us is None):
        raise invalid("until", "give either positions or a time")
    partitions = range(parts.config.partitions)
    if time_us is not None:
        now_us = parts.machine.clock.now_us()
        if time_us > now_us:
            raise invalid("until", f"{format_time(time_us)} is in the future; it is {format_time(now_us)}")
        return {partition: await _last_until(parts, partition, time_us) for partition in partitions}
    assert positions is not None
    if set(positions) != set(partitions):
        raise invalid("until", f"name a position for each of the {len(partitions)} partitions, counted from 0")
    for partition, position in positions.items():
        end = await parts.log.end(partition)
        if not -1 <= position < end:
            raise invalid("until", f"partition {partition} has positions from 0 to {end - 1}, not {position}")
    return dict(positions)


async def _last_until(parts: Parts, partition: int, time_us: int) -> int:
    """The position of the last batch recorded at or before a time; times rise, so the first later one ends it."""
    tail, last = Tail(parts.log, parts.config.genesis(partition)), -1
    while True:
        before = tail.checkpoint.position
        for record in await tail.poll(bytes_max=GROUP_BYTES):
            if record.kind == "Batch":
                if record.batch().recorded_at_us > time_us:
                    return last
                last = record.position
        if tail.checkpoint.position == before:
            return last
        await parts.machine.clock.sleep(0)


def _key(parts: Parts, given: str | None) -> str:
    """Where the source's master key lies."""
    if given is not None:
        return absolute(given)
    origin = parts.config.replay
    return f"{absolute(parts.directory)}/{MASTER_KEY}" if origin is None else origin.master_key
