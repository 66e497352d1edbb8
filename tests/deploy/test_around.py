"""Brokers for as long as a command runs."""

import sys
from pathlib import Path

import pytest

from deploy.kafka import around, probe
from tests.support.kafka import required_runtime

SAYS_WHERE = """
import os, sys
from deploy.kafka import probe
address = os.environ["ATOMLOG_BENCH_KAFKA"]
host, _, port = address.partition(":")
probe.answers(host, int(port), timeout_s=30.0)
open(sys.argv[1], "w").write(address)
sys.exit(7)
"""


def test_a_command_finds_a_broker_and_leaves_none_behind(tmp_path: Path) -> None:
    required_runtime()
    assert around.main(["--nodes", "1", "--", sys.executable, "-c", SAYS_WHERE, str(tmp_path / "where")]) == 7
    host, _, port = (tmp_path / "where").read_text("utf-8").partition(":")
    with pytest.raises(probe.NoAnswer):
        probe.answers(host, int(port))


def test_without_java_the_command_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert around.main(["--", sys.executable, "-c", "raise SystemExit(7)"]) == 1
    assert "no java was found" in capsys.readouterr().err
