"""A TCP proxy in front of one address, which delays, stalls and cuts what goes through it."""

import asyncio
import contextlib
from typing import Final

CHUNK_BYTES: Final = 64 * 1024


class Proxy:
    """Listens on a port of its own and passes bytes both ways. Everything it does to them can be changed at any time.

    `delay_s` holds each chunk back, in order. `stalled` holds everything back until it is False again: connections
    stand, as over a network that loses all packets. `cut` resets every connection; new ones are taken in unless
    `refusing`.
    """

    def __init__(self) -> None:
        self.target = ("127.0.0.1", 0)  # where connections lead
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.delay_s = 0.0
        self.refusing = False
        self.carried_bytes = 0

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy is not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)

    def stall(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Reset every connection at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            if self.refusing:
                return
            back, onward = await asyncio.open_connection(*self.target)
            self._writers.add(onward)
            await asyncio.gather(self._pass(reader, onward), self._pass(back, writer))
        except OSError:
            pass  # one side is gone: so is the other
        finally:
            for one in (writer, onward):
                if one is not None:
                    one.transport.abort()
                    self._writers.discard(one)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flows.wait()
            target.write(chunk)
            await target.drain()
            self.carried_bytes += len(chunk)
        with contextlib.suppress(OSError):
            target.write_eof()
