"""What the containers of deploy/compose do, done by processes: the same script and the same command lines."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.compose.healthy import following
from tests.deploy.processes import eventually
from tests.deploy.test_compose import MAKE_NODES, NODES, SERVICES
from tests.support.kafka import SharedBroker

BIN = Path(sys.executable).parent
BATCH = {
    "space": "tea",
    "idempotency_key": "k-1",
    "changes": [{"op": "create", "key": "sencha", "schema": "source", "value": {"text": "Sencha: 70 °C"}}],
}


@pytest.fixture
def environment(kafka: SharedBroker) -> Mapping[str, str]:
    """Of a process: the commands of this program, one broker, which is weaker than three."""
    mine = {"ATOMLOG_BROKERS": kafka.address, "ATOMLOG_ALLOW_WEAK": "replication.factor,min.insync.replicas"}
    return {**os.environ, **mine, "PATH": f"{BIN}:{os.environ['PATH']}"}


def make_nodes(nodes: Path, prefix: str, environment: Mapping[str, str]) -> None:
    program = MAKE_NODES.read_text(encoding="utf-8").replace("/nodes", str(nodes))
    program = program.replace("--replication 3", f"--replication 1 --prefix {prefix}")
    done = subprocess.run(["/bin/sh", "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def services(nodes: Path, environment: Mapping[str, str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Every node's command, on free ports of this machine. What they print is kept beside their directories."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in NODES:
            argv = [word.replace("/nodes", str(nodes)) for word in SERVICES[name]["command"]]
            argv[-1] = "127.0.0.1:0"
            with (nodes / f"{name}.log").open("wb") as log:
                started.append(subprocess.Popen([f"{BIN}/atomlog", *argv], env=environment, stdout=log, stderr=log))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def atomlog(nodes: Path, node: str, environment: Mapping[str, str], *argv: str, stdin: str = "") -> str:
    """A command on one node's directory: what it printed."""
    command = [f"{BIN}/atomlog", *argv, "--store", str(nodes / node)]
    done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{logs(nodes)}"
    return done.stdout


def logs(nodes: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text(encoding='utf-8')[-2000:]}" for path in nodes.glob("*.log"))


@pytest.mark.timeout(300)  # five nodes start on two cores
def test_the_nodes_of_the_compose_file_take_a_write_and_index_it(
    tmp_path: Path, environment: Mapping[str, str], kafka_prefix: str
) -> None:
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    make_nodes(nodes, kafka_prefix, environment)
    made = {path: path.read_bytes() for path in nodes.glob("*/store.json")}
    make_nodes(nodes, kafka_prefix, environment)
    assert {path: path.read_bytes() for path in nodes.glob("*/store.json")} == made
    assert len(made) == len(NODES)
    assert len({(nodes / name / "node.pem").read_bytes() for name in NODES}) == 1
    having = {name for name in NODES if (nodes / name / "master.key").exists()}
    assert having == {"kernel-1", "kernel-2", "consume-vectors"}
    with services(nodes, environment) as running:
        for name in NODES:
            if name.startswith("consume-"):
                eventually(is_followed(nodes, name), f"{name} is healthy")
        written = json.loads(atomlog(nodes, "kernel-2", environment, "write", stdin=json.dumps(BATCH) + "\n"))
        assert written["ok"] is True
        sencha = ("get", "key:sencha", "--space", "tea", "--at-least", json.dumps(written["receipt"]))
        assert "Sencha: 70 °C" in atomlog(nodes, "kernel-1", environment, *sencha)
        sealed = atomlog(nodes, "consume-ids", environment, *sencha)
        assert written["results"][0]["atom"] in sealed
        assert "Sencha" not in sealed, "this node has no master key"
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in running] == [0] * len(NODES), logs(nodes)


def is_followed(nodes: Path, name: str) -> Callable[[], bool]:
    names = SERVICES[name]["healthcheck"]["test"][5:]
    return lambda: following(nodes / name, names) is None
