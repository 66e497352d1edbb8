"""`python -m deploy.kafka up`: one broker to try things, that stays until `down`. Needs Python, Java and Maven."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.kafka import probe
from deploy.kafka.brokers import cluster_values, free_ports
from deploy.kafka.errors import LauncherError, NotReady
from deploy.kafka.node import STOP_S, Node, NodeSpec, hold, new_id
from deploy.kafka.runtime import fetch, jars_directory, prepare, verify

HOST = "127.0.0.1"
PORT = 9092
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The node that `up` left behind, as its notice tells."""

    pid: int
    port: int
    log: str

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def ask(self) -> probe.Cluster:
        """What it knows; NotReady if it does not answer."""
        try:
            return probe.metadata(HOST, self.port, timeout_s=ANSWER_S)
        except probe.NoAnswer as error:
            raise NotReady(f"process {self.pid} runs and does not answer: {error}. Its log: {self.log}") from error


class Desk:
    """One node in a directory that outlives this process: `standing.json` tells which process it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._notice = directory / "standing.json"

    def up(self, port: int) -> Standing:
        """Starts the node unless it runs already. Its data stays from one start to the next."""
        found = self.standing()
        if found is not None:
            if found.port != port:
                raise LauncherError(f"a broker of {self.directory} runs at {found.address} already: stop it first")
            found.ask()
            return found
        node = self._node(port)
        node.start()
        try:
            node.wait_ready()
        except LauncherError:
            node.kill()
            raise
        standing = Standing(pid=node.pid, port=port, log=str(node.log))
        self._notice.write_text(json.dumps({"pid": node.pid, "port": port, "log": str(node.log)}), encoding="utf-8")
        return standing

    def down(self, *, erase: bool) -> Standing | None:
        """Stops the node cleanly; None if none ran."""
        found = self.standing()
        if found is not None:
            _stop(found.pid, self.directory)
        self._notice.unlink(missing_ok=True)
        if erase:
            shutil.rmtree(self.directory, ignore_errors=True)
        return found

    def standing(self) -> Standing | None:
        """The node, if the process of the notice is still the broker of this directory."""
        if not self._notice.exists():
            return None
        found = Standing(**json.loads(self._notice.read_text(encoding="utf-8")))
        return found if _is_ours(found.pid, self.directory) else None

    def _node(self, port: int) -> Node:
        directory = self.directory / "node"
        between, controller = free_ports(2)  # nobody else is told them: they may change with each start
        spec = NodeSpec(id=1, host=HOST, port=port, broker_port=between, controller_port=controller)
        node = Node(prepare(), spec, directory, lock=None)
        node.write_properties(cluster_values([spec]))
        if not (node.data / "meta.properties").exists():
            node.format(new_id())
        return node


def main(arguments: list[str], environment: Mapping[str, str] = os.environ) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.kafka", description=__doc__)
    parser.add_argument("action", choices=["up", "down", "status", "fetch"])
    parser.add_argument("--port", type=int, default=PORT, help=f"where clients connect (default {PORT})")
    parser.add_argument(
        "--directory", type=Path, default=default_directory(environment), help="data and log of the node"
    )
    parser.add_argument("--erase", action="store_true", help="down: remove the directory, data and all")
    asked = parser.parse_args(arguments)
    try:
        return _do(asked, environment)
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def default_directory(environment: Mapping[str, str]) -> Path:
    named = environment.get("ATOMLOG_KAFKA_DIR")
    return Path(named) if named else Path(environment.get("HOME", "~")).expanduser() / ".local/share/atomlog/kafka"


def _do(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if asked.action == "fetch":
        return _fetch(environment)
    desk = Desk(asked.directory)
    lock = hold(
        asked.directory.with_name(asked.directory.name + ".lock"), exclusive=True
    )  # two `up` at once: one starts
    try:
        if asked.action == "up":
            standing = desk.up(asked.port)
            print(f"broker at {standing.address}, process {standing.pid}, log {standing.log}")
            return 0
        if asked.action == "down":
            stopped = desk.down(erase=asked.erase)
            print("no broker runs" if stopped is None else f"broker at {stopped.address} stopped")
            return 0
        return _status(desk)
    finally:
        os.close(lock)


def _status(desk: Desk) -> int:
    """0 if it runs and answers, 1 otherwise."""
    standing = desk.standing()
    if standing is None:
        print("no broker runs")
        return 1
    known = standing.ask()
    print(f"broker at {standing.address}, process {standing.pid}, cluster {known.cluster_id}, log {standing.log}")
    for topic, leaders in sorted(known.leaders.items()):
        print(f"  {topic}: {len(leaders)} partitions")
    return 0


def _fetch(environment: Mapping[str, str]) -> int:
    jars = jars_directory(environment)
    if not jars.is_dir():
        fetch(jars, environment)
    verify(jars)
    print(f"jars in {jars}")
    return 0


def _stop(pid: int, directory: Path) -> None:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _is_ours(pid, directory):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _is_ours(pid: int, directory: Path) -> bool:
    """Whether the process is the broker of this directory, and not another one that was given its number."""
    command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return str(directory / "node" / "node.properties") in done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
