"""A destroyed key leaves the broker's files: rewritten is not enough, the old version must be cleaned away."""

import asyncio
from pathlib import Path

import pytest

from atomlog.kernel.kafka.topics import keys_spec
from atomlog.kernel.keystore import SqliteKeyStore
from tests.kernel.on_kafka.support import Keys
from tests.kernel.test_followed_pages import page_with
from tests.support.kafka import SharedBroker
from tests.support.sealed import InlineWorkers, bitmap

CHUNK = 64  # bytes of a wrapped page that are looked for; they are random


@pytest.mark.timeout(180)
async def test_the_old_version_of_a_page_leaves_the_files_of_broker_and_node(
    kafka: SharedBroker, kafka_prefix: str, tmp_path: Path
) -> None:
    """With the settings that the topic is made with. A segment ends only when something is appended: more pages."""
    async with Keys(kafka.address, f"{kafka_prefix}.keys", tmp_path) as keys:
        assert int(keys_spec(keys.topic, 1).new.settings["max.compaction.lag.ms"]) <= 10_000
        await keys.make()
        store = await keys.node("one")
        old, new = page_with(), page_with(version=2, destroyed=bitmap(3))
        await store.put([old])
        assert traces(kafka, keys, old.wrapped)
        await store.put([new])
        assert not any(window in Path(keys.path("one")).read_bytes() for window in windows(old.wrapped))
        appended = 0
        while traces(kafka, keys, old.wrapped):
            appended += 1
            await store.put([page_with(name=b"fill%04d" % appended)])
            await asyncio.sleep(0.5)
        assert traces(kafka, keys, new.wrapped), "the newest one stays"
        follower = await keys.node("new")
        assert await follower.get(old.page) == new
        copy = SqliteKeyStore(keys.path("new"), InlineWorkers())
        assert len(await copy.outlines(0)) == appended + 1, (
            "offsets that compaction has left out are no gap in the copy"
        )
        await copy.close()


def traces(kafka: SharedBroker, keys: Keys, wrapped: bytes) -> list[Path]:
    """Files of the topic on the broker's disk that hold a part of a wrapped page, those marked for deletion too."""
    files = [path for path in (kafka.log.parent / "data").glob(f"{keys.topic}-0*/*") if ".log" in path.name]
    assert files
    return [path for path in files if any(window in _read(path) for window in windows(wrapped))]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # removed meanwhile
        return b""


def windows(wrapped: bytes) -> list[bytes]:
    return [wrapped[at : at + CHUNK] for at in range(0, len(wrapped) - CHUNK, CHUNK)]
