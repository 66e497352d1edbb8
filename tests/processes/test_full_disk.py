"""A disk of a few megabytes fills up while a store writes, flushes its indexes and seals a shard.

What was acknowledged stays, what was refused or in doubt is told when it is sent again, and everything goes on once
there is space: by itself where docs/operations says so, else when the store is opened anew.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.consumers.events import Event
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.settings import Settings
from tests.acceptance.writing import source
from tests.processes.disks import small_disk
from tests.processes.records import batches_in_the_log
from tests.processes.test_kills import check_rebuilt
from tests.support.commands import until

DISK_BYTES: Final = 96 * 1024 * 1024
TEXT: Final = "x" * 20_000
VECTORS: Final = "supplied.points/1/64/l2"
WITHOUT_RESERVE: Final = Settings(disk_reserve_bytes=0, write_timeout_ms=5_000)
FULL: Final = ("OVERLOADED", "IN_DOUBT")

pytestmark = pytest.mark.timeout(300)


class Filler:
    """A file that takes the space of a disk."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._path = disk / "filler"

    def fill(self, *, leaving: int) -> None:
        with self._path.open("ab") as file:
            while (size := self._free_bytes() - leaving) > 0:
                with suppress(OSError):  # others take space meanwhile
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)

    def _free_bytes(self) -> int:
        free = os.statvfs(self._disk)
        return free.f_bavail * free.f_frsize

    def free(self) -> None:
        self._path.unlink()


class Writer:
    """Writes batches one after the other and knows what it was told of each."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.told: dict[str, dict[str, Any]] = {}
        self.refused: Counter[str] = Counter()
        self.open: list[dict[str, Any]] = []  # batches that were not accepted

    async def write(self, key: str, *changes: Mapping[str, Any]) -> bool:
        return await self.send({"space": "notes", "idempotency_key": key, "changes": list(changes or [source(TEXT)])})

    async def send(self, batch: dict[str, Any]) -> bool:
        try:
            result = await self.store.write(batch)
        except AtomlogError as error:
            assert error.code in FULL, error
            self.refused[error.code] += 1
            self.open.append(batch)
            return False
        self.told[batch["idempotency_key"]] = result.to_dict()
        return True

    async def goes_on(self) -> None:
        """Everything that was refused is sent again until it is taken."""

        async def taken() -> bool:
            batch = self.open.pop(0)
            if not await self.send(batch):
                await asyncio.sleep(0.1)
            return not self.open

        await until(taken, "what was refused is taken")

    async def check(self) -> None:
        logged = await batches_in_the_log(self.store)
        said = {
            (result["receipt"]["partition"], result["receipt"]["position"]): [
                (made["atom"], made["revision"]) for made in result["results"]
            ]
            for result in self.told.values()
        }
        assert logged == said
        await self.store.wait_until_current()
        for result in list(self.told.values())[-5:]:
            row = (await self.store.get(result["results"][0]["atom"])).to_dict()["atoms"][0]
            assert row["value"]["text"]


async def test_below_the_reserve_writes_are_refused_reads_go_on_and_freeing_space_is_all_that_is_needed(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    settings = Settings(disk_reserve_bytes=16 * 1024 * 1024)
    with small_disk(tmp_path, DISK_BYTES) as disk:
        async with await AsyncStore.open(disk / "store", settings=settings, on_event=events.append) as store:
            writer, filler = Writer(store), Filler(disk)
            assert await writer.write("first")
            await store.wait_until_current()
            filler.fill(leaving=12 * 1024 * 1024)
            await until(lambda: _is_refused(writer), "the reserve is noticed")
            assert writer.refused.keys() == {"OVERLOADED"}
            atom = writer.told["first"]["results"][0]["atom"]
            assert len((await store.get(atom)).atoms) == 1
            filler.free()
            await writer.goes_on()
            await writer.check()
        assert not [event for event in events if event["event"] in ("in_doubt", "heads_failed", "stopped")]


async def _is_refused(writer: Writer) -> bool:
    return not await writer.write(f"{len(writer.told)}", source("short"))


async def writes_until_it_is_full(writer: Writer, filler: Filler) -> None:
    filler.fill(leaving=1024 * 1024)
    while writer.refused.total() < 5:
        await writer.write(f"{len(writer.told)} {writer.refused.total()}")


async def flushes_on_a_full_disk(writer: Writer, filler: Filler) -> None:
    """RocksDB writes tables out and merges them, of heads and of every index."""
    stores = [writer.store._writing.holder._owners._heads]  # type: ignore[union-attr]
    for name in ("ids", "relations", "postings", "vectors"):
        follower = writer.store.views[name].follower
        assert follower is not None
        stores.append(follower._handle.projection.kv)  # type: ignore[attr-defined]
    for turn in range(3):
        await writer.write(f"before {turn}")
        await writer.store.wait_until_current()
        for kv in stores if turn < 2 else ():
            kv._database.flush()
    failed = 0
    for kv in stores:
        filler.fill(leaving=0)  # again: a merge removes files, too
        for merge in (kv._database.flush, lambda database=kv._database: database.compact_range(None, None)):
            try:
                await asyncio.to_thread(merge)
            except Exception as error:  # the binding's
                failed += 1
                assert "No space" in str(error) or "previous error" in str(error)
    assert failed >= len(stores)
    for turn in range(3):
        await writer.write(f"meanwhile {turn}", source("short"))


@pytest.mark.parametrize("fills_up", [writes_until_it_is_full, flushes_on_a_full_disk], ids=lambda one: one.__name__)
async def test_a_disk_that_is_full_refuses_or_leaves_in_doubt_and_loses_nothing(
    tmp_path: Path, fills_up: Callable[[Writer, Filler], Awaitable[None]]
) -> None:
    events: list[Event] = []
    with small_disk(tmp_path, DISK_BYTES) as disk:
        store = await AsyncStore.open(disk / "store", settings=WITHOUT_RESERVE, on_event=events.append)
        writer, filler = Writer(store), Filler(disk)
        await writer.write("first")
        await fills_up(writer, filler)
        print(dict(writer.refused), sorted({str(event["event"]) for event in events}))
        assert writer.refused or fills_up is flushes_on_a_full_disk
        filler.free()
        # The log goes on by itself. RocksDB, which without a reserve met the full disk too, is opened anew.
        try:
            await store.close()
        except AtomlogError as error:
            assert error.code in (*FULL, "CORRUPT"), error
        async with await AsyncStore.open(disk / "store", settings=WITHOUT_RESERVE) as writer.store:
            await writer.goes_on()
            await writer.write("last")
            await writer.check()
            await check_rebuilt(writer.store)


async def test_a_shard_that_finds_no_space_counts_only_when_there_is_some(tmp_path: Path) -> None:
    events: list[Event] = []
    with small_disk(tmp_path, DISK_BYTES) as disk:
        await AsyncStore.init(disk / "store", shard_rows=512, vector_spaces=(VECTORS,))
        async with await AsyncStore.open(disk / "store", settings=WITHOUT_RESERVE, on_event=events.append) as store:
            writer, filler = Writer(store), Filler(disk)
            shards = disk / "store/projections/vectors/g000001/shards"
            for batch in range(6):
                changes = [
                    source(f"{batch} {n}", vectors={VECTORS: [float(batch), float(n), *[0.5] * 62]}) for n in range(100)
                ]
                assert await writer.write(f"{batch}", *changes)
            while not list(shards.glob("*")):
                await asyncio.sleep(0)
            filler.fill(leaving=0)
            await until(lambda: [e for e in events if e["event"] == "background_failed"], "sealing fails")
            assert not list(shards.glob("manifest-*")), "no shard counts"
            filler.free()
            await until(lambda: list(shards.glob("manifest-*")), "the shard is sealed")
            await until(lambda: store.views["vectors"].health == "OK", "the trouble is over")
            page = await store.read({"type": "recall", "vectors": {VECTORS: [0.0, 7.0, *[0.5] * 62]}}, limit=5)
            assert page.to_dict()["atoms"][0]["value"]["text"] == "0 7"
            assert await writer.write("last")
            await writer.check()
            await check_rebuilt(store)
