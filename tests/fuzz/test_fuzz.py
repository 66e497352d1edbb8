"""Every decoder and parser gives a result or its own error, whatever bytes it is given; and the fuzzer can tell."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.kernel.errors import fail
from atomlog.kernel.jsontext import parse_json
from atomlog.schemas.varint import read_long
from tests.fuzz.engine import CORPUS, Fuzzer, Report, Target, agree, until
from tests.fuzz.running import fuzz
from tests.fuzz.targets import GROUPS, targets

SEED: Final = int(os.environ.get("FUZZ_SEED", "20261130"))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.timeout(600)
def test_whatever_the_bytes_a_decoder_answers_or_refuses(group: str) -> None:
    print(f"FUZZ_SEED={SEED}")
    runs = fuzz(group, SEED)
    for run in runs:
        print(run.summary)
    assert [run.target for run in runs] == list(targets(group))
    broken = [f"{run.summary}\n{each.trace}\ndata {each.data.hex()}" for run in runs for each in run.findings]
    assert not broken, "\n\n".join(broken)


def test_every_kept_input_belongs_to_a_target() -> None:
    known = {name for group in GROUPS for name in targets(group)}
    assert {folder.name for folder in CORPUS.iterdir() if folder.is_dir()} <= known
    assert all(file.stat().st_size <= 64 * 1024 for file in CORPUS.rglob("*") if file.is_file())


def run(decode: Callable[[bytes], Any], executions: int = 300, **more: Any) -> Report:
    target = Target(name="planted", decode=decode, seeds=lambda: [b"\x02ab", b'{"a": [1]}'], **more)
    return Fuzzer(target, 7).run(until(executions))


def faults(report: Report) -> list[str]:
    return [finding.what for finding in report.findings]


def test_an_exception_that_is_no_refusal_is_found_and_made_small() -> None:
    def decode(data: bytes) -> None:
        if b"a" in data and len(data) > 5:
            raise IndexError

    (finding,) = run(decode).findings
    assert finding.what == "IndexError at the target itself"
    assert len(finding.data) <= 8


def test_a_result_that_is_not_canonical_is_found() -> None:
    def decode(data: bytes) -> None:
        value, stop = read_long(data, 0, "n")
        agree(value < 64 or stop == 1, "a long number")

    assert faults(run(decode)) == ["broken result: a long number"]


def test_work_that_does_not_end_is_found_without_a_clock() -> None:
    def decode(data: bytes) -> None:
        while data.startswith(b"\x02"):
            try:
                read_long(data, 0, "n")
            except Exception:
                continue

    assert "more than" in faults(run(decode, executions=0))[0]


def test_memory_that_grows_faster_than_the_input_is_found() -> None:
    def decode(data: bytes) -> None:
        bytearray(data[0] * 200_000 if data else 0)

    assert "bytes of memory" in faults(run(decode, executions=0))[0]


def test_a_refusal_of_another_kind_than_promised_is_found() -> None:
    def decode(data: bytes) -> None:
        raise fail("INVALID_INPUT" if len(data) % 2 else "CORRUPT", "no")

    assert faults(run(decode, codes=frozenset({"INVALID_INPUT"}))) == ["code CORRUPT"]


def test_a_message_that_cannot_be_written_is_found() -> None:
    def decode(data: bytes) -> None:
        raise fail("INVALID_INPUT", "cut \ud83d")

    report = run(decode, codes=frozenset({"INVALID_INPUT"}), executions=0)
    assert faults(report) == ["the message of INVALID_INPUT cannot be written"]


def test_the_same_seed_tries_the_same_inputs() -> None:
    def tried(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        target = Target(
            name="seen", decode=parse_json, seeds=lambda: [b"[1]"], codes=frozenset({"INVALID_INPUT"}), json=True
        )
        Fuzzer(target, seed, seen.append).run(until(200))
        return seen

    assert tried(1) == tried(1)
    assert tried(1) != tried(2)


def test_an_input_that_leads_to_new_lines_is_built_upon() -> None:
    """Three bytes in a row are found one by one, which chance alone does not do in so few runs."""

    def decode(data: bytes) -> None:
        if data[:1] == b"\x81":
            _, stop = read_long(data, 0, "n")
            agree(stop < 3, "deep enough")

    report = run(decode, executions=4_000)
    assert faults(report) == ["broken result: deep enough"]
    assert report.kept


def test_an_interpreter_that_crashes_leaves_the_input_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from tests.fuzz.child import Trial"
    program += "; Trial(Path(sys.argv[-1].partition('=')[2])).note('wire')(b'deadly'); os.abort()"
    crash = tmp_path / "python"
    crash.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    crash.chmod(0o755)
    monkeypatch.setattr("tests.fuzz.running.sys.executable", str(crash))
    (ended,) = fuzz("wire", 1)
    (finding,) = ended.findings
    assert (ended.target, finding.what, finding.data) == ("wire", "the process ended with -6", b"deadly")
