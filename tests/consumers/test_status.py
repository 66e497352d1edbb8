"""`status`: what the owner answers, what nodes said last, how long until the disk is full; and looking on."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.capacity import DAY_US, SPAN_US_MIN, Recent, counted, days_to_full, revisions_per_day
from atomlog.consumers.cli import status as command
from atomlog.consumers.cli.session import Session
from atomlog.consumers.cluster.reports import Heard, NodeReport, PartitionReport, ProjectionPlace, ProjectionReport
from atomlog.consumers.parts import open_parts
from atomlog.consumers.status import node_entry, partition_entry, serving
from atomlog.consumers.store import AsyncStore
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from tests.acceptance.writing import source
from tests.consumers.worlds import run
from tests.house.tree import ROOT


def said(*partitions: PartitionReport, projections: tuple[ProjectionReport, ...] = (), **more: Any) -> Heard:
    given: dict[str, Any] = {
        "node": bytes(16),
        "name": "a",
        "role": "kernel",
        "endpoint": "tls:a:1",
        "pid": 7,
        "at_us": 0,
        "disk_free_bytes": 2**30,
        "disk_reserve_bytes": 2**20,
    }
    report = NodeReport(**{**given, **more}, partitions=partitions, projections=projections)
    return Heard(report=report, at_us=1_000_000)


def part(term: int, phase: str = "owner", **more: Any) -> PartitionReport:
    return PartitionReport(partition=0, phase=phase, term=term, voids={}, **more)


async def stored(path: Path, writes: int = 0) -> AsyncStore:
    store = await AsyncStore.open(path)
    for number in range(writes):
        await store.write({"space": "s", "idempotency_key": str(number), "changes": [source(f"text {number}")]})
    await store.wait_until_current()
    return store


def test_the_owner_of_the_latest_term_speaks_for_a_partition() -> None:
    heard = [said(part(3)), said(part(5)), said(part(9, "standby")), said(part(4))]
    assert serving(heard, 0) == part(5)
    assert serving(heard, 1) is None
    assert serving([said(part(9, "claiming"))], 0) is None


def test_what_an_owner_answers_counts_before_what_it_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        await (await stored(tmp_path / "store")).close()
        config = StoreConfig.load(SystemFiles(), str(tmp_path / "store"))
        parts = open_parts(str(tmp_path / "store"), config, settings=Settings(), read_only=True)
        said_last = part(2, in_flight=9, batches=4, last_claim_at_us=5_000_000)
        answered = {"term": 3, "in_flight": 1, "effective_batches": 6, "owner": {"claimed_at_us": 7_000_000}}
        entry = partition_entry(parts, 0, 17, answered, said_last)
        assert (entry["term"], entry["in_flight"], entry["effective_batches"], entry["end"]) == (3, 1, 6, 17)
        assert entry["last_claim_at"] == "1970-01-01T00:00:07.000000Z"
        entry = partition_entry(parts, 0, 17, {}, said_last)
        assert (entry["term"], entry["in_flight"], entry["effective_batches"]) == (2, 9, 4)
        assert entry["last_claim_at"] == "1970-01-01T00:00:05.000000Z"
        entry = partition_entry(parts, 0, 17, {}, None)
        assert (entry["term"], entry["in_flight"], entry["last_claim_at"]) == (None, None, None)
        await parts.close()

    run(scenario())


def test_the_age_of_what_a_node_said_is_by_the_own_clock() -> None:
    assert node_entry(said(part(1)), 3_500_000)["age_s"] == 2.5


def test_an_open_store_says_what_is_in_flight_who_claimed_when_and_how_long_the_disk_lasts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await stored(tmp_path / "store", writes=5) as store:
            found = (await store.status()).to_dict()
        (partition,) = found["partitions"]
        assert partition["in_flight"] == 0
        assert partition["last_claim_at"].endswith("Z")
        assert found["disk"]["days_to_full"] > 0
        assert found["nodes"] == []

    run(scenario())


def test_a_store_in_which_nothing_was_written_has_no_day_on_which_its_disk_is_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await stored(tmp_path / "store") as store:
            assert (await store.status()).disk["days_to_full"] is None

    run(scenario())


def test_days_to_full_are_what_is_left_over_what_is_written_a_day() -> None:
    given: dict[str, Any] = {"free_bytes": 1_100, "reserve_bytes": 100, "bytes_per_revision": 10.0, "per_day": 20.0}
    assert days_to_full(**given) == 5.0
    assert days_to_full(**{**given, "free_bytes": 50}) == 0.0
    assert days_to_full(**{**given, "bytes_per_revision": None}) is None
    assert days_to_full(**{**given, "per_day": 0.0}) is None


def test_a_burst_is_no_rate_and_a_store_that_rests_comes_down_to_nothing() -> None:
    now_us = 1_000 * DAY_US
    burst = Recent(records=10, revisions=100, since_us=now_us - 1)
    assert revisions_per_day([burst], now_us) == pytest.approx(100 * DAY_US / SPAN_US_MIN)
    rested = Recent(records=10, revisions=100, since_us=now_us - 100 * DAY_US)
    assert revisions_per_day([rested, Recent()], now_us) == pytest.approx(1.0)


def test_only_batches_count_as_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await stored(tmp_path / "store", writes=3) as store:
            records = await store._parts.log.read(0, 0, bytes_max=1_000_000)
            found = counted(records)
        assert (found.records, found.revisions) == (4, 3)
        assert found.since_us is not None

    run(scenario())


def test_a_table_names_each_replica_and_where_it_is(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    place = ProjectionPlace(partition=0, position=12, chain=bytes(16), lag_records=5, lag_ms=2_500)
    remote = ProjectionReport(
        name="ids", generation="g7", health="DEGRADED", bytes_per_revision=321, partitions=(place,)
    )
    nodes = [
        node_entry(said(part(4), name="kernel-a"), 3_000_000),
        node_entry(said(part(3), name="kernel-gone"), 9_000_000),
        node_entry(said(projections=(remote,), name="index-b", role="consumer", disk_days_to_full=3), 3_000_000),
    ]
    found = {
        "log_id": "x",
        "partitions": [
            {
                "partition": 0,
                "end": 17,
                "term": 4,
                "effective_batches": 9,
                "in_flight": 2,
                "last_claim_at": "2026-03-01T00:00:00.000000Z",
                "void": {"stale_term": 1},
                "owner": {"endpoint": "tls:a:1", "pid": 7},
            }
        ],
        "projections": [],
        "disk": {"free_bytes": 1, "reserve_bytes": 2, "accepting_writes": False, "days_to_full": 0.0},
        "nodes": nodes,
    }
    command._show(Session(directory=str(tmp_path), master_key_file=None, as_json=False, verbose=False), found)
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert any(
        line.split() == ["0", "17", "4", "9", "2", "2026-03-01T00:00:00Z", "1", "stale_term", "tls:a:1"]
        for line in lines
    )
    assert any(line.split()[:6] == ["ids", "index-b", "g7", "DEGRADED", "11", "5"] for line in lines)
    assert any("refusing writes" in line and "less than a day" in line for line in lines)
    assert any(line.startswith("kernel kernel-a  owns 0; pid 7, heard 2.0 s ago") for line in lines)
    assert any(line.startswith("kernel kernel-gone  pid 7, heard 8.0 s ago") for line in lines)
    assert any(line.startswith("consumer index-b") and "full in 3 days" in line for line in lines)


def test_watching_shows_it_again_and_takes_nothing_from_who_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "store"
    run(_filled(path))
    arguments = [sys.executable, "-m", "atomlog.consumers.cli", "status", "--watch", "0.05", "--json"]
    with subprocess.Popen(
        [*arguments, "--store", str(path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert first["partitions"][0]["owner"] is None

        async def wait_for_its_sight() -> None:
            async with await stored(path, writes=4) as store:
                assert store._writing.holder is not None, "the watcher took the store"
                end = await store._parts.log.end(0)
                assert watching.stdout is not None
                while line := await asyncio.to_thread(watching.stdout.readline):
                    found = json.loads(line)
                    (partition,) = found["partitions"]
                    if partition["end"] == end and partition["owner"] and partition["in_flight"] == 0:
                        break

        asyncio.run(wait_for_its_sight())
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(30) == 130


async def _filled(path: Path) -> None:
    await (await stored(path, writes=2)).close()
