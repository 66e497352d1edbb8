"""Names of the embedded log's files, and the errors that name them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import File, Files

DURABLE_END_BYTES: Final = 8
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.seg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The files of one partition of the store in `store`: segments, `durable_end`, `owner.json`."""

    store: str
    log_id: bytes
    partition: int

    @property
    def directory(self) -> str:
        return f"{self.store}/log/{self.partition}"

    @property
    def durable_end(self) -> str:
        return f"{self.directory}/durable_end"

    @property
    def owner(self) -> str:
        return f"{self.directory}/owner.json"

    def segment(self, first: int) -> str:
        return f"{self.directory}/{first:020d}.seg"

    def segments(self, files: Files) -> Sequence[int]:
        """First positions of the segment files that are there, ascending."""
        names = (_SEGMENT_NAME.fullmatch(name) for name in files.list(self.directory))
        return [int(name[1]) for name in names if name]


def check_partitions(files: Files, store: str, partitions: int) -> None:
    """CORRUPT when the log has other partitions than these: in fewer, atoms would be looked for elsewhere."""
    names = files.list(f"{store}/log")
    missing = [number for number in range(partitions) if str(number) not in names]
    if missing:
        raise corrupt(f"{store}/log/{missing[0]}", None, f"it is missing, store.json says that there are {partitions}")
    beyond = [name for name in names if name.isdecimal() and int(name) >= partitions]
    if beyond:
        what = f"there is a partition {beyond[0]}, store.json says that there are {partitions}"
        raise corrupt(f"{store}/log", None, what, "Put the right store.json back.")


class Spot(NamedTuple):
    """Between two groups: the next one starts at byte `offset`, has the first position `position` and this `chain`."""

    offset: int
    position: int
    chain: bytes


class Window:
    """A file, read ahead. One window serves one pass: what is not durable yet may change under a later one."""

    def __init__(self, file: File, ahead_bytes: int) -> None:
        self._file = file
        self._ahead_bytes = ahead_bytes
        self._start = 0
        self._buf = b""

    def load(self, offset: int, size: int) -> tuple[bytes, int]:
        """A buffer and the index of byte `offset` in it; `size` bytes follow, fewer only at the end of the file."""
        at = offset - self._start
        if at < 0 or at + size > len(self._buf):
            self._buf = self._file.read_at(offset, max(size, self._ahead_bytes))
            self._start, at = offset, 0
        return self._buf, at


def corrupt(
    path: str, offset: int | None, what: str, way_out: str = "Restore this file from a backup."
) -> AtomlogError:
    """CORRUPT, naming the file and, where there is one, the byte."""
    place = path if offset is None else f"{path}, byte {offset}"
    detail = {"path": path, "code": "CORRUPT", "message": what, "offset": offset}
    return fail("CORRUPT", f"{place}: {what}. {way_out}", details=[detail])


def read_durable_end(files: Files, path: str) -> int | None:
    """The published end; None when the file is absent or not 8 bytes long.

    It is read until two readings agree: the owner writes all 8 bytes at once, but no system promises that another
    process sees them so. The file is opened anew each time, because an owner may have made it anew.
    """
    try:
        file = files.open(path, write=False)
    except FileNotFoundError:
        return None
    try:
        raw, again = b"", file.read_at(0, DURABLE_END_BYTES + 1)
        while raw != again:
            raw, again = again, file.read_at(0, DURABLE_END_BYTES + 1)
    finally:
        file.close()
    return int.from_bytes(raw, "little") if len(raw) == DURABLE_END_BYTES else None
