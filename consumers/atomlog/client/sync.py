"""`Store`: the store for programs without an event loop. One background thread runs the asynchronous one."""

import asyncio
import os
import selectors
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

from atomlog.consumers.processes import process_id
from atomlog.consumers.quote import Quote
from atomlog.consumers.status import Status
from atomlog.consumers.store import AsyncStore, forked
from atomlog.consumers.store_arguments import Id
from atomlog.consumers.store_config import StoreConfig
from atomlog.consumers.writing import RawBatch
from atomlog.kernel.ids import invalid
from atomlog.kernel.model import Outcome, WriteResult
from atomlog.projections.read.page import Page
from atomlog.projections.read.receipts import ReadReceipt

if TYPE_CHECKING:
    from atomlog.consumers.export.job import ExportReport
    from atomlog.consumers.rebuild_job import RebuildReport

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._loop.run_forever, name="atomlog-store", daemon=True)
        self._thread.start()
        self._changing = threading.Lock()
        self._closed = False
        self._process = process_id()
        _LOOPS.add(self)

    @property
    def is_of_this_process(self) -> bool:
        """False in a child that was forked since: threads stay with the parent."""
        return self._process == process_id()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; an interrupt here cancels it there.

        INVALID_INPUT after `close`, and in a forked child.
        """
        if not self.is_of_this_process:
            work.close()
            raise forked()
        with self._changing:
            if self._closed:
                work.close()
                raise invalid("store", "the store is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread. What other threads still wait for is cancelled, so that they do not wait for ever."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_the_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def let_go(self) -> None:
        """In a forked child: what it inherited watches the parent's sockets, and cleaning up would end that."""
        if not self._closed and hasattr(self._selector, "fileno"):
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, self._selector.fileno(), inheritable=False)
            os.close(nothing)


_LOOPS: Final[WeakSet[_Loop]] = WeakSet()


def _let_go() -> None:
    for loop in list(_LOOPS):
        loop.let_go()


os.register_at_fork(after_in_child=_let_go)


class Store:
    """An open store. Methods, arguments and errors are those of `AsyncStore`; safe to use from several threads."""

    def __init__(self, loop: _Loop, store: AsyncStore) -> None:
        """Use `open`."""
        self._loop = loop
        self._store = store
        self._closed = False

    @classmethod
    def init(cls, directory: str | PurePath, **options: Any) -> StoreConfig:
        """Make a store in an absent or empty directory. See `AsyncStore.init`."""
        loop = _Loop()
        try:
            return loop.run(AsyncStore.init(directory, **options))
        finally:
            loop.close()

    @classmethod
    def open(cls, directory: str | PurePath, **options: Any) -> "Store":
        """Open a store, making it when the directory is absent or empty. See `AsyncStore.open`."""
        loop = _Loop()
        try:
            return cls(loop, loop.run(_opened(directory, options)))
        except BaseException:
            loop.close()
            raise

    @classmethod
    def kafka(cls, bootstrap: str, *, data: str | PurePath, **options: Any) -> "Store":
        """Open a node of the store on these brokers, making or joining it first. See `AsyncStore.kafka`."""
        loop = _Loop()
        try:
            return cls(loop, loop.run(_joined(bootstrap, data, options)))
        except BaseException:
            loop.close()
            raise

    def close(self) -> None:
        """Answer what is in hand, make everything durable, release every lock."""
        if not self._closed:
            self._closed = True
            if not self._loop.is_of_this_process:
                return  # everything is the parent's
            try:
                self._loop.run(self._store.close())
            finally:
                self._loop.close()

    @property
    def directory(self) -> str:
        return self._store.directory

    @property
    def config(self) -> StoreConfig:
        return self._store.config

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batch: RawBatch) -> WriteResult:
        """Write one batch, all of it or nothing."""
        return self._loop.run(self._store.write(batch))

    def outcome(self, key: str, **where: Any) -> Outcome:
        """What is known of an idempotency key."""
        return self._loop.run(self._store.outcome(key, **where))

    def get(self, ids: Id | Sequence[Id], **options: Any) -> Page:
        """Atoms by id."""
        return self._loop.run(self._store.get(ids, **options))

    def history(self, atom: Id, **options: Any) -> Page:
        """Every revision of an atom, oldest first."""
        return self._loop.run(self._store.history(atom, **options))

    def relations(self, **options: Any) -> Page:
        """The atoms that refer to `target`, or those that `of` refers to."""
        return self._loop.run(self._store.relations(**options))

    def members(self, group: Id, **options: Any) -> Page:
        """Members of a group, with set algebra."""
        return self._loop.run(self._store.members(group, **options))

    def groups(self, member: Id, **options: Any) -> Page:
        """The groups that an atom is in."""
        return self._loop.run(self._store.groups(member, **options))

    def recall(self, text: str | None = None, **options: Any) -> Page:
        """Atoms by natural language or by query vectors."""
        return self._loop.run(self._store.recall(text, **options))

    def read(self, selector: Mapping[str, Any], **options: Any) -> Page:
        """A page of what a selector asks for."""
        return self._loop.run(self._store.read(selector, **options))

    def receipt(self, receipt: str | ReadReceipt) -> ReadReceipt:
        """A receipt by its id."""
        return self._loop.run(self._store.receipt(receipt))

    def replay(self, receipt: str | ReadReceipt) -> Page:
        """The page of a receipt again, the same bytes."""
        return self._loop.run(self._store.replay(receipt))

    def verify_receipt(self, receipt: str | ReadReceipt) -> Any:
        """Search again at a receipt's positions and report the overlap."""
        return self._loop.run(self._store.verify_receipt(receipt))

    def quote(self, atom: Id, n: int = 0, **options: Any) -> Quote:
        """The exact text of the n-th origin of an atom."""
        return self._loop.run(self._store.quote(atom, n, **options))

    def status(self) -> Status:
        """Where each partition and projection stands."""
        return self._loop.run(self._store.status())

    def wait_until_current(self, timeout_s: float = 10.0) -> None:
        """Until every projection has applied what the log holds now."""
        self._loop.run(self._store.wait_until_current(timeout_s))

    def rebuild(self, names: Sequence[str] | None = None, **options: Any) -> "list[RebuildReport]":
        """Build projections anew beside the live ones, compare, and exchange."""
        return self._loop.run(self._store.rebuild(names, **options))

    def verify(self, names: Sequence[str] | None = None, **options: Any) -> "list[RebuildReport]":
        """`rebuild` without exchanging anything."""
        return self._loop.run(self._store.verify(names, **options))

    def content_digest(self) -> str:
        """A digest of all content and its history that two stores share which were fed the same, in hex."""
        return self._loop.run(self._store.content_digest())

    def export(self, directory: str | PurePath, **options: Any) -> "ExportReport":
        """Write the store's tables as Parquet files, as of one position vector."""
        return self._loop.run(self._store.export(directory, **options))

    def log_dump(self, partition: int | None = None) -> Iterator[dict[str, Any]]:
        """Every record with its verdict: effective, or void and why."""
        records = self._store.log_dump(partition)
        while (record := self._loop.run(_next(records))) is not None:
            yield record


async def _joined(bootstrap: str, data: str | PurePath, options: Mapping[str, Any]) -> AsyncStore:
    return await AsyncStore.kafka(bootstrap, data=data, **options)


async def _opened(directory: str | PurePath, options: Mapping[str, Any]) -> AsyncStore:
    return await AsyncStore.open(directory, **options)


async def _next(records: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(records, None)


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
