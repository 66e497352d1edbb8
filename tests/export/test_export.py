"""`export`: the tables hold what the store holds, as of one position, whatever happens meanwhile."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from atomlog.client import AsyncStore, AtomlogError, Store
from atomlog.consumers.export import job, parquet
from atomlog.consumers.export.tables import TABLES
from atomlog.consumers.generations import GenerationDirectory
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import fail
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from tests.acceptance.writing import collection, membership, retire, revise, source
from tests.house.tree import ROOT

Rows = list[dict[str, Any]]
LOG_TABLES = ("revisions", "inputs", "relations", "memberships")
HOSTILE = (
    "nul \x00 inside\x00",
    "\x00",
    "مرحبا \u202e reversed \u202c",
    "👨‍👩‍👧‍👦 e\u0301 é ｶﾅ 葛\U000e0100",
    "\ufeff\u2028\u2029\r\n\t\x7f",
    "'; DROP TABLE revisions; --",
    "長い文 " * 60_000,  # lies in the blob store
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


def write(store: Store, key: str, *changes: Mapping[str, Any], space: str = "tea") -> list[dict[str, Any]]:
    batch = {"space": space, "idempotency_key": key, "changes": list(changes)}
    results: list[dict[str, Any]] = store.write(batch).to_dict()["results"]
    return results


def table(directory: Path, name: str) -> Rows:
    """The rows of a table, over all its files."""
    files = sorted((directory / name).glob("*.parquet"))
    assert files, f"{directory / name} has no file"
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def tables(directory: Path) -> dict[str, Rows]:
    return {name: table(directory, name) for name in LOG_TABLES}


def refusal(store: Store, directory: Path, **options: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        store.export(directory, **options)
    return caught.value


def filled(store: Store) -> None:
    """Two atoms in a group; one is revised, one taken out of it, one retired."""
    group, member, held = write(
        store, "1", collection("Green", **{"as": "@g"}), source("one", **{"as": "@m"}), membership("@g", "@m")
    )
    (again,) = write(store, "2", revise(member, {"text": "one, revised"}))
    other, second = write(store, "3", source("two", **{"as": "@o"}), membership(group["atom"], "@o", order_key="b"))
    write(store, "4", retire(held))
    write(store, "5", retire(other), revise(again, {"text": "one, once more"}))
    assert second["atom"] != held["atom"]


def test_revisions_are_those_of_the_log_in_its_order(store: Store, tmp_path: Path) -> None:
    filled(store)
    report = store.export(tmp_path / "out")
    rows = table(tmp_path / "out", "revisions")
    assert report.rows["revisions"] == len(rows) == 9
    places = [(row["position"], row["index"]) for row in rows]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    texts = [row["text"] for row in rows if row["schema"] == "source"]
    assert texts == ["one", "one, revised", "two", None, "one, once more"]
    current = [(row["text"], row["retired"]) for row in rows if row["current"] and row["schema"] == "source"]
    assert current == [(None, True), ("one, once more", False)]
    history = [row for row in rows if row["text"] and row["text"].startswith("one")]
    assert [row["previous"] for row in history] == [None, history[0]["revision"], history[1]["revision"]]
    shown = store.history(history[0]["atom"]).to_dict()["atoms"]
    assert [(row["revision"], json.loads(row["value"])) for row in history] == [
        (row["revision"], row["value"]) for row in shown
    ]
    assert [row["recorded_at"].isoformat(timespec="microseconds")[:26] for row in history] == [
        row["recorded_at"][:26] for row in shown
    ]


def test_relations_and_memberships_say_from_when_and_until_when(store: Store, tmp_path: Path) -> None:
    filled(store)
    store.export(tmp_path / "out")
    members = table(tmp_path / "out", "memberships")
    spans = {(row["order_key"], row["born"]): row["died"] for row in members}
    assert spans == {(b"", 1): 4, (b"b", 3): None}
    relations = table(tmp_path / "out", "relations")
    assert sorted((row["role"], row["born"], row["died"]) for row in relations) == [
        ("group", 1, 4),
        ("group", 3, None),
        ("member", 1, 4),
        ("member", 3, None),
    ]
    assert {row["atom"] for row in relations} == {row["membership"] for row in members}


@pytest.mark.parametrize("position", range(-1, 6))
def test_an_export_as_of_earlier_is_the_one_that_was_made_then(store: Store, tmp_path: Path, position: int) -> None:
    with Store.open(tmp_path / "short") as short:
        filled(store)
        written = store.log_dump()
        kept = [record for record in written if record["position"] <= position]
        store.export(tmp_path / "then", at=position)
        then = tables(tmp_path / "then")
        assert {row["position"] for row in then["revisions"]} == {
            record["position"] for record in kept if record["kind"] == "Batch"
        }
        short.export(tmp_path / "nothing")
        if position < 1:
            assert then == tables(tmp_path / "nothing") == {name: [] for name in LOG_TABLES}
    for row in then["relations"] + then["memberships"]:
        assert row["born"] <= position
        assert row["died"] is None or row["died"] <= position
    heads = {row["atom"]: row["revision"] for row in then["revisions"]}
    assert {row["revision"] for row in then["revisions"] if row["current"]} == set(heads.values())


def test_what_is_written_after_the_positions_changes_nothing(store: Store, tmp_path: Path) -> None:
    (made,) = write(store, "1", source("one", key="a"))
    group, _ = write(store, "2", collection("G", **{"as": "@g"}), membership("@g", made["atom"], key="m"))
    store.export(tmp_path / "before")
    write(store, "3", revise(made, {"text": "later"}))
    write(store, "4", retire(store.get("key:m", space="tea").to_dict()["atoms"][0]))
    store.export(tmp_path / "after", at=2)
    assert tables(tmp_path / "before") == tables(tmp_path / "after")
    assert group["atom"] in {row["group_atom"] for row in table(tmp_path / "after", "memberships")}


def test_a_time_means_the_last_batch_recorded_by_then(store: Store, tmp_path: Path) -> None:
    filled(store)
    store.export(tmp_path / "all")
    times = {row["position"]: row["recorded_at"] for row in table(tmp_path / "all", "revisions")}
    report = store.export(tmp_path / "then", as_of=times[3].isoformat())
    assert dict(report.manifest.positions) == {0: 3}
    assert refusal(store, tmp_path / "x", as_of="2400-01-01T00:00:00Z").code == "INVALID_INPUT"


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_any_text_comes_back_as_it_was(store: Store, tmp_path: Path, number: int) -> None:
    text = HOSTILE[number]
    value = {"text": text, "more": [text[:100], {"a": 2**63 - 1, "b": -0.5, "c": None}]}
    write(store, "1", {"op": "create", "schema": "source", "value": value})
    store.export(tmp_path / "out")
    (row,) = table(tmp_path / "out", "revisions")
    assert row["text"] == text
    assert json.loads(row["value"]) == value


def test_inputs_are_the_versions_and_ranges_that_were_read(store: Store, tmp_path: Path) -> None:
    filled(store)
    group = next(row["group_atom"] for row in _exported(store, tmp_path / "first", "memberships"))
    page = store.members(group).to_dict()
    provenance = {"kind": "generated", "receipts": [page["receipt"]["receipt"]], "model": "m-1"}
    change = {"op": "create", "schema": "summary", "value": {"text": "sum"}, "provenance": provenance}
    (made,) = write(store, "6", change)
    store.export(tmp_path / "out")
    rows = table(tmp_path / "out", "inputs")
    assert {row["revision"] for row in rows} == {made["revision"]}
    shown = {(row["atom"], row["revision"]) for row in page["receipt"]["rows"]}
    assert {(row["input_atom"], row["input_revision"]) for row in rows if row["kind"] == "version"} == shown
    ranges = [row for row in rows if row["kind"] == "range"]
    assert group in {row["target"] for row in ranges}
    assert all(row["observed"] for row in ranges)
    (summary,) = [row for row in table(tmp_path / "out", "revisions") if row["schema"] == "summary"]
    assert (summary["kind"], summary["model"]) == ("generated", "m-1")


def _exported(store: Store, directory: Path, name: str) -> Rows:
    store.export(directory)
    return table(directory, name)


def test_receipts_are_those_of_reads_that_saw_nothing_later(store: Store, tmp_path: Path) -> None:
    (made,) = write(store, "1", source("one"))
    early = store.get(made["atom"]).to_dict()["receipt"]
    write(store, "2", source("two"))
    store.wait_until_current()
    late = store.recall("one", space="tea").to_dict()["receipt"]
    store.export(tmp_path / "then", at=1)
    store.export(tmp_path / "now")
    assert [row["receipt"] for row in table(tmp_path / "then", "receipts")] == [early["receipt"]]
    now = {row["receipt"]: row for row in table(tmp_path / "now", "receipts")}
    assert list(now) == [early["receipt"], late["receipt"]]
    row = now[late["receipt"]]
    assert row["positions"] == [{"partition": 0, "position": 2}]
    assert [one["atom"] for one in row["shown"]] == [one["atom"] for one in late["rows"]]
    assert row["body_sha256"] == late["body_sha256"]
    assert "one" not in json.dumps(row, default=str), "a receipt has no text"


def test_every_partition_has_its_file(tmp_path: Path) -> None:
    Store.init(tmp_path / "store", partitions=3)
    with Store.open(tmp_path / "store") as store:
        for number in range(12):
            write(store, str(number), source(f"text {number}"), space=f"space-{number}")
        report = store.export(tmp_path / "out")
        assert report.manifest.positions.keys() == {0, 1, 2}
        for number in range(3):
            rows = pq.read_table(tmp_path / "out" / "revisions" / f"part-{number}.parquet").to_pylist()
            assert {row["partition"] for row in rows} <= {number}
        assert len(table(tmp_path / "out", "revisions")) == 12
        some = {0: 1, 1: -1, 2: 0}
        then = store.export(tmp_path / "then", at=some)
        assert dict(then.manifest.positions) == some
        assert refusal(store, tmp_path / "x", at=3).code == "INVALID_INPUT"
        assert refusal(store, tmp_path / "x", at={0: 1}).code == "INVALID_INPUT"
        assert refusal(store, tmp_path / "x", at={0: 10_000, 1: 0, 2: 0}).code == "INVALID_INPUT"


def test_a_node_exports_the_partitions_that_it_indexes(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    Store.init(path, partitions=3)
    for name in ("ids", "relations"):
        directory = GenerationDirectory(SystemFiles(), path, name)
        lock = directory.lock()
        directory.assign((0, 2), 3)
        lock.release()
    with Store.open(path) as store:
        for number in range(12):
            write(store, str(number), source(f"text {number}"), space=f"space-{number}")
        report = store.export(tmp_path / "out")
        assert report.manifest.positions.keys() == {0, 2}
        assert {row["partition"] for row in table(tmp_path / "out", "revisions")} == {0, 2}
        assert refusal(store, tmp_path / "x", at={0: 1, 1: 1, 2: 1}).code == "INVALID_INPUT"


def test_without_the_master_key_contents_are_null_and_said_to_be_sealed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        filled(store)
        store.export(tmp_path / "open")
    (tmp_path / "store" / "master.key").unlink()
    with Store.open(tmp_path / "store") as store:
        report = store.export(tmp_path / "sealed")
        assert report.manifest.sealed
        rows = table(tmp_path / "sealed", "revisions")
        nulls = ("value", "text", "kind", "activity", "model", "origins")
        assert all(row["sealed"] and not row["erased"] for row in rows)
        assert all(row[name] is None for row in rows for name in nulls)
        kept = [name for name in rows[0] if name not in (*nulls, "sealed")]
        assert [[row[name] for name in kept] for row in rows] == [
            [row[name] for name in kept] for row in table(tmp_path / "open", "revisions")
        ]
        assert refusal(store, tmp_path / "open").code == "INVALID_INPUT", "never half open, half sealed"
    command = [sys.executable, "-m", "atomlog.consumers.cli", "export", "--to", str(tmp_path / "by-command")]
    command += ["--store", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "sealed" in done.stderr


def test_erased_content_is_null_and_said_to_be_erased(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "1", source("gone"))
    write(store, "2", source("kept"))
    real = ContentOpener.open_decoded

    async def open_decoded(self: ContentOpener, revision: bytes, clear: Any, at: int) -> Any:
        opened = await real(self, revision, clear, at)
        if getattr(opened, "text", None) == "gone":
            raise fail("PURGED", "the content was erased")
        return opened

    monkeypatch.setattr(ContentOpener, "open_decoded", open_decoded)
    store.export(tmp_path / "out")
    rows = table(tmp_path / "out", "revisions")
    assert [(row["erased"], row["sealed"], row["text"]) for row in rows] == [
        (True, False, None),
        (False, False, "kept"),
    ]


def test_it_runs_beside_a_writer_and_takes_nothing_from_it(store: Store, tmp_path: Path) -> None:
    filled(store)
    command = [sys.executable, "-m", "atomlog.consumers.cli", "export", "--to", str(tmp_path / "out"), "--json"]
    command += ["--store", store.directory]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        number = 0
        while process.poll() is None:
            write(store, f"more {number}", source(f"more {number}"))
            number += 1
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
    assert process.returncode == 0
    end = report["positions"]["0"]
    rows = table(tmp_path / "out", "revisions")
    expected = [r["position"] for r in store.log_dump() if r["kind"] == "Batch" and r["position"] <= end]
    assert sorted({row["position"] for row in rows}) == expected
    write(store, "last", source("still the owner"))


KILLED = """
import os, signal, sys
from atomlog.client import Store

def progress(table, done, total):
    if table.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

with Store.open(sys.argv[1]) as store:
    store.export(sys.argv[2], progress=progress)
"""


@pytest.mark.parametrize("where", ["revisions", "relations", "receipts"])
def test_a_killed_export_goes_on_and_ends_like_one_that_was_not(tmp_path: Path, where: str) -> None:
    with Store.open(tmp_path / "store") as store:
        filled(store)
        store.history(write(store, "6", source("read"))[0]["atom"])
        store.export(tmp_path / "whole")
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "store"), str(tmp_path / "out"), where], cwd=ROOT, check=False
    )
    assert child.returncode == -signal.SIGKILL
    half = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert half["finished_at"] is None
    inodes = {one["path"]: os.stat(tmp_path / "out" / one["path"]).st_ino for one in half["files"]}
    with Store.open(tmp_path / "store") as store:
        write(store, "later", source("not in it"))
        report = store.export(tmp_path / "out")
    assert report.resumed
    assert report.manifest.finished_at is not None
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    assert {path: os.stat(tmp_path / "out" / path).st_ino for path in inodes} == inodes, "what was finished stays"


def test_a_finished_file_that_changed_is_made_anew(store: Store, tmp_path: Path) -> None:
    filled(store)
    store.export(tmp_path / "out")
    path = tmp_path / "out" / "relations" / "part-0.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    (tmp_path / "out" / "inputs" / "part-0.parquet").unlink()
    store.export(tmp_path / "out")
    assert path.read_bytes() == whole
    assert table(tmp_path / "out", "inputs") == []


def test_a_directory_that_is_something_else_is_refused_and_left_alone(store: Store, tmp_path: Path) -> None:
    filled(store)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert "in use by something else" in str(refusal(store, other))
    assert [path.name for path in other.iterdir()] == ["mine.txt"]
    (tmp_path / "file").write_text("")
    assert refusal(store, tmp_path / "file").code == "INVALID_INPUT"
    (other / "manifest.json").write_text("[1]")
    assert refusal(store, other).code == "INVALID_INPUT"
    store.export(tmp_path / "out")
    assert "positions" in str(refusal(store, tmp_path / "out", at=1))
    assert "tables" in str(refusal(store, tmp_path / "out", tables=["revisions"]))
    with Store.open(tmp_path / "another") as another:
        filled(another)
        assert "log" in str(refusal(another, tmp_path / "out"))


def test_only_the_tables_that_were_asked_for_are_written(store: Store, tmp_path: Path) -> None:
    filled(store)
    report = store.export(tmp_path / "out", tables=["memberships", "revisions"])
    assert report.manifest.tables == ("revisions", "memberships")
    assert {path.parent.name for path in (tmp_path / "out").rglob("*.parquet")} == {"revisions", "memberships"}
    assert refusal(store, tmp_path / "x", tables=["atoms"]).code == "INVALID_INPUT"
    assert refusal(store, tmp_path / "x", tables=[]).code == "INVALID_INPUT"
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_another_export_into_the_same_directory_is_told_to_wait(store: Store, tmp_path: Path) -> None:
    filled(store)
    found: list[AtomlogError] = []

    def progress(_table: str, _done: int, _total: int) -> None:
        if not found:
            with pytest.raises(AtomlogError) as caught, job._Place(SystemFiles(), str(tmp_path / "out")):
                raise AssertionError("two at once")
            found.append(caught.value)

    store.export(tmp_path / "out", progress=progress)
    assert [error.code for error in found] == ["STORE_LOCKED"]


def test_a_full_disk_is_told_and_the_next_one_goes_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)
    real, written = parquet._Sink.write, 0

    def write_some(self: parquet._Sink, data: Any) -> int:
        nonlocal written
        written += len(bytes(data))
        if written > 8_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, data)

    with monkeypatch.context() as full:
        full.setattr(parquet._Sink, "write", write_some)
        assert refusal(store, tmp_path / "out").code == "OVERLOADED"
    report = store.export(tmp_path / "out")
    assert report.resumed
    store.export(tmp_path / "whole")
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")


def test_an_index_that_is_behind_is_waited_for_while_it_moves_and_no_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(read_timeout_ms=150)
        async with await AsyncStore.open(tmp_path / "store", settings=settings) as store:
            for number in range(4):
                await store.write({"space": "s", "idempotency_key": str(number), "changes": [source(str(number))]})
            await store.wait_until_current()
            follower = store.views["relations"].follower
            assert follower is not None
            follower.pause()
            await store.write({"space": "s", "idempotency_key": "last", "changes": [source("last")]})
            with pytest.raises(AtomlogError, match="INDEX_LAGGING"):
                await store.export(tmp_path / "out", tables=["relations"])
            follower.resume()
            report = await store.export(tmp_path / "out", tables=["relations"])
            assert report.resumed

    asyncio.run(scenario())


def test_without_pyarrow_the_way_out_is_said_and_nothing_is_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = refusal(store, tmp_path / "out")
    assert error.code == "NOT_INSTALLED"
    assert "pip install 'atomlog[export]'" in error.message
    assert not (tmp_path / "out").exists()


def test_rows_are_written_in_bounded_groups(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "GROUP_ROWS_MAX", 4)
    monkeypatch.setattr(job, "GROUP_BYTES_MAX", 100_000)
    filled(store)
    write(store, "long", source("x" * 60_000), source("y" * 60_000), source("z"))
    store.export(tmp_path / "out")
    groups = pq.ParquetFile(tmp_path / "out" / "revisions" / "part-0.parquet").metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [
        4,
        4,
        2,
        1,
        1,
    ]  # a text counts in its value, too


@pytest.mark.parametrize("name", TABLES)
def test_the_files_have_the_columns_that_are_declared(store: Store, tmp_path: Path, name: str) -> None:
    store.export(tmp_path / "out", tables=[name])
    (file,) = (tmp_path / "out" / name).glob("*.parquet")
    schema = pq.read_schema(file)
    assert [(field.name, field.nullable) for field in schema] == [
        (column.name, column.nullable) for column in TABLES[name].columns
    ]
    assert schema.metadata[b"atomlog.table"] == name.encode()
