"""One broker process: formatted, started, waited for, stopped, killed, paused, its disk copied and put back."""

import base64
import fcntl
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.kafka import probe
from deploy.kafka.errors import LauncherError, NodeDied, NotReady, PortTaken, last_lines
from deploy.kafka.runtime import HERE, Runtime

STARTED = b"Kafka Server started"
READY_S = 60.0
STOP_S = 30.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Where a node listens: clients on `port`, brokers on `broker_port`, controllers on `controller_port`.

    `advertised` ("host:port") is what clients are told to connect to, e.g. a proxy; `prefix` stands before the Java
    command, e.g. `("ip", "netns", "exec", "b1")`; `host` must be reached from here all the same. `properties` come
    last in the file and win.
    """

    id: int
    port: int
    broker_port: int
    controller_port: int
    host: str = "127.0.0.1"
    advertised: str | None = None
    prefix: tuple[str, ...] = ()
    heap: str = "256m"
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, int, int]:
        return self.port, self.broker_port, self.controller_port

    @property
    def voter(self) -> str:
        return f"{self.id}@{self.host}:{self.controller_port}"


class Node:
    """A broker in `directory`: `node.properties`, `data/`, `node.log`, which grows with every start.

    With `lock`, a file, the broker is killed when nobody holds that lock any more (see `guard`); without, it goes on
    after this process.
    """

    def __init__(
        self, runtime: Runtime, spec: NodeSpec, directory: Path, *, lock: Path | None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.log = directory / "node.log"
        self.data = directory / "data"
        self._runtime = runtime
        self._lock = lock
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def address(self) -> str:
        """What clients connect to, "host:port"."""
        return self.spec.advertised or f"{self.spec.host}:{self.spec.port}"

    @property
    def pid(self) -> int:
        """LauncherError when it was not started."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def write_properties(self, values: Mapping[str, str]) -> None:
        """`node.properties` from the template: `values` are what all nodes have in common; KeyError if one lacks."""
        text = (HERE / "node.properties.template").read_text(encoding="utf-8")
        own = {"ID": self.spec.id, "HOST": self.spec.host, "PORT": self.spec.port, "DATA": self.data}
        own |= {"BROKER_PORT": self.spec.broker_port, "CONTROLLER_PORT": self.spec.controller_port}
        named = {**own, "ADVERTISED": self.address, **values}
        text = re.sub("@([A-Z_]+)@", lambda found: str(named[found[1]]), text)
        lines = [f"{name}={value}" for name, value in self.spec.properties.items()]
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "node.properties").write_text(text + "\n".join(lines) + "\n", encoding="utf-8")

    def format(self, cluster_id: str, *arguments: str) -> None:
        """Makes `data/`. `arguments` go to Kafka's storage tool, e.g. `--add-scram`."""
        properties = str(self.directory / "node.properties")
        tool = ("format", "-t", cluster_id, "-c", properties, *arguments)
        done = self._runtime.tool("kafka.tools.StorageTool", *tool)
        (self.directory / "format.log").write_text(done, encoding="utf-8")

    def format_like(self, other: "Node") -> None:
        """Makes `data/` of one that was formatted: only the ids differ. The tool takes Java about a second."""
        shutil.copytree(other.data, self.data)
        meta = self.data / "meta.properties"
        text = re.sub(r"(?m)^node\.id=.*$", f"node.id={self.spec.id}", meta.read_text(encoding="utf-8"))
        text = re.sub(r"(?m)^directory\.id=.*$", f"directory.id={new_id()}", text)
        meta.write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Starts the process and returns at once. PortTaken if another one listens there."""
        if self.is_running:
            raise LauncherError(f"node {self.spec.id} runs already")
        if not self.spec.prefix:  # in another network, this one's ports say nothing
            for port in self.spec.ports:
                require_free(self.spec.host, port)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        command = [*self.spec.prefix, *self._java()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Until its log says so and it answers a request. NodeDied or NotReady, with the end of its log."""
        deadline = time.monotonic() + timeout_s
        reason = "its log does not say that it has started"
        while time.monotonic() < deadline:
            if not self.is_running:
                code = self._running().returncode
                raise NodeDied(f"node {self.spec.id} ended with {code}:\n{last_lines(self.log)}\nwhole log: {self.log}")
            try:
                if self._said_started():
                    self.ask()
                    return
            except probe.NoAnswer as error:
                reason = str(error)
            time.sleep(LOOK_EVERY_S)
        raise NotReady(
            f"node {self.spec.id} after {timeout_s:.0f} s: {reason}\n{last_lines(self.log)}\nwhole log: {self.log}"
        )

    def ask(self) -> None:
        """One round trip on the client listener; probe.NoAnswer if there is none."""
        if self._tls is not None:
            probe.answers(self.spec.host, self.spec.port, tls=self._tls)
        else:
            probe.metadata(self.spec.host, self.spec.port, topics=())

    def stop(self, timeout_s: float = STOP_S) -> None:
        """SIGTERM, and waits: what it holds is synced, its leaderships are handed over. Killed if that takes longer."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(STOP_S)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody; on return not one of its threads runs any more."""
        process = self._running()
        if self.is_running:
            self._signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self._running()
        self._signal(signal.SIGCONT)

    def copy_disk(self, to: Path) -> None:
        """An image of its disk as it is now. LauncherError while it runs: that would be no one moment."""
        if self.is_running:
            raise LauncherError(f"stop or kill node {self.spec.id} before its disk is copied")
        shutil.copytree(self.data, to)

    def put_disk(self, image: Path) -> None:
        """Replaces its disk by an image: at the next start it has forgotten what came later."""
        if self.is_running:
            raise LauncherError(f"stop or kill node {self.spec.id} before its disk is replaced")
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(image, self.data)

    def _java(self) -> list[str]:
        properties = str(self.directory / "node.properties")
        java = self._runtime.command("kafka.Kafka", [properties], heap=self.spec.heap, logging="log4j2.properties")
        if self._lock is None:
            return java
        return [sys.executable, "-S", "-E", str(HERE / "guard.py"), str(self._lock), str(self.data), *java]

    def _said_started(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return STARTED in log.read()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LauncherError(f"node {self.spec.id} was not started")
        return self._process

    def _signal(self, number: int) -> None:
        """To the whole group: a prefix may have left a process of its own in front of Java."""
        if self.is_running:
            os.killpg(self._running().pid, number)


def new_id() -> str:
    """16 random bytes as Kafka writes ids; never with a dash in front, which its tools take for an option."""
    drawn = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    return "k" + drawn[1:] if drawn.startswith("-") else drawn


def require_free(host: str, port: int) -> None:
    """PortTaken unless `port` can be listened on."""
    with socket.socket() as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"{host}:{port} cannot be used: {error.strerror}. Stop who listens there, or name another port"
            ) from error


def hold(lock: Path, *, exclusive: bool = False) -> int:
    """A descriptor that holds the lock file, made if absent; waits for others. `os.close` lets go."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    return descriptor
