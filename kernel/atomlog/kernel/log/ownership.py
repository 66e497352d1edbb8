"""The lock that makes one process the owner of a partition, and the note that says who it is."""

import errno
from collections.abc import Mapping
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.jsontext import dumps, parse_json
from atomlog.kernel.log.places import Place, corrupt
from atomlog.kernel.ports import File, Files

_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


def take_lock(files: Files, place: Place) -> File:
    """The partition's first segment, open and locked; closing it gives the lock back.

    Raises:
        NOT_OWNER: another process has it; `details` carries what its note says.
        STORE_LOCKED: the file system keeps no locks.
        STORE_READ_ONLY: the file cannot be written.
        CORRUPT: there is no first segment.
    """
    path = place.segment(0)
    try:
        file = files.open(path, write=True)
    except FileNotFoundError:
        raise corrupt(path, None, "the first segment is missing") from None
    except OSError as error:
        raise read_only(error, path) from None
    try:
        if not _lock(file, path):
            raise _not_owner(files, place)
        _probe(files, path)
        if files.exists(place.owner):
            files.remove(place.owner)  # a killed owner's: nobody shall be named who does not hold the lock
    except OSError as error:
        file.close()
        raise read_only(error, path) from None
    except BaseException:
        file.close()
        raise
    return file


def check_in_place(file: File, path: str) -> None:
    """CORRUPT when the path does not lead to this open file any more.

    What is written to such a file no reader finds, and its lock keeps nobody away from the one that stands there now.
    """
    if not file.is_at(path):
        what = "the file was removed, renamed or replaced while it was open, so nothing more is written"
        raise corrupt(path, None, what, "Put back the file that was here; end this process before anything else.")


def write_note(files: Files, place: Place, note: Mapping[str, Any]) -> None:
    files.write_atomic(place.owner, dumps(note))


def read_note(files: Files, place: Place) -> Mapping[str, Any]:
    """What the last owner said of itself; empty when it said nothing readable. It may be gone by now."""
    try:
        note = parse_json(files.read(place.owner), "owner.json")
    except (FileNotFoundError, AtomlogError):
        return {}
    return note if isinstance(note, dict) else {}


def read_only(error: OSError, path: str) -> Exception:
    """STORE_READ_ONLY when that is what the error means, else the error itself."""
    if error.errno not in _READ_ONLY:
        return error
    message = f"{path} cannot be written: {error.strerror}. Reading works; to write, change the permissions"
    return fail("STORE_READ_ONLY", message, details=[{"path": path, "code": "STORE_READ_ONLY", "message": message}])


def _lock(file: File, path: str) -> bool:
    try:
        return file.lock()
    except OSError as error:
        raise _no_locks(path, error.strerror or str(error)) from None


def _probe(files: Files, path: str) -> None:
    """A lock that a second opening of the file can take as well protects nothing (some network file systems)."""
    second = files.open(path, write=True)
    try:
        if _lock(second, path):
            raise _no_locks(path, "a file that is locked could be locked again")
    finally:
        second.close()


def _no_locks(path: str, why: str) -> AtomlogError:
    message = f"the file system of {path} keeps no locks ({why}). Put the store on a local disk"
    return fail("STORE_LOCKED", message, details=[{"path": path, "code": "STORE_LOCKED", "message": message}])


def _not_owner(files: Files, place: Place) -> AtomlogError:
    note = read_note(files, place)
    who = f"process {note['pid']}" if "pid" in note else "another process"
    where = f" at {note['endpoint']}" if note.get("endpoint") else ""
    message = f"partition {place.partition} of {place.store} is owned by {who}{where}. Write there, or end it"
    detail = {"path": place.segment(0), "code": "NOT_OWNER", "message": message, "partition": place.partition, **note}
    return fail("NOT_OWNER", message, details=[detail], retry_after_ms=100)
