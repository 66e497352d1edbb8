"""The projections of an open store: opened together, leased to reads, and told apart when one is broken.

One that cannot be opened fails alone: the store opens, writes go on, and only reads that need it are refused, in the
words of its own error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from atomlog.consumers.attachment import Attachment
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.handles import Handle
from atomlog.consumers.parts import Parts, projection_kind
from atomlog.consumers.views import describe_broken
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.model import Positions
from atomlog.projections.read.indexes import VECTORS, IndexSet

OPEN_SECONDS: Final = 10.0
TURN_US: Final = 2_000  # for how long reads that follow one another at once may keep the event loop
ALONE: Final = ("CORRUPT", "STORE_TOO_NEW")  # what is wrong with one projection, and says nothing of the others


class OpenIndexes(Mapping[str, Attachment]):
    """Name → projection of this process; `broken` has those that could not be opened, and why."""

    def __init__(self, parts: Parts, *, may_follow: bool) -> None:
        """Use `open`."""
        self.broken: dict[str, AtomlogError] = {}
        self._parts = parts
        self._may_follow = may_follow
        self._opened: dict[str, Attachment] = {}
        self._turn_us = 0  # when the rest of the event loop last had its turn
        self._sets: dict[tuple[str, ...], tuple[tuple[Handle, ...], IndexSet]] = {}  # of the last lease of these names

    @classmethod
    async def open(cls, parts: Parts, names: Sequence[str], *, may_follow: bool) -> "OpenIndexes":
        """Follow each projection if nobody else does and `may_follow`, else read beside the follower."""
        indexes = cls(parts, may_follow=may_follow)
        async with AsyncExitStack() as opening:
            opening.push_async_callback(indexes.close)
            for name in names:
                await indexes.attach(name)
            opening.pop_all()
        return indexes

    async def attach(self, name: str) -> None:
        """Open one projection; one that is broken by itself is noted and said."""
        parts = self._parts
        deadline_us = parts.machine.clock.monotonic_us() + int(OPEN_SECONDS * 1_000_000)
        directory = GenerationDirectory(parts.machine.files, parts.directory, name, parts.on_event)
        self.broken.pop(name, None)
        try:
            self._opened[name] = await Attachment.open(
                parts.context,
                directory,
                projection_kind(parts, name),
                deadline_us=deadline_us,
                may_follow=self._may_follow,
            )
        except AtomlogError as error:
            if error.code not in ALONE:
                raise
            self.broken[name] = error
            parts.on_event({"event": "projection_broken", "projection": name, "error": error.to_dict()})

    async def settle(self) -> None:
        """Let what this process follows apply what the log holds now, for as long as a read would wait."""
        parts = self._parts
        ends = {partition: await parts.log.end(partition) - 1 for partition in range(parts.config.partitions)}
        deadline_us = parts.machine.clock.monotonic_us() + parts.settings.read_timeout_ms * 1_000
        for name, view in self._opened.items():
            try:
                if view.follower is not None:
                    await view.wait_for({partition: ends[partition] for partition in view.held}, deadline_us)
            except AtomlogError as error:
                if error.code != "INDEX_LAGGING":
                    raise
                parts.on_event({"event": "opened_behind", "projection": name, "error": error.to_dict()})

    def need(self, name: str) -> Attachment:
        """A projection that this process opened; the error of a broken one, CONSISTENCY_UNAVAILABLE for no such."""
        if name in self.broken:
            raise self.broken[name]
        if name not in self._opened:
            raise fail("CONSISTENCY_UNAVAILABLE", f"this process has no {name} index; open the store with it")
        return self._opened[name]

    def __getitem__(self, name: str) -> Attachment:
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)

    def lease(self, names: Sequence[str]) -> "Lease":
        """The named indexes for one read: each stays open and the same until the read gives it back."""
        return Lease(self, tuple(names))

    async def pin(self, names: tuple[str, ...]) -> tuple[IndexSet, Sequence[Handle]]:
        """The named indexes as they are now, pinned; those that this process lacks are left out."""
        await self._give_turn()
        self.need("ids")
        views = [view for name in names if (view := self._opened.get(name)) is not None]
        for view in views:
            await view.catch_up()
        handles = tuple([view.pin() for view in views])
        known = self._sets.get(names)
        if known is not None and known[0] == handles:
            return known[1], handles
        made = self._index_set(handles)
        if VECTORS not in names:  # graphs in memory have to go when their generation does
            self._sets[names] = handles, made
        return made, handles

    async def _give_turn(self) -> None:
        """A read mostly waits for nothing: a caller that asks again at once would keep what it asks for from coming."""
        clock = self._parts.machine.clock
        if clock.monotonic_us() - self._turn_us >= TURN_US:
            await clock.sleep(0)
            self._turn_us = clock.monotonic_us()

    def _index_set(self, handles: Sequence[Handle]) -> IndexSet:
        found: dict[str, Any] = {handle.projection.name: handle.projection for handle in handles}
        partitions = self._parts.config.partitions
        return IndexSet(
            ids=found["ids"],
            relations=found.get("relations"),
            postings=found.get("postings"),
            vectors=found.get("vectors"),
            generations={handle.projection.name: handle.generation.name for handle in handles},
            broken=self.broken,
            held={handle.projection.name: handle.held for handle in handles if len(handle.held) < partitions},
        )

    async def catch_up(self, names: Sequence[str], positions: Positions, deadline_us: int) -> None:
        """Until the named indexes have applied these positions, or the deadline: the read says which is behind.

        Raises INDEX_LAGGING with the reason for one that stands still: repeating the read does not help then.
        """
        for name in names:
            try:
                await self.need(name).wait_for(positions, deadline_us)
            except AtomlogError as error:
                if error.code != "INDEX_LAGGING" or error.retry_after_ms is None:
                    raise
                return

    async def status(self, revisions: Positions) -> list[Mapping[str, Any]]:
        """An entry of `status` for each, as it is by now; a broken one has its error and no positions.

        `revisions`: how many there are in each partition, where that is known.
        """
        for view in self._opened.values():
            with suppress(AtomlogError):  # why it stands still is in its entry
                await view.catch_up()
        entries: list[Mapping[str, Any]] = []
        for view in self._opened.values():
            known = [revisions[partition] for partition in view.held if partition in revisions]
            entries.append(await view.status(sum(known) if len(known) == len(view.held) else None))
        for name, error in self.broken.items():
            entries.append(describe_broken(name, error))
        return entries

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            for view in self._opened.values():
                closing.push_async_callback(view.close)


class Lease:
    """The indexes of one read, pinned between entering and leaving."""

    __slots__ = ("_handles", "_indexes", "_names")

    def __init__(self, indexes: OpenIndexes, names: tuple[str, ...]) -> None:
        """Use `OpenIndexes.lease`."""
        self._indexes = indexes
        self._names = names
        self._handles: Sequence[Handle] = ()

    async def __aenter__(self) -> IndexSet:
        found, self._handles = await self._indexes.pin(self._names)
        return found

    async def __aexit__(self, *raised: object) -> None:
        for handle in self._handles:
            handle.unpin()
