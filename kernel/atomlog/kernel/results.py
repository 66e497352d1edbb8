"""The result of an accepted write, from its batch as it stands in the log."""

from atomlog.kernel import model
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Log
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas.batch import Batch
from atomlog.schemas.record import Record
from atomlog.schemas.revision import ATOM, REVISION


def write_result(
    request: model.WriteRequest, partition: int, batch: Batch, record: EffectiveRecord, *, replayed: bool = False
) -> model.WriteResult:
    """Revisions stand in the batch in the order of the changes; aliases come from the request, which has the same."""
    aliases = [change.alias for change in request.changes] or [None] * len(batch.revisions)
    results = tuple(
        model.ChangeResult(alias=alias, atom=revision[ATOM], revision=revision[REVISION])
        for alias, revision in zip(aliases, batch.revisions, strict=True)
    )
    receipt = model.WriteReceipt(
        space=batch.space, partition=partition, position=record.position, term=record.record.term, chain=record.chain
    )
    return model.WriteResult(results=results, receipt=receipt, replayed=replayed)


async def read_effective(log: Log, partition: int, position: int) -> EffectiveRecord:
    """A record that is known to be effective, by its position. CORRUPT when the log has another thing there."""
    found = await log.read(partition, position, bytes_max=1)
    record = found[0].record if found else None
    if not isinstance(record, Record):
        raise fail("CORRUPT", f"partition {partition}, position {position}: the record that was applied is gone")
    return EffectiveRecord(position=position, record=record, chain=record.chain)
