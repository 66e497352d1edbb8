"""When a question is asked again, whom it goes to, and what an answer means: against brokers that are made up."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig, KafkaRecord
from atomlog.kernel.kafka.trust import unavailable
from atomlog.kernel.kafka.values import Address, Fetched, Leader, Lost, Metadata, Refusal, TopicMetadata
from atomlog.kernel.kafka.wire import Connection

TOPIC = "t"
GROUP = [KafkaRecord(value=b"v")]
TIMEOUT_S = 1.0
OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, TIMED_OUT, TOO_LARGE = 1, 3, 6, 7, 10
TOO_FEW, TOO_FEW_AFTER, DENIED = 19, 20, 29
Script = list[int | Exception | None]  # of each answer in turn: a code, what happens instead, None for well; then well


@dataclass
class Broker:
    """What it says to whoever asks. Every other broker has the same name but for its number."""

    node: int
    cluster_id: str = "c"
    topic_id: bytes = b"i" * 16
    leader: int = 1
    epoch: int = 5
    topic_error: int = 0
    is_gone: bool = False
    stands_still: bool = False
    script: Script = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)

    def answer(self, what: str) -> None:
        self.asked[what] += 1
        found = self.script.pop(0) if self.script else None
        if isinstance(found, Exception):
            raise found
        if found:
            raise Refusal(found, f"code {found}")


class FakeConnection:
    """What `Cluster` and `KafkaClient` use of a connection."""

    def __init__(self, broker: Broker, brokers: dict[int, Broker]) -> None:
        self.broker, self.brokers, self.is_open = broker, brokers, True
        self.address = Address(host="b", port=broker.node)
        self.aborted = asyncio.Event()

    async def metadata(self, topics: list[str], timeout_s: float) -> Metadata:
        broker = self.broker
        broker.asked["metadata"] += 1
        leaders = {0: Leader(node=broker.leader, epoch=broker.epoch, replicas=3)}
        found = TopicMetadata(error=broker.topic_error, error_name="odd", topic_id=broker.topic_id, leaders=leaders)
        addresses = {node: Address(host="b", port=node) for node in self.brokers}
        return Metadata(cluster_id=broker.cluster_id, brokers=addresses, topics=dict.fromkeys(topics, found))

    async def offset(self, topic: str, partition: int, which: int, timeout_s: float) -> int:
        self.broker.answer("offset")
        return 7

    async def fetch(self, topic: str, partition: int, position: int, **_: Any) -> Fetched:
        self.broker.answer("fetch")
        return Fetched(first_kept=0, end=7, data=b"")

    async def produce(self, topic: str, partition: int, batch: bytes, timeout_s: float) -> int:
        self.broker.answer("produce")
        if self.broker.stands_still:
            await self.aborted.wait()
            raise Lost("closed")
        return 3

    def abort(self) -> None:
        self.is_open = False
        self.aborted.set()

    async def closed(self) -> None:
        self.abort()


Body = Callable[[KafkaClient, dict[int, Broker]], Coroutine[Any, Any, None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], None]:
    """A client of brokers 1 and 2, both of which say that 1 leads."""

    def whole(body: Body) -> None:
        brokers = {1: Broker(1), 2: Broker(2)}

        async def connect(address: Address, *_: Any) -> FakeConnection:
            brokers[address.port].asked["connect"] += 1
            if brokers[address.port].is_gone:
                raise unavailable("nobody is there")
            return FakeConnection(brokers[address.port], brokers)

        monkeypatch.setattr(Connection, "connect", connect)

        async def begin() -> None:
            client = KafkaClient(KafkaConfig(bootstrap=("b:1",)), timeout_s=TIMEOUT_S)
            await client.start()
            await body(client, brokers)
            await client.close()

        asyncio.run(begin())

    return whole


async def refused(call: Coroutine[Any, Any, object]) -> AtomlogError:
    with pytest.raises(AtomlogError) as raised:
        await call
    return raised.value


@pytest.mark.parametrize("code", [NOT_LEADER, TOO_FEW, 5, 8, 56, 74, 75, 78])
def test_what_a_broker_refused_for_sure_is_sent_again(run: Callable[[Body], None], code: int) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[1].script = [code, code, None]
        assert await (await client.producer()).send(TOPIC, 0, GROUP) == 3
        assert brokers[1].asked["produce"] == 3

    run(body)


@pytest.mark.parametrize("answer", [TOO_FEW_AFTER, TIMED_OUT, Lost("cut")])
def test_what_a_broker_may_have_done_is_sent_once(run: Callable[[Body], None], answer: int | Exception) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[1].script = [answer]
        assert (await refused((await client.producer()).send(TOPIC, 0, GROUP))).code == "KAFKA_UNAVAILABLE"
        assert brokers[1].asked["produce"] == 1

    run(body)


def test_an_answer_of_a_broker_that_leads_no_more_is_not_waited_for(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        producer = await client.producer()
        assert await producer.send(TOPIC, 0, GROUP) == 3
        brokers[1].stands_still = True
        sending = asyncio.create_task(refused(producer.send(TOPIC, 0, GROUP)))
        while brokers[1].asked["produce"] < 2:
            await asyncio.sleep(0)
        for broker in brokers.values():
            broker.leader, broker.epoch = 2, 6
        assert (await sending).code == "KAFKA_UNAVAILABLE"
        assert await producer.send(TOPIC, 0, GROUP) == 3
        assert (brokers[1].asked["produce"], brokers[2].asked["produce"]) == (2, 1)

    run(body)


@pytest.mark.parametrize(
    ("code", "ours"),
    [(TOO_LARGE, "BOUND_EXCEEDED"), (DENIED, "ACCESS_DENIED"), (87, "INVALID_INPUT"), (-1, "KAFKA_UNAVAILABLE")],
)
def test_a_final_refusal_is_told_at_once(run: Callable[[Body], None], code: int, ours: str) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[1].script = [code]
        assert (await refused((await client.producer()).send(TOPIC, 0, GROUP))).code == ours
        assert brokers[1].asked["produce"] == 1

    run(body)


def test_too_few_replicas_in_sync_end_at_the_deadline_and_say_so(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[1].script = [TOO_FEW] * 1_000
        error = await refused((await client.producer()).send(TOPIC, 0, GROUP))
        assert (error.code, f"code {TOO_FEW}" in error.message) == ("KAFKA_UNAVAILABLE", True)
        assert error.retry_after_ms is not None

    run(body)


@pytest.mark.parametrize("answer", [NOT_LEADER, TIMED_OUT, Lost("cut"), 78])
def test_a_question_that_changes_nothing_is_asked_again(run: Callable[[Body], None], answer: int | Exception) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[1].script = [answer, answer]
        assert await client.end(TOPIC, 0) == 7
        brokers[1].script = [answer, answer]
        assert (await client.page(TOPIC, 0, 7, bytes_max=1)).end == 7

    run(body)


def test_another_leader_is_followed_and_an_older_one_never(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        assert await client.end(TOPIC, 0) == 7
        for broker in brokers.values():
            broker.leader, broker.epoch = 2, 6
        brokers[1].script = [NOT_LEADER]
        assert await client.end(TOPIC, 0) == 7
        assert brokers[2].asked["offset"] == 1
        for broker in brokers.values():  # news from before the change, from brokers that are cut off
            broker.leader, broker.epoch = 1, 5
        brokers[2].script = [NOT_LEADER]
        assert await client.end(TOPIC, 0) == 7
        assert (brokers[1].asked["offset"], brokers[2].asked["offset"]) == (2, 3)

    run(body)


def test_a_broker_that_gave_no_answer_is_asked_last_until_it_gives_one(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[2].is_gone = True
        for _ in range(8):
            await client.cluster_id()
        assert brokers[2].asked["connect"] == 1
        brokers[1].is_gone, brokers[2].is_gone = True, False
        brokers[1].script = [Lost("cut")]
        for broker in brokers.values():
            broker.leader, broker.epoch = 2, 9
        assert await client.end(TOPIC, 0) == 7

    run(body)


def test_a_topic_made_anew_has_leaders_of_its_own(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        await client.end(TOPIC, 0)
        for broker in brokers.values():
            broker.topic_id, broker.leader, broker.epoch = b"j" * 16, 2, 0
        brokers[1].script = [UNKNOWN_TOPIC]
        await client.end(TOPIC, 0)
        assert brokers[2].asked["offset"] == 1

    run(body)


def test_a_position_out_of_range_is_believed_the_second_time(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        brokers[1].script = [OUT_OF_RANGE]
        assert (await client.page(TOPIC, 0, 7, bytes_max=1)).end == 7
        brokers[1].script = [OUT_OF_RANGE, OUT_OF_RANGE]
        error = await refused(client.page(TOPIC, 0, 9, bytes_max=1))
        assert (error.code, error.details[0]["wanted"], error.details[0]["end"]) == ("LOG_DIVERGED", 9, 7)

    run(body)


def test_another_cluster_at_the_same_address_is_a_mismatch(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        for broker in brokers.values():
            broker.cluster_id = "d"
        assert (await refused(client.cluster_id())).code == "LOG_MISMATCH"
        assert (await refused(client.end(TOPIC, 0))).code == "LOG_MISMATCH"

    run(body)


def test_a_partition_without_a_leader_is_waited_for_until_the_deadline(run: Callable[[Body], None]) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        for broker in brokers.values():
            broker.leader = -1
        error = await refused(client.end(TOPIC, 0))
        assert (error.code, "no leader" in error.message) == ("KAFKA_UNAVAILABLE", True)
        for broker in brokers.values():
            broker.leader = 1
        assert await client.end(TOPIC, 0) == 7

    run(body)


@pytest.mark.parametrize(
    ("code", "ours"), [(UNKNOWN_TOPIC, "STORE_NOT_FOUND"), (DENIED, "ACCESS_DENIED"), (5, "KAFKA_UNAVAILABLE")]
)
def test_what_is_wrong_with_a_topic_is_told(run: Callable[[Body], None], code: int, ours: str) -> None:
    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        for broker in brokers.values():
            broker.topic_error = code
        assert (await refused(client.end(TOPIC, 0))).code == ours

    run(body)


def test_bytes_that_are_no_batch_are_corrupt(run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(self: FakeConnection, *_: Any, **__: Any) -> Fetched:
        return Fetched(first_kept=0, end=7, data=bytes(80))

    monkeypatch.setattr(FakeConnection, "fetch", fetch)

    async def body(client: KafkaClient, brokers: dict[int, Broker]) -> None:
        error = await refused(client.page(TOPIC, 0, 0, bytes_max=1))
        assert (error.code, TOPIC in error.message) == ("CORRUPT", True)

    run(body)
