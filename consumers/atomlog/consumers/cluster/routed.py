"""The reads of a store whose directory may lack partitions: answered here where they can be, else by other nodes."""

from collections.abc import Collection

from atomlog.consumers.cluster.reading import Elsewhere
from atomlog.projections.read.elsewhere import NotHeld
from atomlog.projections.read.page import Page
from atomlog.projections.read.plans import names_of
from atomlog.projections.read.reader import DEFAULTS, Reader, ReadOptions
from atomlog.projections.read.receipts import ReadReceipt
from atomlog.projections.read.replay import Verification
from atomlog.projections.read.selectors import Selector


class RoutedReader:
    """What a `Reader` does, and asks others. `here`: the projections that this process has."""

    def __init__(self, reader: Reader, elsewhere: Elsewhere, here: Collection[str]) -> None:
        self._reader = reader
        self._elsewhere = elsewhere
        self._here = here

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
