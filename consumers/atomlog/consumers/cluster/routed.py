"""The reads of a store whose directory may lack partitions: answered here where they can be, else by other nodes."""

from collections.abc import Collection, Sequence
from typing import Protocol

from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.reading import Elsewhere
from atomlog.consumers.cluster.reports import Heard, NodeReport
from atomlog.consumers.cluster.shared import Shared
from atomlog.projections.read.elsewhere import NotHeld
from atomlog.projections.read.page import Page
from atomlog.projections.read.plans import names_of
from atomlog.projections.read.reader import DEFAULTS, Reader, ReadOptions
from atomlog.projections.read.receipts import ReadReceipt
from atomlog.projections.read.replay import Verification
from atomlog.projections.read.selectors import Selector


class Hearing(Protocol):
    """What every process of the store said last."""

    async def heard(self) -> Sequence[Heard]: ...
    async def close(self) -> None: ...


class HeardNodes:
    """Implements `Directory` by the control topic: of several processes that listened at one place the last counts."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    async def nodes(self) -> Sequence[NodeReport]:
        by_endpoint: dict[str, Heard] = {}
        for one in await self._hearing.heard():
            known = by_endpoint.get(one.report.endpoint)
            if one.report.endpoint and (known is None or known.at_us < one.at_us):
                by_endpoint[one.report.endpoint] = one
        return [one.report for one in by_endpoint.values()]


class RoutedReader:
    """What a `Reader` does, and asks others. `here`: the projections that this process has."""

    def __init__(
        self,
        reader: Reader,
        elsewhere: Elsewhere,
        here: Collection[str],
        *,
        connections: Connections | None = None,
        hearing: Hearing | None = None,
    ) -> None:
        """`connections` and `hearing` are closed with it."""
        self._reader = reader
        self._elsewhere = elsewhere
        self._here = here
        self._connections = connections
        self._hearing = hearing

    @classmethod
    def of(cls, shared: Shared, reader: Reader, here: Collection[str]) -> "RoutedReader":
        """For a node of a shared store. Listens and connects only when a read needs it."""
        connections, hearing = shared.connections(), shared.owners()
        timeout_ms = reader.settings.node_call_timeout_ms
        elsewhere = Elsewhere(reader, HeardNodes(hearing), connections, call_timeout_ms=timeout_ms)
        return cls(reader, elsewhere, here, connections=connections, hearing=hearing)

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()
        if self._hearing is not None:
            await self._hearing.close()

    async def read(self, selector: Selector, options: ReadOptions = DEFAULTS) -> Page:
        """See `Reader.read`; NotHeld when no node that can be reached has what it needs."""
        if options.continuation is not None and (page := await self._elsewhere.resume(selector, options)) is not None:
            return page
        try:
            self._check_here(names_of(selector))
            return await self._reader.read(selector, options)
        except NotHeld as lacking:
            return await self._elsewhere.read(lacking, selector, options)

    async def receipt(self, receipt_id: bytes) -> ReadReceipt:
        return await self._reader.receipt(receipt_id)

    async def replay(self, receipt_id: bytes) -> Page:
        """See `Reader.replay`. Revisions that are not here come from a node that has them."""
        try:
            self._check_here(("ids",))
            return await self._reader.replay(receipt_id)
        except NotHeld as lacking:
            return await self._elsewhere.replay(lacking, await self._reader.receipt(receipt_id))

    async def verify(self, receipt_id: bytes) -> Verification:
        """See `Reader.verify`. Another node searches again where this one cannot."""
        try:
            self._check_here(("ids",))
            return await self._reader.verify(receipt_id)
        except NotHeld as lacking:
            return await self._elsewhere.verify(lacking, receipt_id)

    async def revision(self, revision: bytes) -> bytes | None:
        """The bytes of a revision that ids does not have here, from a node that does; None when nobody has it."""
        everywhere = range(self._reader.log.partitions)
        lacking = NotHeld({"ids": list(everywhere)}, {"ids": list(everywhere)})
        return (await self._elsewhere.revisions(lacking, [revision]))[0]

    def _check_here(self, names: tuple[str, ...]) -> None:
        """An index that this process has not at all lacks every partition."""
        everywhere = list(range(self._reader.log.partitions))
        lacking = {name: everywhere for name in names if name not in self._here}
        if lacking:
            raise NotHeld(lacking, dict.fromkeys(names, everywhere))
