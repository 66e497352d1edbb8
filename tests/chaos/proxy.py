"""A TCP proxy in front of one address, which delays, stalls, holds back and cuts what goes through it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

CHUNK_BYTES: Final = 64 * 1024

Chosen = Callable[[str, bytes], bool]
"""Who sends ("host:port"), and what: whether it is held back."""


class Proxy:
    """Listens on a port of its own and passes bytes both ways. Everything it does to them can be changed at any time.

    `delay_s` holds each chunk back, in order. `stall` holds everything back until `flow`: connections stand, as over a
    network that loses all packets. `hold` does so to chosen connections, on the way to the target, from the first
    chosen chunk on. `cut` resets every connection; new ones are taken in.
    """

    def __init__(self) -> None:
        self.target = ("127.0.0.1", 0)  # where connections lead
        self.delay_s = 0.0
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._chosen: Chosen | None = None
        self._released = asyncio.Event()
        self.held = 0  # chunks that were held back since `hold`

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy is not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._connected, host, 0)

    def stall(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def hold(self, chosen: Chosen) -> None:
        self._released.clear()
        self._chosen, self.held = chosen, 0

    def release(self) -> None:
        """What was held back goes on its way, even if who sent it has given up."""
        self._chosen = None
        self._released.set()

    def cut(self) -> None:
        """Reset every connection at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self.release()
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
        host, port = writer.get_extra_info("peername")
        try:
            back, onward = await asyncio.open_connection(*self.target)
            self._writers.add(onward)
            await asyncio.gather(self._pass(reader, onward, f"{host}:{port}"), self._pass(back, writer, None))
        except OSError:
            pass  # one side is gone: so is the other
        finally:
            for one in (writer, onward):
                if one is not None:
                    one.transport.abort()
                    self._writers.discard(one)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, sender: str | None) -> None:
        """`sender`: on the way to the target."""
        while chunk := await source.read(CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flows.wait()
            if sender is not None and self._chosen is not None and self._chosen(sender, chunk):
                self.held += 1
                await self._released.wait()
            target.write(chunk)
            await target.drain()
        with contextlib.suppress(OSError):
            target.write_eof()
