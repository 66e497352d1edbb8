"""Receipts of a shared store on a real broker: made by one node, and good on every other."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomlog.client import AsyncStore
from atomlog.consumers.cluster import credentials
from atomlog.consumers.cluster.receipt_exchange import PURPOSE, read_record
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, parse_id, uuid7
from atomlog.kernel.jsontext import dumps
from atomlog.kernel.kafka.topics import reads_spec
from atomlog.kernel.kafka.values import KafkaRecord
from atomlog.kernel.system import SystemClock, SystemFiles
from atomlog.projections.read.shelf import KeptReceipt, SqliteShelf
from tests.acceptance.expect import refused
from tests.cluster.inboxes import connected
from tests.consumers.cluster.test_store_on_kafka import QUICK, batch, kernel, nodes, note, store_of, written
from tests.support.commands import until
from tests.support.kafka import SharedBroker, own_brokers, required_runtime

pytestmark = pytest.mark.timeout(240)


class Listening:
    """A store of a node, and what it said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Mapping[str, Any]] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncStore]:
        async with store_of(self.directory, on_event=self.events.append) as store:
            yield store

    def said(self, event: str) -> list[Mapping[str, Any]]:
        return [one for one in self.events if one["event"] == event]


async def known(store: AsyncStore, receipt: str) -> Any:
    """The receipt, once the node that made it has told."""
    found: list[Any] = []

    async def there() -> bool:
        try:
            found.append(await store.receipt(receipt))
        except AtomlogError as error:
            assert error.code in ("RECEIPT_EXPIRED", "KAFKA_UNAVAILABLE"), error
            return False
        return True

    await until(there, f"receipt {receipt} is known")
    return found[0]


def kept(directory: Path, receipt: str) -> bool:
    shelf = SqliteShelf(str(directory / "reads.sqlite"), read_only=True)
    try:
        return shelf.receipt(parse_id(receipt, "receipt")) is not None
    finally:
        shelf.close()


def cites(key: str, *receipts: str) -> dict[str, Any]:
    provenance = {"kind": "generated", "activity": "test", "receipts": list(receipts)}
    slot = {"role": "about", "target": f"{receipts[0]}#a1"}
    return {**note(key, provenance=provenance, slots=[slot]), "schema": "answer"}


async def test_a_receipt_of_one_node_is_shown_replayed_and_cited_on_another(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second, third = await nodes(tmp_path, kafka, kafka_prefix, "1", "2", "3")
    async with kernel(first), store_of(third) as there:
        async with store_of(second) as here:
            done = await written(here, batch("notes", "k", note("tea"), note("cup")))
            asked: dict[str, Any] = {"text": "how long does tea steep", "scope": {"space": "notes"}, "limit": 1}
            await here.wait_until_current(30)  # vectors may be behind what `at_least` asks for
            page = await here.recall(**asked, at_least=done.receipt)
            again = await here.recall(**asked)
            receipt = format_id(page.receipt.receipt)
            assert await known(there, receipt) == page.receipt
            assert page.continuation is not None
        # The node that read is gone. What it gave out just before was told when it closed.
        assert await there.receipt(again.receipt) == again.receipt
        assert (await there.replay(receipt)).body() == page.body()
        cited = await there.write(batch("notes", "a", cites("answer", receipt)))
        read = await there.get("key:answer", space="notes", at_least=cited.receipt)
        versions = [(seen.atom, seen.revision) for seen in read.atoms[0].inputs.versions]
        assert versions == [(row.atom, row.revision) for row in page.receipt.rows]
        assert (await there.get(f"{receipt}#a1")).atoms[0].revision == page.atoms[0].revision

        # What another node does not have: what was searched for, and the place where the page goes on.
        assert "the node that read" in (await refused(there.verify_receipt(receipt), "RECEIPT_EXPIRED")).message
        going_on = there.recall(**asked, continuation=page.continuation)
        assert "another node" in (await refused(going_on, "CURSOR_EXPIRED")).message

        # One that nobody made is none anywhere, and the part of the write is named.
        nobody = format_id(uuid7(SystemClock().now_us(), bytes(10)))
        await refused(there.receipt(nobody), "RECEIPT_EXPIRED")
        error = await refused(there.write(batch("notes", "b", cites("b", receipt, nobody))), "RECEIPT_EXPIRED")
        assert "provenance.receipts[1]" in error.message

        # The kernel follows by itself, so that it has what requests over an inbox cite.
        await until(lambda: kept(first, receipt), "the kernel's node has the receipt")


async def test_a_flood_of_garbage_and_forged_receipts_on_the_topic_harms_nobody(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second, third = await nodes(tmp_path, kafka, kafka_prefix, "1", "2", "3")
    node = Listening(third)
    async with kernel(first), store_of(second) as here, node.open() as there, connected(kafka) as client:
        done = await written(here, batch("notes", "k", note("tea")))
        page = await here.get("key:tea", space="notes", at_least=done.receipt)
        receipt = page.receipt.receipt
        await known(there, format_id(receipt))

        forged_id = uuid7(SystemClock().now_us(), bytes(10))
        shown = page.receipt.to_dict() | {"receipt": format_id(forged_id), "permission_generation": 2**40}
        forged = KeptReceipt(id=forged_id, body=dumps(shown), search=b"")
        log_id = StoreConfig.load(SystemFiles(), str(first)).log_id
        secret = credentials.secret(SystemFiles(), str(first / "node.pem"), PURPOSE)
        elsewhere = read_record(forged, b"another log, 16b", secret)
        flood = [KafkaRecord(key=receipt, value=bytes([n % 256]) * 1_000) for n in range(500)]
        producer = await client.producer()
        for _ in range(20):
            await producer.send(f"{kafka_prefix}.reads", 0, flood)
        await producer.send(f"{kafka_prefix}.reads", 0, [read_record(forged, log_id, bytes(32)), elsewhere])
        await producer.send(f"{kafka_prefix}.reads", 0, [KafkaRecord(key=receipt, value=None)])
        await producer.close()

        other = await here.get("key:tea", space="notes")
        assert await known(there, format_id(other.receipt.receipt)) == other.receipt
        await refused(there.receipt(format_id(forged_id)), "RECEIPT_EXPIRED")
        assert (await there.replay(page.receipt)).body() == page.body()
        reasons = [one["reasons"] for one in node.said("receipt_records_ignored")]
        assert {name: sum(one.get(name, 0) for one in reasons) for name in ("no_receipt", "no_proof", "other_log")} == {
            "no_receipt": 10_001,
            "no_proof": 1,
            "other_log": 1,
        }


@pytest.mark.kafka
async def test_what_was_read_before_brokers_went_away_is_told_when_they_are_back(tmp_path: Path) -> None:
    with own_brokers(tmp_path / "broker") as brokers:
        await asyncio.to_thread(brokers.start)
        broker = SharedBroker(address=brokers.bootstrap, log=brokers.node(1).log)
        first, second, third = await nodes(tmp_path, broker, "away", "1", "2", "3")
        node = Listening(second)
        async with node.open() as here, store_of(third) as there:
            async with kernel(first):
                done = await written(here, batch("notes", "k", note("tea")))
                first_page = await here.get("key:tea", space="notes", at_least=done.receipt)
                await known(there, format_id(first_page.receipt.receipt))
                pages = await asyncio.gather(*(here.get("key:tea", space="notes") for _ in range(100)))
                await asyncio.to_thread(brokers.node(1).kill)
                # Those that were read here are known here, whoever else could not be told.
                for page in pages:
                    assert await here.receipt(page.receipt) == page.receipt
                nobody = format_id(uuid7(SystemClock().now_us(), bytes(10)))
                error = await refused(there.receipt(nobody), "KAFKA_UNAVAILABLE")
                assert error.retry_after_ms is not None
                await asyncio.to_thread(brokers.restart, 1)
                for page in pages:
                    assert await known(there, format_id(page.receipt.receipt)) == page.receipt
            assert not node.said("receipts_lost")


async def test_without_the_topic_reads_go_on_and_their_receipts_are_told_later(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second, third = await nodes(tmp_path, kafka, kafka_prefix, "1", "2", "3")
    node, topic = Listening(second), f"{kafka_prefix}.reads"
    async with kernel(first), node.open() as here, store_of(third) as there, connected(kafka) as client:
        done = await written(here, batch("notes", "k", note("tea")))
        delete = ("--bootstrap-server", kafka.bootstrap, "--delete", "--topic", topic)
        await asyncio.to_thread(required_runtime().tool, "org.apache.kafka.tools.TopicCommand", *delete)
        page = await here.get("key:tea", space="notes", at_least=done.receipt)
        await until(lambda: node.said("receipts_unavailable"), "that it cannot be told is said")
        pages = await asyncio.gather(*(here.get("key:tea", space="notes") for _ in range(100)))
        assert {one.body() for one in pages} == {page.body()}
        assert (await here.replay(page.receipt)).body() == page.body()
        await refused(there.receipt(format_id(page.receipt.receipt)), "RECEIPT_EXPIRED")
        cited = await here.write(batch("notes", "a", cites("answer", format_id(page.receipt.receipt))))
        assert cited.receipt.position > done.receipt.position

        await client.create_topics([reads_spec(topic, 1, QUICK).new])
        for one in (page, *pages):
            assert await known(there, format_id(one.receipt.receipt)) == one.receipt
        assert len(node.said("receipts_unavailable")) == len(node.said("receipts_available")) == 1
        assert not node.said("receipts_lost")
