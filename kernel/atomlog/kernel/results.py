"""The result of an accepted write, from its batch as it stands in the log."""

from typing import NamedTuple

from atomlog.kernel import model
from atomlog.kernel.decide import mismatch
from atomlog.kernel.errors import fail
from atomlog.kernel.heads import HeadView
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.ports import Log
from atomlog.kernel.sealing import request_digest, request_key
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas.batch import Batch
from atomlog.schemas.record import Record
from atomlog.schemas.revision import ATOM, REVISION


def write_result(
    request: model.WriteRequest, partition: int, batch: Batch, record: EffectiveRecord, *, replayed: bool = False
) -> model.WriteResult:
    """Revisions stand in the batch in the order of the changes; aliases come from the request, which has the same.

    A record of an inbox that is carried out a second time has the result that it had the first time, to the byte.
    """
    aliases = [change.alias for change in request.changes] or [None] * len(batch.revisions)
    results = tuple(
        model.ChangeResult(alias=alias, atom=revision[ATOM], revision=revision[REVISION])
        for alias, revision in zip(aliases, batch.revisions, strict=True)
    )
    receipt = model.WriteReceipt(
        space=batch.space, partition=partition, position=record.position, term=record.record.term, chain=record.chain
    )
    return model.WriteResult(results=results, receipt=receipt, replayed=replayed and request.repeats(batch.inbox))


async def read_effective(log: Log, partition: int, position: int) -> EffectiveRecord:
    """A record that is known to be effective, by its position. CORRUPT when the log has another thing there."""
    found = await log.read(partition, position, bytes_max=1)
    record = found[0].record if found else None
    if not isinstance(record, Record):
        raise fail("CORRUPT", f"partition {partition}, position {position}: the record that was applied is gone")
    return EffectiveRecord(position=position, record=record, chain=record.chain)


class Digests(NamedTuple):
    """What a request is recognised by: its name and its content, under the digest key of its space."""

    key_id: bytes
    request_key: bytes
    request_digest: bytes


def digests_of(request: model.WriteRequest, principal: str, key_id: bytes, key: bytes) -> Digests:
    return Digests(key_id, request_key(key, principal, request.idempotency_key), request_digest(key, request.canonical))


class Stored:
    """Results of requests that were accepted before, as the heads say and the log holds them."""

    def __init__(self, settled: HeadView, partition: int, log: Log, ring: KeyRing) -> None:
        self._settled = settled
        self._partition = partition
        self._log = log
        self._ring = ring

    async def digests(self, request: model.WriteRequest, principal: str) -> Digests | None:
        """The digests of a request; None when its space has no digest key, so that nothing of it was accepted."""
        key_id = self._settled.digest_key(self._partition, request.space)
        if key_id is None:
            return None
        key = self._ring.key_now(key_id) or await self._ring.key(key_id)
        return digests_of(request, principal, key_id, key)

    async def find(
        self, request: model.WriteRequest, digests: Digests | None, *, same: bool = True
    ) -> model.WriteResult | None:
        """The result of a request among the records that are read back; takes nothing and changes nothing.

        IDEMPOTENCY_MISMATCH when the key came with another request, unless not `same`: then only the key counts.
        """
        accepted = None if digests is None else self._settled.request(self._partition, digests.request_key)
        if digests is None or accepted is None:
            return None
        if same and accepted.digest != digests.request_digest:
            raise mismatch(request.idempotency_key)
        return await self._at(request, accepted.position)

    async def of_key(self, request: model.WriteRequest, request_key: bytes) -> model.WriteResult | None:
        """The same, of a request whose key is computed."""
        accepted = self._settled.request(self._partition, request_key)
        return None if accepted is None else await self._at(request, accepted.position)

    async def _at(self, request: model.WriteRequest, position: int) -> model.WriteResult:
        record = await read_effective(self._log, self._partition, position)
        return write_result(request, self._partition, record.batch(), record, replayed=True)
