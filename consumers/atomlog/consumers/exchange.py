"""Requests and answers of processes that trust each other, over any stream of bytes.

A message is `u32 BE length ‖ JSON`. A request is `{"id", "op", …}`, its answer `{"id", "ok": true, "result"}` or
`{"id", "ok": false, "error"}` with the error of `AtomlogError.to_dict`. An id is an integer. Answers come in any order.

`owner_socket` is the transport inside one machine, `cluster.channel` the one between machines. Each decides whom it
talks to before a byte of a request is read.
"""

import asyncio
import contextlib
import itertools
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import CODES, AtomlogError, fail, from_dict

REQUESTS_MAX: Final = 1_024  # of one connection at a time; more wait in the socket

_LENGTH: Final = struct.Struct(">I")

Message = dict[str, Any]
Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]


class Conversations:
    """The connections that a server has taken in. Each is known from its first moment until its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, conversing: Coroutine[Any, Any, None], end: Callable[[], None]) -> None:
        """Run it; `end` is called when it is over, in whatever way."""
        task = asyncio.create_task(conversing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: end())

    async def close(self) -> None:
        """End them all; what is asked and not answered may still be carried out."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Answer a peer with `handler`, which raises AtomlogError to refuse, until it goes away or sends no message."""
    room = asyncio.Semaphore(REQUESTS_MAX)
    async with asyncio.TaskGroup() as answering:
        while True:
            try:
                message = await receive(reader)
            except OSError:
                return  # requests that are being worked on are finished; their outcome is in the log
            if type(message.get("id")) is not int:
                return  # its answer would reach nobody, and an id of any depth could not be written back
            await room.acquire()
            task = answering.create_task(_answer(message, writer, handler))
            task.add_done_callback(lambda _: room.release())


async def _answer(message: Message, writer: asyncio.StreamWriter, handler: Handler) -> None:
    try:
        answer: Message = {"id": message["id"], "ok": True, "result": await handler(message)}
    except AtomlogError as error:
        answer = {"id": message["id"], "ok": False, "error": error.to_dict()}
    except Exception as error:  # a bug: told to the one who asked, not to those beside it
        unknown = fail("IN_DOUBT", f"the owner failed on this request: {type(error).__name__}: {error}")
        answer = {"id": message["id"], "ok": False, "error": unknown.to_dict()}
    with contextlib.suppress(OSError):
        await send(writer, answer)


class Connection:
    """The asking side. ConnectionError when the other side went away.

    It belongs to the process that opened it: two that share a connection would take each other's answers.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._receiving = asyncio.create_task(self._receive(reader))

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
                await send(self._writer, {"id": number, "op": op, **parts})
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
                self._take(await receive(reader))
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


async def send(writer: asyncio.StreamWriter, message: Message) -> None:
    raw = jsontext.dumps(message)
    if len(raw) > REQUEST_BYTES_MAX:
        raise fail("BOUND_EXCEEDED", f"the request has {len(raw)} bytes, more than {REQUEST_BYTES_MAX}")
    writer.write(_LENGTH.pack(len(raw)) + raw)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Message:
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
