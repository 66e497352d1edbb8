"""`GET /metrics`: a page for Prometheus, over plain HTTP, from where nothing else can be asked.

It listens on this machine alone unless another address is named. There is nothing to log in to: whoever can reach the
port can read the numbers, in which nothing is that a user wrote.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

from atomlog.consumers.metrics import CONTENT_TYPE
from atomlog.kernel.ids import invalid, shown

HOST: Final = "127.0.0.1"
REQUEST_BYTES_MAX: Final = 8 * 1024
CONNECTIONS_MAX: Final = 16  # at a time; more are closed at once
SECONDS_MAX: Final = 10.0  # for one request and its answer
_ADDRESS: Final = re.compile(r"(?:(\[[0-9A-Fa-f:.%]{2,64}\]|[0-9A-Za-z._-]{1,253})?:)?([0-9]{1,5})")

Page = Callable[[], Awaitable[bytes]]


class MetricsServer:
    """Serves one page, which `page` makes anew for each request; two are never made at once."""

    def __init__(self, address: str, page: Page) -> None:
        """`address` is HOST:PORT or PORT; port 0 takes a free one. INVALID_INPUT when it is none."""
        self._host, self._port = parse_address(address)
        self._page = page
        self._making = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        """`http://HOST:PORT/metrics`, once it has started."""
        return f"http://{self._host}:{self._port}/metrics"

    async def start(self) -> None:
        """INVALID_INPUT when this machine cannot listen there."""
        try:
            self._server = await asyncio.start_server(self._connected, self._host.strip("[]"), self._port)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise invalid("metrics", f"{where}: {error.strerror or error}; name another address") from None
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and end what is being answered."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                async with asyncio.timeout(SECONDS_MAX):
                    writer.write(await self._answer(reader))
                    await writer.drain()
        except (OSError, TimeoutError):
            pass  # who asked went away, or sends nothing
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """The whole answer to one request. What its headers and body say does not matter."""
        try:
            line = await _head(reader)
        except ValueError as error:
            return _response("400 Bad Request", f"{error}\n".encode())
        method, path = line
        if path.partition("?")[0] != "/metrics":
            return _response("404 Not Found", b"there is /metrics, and nothing else\n")
        if method != "GET":
            return _response("405 Method Not Allowed", b"GET\n", "Allow: GET")
        try:
            async with self._making:
                page = await self._page()
        except Exception as error:  # of a log or a disk that does not answer: said by events, in full
            return _response("503 Service Unavailable", f"{type(error).__name__}\n".encode())
        return _response("200 OK", page, kind=CONTENT_TYPE)


def parse_address(address: object) -> tuple[str, int]:
    """Host and port of HOST:PORT, :PORT or PORT. INVALID_INPUT for anything else."""
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or int(found[2]) > 65_535:
        raise invalid("metrics", f"{shown(address)} is not HOST:PORT, e.g. {HOST}:9464")
    return found[1] or HOST, int(found[2])


async def _head(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path of a request, read to the end of its headers. ValueError when it is none."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > REQUEST_BYTES_MAX:
            raise ValueError("the request is too long")
        more = await reader.read(REQUEST_BYTES_MAX)
        if not more:
            raise ValueError("the request ended early")
        head += more
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise ValueError("this is no HTTP request")
    return words[0].decode("latin-1"), words[1].decode("latin-1")


def _response(status: str, body: bytes, *headers: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
