"""How a node asks another one: `exchange` over TLS 1.3, both sides showing the same certificate.

A peer without `node.pem` fails the handshake, so that none of its bytes is ever read as a request; one that does not
finish it is let go of at a deadline. An endpoint is `tls:HOST:PORT`.
"""

import asyncio
import re
import socket
import ssl
from functools import partial
from typing import Final, TypeGuard

from atomlog.consumers.cluster.credentials import WAY_OUT, Credentials
from atomlog.consumers.exchange import Connection, Conversations, Handler, serve
from atomlog.kernel.errors import AtomlogError, DeniedError
from atomlog.kernel.forking import forget, keep_from_children
from atomlog.kernel.ids import invalid, shown

CONNECTIONS_MAX: Final = 1_024  # of one server; more wait, not taken in
GREETINGS_MAX: Final = 128  # of them that have not shown their certificate; each takes most of a megabyte until then
BACKLOG: Final = 128
HANDSHAKE_S: Final = 5.0
SHUTDOWN_S: Final = 1.0
EXHAUSTED_S: Final = 0.5  # before the next connection is taken in when the process has no more descriptors

_ENDPOINT: Final = re.compile(r"tls:(\[[0-9A-Fa-f:.%]{2,64}\]|[0-9A-Za-z._-]{1,253}):([0-9]{1,5})")


class ChannelServer:
    """Answers the requests of other nodes with `handler`, which raises AtomlogError to refuse."""

    def __init__(
        self, host: str, port: int, credentials: Credentials, handler: Handler, *, advertised_host: str | None = None
    ) -> None:
        """`port` 0 takes a free one. `advertised_host`: what others connect to, when `host` is not it (0.0.0.0)."""
        self._host = host
        self._port = port
        self._advertised = advertised_host or host
        self._credentials = credentials
        self._handler = handler
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._conversations = Conversations()
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._greetings = asyncio.Semaphore(GREETINGS_MAX)

    @property
    def endpoint(self) -> str:
        """Where others reach it, once it has started."""
        host = f"[{self._advertised}]" if ":" in self._advertised else self._advertised
        return f"tls:{host}:{self._port}"

    async def start(self) -> None:
        """Listen. INVALID_INPUT when this machine cannot listen there."""
        try:
            self._listening = await _bound(self._host, self._port)
        except OSError as error:
            raise invalid("listen", f"{self._host}:{self._port}: {error.strerror or error}; name another one") from None
        self._port = self._listening.getsockname()[1]
        keep_from_children(self._listening.fileno())  # a child would take connections in and never answer
        self._accepting = asyncio.create_task(self._accept(self._listening))

    async def close(self) -> None:
        """Stop listening and end every connection; what is asked and not answered may still be carried out."""
        if self._listening is None or self._accepting is None:
            return
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        forget(self._listening.fileno())
        self._listening.close()
        self._listening = None
        await self._conversations.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            await self._greetings.acquire()
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError:  # it went away again, or there are no more descriptors
                self._greetings.release()
                self._room.release()
                await asyncio.sleep(EXHAUSTED_S)
                continue
            self._conversations.begin(self._converse(connected), partial(self._end, connected))

    def _end(self, connected: socket.socket) -> None:
        connected.close()
        self._room.release()

    async def _converse(self, connected: socket.socket) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            try:
                reader, writer = await self._greeted(connected)
            finally:
                self._greetings.release()
            if self._credentials.is_own(writer.get_extra_info("ssl_object")):
                await serve(reader, writer, self._handler)
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass  # a stranger, or the peer went away
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _greeted(self, connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """After the handshake: until then nothing that was sent is looked at."""
        loop = asyncio.get_running_loop()
        connected.setblocking(False)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connected,
            ssl=self._credentials.answering,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class ChannelConnection(Connection):
    """A connection to another node. ConnectionError when it is not there, or went away."""

    @classmethod
    async def open(cls, endpoint: str, credentials: Credentials, timeout_s: float) -> "ChannelConnection":
        """Connect to `tls:HOST:PORT`.

        Raises:
            ConnectionError, TimeoutError: nobody answers there.
            ACCESS_DENIED: who answers is no node of this cluster.
        """
        host, port = parse_endpoint(endpoint)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, ssl=credentials.asking)
        except ssl.SSLCertVerificationError:
            raise _stranger(endpoint) from None
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(f"{endpoint} cannot be reached: {error}") from None
        if not credentials.is_own(writer.get_extra_info("ssl_object")):
            writer.transport.abort()
            raise _stranger(endpoint)
        return cls(reader, writer)


def parse_endpoint(endpoint: object, *, port_min: int = 1) -> tuple[str, int]:
    """Host and port of `tls:HOST:PORT`. INVALID_INPUT for anything else."""
    found = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if found is None or not port_min <= int(found[2]) < 65_536:
        raise invalid("endpoint", f"{shown(endpoint)} is not tls:HOST:PORT")
    return found[1].strip("[]"), int(found[2])


async def _bound(host: str, port: int) -> socket.socket:
    """A listening socket that does not block."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, number, _, address = found[0]
    listening = socket.socket(family, kind, number)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def is_endpoint(endpoint: object) -> TypeGuard[str]:
    """Whether `parse_endpoint` takes it."""
    try:
        return bool(parse_endpoint(endpoint))
    except AtomlogError:
        return False


class Stranger(DeniedError):
    """ACCESS_DENIED: who answers is no node of this cluster."""


def _stranger(endpoint: str) -> Stranger:
    message = f"{endpoint} does not show this cluster's certificate; on one of the two, {WAY_OUT}"
    return Stranger("ACCESS_DENIED", message)
