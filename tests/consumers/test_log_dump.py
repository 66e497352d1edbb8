"""The log dump: a verdict on every record, folded by the same rule that readers follow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.log_dump import log_dump
from atomlog.kernel.errors import InvalidError
from atomlog.schemas.record import pack
from tests.consumers.worlds import World, run
from tests.support.batches import create

FIELDS = ["partition", "position", "kind", "term", "owner", "seq", "schema", "chain", "size", "verdict", "reason"]


async def dumped(world: World, **rest: Any) -> list[dict[str, Any]]:
    return [row async for row in log_dump(world.log, world.config.genesis(0), 0, **rest)]


def test_every_record_stands_there_with_its_verdict_and_its_fields(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        builder = world.builders[0]
        builder.batch("notes", [create("tea")])
        builder.void()
        builder.fence()
        builder.claim()
        builder.batch("notes", [create("cup")])
        await world.flush()
        rows = await dumped(world)
        assert [(row["kind"], row["verdict"], row["reason"]) for row in rows] == [
            ("Claim", "effective", None),
            ("Batch", "effective", None),
            ("Fence", "void", "stale_term"),
            ("Fence", "effective", None),
            ("Claim", "effective", None),
            ("Batch", "effective", None),
        ]
        assert [row["position"] for row in rows] == list(range(6))
        assert all(list(row) == FIELDS for row in rows)
        record = builder.records[1].record
        assert rows[1] == {
            "partition": 0,
            "position": 1,
            "kind": "Batch",
            "term": 1,
            "owner": record.owner.hex(),
            "seq": 0,
            "schema": record.schema.hex(),
            "chain": record.chain.hex(),
            "size": len(pack(record)),
            "verdict": "effective",
            "reason": None,
        }

    run(scenario())


def test_what_stands_behind_a_stop_is_shown_as_unread(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        builder = world.builders[0]
        await world.write(2)
        newer = replace(builder.records[-1].record, seq=2, rule=2)
        await world.log.append(0, [newer, builder.records[-1].record])
        rows = await dumped(world)
        assert [row["verdict"] for row in rows] == ["effective"] * 3 + ["stop", "unread"]
        assert rows[3]["reason"].startswith("UPGRADE_REQUIRED")
        assert "UPGRADE_REQUIRED" in rows[4]["reason"]

    run(scenario())


def test_a_window_shows_the_verdicts_of_the_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.make(tmp_path)
        await world.write(30)
        whole = await dumped(world)
        assert await dumped(world, since=10, until=12) == whole[10:12]
        assert await dumped(world, since=25, until=1_000) == whole[25:]
        assert await dumped(world, since=1_000) == []
        assert await dumped(world, until=0) == []
        with pytest.raises(InvalidError, match="lies before 5"):
            await dumped(world, since=5, until=3)

    run(scenario())


def test_an_empty_log_dumps_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        assert await dumped(World.make(tmp_path)) == []

    run(scenario())
