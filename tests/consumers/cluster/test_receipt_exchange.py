"""What a node tells others of its receipts, and what it takes from them: bounded, whatever brokers and strangers do."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster import credentials
from atomlog.consumers.cluster.receipt_exchange import PURPOSE, KafkaReceipts, read_record
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import uuid7
from atomlog.kernel.kafka.values import KafkaRecord
from atomlog.kernel.system import SystemFiles
from atomlog.projections.read.receipts import At, ReadReceipt
from atomlog.projections.read.shelf import KeptReceipt, SqliteShelf
from atomlog.schemas import codec
from tests.consumers.cluster.fake_kafka import FakeBroker, FakeTopic
from tests.consumers.cluster.test_inbox_worker import PatientClock
from tests.support.commands import until
from tests.support.kernel_world import LOG_ID, START_US
from tests.support.sealed import InlineWorkers

TOPIC = "t.reads"
SECRET = bytes(range(32))
SENT_MAX = 64 * 1024  # what the fake broker takes at once


def kept(number: int, *, log_id: bytes = LOG_ID, session: str = "s") -> KeptReceipt:
    receipt = ReadReceipt(
        receipt=uuid7(START_US + 1_000 * number, bytes(10)),
        log_id=log_id,
        mode="snapshot",
        positions={0: At(position=number, chain=bytes(16))},
        indexes={},
        rows=(),
        ranges=(),
        scopes=(),
        body_sha256=bytes(32),
        recorded_at_us=START_US,
        principal="local",
        permission_generation=0,
        budget={},
        session=session,
    )
    return KeptReceipt(id=receipt.receipt, body=receipt.to_bytes(), search=b"what was asked for")


class Node:
    """One node's exchange over a shelf of its own."""

    def __init__(self, path: Path, broker: FakeBroker, **changes: Any) -> None:
        self.shelf = SqliteShelf(str(path))
        self.events: list[Mapping[str, Any]] = []
        parts: dict[str, Any] = {
            "log_id": LOG_ID,
            "secret": lambda: SECRET,
            "workers": InlineWorkers(),
            "clock": PatientClock(),
            "timeout_s": 10.0,
            "say": self.events.append,
        }
        self.exchange = KafkaReceipts(broker.client(), TOPIC, self.shelf, **{**parts, **changes})

    def has(self, *receipts: KeptReceipt) -> list[bool]:
        return [self.shelf.receipt(one.id) is not None for one in receipts]

    def said(self, event: str) -> list[Mapping[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    async def told(self, count: int) -> None:
        await until(lambda: self.exchange.told == count, f"{count} receipts are told")


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.make(TOPIC, 1, {})
    return broker


async def test_what_one_node_tells_another_takes_without_what_was_searched_for(
    tmp_path: Path, broker: FakeBroker
) -> None:
    one, two = Node(tmp_path / "1", broker), Node(tmp_path / "2", broker)
    receipts = [kept(n) for n in range(250)]
    one.exchange.offer(receipts)
    await one.exchange.close()
    assert (one.exchange.told, one.exchange.lost) == (250, 0)
    assert all(record.key in {receipt.id for receipt in receipts} for record in broker.values(TOPIC))
    assert not any(b"asked for" in (record.value or b"") for record in broker.values(TOPIC))
    await asyncio.gather(*(two.exchange.catch_up() for _ in range(20)))
    assert two.has(*receipts) == [True] * 250
    found = two.shelf.receipt(receipts[7].id)
    assert found == KeptReceipt(id=receipts[7].id, body=receipts[7].body, search=b"")
    assert two.exchange.taken == 250, "who asks at once is answered together"
    assert one.events == two.events == []


async def test_a_node_goes_on_where_it_stood_and_its_own_receipts_stay_as_they_are(
    tmp_path: Path, broker: FakeBroker
) -> None:
    one = Node(tmp_path / "1", broker)
    one.shelf.put([kept(1)])
    one.exchange.offer([kept(1)])
    await one.told(1)
    await one.exchange.catch_up()
    assert one.shelf.receipt(kept(1).id) == kept(1)
    one.exchange.offer([kept(2)])
    await one.told(2)
    again = Node(tmp_path / "1", broker)
    await again.exchange.catch_up()
    assert again.exchange.taken == 1


@pytest.mark.parametrize("change", ["expired", "rolled back", "made anew", "removed"])
async def test_a_topic_that_lost_records_is_read_from_what_there_is(
    tmp_path: Path, broker: FakeBroker, change: str
) -> None:
    node = Node(tmp_path / "1", broker)
    for number in range(4):
        broker.write(TOPIC, 0, [read_record(kept(number), LOG_ID, SECRET)])
    await node.exchange.catch_up()
    if change == "removed":
        del broker.found[TOPIC]
        await node.exchange.catch_up()
        return
    if change == "expired":
        broker.write(TOPIC, 0, [read_record(kept(8), LOG_ID, SECRET)])
        broker.expire(TOPIC, 0, 5)
    elif change == "rolled back":
        del broker.found[TOPIC].records[0][2:]
    else:
        broker.make(TOPIC, 1, {})
    broker.write(TOPIC, 0, [read_record(kept(9), LOG_ID, SECRET)])
    await node.exchange.catch_up()
    assert node.has(kept(0), kept(3), kept(8), kept(9)) == [True, True, False, True]


async def test_what_strangers_write_is_counted_said_once_and_never_taken(tmp_path: Path, broker: FakeBroker) -> None:
    one, two = kept(1), kept(2)
    genuine, other = read_record(one, LOG_ID, SECRET), b"another log, 16b"
    datum = {"receipt": two.id, "log_id": LOG_ID, "proof": bytes(32), "body": two.body}
    altered = codec.decode_as("ReadRecordedV1", genuine.value or b"") | {"body": two.body}
    for value in (b"", b"text", b"\xc3\x01" + bytes(500), bytes(1_100_000)):
        broker.put(TOPIC, 0, value, key=two.id)
    broker.put(TOPIC, 0, None, key=two.id)
    broker.put(TOPIC, 0, None, problem="a compressed batch")
    broker.put(TOPIC, 0, codec.encode_as("ReadRecordedV1", datum), key=two.id)
    broker.put(TOPIC, 0, codec.encode_as("ReadRecordedV1", altered), key=one.id)
    broker.write(TOPIC, 0, [read_record(two, LOG_ID, bytes(32))])
    broker.write(TOPIC, 0, [read_record(kept(2, log_id=other), other, SECRET)])
    broker.write(TOPIC, 0, [read_record(kept(2, log_id=other), LOG_ID, SECRET)])
    broker.write(TOPIC, 0, [KafkaRecord(key=two.id, value=genuine.value), KafkaRecord(value=genuine.value)])
    broker.write(TOPIC, 0, [read_record(KeptReceipt(id=two.id, body=one.body, search=b""), LOG_ID, SECRET)])
    broker.write(TOPIC, 0, [read_record(KeptReceipt(id=two.id, body=b'{"v": 9}', search=b""), LOG_ID, SECRET)])
    broker.write(TOPIC, 0, [genuine])
    node = Node(tmp_path / "1", broker)
    await node.exchange.catch_up()
    assert node.has(one, two) == [True, False]
    assert dict(node.exchange.ignored) == {"no_receipt": 11, "no_proof": 3, "other_log": 1}
    [said] = node.said("receipt_records_ignored")
    assert (said["reasons"], said["before"]) == (dict(node.exchange.ignored), 16)


async def test_a_receipt_that_is_told_twice_counts_as_it_was_first(tmp_path: Path, broker: FakeBroker) -> None:
    again = KeptReceipt(id=kept(1).id, body=kept(1, session="another").body, search=b"")
    for one in (kept(1), again):
        broker.write(TOPIC, 0, [read_record(one, LOG_ID, SECRET)])
    node = Node(tmp_path / "1", broker)
    await node.exchange.catch_up()
    found = node.shelf.receipt(again.id)
    assert found is not None
    assert found.body == kept(1).body


async def test_brokers_that_are_away_are_said_once_and_what_waits_is_bounded_and_told_later(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atomlog.consumers.cluster.receipt_exchange.WAITING_MAX", 5)
    node, tries = Node(tmp_path / "1", broker), 0

    def away(*_: Any) -> None:
        nonlocal tries
        tries += 1
        raise fail("KAFKA_UNAVAILABLE", "nobody is there")

    broker.on_send = away
    for number in range(8):
        node.exchange.offer([kept(number)])
    await until(lambda: tries > 3, "it is tried again")
    assert [one["what"] for one in node.said("receipts_unavailable")] == ["tell"]
    broker.on_send = lambda *_: None
    await node.told(5)
    keys = [record.key for record in broker.values(TOPIC)]
    assert keys == [kept(number).id for number in range(3, 8)], "the oldest are not told"
    assert [one["receipts"] for one in node.said("receipts_lost")] == [3]
    assert [one["what"] for one in node.said("receipts_available")] == ["tell"]


async def test_who_closes_while_brokers_are_away_does_not_wait_for_them(tmp_path: Path, broker: FakeBroker) -> None:
    node = Node(tmp_path / "1", broker, clock=PatientClock())
    sleeping = asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeping.set()
        await asyncio.Event().wait()

    node.exchange._clock.sleep = sleep  # type: ignore[method-assign]

    def away(*_: Any) -> None:
        raise OSError("nobody is there")

    broker.on_send = away
    node.exchange.offer([kept(1), kept(2)])
    await sleeping.wait()
    await node.exchange.close()
    assert [one["receipts"] for one in node.said("receipts_lost")] == [2]


async def test_a_receipt_that_no_broker_takes_keeps_nobody_back(tmp_path: Path, broker: FakeBroker) -> None:
    def refuse(topic: str, partition: int, records: Any) -> None:
        if sum(len(record.value) for record in records) > SENT_MAX:
            raise fail("BOUND_EXCEEDED", "too large")

    broker.on_send = refuse
    node = Node(tmp_path / "1", broker)
    node.exchange.offer([kept(1), kept(2, session="x" * SENT_MAX), kept(3)])
    await node.told(2)
    assert [record.key for record in broker.values(TOPIC)] == [kept(1).id, kept(3).id]
    assert node.exchange.lost == 1


async def test_a_batch_is_bounded_in_bytes(tmp_path: Path, broker: FakeBroker) -> None:
    sizes: list[int] = []
    broker.on_send = lambda topic, partition, records: sizes.append(sum(len(one.value or b"") for one in records))
    node = Node(tmp_path / "1", broker)
    node.exchange.offer([kept(n, session="x" * 100_000) for n in range(20)])
    await node.told(20)
    assert len(sizes) == 4
    assert max(sizes) < 600_000


async def test_following_says_once_that_it_cannot_and_goes_on(tmp_path: Path, broker: FakeBroker) -> None:
    node, tries = Node(tmp_path / "1", broker), 0

    def secret() -> bytes:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise fail("INVALID_INPUT", "node.pem can be read by others") if tries % 2 else RuntimeError("a bug")
        return SECRET

    node.exchange._secret = secret
    broker.write(TOPIC, 0, [read_record(kept(1), LOG_ID, SECRET)])
    following = asyncio.create_task(node.exchange.follow())
    await until(lambda: node.has(kept(1)) == [True], "it is taken")
    await until(lambda: node.said("receipts_available"), "that is said")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert [one["event"] for one in node.events] == ["receipts_unavailable", "receipts_available"]


async def test_a_topic_that_says_nothing_ends_in_time(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTopic, "end", lambda topic, partition: 9)
    with pytest.raises(AtomlogError) as refused:
        await Node(tmp_path / "1", broker).exchange.catch_up()
    assert refused.value.code == "KAFKA_UNAVAILABLE"
    assert refused.value.retry_after_ms == 1_000


def test_the_secret_is_that_of_the_key_whatever_stands_around_it(tmp_path: Path) -> None:
    files, path = SystemFiles(), tmp_path / "node.pem"
    credentials.create(files, str(path))
    found = credentials.secret(files, str(path), PURPOSE)
    assert len(found) == 32
    assert credentials.secret(files, str(path), b"something else") != found
    raw = path.read_bytes()
    cut = raw.index(b"-----BEGIN CERTIFICATE-----")
    path.write_bytes(raw[cut:] + b"\n" + raw[:cut] + b"\n")
    assert credentials.secret(files, str(path), PURPOSE) == found
    path.write_bytes(raw[cut:])
    with pytest.raises(AtomlogError, match="not a private key"):
        credentials.secret(files, str(path), PURPOSE)
    os.chmod(path, 0o644)
    with pytest.raises(AtomlogError, match="chmod 600"):
        credentials.secret(files, str(path), PURPOSE)
    os.unlink(path)
    with pytest.raises(AtomlogError) as refused:
        credentials.secret(files, str(path), PURPOSE)
    assert refused.value.code == "STORE_NOT_FOUND"
