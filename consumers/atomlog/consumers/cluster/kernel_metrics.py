"""What `kernel` shows to Prometheus. What it needs is loaded when an address was named."""

from typing import TYPE_CHECKING

from atomlog.consumers.cluster.node import KernelNode
from atomlog.consumers.events import Event, OnEvent
from atomlog.consumers.parts import Parts
from atomlog.kernel.ports import Meters

if TYPE_CHECKING:
    from atomlog.consumers.metrics_server import MetricsServer


class KernelMetrics:
    """The page of one kernel. `start` it, once its node is there."""

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT, :PORT or PORT; INVALID_INPUT otherwise."""
        from atomlog.consumers.metrics import Metrics
        from atomlog.consumers.metrics_server import parse_address

        parse_address(address)
        self._address = address
        self._metrics = Metrics()
        self._server: MetricsServer | None = None

    @property
    def meters(self) -> Meters:
        return self._metrics

    def listening(self, on_event: OnEvent) -> OnEvent:
        """`on_event`, and each event is counted."""

        def heard(event: Event) -> None:
            self._metrics.heard(event)
            on_event(event)

        return heard

    async def start(self, parts: Parts, node: KernelNode) -> None:
        """Listen, and say where. INVALID_INPUT when this machine cannot listen there."""
        from atomlog.consumers.metrics import KeyWaits
        from atomlog.consumers.metrics_server import MetricsServer

        async def page() -> bytes:
            overlay = {partition: owner.overlay for partition, owner in node.owners.owners.items()}
            return self._metrics.page(await node.report(), KeyWaits.of(parts.ring), overlay=overlay)

        self._server = MetricsServer(self._address, page)
        await self._server.start()
        parts.on_event({"event": "metrics", "endpoint": self._server.endpoint})

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
