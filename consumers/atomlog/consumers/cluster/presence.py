"""What a consumer of a shared store is for other nodes: it says where it stands, and answers reads if it listens.

It answers from every projection of its directory, those of other processes too: they are opened beside their followers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from atomlog.consumers.cluster.channel import ChannelServer
from atomlog.consumers.cluster.control import Control, ControlTopic
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.consumers.cluster.reading import ReadService
from atomlog.consumers.cluster.reports import NodeReport
from atomlog.consumers.follower import Follower
from atomlog.consumers.generations import GenerationDirectory
from atomlog.consumers.indexes import OpenIndexes
from atomlog.consumers.parts import PROJECTIONS, Parts
from atomlog.consumers.sides import reader_of
from atomlog.consumers.standing import Lately, consumer_report, partitions_of
from atomlog.kernel.errors import fail

NAME_HEX: Final = 8  # of the random bytes of a process that was given no name and listens nowhere
BEGINNING: Final = "the node is starting: it opens its projections first"


class Presence:
    """Use `open`; `close` says a last word and gives everything back."""

    def __init__(self, parts: Parts, followers: Sequence[Follower], topic: ControlTopic) -> None:
        """Use `open`."""
        self._parts = parts
        self._followers = followers
        self._lately = Lately(parts)
        self._node = parts.machine.randomness.token(16)
        self._name = f"consumer {self._node.hex()[:NAME_HEX]}"
        self._server: ChannelServer | None = None
        self._views: OpenIndexes | None = None
        self._service: ReadService | None = None
        self._control = Control(
            topic,
            parts.machine.clock,
            every_ms=parts.settings.heartbeat_ms,
            report=self.report,
            on_event=parts.on_event,
        )
        self._saying: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        parts: Parts,
        followers: Sequence[Follower],
        *,
        topic: ControlTopic,
        credentials: Credentials | None = None,
        listen: tuple[str, int] | None = None,
        advertised_host: str | None = None,
        name: str | None = None,
    ) -> "Presence":
        """`listen`: host and port, 0 = a free one, where reads of other nodes are answered, showing `credentials`.

        Others have been told of it on return. Raises INVALID_INPUT when this machine cannot listen there.
        """
        presence = cls(parts, followers, topic)
        async with AsyncExitStack() as opening:
            opening.push_async_callback(presence.close)
            if listen is not None:
                assert credentials is not None, "who listens shows a certificate"
                server = ChannelServer(*listen, credentials, presence.answer, advertised_host=advertised_host)
                await server.start()
                presence._server, presence._name = server, server.endpoint
                presence._views = await OpenIndexes.open(parts, (), may_follow=False)
                presence._service = ReadService(reader=reader_of(parts, presence._views))
            if name is not None:
                presence._name = name
            await presence._control.say()
            presence._saying = asyncio.create_task(presence._say_on())
            opening.pop_all()
        return presence

    @property
    def endpoint(self) -> str:
        """Where other nodes reach it; empty when it does not listen."""
        return "" if self._server is None else self._server.endpoint

    async def answer(self, message: Mapping[str, Any]) -> Any:
        """A request of another node, which is trusted: it showed the cluster's certificate."""
        if self._service is None:
            raise fail("INDEX_LAGGING", BEGINNING, retry_after_ms=1_000)
        await self._attach_new()
        return await self._service.answer(message)

    async def report(self) -> NodeReport:
        """Where this process stands."""
        await self._attach_new()
        views: Sequence[Any] = self._followers if self._views is None else list(self._views.values())
        recent = self._lately.known(partitions_of(views))
        return await consumer_report(
            self._parts, views, self._lately, recent, node=self._node, name=self._name, endpoint=self.endpoint
        )

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._control.close)
            closing.push_async_callback(self._lately.close)
            if self._views is not None:
                closing.push_async_callback(self._views.close)
            if self._server is not None:
                closing.push_async_callback(self._server.close)
            if self._saying is not None:
                self._saying.cancel()
                await asyncio.gather(self._saying, return_exceptions=True)

    async def _say_on(self) -> None:
        while True:
            await self._parts.machine.clock.sleep(self._parts.settings.heartbeat_ms / 1_000)
            await self._control.say()

    async def _attach_new(self) -> None:
        """Projections that were made since, by this process or by another one."""
        if self._views is None:
            return
        for name in PROJECTIONS:
            directory = GenerationDirectory(self._parts.machine.files, self._parts.directory, name)
            if name not in self._views and name not in self._views.broken and directory.current() is not None:
                await self._views.attach(name)
