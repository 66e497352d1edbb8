"""`owner.sock`: how another process of the same user writes while one process holds the store.

A message is `u32 BE length ‖ JSON`. A request is `{"id", "op", …}`, its answer `{"id", "ok": true, "result"}` or
`{"id", "ok": false, "error"}` with the error of `AtomlogError.to_dict`. Answers come in any order.

The socket is made with mode 0600 and the peer's user is checked. A path of a socket has at most 108 bytes, so both
sides go through the directory's descriptor.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import AtomlogError, fail, from_dict

NAME: Final = "owner.sock"
REQUESTS_MAX: Final = 1_024  # of one connection at a time; more wait in the socket

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
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. The caller holds the store's lock, so a socket that is there belongs to nobody."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._directory}/{NAME}")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchmod(listening.fileno(), 0o600)  # the mode of the socket file follows the descriptor's at bind
            listening.bind(f"/proc/self/fd/{descriptor}/{NAME}")
        finally:
            os.close(descriptor)
        os.chmod(f"{self._directory}/{NAME}", 0o600)
        self._server = await asyncio.start_unix_server(self._connected, sock=listening)

    async def close(self) -> None:
        if self._server is None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._directory}/{NAME}")
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if _peer_uid(writer) == os.getuid():
                await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the peer went away, or this server closes
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = asyncio.Semaphore(REQUESTS_MAX)
        async with asyncio.TaskGroup() as answering:
            while True:
                try:
                    message = await _receive(reader)
                except (asyncio.IncompleteReadError, OSError):
                    return  # requests that are being worked on are finished; their outcome is in the log
                await room.acquire()
                task = answering.create_task(self._answer(message, writer))
                task.add_done_callback(lambda _: room.release())

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        try:
            answer: Message = {"id": message.get("id"), "ok": True, "result": await self._handler(message)}
        except AtomlogError as error:
            answer = {"id": message.get("id"), "ok": False, "error": error.to_dict()}
        with contextlib.suppress(OSError):
            await _send(writer, answer)


class OwnerConnection:
    """A connection to the process that holds the store. ConnectionError when there is none, or it broke."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._receiving = asyncio.create_task(self._receive(reader))

    @classmethod
    async def open(cls, directory: str) -> "OwnerConnection":
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

    async def close(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await _receive(reader)
                answer = self._waiting.get(message["id"])
                if answer is None or answer.done():
                    continue
                if message["ok"]:
                    answer.set_result(message["result"])
                else:
                    answer.set_exception(from_dict(message["error"]))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the owner went away before it answered"))


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    raw = jsontext.dumps(message)
    if len(raw) > REQUEST_BYTES_MAX:
        raise fail("BOUND_EXCEEDED", f"the request has {len(raw)} bytes, more than {REQUEST_BYTES_MAX}")
    writer.write(_LENGTH.pack(len(raw)) + raw)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Message:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > REQUEST_BYTES_MAX:
        raise ConnectionError(f"a message of {length} bytes is longer than {REQUEST_BYTES_MAX}")
    message: Message = jsontext.loads(await reader.readexactly(length))
    return message


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(peer)[1]
    return uid
