"""Real data that tests may use where it is at hand: `$ATOMLOG_TEST_DATA`, else `shared/data` beside the repository."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data; skips the test where there is none."""
    folder = Path(os.environ.get("ATOMLOG_TEST_DATA") or BESIDE)
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there; name its folder in ATOMLOG_TEST_DATA")
    return folder
