"""The store object behind every face: opening, writing, reading, and what operators ask.

Opening takes no decision about who owns what: the write side takes the log if nobody has it, and each projection is
followed by this process if nobody else does.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from atomlog.consumers.creation import create_store, create_unless_there, is_to_be_made
from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.indexes import OpenIndexes
from atomlog.consumers.machine import Machine
from atomlog.consumers.opening import Opening
from atomlog.consumers.parts import PROJECTIONS, Parts, open_parts
from atomlog.consumers.paths import checked_path
from atomlog.consumers.processes import absolute, process_id
from atomlog.consumers.quote import Quote, read_quote, source_of
from atomlog.consumers.sides import reader_of, routed_reader, write_side
from atomlog.consumers.status import Status, store_status
from atomlog.consumers.store_arguments import (
    Id,
    NodeOptions,
    everywhere,
    id_list,
    name_list,
    positions_of,
    receipt_id,
    settings_of,
    text_list,
    timeout_ms,
)
from atomlog.consumers.store_config import PARTITIONS, SHARD_ROWS, VECTOR_SPACES, StoreConfig
from atomlog.consumers.writing import RawBatch, Writing
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, of_system
from atomlog.kernel.ids import invalid, parse_key, parse_name, shown
from atomlog.kernel.settings import Settings
from atomlog.kernel.times import parse_time
from atomlog.projections.ids import Ids
from atomlog.projections.read.page import Page
from atomlog.projections.read.reader import Reader, ReadOptions
from atomlog.projections.read.receipts import ReadReceipt
from atomlog.projections.read.refs import DEFAULT_HOME, DEFAULT_SPACE, KeyHome
from atomlog.projections.read.selectors import Selector, parse_ids, parse_selector

if TYPE_CHECKING:
    from atomlog.consumers.cluster.routed import RoutedReader
    from atomlog.consumers.export.job import ExportReport
    from atomlog.consumers.rebuild import Progress
    from atomlog.consumers.rebuild_job import RebuildReport


class AsyncStore:
    """An open store. `async with AsyncStore.open(directory) as store: …`, or `await` it and `close` later."""

    def __init__(self, parts: Parts, writing: Writing, views: OpenIndexes, master_key_file: str | None) -> None:
        """Use `open`."""
        self._parts = parts
        self._master_key_file = master_key_file
        self._writing = writing
        self._views = views
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._process = process_id()
        self._loop = asyncio.get_running_loop()
        reader = reader_of(parts, views)
        self._routed = routed_reader(parts, reader, views)
        self._reader: Reader | RoutedReader = self._routed or reader

    # -- opening and closing

    @classmethod
    async def init(
        cls,
        directory: str | PurePath,
        *,
        partitions: int | None = None,
        master_key_file: str | None = None,
        shard_rows: int | None = None,
        vector_spaces: Sequence[str] | None = None,
        kafka: str | None = None,
        machine: Machine | None = None,
        **of_node: Unpack[NodeOptions],
    ) -> StoreConfig:
        """Make a store in an absent or empty directory. Writes no record.

        `kafka` (`host:port,…`): a node of the store on these brokers, which is made when there is none; with the
        arguments of `NodeRequest`: `kafka_config`, `prefix`, `replication`, `blobs`, `node_pem`, `allow_weak`. Then
        `master_key_file` is copied.

        Raises INVALID_INPUT (directory in use, wrong argument), STORE_READ_ONLY; of a node see `create_node`.
        """
        path, machine = checked_path(directory, "directory"), machine or Machine()
        spaces = None if vector_spaces is None else tuple(text_list(vector_spaces, "vector_spaces"))
        if kafka is not None:
            return await _make_node(
                path,
                machine,
                bootstrap=kafka,
                partitions=partitions,
                shard_rows=shard_rows,
                vector_spaces=spaces,
                master_key=master_key_file,
                **of_node,
            )
        if of_node:
            raise invalid(min(of_node), "this goes with kafka only")
        return create_store(
            path,
            partitions=PARTITIONS if partitions is None else partitions,
            shard_rows=SHARD_ROWS if shard_rows is None else shard_rows,
            vector_spaces=VECTOR_SPACES if spaces is None else spaces,
            master_key_file=master_key_file,
            machine=machine,
        )

    @classmethod
    def kafka(
        cls,
        bootstrap: str,
        *,
        data: str | PurePath,
        partitions: int | None = None,
        master_key_file: str | None = None,
        settings: Settings | None = None,
        read_only: bool = False,
        projections: Sequence[str] = PROJECTIONS,
        follow: bool = True,
        machine: Machine | None = None,
        on_event: OnEvent = log_event,
        **of_node: Unpack[NodeOptions],
    ) -> "Opening[AsyncStore]":
        """Open a node of the store on these brokers, making or joining it first when `data` is absent or empty.

        `partitions`, `master_key_file` and `of_node` are those of `init`; in a directory that is a node they count for
        nothing. The others are those of `open`.
        """

        async def opened() -> AsyncStore:
            path = checked_path(data, "data")
            if not read_only and is_to_be_made((machine or Machine()).files, path):
                await cls.init(
                    path,
                    partitions=partitions,
                    master_key_file=master_key_file,
                    kafka=bootstrap,
                    machine=machine,
                    **of_node,
                )
            return await cls.open(
                path,
                create=False,
                settings=settings,
                read_only=read_only,
                projections=projections,
                follow=follow,
                machine=machine,
                on_event=on_event,
            )

        return Opening(opened())

    @classmethod
    def open(
        cls,
        directory: str | PurePath,
        *,
        create: bool = True,
        settings: Settings | None = None,
        master_key_file: str | None = None,
        read_only: bool = False,
        projections: Sequence[str] = PROJECTIONS,
        follow: bool = True,
        machine: Machine | None = None,
        on_event: OnEvent = log_event,
    ) -> "Opening[AsyncStore]":
        """Open a store, making it first when `create` and the directory is absent or empty: await it, or enter it.

        `projections`: those this process reads, and follows when nobody else does, unless not `follow`: then it waits
        for their followers, as beside `atomlog consume`. `read_only`: takes no lock, follows nothing, writes nothing.

        Projections that this process follows have applied what the log held, unless that takes longer than
        `read_timeout_ms`: then opening says so (`opened_behind`) and every read says how far behind it is.

        Raises:
            STORE_NOT_FOUND, STORE_TOO_NEW, STORE_READ_ONLY, STORE_LOCKED, CORRUPT, LOG_MISMATCH, LOG_DIVERGED,
            UPGRADE_REQUIRED: each with what it found and the way out.
        """
        machine = machine or Machine()

        async def opened() -> AsyncStore:
            wanted = name_list(projections, "projections", PROJECTIONS)
            path = checked_path(directory, "directory")
            if create and not read_only:
                await create_unless_there(path, master_key_file=master_key_file, machine=machine)
            config = StoreConfig.load(machine.files, path)
            key_file = None if master_key_file is None else absolute(checked_path(master_key_file, "master_key_file"))
            parts = open_parts(
                absolute(path),  # the program may change its working directory
                config,
                settings=settings_of(settings),
                master_key_file=key_file,
                read_only=read_only,
                machine=machine,
                on_event=on_event,
                follow_keys=not read_only,
            )
            async with AsyncExitStack() as opening:
                opening.push_async_callback(parts.close)
                await parts.start()
                writing = write_side(parts)
                opening.push_async_callback(writing.close)
                if not parts.read_only:
                    await writing.open()
                views = await OpenIndexes.open(parts, wanted, may_follow=follow and not parts.read_only)
                opening.push_async_callback(views.close)
                await views.settle()
                opening.pop_all()
            return cls(parts, writing, views, key_file)

        async def told() -> AsyncStore:
            try:
                return await opened()
            except OSError as error:
                raise of_system(error, str(directory)) from error

        return Opening(told())

    async def close(self) -> None:
        """Answer what is in hand, make everything durable, release every lock. Goes on when the caller is cancelled.

        What cannot be made durable is told once everything is released: CORRUPT of a disk that fails, OVERLOADED of a
        full one. What was acknowledged is in the log.
        """
        if self._process != process_id():
            self._closed = True
            return  # a forked child has nothing to give back: everything is its parent's
        self._check_loop()
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.create_task(self._close())
        elif self._closing.done():
            return
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            async with AsyncExitStack() as closing:
                closing.push_async_callback(self._parts.close)
                closing.push_async_callback(self._views.close)
                closing.push_async_callback(self._writing.close)
                if self._routed is not None:
                    closing.push_async_callback(self._routed.close)
        except OSError as error:  # everything is given back all the same
            raise of_system(error, self.directory) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def directory(self) -> str:
        return self._parts.directory

    @property
    def config(self) -> StoreConfig:
        return self._parts.config

    @property
    def views(self) -> OpenIndexes:
        """The projections of this process, to pause one or to ask for its lag."""
        return self._views

    # -- writing

    async def write(self, batch: RawBatch) -> model.WriteResult:
        """Write one batch, all of it or nothing. `batch` is a mapping of the documented shape.

        Raises the typed errors of docs/errors.md; IN_DOUBT means: send the same batch again.
        """
        self._check_open()
        return await self._writing.write(batch, model.LOCAL_PRINCIPAL)

    async def outcome(self, key: str, *, space: str = DEFAULT_SPACE) -> model.Outcome:
        """What is known of an idempotency key: accepted (with the result), never, or unknown."""
        self._check_open()
        return await self._writing.outcome(parse_name(space, "space"), parse_key(key, "key"), model.LOCAL_PRINCIPAL)

    # -- reading

    async def get(
        self,
        ids: Id | Sequence[Id],
        *,
        space: str = DEFAULT_SPACE,
        policy: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Page:
        """Atoms by id: heads, or as of `at` / `as_of`, or one `revision`. NOT_FOUND for a single one that is absent."""
        selector = parse_ids(id_list(ids), revision, home=_home(space, policy))
        if options:
            return await self.read(selector, **options)
        self._check_open()
        return await self._reader.read(selector)

    async def history(self, atom: Id, *, space: str = DEFAULT_SPACE, policy: str | None = None, **options: Any) -> Page:
        """Every revision of an atom, oldest first."""
        return await self.read({"type": "history", "atom": atom}, space=space, policy=policy, **options)

    async def relations(
        self,
        *,
        target: Id | None = None,
        of: Id | None = None,
        role: str | None = None,
        space: str = DEFAULT_SPACE,
        policy: str | None = None,
        **options: Any,
    ) -> Page:
        """The atoms that refer to `target` (in `role`), or those that `of` refers to."""
        if (target is None) == (of is None):
            raise invalid("relations", "give either target or of")
        selector: dict[str, Any] = {"type": "slots", "atom": of}
        if of is None:
            selector = {"type": "relations", "target": target} | ({} if role is None else {"role": role})
        elif role is not None:
            raise invalid("role", "goes with target, not with of")
        return await self.read(selector, space=space, policy=policy, **options)

    async def members(
        self,
        group: Id,
        *,
        and_: Id | Sequence[Id] = (),
        or_: Id | Sequence[Id] = (),
        not_: Id | Sequence[Id] = (),
        include_retired: bool = False,
        space: str = DEFAULT_SPACE,
        policy: str | None = None,
        **options: Any,
    ) -> Page:
        """Members of (group ∪ or_…) ∩ and_… ∖ not_…, by order key and then atom id."""
        selector = {
            "type": "members",
            "group": group,
            "and": id_list(and_),
            "or": id_list(or_),
            "not": id_list(not_),
            "include_retired": include_retired,
        }
        return await self.read(selector, space=space, policy=policy, **options)

    async def groups(
        self, member: Id, *, space: str = DEFAULT_SPACE, policy: str | None = None, **options: Any
    ) -> Page:
        """The groups that an atom is a member of."""
        return await self.read({"type": "groups", "member": member}, space=space, policy=policy, **options)

    async def recall(
        self,
        text: str | None = None,
        *,
        context: str | None = None,
        reasoning: str | None = None,
        vectors: Mapping[str, Sequence[float]] | None = None,
        scope: Mapping[str, Any] | None = None,
        limit: int = 10,
        space: str = DEFAULT_SPACE,
        policy: str | None = None,
        **options: Any,
    ) -> Page:
        """Atoms by natural language (or by query vectors), most relevant first, by `cosine-max-v1`."""
        asked = {"text": text, "context": context, "reasoning": reasoning, "vectors": vectors, "scope": scope}
        selector = {"type": "recall", **{name: value for name, value in asked.items() if value is not None}}
        return await self.read(selector, space=space, policy=policy, limit=limit, **options)

    async def read(
        self,
        selector: Selector | Mapping[str, Any],
        *,
        space: str = DEFAULT_SPACE,
        policy: str | None = None,
        consistency: str | None = None,
        at: int | Mapping[int, int] | None = None,
        as_of: str | None = None,
        at_least: model.WriteReceipt | Mapping[str, Any] | None = None,
        limit: int | None = None,
        continuation: str | None = None,
        timeout_s: float | None = None,
        session: str | None = None,
    ) -> Page:
        """A page of what a selector asks for. `space` and `policy` say where `key:TEXT` is computed.

        `at`: a position of the atom's own partition, or partition → position. `as_of`: RFC 3339 with offset.
        `at_least`: a write receipt to wait for.
        """
        self._check_open()
        home = _home(space, policy)
        parsed = selector if isinstance(selector, Selector) else parse_selector(selector, home=home)
        options = ReadOptions(
            consistency=consistency,
            at=at,
            as_of_us=None if as_of is None else parse_time(as_of, "as_of"),
            at_least=None if at_least is None else positions_of(at_least),
            limit=limit,
            continuation=continuation,
            timeout_ms=timeout_ms(timeout_s),
            session=session,
        )
        return await self._reader.read(parsed, options)

    async def receipt(self, receipt: str | ReadReceipt) -> ReadReceipt:
        """A receipt by its id. RECEIPT_EXPIRED when it is not kept (any more), LOG_MISMATCH when another log's."""
        self._check_open()
        return await self._reader.receipt(receipt_id(receipt))

    async def replay(self, receipt: str | ReadReceipt) -> Page:
        """The page of a receipt again, the same bytes, without searching."""
        self._check_open()
        return await self._reader.replay(receipt_id(receipt))

    async def verify_receipt(self, receipt: str | ReadReceipt) -> Any:
        """Search again at the receipt's positions and report the overlap."""
        self._check_open()
        return await self._reader.verify(receipt_id(receipt))

    async def quote(
        self, atom: Id, n: int = 0, *, space: str = DEFAULT_SPACE, policy: str | None = None, **options: Any
    ) -> Quote:
        """The exact text of the n-th origin of an atom, from the source revision it was taken from.

        Raises INVALID_INPUT when there is no such origin, CORRUPT when the bytes are not those that were cited.
        """
        row = (await self.get(atom, space=space, policy=policy, **options)).atoms[0]
        if type(n) is not int or not 0 <= n < len(row.origins):
            raise invalid("n", f"the atom has {len(row.origins)} origins, counted from 0")
        origin = row.origins[n]
        source = await source_of(self._views, origin.revision, None if self._routed is None else self._routed.revision)
        return await read_quote(self._parts.content, source, origin)

    # -- for operators

    async def status(self) -> Status:
        """Per partition: end, term, owner, batches. Per projection: position, lag, health."""
        self._check_open()
        return await store_status(self._parts, self._writing, self._views)

    async def wait_until_current(self, timeout_s: float = 10.0) -> None:
        """Until every projection of this process has applied what the log holds now; INDEX_LAGGING otherwise."""
        self._check_open()
        log = self._parts.log
        ends = {partition: await log.end(partition) - 1 for partition in range(self.config.partitions)}
        wait_ms = timeout_ms(timeout_s)
        deadline_us = self._parts.machine.clock.monotonic_us() + (0 if wait_ms is None else wait_ms) * 1_000
        for view in self._views.values():
            await view.wait_for({partition: ends[partition] for partition in view.held}, deadline_us)

    async def rebuild(
        self,
        names: Sequence[str] | None = None,
        *,
        swap: bool = True,
        force: bool = False,
        progress: "Progress | None" = None,
    ) -> "list[RebuildReport]":
        """Build projections anew beside the live ones, compare, and exchange; `swap` False only compares.

        One report each; `first_error` of `atomlog.consumers.rebuild` says what is wrong in them.
        """
        from atomlog.consumers.rebuild import rebuild  # few processes ever do

        self._check_open()
        parts = self._parts
        reports = await rebuild(
            parts.directory,
            names,
            swap=bool(swap),
            force=bool(force),
            settings=parts.settings,
            master_key_file=self._master_key_file,
            progress=progress,
            on_event=parts.on_event,
            files=parts.machine.files,
        )
        deadline_us = parts.machine.clock.monotonic_us() + parts.settings.read_timeout_ms * 1_000
        for report in reports:
            if report.swapped and report.name in self._views.broken:
                await self._views.attach(report.name)
            elif report.generation is not None and report.name in self._views:
                await self._views[report.name].wait_for_generation(report.generation, deadline_us)
        return reports

    async def verify(
        self, names: Sequence[str] | None = None, *, progress: "Progress | None" = None
    ) -> "list[RebuildReport]":
        """`rebuild` without exchanging anything."""
        return await self.rebuild(names, swap=False, progress=progress)

    async def content_digest(self) -> str:
        """A digest of all content and its history that two stores share which were fed the same, in hex."""
        from atomlog.consumers.content_digest import content_digest

        self._check_open()
        async with self._views.need("ids").pinned() as ids:
            assert isinstance(ids, Ids)
            return await content_digest(ids, self._parts.content, self._views.need("ids").positions())

    async def export(
        self,
        directory: str | PurePath,
        *,
        at: int | Mapping[int, int] | None = None,
        as_of: str | None = None,
        tables: Sequence[str] | None = None,
        progress: "Progress | None" = None,
    ) -> "ExportReport":
        """Write the store's tables as Parquet files, as of one position vector; the log's end unless given.

        A killed export is finished by the same call. Raises what `export_store` of `atomlog.consumers.export.job` does.
        """
        from atomlog.consumers.export.job import export_store  # few processes ever do

        self._check_open()
        return await export_store(
            self._parts,
            self._views,
            checked_path(directory, "directory"),
            positions=everywhere(at, self.config.partitions),
            time_us=None if as_of is None else parse_time(as_of, "as_of"),
            tables=tables,
            progress=progress,
        )

    async def log_dump(self, partition: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Every record with its verdict: effective, or void and why."""
        from atomlog.consumers.log_dump import log_dump

        self._check_open()
        numbers = range(self.config.partitions) if partition is None else (partition,)
        for number in numbers:
            if type(number) is not int or not 0 <= number < self.config.partitions:
                raise invalid("partition", f"{shown(number)}: the store has {self.config.partitions}, counted from 0")
            async for record in log_dump(self._parts.log, self.config.genesis(number), number):
                yield record

    def _check_open(self) -> None:
        if self._process != process_id():
            raise forked()
        if self._closed:
            raise invalid("store", "the store is closed")
        self._check_loop()

    def _check_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise invalid(
                "store", "it was opened in another event loop; use it there, or open a Store, which has its own"
            )


def _home(space: str, policy: str | None) -> KeyHome:
    """Where keys are computed. INVALID_INPUT for what is no name."""
    if space == DEFAULT_SPACE and policy is None:
        return DEFAULT_HOME
    return KeyHome(space=parse_name(space, "space"), policy=None if policy is None else parse_name(policy, "policy"))


async def _make_node(path: str, machine: Machine, **asked: Any) -> StoreConfig:
    from atomlog.consumers.cluster.creation import create_node
    from atomlog.consumers.cluster.founding import NodeRequest

    unknown = sorted(asked.keys() - set(NodeRequest.__slots__))
    if unknown:
        raise invalid(unknown[0], f"there is no such argument; there are {', '.join(NodeRequest.__slots__)}")
    return (await create_node(path, NodeRequest(**asked), machine=machine)).config


def forked() -> AtomlogError:
    """INVALID_INPUT: its locks, threads and connections are those of the process that opened it."""
    return invalid("store", "it was opened by the process that this one was forked from; open it anew here")
