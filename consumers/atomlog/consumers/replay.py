"""`replay --until`: a store as of then, in a directory of its own, for analysts.

The log is copied up to the target and ends there; keys, blobs and embeddings are copied whole; the projections are
built from the copied log. The copy has the log id of its source, so a write to it would fork that history: store.json
says where it came from, and it opens for reading only. Content that was erased since is erased in it, too: keys are
those of today. The master key is not copied; store.json names the source's.

Everything is made in `<target>.partial` and becomes the target by one rename. A replay that was killed, interrupted or
cut off from the log leaves that directory. The next one to the same positions goes on with the log that is copied
there, and makes the rest anew.
"""

import errno
import re
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
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, UnavailableError, fail
from atomlog.kernel.ids import invalid
from atomlog.kernel.log.embedded import create_log
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import File, Files
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import Tail
from atomlog.kernel.times import format_time

MARKER: Final = "replay-unfinished"
COPYING: Final = "copying.json"  # of which log, up to where, in which store
_STORE: Final = re.compile(r"store-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The new store, its read positions, and what building each projection gave.

    `resumed`: so many of the records had been copied by a replay that was killed.
    """

    directory: str
    source: str
    positions: Mapping[int, int]
    records: int
    projections: Sequence[RebuildReport]
    resumed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "source": self.source,
            "positions": {str(partition): position for partition, position in sorted(self.positions.items())},
            "records": self.records,
            "resumed": self.resumed,
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
        with _Workshop(machine, target, _identity(config, until)) as work:
            if not work.has_log:
                create_log(machine.files, work.store, config.log_id, config.partitions)
                work.begin()
            copied = await copy_log(parts, work.store, until, lambda done, total: progress("log", done, total))
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
    return ReplayReport(
        directory=target,
        source=origin.source,
        positions=until,
        records=sum(until.values()) + len(until),
        projections=reports,
        resumed=sum(until.values()) + len(until) - copied,
    )


def _identity(config: StoreConfig, until: Positions) -> dict[str, Any]:
    """What a copy of a log must be of, to be gone on with."""
    return {"log_id": config.log_id.hex(), "positions": {str(p): position for p, position in sorted(until.items())}}


class _Workshop:
    """`<target>.partial`, which this process alone works in.

    What is in it is removed after an error that trying again does not mend; else it is left to be gone on with.
    """

    def __init__(self, machine: Machine, target: str, identity: Mapping[str, Any]) -> None:
        self.directory = f"{target}.partial"
        self.has_log = False  # that a replay before this one has begun to copy
        self._identity = identity
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
            files.make_directory(self.store)
            self._take_over()
            if self.has_log:
                self.begin()  # before anything can fail: who comes next must find it
            self._clear()
        except BaseException:
            marker.close()
            raise
        return self

    def begin(self) -> None:
        """The log of this store is there to be copied to: from now on it may be gone on with."""
        said = {**self._identity, "store": self.store.rpartition("/")[2]}
        self._files.write_atomic(f"{self.directory}/{COPYING}", jsontext.dumps(said))

    def _take_over(self) -> None:
        """Move the log that was copied before into the own store, if it is of the same. Nothing else of it is kept."""
        try:
            said = jsontext.parse_json(self._files.read(f"{self.directory}/{COPYING}"), COPYING, bytes_max=1024 * 1024)
        except (FileNotFoundError, AtomlogError):
            return
        if not isinstance(said, dict) or {**said, "store": None} != {**self._identity, "store": None}:
            return
        log = f"{self.directory}/{said['store']}/log"
        if _STORE.fullmatch(str(said["store"])) and self._files.exists(log):
            self._files.replace(log, f"{self.store}/log")
            self._files.sync_directory(self.store)
            self.has_log = True

    def _clear(self) -> None:
        """Remove what a killed replay left. STORE_LOCKED while a process that it had started still writes there."""
        for name in self._files.list(self.directory):
            if name == MARKER or f"{self.directory}/{name}" == self.store or (name == COPYING and self.has_log):
                continue
            if name.startswith(COPYING):  # a temporary one, too
                self._files.remove(f"{self.directory}/{name}")
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not _may_go_on(error):
            self._files.remove_tree(self.directory)
        if self._marker is not None:
            self._marker.close()


def _may_go_on(error: BaseException | None) -> bool:
    """Interrupted, or something that was not there: what is copied by then is right."""
    return error is not None and (not isinstance(error, Exception) or isinstance(error, UnavailableError))


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
