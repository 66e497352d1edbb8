"""Reading up to where a partition is known to end."""

from collections.abc import Sequence
from typing import cast

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import SILENT_MAX, FetchedRecord, KafkaStream, records_to


class Stream:
    """Gives what was scripted: offsets of records, and where it stands then; nothing after the script."""

    def __init__(self, *pages: tuple[Sequence[int], int]) -> None:
        self.position = 0
        self.asked = 0
        self._pages = list(pages)

    async def next(self, bytes_max: int, timeout_s: float) -> Sequence[FetchedRecord]:
        self.asked += 1
        if not self._pages:
            return ()
        offsets, self.position = self._pages.pop(0)
        return [FetchedRecord(offset=one, timestamp_ms=0, key=None, value=b"", headers=()) for one in offsets]


async def read(stream: Stream, end: int) -> list[int]:
    groups = records_to(cast(KafkaStream, stream), "topic", end)
    return [record.offset async for records in groups for record in records]


async def test_it_ends_where_the_partition_ended_and_asks_for_nothing_more() -> None:
    stream = Stream(((0, 1), 2), ((2,), 3), ((3,), 4))
    assert await read(stream, 3) == [0, 1, 2]
    assert stream.asked == 2


async def test_nothing_is_asked_of_a_partition_that_is_read_already() -> None:
    stream = Stream()
    assert await read(stream, 0) == []
    assert stream.asked == 0


async def test_gaps_of_a_compacted_topic_are_passed_over_however_many_there_are() -> None:
    gaps = [((), position) for position in range(1, 3 * SILENT_MAX)]
    assert await read(Stream(*gaps, ((40,), 41)), 41) == [40]


async def test_what_is_there_and_does_not_come_is_told() -> None:
    stream = Stream(((0,), 1))
    with pytest.raises(AtomlogError, match="from offset 1 on, although it ends at 5") as refused:
        await read(stream, 5)
    assert refused.value.code == "KAFKA_UNAVAILABLE"
    assert stream.asked == 1 + SILENT_MAX
