"""store.json has no checksum of its own: what it says is held against what stands beside it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.system import SystemFiles


def changed(store: Path, **values: Any) -> None:
    path = store / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(("partitions", "words"), [(2, "there is a partition 2"), (1, "partition 1"), (4, "log/3")])
def test_another_number_of_partitions_is_refused(tmp_path: Path, partitions: int, words: str) -> None:
    async def scenario() -> None:
        await AsyncStore.init(tmp_path / "store", partitions=3)
        changed(tmp_path / "store", partitions=partitions)
        for read_only in (False, True):
            with pytest.raises(AtomlogError, match=words) as caught:
                async with await AsyncStore.open(tmp_path / "store", create=False, read_only=read_only):
                    pass
            assert caught.value.code == "CORRUPT"

    asyncio.run(scenario())


def test_a_damaged_name_is_not_passed_over(tmp_path: Path) -> None:
    asyncio.run(AsyncStore.init(tmp_path / "store"))
    replay = {"source": "x", "positions": {"0": 3}, "master_key": "y"}
    changed(tmp_path / "store", replay=replay)
    assert StoreConfig.load(SystemFiles(), str(tmp_path / "store")).read_only
    path = tmp_path / "store" / "store.json"
    path.write_text(path.read_text().replace("replay", "seplay"))
    with pytest.raises(AtomlogError, match="seplay") as caught:
        StoreConfig.load(SystemFiles(), str(tmp_path / "store"))
    assert caught.value.code == "CORRUPT"
