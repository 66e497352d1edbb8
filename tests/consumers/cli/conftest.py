"""A store with a little in it."""

from pathlib import Path

import pytest

from tests.consumers.cli.driving import batch, fill, member, note


@pytest.fixture(autouse=True)
def _no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATOMLOG_STORE", "ATOMLOG_SPACE", "ATOMLOG_MASTER_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two notes in group `tea`, one of them in `green` too."""
    path = tmp_path / "store"
    groups = [
        {"op": "create", "key": name, "schema": "collection", "value": {"title": name}} for name in ("tea", "green")
    ]
    notes = [note("sencha", "Sencha, 70 °C"), note("black", "Assam, boiling water")]
    joins = [member("tea", "sencha"), member("tea", "black"), member("green", "sencha")]
    fill(path, batch("k-1", *groups, *notes), batch("k-2", *joins))
    return path
