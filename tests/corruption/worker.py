"""Takes damaged stores one after the other, in a process that may die of one: `python -m tests.corruption.worker`.

A case is a line of JSON on stdin, `{"check", "damage", …}`; its finding a line on stdout. `run_cases` is the other
side: it says which case a process died of or hung at, and goes on with another process.
"""

import asyncio
import faulthandler
import json
import logging
import selectors
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.corruption import parts
from tests.corruption.damage import Damage
from tests.corruption.probe import judge, probe
from tests.corruption.store import Sound, make
from tests.support.commands import ROOT

CASE_SECONDS_MAX: Final = 100.0  # a case takes 0.2 s of a processor; only what hangs takes so long
FAST: Final = Path("/dev/shm")  # syncing costs nothing there


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a case. `wrong`: what must not be. `refused`: question → error. `said`: events."""

    damage: Damage
    wrong: Sequence[str]
    refused: Mapping[str, Mapping[str, Any]]
    said: Sequence[str] = ()

    @property
    def codes(self) -> set[str]:
        return {str(error["code"]) for error in self.refused.values()}

    @property
    def text(self) -> str:
        return "; ".join(f"{name}: {error['code']} {error['message']}" for name, error in self.refused.items())


def scratch_directory() -> str | None:
    """For `tempfile`: memory where there is some."""
    return str(FAST) if FAST.is_dir() else None


def run_cases(sound: Path, check: str, cases: Iterable[Damage]) -> Iterator[Finding]:
    """Do each damage to a copy, make the check, yield what it found."""
    worker = None
    for damage in cases:
        if worker is None:
            worker = _Worker(sound, check)
        answer = worker.ask(damage)
        if answer is None:
            wrong = worker.end()
            worker = None
            yield Finding(damage=damage, wrong=[wrong], refused={})
        else:
            yield Finding(damage=damage, **answer)
    if worker is not None:
        worker.end()


class _Worker:
    def __init__(self, sound: Path, check: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.corruption.worker", str(sound), check],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
        )

    def ask(self, damage: Damage) -> dict[str, Any] | None:
        """None when it died or does not answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asdict(damage)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            if not ready.select(CASE_SECONDS_MAX):
                return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def end(self) -> str:
        """How it ended, for a case that it did not answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code: int | None = self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")[-2000:]
        self._errors.close()
        return f"the process {'hung' if code is None else f'ended with {code}'}: {errors}"


def main(root: Path, check: str) -> None:
    sound = make(root)
    with tempfile.TemporaryDirectory(dir=scratch_directory()) as scratch:
        for line in sys.stdin:
            directory = Path(scratch) / "store"
            try:
                answer = _checked(sound, check, Damage.from_dict(json.loads(line)), directory)
            except Exception:
                answer = {"wrong": [traceback.format_exc()[-2000:]], "refused": {}}
            print(json.dumps(answer), flush=True)
            shutil.rmtree(directory, ignore_errors=True)


def _checked(sound: Sound, check: str, damage: Damage, directory: Path) -> dict[str, Any]:
    if check != "store":
        return parts.checked(sound, check, damage, directory)
    truth = json.loads((sound.now.parent / "truth.json").read_text())
    shutil.copytree(sound.now, directory)
    damage.do(directory, sound.older)
    seen = asyncio.run(probe(directory, sound.asked, read_only=damage.read_only)).to_dict()
    wrong, refused = judge(truth, seen["answers"])
    return {"wrong": wrong, "refused": refused, "said": seen["events"]}


if __name__ == "__main__":
    faulthandler.enable()
    logging.disable()
    main(Path(sys.argv[1]), sys.argv[2])
