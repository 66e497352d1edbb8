"""An export of a store: which files, from which source, and how a killed one goes on.

Everything is as of one position vector, whatever is written meanwhile: revisions and inputs are read from the log up
to there, relations and memberships are rows that say from which position they hold and until which.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from atomlog.consumers.export.index_rows import member_rows, receipt_rows, relation_rows
from atomlog.consumers.export.log_rows import Piece, log_rows
from atomlog.consumers.export.manifest import LOCK, ExportedFile, Manifest, begun, check_same
from atomlog.consumers.export.parquet import ParquetFile, check_library
from atomlog.consumers.export.tables import INPUTS, MEMBERSHIPS, RECEIPTS, RELATIONS, REVISIONS, TABLES, Row, Table
from atomlog.consumers.indexes import OpenIndexes
from atomlog.consumers.parts import Parts
from atomlog.consumers.paths import checked_path
from atomlog.consumers.store_arguments import text_list
from atomlog.kernel.errors import AtomlogError, fail, of_system
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import File, Files
from atomlog.kernel.times import format_time
from atomlog.projections.ids import Ids
from atomlog.projections.relations import Relations

Progress = Callable[[str, int, int], None]
"""(a table and its partition, or an index that is waited for; done, total). A total that is not known before grows."""

INDEXES: Final = ("ids", "relations")  # that an export reads beside the log
GROUP_ROWS_MAX: Final = 20_000  # rows of a row group
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024  # of long texts and lists in it, as they are in memory
LONG: Final = ("value", "text")  # columns of texts that may be long
ITEM_BYTES: Final = 512  # that an item of a list takes
HASH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export holds now. `resumed`: it went on with one that had not been finished."""

    directory: str
    manifest: Manifest
    resumed: bool

    @property
    def rows(self) -> Mapping[str, int]:
        return self.manifest.rows()

    def to_dict(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            **self.manifest.to_dict(),
            "rows": dict(self.rows),
            "resumed": self.resumed,
        }


async def export_store(
    parts: Parts,
    indexes: OpenIndexes,
    target: str,
    *,
    positions: Positions | None = None,
    time_us: int | None = None,
    tables: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write tables of a store into the directory `target`, as of read positions or a time, else of the log's end.

    A directory that holds an unfinished export of the same log, positions and tables is finished. Without positions
    and time an unfinished one keeps its own. Without a master key contents are null and `sealed`.

    Raises:
        NOT_INSTALLED: pyarrow is missing. STORE_LOCKED: another process exports into this directory.
        INVALID_INPUT: a target that is in use by something else, a position after the log's end, an unknown table.
        INDEX_LAGGING: ids or relations have not come as far. OVERLOADED: the disk is full.
        KEY_UNAVAILABLE: the master key is another one than the store's. CORRUPT, LOG_DIVERGED: as of reading.
    """
    check_library()
    progress = progress or _silent
    target = checked_path(target, "to").rstrip("/") or "/"
    try:
        with _Place(parts.machine.files, target) as place:
            found = begun(parts.machine.files, target)
            held = _held(parts, indexes)
            if time_us is not None:
                positions = await _positions_at(parts, indexes, held, positions, time_us, progress)
            wanted = await _wanted(parts, held, positions, _tables(tables), found)
            if found is not None:
                check_same(found, wanted, target)
            place.become_an_export()
            job = _Job(parts, indexes, target, found or wanted, progress)
            return ExportReport(directory=target, manifest=await job.run(), resumed=found is not None)
    except OSError as error:
        raise of_system(error, target) from error


async def _wanted(
    parts: Parts,
    held: Sequence[int],
    positions: Positions | None,
    tables: tuple[str, ...],
    found: Manifest | None,
) -> Manifest:
    """What the export is to be of."""
    if positions is None:
        unfinished = found is not None and found.finished_at is None and found.log_id == parts.config.log_id
        positions = found.positions if found is not None and unfinished else await _ends(parts, held)
    return Manifest(
        program=f"atomlog {version('atomlog')}",
        log_id=parts.config.log_id,
        positions=await _checked(parts, held, positions),
        sealed=not parts.ring.can_unseal,
        tables=tables,
        started_at=format_time(parts.machine.clock.now_us()),
    )


def _held(parts: Parts, indexes: OpenIndexes) -> list[int]:
    """The partitions that this node indexes: all, but for a node of a shared store that was told otherwise."""
    held = set(range(parts.config.partitions))
    for name in INDEXES:
        held &= set(indexes.need(name).held)
    return sorted(held)


async def _checked(parts: Parts, held: Sequence[int], positions: Positions) -> dict[int, int]:
    """INVALID_INPUT unless every partition has a position that the log holds, or −1."""
    ends = await _ends(parts, held)
    if positions.keys() != ends.keys():
        raise invalid("at", f"name a position for each partition that is indexed here: {', '.join(map(str, held))}")
    for partition, position in positions.items():
        if not -1 <= position <= ends[partition]:
            raise invalid("at", f"partition {partition} has positions from 0 to {ends[partition]}, not {position}")
    return dict(sorted(positions.items()))


async def _positions_at(
    parts: Parts,
    indexes: OpenIndexes,
    held: Sequence[int],
    positions: Positions | None,
    time_us: int,
    progress: Progress,
) -> Positions:
    """The last batch recorded at or before a time, in each partition. INVALID_INPUT for a time in the future."""
    if positions is not None:
        raise invalid("at", "give either positions or a time")
    now_us = parts.machine.clock.now_us()
    if time_us > now_us:
        raise invalid("as_of", f"{format_time(time_us)} is in the future; it is {format_time(now_us)}")
    async with AsyncExitStack() as leases:
        ids: Ids = await open_index(parts, indexes, leases, "ids", await _ends(parts, held), progress)
        return {partition: ids.position_at(partition, time_us) for partition in held}


async def open_index(
    parts: Parts, indexes: OpenIndexes, leases: AsyncExitStack, name: str, at: Positions, progress: Progress
) -> Any:
    """An index that has reached these positions, kept open until the leases end.

    One that is behind is waited for as long as it moves: INDEX_LAGGING when it does not, CORRUPT.
    """
    view, clock = indexes.need(name), parts.machine.clock
    await view.catch_up()
    while True:
        before = dict(view.positions())
        progress(f"index {name}", *_reached(before, at))
        try:
            await view.wait_for(at, clock.monotonic_us() + parts.settings.read_timeout_ms * 1_000)
        except AtomlogError as error:
            if error.code != "INDEX_LAGGING" or error.retry_after_ms is None or dict(view.positions()) == before:
                raise
        else:
            progress(f"index {name}", *_reached(at, at))
            return await leases.enter_async_context(view.pinned())


def _reached(positions: Positions, at: Positions) -> tuple[int, int]:
    """(records applied, records that must be) over all partitions."""
    return sum(min(positions.get(one, -1), last) + 1 for one, last in at.items()), sum(last + 1 for last in at.values())


async def _ends(parts: Parts, held: Sequence[int]) -> Positions:
    return {partition: await parts.log.end(partition) - 1 for partition in held}


def _tables(given: Sequence[str] | None) -> tuple[str, ...]:
    """Some of the tables in their own order, or all. INVALID_INPUT for an unknown one."""
    if given is None:
        return tuple(TABLES)
    names = text_list(given, "tables")
    unknown = next((name for name in names if name not in TABLES), None)
    if unknown is not None or not names:
        what = "name at least one" if unknown is None else f"there is no table {shown(unknown)}"
        raise invalid("tables", f"{what}; there are {', '.join(TABLES)}")
    return tuple(name for name in TABLES if name in names)


class _Place:
    """The directory of an export, in which this process alone works."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._lock: File | None = None

    def __enter__(self) -> "_Place":
        if self._files.exists(self._directory):
            begun(self._files, self._directory)  # not even a lock goes into a directory of something else
        self._files.make_directory(self._directory)
        lock = self._files.open(f"{self._directory}/{LOCK}", write=True, create=True)
        if not lock.lock():
            lock.close()
            message = f"another process exports into {self._directory}; wait for it"
            raise fail("STORE_LOCKED", message, retry_after_ms=1_000)
        self._lock = lock
        return self

    def become_an_export(self) -> None:
        for name in TABLES:
            self._files.make_directory(f"{self._directory}/{name}")
        self._files.sync_directory(self._directory)

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()


class _Job:
    """Writes what is missing of one export."""

    def __init__(
        self, parts: Parts, indexes: OpenIndexes, directory: str, manifest: Manifest, progress: Progress
    ) -> None:
        self._parts = parts
        self._indexes = indexes
        self._directory = directory
        self._manifest = manifest
        self._progress = progress

    async def run(self) -> Manifest:
        await self._check_finished()
        self._save(self._manifest)
        at, clock = self._manifest.positions, self._parts.machine.clock
        async with AsyncExitStack() as leases:
            if self._needs(REVISIONS.name, INPUTS.name):
                ids: Ids = await self._index(leases, "ids")
                for number in at:
                    genesis = self._parts.config.genesis(number)
                    rows = log_rows(self._parts.log, genesis, at, ids=ids, opener=self._parts.content)
                    await self._write((REVISIONS.name, INPUTS.name), number, rows)
            if self._needs(RELATIONS.name, MEMBERSHIPS.name):
                relations: Relations = await self._index(leases, "relations")
                for number, position in at.items():
                    await self._write((RELATIONS.name,), number, relation_rows(relations, number, position, clock))
                    await self._write((MEMBERSHIPS.name,), number, member_rows(relations, number, position, clock))
            if self._needs(RECEIPTS.name):
                await self._parts.journal.flush()
                rows = receipt_rows(self._parts.journal, at, clock)
                await self._write((RECEIPTS.name,), None, rows)
        if self._manifest.finished_at is None:
            self._save(replace(self._manifest, finished_at=format_time(clock.now_us())))
        return self._manifest

    def _needs(self, *tables: str) -> bool:
        """Whether a file of these tables is asked for and not there."""
        return any(self._missing(name, number) for name in tables for number in self._manifest.positions)

    def _missing(self, table: str, partition: int | None) -> bool:
        return table in self._manifest.tables and not self._manifest.has(_path(table, partition))

    async def _index(self, leases: AsyncExitStack, name: str) -> Any:
        return await open_index(self._parts, self._indexes, leases, name, self._manifest.positions, self._progress)

    async def _write(self, tables: Sequence[str], partition: int | None, source: AsyncGenerator[Piece]) -> None:
        """Those files of one source that are missing, each finished or begun anew by the next try."""
        missing = [name for name in tables if self._missing(name, partition)]
        if not missing:
            return
        label = missing[0] if partition is None else f"{missing[0]} {partition}"
        with ExitStack() as abandoning:
            open_files = {name: self._open(name, partition, abandoning) for name in missing}
            async with aclosing(source) as pieces:
                async for piece in pieces:
                    for name, file in open_files.items():
                        await file.add(piece.rows.get(name, ()))
                    self._progress(label, piece.done, piece.total or piece.done)
            for name, file in open_files.items():
                finished = await file.finish(name, partition)
                self._save(self._manifest.with_file(finished))

    def _open(self, table: str, partition: int | None, abandoning: ExitStack) -> "_GroupedFile":
        path = _path(table, partition)
        parquet = ParquetFile(self._parts.machine.files, f"{self._directory}/{path}", TABLES[table])
        abandoning.callback(parquet.abandon)
        return _GroupedFile(self._parts, path, parquet, TABLES[table])

    def _save(self, manifest: Manifest) -> None:
        manifest.save(self._parts.machine.files, self._directory)
        self._manifest = manifest

    async def _check_finished(self) -> None:
        """What is not as it was written is made anew."""
        run = self._parts.machine.workers.run
        whole = [one for one in self._manifest.files if await run(partial(self._is_whole, one))]
        if len(whole) < len(self._manifest.files):
            self._manifest = replace(self._manifest, files=tuple(whole), finished_at=None)

    def _is_whole(self, one: ExportedFile) -> bool:
        files, digest, at = self._parts.machine.files, hashlib.sha256(), 0
        try:
            file = files.open(f"{self._directory}/{one.path}", write=False)
        except FileNotFoundError:
            return False
        try:
            while piece := file.read_at(at, HASH_BYTES):
                digest.update(piece)
                at += len(piece)
        finally:
            file.close()
        return digest.hexdigest() == one.sha256


class _GroupedFile:
    """Gathers rows into row groups, bounded in rows and in bytes, and writes them on a worker."""

    def __init__(self, parts: Parts, path: str, parquet: ParquetFile, table: Table) -> None:
        self._workers = parts.machine.workers
        self._path = path
        self._texts = [index for index, column in enumerate(table.columns) if column.name in LONG]
        self._lists = [index for index, column in enumerate(table.columns) if column.kind in ("strings", "structs")]
        self._parquet = parquet
        self._rows: list[Row] = []
        self._bytes = 0

    async def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.append(row)
            self._bytes += self._weight(row)
            if len(self._rows) >= GROUP_ROWS_MAX or self._bytes >= GROUP_BYTES_MAX:
                await self._write_group()

    def _weight(self, row: Row) -> int:
        """Bytes of what may be long in it; the rest is bounded by the number of rows."""
        texts = sum(len(row[index] or "") for index in self._texts)
        return texts + ITEM_BYTES * sum(len(row[index] or ()) for index in self._lists)

    async def _write_group(self) -> None:
        group, self._rows, self._bytes = self._rows, [], 0
        await self._workers.run(lambda: self._parquet.write(group))

    async def finish(self, table: str, partition: int | None) -> ExportedFile:
        if self._rows:
            await self._write_group()
        written = await self._workers.run(self._parquet.finish)
        return ExportedFile(
            path=self._path,
            table=table,
            partition=partition,
            rows=written.rows,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
        )


def _path(table: str, partition: int | None) -> str:
    """`revisions/part-0.parquet`."""
    number = 0 if partition is None or not TABLES[table].by_partition else partition
    return f"{table}/part-{number}.parquet"


def _silent(_name: str, _done: int, _total: int) -> None:
    """Nobody watches."""
