"""The generations of one projection on disk, and who may touch them.

::

    projections/<name>/CURRENT            the name of the generation that counts
    projections/<name>/g000001/           one whole projection; a rebuild makes the next one beside it
    projections/<name>/lock               flocked by the one process that follows the log for this projection
    projections/<name>/rebuild.lock       flocked while a generation is built that is not current yet
    projections/<name>/partitions.json    the partitions that it is followed for, where that is not all of them
    projections/<name>/health.json        why the follower degraded or stopped, for other processes to show
    projections/<name>/secondary-<pid>-<n>/   scratch of a process that reads beside the follower

Locks are the operating system's and end with their holder; the numbers in the files are for people. A generation
counts once CURRENT names it, which is one atomic, durable replacement.
"""

import errno
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.assignment import load_assignment, save_assignment
from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.processes import process_id
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import File, Files

_NAME: Final = re.compile(r"g(\d{6})")
_SCRATCH: Final = re.compile(r"secondary-\d+-(\d+)")
_SCRATCH_MAX: Final = 10_000  # secondaries beside one projection at once
GENERATION_MAX: Final = 999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One whole projection: its name and its directory."""

    name: str
    directory: str


class HeldLock:
    """A file lock of this process, until `release` or the end of the process."""

    def __init__(self, file: File, path: str) -> None:
        self._file: File | None = file
        self._path = path

    @property
    def is_in_place(self) -> bool:
        """False when the locked file was removed, perhaps with its directory: it keeps nobody out then."""
        return self._file is not None and self._file.is_at(self._path)

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A directory of one secondary; its lock tells others that it is in use."""

    directory: str
    lock: HeldLock


class GenerationDirectory:
    """`projections/<name>` of the store at `root`. Any number of processes may have one; it holds no state.

    Methods that change what others use say who may call them. `process_id`: the number that they see.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        name: str,
        on_event: OnEvent = log_event,
        *,
        process_id: Callable[[], int] = process_id,
    ) -> None:
        self.name = name
        self.process_id = process_id
        self.directory = f"{root}/projections/{name}"
        self._files = files
        self._on_event = on_event

    def current(self) -> Generation | None:
        """The generation that CURRENT names; None when there is none, or CURRENT cannot be followed."""
        found = self._read_current()
        return found if isinstance(found, Generation) else None

    def lost(self) -> str | None:
        """Why CURRENT leads nowhere although there are generations; a follower that starts begins a new one."""
        found = self._read_current()
        if isinstance(found, Generation):
            return None
        path = f"{self.directory}/CURRENT"
        if found is not None:
            return f"{path}: {found}"
        return f"{path} is missing although there are generations" if self._generations() else None

    def current_or_new(self, after: Generation | None = None) -> tuple[Generation, bool]:
        """The current generation, or a new and unpublished one; True when it is new. Follower only.

        `after`: one that was removed while it was open; its name is not used again.

        A CURRENT that is missing beside generations, unreadable or points nowhere is said (`generation_lost`): the
        projection then starts again from the beginning of the log.
        """
        found = self._read_current()
        if isinstance(found, Generation):
            return found, False
        fresh = self.new_generation(after)
        others = [name for name in self._generations() if name != fresh.name]
        if found is not None or others:
            reason = found or "CURRENT is missing although there are generations"
            self._say("generation_lost", reason=reason, rebuilt_as=fresh.name, found=others)
        return fresh, True

    def new_generation(self, after: Generation | None = None) -> Generation:
        """An empty directory with the next number. Follower, or holder of the rebuild lock."""
        self._make()
        named = self._read_current()
        numbers = [int(name[1:]) for name in self._generations()]
        numbers += [int(one.name[1:]) for one in (named, after) if isinstance(one, Generation)]
        number = max(numbers, default=0) + 1
        if number > GENERATION_MAX:
            raise fail("CORRUPT", f"{self.directory}: generation numbers are used up at {GENERATION_MAX}")
        generation = self._generation(f"g{number:06d}")
        self._files.make_directory(generation.directory)
        return generation

    def hold(self, generation: Generation) -> File:
        """A generation's directory, open: it tells later whether it still stands there, and not another one."""
        return self._files.open(generation.directory, write=False)

    def publish(self, generation: Generation) -> None:
        """Make a generation the current one, durably. What is in it must be synced before."""
        # 1. The entries of the generation, then its own entry, are durable before anything names it.
        self._files.sync_directory(generation.directory)
        self._files.sync_directory(self.directory)
        # 2. One atomic replacement; readers see the old name or the new one.
        self._files.write_atomic(f"{self.directory}/CURRENT", f"{generation.name}\n".encode())
        self._say("generation_published", generation=generation.name)

    def discard(self, generation: Generation) -> None:
        """Remove a generation that was not published."""
        if self.current() != generation and self._files.exists(generation.directory):
            self._files.remove_tree(generation.directory)

    def sweep(self, in_use: Collection[str] = ()) -> list[str]:
        """Remove generations that do not count and are not `in_use`, and abandoned scratch. Follower only.

        A generation newer than CURRENT belongs to a rebuild and goes only when no rebuild runs: it is what a killed
        one left. Other processes that read an old generation go on through their open files. Returns what went.
        """
        current = self.current()
        if current is None:
            return []
        rebuild = self.try_rebuild_lock()
        try:
            stale = [
                name
                for name in self._generations()
                if name != current.name and name not in in_use and (name < current.name or rebuild is not None)
            ]
            for name in stale:
                self._files.remove_tree(f"{self.directory}/{name}")
        finally:
            if rebuild is not None:
                rebuild.release()
        removed = stale + self._sweep_scratch()
        if removed:
            self._say("swept", removed=removed)
        return removed

    def try_lock(self) -> HeldLock | None:
        """The exclusive right to follow, or None when another process, or another part of this one, has it."""
        return self._try("lock")

    def lock(self, does_what: str = "follows the log for it") -> HeldLock:
        """`try_lock`, or STORE_LOCKED naming the process that has it, and what that does."""
        return self._required("lock", does_what)

    def try_rebuild_lock(self) -> HeldLock | None:
        return self._try("rebuild.lock")

    def rebuild_lock(self) -> HeldLock:
        """The right to make a generation; STORE_LOCKED naming the process that has it."""
        return self._required("rebuild.lock", "rebuilds or verifies it")

    def holder(self) -> int | None:
        """The number of the process that took the follower's lock last, for people; None when none is noted."""
        return self._noted("lock")

    def scratch(self) -> Scratch:
        """A new scratch directory, locked; `drop` it when the secondary is closed."""
        self._make()
        for number in range(_SCRATCH_MAX):
            directory = f"{self.directory}/secondary-{self.process_id()}-{number}"
            if self._files.exists(directory):
                continue
            self._make(directory)
            held = self._try(f"secondary-{self.process_id()}-{number}/lock")
            # A sweeper may have taken or removed the new directory in between: then it is not ours.
            if held is not None and self._files.exists(f"{directory}/lock"):
                return Scratch(directory=directory, lock=held)
            if held is not None:
                held.release()
        raise fail("OVERLOADED", f"{self.directory}: {_SCRATCH_MAX} secondaries at once; close some readers")

    def drop(self, scratch: Scratch) -> None:
        try:
            if self._files.exists(scratch.directory):
                self._files.remove_tree(scratch.directory)
        finally:
            scratch.lock.release()

    def assigned(self, partitions: int) -> tuple[int, ...]:
        """Those of the log's partitions that it is followed for. CORRUPT when that cannot be read."""
        return load_assignment(self._files, self.directory, partitions)

    def assign(self, assigned: Sequence[int], partitions: int) -> None:
        """From now on it is followed for these. Before it is followed, by who holds its lock."""
        save_assignment(self._files, self.directory, assigned, partitions)
        self._say("partitions_assigned", partitions=list(assigned))

    def note_health(self, health: dict[str, Any]) -> None:
        """Leave a word for processes that read beside the follower. Follower only."""
        self._files.write_atomic(f"{self.directory}/health.json", jsontext.dumps(health) + b"\n")

    def noted_health(self) -> dict[str, Any]:
        """What `note_health` left; empty when nothing was noted or it cannot be read."""
        try:
            found = jsontext.parse_json(self._files.read(f"{self.directory}/health.json"), "health.json")
        except (FileNotFoundError, AtomlogError):
            return {}
        return found if isinstance(found, dict) else {}

    def _read_current(self) -> Generation | str | None:
        """The current generation, or why CURRENT leads nowhere, or None when there is no CURRENT."""
        try:
            raw = self._files.read(f"{self.directory}/CURRENT")
        except (FileNotFoundError, NotADirectoryError):
            return None
        name = raw[:64].decode("ascii", errors="replace").strip()
        if not _NAME.fullmatch(name):
            return f"CURRENT holds {name!r}, which is no generation"
        generation = self._generation(name)
        if not self._files.exists(generation.directory):
            return f"CURRENT names {name}, which is not there"
        return generation

    def _generation(self, name: str) -> Generation:
        return Generation(name=name, directory=f"{self.directory}/{name}")

    def _generations(self) -> list[str]:
        return [name for name in self._files.list(self.directory) if _NAME.fullmatch(name)]

    def _sweep_scratch(self) -> list[str]:
        removed = []
        for name in self._files.list(self.directory):
            held = self._try(f"{name}/lock") if _SCRATCH.fullmatch(name) else None
            if held is not None:
                try:
                    self._files.remove_tree(f"{self.directory}/{name}")
                finally:
                    held.release()
                removed.append(name)
        return removed

    def _required(self, file: str, does_what: str) -> HeldLock:
        held = self._try(file)
        if held is not None:
            return held
        message = f"projection {self.name}: process {self._noted(file) or 'of unknown number'} {does_what}"
        raise fail(
            "STORE_LOCKED",
            f"{message}; stop that process, or wait for it",
            details=[{"path": self.name, "code": "STORE_LOCKED", "message": message, "pid": self._noted(file)}],
            retry_after_ms=1_000,
        )

    def _try(self, file: str) -> HeldLock | None:
        self._make()
        try:
            opened = self._files.open(f"{self.directory}/{file}", write=True, create=True)
        except FileNotFoundError:
            return None  # a scratch directory that went away meanwhile
        except OSError as error:
            raise self._refused(error) from None
        try:
            is_held = opened.lock()
            if is_held:
                opened.truncate(0)
                opened.write_at(0, f"{self.process_id()}\n".encode())
        except BaseException:
            opened.close()  # a lock that nobody knows of would be held until this process ends
            raise
        if not is_held:
            opened.close()
            return None
        return HeldLock(opened, f"{self.directory}/{file}")

    def _noted(self, file: str) -> int | None:
        try:
            raw = self._files.read(f"{self.directory}/{file}").strip()
        except FileNotFoundError:
            return None
        return int(raw) if raw.isdigit() and len(raw) < 20 else None

    def _make(self, directory: str | None = None) -> None:
        try:
            self._files.make_directory(directory or self.directory)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> Exception:
        """STORE_READ_ONLY when that is what the error means, else the error itself."""
        if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
            return error
        message = f"{self.directory} cannot be written ({error.strerror}); readers need it, too, for scratch files"
        return fail("STORE_READ_ONLY", message)

    def _say(self, event: str, **fields: Any) -> None:
        self._on_event({"event": event, "projection": self.name, **fields})
