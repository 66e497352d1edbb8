"""A store that has every kind of file, as a killed process leaves it, and an older copy of the same files."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import partition_of
from atomlog.kernel.rocks import RocksKv
from atomlog.kernel.settings import Settings
from atomlog.projections.base import KvProjection
from atomlog.projections.vectors import Vectors
from tests.support.commands import until

PARTITIONS: Final = 2
SETTINGS: Final = Settings(
    segment_bytes=6_000,
    sync_interval_ms=20,
    read_timeout_ms=4_000,
    key_wait_ms=50,
    apply_retry_ms=1,
    receipt_flush_ms=10,
    disk_reserve_bytes=0,
)
SPACES: Final = tuple(
    next(f"space{n}" for n in range(100) if partition_of(f"space{n}", PARTITIONS) == partition)
    for partition in range(PARTITIONS)
)
LONG: Final = "x" * 70_000  # goes to the blob store


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a probe asks for that only the maker of the store knows."""

    ends: dict[str, int]  # the last position of each partition
    middle: dict[str, int]  # earlier positions
    receipts: list[str]
    continuations: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """`now` is the store, `older` what the same files held earlier, `closed` the store after it was opened and closed.

    `files`: every path that the open store had.
    """

    now: Path
    closed: Path
    older: Path
    files: Sequence[str]
    asked: Asked


def make(root: Path) -> Sound:
    """Make the store below `root`, once; a second call gives the same one."""
    note = root / "sound.json"
    if not note.exists():
        asyncio.run(_make(root, note))
    kept = json.loads(note.read_text())
    return Sound(
        now=root / "now",
        closed=root / "closed",
        older=root / "older",
        files=kept["files"],
        asked=Asked(**kept["asked"]),
    )


async def _make(root: Path, note: Path) -> None:
    live = root / "live"
    await AsyncStore.init(live, partitions=PARTITIONS, shard_rows=8, vector_spaces=["hashing/1/64/cosine"])
    async with await AsyncStore.open(live, settings=SETTINGS) as store:
        await store.write(_collection(SPACES[0]))
        for number in range(8):
            await store.write(_batch(SPACES[0], number))
        await store.wait_until_current()
    async with await AsyncStore.open(live, settings=SETTINGS) as store:  # what was in the logs is in tables now
        await store.rebuild(["relations"], force=True)
        async with await AsyncStore.open(live, settings=SETTINGS, follow=False) as reader:
            middle = await _write(store, range(8, 13))
            _copy(live, root / "older")
            _flush(store)
            ends = await _write(store, range(13, 19))
            await reader.wait_until_current()
            await until(lambda: any(live.glob("projections/vectors/g*/shards/manifest-00000004.json")), "the shards")
            vectors = store.views["vectors"].follower
            assert vectors is not None
            projection = vectors._handle.projection
            assert isinstance(projection, Vectors)
            space = "hashing/1/64/cosine"
            await until(lambda: projection.unembedded(space) == 0, "every text has its vector")
            receipts, continuations = await _read(store)
            _copy(live, root / "now")
            files = sorted(str(path.relative_to(live)) for path in live.rglob("*") if not path.is_dir())
    shutil.copytree(root / "now", root / "closed")
    async with await AsyncStore.open(root / "closed", settings=SETTINGS) as store:
        await store.wait_until_current()
    asked = Asked(ends=ends, middle=middle, receipts=receipts, continuations=continuations)
    note.write_text(json.dumps({"files": files, "asked": asdict(asked)}))
    shutil.rmtree(live)


async def _write(store: AsyncStore, numbers: range) -> dict[str, int]:
    """More of both partitions; each partition's last position afterwards."""
    for number in numbers:
        await store.write(_batch(SPACES[number % 3 == 0 and number > 12], number))
    page = await store.get("key:a0", space=SPACES[0])
    await store.write(
        {
            "space": SPACES[0],
            "idempotency_key": f"revise after {numbers[0]}",
            "changes": [
                {
                    "op": "revise",
                    "atom": "key:a0",
                    "expected": str(page.to_dict()["atoms"][0]["revision"]),
                    "value": {"text": f"green tea, {numbers[0]}"},
                }
            ],
        }
    )
    await store.wait_until_current()
    found = (await store.status()).to_dict()["partitions"]
    return {str(one["partition"]): one["end"] - 1 for one in found}


async def _read(store: AsyncStore) -> tuple[list[str], list[str]]:
    pages = [
        await store.members("key:g", space=SPACES[0], limit=3),
        await store.recall("tea number 4", space=SPACES[0], limit=3),
        await store.get("key:a1", space=SPACES[0]),
    ]
    await store._parts.journal.flush()
    found = [page.to_dict() for page in pages]
    continuations = [page["continuation"] for page in found if page["continuation"] is not None]
    return [page["receipt"]["receipt"] for page in found], continuations


def _flush(store: AsyncStore) -> None:
    """Tables for what is in the logs, so that the files go on from there."""
    for view in store.views.values():
        assert view.follower is not None
        projection = view.follower._handle.projection
        assert isinstance(projection, KvProjection)
        assert isinstance(projection.kv, RocksKv)
        projection.kv._database.flush()


def _copy(live: Path, to: Path) -> None:
    shutil.copytree(live, to, ignore=lambda _, names: [name for name in names if name == "owner.sock"])


def _collection(space: str) -> dict[str, Any]:
    change = {"op": "create", "key": "g", "schema": "collection", "value": {"title": "teas"}}
    return {"space": space, "idempotency_key": "g", "changes": [change]}


def _batch(space: str, number: int) -> dict[str, Any]:
    text = f"tea number {number} {LONG if number in (2, 15) else number * 'leaf '}"
    source = {"op": "create", "key": f"a{number}", "schema": "source", "value": {"text": text}}
    slots = [{"role": "group", "target": "key:g"}, {"role": "member", "target": f"key:a{number}"}]
    member = {"op": "create", "schema": "membership", "value": {}, "slots": slots}
    changes = [source, member] if space == SPACES[0] else [source]
    return {"space": space, "idempotency_key": f"k{number}", "changes": changes}
