"""Born, died and atom ordinal of every row of a partition as arrays, brought up to date from the store.

20 bytes a row. The same code serves a primary after `apply` and a secondary after `catch_up`.
"""

from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from atomlog.kernel.kv import prefix_end, u16, u32, u64
from atomlog.kernel.ports import Kv
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.vectors.layout import DEATH, ROW, ROW_BYTES, ordinal_of

Mask = NDArray[np.bool_]

_CHUNK_ROWS: Final = 16_384
_ROW_TYPE: Final = np.dtype([("atom_ordinal", ">u4"), ("born", ">i8"), ("died", ">i8"), ("ids", "V32")])
assert _ROW_TYPE.itemsize == ROW_BYTES
_Scalar = TypeVar("_Scalar", bound=np.generic)


class Columns:
    def __init__(self, kv: Kv, partition: int) -> None:
        self._kv = kv
        self._tag = u16(partition)
        self._rows = 0
        self._deaths_from = 0  # the position from which deaths may not have been seen
        self._atom_ordinal = np.empty(0, dtype=np.uint32)
        self._born = np.empty(0, dtype=np.int64)
        self._died = np.empty(0, dtype=np.int64)

    @property
    def rows(self) -> int:
        return self._rows

    def died(self, start: int, stop: int) -> NDArray[np.int64]:
        """When each row with start ≤ ordinal < stop died, NEVER for those that are alive; a copy."""
        return self._died[start : min(stop, self._rows)].copy()

    def refresh(self) -> None:
        """Take over what the store has since the last time."""
        prefix = ROW + self._tag
        scan = self._kv.scan(prefix + u32(self._rows), prefix_end(prefix))
        while found := [value for _, value in islice(scan, _CHUNK_ROWS)]:
            self._append(np.frombuffer(b"".join(found), dtype=_ROW_TYPE))
        prefix = DEATH + self._tag
        for key, _ in self._kv.scan(prefix + u64(self._deaths_from), prefix_end(prefix)):
            position = int.from_bytes(key[3:11], "big")
            self._died[ordinal_of(key)] = position
            self._deaths_from = position  # the same position again: its batch may have had more

    def eligible(self, position: int, allowed: Bitmap | None) -> Mask:
        """Which rows are alive as of a position and belong to an allowed atom; (rows,) of bool."""
        alive: Mask = (self._born[: self._rows] <= position) & (self._died[: self._rows] > position)
        if allowed is not None:
            alive &= self._allowed(allowed)
        return alive

    def _allowed(self, allowed: Bitmap) -> Mask:
        members = np.fromiter(allowed, dtype=np.int64, count=len(allowed))
        atoms = self._atom_ordinal[: self._rows]
        flags = np.zeros(int(atoms.max()) + 1 if atoms.size else 1, dtype=np.bool_)
        flags[members[members < flags.size]] = True
        picked: Mask = flags[atoms]
        return picked

    def _append(self, found: NDArray[Any]) -> None:
        rows = self._rows + found.size
        self._atom_ordinal = _with_room(self._atom_ordinal, rows)
        self._born = _with_room(self._born, rows)
        self._died = _with_room(self._died, rows)
        self._atom_ordinal[self._rows : rows] = found["atom_ordinal"]
        self._born[self._rows : rows] = found["born"]
        self._died[self._rows : rows] = found["died"]
        self._rows = rows


def _with_room(column: NDArray[_Scalar], rows: int) -> NDArray[_Scalar]:
    """The same column with room for `rows`; grows by doubling."""
    if rows <= column.size:
        return column
    grown = np.empty(max(rows, 2 * column.size, 1024), dtype=column.dtype)
    grown[: column.size] = column
    return grown


class ColumnsByPartition:
    """The columns of each partition, loaded when first asked for."""

    def __init__(self, kv: Kv) -> None:
        self._kv = kv
        self._columns: dict[int, Columns] = {}

    def get(self, partition: int) -> Columns:
        """Up to date with the store."""
        columns = self._columns.setdefault(partition, Columns(self._kv, partition))
        columns.refresh()
        return columns
