"""What commands say to people: the same id everywhere, words and not JSON, nothing made by a refused command."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.consumers.cli.driving import COMMAND, atomlog, batch, environment, fill, member, note


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("--partitions", "0"), "partitions"),
        (("--partitions", "4097"), "partitions"),
        (("--shard-rows", "0"), "shard_rows"),
        (("--shard-rows", "1000001"), "shard_rows"),
        (("--vector-space", "mine"), "vector_spaces[0]"),
        (("--master-key", "/no/such/folder/key"), "master_key_file"),
    ],
)
def test_a_store_that_could_not_be_opened_is_not_made(words: tuple[str, ...], path: str, tmp_path: Path) -> None:
    done = atomlog("init", *words, store=tmp_path / "new")
    assert (done.code, done.err.startswith(f"error: INVALID_INPUT: {path}: ")) == (2, True)
    assert not (tmp_path / "new").exists()


def test_the_largest_numbers_that_init_takes_can_be_opened(tmp_path: Path) -> None:
    assert atomlog("init", "--shard-rows", "1000000", store=tmp_path / "new").code == 0
    assert atomlog("status", store=tmp_path / "new").code == 0


def test_init_names_the_log_as_status_does(tmp_path: Path) -> None:
    made = atomlog("init", "--json", store=tmp_path / "a").json
    assert atomlog("status", "--json", store=tmp_path / "a").json["log_id"] == made["log_id"]
    told = atomlog("init", store=tmp_path / "b").out
    log = atomlog("status", "--json", store=tmp_path / "b").json["log_id"]
    assert told == f"made a store in {tmp_path / 'b'}: log {log}, 1 partition\n"


def test_status_for_people_is_no_json(store: Path) -> None:
    *_, disk = atomlog("status", store=store).out.splitlines()
    assert disk.startswith("disk  ")
    assert re.search(r" MiB free, reserve 256 MiB; accepting writes(; full in [0-9,]+ days)?$", disk)


def test_replay_until_nonsense_names_both_forms(store: Path, tmp_path: Path) -> None:
    done = atomlog("replay", "--until", "yesterday", "--to", tmp_path / "then", store=store)
    assert done.code == 2
    assert "--until: 'yesterday' is neither a position" in done.err
    assert "nor a time" in done.err


def test_an_import_that_did_not_begin_counts_nothing(tmp_path: Path) -> None:
    done = atomlog("import", "git", tmp_path, "--space", "notes", store=tmp_path / "s")
    assert (done.code, done.out) == (2, "")


def test_a_line_without_an_id_says_that_it_is_missing(tmp_path: Path) -> None:
    done = atomlog("import", "jsonl", "-", "--space", "notes", store=tmp_path / "s", stdin='{"text": "x"}\n')
    assert (done.code, "line 1.id: is missing" in done.err) == (2, True)


def test_one_is_not_many(store: Path) -> None:
    fill(store, batch("one", {**note("lone", "Lone"), "schema": "collection"}, note("x", "X"), member("lone", "x")))
    frozen = atomlog("members", "key:lone", "--freeze", "--space", "notes", store=store)
    assert frozen.out.endswith("  1 member in 1 page\n")
    frozen = atomlog("members", "key:tea", "--freeze", "--space", "notes", store=store)
    assert frozen.out.endswith("  2 members in 1 page\n")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("atomlog rebuild po", ["postings"]),
        ("atomlog verify he", ["heads"]),
        ("atomlog consume ids v", ["vectors"]),
        ("atomlog consume he", []),
    ],
)
def test_a_shell_completes_the_names_of_projections(words: str, offered: list[str]) -> None:
    variables = environment(_ATOMLOG_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    done = subprocess.run([*COMMAND], env=variables, capture_output=True, check=True)
    assert [line.partition(",")[2] for line in done.stdout.decode().split()] == offered
