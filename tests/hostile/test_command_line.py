"""Words of a command line that are no words: each command refuses them with its exit code, in text and as JSON."""

import json
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from atomlog.consumers.cli.main import main
from tests.consumers.cli.driving import atomlog, batch, note

HOSTILE: Final = (
    *("\udcff", "key:é\udc80", "9" * 5_000, "-1", "nan", "", "[" * 2_000, "{" * 2_000, "@a", "key:a#" + "9" * 5_000),
    *("0:" + "9" * 5_000, "٣", "\x1b[31m"),
)
HERE: Final = "HERE"
COMMANDS: Final = (
    *("get HERE", "get key:a --space HERE", "get key:a --policy HERE", "get key:a --at HERE", "get key:a --as-of HERE"),
    *("get key:a --at-least HERE", "get key:a --limit HERE", "get key:a --continue HERE", "get key:a --timeout HERE"),
    *("get key:a --revision HERE", "history HERE", "members HERE", "members key:a --and HERE", "groups HERE"),
    *("relations --target HERE", "relations --of HERE", "relations --target key:a --role HERE", "quote HERE"),
    *("recall x --scope HERE", "recall --vector HERE", "recall x --space HERE", "receipt show HERE"),
    *("receipt replay HERE", "receipt verify HERE", "outcome HERE --space HERE", "status --every HERE"),
    *("log dump --partition HERE", "verify HERE", "rebuild HERE", "replay --until HERE --to THERE", "write HERE"),
    *("import jsonl HERE --space notes", "import jsonl /dev/null --space HERE", "init --partitions HERE"),
    *("init --shard-rows HERE", "init --vector-space HERE", "consume HERE", "HERE"),
)
REFUSALS: Final = (2, 5, 6)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command") / "s"
    assert atomlog("write", stdin=batch("1", note("a", "A")), store=folder).code == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_word_that_is_none_is_refused_with_an_exit_code_and_no_traceback(directory: Path, command: str) -> None:
    for place, hostile in enumerate(HOSTILE):
        chosen = {HERE: hostile, "THERE": str(directory.with_name("then"))}
        words = [chosen.get(word, word) for word in command.split(" ")]
        as_json = ["--json"] if place % 2 == 0 else []
        done = CliRunner().invoke(main, [*words, *as_json, "--store", str(directory)], prog_name="atomlog")
        assert done.exception is None or isinstance(done.exception, SystemExit), (hostile[:40], done.exc_info)
        assert "Traceback" not in done.stderr
        if done.exit_code:
            assert done.exit_code in REFUSALS, (hostile[:40], done.exit_code, done.output)
        if as_json and done.exit_code:
            error = json.loads(done.stdout.splitlines()[-1])["error"]
            assert error["code"]
            assert error["message"]


@pytest.mark.parametrize("name", [b"\xff.jsonl", "か\u3099.jsonl".encode(), b"a b\n.jsonl", b"-.jsonl"])
def test_a_file_of_any_name_is_imported_or_named(directory: Path, name: bytes, tmp_path: Path) -> None:
    file = tmp_path / name.decode("utf-8", "surrogateescape")
    there = atomlog("import", "jsonl", file, "--space", "notes", "--json", store=directory)
    assert (there.code, "Traceback" in there.err) == (2, False)
    file.write_text('{"id": "n", "text": "named"}\n')
    done = atomlog("import", "jsonl", file, "--space", "notes", "--json", store=directory)
    assert (done.code, "Traceback" in done.err) == (0, False)
