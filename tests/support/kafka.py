"""Real brokers for tests: one that the whole run shares, or some of a test's own.

`kafka` and `kafka_prefix` are fixtures of every folder (tests/conftest.py). Where Java 17 or Maven is missing, whoever
needs a broker is skipped with one line that says what to install, or fails if ATOMLOG_REQUIRE_KAFKA=1.
"""

import json
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.kafka import probe
from deploy.kafka.brokers import OPEN, Brokers, Security
from deploy.kafka.node import NodeSpec, hold
from deploy.kafka.runtime import Runtime, missing, prepare

NOT_TESTED = "NOT TESTED: NOTHING ON APACHE KAFKA"
# A worker that leaves before the others leaves its child process to them, so nobody waits for it here.
_left_to_others: list[Brokers] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBroker:
    """The broker of the run. Its topics outlive the test: take names below `kafka_prefix`. Never stop or pause it."""

    address: str  # host:port
    log: Path

    @property
    def bootstrap(self) -> str:
        return self.address

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self.address,)


def required_runtime() -> Runtime:
    """Java and the jars; without them the test is skipped, or fails where brokers are required."""
    needed = missing()
    if needed is None:
        return prepare()
    if os.environ.get("ATOMLOG_REQUIRE_KAFKA") == "1":
        pytest.fail(f"ATOMLOG_REQUIRE_KAFKA=1, and {needed}", pytrace=False)
    pytest.skip(f"{NOT_TESTED}: {needed}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """All that is skipped for want of a broker is one line of the summary, which folds what has one place."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NOT_TESTED in report.longrepr[2]:
        report.longrepr = (__file__, required_runtime.__code__.co_firstlineno, report.longrepr[2])
    return report


def own_brokers(
    directory: Path,
    *,
    count: int = 1,
    heap: str = "256m",
    properties: dict[str, str] | None = None,
    security: Security = OPEN,
    shape: Callable[[NodeSpec], NodeSpec] = lambda spec: spec,
) -> Brokers:
    """Brokers of one test, not started yet: `with own_brokers(tmp_path, count=3) as brokers: brokers.start()`.

    They die with the process of the test, however it dies.
    """
    return Brokers(
        required_runtime(), directory, count=count, heap=heap, properties=properties, security=security, shape=shape
    )


def shared_broker(directory: Path) -> Iterator[SharedBroker]:
    """The broker in `directory`, started by the first process that asks and killed when the last has left or died."""
    runtime = required_runtime()
    starting = hold(directory / "starting", exclusive=True)
    users = hold(directory / "users")  # waits while the broker of former users is being killed
    try:
        broker = _join(directory) or _start(runtime, directory)
    finally:
        os.close(starting)
    yield broker
    os.close(users)


def _join(directory: Path) -> SharedBroker | None:
    """The broker that another process has started, if it answers."""
    notice = directory / "broker.json"
    if not notice.exists():
        return None
    said: dict[str, Any] = json.loads(notice.read_text(encoding="utf-8"))
    host, _, port = said["address"].partition(":")
    try:
        probe.metadata(host, int(port), topics=(), timeout_s=30.0)  # one that is gone refuses at once
    except probe.NoAnswer:
        return None
    return SharedBroker(address=said["address"], log=Path(said["log"]))


def _start(runtime: Runtime, directory: Path) -> SharedBroker:
    brokers = Brokers(runtime, directory / f"broker-{uuid.uuid4().hex[:8]}", lock=directory / "users").start()
    brokers.leave()
    _left_to_others.append(brokers)
    node = brokers.node(1)
    (directory / "broker.json").write_text(json.dumps({"address": node.address, "log": str(node.log)}), "utf-8")
    return SharedBroker(address=node.address, log=node.log)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    """One broker of one node, shared by all workers of the run. Its log is kept with the run's temporary files."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    yield from shared_broker(shared / "kafka")


@pytest.fixture
def kafka_prefix() -> str:
    """A prefix of topics that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"
