"""`owner.sock`: how another process of the same user writes while one process holds the store.

What is said over it is said by `exchange`. The socket is made with mode 0600, and both sides check that the other one
is the same user. A path of a socket has at most 108 bytes, so both go through the directory's descriptor.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
from typing import Final

from atomlog.consumers.exchange import Connection, Conversations, Handler, serve
from atomlog.kernel.errors import fail
from atomlog.kernel.forking import forget, keep_from_children

NAME: Final = "owner.sock"
BACKLOG: Final = 1_024  # connections that wait to be taken in
NOBODY: Final = -1  # the user at the other end of a socket that is not connected: the backlog was full

_PEER: Final = struct.Struct("3i")  # pid, uid, gid


class OwnerServer:
    """Answers the requests of other processes with `handler`, which raises AtomlogError to refuse."""

    def __init__(self, directory: str, handler: Handler) -> None:
        self._directory = directory
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._listening = -1
        self._made: os.stat_result | None = None  # the socket file, to remove no other one
        self._closing = False
        self._conversations = Conversations()

    async def start(self) -> None:
        """Listen. The caller holds the store's lock, so a socket that is there belongs to nobody.

        Raises STORE_READ_ONLY, or STORE_LOCKED where the file system has no sockets.
        """
        try:
            listening = _bound(self._directory)
        except OSError as error:
            path = f"{self._directory}/{NAME}"
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise fail("STORE_READ_ONLY", f"{path} cannot be made: {error.strerror}") from None
            message = f"{path} cannot be made ({error.strerror}): other processes could not reach this one"
            raise fail("STORE_LOCKED", f"{message}. Put the store on a local disk") from None
        self._made = os.stat(f"{self._directory}/{NAME}")
        keep_from_children(listening.fileno())  # a child would take connections in and never answer
        self._listening = listening.fileno()
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, backlog=BACKLOG)

    async def close(self) -> None:
        """Stop listening and end every connection; what is asked and not answered may still be carried out."""
        self._closing = True
        if self._server is None:
            return
        with contextlib.suppress(FileNotFoundError):
            path = f"{self._directory}/{NAME}"
            if self._made is not None and os.path.samestat(os.stat(path), self._made):
                os.unlink(path)
        for _ in range(3):
            await asyncio.sleep(0)  # who has just connected becomes known: asyncio would leave it open
        forget(self._listening)
        self._server.close()
        await self._conversations.close()
        await self._server.wait_closed()
        self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known from the first moment: a task that asyncio makes is not, until it runs."""
        self._conversations.begin(self._converse(reader, writer), writer.transport.abort)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._closing and peer_uid(writer) == os.getuid():
                await serve(reader, writer, self._handler)
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass  # the peer went away


class OwnerConnection(Connection):
    """A connection to the process that holds the store. ConnectionError when there is none, or it broke."""

    @classmethod
    async def open(cls, directory: str) -> "OwnerConnection":
        """STORE_LOCKED when the process that listens is another user's."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.setblocking(False)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                path = f"/proc/self/fd/{descriptor}/{NAME}"
                await asyncio.get_running_loop().sock_connect(connecting, path)
            finally:
                os.close(descriptor)
            reader, writer = await asyncio.open_unix_connection(sock=connecting)
        except FileNotFoundError as error:
            connecting.close()
            raise ConnectionError(str(error)) from None
        except BaseException:
            connecting.close()
            raise
        owner, own = peer_uid(writer), os.getuid()
        if owner != own:
            writer.transport.abort()
            if owner == NOBODY:
                raise ConnectionError("the owner has more connections waiting than it takes in")
            message = f"the process that holds {directory} runs as user {owner}, this one as user {own}"
            raise fail("STORE_LOCKED", f"{message}. Write as that user, or end that process")
        return cls(reader, writer)


def _bound(directory: str) -> socket.socket:
    """The socket of a store's directory, bound, in place of one that a killed owner left."""
    path = f"{directory}/{NAME}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchmod(listening.fileno(), 0o600)  # the mode of the socket file follows the descriptor's at bind
            listening.bind(f"/proc/self/fd/{descriptor}/{NAME}")
        finally:
            os.close(descriptor)
        os.chmod(path, 0o600)
    except BaseException:
        listening.close()
        raise
    return listening


def peer_uid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(peer)[1]
    return uid
