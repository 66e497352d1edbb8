"""The same seed gives the same trace, byte for byte: in one process, and in others that hash otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import seeds
from tests.simulation.trace import first_difference

ROOT = Path(__file__).resolve().parents[2]
FIRST, COUNT = 5_000, 24


@pytest.mark.timeout(300)
def test_the_same_seed_gives_the_same_trace_twice() -> None:
    for seed in range(FIRST, FIRST + COUNT):
        one, other = seeds.run(seed), seeds.run(seed)
        assert first_difference(one.trace.lines, other.trace.lines) is None, seed
        assert one.trace.digest() == other.trace.digest()


@pytest.mark.timeout(300)
def test_the_same_seed_gives_the_same_trace_in_processes_that_hash_otherwise(tmp_path: Path) -> None:
    for hash_seed in ("1", "2"):
        (tmp_path / hash_seed).mkdir()
        arguments = ("--traces", str(FIRST), str(COUNT), str(tmp_path / hash_seed))
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
        )
    for seed in range(FIRST, FIRST + COUNT):
        one, other = ((tmp_path / name / f"{seed}.trace").read_text(encoding="utf-8") for name in ("1", "2"))
        assert one
        assert first_difference(one.splitlines(), other.splitlines()) is None, seed


def test_another_seed_gives_another_trace() -> None:
    assert len({seeds.run(seed).trace.digest() for seed in range(FIRST, FIRST + 4)}) == 4
