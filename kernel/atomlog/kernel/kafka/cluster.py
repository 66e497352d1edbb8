"""Which broker to ask, over which connection, and what to do with its answer: again until the deadline, or an error.

Only what changes nothing, or was refused for sure, is asked again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.answers import (
    LEADER_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC,
    Patience,
    error_of,
    is_over,
    left,
)
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.trust import tls_context, unavailable
from atomlog.kernel.kafka.values import Address, Leader, Lost, Metadata, Refusal, TopicMetadata
from atomlog.kernel.kafka.wire import Connection

T = TypeVar("T")
Ask = Callable[[Connection, float], Awaitable[T]]  # gets how many seconds it may take
_ANSWER_S = 2.0  # for what a broker answers at once
_LOOK_S = 1.0  # how often somebody looks whether who was asked still leads


class Lane:
    """A connection to each broker that nobody else waits behind: brokers answer one after the other. See `close`."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._lock = asyncio.Lock()
        self._connections: dict[Address, Connection] = {}
        self._is_closed = False

    async def to(self, address: Address, deadline: float) -> Connection:
        """The open connection, or a new one; KAFKA_UNAVAILABLE, ACCESS_DENIED, INVALID_INPUT."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                connection = self._connections.get(address)
                if connection is None or not connection.is_open:
                    connection = await self._cluster.connect(address, deadline)
                    if self._is_closed:
                        connection.abort()
                        raise fail("INVALID_INPUT", "the connection to Kafka is closed")
                    self._connections[address] = connection
                return connection
        except TimeoutError:
            raise unavailable(f"broker {address}: no connection in time") from None

    def drop(self) -> None:
        """Throw the connections away, with what waits for an answer there."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort()

    async def close(self) -> None:
        """The sockets are closed on return; nothing of a broker is waited for."""
        self._is_closed = True
        self._cluster.lanes.discard(self)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.closed()


class LeaderWatch:
    """While inside, closes the connection once its broker does not lead the partition any more.

    A broker that stands still answers nobody; what was asked of it need not wait for the deadline.
    """

    def __init__(self, cluster: "Cluster", topic: str, partition: int, connection: Connection) -> None:
        self._cluster = cluster
        self._place = topic, partition
        self._connection = connection
        self._looking: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._begin)  # most answers come long before

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _begin(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            with suppress(AtomlogError):  # who waits will be told by the deadline
                leader = await self._cluster.leader_now(*self._place)
                if leader not in (None, self._connection.address):
                    self._connection.abort()
                    return
            await asyncio.sleep(_LOOK_S)


class Cluster:
    """The brokers of one cluster. What is known of a partition never goes back to an older leader."""

    def __init__(self, config: KafkaConfig, timeout_s: float) -> None:
        self.config = config
        self.timeout_s = timeout_s
        self.cluster_id = ""
        self.lanes: set[Lane] = set()
        self._context = tls_context(config)
        self._bootstrap = [Address.parse(text) for text in config.bootstrap]
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._stale: set[str] = set()
        self._turn = 0
        self._suspects: set[Address] = set()  # gave no answer when they were asked last
        self._answered: Address | None = None  # gave the last metadata
        self._is_closed = False
        self._asking = self.lane()

    def lane(self) -> Lane:
        lane = Lane(self)
        self.lanes.add(lane)
        return lane

    async def close(self) -> None:
        """All sockets are closed on return, whatever the brokers do."""
        self._is_closed = True
        for lane in tuple(self.lanes):
            await lane.close()

    def deadline(self) -> float:
        """Of a call that begins now, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self.timeout_s

    async def connect(self, address: Address, deadline: float) -> Connection:
        self._check_open()
        return await Connection.connect(address, self.config, self._context, left(deadline))

    async def refresh(self, topics: Sequence[str], deadline: float) -> Metadata:
        """What a broker knows now about these topics. Another one is asked each time: who is cut off tells old tales.

        Raises:
            KAFKA_UNAVAILABLE: none of them answered; each was tried once.
            LOG_MISMATCH: it is another cluster than before.
        """
        self._check_open()
        addresses = self._in_turn()
        failure: AtomlogError | None = None
        for address in addresses:
            try:
                metadata = await self._metadata_of(address, topics, deadline)
            except AtomlogError as error:
                if error.code != "KAFKA_UNAVAILABLE":
                    raise
                failure = error
                self._suspects.add(address)
                if is_over(deadline):
                    break
            else:
                self._suspects.discard(address)
                self._answered = address
                self._learn(metadata)
                return metadata
        assert failure is not None
        message = f"{', '.join(map(str, addresses))}: no broker answers: {failure.message}"
        raise unavailable(f"{message}; start one, or put the addresses right") from failure

    async def topic(self, topic: str, deadline: float) -> TopicMetadata:
        """As known here, or asked for. STORE_NOT_FOUND when no broker knows it for a while."""
        patience = Patience(deadline)
        while topic in self._stale or topic not in self._topics:
            found = (await self.refresh((topic,), deadline)).topics[topic]
            if not found.error:
                break
            refusal = Refusal(found.error, found.error_name)
            if not patience.with_refusal(refusal, is_repeatable=True):
                raise error_of(refusal, topic)
            await patience.pause()
        return self._topics[topic]

    async def topics(self, names: Sequence[str], deadline: float) -> Mapping[str, TopicMetadata]:
        """As a broker knows them now; `error` UNKNOWN_TOPIC for one that is not there."""
        patience = Patience(deadline)
        while True:
            found = (await self.refresh(names, deadline)).topics
            troubles = [(name, one) for name, one in found.items() if one.error not in (0, UNKNOWN_TOPIC)]
            if not troubles:
                return found
            refusal = Refusal(troubles[0][1].error, troubles[0][1].error_name)
            if not patience.with_refusal(refusal, is_repeatable=True):
                raise error_of(refusal, troubles[0][0])
            await patience.pause()

    def doubt(self, topic: str, address: Address | None = None) -> None:
        """Ask anew before the next question who leads it, and last of all the broker that gave no answer."""
        self._stale.add(topic)
        if address is not None:
            self._suspects.add(address)

    async def any_broker(self, ask: Ask[T]) -> T:
        """The answer of a broker to what can be asked again. Raises `Refusal`."""
        deadline = self.deadline()
        patience = Patience(deadline)
        while True:
            try:
                await self.refresh((), deadline)
                assert self._answered is not None, "refreshed"
                connection = await self._asking.to(self._answered, deadline)
                return await ask(connection, left(deadline))
            except Refusal as error:
                if not patience.with_refusal(error, is_repeatable=True):
                    raise
            except Lost as error:
                self._asking.drop()
                if patience.is_over:
                    raise unavailable(str(error)) from error
            await patience.pause()

    async def leader(
        self,
        topic: str,
        partition: int,
        lane: Lane,
        ask: Ask[T],
        *,
        deadline: float,
        wait_s: float = 0.0,
        is_repeatable: bool = True,
    ) -> T:
        """The leader's answer, asked for again until the deadline where that is safe.

        Args:
            wait_s: how long the broker itself may take before it answers.
            is_repeatable: when an answer is lost, ask again. Else `Lost` is raised.

        Raises:
            Refusal: OFFSET_OUT_OF_RANGE alone.
            KAFKA_UNAVAILABLE, ACCESS_DENIED, STORE_NOT_FOUND, LOG_MISMATCH, BOUND_EXCEEDED, INVALID_INPUT.
        """
        patience = Patience(deadline)
        while True:
            address: Address | None = None
            try:
                leader = await self._leader(topic, partition, deadline)
                address = self._brokers[leader.node]
                # A broker that stands still takes a part of the time only; one that is slow gets more at each try.
                share = self._share_s * 2**patience.tries
                connection = await lane.to(address, min(deadline, asyncio.get_running_loop().time() + share))
                answer = await ask(connection, min(left(deadline), wait_s + share) if is_repeatable else left(deadline))
                self._suspects.discard(address)
                return answer
            except Refusal as error:
                if error.code == OFFSET_OUT_OF_RANGE:
                    raise
                if not patience.with_refusal(error, is_repeatable=is_repeatable):
                    raise error_of(error, topic, partition) from error
            except Lost as error:
                lane.drop()
                self.doubt(topic, address)
                if not is_repeatable:
                    raise
                if patience.is_over:
                    raise unavailable(f"topic {topic}, partition {partition}: {error}") from error
            except AtomlogError as error:  # there was no connection, so nothing was asked
                if error.code != "KAFKA_UNAVAILABLE" or patience.is_over:
                    raise
                self.doubt(topic, address)
            self.doubt(topic)
            await patience.pause()

    @property
    def _share_s(self) -> float:
        """What one broker may take of the time of a call, at the first try."""
        return max(_ANSWER_S, self.timeout_s / 4)

    def _in_turn(self) -> Sequence[Address]:
        """Whom to ask for metadata: another one first each time, those that gave no answer last."""
        known = [self._brokers[node] for node in sorted(self._brokers)]
        self._turn = (self._turn + 1) % max(1, len(known))
        addresses = known[self._turn :] + known[: self._turn]
        addresses += [address for address in self._bootstrap if address not in known]
        return sorted(addresses, key=self._suspects.__contains__)

    async def leader_now(self, topic: str, partition: int) -> Address | None:
        """Asked anew; None when nobody leads, or nobody knows."""
        await self.refresh((topic,), self.deadline())
        found = self._topics[topic].leaders.get(partition) if topic in self._topics else None
        return None if found is None else self._brokers.get(found.node)

    async def _leader(self, topic: str, partition: int, deadline: float) -> Leader:
        leader = (await self.topic(topic, deadline)).leaders.get(partition)
        if leader is None:
            raise fail("LOG_MISMATCH", f"topic {topic} has no partition {partition}")
        if leader.node not in self._brokers:
            raise Refusal(LEADER_NOT_AVAILABLE, "LEADER_NOT_AVAILABLE", "the partition has no leader now")
        return leader

    async def _metadata_of(self, address: Address, topics: Sequence[str], deadline: float) -> Metadata:
        try:
            until = min(deadline, asyncio.get_running_loop().time() + self._share_s)
            connection = await self._asking.to(address, until)
            metadata = await connection.metadata(topics, min(left(deadline), self._share_s))
        except Lost as error:
            self._asking.drop()
            hint = "" if self.cluster_id else f"; does the port expect {self.config.security_protocol}?"
            raise unavailable(f"{error}{hint}") from error
        if not metadata.brokers:
            raise unavailable(f"broker {address} knows of no broker")
        return metadata

    def _learn(self, metadata: Metadata) -> None:
        if self.cluster_id and metadata.cluster_id != self.cluster_id:
            message = f"the brokers are of cluster {metadata.cluster_id} now, they were of {self.cluster_id}"
            raise fail("LOG_MISMATCH", f"{message}; look at where `bootstrap` leads")
        self.cluster_id = metadata.cluster_id
        self._brokers = dict(metadata.brokers)
        for name, found in metadata.topics.items():
            if not found.error:
                self._topics[name] = _newer(self._topics.get(name), found)
                self._stale.discard(name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise fail("INVALID_INPUT", "the connection to Kafka is closed")


def _newer(known: TopicMetadata | None, found: TopicMetadata) -> TopicMetadata:
    """`found`, but for partitions of which a later leader is known."""
    if known is None or known.topic_id != found.topic_id:
        return found
    leaders = {
        partition: known.leaders[partition]
        if partition in known.leaders and known.leaders[partition].epoch > leader.epoch
        else leader
        for partition, leader in found.leaders.items()
    }
    return TopicMetadata(error=0, error_name="", topic_id=found.topic_id, leaders=leaders)
