"""How far behind a projection is: in records exactly, in seconds by the first batch that is not applied."""

from typing import Final

from atomlog.consumers.context import Context, Lag
from atomlog.kernel.times import TIME_MAX_US
from atomlog.schemas.batch import FIXED, RECORDED_AT
from atomlog.schemas.codec import HEAD_BYTES
from atomlog.schemas.record import Record
from atomlog.schemas.revision import time_of

_READ_BYTES: Final = 64 * 1024  # where to look for the first batch; Claims and Fences between batches are small


class LagMeter:
    """Measures one projection. The time of a waiting batch is read once, not at each question."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._times: dict[int, tuple[int, int | None]] = {}  # partition → (next position, time of its first batch)

    async def measure(self, partition: int, next_position: int) -> Lag:
        """The lag of a partition that applies `next_position` next."""
        end = await self._context.log.end(partition)
        records = max(0, end - next_position)
        waiting_us = await self._waiting_since(partition, next_position) if records else None
        age_us = 0 if waiting_us is None else max(0, self._context.clock.now_us() - waiting_us)
        return Lag(position=next_position - 1, end=end, records=records, seconds=age_us / 1_000_000)

    async def _waiting_since(self, partition: int, position: int) -> int | None:
        known = self._times.get(partition)
        if known is not None and known[0] == position and known[1] is not None:
            return known[1]
        found = await self._context.log.read(partition, position, bytes_max=_READ_BYTES)
        time_us = next((time for one in found if (time := _recorded_at(one.record)) is not None), None)
        self._times[partition] = position, time_us
        return time_us


def _recorded_at(record: object) -> int | None:
    """When a batch was recorded, sliced out of it; None for any other record."""
    if not isinstance(record, Record) or record.kind != "Batch" or len(record.value) < HEAD_BYTES + FIXED:
        return None
    time_us = time_of(record.value[HEAD_BYTES + RECORDED_AT.start : HEAD_BYTES + RECORDED_AT.stop])
    return time_us if 0 <= time_us <= TIME_MAX_US else None  # whoever wrote that, it is no time
