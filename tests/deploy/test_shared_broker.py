"""The broker that the workers of one run share, and what becomes of tests where none can be had."""

import os
import subprocess
import sys
from pathlib import Path

from deploy.kafka import probe
from tests.house.tree import ROOT
from tests.support.kafka import SharedBroker

NEEDED = "no java was found; brokers need Java 17 or newer. On Debian and Ubuntu: apt-get install"


def test_the_shared_broker_answers(kafka: SharedBroker) -> None:
    host, _, port = kafka.address.partition(":")
    assert len(probe.metadata(host, int(port)).nodes) == 1


def test_the_next_test_gets_the_same_one(kafka: SharedBroker) -> None:
    assert kafka.log.exists()


def test_each_prefix_is_a_new_one(kafka_prefix: str) -> None:
    assert kafka_prefix.isalnum()


class TestWithoutJava:
    def run(self, tmp_path: Path, required: str) -> "subprocess.CompletedProcess[str]":
        """The two tests above, in a pytest of their own that finds no program."""
        command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-k", "shared_broker_answers or same_one", __file__]
        environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "ATOMLOG_REQUIRE_KAFKA": required}
        whole = {**os.environ, **environment, "JAVA_HOME": ""}
        command += ["--basetemp", str(tmp_path / "own")]
        return subprocess.run(command, cwd=ROOT, env=whole, capture_output=True, text=True, check=False)

    def test_they_are_skipped_with_one_line_that_says_what_to_install(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "")
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        assert line.startswith("SKIPPED [2]")
        assert f"NOT TESTED: NOTHING ON APACHE KAFKA: {NEEDED}" in line
        assert done.returncode == 0

    def test_they_fail_where_brokers_are_required(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "1")
        assert f"ATOMLOG_REQUIRE_KAFKA=1, and {NEEDED}" in done.stdout
        assert "2 errors" in done.stdout
        assert done.returncode == 1
