"""Which nodes can be asked, by what was heard of them."""

import asyncio
from collections.abc import Sequence

from atomlog.consumers.cluster.reports import Heard, NodeReport
from atomlog.consumers.cluster.routed import HeardNodes


def heard(name: str, endpoint: str, at_us: int) -> Heard:
    report = NodeReport(
        node=name.encode().ljust(16),
        name=name,
        role="consumer",
        endpoint=endpoint,
        pid=1,
        at_us=0,
        disk_free_bytes=0,
        disk_reserve_bytes=0,
    )
    return Heard(report=report, at_us=at_us)


class Hearing:
    def __init__(self, found: Sequence[Heard]) -> None:
        self.found = found

    async def heard(self) -> Sequence[Heard]:
        return self.found

    async def close(self) -> None:
        """Nothing is open."""


def names(*found: Heard) -> list[str]:
    return [report.name for report in asyncio.run(HeardNodes(Hearing(found)).nodes())]


def test_who_listens_nowhere_is_not_asked() -> None:
    assert names(heard("a", "", 1), heard("b", "tls:b:1", 1)) == ["b"]


def test_of_several_processes_at_one_place_the_last_one_is_there() -> None:
    before, now = heard("before", "tls:a:1", 1), heard("now", "tls:a:1", 2)
    assert names(before, now) == names(now, before) == ["now"]
