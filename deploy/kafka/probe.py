"""Asks a broker over a plain socket: does it answer, who belongs to the cluster, who leads a partition?

Two requests of Kafka's protocol, written by hand so that the launcher needs nothing but Python: ApiVersions 0, which a
broker answers before anybody logs in, and Metadata 5.
"""

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

METADATA, API_VERSIONS = 3, 18
ANSWER_BYTES_MAX = 16 * 1024 * 1024


class NoAnswer(Exception):
    """Nobody listens, or what answers is not a broker, or it took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What one broker knows: nodes by id as (host, port), leaders by topic and partition (−1: none)."""

    cluster_id: str
    controller: int
    nodes: dict[int, tuple[str, int]]
    leaders: dict[str, dict[int, int]] = field(default_factory=dict)


def metadata(host: str, port: int, *, topics: Sequence[str] | None = None, timeout_s: float = 2.0) -> Cluster:
    """The cluster as this broker sees it; with all topics when none are named. NoAnswer if it cannot say."""
    names = b"".join(_text(name) for name in topics or ())
    count = struct.pack(">i", -1 if topics is None else len(topics))
    answer = _Reader(_ask(host, port, METADATA, 5, count + names + b"\x00", timeout_s, None))
    try:
        return _cluster(answer)
    except (struct.error, UnicodeDecodeError) as error:
        raise NoAnswer(f"{host}:{port} answered with something else than metadata: {error}") from error


def answers(host: str, port: int, *, tls: ssl.SSLContext | None = None, timeout_s: float = 2.0) -> None:
    """NoAnswer unless a broker is there that answers ApiVersions; over TLS if a context is given."""
    code = _Reader(_ask(host, port, API_VERSIONS, 0, b"", timeout_s, tls)).number(">h")
    if code != 0:
        raise NoAnswer(f"{host}:{port} answers with error {code}")


def _ask(
    host: str, port: int, api: int, version: int, body: bytes, timeout_s: float, tls: ssl.SSLContext | None
) -> bytes:
    request = struct.pack(">hhi", api, version, 1) + _text("atomlog-launcher") + body
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain:
            connection = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
            with connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                (length,) = struct.unpack(">i", _exactly(connection, 4))
                if not 4 <= length <= ANSWER_BYTES_MAX:
                    raise NoAnswer(f"{host}:{port} is not a Kafka broker: it announced {length} bytes")
                return _exactly(connection, length)[4:]
    except OSError as error:
        raise NoAnswer(f"{host}:{port}: {error}") from error


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = connection.recv(min(length, 65536))
        if not part:
            raise ConnectionError("the connection was closed instead of an answer")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def _cluster(answer: "_Reader") -> Cluster:
    answer.number(">i")  # throttle time
    nodes: dict[int, tuple[str, int]] = {}
    for _ in range(answer.number(">i")):
        node, host, port, _rack = answer.number(">i"), answer.text(), answer.number(">i"), answer.text()
        nodes[node] = (host, port)
    cluster_id, controller = answer.text(), answer.number(">i")
    leaders = dict(_topic(answer) for _ in range(answer.number(">i")))
    return Cluster(cluster_id=cluster_id, controller=controller, nodes=nodes, leaders=leaders)


def _topic(answer: "_Reader") -> tuple[str, dict[int, int]]:
    answer.number(">h")  # error
    name = answer.text()
    answer.number(">b")  # internal
    leaders: dict[int, int] = {}
    for _ in range(answer.number(">i")):
        error, partition, leader = answer.number(">h"), answer.number(">i"), answer.number(">i")
        leaders[partition] = leader if error == 0 else -1
        for _replicas in range(3):  # all, in sync, offline
            for _ in range(answer.number(">i")):
                answer.number(">i")
    return name, leaders


class _Reader:
    """Numbers and texts of an answer, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def text(self) -> str:
        """A text; empty for null."""
        length = max(self.number(">h"), 0)
        part = self._data[self._position : self._position + length]
        self._position += length
        return part.decode()
