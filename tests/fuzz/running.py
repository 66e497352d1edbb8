"""Runs targets in a process of its own and takes its results, those of a process that crashed included."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.child import trial
from tests.fuzz.engine import Finding
from tests.support.commands import ROOT

TIMEOUT_SECONDS: Final = 900.0  # beyond the time asked for; only ends a process that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one target."""

    target: str
    executions: int = 0
    refused: int = 0
    lines: int = 0
    findings: list[Finding] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)

    @property
    def summary(self) -> str:
        wrong = "".join(f"\n  {each.what} on {each.data[:200]!r}" for each in self.findings)
        counts = f"{self.executions} executions, {self.refused} refused, {self.lines} lines reached"
        return f"{self.target}: {counts}, {len(self.kept)} inputs reached new ones{wrong}"


def fuzz(group: str, seed: int, *, seconds: float | None = None, names: Sequence[str] = ()) -> list[Run]:
    """Each target of a group, or some; for its own number of executions unless `seconds` is given."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "trial"
        words = [sys.executable, "-m", "tests.fuzz.child", group, *names, f"--seed={seed}", f"--trial={noted}"]
        words += [] if seconds is None else [f"--seconds={seconds}"]
        ended, out, err = _run(words, (seconds or 0) * max(1, len(names)) + TIMEOUT_SECONDS)
        runs = [_run_of(line) for line in out.splitlines()]
        if ended:
            name, data = trial(noted) if noted.exists() else ("", b"")
            crash = Finding(what=ended, data=data, trace=err[-4_000:])
            runs.append(Run(target=name or group, findings=[crash]))
        return runs


def _run(words: Sequence[str], timeout_s: float) -> tuple[str, str, str]:
    """(how the process ended badly, its stdout, its stderr)."""
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return "the process hangs", out, err
    return "" if process.returncode == 0 else f"the process ended with {process.returncode}", out, err


def _run_of(line: str) -> Run:
    found = json.loads(line)
    findings = [
        Finding(what=each["what"], data=bytes.fromhex(each["data"]), trace=each["trace"]) for each in found["findings"]
    ]
    counts = {name: found[name] for name in ("target", "executions", "refused", "lines")}
    return Run(**counts, findings=findings, kept=[bytes.fromhex(data) for data in found["kept"]])
