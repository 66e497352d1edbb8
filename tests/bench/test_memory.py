"""Nothing is kept for a write that is over: what Python holds does not grow with the number of writes.

What RocksDB and the allocator hold is measured by `make bench-memory`. Caches are made small here, so that they are
full before counting begins.
"""

import asyncio
import gc
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from atomlog.consumers.bench.memory import Step, growth
from atomlog.consumers.bench.writes import batch, write_all
from atomlog.consumers.store import AsyncStore
from atomlog.kernel import key_allocator, keys
from atomlog.kernel.log import segments

STRETCH, STRETCHES = 1_280, 4  # whole key pages; the first fills what is filled once
BYTES_MAX = 20.0  # of a write


async def held_by_a_write(directory: str, keeping: list[bytes] | None = None) -> float:
    """Bytes that Python holds more after a stretch of writes, for each of them. `keeping` is given something each time.

    What is in flight when a stretch ends comes and goes by some kilobytes: a leak shows in each stretch, so the least
    growth counts.
    """
    held: list[int] = []
    async with AsyncStore.open(directory, projections=(), follow=False) as store:
        for first in range(0, STRETCH * STRETCHES, STRETCH):
            await write_all(store, (batch(number, 1) for number in range(first, first + STRETCH)))
            if keeping is not None:
                keeping.extend(number.to_bytes(8, "big") for number in range(STRETCH))
            held.append(traced())
    return min(after - before for before, after in pairwise(held)) / STRETCH


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("leaks", [False, True], ids=["the program", "a planted leak of eight bytes a write"])
def test_a_write_leaves_nothing_behind_in_memory(leaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_PAGES_CACHED_MAX", 2)
    monkeypatch.setattr(key_allocator, "_REFILL_PAGES_MAX", 1)  # keys that are made ahead
    monkeypatch.setattr(segments, "CACHE_BYTES", 64 * 1024)
    tracemalloc.start()
    try:
        held = asyncio.run(held_by_a_write(str(tmp_path / "store"), [] if leaks else None))
    finally:
        tracemalloc.stop()
    assert (held < BYTES_MAX) is not leaks, f"{held:.1f} bytes a write"


def test_growth_is_counted_from_where_the_caches_are_full() -> None:
    found = [Step(writes=n * 100, rss_bytes=10_000 if n == 1 else 50_000 + n * 1_000, cpu_s=0) for n in range(1, 11)]
    assert growth(found) == pytest.approx(10.0)
