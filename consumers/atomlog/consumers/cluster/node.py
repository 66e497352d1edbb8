"""A node that owns partitions of a shared store: its owners, a keeper for each, and the requests of other nodes.

Start at `KernelNode.open`. Nothing here knows Kafka: the log and the control topic come as ports.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from atomlog.consumers.cluster.channel import ChannelServer
from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.control import Control, ControlTopic
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.consumers.cluster.election import Election
from atomlog.consumers.cluster.keeper import Keeper
from atomlog.consumers.cluster.moving import Mover
from atomlog.consumers.cluster.reports import NodeReport
from atomlog.consumers.cluster.requests import Requests
from atomlog.consumers.owners import Owners
from atomlog.consumers.parts import Parts
from atomlog.consumers.place import WAY_OUT, expired, first_kept
from atomlog.consumers.processes import process_id
from atomlog.consumers.standing import Lately
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import partition_of
from atomlog.kernel.kafka.keystore import KafkaKeyStore

FINAL_S: Final = 2.0  # for the last report of a node that ends
HEADS: Final = "heads"  # what a kernel keeps of each partition, as a projection is called
STARTING: Final = "the node is starting: it applies the log first"


class KernelNode:
    """`endpoint` is where other nodes reach it. Run `run`; `close` gives everything back."""

    def __init__(
        self, parts: Parts, owners: Owners, server: ChannelServer, connections: Connections, name: str
    ) -> None:
        """Use `open`."""
        self.name = name
        self.endpoint = server.endpoint
        self.owners = owners
        self.keepers: Mapping[int, Keeper] = {}
        self._parts = parts
        self._server = server
        self._connections = connections
        self._node = parts.machine.randomness.token(16)
        self._lately = Lately(parts)
        self._control: Control | None = None
        self._requests: Requests | None = None
        self._is_ending = False
        self._error: AtomlogError | None = None
        self._stopped = asyncio.Event()  # no partition is followed any more

    @classmethod
    async def open(
        cls,
        parts: Parts,
        *,
        host: str,
        port: int,
        advertised_host: str | None = None,
        credentials: Credentials,
        topic: ControlTopic,
        name: str | None = None,
        preferred: Collection[int] | None = None,
        off_ms: Callable[[], int | None] = lambda: None,
    ) -> "KernelNode":
        """Listen, take the heads of this directory, and apply the log to them. Claims nothing before `run`.

        `preferred`: partitions that are meant for this node; None = all. `name`: in Claims and reports; None = the
        endpoint. `off_ms`: how far this node's clock is ahead of the log's.
        STORE_LOCKED when another process keeps the heads of this directory.
        """
        parts.ring.require_master()
        async with AsyncExitStack() as opening:
            found: list[KernelNode] = []

            async def answer(message: Mapping[str, Any]) -> Any:
                if not found:
                    raise fail("NOT_OWNER", STARTING, retry_after_ms=1_000)
                return await found[0].answer(message)

            server = ChannelServer(host, port, credentials, answer, advertised_host=advertised_host)
            await server.start()
            opening.push_async_callback(server.close)
            connections = Connections(lambda: credentials)
            opening.push_async_callback(connections.close)
            owners = await Owners.open(
                parts, node=name or server.endpoint, endpoint=server.endpoint, off_ms=off_ms, may_fail=True
            )
            opening.push_async_callback(owners.close)
            node = cls(parts, owners, server, connections, name or server.endpoint)
            node._begin(topic, preferred)
            found.append(node)
            opening.pop_all()
        return node

    def _begin(self, topic: ControlTopic, preferred: Collection[int] | None) -> None:
        parts, machine, settings = self._parts, self._parts.machine, self._parts.settings
        control = self._control = Control(
            topic,
            machine.clock,
            every_ms=settings.heartbeat_ms,
            report=self.report,
            on_event=parts.on_event,
        )
        self.keepers = {
            partition: Keeper(
                owner,
                partition,
                Election(
                    settings,
                    machine.randomness,
                    endpoint=self.endpoint,
                    preferred=preferred is None or partition in preferred,
                ),
                log=parts.log,
                clock=machine.clock,
                settings=settings,
                trouble=self._trouble,
                heartbeat=control.reports.heartbeat_us,
                probe=self._probe,
                on_event=parts.on_event,
            )
            for partition, owner in self.owners.owners.items()
        }
        mover = Mover(self.endpoint, self.keepers, control.reports, self._connections, settings)
        self._requests = Requests(parts, self.endpoint, self.owners, self.keepers, mover, self._connections)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the partitions until `stop`, then give them back to the others.

        Raises what made following impossible, once that is so for every partition.
        """
        assert self._control is not None
        tasks = [asyncio.create_task(self._control.run()), *(asyncio.create_task(self._keep(n)) for n in self.keepers)]
        ending = [asyncio.create_task(stop.wait()), asyncio.create_task(self._stopped.wait())]
        running = {*tasks, *ending}
        try:
            while not any(task.done() for task in ending):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # a bug ends the process
            await self._end()
        finally:
            for task in (*tasks, *ending):
                task.cancel()
            await asyncio.gather(*tasks, *ending, return_exceptions=True)
        if self._error is not None and self._stopped.is_set():
            raise self._error

    async def close(self) -> None:
        """Answer what is in hand, then give everything back, whatever of it fails."""
        async with AsyncExitStack() as closing:
            if self._control is not None:
                closing.push_async_callback(self._control.close)
            closing.push_async_callback(self.owners.close)
            closing.push_async_callback(self._lately.close)
            closing.push_async_callback(self._connections.close)
            closing.push_async_callback(self._server.close)

    async def answer(self, message: Mapping[str, Any]) -> Any:
        """A request of another node, which is trusted: it showed the cluster's certificate."""
        if self._is_ending:
            raise fail("NOT_OWNER", f"the node {self.name} is ending", retry_after_ms=100)
        assert self._requests is not None
        return await self._requests.answer(message)

    def owns(self, partition: int) -> bool:
        return self.keepers[partition].owner.phase == "owner" and not self._is_ending

    def owns_space(self, space: str) -> bool:
        return self.owns(partition_of(space, self._parts.config.partitions))

    async def report(self) -> NodeReport:
        """Where this node stands."""
        machine, owners = self._parts.machine, self.owners
        recent = self._lately.known(owners.owners.keys())
        return NodeReport(
            node=self._node,
            name=self.name,
            role="kernel",
            endpoint=self.endpoint,
            pid=process_id(),
            at_us=machine.clock.now_us(),
            partitions=tuple(keeper.report() for keeper in self.keepers.values()),
            disk_free_bytes=machine.files.free_bytes(self._parts.directory),
            disk_reserve_bytes=self._parts.settings.disk_reserve_bytes,
            disk_days_to_full=self._lately.days_to_full(recent.values(), owners.bytes_per_revision()),
        )

    async def _keep(self, partition: int) -> None:
        """One that cannot be followed any more does not end the others."""
        keeper = self.keepers[partition]
        try:
            await keeper.run()
        except AtomlogError as error:
            named = _named(error, partition, keeper.owner.applied)
            self._error = self._error or named
            self._parts.on_event({"event": "stopped", "partition": partition, "error": named.to_dict()})
        if all(one.owner.phase == "failed" for one in self.keepers.values()):
            self._stopped.set()

    async def _end(self) -> None:
        """Take nothing more, answer what is in hand, release, and say so."""
        self._is_ending = True
        reason = f"the node {self.name} is ending"
        await asyncio.gather(*(keeper.give_back(reason) for keeper in self.keepers.values()))
        assert self._control is not None
        try:
            async with asyncio.timeout(FINAL_S):
                await self._control.say()
        except TimeoutError:
            pass  # the others see the Releases

    def _trouble(self) -> str | None:
        """Why this node cannot serve."""
        if self._is_ending:
            return "the node is ending"
        keys = self._parts.keys
        if isinstance(keys, KafkaKeyStore) and keys.failure is not None:
            return keys.failure.message  # without new keys nothing can be written here
        try:
            self.owners.world.admit()
            self.owners.world.check_clock(self._parts.machine.clock.now_us(), 0)
        except (AtomlogError, OSError) as error:
            return error.message if isinstance(error, AtomlogError) else str(error)
        return None

    async def _probe(self, partition: int, claim: Mapping[str, Any]) -> bool:
        """Whether the maker of a Claim says that it serves the partition."""
        endpoint = claim.get("endpoint", "")
        if not endpoint.startswith("tls:") or endpoint == self.endpoint:
            return False  # it listens nowhere, or listened where this process does now
        timeout_s = self._parts.settings.lease_ms / 1_000
        found = await self._connections.ask(endpoint, "probe", timeout_s, partition=partition, owner=claim["owner"])
        return bool(found["serves"])


def _named(error: AtomlogError, partition: int, position: int) -> AtomlogError:
    """What stopped a partition, with its number and the way out."""
    if (first := first_kept(error)) is not None:
        return expired(HEADS, partition, position, first)
    way_out = WAY_OUT.format(name=HEADS) if error.code == "LOG_DIVERGED" else ""
    return fail(error.code, f"partition {partition}, {error.message}{way_out}", details=error.details)
