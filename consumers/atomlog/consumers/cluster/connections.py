"""Connections to other nodes, one an endpoint, opened when they are first needed and anew when they broke."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from atomlog.consumers.cluster.channel import ChannelConnection
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.kernel.errors import fail

ENDPOINTS_MAX: Final = 64  # more nodes than that are not asked by one process; the least used is let go of
CONNECT_S: Final = 3.0


class Connections:
    """Asks other nodes. `credentials` is called when the first connection is opened."""

    def __init__(self, credentials: Callable[[], Credentials]) -> None:
        self._load = credentials
        self._credentials: Credentials | None = None
        self._open: OrderedDict[str, ChannelConnection] = OrderedDict()
        self._opening: dict[str, asyncio.Task[ChannelConnection]] = {}
        self._closed = False

    async def ask(self, endpoint: str, op: str, timeout_s: float, **parts: Any) -> Any:
        """See `Connection.ask`. Raises Unreached when nothing was sent."""
        try:
            connection = await self._connection(endpoint)
        except (ConnectionError, TimeoutError) as error:
            raise Unreached(str(error) or f"{endpoint} did not answer in time") from None
        return await connection.ask(op, timeout_s, **parts)

    async def close(self) -> None:
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        while self._open:
            await self._open.popitem()[1].close()

    async def _connection(self, endpoint: str) -> ChannelConnection:
        if self._closed:
            raise fail("NOT_OWNER", "the store is closed")
        known = self._open.get(endpoint)
        if known is not None and not known.broken:
            self._open.move_to_end(endpoint)
            return known
        opening = self._opening.get(endpoint)
        if opening is None:  # many requests at once open one connection; one that is cancelled does not end it
            opening = self._opening[endpoint] = asyncio.create_task(self._reopened(endpoint))
            opening.add_done_callback(lambda done: self._opened(endpoint, done))
        return await asyncio.shield(opening)

    def _opened(self, endpoint: str, done: "asyncio.Task[ChannelConnection]") -> None:
        del self._opening[endpoint]
        if not done.cancelled():
            done.exception()  # told to who waits, if there still is somebody

    async def _reopened(self, endpoint: str) -> ChannelConnection:
        broken = self._open.pop(endpoint, None)
        if broken is not None:
            await broken.close()
        while len(self._open) >= ENDPOINTS_MAX:
            await self._open.popitem(last=False)[1].close()
        if self._credentials is None:
            self._credentials = self._load()
        opened = await ChannelConnection.open(endpoint, self._credentials, CONNECT_S)
        self._open[endpoint] = opened
        return opened


class Unreached(ConnectionError):
    """Nobody answered at an endpoint, so that nothing was sent there."""
