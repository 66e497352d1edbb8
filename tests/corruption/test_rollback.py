"""Parts of a store put back to what they were: caught up, or told from the right ones; and what repairs itself."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.events import Event
from atomlog.consumers.store import AsyncStore
from tests.corruption.damage import Damage
from tests.corruption.probe import judge, probe
from tests.corruption.store import SETTINGS, Sound

PROJECTIONS = ("heads", "ids", "relations", "postings", "vectors")


def opened(sound: Sound, store: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(what was refused, events). Nothing may be answered wrongly."""
    seen = asyncio.run(probe(store, sound.asked))
    truth = json.loads((sound.now.parent / "truth.json").read_text())
    wrong, refused = judge(truth, seen.answers)
    assert not wrong
    return dict(refused), [dict(event) for event in seen.events]


def said_again(store: Path) -> set[str]:
    """The events of the next process that opens it."""
    events: list[Event] = []

    async def open_and_close() -> None:
        async with await AsyncStore.open(store, settings=SETTINGS, on_event=events.append) as opened:
            await opened.wait_until_current()

    asyncio.run(open_and_close())
    return {event["event"] for event in events}


@pytest.fixture
def store(sound: Sound, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound.now, tmp_path / "store"))


def put_back(sound: Sound, store: Path, paths: Sequence[str]) -> None:
    for path in paths:
        if (store / path).is_dir():
            shutil.rmtree(store / path)
            shutil.copytree(sound.older / path, store / path)
        else:
            shutil.copy(sound.older / path, store / path)


@pytest.mark.parametrize("name", [*PROJECTIONS, "all"])
def test_an_older_copy_of_a_projection_catches_up(sound: Sound, store: Path, name: str) -> None:
    put_back(sound, store, [f"projections/{one}" for one in PROJECTIONS if name in (one, "all")])
    refused, _ = opened(sound, store)
    assert not refused


def test_an_older_durable_end_is_set_right(sound: Sound, store: Path) -> None:
    put_back(sound, store, [f"log/{partition}/durable_end" for partition in range(2)])
    refused, _ = opened(sound, store)
    assert not refused


def test_an_older_log_is_told_by_what_was_applied_of_the_right_one(sound: Sound, store: Path) -> None:
    shutil.rmtree(store / "log")
    shutil.copytree(sound.older / "log", store / "log")
    refused, _ = opened(sound, store)
    assert {error["code"] for error in refused.values()} == {"LOG_DIVERGED"}
    assert set(refused) == {"open"}


def test_an_older_log_with_everything_derived_from_it_is_an_older_store(sound: Sound, store: Path) -> None:
    put_back(sound, store, ["log", "projections"])
    answers = asyncio.run(probe(store, sound.asked)).answers
    truth = json.loads((sound.now.parent / "truth.json").read_text())
    assert answers["earlier"] == truth["earlier"]
    assert answers["earlier members"]["body"] == truth["earlier members"]["body"]
    assert {answers[name]["code"] for name in ("heads", "elsewhere", "history", "members", "recall")} == {
        "INVALID_INPUT"
    }
    assert "body" in answers["write"]


def test_an_older_key_store_lacks_keys_and_gives_no_wrong_ones(sound: Sound, store: Path) -> None:
    put_back(sound, store, ["keys.sqlite"])
    refused, _ = opened(sound, store)
    assert "elsewhere" in refused  # the page of the other partition was made later
    assert {error["code"] for error in refused.values()} <= {"CORRUPT", "KEY_UNAVAILABLE"}
    assert "heads" not in refused


def test_a_lost_generation_is_said_and_built_anew(sound: Sound, store: Path) -> None:
    (store / "projections" / "ids" / "CURRENT").write_text("g999999\n")
    refused, events = opened(sound, store)
    assert not refused
    assert [event["projection"] for event in events if event["event"] == "generation_lost"] == ["ids"]
    assert not said_again(store) & {"generation_lost", "projection_broken"}


def test_a_damaged_shard_is_named_searched_exactly_and_built_anew(sound: Sound, store: Path) -> None:
    shard = min((store / "projections" / "vectors").glob("g*/shards/*.hnsw"))
    Damage(path=shard.name, manner="flip", at=777).do(shard.parent, sound.older)
    refused, events = opened(sound, store)
    assert not refused
    damage = [event["error"] for event in events if event["event"] == "damage_found"]
    assert any(shard.name in text for text in damage), events
    assert "damage_found" not in said_again(store)


@pytest.mark.parametrize("file", ["CURRENT", "*.sst"])
def test_a_damaged_embedding_cache_is_named_and_done_without(sound: Sound, store: Path, file: str) -> None:
    (path,) = (store / "projections" / "vectors" / "cache").glob(file)
    path.write_bytes(path.read_bytes()[:-3])
    refused, events = opened(sound, store)
    assert not refused
    damage = [event for event in events if event["event"] == "damage_found"]
    assert len(damage) == 1
    assert "projections/vectors/cache" in damage[0]["error"]
    shutil.rmtree(path.parent)
    assert "damage_found" not in said_again(store)
