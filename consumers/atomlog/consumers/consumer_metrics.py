"""What `consume` shows to Prometheus. What it needs is loaded when an address was named."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atomlog.consumers.events import Event, OnEvent
from atomlog.consumers.follower import Follower
from atomlog.consumers.parts import Parts

if TYPE_CHECKING:
    from atomlog.consumers.metrics_server import MetricsServer
    from atomlog.consumers.standing import Lately


class ConsumerMetrics:
    """The page of one consuming process. `start` it, once its followers are there."""

    def __init__(self, address: str, node: bytes) -> None:
        """`address` is HOST:PORT, :PORT or PORT, INVALID_INPUT otherwise; `node` 16 bytes that no other process has."""
        from atomlog.consumers.metrics import Metrics
        from atomlog.consumers.metrics_server import parse_address

        parse_address(address)
        self._address = address
        self._node = node
        self._metrics = Metrics()
        self._server: MetricsServer | None = None
        self._lately: Lately | None = None

    def listening(self, on_event: OnEvent) -> OnEvent:
        """`on_event`, and each event is counted."""

        def heard(event: Event) -> None:
            self._metrics.heard(event)
            on_event(event)

        return heard

    async def start(self, parts: Parts, followers: Sequence[Follower]) -> None:
        """Listen, and say where. INVALID_INPUT when this machine cannot listen there."""
        from atomlog.consumers.metrics import KeyWaits
        from atomlog.consumers.metrics_server import MetricsServer
        from atomlog.consumers.standing import Lately, consumer_report, partitions_of

        lately = self._lately = Lately(parts)

        async def page() -> bytes:
            recent = await lately.found(partitions_of(followers))
            report = await consumer_report(parts, followers, lately, recent, node=self._node, name="")
            voids = {(one.name, number): reasons for one in followers for number, reasons in one.voids.items()}
            return self._metrics.page(report, KeyWaits.of(parts.ring), voids)

        self._server = MetricsServer(self._address, page)
        await self._server.start()
        parts.on_event({"event": "metrics", "endpoint": self._server.endpoint})

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self._lately is not None:
            await self._lately.close()
