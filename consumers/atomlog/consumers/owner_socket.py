"""`owner.sock`: how another process of the same user writes while one process holds the store.

A message is `u32 BE length ‖ JSON`. A request is `{"id", "op", …}`, its answer `{"id", "ok": true, "result"}` or
`{"id", "ok": false, "error"}` with the error of `AtomlogError.to_dict`. An id is an integer. Answers come in any order.

The socket is made with mode 0600, and both sides check that the other one is the same user. A path of a socket has at
most 108 bytes, so both go through the directory's descriptor.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import CODES, AtomlogError, fail, from_dict
from atomlog.kernel.forking import forget, keep_from_children

NAME: Final = "owner.sock"
REQUESTS_MAX: Final = 1_024  # of one connection at a time; more wait in the socket
BACKLOG: Final = 1_024  # connections that wait to be taken in
NOBODY: Final = -1  # the user at the other end of a socket that is not connected: the backlog was full

_LENGTH: Final = struct.Struct(">I")
_PEER: Final = struct.Struct("3i")  # pid, uid, gid

Message = dict[str, Any]
Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]


class OwnerServer:
    """Answers the requests of other processes with `handler`, which raises AtomlogError to refuse."""

    def __init__(self, directory: str, handler: Handler) -> None:
        self._directory = directory
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._listening = -1
        self._made: os.stat_result | None = None  # the socket file, to remove no other one
        self._closing = False
        self._connections: set[asyncio.Task[None]] = set()

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
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known from the first moment: a task that asyncio makes is not, until it runs."""
        task = asyncio.create_task(self._converse(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._closing and peer_uid(writer) == os.getuid():
                await self._serve(reader, writer)
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass  # the peer went away

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = asyncio.Semaphore(REQUESTS_MAX)
        async with asyncio.TaskGroup() as answering:
            while True:
                try:
                    message = await _receive(reader)
                except OSError:
                    return  # requests that are being worked on are finished; their outcome is in the log
                if type(message.get("id")) is not int:
                    return  # its answer would reach nobody, and an id of any depth could not be written back
                await room.acquire()
                task = answering.create_task(self._answer(message, writer))
                task.add_done_callback(lambda _: room.release())

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        try:
            answer: Message = {"id": message["id"], "ok": True, "result": await self._handler(message)}
        except AtomlogError as error:
            answer = {"id": message["id"], "ok": False, "error": error.to_dict()}
        except Exception as error:  # a bug: told to the one who asked, not to those beside it
            unknown = fail("IN_DOUBT", f"the owner failed on this request: {type(error).__name__}: {error}")
            answer = {"id": message["id"], "ok": False, "error": unknown.to_dict()}
        with contextlib.suppress(OSError):
            await _send(writer, answer)


class OwnerConnection:
    """A connection to the process that holds the store. ConnectionError when there is none, or it broke.

    It belongs to the process that opened it: two that share a connection would take each other's answers.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._receiving = asyncio.create_task(self._receive(reader))

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

    @property
    def broken(self) -> bool:
        return self._receiving.done()

    async def ask(self, op: str, timeout_s: float, **parts: Any) -> Any:
        """The result of a request.

        Raises:
            AtomlogError: the owner refused it, in its own words.
            ConnectionError, TimeoutError: no answer came; whether the request was carried out is not known.
        """
        if self.broken:
            raise ConnectionError("the connection to the owner is broken")
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await _send(self._writer, {"id": number, "op": op, **parts})
                return await answer
        finally:
            del self._waiting[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # perhaps it came while the request was still being sent

    async def close(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        self._writer.transport.abort()  # not `close`: it waits for an owner that does not read
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        why = "the owner went away before it answered"
        try:
            while True:
                self._take(await _receive(reader))
        except OSError:
            pass
        except Exception as error:  # another version's answer, or no answer at all: this connection is of no use
            why = f"the owner's answer is not understood: {type(error).__name__}: {error}"
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError(why))

    def _take(self, message: Message) -> None:
        answer = self._waiting.get(message["id"])
        if answer is None or answer.done():
            return
        if message["ok"]:
            answer.set_result(message["result"])
        elif message["error"]["code"] not in CODES:
            raise ValueError(f"an error of the unknown code {message['error']['code']!r:.100}")
        else:
            answer.set_exception(from_dict(message["error"]))


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


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    raw = jsontext.dumps(message)
    if len(raw) > REQUEST_BYTES_MAX:
        raise fail("BOUND_EXCEEDED", f"the request has {len(raw)} bytes, more than {REQUEST_BYTES_MAX}")
    writer.write(_LENGTH.pack(len(raw)) + raw)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Message:
    """The next message; ConnectionError when the peer went away, or sent what is no message."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > REQUEST_BYTES_MAX:
            raise ConnectionError(f"a message of {length} bytes is longer than {REQUEST_BYTES_MAX}")
        message = jsontext.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("the other side went away") from None
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"that is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise ConnectionError("a message is an object")
    return message


def peer_uid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(peer)[1]
    return uid
