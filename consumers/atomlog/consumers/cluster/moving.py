"""A planned change of owner: the owner drains and writes a Release that names the next one, which claims at once."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.election import MOVE
from atomlog.consumers.cluster.keeper import Keeper
from atomlog.consumers.cluster.reports import Reports
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import invalid, shown
from atomlog.kernel.settings import Settings

ENDPOINT: Final = "tls:"


class Mover:
    """Moves partitions that this node owns."""

    def __init__(
        self,
        endpoint: str,
        keepers: Mapping[int, Keeper],
        reports: Reports,
        connections: Connections,
        settings: Settings,
    ) -> None:
        self._endpoint = endpoint
        self._keepers = keepers
        self._reports = reports
        self._connections = connections
        self._lease_s = settings.lease_ms / 1_000
        self._wait_s = (settings.lease_ms * 2 + settings.standby_backoff_ms * 2) / 1_000
        self._call_s = settings.node_call_timeout_ms / 1_000

    async def move(self, partition: int, to: str | None) -> Mapping[str, Any]:
        """Hand a partition to the node that is named by its name or endpoint, or to any other; who has it then.

        Raises:
            INVALID_INPUT: no such node is known.
            NOT_OWNER: that node cannot be reached, or could not take it now; it stays here.
            IN_DOUBT: it was given back, perhaps, and nobody has taken it in time.
        """
        # 1. Whom it is for, and that it could take it: an owner that serves is not given up for one that cannot.
        endpoint = None if to is None else self._resolved(to)
        keeper = self._keepers[partition]
        if endpoint == self._endpoint:
            return self._who(keeper)
        if endpoint is not None:
            await self._check_fit(partition, endpoint)
        # 2. Drain, and release in its name.
        before = keeper.owner.term
        reason = f"{MOVE}{endpoint}" if endpoint is not None else f"moved away from {self._endpoint}"
        if not await keeper.give_back(reason):
            raise fail("IN_DOUBT", f"partition {partition}: whether it was given back is not known; ask for its status")
        # 3. Wait for the next Claim.
        try:
            async with asyncio.timeout(self._wait_s):
                await keeper.owner.until(lambda: keeper.owner.term > before)
        except TimeoutError:
            raise fail("IN_DOUBT", f"partition {partition} was given back, and nobody has taken it yet") from None
        return self._who(keeper)

    def _resolved(self, to: str) -> str:
        endpoint = to if to.startswith(ENDPOINT) else self._reports.endpoint_of(to)
        if endpoint is None:
            known = [heard.report.name for heard in self._reports.heard() if heard.report.role == "kernel"]
            raise invalid("to", f"no kernel {shown(to)} has been heard of; known are {', '.join(known[:20]) or 'none'}")
        return endpoint

    async def _check_fit(self, partition: int, endpoint: str) -> None:
        try:
            found = await self._connections.ask(endpoint, "fit", self._lease_s, partition=partition)
        except (ConnectionError, TimeoutError) as error:
            raise fail("NOT_OWNER", f"{endpoint} cannot be reached ({error}); partition {partition} stays") from None
        if found["unfit"] is not None:
            text = f"{endpoint} cannot take partition {partition} now: {found['unfit']}; it stays where it is"
            raise fail("NOT_OWNER", text, retry_after_ms=1_000)

    def _who(self, keeper: Keeper) -> Mapping[str, Any]:
        claim = keeper.owner.place().claim
        return {
            "partition": keeper.partition,
            "term": keeper.owner.term,
            "node": claim.get("node"),
            "endpoint": claim.get("endpoint"),
        }
