"""Brokers as the tests use them: they start, answer, die, come back with their data, and leave nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig, KafkaRecord, NewTopic
from deploy.kafka import probe
from deploy.kafka.brokers import Brokers, free_ports
from deploy.kafka.errors import LauncherError, NodeDied, NotReady, PortTaken
from deploy.kafka.node import Node
from tests.deploy.processes import end, eventually, go_on, is_alive, run_python, said
from tests.house.tree import ROOT
from tests.support.kafka import own_brokers, required_runtime

T = TypeVar("T")
pytestmark = pytest.mark.kafka
HELD = """
import sys
from pathlib import Path
from tests.house.tree import ROOT
from tests.support.kafka import own_brokers
brokers = own_brokers(Path(sys.argv[1])).start()
print(brokers.node(1).pid, flush=True)
sys.stdin.readline()
"""
SHARED = """
import sys
from pathlib import Path
from tests.support.kafka import _left_to_others, shared_broker
directory = Path(sys.argv[1])
sharing = shared_broker(directory)
broker = next(sharing)
pid = _left_to_others[0].node(1).pid if _left_to_others else "joined"
print(broker.address, pid, flush=True)
sys.stdin.readline()
next(sharing, None)
print("left", flush=True)
sys.stdin.readline()
"""


def is_answering(node: Node) -> bool:
    try:
        probe.metadata(node.spec.host, node.spec.port, topics=(), timeout_s=0.5)
    except probe.NoAnswer:
        return False
    return True


async def ask(brokers: Brokers, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    """What a client gets that connects for this alone."""
    client = KafkaClient(KafkaConfig(bootstrap=brokers.addresses), timeout_s=20.0)
    await client.start()
    try:
        return await work(client)
    finally:
        await client.close()


def make_topic(brokers: Brokers, name: str, *, replication: int = 1) -> None:
    new = [NewTopic(name=name, partitions=1, replication=replication)]
    asyncio.run(ask(brokers, lambda client: client.create_topics(new)))


def write(brokers: Brokers, topic: str, lines: Sequence[bytes]) -> None:
    """Acknowledged by all replicas on return."""

    async def work(client: KafkaClient) -> None:
        producer = await client.producer()
        await producer.send(topic, 0, [KafkaRecord(value=line) for line in lines])
        await producer.close()

    asyncio.run(ask(brokers, work))


def end_offset(brokers: Brokers, topic: str) -> int:
    return asyncio.run(ask(brokers, lambda client: client.end(topic, 0)))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One node, left running by each test."""
    with own_brokers(tmp_path_factory.mktemp("one")) as brokers:
        make_topic(brokers.start(), "kept")
        yield brokers


@pytest.mark.xdist_group("own-broker")
class TestOneNode:
    def test_answers_with_its_own_address(self, brokers: Brokers) -> None:
        host, _, port = brokers.bootstrap.partition(":")
        known = probe.metadata(host, int(port))
        assert known.nodes == {1: (host, int(port))}
        assert known.leaders == {"kept": {0: 1}}

    def test_killed_and_restarted_it_has_what_was_acknowledged(self, brokers: Brokers) -> None:
        node, before = brokers.node(1), brokers.bootstrap
        at_first = end_offset(brokers, "kept")
        write(brokers, "kept", [b"a", b"b"])
        node.kill()
        assert not node.is_running
        assert not is_answering(node)
        brokers.restart(1)
        assert brokers.bootstrap == before
        assert end_offset(brokers, "kept") == at_first + 2

    def test_paused_it_answers_nobody_until_it_is_continued(self, brokers: Brokers) -> None:
        node = brokers.node(1)
        node.pause()
        assert not is_answering(node)
        assert node.is_running
        node.resume()
        eventually(lambda: is_answering(node), "the broker answers again")

    def test_with_an_older_image_of_its_disk_it_has_forgotten_what_came_later(
        self, brokers: Brokers, tmp_path: Path
    ) -> None:
        node = brokers.node(1)
        with pytest.raises(LauncherError, match="stop or kill node 1 before its disk is copied"):
            node.copy_disk(tmp_path / "image")
        node.pause()
        node.stop()  # cleanly: it is continued for that
        assert not node.is_running
        node.copy_disk(tmp_path / "image")
        brokers.restart(1)
        older = end_offset(brokers, "kept")
        write(brokers, "kept", [b"c"])
        assert end_offset(brokers, "kept") == older + 1
        with pytest.raises(LauncherError, match="stop or kill node 1 before its disk is replaced"):
            node.put_disk(tmp_path / "image")
        node.kill()
        node.put_disk(tmp_path / "image")
        brokers.restart(1)
        assert end_offset(brokers, "kept") == older

    def test_a_second_start_is_refused(self, brokers: Brokers) -> None:
        with pytest.raises(LauncherError, match="node 1 runs already"):
            brokers.node(1).start()

    def test_when_its_port_was_taken_meanwhile_that_is_said(self, brokers: Brokers) -> None:
        node = brokers.node(1)
        node.stop()
        said_taken = f"127.0.0.1:{node.spec.port} cannot be used: Address already in use"
        with socket.create_server((node.spec.host, node.spec.port)), pytest.raises(PortTaken, match=said_taken):
            brokers.restart(1)
        brokers.restart(1)

    def test_when_it_dies_the_end_of_its_log_is_said(self, brokers: Brokers) -> None:
        """Its disk says that it belongs to another node."""
        node = brokers.node(1)
        node.stop()
        meta = node.data / "meta.properties"
        right = meta.read_text(encoding="utf-8")
        meta.write_text(right.replace("node.id=1", "node.id=2"), encoding="utf-8")
        with pytest.raises(NodeDied, match=r"node 1 ended with 1:\n(.*\n)*.*whole log: .*node.log"):
            brokers.restart(1)
        meta.write_text(right, encoding="utf-8")
        brokers.restart(1)

    def test_who_waits_for_one_that_does_not_get_ready_is_told_why(self, brokers: Brokers) -> None:
        node = brokers.node(1)
        node.pause()
        with pytest.raises(NotReady, match=r"node 1 after 0 s: (.*\n)*.*whole log: .*node.log"):
            node.wait_ready(timeout_s=0.2)
        node.resume()


@pytest.mark.xdist_group("own-broker")
def test_three_nodes_elect_another_leader_when_one_is_killed(tmp_path: Path) -> None:
    with own_brokers(tmp_path, count=3) as brokers:
        make_topic(brokers.start(), "led", replication=3)
        eventually(lambda: brokers.leader("led", 0) > 0, "somebody leads")
        first = brokers.leader("led", 0)
        brokers.node(first).kill()
        eventually(lambda: brokers.leader("led", 0) not in (first, -1), "another one leads")
        brokers.restart(first)
        pids = [node.pid for node in brokers.nodes]
    assert not any(is_alive(pid) for pid in pids)
    assert all(node.log.exists() for node in brokers.nodes), "their logs stay"


def test_two_nodes_are_refused() -> None:
    with pytest.raises(LauncherError, match="1 or 3 nodes, not 2"):
        own_brokers(Path("/nonexistent"), count=2)


def test_when_a_start_fails_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"log\.segment\.bytes"):
        own_brokers(tmp_path, properties={"log.segment.bytes": "many"}).start()


def test_a_broker_dies_with_the_process_that_started_it_even_when_it_is_paused(tmp_path: Path) -> None:
    required_runtime()
    holder = run_python(HELD, str(tmp_path))
    try:
        pid = int(said(holder))
        assert is_alive(pid)
        os.kill(pid, signal.SIGSTOP)
    finally:
        end(holder)
    eventually(lambda: not is_alive(pid), "the broker is gone")
    eventually(lambda: not (tmp_path / "node1/data").exists(), "its data is removed")
    assert (tmp_path / "node1/node.log").exists(), "its log stays"


@pytest.mark.xdist_group("own-broker")
def test_a_shared_broker_lives_as_long_as_one_of_its_users(tmp_path: Path) -> None:
    """The first leaves, another is killed, a third comes: the same broker. When that one leaves it is gone."""
    required_runtime()
    first = run_python(SHARED, str(tmp_path))
    address, pid = said(first).split()
    second, third = run_python(SHARED, str(tmp_path)), run_python(SHARED, str(tmp_path))
    try:
        assert said(second) == f"{address} joined"
        go_on(first)
        assert said(first) == "left"
        end(first)
        assert said(third) == f"{address} joined"
        end(second)
        assert is_alive(int(pid))
        go_on(third)
        assert said(third) == "left"
        eventually(lambda: not is_alive(int(pid)), "the broker is gone")
        with_another = run_python(SHARED, str(tmp_path))
        assert said(with_another).partition(" ")[0] != address
        end(with_another)
    finally:
        for process in (first, second, third):
            end(process)


def test_the_command_starts_one_that_stays_and_starts_it_once(tmp_path: Path) -> None:
    required_runtime()
    (port,) = free_ports(1)
    try:
        assert command("status", tmp_path, port) == (1, "no broker runs")
        code, first = command("up", tmp_path, port)
        assert code == 0
        assert first.startswith(f"broker at 127.0.0.1:{port}, process ")
        assert command("up", tmp_path, port) == (0, first)
        code, status = command("status", tmp_path, port)
        assert code == 0
        assert status.startswith(f"broker at 127.0.0.1:{port}, process ")
        code, refusal = command("up", tmp_path, port + 1)
        assert code == 1
        assert refusal.endswith(f"runs at 127.0.0.1:{port} already: stop it first")
    finally:
        assert command("down", tmp_path, port) == (0, f"broker at 127.0.0.1:{port} stopped")
    assert command("down", tmp_path, port, "--erase") == (0, "no broker runs")
    assert not (tmp_path / "node").exists()


def command(action: str, directory: Path, port: int, *more: str) -> tuple[int, str]:
    """The exit code, and what was said on either stream."""
    argv = [sys.executable, "-m", "deploy.kafka", action, "--directory", str(directory / "node"), "--port", str(port)]
    done = subprocess.run([*argv, *more], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()
