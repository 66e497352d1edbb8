"""`Brokers`: one node or three in a directory, on free ports, that live no longer than this process."""

import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.kafka import probe
from deploy.kafka.errors import LauncherError, NotReady
from deploy.kafka.node import READY_S, Node, NodeSpec, hold, new_id
from deploy.kafka.runtime import Runtime

# Below the ports that systems give to outgoing connections: those could take a broker's while it restarts.
PORTS = range(18_000, 32_000)
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How clients and nodes must prove who they are; the defaults: not at all.

    `properties` are of every node, `format_arguments` go to the storage tool, `tls` is what the launcher itself uses
    to see whether a node answers.
    """

    clients_protocol: str = "PLAINTEXT"
    nodes_protocol: str = "PLAINTEXT"
    properties: Mapping[str, str] = field(default_factory=dict)
    format_arguments: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None


OPEN = Security()


class Brokers:
    """Combined nodes 1…n in `directory/node<i>`. A context manager: leaving it kills them all; their logs stay.

    `shape` may change each node's spec before anything is written, e.g. `replace(spec, host="10.9.0.2")`.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: Path,
        *,
        count: int = 1,
        heap: str = "256m",
        properties: Mapping[str, str] | None = None,
        security: Security = OPEN,
        shape: Callable[[NodeSpec], NodeSpec] = lambda spec: spec,
        lock: Path | None = None,
    ) -> None:
        if count not in (1, 3):
            raise LauncherError(f"1 or 3 nodes, not {count}: two cannot lose one, and more show nothing else")
        self.directory = directory
        self.runtime = runtime
        self.security = security
        self._held: int | None = None
        self._lock = lock or directory / "lock"
        settings = {**security.properties, **(properties or {})}
        ports = iter(free_ports(3 * count))
        specs = [
            shape(
                NodeSpec(
                    id=i,
                    port=next(ports),
                    broker_port=next(ports),
                    controller_port=next(ports),
                    heap=heap,
                    properties=settings,
                )
            )
            for i in range(1, count + 1)
        ]
        self.nodes = tuple(
            Node(runtime, spec, directory / f"node{spec.id}", lock=self._lock, tls=security.tls) for spec in specs
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.nodes)

    @property
    def bootstrap(self) -> str:
        """All addresses, with commas, as a client's configuration takes them."""
        return ",".join(self.addresses)

    def node(self, node_id: int) -> Node:
        """Nodes are numbered from 1."""
        return self.nodes[node_id - 1]

    def start(self, timeout_s: float = READY_S) -> Self:
        """Formats, starts and waits for all. After an error none is left running."""
        try:
            self._held = self._held or hold(self._lock)
            self.format()
            self.start_nodes(self.nodes, timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def format(self) -> None:
        """Writes all properties and makes all disks, of one new cluster."""
        cluster_id = new_id()
        values = cluster_values([node.spec for node in self.nodes], self.security)
        for node in self.nodes:
            node.write_properties(values)
        first, *others = self.nodes
        first.format(cluster_id, *self.security.format_arguments)
        for node in others:
            node.format_like(first)

    def start_nodes(self, nodes: Iterable[Node], timeout_s: float = READY_S) -> None:
        """Starts these nodes and waits until each is ready; and, without security, until each knows all of them."""
        starting = list(nodes)
        for node in starting:
            node.start()
        for node in starting:
            node.wait_ready(timeout_s)
        if self.security.tls is None:
            self._wait_for_all(starting, timeout_s)

    def restart(self, node_id: int, timeout_s: float = READY_S) -> None:
        """The same node again: same directory, same ports. It must have been stopped or killed."""
        self.start_nodes([self.node(node_id)], timeout_s)

    def leader(self, topic: str, partition: int) -> int:
        """The id of the node that leads a partition now, −1 if none; asked of the first node that answers."""
        refusals: list[str] = []
        for node in self.nodes:
            try:
                known = probe.metadata(node.spec.host, node.spec.port, topics=[topic], timeout_s=1.0)
                return known.leaders.get(topic, {}).get(partition, -1)
            except probe.NoAnswer as error:
                refusals.append(str(error))
        raise NotReady("no node answers: " + "; ".join(refusals))

    def tool(self, main: str, *arguments: str, stdin: str = "") -> str:
        """One of Kafka's own tools (a Java class) against these brokers: what it printed."""
        return self.runtime.tool(main, *arguments, stdin=stdin)

    def close(self) -> None:
        """Kills what runs. Repeating it does nothing."""
        for node in self.nodes:
            node.kill()
        self.leave()

    def leave(self) -> None:
        """Lets them go on as long as somebody else holds the lock file."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for_all(self, nodes: Sequence[Node], timeout_s: float) -> None:
        """A node that has just started may not have heard of the others yet."""
        expected = sum(node.is_running for node in self.nodes)
        deadline = time.monotonic() + timeout_s
        for node in nodes:
            while _known(node) < expected:
                if time.monotonic() > deadline:
                    raise NotReady(f"node {node.spec.id} does not know all {expected} nodes after {timeout_s:.0f} s")
                time.sleep(LOOK_EVERY_S)


def _known(node: Node) -> int:
    """How many nodes it knows; 0 when it does not answer."""
    try:
        return len(probe.metadata(node.spec.host, node.spec.port, topics=()).nodes)
    except probe.NoAnswer:
        return 0


def cluster_values(specs: Sequence[NodeSpec], security: Security = OPEN) -> dict[str, str]:
    """What the template needs to know of the whole cluster."""
    several = len(specs) > 1
    return {
        "VOTERS": ",".join(spec.voter for spec in specs),
        "RF": "3" if several else "1",
        "ISR": "2" if several else "1",
        "CLIENTS_PROTOCOL": security.clients_protocol,
        "NODES_PROTOCOL": security.nodes_protocol,
    }


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now. LauncherError if there are none."""
    found: list[int] = []
    for port in random.sample(PORTS, k=len(PORTS)):
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LauncherError(f"no {count} free ports from {PORTS.start} to {PORTS.stop}")
