"""Rows to Parquet files: the only module that knows pyarrow, which comes with the extra `export`.

A file is written under another name, synced, and renamed: what has its name is whole. Its bytes are hashed as they go.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.consumers.export.tables import FORMAT, Column, Row, Table
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Files

UNFINISHED: Final = ".unfinished"
COMPRESSION: Final = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A finished file."""

    rows: int
    size_bytes: int
    sha256: str


class ParquetFile:
    """One file that is being written. Blocking; one caller at a time. `finish` or `abandon` ends it."""

    def __init__(self, files: Files, path: str, table: Table) -> None:
        self._files = files
        self._path = path
        self._rows = 0
        self._arrow, parquet = _arrow()
        self._schema = self._schema_of(table)
        self._sink = _Sink(files, path + UNFINISHED)
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression=COMPRESSION)

    def write(self, rows: Sequence[Row]) -> None:
        """A row group of these rows."""
        cells = zip(*rows, strict=True)
        arrays = [self._arrow.array(column, type=field.type) for column, field in zip(cells, self._schema, strict=True)]
        table = self._arrow.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=len(rows))
        self._rows += len(rows)

    def finish(self) -> Written:
        """The file has its name and is durable on return."""
        self._writer.close()
        written = self._sink.finish()
        self._files.replace(self._path + UNFINISHED, self._path)
        self._files.sync_directory(self._path.rpartition("/")[0])
        return Written(rows=self._rows, size_bytes=written[0], sha256=written[1])

    def abandon(self) -> None:
        """Close what is open, if it is; what was written stays under its other name and is written over next time."""
        if self._sink.abandon():
            self._writer.close()  # here, and not when it is collected, by when the file may be another one

    def _schema_of(self, table: Table) -> Any:
        fields = [self._field(column) for column in table.columns]
        return self._arrow.schema(fields, metadata={"atomlog.table": table.name, "atomlog.export": str(FORMAT)})

    def _field(self, column: Column) -> Any:
        return self._arrow.field(column.name, self._type(column), nullable=column.nullable)

    def _type(self, column: Column) -> Any:
        arrow = self._arrow
        if column.kind == "structs":
            return arrow.list_(arrow.field("item", arrow.struct([self._field(part) for part in column.parts])))
        plain: Mapping[str, Any] = {
            "string": arrow.string(),
            "binary": arrow.binary(),
            "int32": arrow.int32(),
            "int64": arrow.int64(),
            "float32": arrow.float32(),
            "bool": arrow.bool_(),
            "timestamp": arrow.timestamp("us", tz="UTC"),
            "strings": arrow.list_(arrow.string()),
        }
        return plain[column.kind]


def check_library() -> None:
    """NOT_INSTALLED, with the way out, when pyarrow is not installed."""
    _arrow()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        message = f"an export needs pyarrow, which is not here ({error}): pip install 'atomlog[export]'"
        raise fail("NOT_INSTALLED", message) from None
    return pyarrow, pyarrow.parquet


class _Sink(io.RawIOBase):
    """What pyarrow writes into: a file of the port, hashed on the way."""

    def __init__(self, files: Files, path: str) -> None:
        self._file = files.open(path, write=True, create=True)
        self._file.truncate(0)
        self._is_abandoned = False
        self._size = 0
        self._digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        piece = bytes(data)
        if self._is_abandoned:
            return len(piece)
        self._file.append(piece)
        self._digest.update(piece)
        self._size += len(piece)
        return len(piece)

    def finish(self) -> tuple[int, str]:
        """(bytes, SHA-256 in hex) of what is durable now."""
        self._file.sync()
        self._file.close()
        super().close()
        return self._size, self._digest.hexdigest()

    def abandon(self) -> bool:
        """Write nothing more, whatever pyarrow has still to say; False when it was finished."""
        if self.closed or self._is_abandoned:
            return False
        self._is_abandoned = True
        self._file.close()
        return True

    def close(self) -> None:
        """pyarrow closes what it writes into; the file is closed by `finish` or `abandon`."""
