"""What the kernel tells its meters, and that nobody who measures nothing is asked for the time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atomlog.consumers import owners
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ports import ACK, READ_BACK
from atomlog.kernel.world import World
from tests.acceptance.writing import source
from tests.consumers.worlds import run


class Heard:
    def __init__(self) -> None:
        self.durations: list[tuple[str, float]] = []

    def observe(self, name: str, seconds: float) -> None:
        self.durations.append((name, seconds))

    def count(self, name: str) -> int:
        return sum(one == name for one, _ in self.durations)


def test_each_acknowledged_write_and_each_group_is_told_once(tmp_path: Path, monkeypatch: Any) -> None:
    meters = Heard()
    monkeypatch.setattr(owners, "World", _with(World, meters))

    async def scenario() -> None:
        async with await AsyncStore.open(tmp_path / "store", projections=()) as store:
            batch = {"space": "s", "idempotency_key": "k", "changes": [source("text")]}
            await store.write(batch)
            assert (meters.count(ACK), meters.count(READ_BACK)) == (1, 1)
            assert (await store.write(batch)).replayed
            assert meters.count(ACK) == 1, "answered from the table, nothing was written"
            await store.write({**batch, "idempotency_key": "k-2"})
            assert (meters.count(ACK), meters.count(READ_BACK)) == (2, 2)
        assert all(0 <= seconds < 3_600 for _, seconds in meters.durations)

    run(scenario())


def _with(world: Any, meters: Heard) -> Callable[..., Any]:
    return lambda **parts: world(**{**parts, "meters": meters})
