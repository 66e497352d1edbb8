"""The chain at a position: the hash over everything effective up to it, which a receipt carries.

An index that stands at the position knows it. For an earlier one, the record there (or the nearest batch before it)
carries it, and the rest is folded by the commit rule from that batch on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.commit_rule import CommitState, Genesis
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ports import Log, LogRecord
from atomlog.kernel.tail import START, Checkpoint, EffectiveRecord, Tail
from atomlog.projections.ids import Ids
from atomlog.projections.read.indexes import Standing
from atomlog.schemas.record import ZERO16, Record

LOOK_BACK: Final = 32  # records looked at before a position; eight times as many each further time
READ_BYTES: Final = 1024 * 1024
RETRY_MS: Final = 1_000


@dataclass(slots=True)
class Chains:
    """Chains of one log, as of any position that `ids` has applied."""

    log: Log

    async def at(self, positions: Mapping[int, int], standings: Sequence[Standing], ids: Ids) -> dict[int, bytes]:
        """Partition → chain. Zeros before the first record."""
        chains: dict[int, bytes] = {}
        for partition, position in positions.items():
            known = _known(partition, position, standings)
            chains[partition] = await self._folded(partition, position, ids) if known is None else known
        return chains

    async def _folded(self, partition: int, position: int, ids: Ids) -> bytes:
        genesis = Genesis(log_id=self.log.log_id, partition=partition, partitions=self.log.partitions)
        tail = Tail(log=self.log, genesis=genesis, checkpoint=await self._start(partition, position, ids))
        while tail.checkpoint.position <= position:
            before = tail.checkpoint.position
            await tail.poll(until=position + 1)
            if tail.checkpoint.position == before:
                await self.log.read(partition, position + 1, bytes_max=1)  # LOG_DIVERGED where it was rolled back
                message = f"partition {partition}: the log shows no more than {before} records until its owner has"
                message += f" looked, as after a power cut, so position {position} cannot be proved yet;"
                raise fail("OVERLOADED", f"{message} write once, or read again later", retry_after_ms=RETRY_MS)
        return tail.checkpoint.state.chain

    async def _start(self, partition: int, position: int, ids: Ids) -> Checkpoint:
        """The state after the nearest batch at or before a position that is known to count."""
        reach = 1
        while True:
            first = max(position - reach + 1, 0)
            for found in reversed(await self._records(partition, first, position)):
                checkpoint = _after(found, partition, ids)
                if checkpoint is not None:
                    return checkpoint
            if first == 0:
                return START
            reach *= LOOK_BACK if reach == 1 else 8

    async def _records(self, partition: int, first: int, last: int) -> list[LogRecord]:
        """The records [first, last]."""
        found: list[LogRecord] = []
        while first + len(found) <= last:
            more = await self.log.read(partition, first + len(found), bytes_max=1 if first == last else READ_BYTES)
            if not more:
                break
            found += more
        return found[: last - first + 1]


def _known(partition: int, position: int, standings: Sequence[Standing]) -> bytes | None:
    if position < 0:
        return ZERO16
    for standing in standings:
        if standing.applied(partition) == position:
            return standing.checkpoints[partition].state.chain
    return None


def _after(found: LogRecord, partition: int, ids: Ids) -> Checkpoint | None:
    """The state after a record, if it is a batch that ids applied: then it counted, and its chain was checked."""
    record = found.record
    if not isinstance(record, Record) or record.kind != "Batch":
        return None
    try:
        batch = EffectiveRecord(position=found.position, record=record, chain=record.chain).batch()
    except AtomlogError:
        return None  # a void record may hold anything
    if ids.position_at(partition, batch.recorded_at_us) != found.position:
        return None
    state = CommitState(term=record.term, owner=record.owner, next_seq=record.seq + 1, chain=record.chain)
    return Checkpoint(position=found.position + 1, state=state)
