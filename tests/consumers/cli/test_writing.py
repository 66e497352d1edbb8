"""init, write, import: results, refusals with their line, exit codes."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.consumers.cli.driving import COMMAND, atomlog, batch, environment, fill, lines, note


def test_init_makes_a_store_once(tmp_path: Path) -> None:
    store = tmp_path / "new"
    done = atomlog("init", "--partitions", "3", "--shard-rows", "512", "--json", store=store)
    assert (done.json["partitions"], done.json["shard_rows"]) == (3, 512)
    assert "master key" in done.err
    assert stat.S_IMODE((store / "master.key").stat().st_mode) == 0o600
    assert atomlog("log", "dump", store=store).out == ""
    again = atomlog("init", store=store)
    assert (again.code, "not empty" in again.err) == (2, True)


def test_a_master_key_elsewhere_is_needed_again(tmp_path: Path) -> None:
    store, key = tmp_path / "store", tmp_path / "keys" / "my.key"
    key.parent.mkdir()
    assert atomlog("init", "--master-key", key, store=store).code == 0
    assert not (store / "master.key").exists()
    line = batch("k", note("a", "secret"))
    assert atomlog("write", "--master-key", key, stdin=line, store=store).code == 0
    get = ("get", "key:a", "--space", "notes")
    assert atomlog(*get, "--master-key", key, store=store).out.rstrip().endswith("secret")
    assert atomlog(*get, store=store).out.rstrip().endswith("(sealed)")


def test_write_prints_a_result_a_line(tmp_path: Path) -> None:
    store = tmp_path / "s"
    results = fill(store, batch("1", note("a", "A")), "\n", batch("2", note("b", "B")))
    assert [result["ok"] for result in results] == [True, True]
    assert [result["receipt"]["position"] for result in results] == [1, 2]
    (again,) = fill(store, batch("1", note("a", "A")))
    assert (again["replayed"], again["receipt"]["position"]) == (True, 1)


def test_write_takes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "batches.jsonl"
    file.write_text(batch("1", note("a", "A")))
    assert atomlog("write", file, store=tmp_path / "s").json["ok"]


def test_a_batch_spread_over_lines_is_told_to_stand_on_one(tmp_path: Path) -> None:
    spread = json.dumps(json.loads(batch("1", note("a", "A"))), indent=1)
    done = atomlog("write", stdin=spread, store=tmp_path / "s")
    assert done.code == 2
    assert done.jsons[0]["error"]["message"].endswith("each line is one whole batch")


def test_write_stops_at_the_first_refused_line_and_names_it(tmp_path: Path) -> None:
    text = batch("1", note("a", "A")) + "\n" + batch("2", note("a", "again")) + batch("3", note("b", "B"))
    done = atomlog("write", stdin=text, store=tmp_path / "s")
    assert done.code == 3
    assert [(result["ok"], result.get("line")) for result in done.jsons] == [(True, None), (False, 3)]
    assert done.jsons[1]["error"]["code"] == "REVISION_CONFLICT"
    assert "error: REVISION_CONFLICT" in done.err


def test_write_keeps_going_and_ends_with_the_first_error(tmp_path: Path) -> None:
    text = "{\n" + batch("1", note("a", "A")) + batch("2", note("a", "B")) + "[1]\n" + batch("3", note("b", "B"))
    done = atomlog("write", "--keep-going", stdin=text, store=tmp_path / "s")
    assert done.code == 2
    assert [result["ok"] for result in done.jsons] == [False, True, False, False, True]
    assert [result["line"] for result in done.jsons if not result["ok"]] == [1, 3, 4]


NAIVE = {**note("a", "x"), "valid_time": {"from": "2026-01-01T00:00:00"}}
SURROGATE = batch("k", note("a", "x")).replace('"x"', '"\\ud800"')


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (batch("k", {"op": "creat"}), "changes[0].op"),
        (batch("k", NAIVE), "changes[0].valid_time.from"),
        (batch("k", {"op": "retire", "atom": "no-uuid", "expected": "x"}), "changes[0].atom"),
        (SURROGATE, "changes[0].value.text"),
        ('{"space": NaN}', "space"),
    ],
)
def test_a_bad_batch_is_refused_by_its_part_and_nothing_is_written(tmp_path: Path, line: str, path: str) -> None:
    done = atomlog("write", stdin=line, store=tmp_path / "s")
    assert done.code == 2
    (result,) = done.jsons
    assert result["line"] == 1
    assert any(detail["path"].endswith(path) for detail in result["error"]["details"])
    assert atomlog("log", "dump", store=tmp_path / "s").out == ""


def test_import_jsonl_tells_what_it_did_and_does_it_once(tmp_path: Path) -> None:
    store, file = tmp_path / "s", tmp_path / "f.jsonl"
    file.write_text(lines([{"id": "a", "text": "A", "groups": ["g"]}, {"id": "a", "text": "B"}]))
    first = atomlog("import", "jsonl", file, "--space", "notes", "--json", store=store)
    assert (first.code, first.err) == (0, "")
    assert first.json | {"ok": True, "written": 2, "changes": 4, "lines": 2, "space": "notes"} == first.json
    end = atomlog("status", "--json", store=store).json["partitions"][0]
    second = atomlog("import", "jsonl", file, "--space", "notes", store=store)
    assert second.out == "2 batches, 2 skipped, 2 lines\n"
    after = atomlog("status", "--json", store=store).json["partitions"][0]
    assert (end["end"], end["term"]) == (after["end"], after["term"])


def test_import_jsonl_reads_standard_input_and_pipes(tmp_path: Path) -> None:
    text = lines([{"id": "a", "text": "A"}])
    assert atomlog("import", "jsonl", "-", "--space", "notes", stdin=text, store=tmp_path / "s").code == 0
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"cat > {fifo}"], stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(text.encode())
        writer.stdin.close()
        done = atomlog("import", "jsonl", fifo, "--space", "notes", store=tmp_path / "s")
    assert done.out == "1 batch, 1 skipped, 1 line\n"


def test_a_bad_line_ends_an_import_with_its_number(tmp_path: Path) -> None:
    store = tmp_path / "s"
    text = lines([{"id": "a", "text": "A"}, {"id": "b", "text": "B", "time": "2026-01-01"}, {"id": "c", "text": "C"}])
    done = atomlog("import", "jsonl", "-", "--space", "notes", stdin=text, store=store)
    assert done.code == 2
    assert "line 2.time: " in done.err
    assert atomlog("get", "key:a", "--space", "notes", store=store).code == 0
    assert atomlog("get", "key:c", "--space", "notes", store=store).code == 5
    kept = atomlog("import", "jsonl", "-", "--space", "notes", "--keep-going", "--json", stdin=text, store=store)
    assert kept.code == 2
    assert (kept.json["ok"], kept.json["refused"], kept.json["written"], kept.json["skipped"]) == (False, 1, 1, 1)
    assert kept.json["error"]["details"][0]["line"] == 2


def test_an_import_needs_a_space_and_a_file(tmp_path: Path) -> None:
    done = atomlog("import", "jsonl", "-", stdin="", store=tmp_path / "s")
    assert (done.code, "--space" in done.err) == (2, True)
    done = atomlog("import", "jsonl", tmp_path / "none", "--space", "notes", store=tmp_path / "s")
    assert (done.code, "does not exist" in done.err) == (2, True)
    done = atomlog("import", "jsonl", "-", "--space", "No Name", stdin="", store=tmp_path / "s")
    assert (done.code, "--space" in done.err) == (2, True)


def test_an_import_over_the_bounds_says_its_size_unless_it_may_be_split(tmp_path: Path) -> None:
    text = lines([{"id": f"n{n}", "text": "t", "batch": "all"} for n in range(1_001)])
    refused = atomlog("import", "jsonl", "-", "--space", "notes", stdin=text, store=tmp_path / "s")
    assert (refused.code, "1001 lines" in refused.err, "--split" in refused.err) == (2, True, True)
    split = atomlog("import", "jsonl", "-", "--space", "notes", "--split", "--json", stdin=text, store=tmp_path / "s")
    assert (split.code, split.json["written"], split.json["split"], split.json["changes"]) == (0, 2, 1, 1_001)
    assert "in parts" in split.err


def test_import_git_takes_a_repository_in(tmp_path: Path) -> None:
    repository = tmp_path / "r"
    repository.mkdir()
    (repository / "a.md").write_text("hello")
    (repository / "b.bin").write_bytes(b"\0")
    who = ["-c", "user.name=Ada", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True, env=environment(GIT_CONFIG_NOSYSTEM="1"))
    done = atomlog("import", "git", repository, "--space", "repo", "--json", store=tmp_path / "s")
    assert done.code == 0
    assert (done.json["commits"], done.json["written"], done.json["passed_over"]) == (1, 1, {"binary": 1})
    assert "passed over: 1 binary file version, e.g. 'b.bin'" in done.err
    assert atomlog("get", "key:a.md", "--space", "repo", store=tmp_path / "s").out.rstrip().endswith("hello")
    nowhere = atomlog("import", "git", tmp_path / "s", "--space", "repo", store=tmp_path / "s")
    assert (nowhere.code, "not a git repository" in nowhere.err) == (2, True)


def test_reading_and_writing_need_no_utf8_locale(tmp_path: Path) -> None:
    plain = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    store = str(tmp_path / "s")
    write = [*COMMAND, "write", "--store", store]
    subprocess.run(write, input=batch("k", note("a", "緑茶")).encode(), env=plain, check=True, capture_output=True)
    words = [*COMMAND, "get", "key:a", "--space", "notes", "--store", store]
    done = subprocess.run(words, env=plain, check=True, capture_output=True)
    assert done.stdout.rstrip().endswith("緑茶".encode())
    page = subprocess.run([*words, "--json"], env=plain, check=True, capture_output=True).stdout
    assert json.loads(page)["atoms"][0]["value"] == {"text": "緑茶"}
