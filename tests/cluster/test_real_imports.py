"""Two real histories, imported at once into two partitions of a shared store whose owner dies meanwhile.

What the store says then is what the events say, and to the digest what an embedded import of the same says.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.store_side import StoreSide
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import partition_of
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock
from tests.cluster.kernels import Kernels
from tests.consumers.imports.importing import BytesFile
from tests.support.commands import until
from tests.support.data import test_data as test_data
from tests.support.kafka import SharedBroker
from tests.support.revisions import FILES, State, events, import_lines, states, to_jsonl

PARTITIONS = 2
COMMITS = 60  # of each history: one batch each
KILLED_AFTER = 20  # of them
PROJECTIONS = ("ids", "relations")
SETTINGS = Settings(write_timeout_ms=120_000)

pytestmark = pytest.mark.timeout(300)


@dataclass(slots=True, kw_only=True)
class History:
    """The first commits of one, and the position that each got in the shared store."""

    space: str
    events: Sequence[Mapping[str, Any]]
    expected: Sequence[State]
    positions: list[int] = field(default_factory=list)

    async def run(self, store: AsyncStore) -> Summary:
        side, summary = StoreSide(store, self.space), Summary(space=self.space)
        job = JsonlImport(
            store=side,
            keys=Keys(space=self.space, policy=self.space),
            file=BytesFile(to_jsonl(import_lines(self.events))),
            clock=SystemClock(),
            written=lambda: self.positions.append(side.position),
        )
        await job.run(summary)
        return summary

    async def stands(self, store: AsyncStore, **options: Any) -> State:
        """What the store says, in the form of `states`."""
        (group,) = {event["path"] for event in self.events}
        keys = Keys(space=self.space, policy=self.space)
        names = {keys.atom(event["atom"]): event["atom"] for event in self.events}
        page = await store.members(f"key:{group}", space=self.space, limit=1_000, **options)
        rows = {names[row.atom]: row.value for row in page.atoms}
        assert page.continuation is None
        return State(
            texts={name: value["text"] for name, value in rows.items()},
            speakers={name: value["speaker"] for name, value in rows.items()},
            paths=dict.fromkeys(rows, group),
        )


def history(path: Path, partition: int) -> History:
    found = events(path)
    commits = set(islice(dict.fromkeys(event["commit"] for event in found), COMMITS))
    first = [event for event in found if event["commit"] in commits]
    space = next(name for name in (f"history-{n}" for n in range(100)) if partition_of(name, PARTITIONS) == partition)
    return History(space=space, events=first, expected=[state for _, state in states(first)])


@asynccontextmanager
async def opened(directory: str, *, create: bool) -> AsyncIterator[AsyncStore]:
    async with AsyncStore.open(directory, create=create, settings=SETTINGS, projections=PROJECTIONS) as store:
        yield store


async def test_two_histories_are_imported_at_once_while_their_owner_dies(
    test_data: Path, tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    both = [history(test_data / "revisions" / name, partition) for partition, name in enumerate(FILES)]
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=PARTITIONS) as kernels:
        owner = await kernels.start("one")
        await kernels.kept(owner)
        for partition in range(PARTITIONS):
            assert await kernels.owner(partition) is owner
        standby = await kernels.start("two")
        await kernels.kept(standby)
        async with opened(str(await kernels.directory("node")), create=False) as store:
            importing = [asyncio.create_task(one.run(store)) for one in both]
            await until(lambda: all(len(one.positions) >= KILLED_AFTER for one in both), "both are under way")
            await owner.kill()
            for one, summary in zip(both, await asyncio.gather(*importing), strict=True):
                assert summary.written == summary.batches == COMMITS == len(one.positions)
            assert {event["partition"] for event in standby.said("claimed")} == set(range(PARTITIONS))
            await store.wait_until_current(60)
            for partition, one in enumerate(both):
                assert await one.stands(store) == one.expected[-1]
                for index in (COMMITS // 7, COMMITS // 2):
                    at = {partition: one.positions[index], 1 - partition: -1}
                    assert await one.stands(store, at=at) == one.expected[index]
            # Again: nothing more is written.
            ends = [partition["end"] for partition in (await store.status()).partitions]
            for one in both:
                assert (await one.run(store)).written == 0
            assert ends == [partition["end"] for partition in (await store.status()).partitions]
            shared = await store.content_digest()
    async with opened(str(tmp_path / "embedded"), create=True) as store:
        for one in both:
            await one.run(store)
        await store.wait_until_current(60)
        assert await store.content_digest() == shared
