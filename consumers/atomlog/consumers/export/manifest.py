"""manifest.json of an export: of what it is, and which of its files are finished.

It is written before the first file and after each one, so that a killed export goes on with what is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from atomlog.consumers.export.tables import FORMAT
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id, invalid
from atomlog.kernel.ports import Files

FILE: Final = "manifest.json"
LOCK: Final = ".lock"
BYTES_MAX: Final = 16 * 1024 * 1024
_ANOTHER: Final = "choose another directory, or remove it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A finished file; `path` is relative to the export, `partition` None for a table that has one file in all."""

    path: str
    table: str
    partition: int | None
    rows: int
    size_bytes: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "table": self.table,
            "partition": self.partition,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "sha256": self.sha256,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`to_dict` is what stands in the file. `sealed`: there was no master key, so that contents are null."""

    program: str
    log_id: bytes
    positions: Mapping[int, int]
    sealed: bool
    tables: tuple[str, ...]
    started_at: str
    finished_at: str | None = None
    files: tuple[ExportedFile, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "program": self.program,
            "log_id": format_id(self.log_id),
            "positions": {str(partition): position for partition, position in sorted(self.positions.items())},
            "sealed": self.sealed,
            "tables": list(self.tables),
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "files": [file.to_dict() for file in self.files],
        }

    def save(self, files: Files, directory: str) -> None:
        files.write_atomic(f"{directory}/{FILE}", jsontext.dumps(self.to_dict()) + b"\n")

    def with_file(self, file: ExportedFile) -> "Manifest":
        return replace(self, files=(*self.files, file))

    def has(self, path: str) -> bool:
        return any(file.path == path for file in self.files)

    def rows(self) -> dict[str, int]:
        """Table → rows."""
        return {name: sum(file.rows for file in self.files if file.table == name) for name in self.tables}


def begun(files: Files, directory: str) -> Manifest | None:
    """The export that a directory holds; None when it is absent or empty. INVALID_INPUT when it is something else."""
    try:
        names = [name for name in files.list(directory) if name != LOCK]
    except NotADirectoryError:
        raise invalid("to", f"{directory} is a file; an export is a directory") from None
    if not names:
        return None
    if FILE not in names:
        raise invalid("to", f"{directory} is in use by something else; {_ANOTHER}")
    try:
        return _parsed(jsontext.parse_json(files.read(f"{directory}/{FILE}"), FILE, bytes_max=BYTES_MAX))
    except (AtomlogError, KeyError, TypeError, ValueError, AttributeError):
        raise invalid("to", f"{directory}/{FILE} is not readable as that of an export; {_ANOTHER}") from None


def check_same(found: Manifest, wanted: Manifest, directory: str) -> None:
    """INVALID_INPUT unless `found` is an export of the same things, which may be gone on with."""
    unlike = (
        ("log", format_id(found.log_id), format_id(wanted.log_id)),
        ("positions", dict(found.positions), dict(wanted.positions)),
        ("tables", list(found.tables), list(wanted.tables)),
        ("sealed", found.sealed, wanted.sealed),
    )
    for name, here, asked in unlike:
        if here != asked:
            raise invalid("to", f"{directory} holds another export: {name} {here}, not {asked}; {_ANOTHER}")


def _parsed(found: Mapping[str, Any]) -> Manifest:
    if found["format"] != FORMAT:
        raise fail("INVALID_INPUT", "another format")
    return Manifest(
        program=str(found["program"]),
        log_id=bytes.fromhex(found["log_id"].replace("-", "")),
        positions={int(partition): int(position) for partition, position in found["positions"].items()},
        sealed=bool(found["sealed"]),
        tables=tuple(map(str, found["tables"])),
        started_at=str(found["started_at"]),
        finished_at=found["finished_at"],
        files=_files(found["files"]),
    )


def _files(found: Sequence[Mapping[str, Any]]) -> tuple[ExportedFile, ...]:
    return tuple(
        ExportedFile(
            path=str(one["path"]),
            table=str(one["table"]),
            partition=one["partition"],
            rows=int(one["rows"]),
            size_bytes=int(one["bytes"]),
            sha256=str(one["sha256"]),
        )
        for one in found
    )
