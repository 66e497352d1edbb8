"""status, log dump, rebuild, verify, replay."""

import json
import os
import shutil
from pathlib import Path

from atomlog.client import Store
from tests.consumers.cli.driving import atomlog, batch, fill, note, process


def test_status_shows_partitions_and_projections(store: Path) -> None:
    found = atomlog("status", "--json", store=store).json
    assert found.keys() == {"log_id", "partitions", "projections", "disk", "nodes"}
    assert (found["partitions"][0]["end"], found["partitions"][0]["effective_batches"]) == (3, 2)
    assert [one["name"] for one in found["projections"]] == ["ids", "relations", "postings", "vectors"]
    shown = atomlog("status", store=store).out
    assert "partition" in shown
    assert "postings" in shown


def test_log_dump_shows_every_record_with_its_verdict(store: Path) -> None:
    records = atomlog("log", "dump", "--json", store=store).jsons
    assert [(one["position"], one["kind"], one["verdict"]) for one in records] == [
        (0, "Claim", "effective"),
        (1, "Batch", "effective"),
        (2, "Batch", "effective"),
    ]
    part = atomlog("log", "dump", "--since", "1", "--until", "2", "--json", store=store).jsons
    assert [one["position"] for one in part] == [1]
    assert "effective" in atomlog("log", "dump", "--partition", "0", store=store).out
    refused = atomlog("log", "dump", "--since", "2", "--until", "1", store=store)
    assert (refused.code, "lies before 2" in refused.err) == (2, True)


def test_status_names_who_else_holds_the_store_and_never_itself(store: Path) -> None:
    with process("--store", store, "status", "--json") as alone:
        found = json.loads(alone.communicate(timeout=120)[0])
    assert [one["owner"] for one in found["partitions"]] == [None]
    assert {one["follower"] for one in found["projections"]} == {None}
    with Store.open(store), process("--store", store, "status", "--json") as beside:
        found = json.loads(beside.communicate(timeout=120)[0])
    assert [one["owner"]["pid"] for one in found["partitions"]] == [os.getpid()]
    assert {one["follower"] for one in found["projections"]} == {os.getpid()}


def test_verify_and_rebuild_compare_and_exchange(store: Path) -> None:
    reports = atomlog("verify", "--json", store=store)
    assert reports.code == 0
    assert {one["name"]: one["equal"] for one in reports.jsons} == dict.fromkeys(
        ("ids", "relations", "postings", "vectors", "heads"), True
    )
    assert not any(one["swapped"] for one in reports.jsons)
    (rebuilt,) = atomlog("rebuild", "relations", "--json", store=store).jsons
    assert (rebuilt["name"], rebuilt["equal"], rebuilt["swapped"]) == ("relations", True, True)
    assert "equal" in atomlog("rebuild", "postings", store=store).out
    assert atomlog("members", "key:tea", "--space", "notes", store=store).code == 0


def test_ids_are_exchanged_by_force_although_a_long_text_is_lost_and_it_is_said_which(store: Path) -> None:
    fill(store, batch("k-long", note("long", "x" * 100_000)))
    shutil.rmtree(store / "blobs")
    refused = atomlog("rebuild", "ids", "--json", store=store)
    assert (refused.code, refused.json["swapped"], "blob" in refused.err) == (70, False, True)
    forced = atomlog("rebuild", "ids", "--force", "--json", store=store)
    assert (forced.code, forced.json["swapped"], forced.json["equal"]) == (0, True, True)
    assert (forced.json["content_digest"], forced.json["error"]["code"]) == (None, "CORRUPT")
    assert "ids: CORRUPT" in forced.err
    assert atomlog("verify", "ids", store=store).code == 70
    assert atomlog("get", "key:sencha", "--space", "notes", store=store).code == 0


def test_replay_makes_a_store_as_of_then_that_only_reads(store: Path, tmp_path: Path) -> None:
    fill(store, batch("k-3", note("late", "late")))
    then = tmp_path / "then"
    done = atomlog("replay", "--until", "2", "--to", then, "--json", store=store)
    assert (done.code, done.json["positions"]) == (0, {"0": 2})
    assert atomlog("get", "key:sencha", "--space", "notes", store=then).code == 0
    assert atomlog("get", "key:late", "--space", "notes", store=then).code == 5
    refused = atomlog("write", stdin=batch("k", note("x", "x")), store=then)
    assert (refused.code, "STORE_READ_ONLY" in refused.err) == (5, True)


def test_replay_until_a_time(store: Path, tmp_path: Path) -> None:
    atom = atomlog("get", "key:sencha", "--space", "notes", "--json", store=store).json["atoms"][0]
    done = atomlog("replay", "--until", atom["recorded_at"], "--to", tmp_path / "then", store=store)
    assert done.code == 0
    assert "up to 1" in done.out
