"""How fast a disk fills: what a revision takes there, and how many were written lately."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.ports import Files, Log, LogRecord
from atomlog.schemas.batch import decode_batch
from atomlog.schemas.codec import HEAD_BYTES
from atomlog.schemas.record import Record
from atomlog.schemas.varint import WireError

RECORDS: Final = 256  # of a partition, the last ones, that count as lately
READ_BYTES: Final = 1024 * 1024
SPAN_US_MIN: Final = 3_600_000_000  # a burst of a few seconds is no rate
DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The last records of a partition: how many were looked at, their revisions, when the first batch was recorded."""

    records: int = 0
    revisions: int = 0
    since_us: int | None = None


async def recent_writes(log: Log, partition: int, end: int) -> Recent:
    """What was written lately before the next position `end`."""
    if end <= 0:
        return Recent()
    return counted(await log.read(partition, max(0, end - RECORDS), bytes_max=READ_BYTES))


def counted(records: Sequence[LogRecord]) -> Recent:
    """Void records count as records only."""
    revisions, since_us = 0, None
    for one in records:
        record = one.record
        if not isinstance(record, Record) or record.kind != "Batch":
            continue
        try:
            batch = decode_batch(record.value[HEAD_BYTES:])
        except WireError:  # void, or somebody else's
            continue
        revisions += len(batch.revisions)
        since_us = batch.recorded_at_us if since_us is None else min(since_us, batch.recorded_at_us)
    return Recent(records=len(records), revisions=revisions, since_us=since_us)


def revisions_estimated(parts: Iterable[tuple[Recent, int]]) -> int | None:
    """The revisions of partitions, given what was written lately and the next position of each; None = none."""
    found = sum(round(recent.revisions / recent.records * end) for recent, end in parts if recent.records)
    return found or None


def revisions_per_day(recent: Iterable[Recent], now_us: int) -> float:
    """Lately written, over the time from then to now: a store that rests comes down to nothing."""
    return sum(
        one.revisions * DAY_US / max(now_us - one.since_us, SPAN_US_MIN) for one in recent if one.since_us is not None
    )


def days_to_full(
    *, free_bytes: int, reserve_bytes: int, bytes_per_revision: float | None, per_day: float
) -> float | None:
    """Until only the reserve is left, if it goes on so; None when it is not known, or nothing is written."""
    if bytes_per_revision is None or bytes_per_revision <= 0 or per_day <= 0:
        return None
    return round(max(0, free_bytes - reserve_bytes) / (bytes_per_revision * per_day), 1)


def log_bytes(files: Files, directory: str, partitions: int) -> int:
    """What the segments of an embedded log take."""
    total = 0
    for partition in range(partitions):
        place = f"{directory}/log/{partition}"
        for name in files.list(place):
            if not name.endswith(".seg"):
                continue
            try:
                segment = files.open(f"{place}/{name}", write=False)
            except FileNotFoundError:
                continue
            total += segment.size()
            segment.close()
    return total
