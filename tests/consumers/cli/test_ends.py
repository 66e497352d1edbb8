"""How a command ends: exit codes, no traceback, interruptions, broken pipes; help and completion."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from atomlog.consumers.cli.main import main
from atomlog.consumers.store import AsyncStore
from tests.consumers.cli.driving import COMMAND, atomlog, batch, environment, fill, lines, note, process


def commands(command: click.Command = main, name: str = "atomlog") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None
            yield from commands(inner, f"{name} {word}")
    else:
        yield name, command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_ends_with_an_example(name: str) -> None:
    done = atomlog(*name.split()[1:], "--help")
    assert done.code == 0
    last = done.out.rstrip().splitlines()[-1]
    assert "atomlog" in last
    assert "Example" in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_flag_ends_with_2_and_the_way_out(name: str) -> None:
    done = atomlog(*name.split()[1:], "--no-such-flag")
    assert done.code == 2
    assert f"Try '{name} --help'" in done.err
    assert "No such option '--no-such-flag'" in done.err


READING = (
    ("get", "key:a"),
    ("history", "key:a"),
    ("members", "key:a"),
    ("groups", "key:a"),
    ("relations", "--of", "key:a"),
    ("recall", "a"),
    ("quote", "key:a#0"),
    ("receipt", "show", "01a22c68-0d19-7c6a-997c-bff560ba9864"),
    ("receipt", "replay", "01a22c68-0d19-7c6a-997c-bff560ba9864"),
    ("receipt", "verify", "01a22c68-0d19-7c6a-997c-bff560ba9864"),
    ("outcome", "k"),
    ("status",),
    ("log", "dump"),
    ("verify",),
    ("rebuild",),
    ("replay", "--until", "1", "--to", "elsewhere"),
    ("consume", "ids"),
)


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_reading_commands_make_no_store(words: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "none"
    done = atomlog(*words, store=store)
    assert done.code == 2
    assert "STORE_NOT_FOUND" in done.err
    assert "atomlog init" in done.err
    assert not store.exists()


def test_a_directory_that_is_no_store_and_one_that_is_too_new_are_told_apart(tmp_path: Path, store: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    assert "STORE_NOT_FOUND" in atomlog("status", store=tmp_path / "other").err
    config = store / "store.json"
    good = json.loads(config.read_text())
    config.write_text(json.dumps({**good, "format": 99}))
    newer = atomlog("status", store=store)
    assert (newer.code, "STORE_TOO_NEW" in newer.err) == (2, True)
    config.write_text("{")
    broken = atomlog("status", store=store)
    assert (broken.code, "CORRUPT" in broken.err) == (70, True)


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (("get", "key:nothing", "--space", "notes"), 5, "NOT_FOUND"),
        (("get", "no-uuid"), 2, "INVALID_INPUT"),
        (("get", "key:sencha", "--space", "Not A Name"), 2, "INVALID_INPUT"),
        (("get", "key:sencha", "--space", "notes", "--as-of", "2026-01-01T00:00:00"), 2, "INVALID_INPUT"),
        (("get", "key:sencha", "--space", "notes", "--at", "999"), 2, "INVALID_INPUT"),
        (("members", "key:tea", "--space", "notes", "--continue", "forged"), 5, "CURSOR_EXPIRED"),
        (("receipt", "show", "01a22c68-0d19-7c6a-997c-bff560ba9864"), 5, "RECEIPT_EXPIRED"),
        (("verify", "nothing"), 2, "INVALID_INPUT"),
        (("log", "dump", "--partition", "7"), 2, "INVALID_INPUT"),
        (("replay", "--until", "999", "--to", "/tmp/never-made"), 2, "INVALID_INPUT"),
        (("consume", "heads"), 2, "INVALID_INPUT"),
    ],
)
def test_an_error_ends_with_the_exit_code_of_its_kind(
    store: Path, words: tuple[str, ...], code: int, name: str
) -> None:
    done = atomlog(*words, store=store)
    assert done.code == code
    assert f"error: {name}: " in done.err
    assert done.out == ""


def test_with_json_an_error_is_json_too(store: Path) -> None:
    done = atomlog("get", "key:nothing", "--space", "notes", "--json", store=store)
    assert (done.code, done.json["ok"], done.json["error"]["code"]) == (5, False, "NOT_FOUND")


@pytest.mark.parametrize(
    "words",
    [
        ("get", "key:a", "--at", "soon"),
        ("get", "key:a", "--at", "0:1,0:2"),
        ("get", "key:a", "--at-least", "[]"),
        ("get", "{broken"),
        ("recall",),
        ("recall", "a", "--scope", "{"),
        ("recall", "--vector", "no-such-file"),
        ("replay", "--until", "x", "--to", "d"),
        ("completion", "tcsh"),
    ],
)
def test_an_argument_that_cannot_be_read_is_refused_before_anything_is_opened(words: tuple[str, ...]) -> None:
    done = atomlog(*words)
    assert done.code == 2
    assert "Usage: atomlog" in done.err


def test_an_error_of_the_system_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AsyncStore, "open", full)
    done = atomlog("get", "key:a", store=tmp_path)
    assert (done.code, done.err) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_write_leaves_a_store_that_opens(tmp_path: Path, number: signal.Signals, code: int) -> None:
    store = tmp_path / "s"
    with process("write", "--store", store) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(batch("1", note("a", "A")).encode())
        writer.stdin.flush()
        assert json.loads(writer.stdout.readline())["ok"]
        writer.send_signal(number)
        _, err = writer.communicate(timeout=60)
    assert writer.returncode == code
    assert b"Traceback" not in err
    fill(store, batch("2", note("b", "B")))
    assert atomlog("get", "key:a", "key:b", "--space", "notes", store=store).out.count("\n") == 2


def test_a_consumer_runs_until_it_is_told_to_end(store: Path) -> None:
    with process("consume", "postings", "--store", store) as consumer:
        assert consumer.stdout is not None
        first = json.loads(consumer.stdout.readline())
        while first["event"] != "consuming":
            first = json.loads(consumer.stdout.readline())
        assert first["projections"][0]["name"] == "postings"
        busy = atomlog("consume", "postings", store=store)
        assert (busy.code, "STORE_LOCKED" in busy.err) == (4, True)
        consumer.send_signal(signal.SIGTERM)
        consumer.communicate(timeout=60)
    assert consumer.returncode == 0


def test_a_reader_that_goes_away_ends_the_command_quietly(store: Path) -> None:
    fill(store, *(batch(f"b{n}", note(f"n{n}", "t")) for n in range(300)))
    command = f"{' '.join(COMMAND)} log dump --json --store {store} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)
    assert done.returncode == 141
    assert json.loads(done.stdout)["kind"] == "Claim"
    assert done.stderr == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    done = atomlog("completion", shell)
    assert done.code == 0
    assert "_ATOMLOG_COMPLETE" in done.out


def test_completion_knows_commands_and_options() -> None:
    words = environment(_ATOMLOG_COMPLETE="bash_complete", COMP_WORDS="atomlog mem", COMP_CWORD="1")
    done = subprocess.run([*COMMAND], env=words, capture_output=True, check=True)
    assert b"members" in done.stdout


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(lines([{"id": f"n{n}", "text": "t"} for n in range(5)]))
    words = [*COMMAND, "import", "jsonl", str(file), "--space", "notes", "--store", str(tmp_path / "s")]
    quiet = subprocess.run(words, capture_output=True, check=True)
    assert quiet.stderr == b""
    main_end, terminal = pty.openpty()
    try:
        shown = subprocess.run(words, stdout=subprocess.PIPE, stderr=terminal, check=True)
        os.close(terminal)
        drawn = b""
        while chunk := _read(main_end):
            drawn += chunk
    finally:
        os.close(main_end)
    assert shown.stdout == b"5 batches, 5 skipped, 5 lines\n"
    assert b"importing" in drawn
    assert b"100%" in drawn


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the terminal is closed
        return b""


@pytest.mark.parametrize("words", [("get", "key:a"), ("write",), ("--help",)])
@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_a_closed_standard_stream_is_no_traceback_and_no_place_for_a_file_of_the_store(
    words: tuple[str, ...], closed: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    fill(store, batch("k", note("a", "Tea")))
    closing = "".join(f" {number}>&-" for number in closed)
    script = f'exec "$@"{closing}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, *words],
        input=batch("k-2", note("b", "Coffee")).encode(),
        capture_output=True,
        env=environment(ATOMLOG_STORE=str(store), ATOMLOG_SPACE="notes"),
        timeout=60,
        check=False,
    )
    told = done.stderr.decode()
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    fails = "1" in closed or ("0" in closed and words == ("write",))
    assert done.returncode == (1 if fails else 0), told
    if fails and "2" not in closed:
        assert told.startswith("error: ")
    verified = atomlog("verify", store=store)
    assert verified.code == 0, verified


@pytest.mark.parametrize(
    "words",
    [("get",), ("get", "key:a", "--limit", "x"), ("receipt", "show"), ("no-such-command",), ("get", "--at", "1:")],
)
def test_with_json_a_wrong_command_line_is_json_too(words: tuple[str, ...], tmp_path: Path) -> None:
    done = atomlog(*words, "--json")
    assert done.code == 2
    assert done.json["ok"] is False
    assert done.json["error"]["code"] == "INVALID_INPUT"
    assert "Error: " in done.err
    assert atomlog(*words).out == ""


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "1e9", "x"])
def test_a_status_every_no_length_of_time_is_refused(seconds: str) -> None:
    done = atomlog("consume", "ids", "--status-every", seconds)
    assert done.code == 2
    assert "--status-every" in done.err
