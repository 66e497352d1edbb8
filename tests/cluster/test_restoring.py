"""docs/kafka-operations.md, Restoring: brokers put back to an older state, and what the page says to do then."""

import asyncio
import shutil
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster.kernel import run_kernel
from atomlog.kernel.errors import AtomlogError
from deploy.kafka.brokers import Brokers
from tests.consumers.cluster.test_store_on_kafka import QUICK, WEAK, batch, kernel, nodes, note, store_of, written
from tests.house.tree import ROOT
from tests.support.kafka import SharedBroker, own_brokers

REMOVED = ("projections", "keys.sqlite", "keys.sqlite-wal", "keys.sqlite-shm")


def back(brokers: Brokers, image: Path) -> None:
    brokers.node(1).stop()
    brokers.node(1).put_disk(image)
    brokers.restart(1)


def running(directory: Path, **more: Any) -> Coroutine[Any, Any, int]:
    return run_kernel(str(directory), listen="127.0.0.1:0", allow_weak=WEAK, settings=QUICK, **more)


async def trouble(directory: Path, event: str) -> str:
    """The error that a kernel goes on with."""
    stop, events = asyncio.Event(), asyncio.Queue[Mapping[str, Any]]()
    kernel = asyncio.create_task(running(directory, stop=stop, on_event=events.put_nowait))
    while (said := await events.get())["event"] != event:
        pass
    stop.set()
    await kernel
    return str(said["error"]["message"])


async def wrote(directory: Path, key: str) -> Any:
    async with kernel(directory), store_of(directory, projections=["ids"]) as store:
        return (await written(store, batch("notes", key, note(key)))).receipt


@pytest.mark.timeout(120)
async def test_brokers_that_were_put_back_are_refused_until_the_node_is_told_to_go_on_from_there(
    tmp_path: Path, kafka_prefix: str
) -> None:
    page = (ROOT / "docs/kafka-operations.md").read_text(encoding="utf-8")
    assert all(f"`{name}" in page.partition("## Restoring")[2] for name in REMOVED[:2])
    with own_brokers(tmp_path / "brokers") as brokers:
        brokers.start()
        node, image = brokers.node(1), tmp_path / "image"
        (first,) = await nodes(tmp_path, SharedBroker(address=node.address, log=node.log), kafka_prefix, "1")
        await wrote(first, "kept")
        node.stop()
        node.copy_disk(image)
        brokers.restart(1)
        await wrote(first, "gone")
        back(brokers, image)
        with pytest.raises(AtomlogError, match="the log ends at") as caught:
            await running(first)
        assert caught.value.code == "LOG_DIVERGED"
        shutil.rmtree(first / "projections")
        assert f"topic {kafka_prefix}.keys" in await trouble(first, "keys_stopped")
        for name in REMOVED[1:]:
            (first / name).unlink(missing_ok=True)
        receipt = await wrote(first, "later")
        async with store_of(first, projections=["ids"]) as store:
            page_ = await store.get(["key:kept", "key:gone", "key:later"], space="notes", at_least=receipt)
        assert [row.value["text"] for row in page_.atoms] == ["kept steeps for 3 minutes", "later steeps for 3 minutes"]
