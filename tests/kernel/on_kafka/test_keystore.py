"""Key pages on a real topic: durable before use, the same for every node, whatever strangers write beside them."""

import asyncio
import os
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel import sqlite
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.followed_pages import FollowedPlace
from atomlog.kernel.kafka.key_topic import page_of, page_record, read_store_record, write_store_record
from atomlog.kernel.kafka.keystore import KafkaKeyStore
from atomlog.kernel.kafka.values import FetchedRecord
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.keystore import SqliteKeyStore
from atomlog.kernel.ports import KeyPage
from tests.kernel.on_kafka.support import Keys, store_record, until
from tests.kernel.test_followed_pages import NAME, page_with
from tests.support.kafka import SharedBroker, required_runtime
from tests.support.sealed import OTHER_MASTER, OWNER, InlineWorkers, bitmap, ring_of

OTHER_LOG = b"another log, 16b"


@pytest.fixture
def keys(kafka: SharedBroker, kafka_prefix: str, tmp_path: Path) -> Keys:
    return Keys(kafka.address, f"{kafka_prefix}.keys", tmp_path)


async def code_of(work: Awaitable[Any]) -> str:
    try:
        await work
    except AtomlogError as error:
        return error.code
    return "done"


async def on_disk(keys: Keys, name: str, page: bytes = NAME) -> KeyPage | None:
    store = SqliteKeyStore(keys.path(name), InlineWorkers())
    try:
        return await store.get(page)
    finally:
        await store.close()


# -- what a key store must do


async def test_a_page_that_was_put_is_durable_here_and_found_by_every_node_at_once(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, two = await keys.node("one"), await keys.node("two")
        assert await one.get(NAME) is None
        page = page_with(destroyed=bitmap(0, 255), maker_term=2**40)
        await one.put([page])
        assert await on_disk(keys, "one") == page
        assert await two.get(NAME) == page
        assert await on_disk(keys, "two") == page


async def test_what_may_not_replace_a_page_is_refused_and_not_even_sent(keys: Keys) -> None:
    async with keys:
        await keys.make()
        store = await keys.node("one")
        stored = page_with(version=3, destroyed=bitmap(1, 2))
        await store.put([stored])
        end = await keys.end()
        refused = [
            [page_with(version=3, destroyed=bitmap(1, 2, 3))],
            [page_with(version=4, destroyed=bitmap(1))],
            [page_with(version=4, destroyed=bitmap(1, 2), maker_term=2)],
            [page_with(name=b"pageBBBB"), page_with(version=2)],
            [page_with(name=b"pageBBBB"), page_with(name=b"pageBBBB", version=2)],
        ]
        assert [await code_of(store.put(pages)) for pages in refused] == ["CORRUPT"] * len(refused)
        assert await keys.end() == end
        assert await store.get(NAME) == stored
        assert await store.get(b"pageBBBB") is None


async def test_outlines_are_those_of_the_topic_when_they_were_asked_for(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, two = await keys.node("one"), await keys.node("two")
        names = [b"pageCCCC", b"pageAAAA", b"pageBBBB"]
        for name in names:
            await one.put([page_with(name=name)])
        await one.put([page_with(name=b"pageDDDD", maker_partition=1)])
        await one.put([page_with(name=b"pageCCCC", version=2, destroyed=bitmap(9))])
        outlines = await two.outlines(0)
        assert [outline.page for outline in outlines] == names
        assert (outlines[0].version, outlines[0].destroyed) == (2, bitmap(9))
        assert [outline.page for outline in await two.outlines(1)] == [b"pageDDDD"]


async def test_many_who_ask_at_once_are_all_answered(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, two = await keys.node("one"), await keys.node("two")
        pages = [page_with(name=b"page%04d" % n) for n in range(48)]
        await asyncio.gather(*(one.put(pages[n : n + 16]) for n in range(0, 48, 16)))
        assert await asyncio.gather(*(two.get(page.page) for page in pages)) == pages
        assert await asyncio.gather(*(two.get(b"none%04d" % n) for n in range(48))) == [None] * 48


async def test_of_two_owners_that_rewrite_a_page_the_first_on_the_topic_wins_everywhere(keys: Keys) -> None:
    async with keys:
        await keys.make()
        nodes = [await keys.node(name) for name in ("one", "two")]
        await nodes[0].put([page_with()])
        await nodes[1].get(NAME)
        rewritten = [page_with(version=2, destroyed=bitmap(n)) for n in range(2)]
        outcomes = await asyncio.gather(
            *(code_of(node.put([page])) for node, page in zip(nodes, rewritten, strict=True))
        )
        assert sorted(outcomes) == ["CORRUPT", "done"]
        winner = rewritten[outcomes.index("done")]
        third = await keys.node("three")
        assert [await node.get(NAME) for node in (*nodes, third)] == [winner] * 3


async def test_two_owners_destroy_keys_of_one_page_at_the_same_time_and_all_are_gone(keys: Keys) -> None:
    async with keys:
        await keys.make()
        nodes = [await keys.node(name) for name in ("one", "two")]
        allocators = [KeyAllocator(ring_of(node, seed=f"ring {n}"), 0) for n, node in enumerate(nodes)]
        for term, allocator in enumerate(allocators, 1):
            await allocator.start(term, OWNER, {}, fresh_page=True)
        await allocators[0].reserve(1)
        page = allocators[0].take()[0][:8]
        for allocator in allocators:
            await allocator.close()
        await nodes[1].get(page)
        await asyncio.gather(*(one.destroy({page: bitmap(n, 2 + n)}) for n, one in enumerate(allocators)))
        found = await nodes[1].get(page)
        assert found is not None
        assert found.destroyed == bitmap(0, 1, 2, 3)
        await nodes[0].outlines(0)  # up to the end: what the other one wrote last may still be on its way here
        assert await nodes[0].get(page) == found


async def test_pages_that_another_node_rewrites_are_told(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, two = await keys.node("one"), await keys.node("two")
        heard: list[bytes] = []
        two.listen(heard.extend)
        await one.put([page_with()])
        await one.put([page_with(version=2, destroyed=bitmap(1))])
        await two.outlines(0)
        assert heard == [NAME]


async def test_a_node_goes_on_where_it_stood_and_misses_nothing(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, first = await keys.node("one"), await keys.node("two")
        await one.put([page_with()])
        await first.outlines(0)
        stood = first.position
        await first.close()
        await one.put([page_with(version=2, destroyed=bitmap(1))])
        again = await keys.node("two")
        await until(lambda: again.position >= 0)
        assert again.position >= stood
        assert await again.outlines(0) == await one.outlines(0)
        os.unlink(keys.path("two"))
        anew = await keys.node("two")
        assert await anew.get(NAME) == page_with(version=2, destroyed=bitmap(1))


async def test_who_asks_before_the_following_has_begun_is_answered_though_nothing_new_comes(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keys:
        await keys.make()
        one = await keys.node("one")
        await one.put([page_with()])
        await one.close()
        looked, may_begin = KafkaKeyStore._check_topic, asyncio.Event()

        async def begins_late(store: KafkaKeyStore, place: FollowedPlace) -> bytes:
            await may_begin.wait()
            return await looked(store, place)

        monkeypatch.setattr(KafkaKeyStore, "_check_topic", begins_late)
        again = await keys.node("one", timeout_s=5.0)  # its copy has the whole topic
        asked = asyncio.create_task(again.outlines(0))
        await until(lambda: again._wanted > 0)
        may_begin.set()
        assert [outline.page for outline in await asked] == [NAME]


async def test_a_put_that_is_not_read_back_in_time_says_so_and_may_have_worked(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keys:
        await keys.make()
        store = await keys.node("one", timeout_s=1.0)
        await store.outlines(0)
        gate, apply = asyncio.Event(), store._apply

        async def held(records: Sequence[FetchedRecord], position: int) -> None:
            await gate.wait()
            await apply(records, position)

        monkeypatch.setattr(store, "_apply", held)
        assert await code_of(store.put([page_with()])) == "KAFKA_UNAVAILABLE"
        assert await on_disk(keys, "one") is None
        assert await code_of(store.get(NAME)) == "KAFKA_UNAVAILABLE", "whether there is such a page is not known"
        gate.set()
        await until(lambda: store.position == 2)
        assert await store.get(NAME) == page_with()
        await store.put([page_with(version=2, destroyed=bitmap(1))])


async def test_two_processes_of_one_node_follow_into_one_file(keys: Keys) -> None:
    async with keys:
        await keys.make()
        kernel, consumer, other = await keys.node("one"), await keys.node("one"), await keys.node("two")
        heard: list[bytes] = []
        consumer.listen(heard.extend)
        pages = [page_with(name=b"page%04d" % n) for n in range(12)]
        for page in pages:
            await asyncio.gather(kernel.put([page]), other.put([page_with(name=b"x" + page.page[1:])]))
        await asyncio.gather(
            *(kernel.put([page_with(name=page.page, version=2, destroyed=bitmap(1))]) for page in pages)
        )
        assert len(await consumer.outlines(0)) == 24
        assert await consumer.outlines(0) == await other.outlines(0)
        assert {page.page for page in pages} <= set(heard)
        assert [store.ignored.total() for store in (kernel, consumer, other)] == [0, 0, 0]
        assert [await store.repair(0) for store in (kernel, consumer, other)] == [0, 0, 0]


# -- strangers


async def test_what_strangers_write_is_counted_and_stops_nobody(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one = await keys.node("one")
        await one.put([page_with()])
        broken = replace(page_with(version=9), wrapped=bytes(8_220))
        await keys.send(
            (b"a key of somebody", b"text"),
            (NAME, b"no page"),
            (NAME, None),
            (NAME, b"\xc3\x01" + bytes(500)),
            (NAME, page_record(page_with(name=b"pageBBBB")).value),
            (NAME, page_record(broken).value),
            (b"pageBBBB", page_record(replace(broken, page=b"pageBBBB")).value),
            (NAME, bytes(900_000)),
            (b"store:" + OTHER_LOG, b"no store"),
            (b"store:", None),
        )
        await one.put([page_with(name=b"pageCCCC")])
        assert await one.get(NAME) == page_with()
        assert await one.get(b"pageBBBB") is None
        assert dict(one.ignored) == {"no_page": 7, "no_value": 1, "broken_seal": 2}
        assert "key_records_ignored" in keys.said("one")
        assert "keys_stopped" not in keys.said("one")


@pytest.mark.parametrize("hiding", ["old", "nothing", "garbage"])
async def test_a_page_that_somebody_has_hidden_is_written_again_by_its_owner_and_reaches_a_new_node(
    keys: Keys, hiding: str
) -> None:
    """Compaction keeps the last record of a page, so a stranger's would be all that a new node finds."""
    async with keys:
        await keys.make()
        one, two = await keys.node("one"), await keys.node("two")
        newest = page_with(version=2, destroyed=bitmap(7))
        await one.put([page_with()])
        await one.put([newest])
        last = {"old": page_record(page_with()).value, "nothing": None, "garbage": b"\xff"}[hiding]
        offset = await keys.send((NAME, last))
        await one.outlines(0)
        assert await one.get(NAME) == newest, "it restores nothing"
        assert await one.repair(1) == 0
        assert await one.repair(0) == 1
        assert await one.repair(0) == 0
        await two.outlines(0)
        assert await two.repair(0) == 0
        assert await last_of(keys, NAME) == newest
        assert offset < await keys.end() - 1
        assert two.ignored.total() == 1


async def last_of(keys: Keys, name: bytes) -> KeyPage:
    """What compaction would leave of a page."""
    end = await keys.end()
    stream = await keys.client.stream(keys.topic, 0, 0)
    found: list[FetchedRecord] = []
    while stream.position < end:
        found += [record for record in await stream.next(1 << 20, 1.0) if record.key == name]
    await stream.close()
    return page_of(found[-1])


async def test_a_node_without_the_master_key_follows_all_the_same(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, blind = await keys.node("one"), await keys.node("blind", master=None)
        await one.put([page_with()])
        assert await blind.get(NAME) == page_with()


async def test_a_node_with_another_master_key_sees_whose_the_pages_are(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one, other = await keys.node("one"), await keys.node("other", master=OTHER_MASTER)
        await one.put([page_with()])
        allocator = KeyAllocator(ring_of(other, master=OTHER_MASTER), 0)
        assert await code_of(allocator.check_master()) == "KEY_UNAVAILABLE"


# -- which topic it is


async def test_a_topic_of_another_store_is_not_followed(keys: Keys) -> None:
    async with keys:
        await keys.make(said=store_record(OTHER_LOG))
        store = await keys.node("one")
        assert await code_of(store.outlines(0)) == "LOG_MISMATCH"
        assert await code_of(store.put([page_with()])) == "LOG_MISMATCH"
        assert keys.said("one") == ["keys_stopped"]
        assert await keys.end() == 1, "nothing was written to it"


async def test_a_topic_that_is_not_there_is_waited_for_and_named(keys: Keys) -> None:
    async with keys:
        store = await keys.node("one", client=await keys.open_client(timeout_s=2.0), timeout_s=2.0)
        assert await code_of(store.outlines(0)) in ("STORE_NOT_FOUND", "KAFKA_UNAVAILABLE")
        await until(lambda: "keys_unavailable" in keys.said("one"))
        await keys.make()
        await until(lambda: store.position == 1)
        await store.put([page_with()])
        assert keys.said("one") == ["keys_unavailable", "keys_available"]


async def test_a_topic_that_was_made_anew_is_refused_also_while_it_is_followed(keys: Keys, kafka: SharedBroker) -> None:
    async with keys:
        await keys.make()
        running, stopped = await keys.node("running"), await keys.node("stopped")
        await running.put([page_with()])
        await stopped.outlines(0)
        await stopped.close()
        await asyncio.to_thread(
            required_runtime().tool,
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", kafka.address, "--delete", "--topic", keys.topic),
        )
        while (await keys.client.topics([keys.topic]))[keys.topic] is not None:
            await asyncio.sleep(0.05)
        await keys.make()
        for n in range(5):  # it is as long as the one before
            await keys.send((b"page%04d" % n, page_record(page_with(name=b"page%04d" % n)).value))
        anew = await keys.node("stopped")
        assert await code_of(anew.outlines(0)) == "LOG_DIVERGED"
        assert await anew.get(NAME) == page_with(), "what was followed is still there"
        await until(lambda: "keys_stopped" in keys.said("running"))
        assert await code_of(running.put([page_with(name=b"pageBBBB")])) == "LOG_DIVERGED"


async def test_a_topic_that_ends_before_what_was_followed_is_refused(keys: Keys) -> None:
    async with keys:
        await keys.make()
        one = await keys.node("one")
        await one.put([page_with()])
        await one.close()
        database = sqlite.connect(keys.path("one"), journal="delete")
        database.execute("UPDATE followed SET position = 1000")
        database.close()
        again = await keys.node("one")
        assert await code_of(again.outlines(0)) == "LOG_DIVERGED"


# -- what the store is


async def test_what_the_store_is_is_what_the_first_one_said(keys: Keys) -> None:
    async with keys:
        await keys.make(said=None)
        assert await read_store_record(keys.client, keys.topic) is None
        first = store_record(partitions=4, vector_spaces=("hashing/1/8/cosine", "supplied.x/1/3/l2"))
        await keys.send((b"store:" + OTHER_LOG, b"no store"), (b"store:" + OTHER_LOG, page_record(page_with()).value))
        assert await write_store_record(keys.client, keys.topic, first) == first
        assert await write_store_record(keys.client, keys.topic, store_record(OTHER_LOG)) == first
        assert await read_store_record(keys.client, keys.topic) == first


async def test_a_node_closed_while_somebody_waits_tells_so(keys: Keys) -> None:
    async with keys:
        await keys.make()
        store = await keys.node("one")
        await store.outlines(0)
        asking = [asyncio.create_task(code_of(store.get(b"none%04d" % n))) for n in range(4)]
        await asyncio.sleep(0)
        await store.close()
        assert set(await asyncio.gather(*asking)) <= {"NOT_OWNER", "done"}
