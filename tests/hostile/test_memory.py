"""What a hostile caller hands over is what it may cost: the memory of the process is bounded in each case."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.memory_process import CASES, MIB
from tests.support.commands import ROOT

BASE_BYTES: Final = 48 * MIB  # buffers of RocksDB, of the encoder and of the allocator
FACTOR: Final = 8  # of what was handed over: text as bytes, as characters, as JSON, sealed, and read again


@pytest.mark.timeout(600)
def test_memory_rises_by_no_more_than_what_was_handed_over_justifies(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.memory_process", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one in found:
        print(f"{one['case']}: {one['handed_over']} bytes handed over, memory rose by {one['rose']}")
    assert [one["case"] for one in found] == list(CASES)
    above = [one for one in found if one["rose"] > BASE_BYTES + FACTOR * one["handed_over"]]
    assert not above
