"""Which partitions a projection of a directory is followed for: `projections/<name>/partitions.json`.

::

    {"partitions": [0, 2]}

Without the file it is followed for all of them. It belongs to the directory and not to a process, so that whoever
follows next goes on with the same ones, and who only reads knows what is not there.
"""

from collections.abc import Sequence
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.ports import Files

FILE: Final = "partitions.json"
EVERY: Final = "all"
RANGE: Final = "-"
DIGITS_MAX: Final = 4


def parse_assignment(text: str | None, path: str) -> str | tuple[int, ...] | None:
    """`all`, or numbers and ranges: `0,2` or `0-3,6`. INVALID_INPUT for anything else; None stays None."""
    if text is None or text.strip() == EVERY:
        return None if text is None else EVERY
    numbers: set[int] = set()
    for part in text.split(","):
        first, separator, last = (piece.strip() for piece in part.partition(RANGE))
        ends = (first, last) if separator else (first,)
        if not all(end.isascii() and end.isdigit() and len(end) <= DIGITS_MAX for end in ends):
            raise invalid(path, f"{shown(part)} is no partition; write numbers such as 0,2 or 0-3, or {EVERY}")
        numbers.update(range(int(first), int(ends[-1]) + 1))
    return tuple(sorted(numbers))


def check_assignment(wanted: str | Sequence[int], partitions: int, path: str) -> tuple[int, ...]:
    """The partitions, sorted. INVALID_INPUT for none, or for one that the store does not have."""
    if isinstance(wanted, str):
        if wanted != EVERY:
            raise invalid(path, f"{shown(wanted)}: give partition numbers, or {EVERY!r}")
        return tuple(range(partitions))
    for number in wanted:
        if type(number) is not int or not 0 <= number < partitions:
            raise invalid(path, f"{shown(number)} is no partition; the store has {partitions}, counted from 0")
    if not wanted:
        raise invalid(path, f"no partition is named; write numbers such as 0,2 or {EVERY}")
    return tuple(sorted(set(wanted)))


def load_assignment(files: Files, directory: str, partitions: int) -> tuple[int, ...]:
    """What is noted in `projections/<name>`. CORRUPT when it cannot be read."""
    path = f"{directory}/{FILE}"
    try:
        found = jsontext.parse_json(files.read(path), FILE)
    except (FileNotFoundError, NotADirectoryError):
        return tuple(range(partitions))
    except AtomlogError as error:
        raise _corrupt(path, error.message) from None
    if not _is_assignment(found, partitions):
        raise _corrupt(path, f"it must name some of the partitions 0 to {partitions - 1}")
    return tuple(sorted(found["partitions"]))


def save_assignment(files: Files, directory: str, assigned: Sequence[int], partitions: int) -> None:
    """Note it, durably. Follower only. All partitions are what no file means."""
    path = f"{directory}/{FILE}"
    if len(assigned) < partitions:
        files.write_atomic(path, jsontext.dumps({"partitions": list(assigned)}) + b"\n")
    elif files.exists(path):
        files.remove(path)
        files.sync_directory(directory)


def _is_assignment(found: Any, partitions: int) -> bool:
    if not isinstance(found, dict) or set(found) != {"partitions"} or not isinstance(found["partitions"], list):
        return False
    numbers = found["partitions"]
    are_known = all(type(number) is int and 0 <= number < partitions for number in numbers)
    return bool(numbers) and are_known and len(set(numbers)) == len(numbers)


def _corrupt(path: str, why: str) -> AtomlogError:
    message = f"{path}: {why}; name them again with `atomlog consume NAME --partitions …`"
    return fail("CORRUPT", message, details=[{"path": path, "code": "CORRUPT", "message": why}])
