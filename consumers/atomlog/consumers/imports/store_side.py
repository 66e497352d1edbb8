"""An import's view of an open store."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomlog.consumers.imports.build import MEMBER_ROLE, MEMBERSHIP_SCHEMA, value_sha256
from atomlog.consumers.imports.heads import Head, Membership, Memberships
from atomlog.consumers.imports.lines import KIND
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import partition_of
from atomlog.projections.read.page import Page, Row
from atomlog.projections.read.selectors import IDS_MAX, ByIds, Relations, Selector

PAGE_ROWS: Final = 1_000
WAIT_SECONDS: Final = 600.0  # for ids and relations: after a kill they may have much to catch up with
NOWHERE: Final = -1


class StoreSide:
    """Reads wait for every write that was made through this object, and for what `settle` found in the log.

    They wait for the indexes that they need, and for no other: embedding may be far behind.
    """

    def __init__(self, store: AsyncStore, space: str) -> None:
        self._store = store
        self._space = space
        self._partition = partition_of(space, store.config.partitions)
        self.position = -1

    async def accepted(self, key: str) -> bool:
        return (await self._store.outcome(key, space=self._space)).state == "accepted"

    async def heads(self, atoms: Sequence[bytes]) -> Mapping[bytes, Head]:
        found: dict[bytes, Head] = {}
        for start in range(0, len(atoms), IDS_MAX):
            selector = ByIds(ids=tuple(atoms[start : start + IDS_MAX]))
            for row in (await self._rows(selector))[0]:
                found[row.atom] = _head(row)
        return found

    async def memberships(self, member: bytes) -> Memberships:
        rows, position = await self._rows(Relations(target=member, role=MEMBER_ROLE))
        active = [row for row in rows if row.schema == MEMBERSHIP_SCHEMA and row.state == "active"]
        made = (Membership(atom=row.atom, revision=row.revision, imported=row.kind == KIND) for row in active)
        return Memberships(active=tuple(made), position=position)

    async def value(self, atom: bytes) -> Any:
        rows, _ = await self._rows(ByIds(ids=(atom,)))
        return rows[0].value if rows and rows[0].state == "active" else None

    async def write(self, batch: Mapping[str, Any]) -> None:
        receipt = (await self._store.write(batch)).receipt
        self.position = max(self.position, receipt.position)

    async def settle(self) -> None:
        end = (await self._store.status()).partitions[self._partition]["end"]
        self.position = max(self.position, end - 1)

    async def _rows(self, selector: Selector) -> tuple[list[Row], int]:
        """Every row of a read, and the read position of the import's partition; nothing for what is absent."""
        rows: list[Row] = []
        wanted = {"partition": self._partition, "position": self.position}
        try:
            page = await self._store.read(selector, limit=PAGE_ROWS, at_least=wanted, timeout_s=WAIT_SECONDS)
        except AtomlogError as error:
            if error.code != "NOT_FOUND":
                raise
            return [], NOWHERE
        position = page.receipt.positions[self._partition].position
        while True:
            rows += _readable(page)
            if page.continuation is None:
                return rows, position
            page = await self._store.read(
                selector, limit=PAGE_ROWS, continuation=page.continuation, timeout_s=WAIT_SECONDS
            )


def _readable(page: Page) -> Sequence[Row]:
    if any(row.sealed for row in page.atoms):
        message = "an import compares with what the store says, and its content is sealed: give --master-key FILE"
        raise fail("KEY_UNAVAILABLE", message)
    return page.atoms


def _head(row: Row) -> Head:
    return Head(
        revision=row.revision,
        retired=row.state == "retired",
        schema=row.schema,
        value_sha256=value_sha256(row.value),
        valid_from_us=None if row.valid_time is None else row.valid_time.from_us,
        valid_to_us=None if row.valid_time is None else row.valid_time.to_us,
    )
