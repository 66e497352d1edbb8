"""A store whose holder is killed again and again, at any moment, while others write through it."""

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.model import WriteResult
from atomlog.kernel.settings import Settings
from tests.consumers.writing.processes import Holder
from tests.support.kernel_world import batch, create

KILLS = 20
WRITES = 24  # a round, each of them asked for twice


async def persistent(store: AsyncStore, name: str) -> WriteResult:
    """Writes until it is told what became of it."""
    request = batch(name, create(name), create(f"{name}-too"))
    while True:
        try:
            return await store.write(request)
        except AtomlogError as error:
            assert error.code in ("IN_DOUBT", "OVERLOADED", "NOT_OWNER", "STORE_LOCKED"), error
            await asyncio.sleep(0.01)


async def batches(store: AsyncStore) -> int:
    """Effective batches in the log; nothing else may be there than what an owner writes."""
    kinds: Counter[str] = Counter()
    async for record in store.log_dump():
        assert record["verdict"] == "effective", record
        kinds[record["kind"]] += 1
    assert set(kinds) <= {"Claim", "Batch", "KeysDestroyed"}
    return kinds["Batch"]


async def test_each_write_counts_once_whoever_is_killed_when(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    directory = str(tmp_path / "store")
    await AsyncStore.init(directory)
    results: dict[str, WriteResult] = {}
    for n in range(KILLS):
        holder = await asyncio.to_thread(Holder, directory)
        async with await AsyncStore.open(directory, create=False, projections=()) as store:
            names = [f"w{n}-{m}" for m in range(WRITES)]
            asked = [asyncio.create_task(persistent(store, name)) for name in (*names, *names)]
            await asyncio.sleep(chance.choice((0, 0.002, 0.005, 0.01, 0.02, 0.04)))
            holder.kill()
            for name, result in zip((*names, *names), await asyncio.gather(*asked), strict=True):
                first = results.setdefault(name, result)
                assert (result.results, result.receipt) == (first.results, first.receipt)
            with pytest.raises(AtomlogError) as other:
                await store.write(batch(chance.choice(names), create("other content")))
            assert other.value.code == "IDEMPOTENCY_MISMATCH"
    await check(directory, results)


async def check(directory: str, results: dict[str, WriteResult]) -> None:
    async with await AsyncStore.open(directory, create=False, projections=("ids",)) as store:
        assert await batches(store) == len(results)
        for name, result in results.items():
            outcome = await store.outcome(name, space="notes")
            assert outcome.result is not None
            assert (outcome.result.results, outcome.result.receipt) == (result.results, result.receipt)
        await store.wait_until_current()
        page = await store.get([result.results[0].atom for result in results.values()], limit=1_000)
        assert len(page.atoms) == len(results)


async def test_a_holder_that_stands_still_leaves_a_doubt_and_the_same_request_tells(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    await AsyncStore.init(directory)
    holder = await asyncio.to_thread(Holder, directory)
    hasty = Settings(owner_socket_timeout_ms=200)
    async with await AsyncStore.open(directory, create=False, projections=(), settings=hasty) as store:
        await store.write(batch("k0", create("a0")))
        holder.signal(signal.SIGSTOP)
        with pytest.raises(AtomlogError) as unknown:
            await store.write(batch("k1", create("a1")))
        assert unknown.value.code == "IN_DOUBT"
        assert (await store.outcome("k1", space="notes")).state == "unknown"
        holder.signal(signal.SIGCONT)
        result = await persistent(store, "k2")
        assert result.receipt.position > 0
        assert (await store.write(batch("k1", create("a1")))).results
        assert await batches(store) == 3
        holder.kill()
