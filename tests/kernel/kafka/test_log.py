"""The log on a topic that is not what it was, or has what nobody of ours wrote; on the broker of the run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.structs import TopicPartition

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaRecord
from atomlog.kernel.kafka.topics import atoms_spec
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.settings import Settings
from atomlog.schemas import record as wire
from atomlog.schemas.record import Malformed, Record
from tests.kernel.kafka.support import LOG_ID, MUCH, PARTITIONS, SETTINGS, WEAK, Place, numbers, record, records, run
from tests.oracle.histories import claim_value
from tests.support.kafka import SharedBroker


async def refused(call: Awaitable[object]) -> AtomlogError:
    with pytest.raises(AtomlogError) as raised:
        async with asyncio.timeout(40):
            await call
    return raised.value


@asynccontextmanager
async def admin(place: Place) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=place.address)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def make_anew(place: Place) -> None:
    """Delete the topic and make it again, which brokers refuse while the old one is going."""
    async with admin(place) as client:
        await client.delete_topics([place.topic])
    own = await place.client()
    spec = atoms_spec(place.topic, PARTITIONS, 1, SETTINGS, Bounds())
    while not (await own.create_topics([spec.new]))[place.topic]:
        await asyncio.sleep(0.05)


def claim(log_id: bytes) -> Record:
    value = claim_value(log_id=log_id, partition=0, partitions=PARTITIONS)
    return Record(
        rule=1, kind="Claim", term=1, owner=bytes(16), seq=0, schema=value[2:10], chain=bytes(16), value=value
    )


async def read_all(log: KafkaLog) -> list[LogRecord]:
    found: list[LogRecord] = []
    while more := await log.read(0, len(found), bytes_max=MUCH):
        found += more
    return found


def test_a_topic_as_it_was_made_is_taken(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        client = await place.client()
        log = await place.log(cluster_id=await client.cluster_id())
        await log.check()
        await log.append(0, records(1))
        await log.check()

    run(kafka.address, kafka_prefix, body)


def test_a_weak_topic_is_refused_before_anything_is_written(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        for allowed, setting in (((), "replication.factor"), (WEAK[:1], "min.insync.replicas")):
            log = await place.log(allow_weak=allowed)
            for call in (log.check(), log.acquire(0), log.append(0, records(1))):
                error = await refused(call)
                assert (error.code, error.details[0]["path"]) == ("STORE_UNSAFE", setting)
        large = await place.log(settings=Settings(group_bytes_max=4 * 1024 * 1024))
        error = await refused(large.check())
        assert (error.code, error.details[0]["path"]) == ("STORE_UNSAFE", "max.message.bytes")
        assert await large.end(0) == 0

    run(kafka.address, kafka_prefix, body)


def test_a_group_that_does_not_fit_is_refused_and_nothing_of_it_is_sent(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        group = [record(1), record(2, size=5_000_000), record(3)]
        assert (await refused(log.append(0, group))).code == "BOUND_EXCEEDED"
        assert await log.end(0) == 0
        await log.append(0, records(4))
        assert numbers(await log.read(0, 0, bytes_max=MUCH)) == [4]

    run(kafka.address, kafka_prefix, body)


def test_another_cluster_other_partitions_and_another_store_are_a_mismatch(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    async def body(place: Place) -> None:
        assert (await refused((await place.log(cluster_id="of another cluster")).check())).code == "LOG_MISMATCH"
        assert (await refused((await place.log(partitions=PARTITIONS + 1)).check())).code == "LOG_MISMATCH"
        log = await place.log()
        await log.append(0, [claim(LOG_ID)])
        await (await place.log()).check()
        other = await place.log(log_id=bytes(16))
        assert (await refused(other.check())).code == "LOG_MISMATCH"

    run(kafka.address, kafka_prefix, body)


def test_a_strangers_records_before_the_first_claim_do_not_hide_whose_log_it_is(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, [record(1), record(2), claim(LOG_ID), claim(bytes(16))])
        await (await place.log()).check()
        assert (await refused((await place.log(log_id=bytes(16))).check())).code == "LOG_MISMATCH"

    run(kafka.address, kafka_prefix, body)


def test_partitions_that_were_added_are_found_at_the_next_check(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log(settings=Settings(metadata_refresh_ms=0))
        await log.append(0, records(1))
        async with admin(place) as client:
            await client.create_partitions({place.topic: NewPartitions(total_count=PARTITIONS + 1)})
        while True:  # until the news is with the broker
            error = await refused_or_none(log)
            if error is not None:
                break
        assert error.code == "LOG_MISMATCH"
        assert "partitions were added" in error.message
        assert (await refused(log.acquire(0))).code == "LOG_MISMATCH"

    run(kafka.address, kafka_prefix, body)


async def refused_or_none(log: KafkaLog) -> AtomlogError | None:
    try:
        await log.check()
    except AtomlogError as error:
        return error
    return None


def test_a_topic_that_is_deleted_while_running_is_an_error_and_never_made_again(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, records(1, 2))
        assert await log.wait(0, 1, 10)
        waiting = asyncio.create_task(refused(log.wait(0, 2, 60)))
        async with admin(place) as client:
            await client.delete_topics([place.topic])
        assert (await waiting).code == "STORE_NOT_FOUND"
        calls = (log.append(0, records(3)), log.end(0), log.read(1, 0, bytes_max=1), log.check())
        codes = [error.code for error in await asyncio.gather(*map(refused, calls))]
        assert codes == ["STORE_NOT_FOUND"] * 4
        assert await (await place.client()).topics([place.topic]) == {place.topic: None}

    run(kafka.address, kafka_prefix, body)


def test_a_topic_that_was_made_anew_is_another_log(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, records(1, 2, 3))
        await log.check()
        await make_anew(place)
        assert (await refused(log.check())).code == "LOG_DIVERGED"
        later = await place.log()  # a process that was not there
        for call in (later.read(0, 3, bytes_max=1), later.wait(0, 3, 0.1)):
            error = await refused(call)
            assert (error.code, error.details[0]["wanted"], error.details[0]["end"]) == ("LOG_DIVERGED", 3, 0)

    run(kafka.address, kafka_prefix, body)


def test_what_is_not_kept_any_more_is_named(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, records(*range(10)))
        async with admin(place) as client:
            await client.delete_records({TopicPartition(place.topic, 0): RecordsToDelete(before_offset=4)})
        later = await place.log()
        await later.check()
        error = await refused(later.read(0, 3, bytes_max=MUCH))
        detail = error.details[0]
        assert (error.code, detail["wanted"], detail["first"]) == ("LOG_DIVERGED", 3, 4)
        assert "not kept any more" in error.message
        assert numbers(await later.read(0, 4, bytes_max=MUCH)) == list(range(4, 10))
        await later.append(0, records(10))
        assert await later.end(0) == 11

    run(kafka.address, kafka_prefix, body)


def test_records_of_strangers_stand_at_their_positions_and_break_nothing(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    seven = wire.headers(record(7))
    strange = [
        KafkaRecord(value=b"no headers"),
        KafkaRecord(key=b"k", value=None),
        KafkaRecord(value=None, headers=seven),
        KafkaRecord(value=b"\xc3\x01" + bytes(3), headers=list(reversed(seven))),
        KafkaRecord(value=b"v" * 900_000, headers=[("x" * 60_000, b"y" * 60_000)] * 3),
        KafkaRecord(value=b"", headers=[(f"h{n}", b"") for n in range(5_000)]),
    ]

    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, records(1))
        producer = await (await place.client()).producer(bytes_max=4_000_000)
        for one in strange:
            await producer.send(place.topic, 0, [one])
        await log.append(0, records(2))
        for handle in (log, await place.log()):
            found = await read_all(handle)
            assert numbers(found) == [1, *[-1] * len(strange), 2]
            odd = [entry.record for entry in found[1:-1]]
            assert all(isinstance(one, Malformed) and len(one.reason) < 300 for one in odd)
            assert [one.term for one in odd] == [None, None, 3, 3, None, None]

    run(kafka.address, kafka_prefix, body)


def test_a_transaction_of_a_stranger_takes_its_positions_and_is_read_whether_committed_or_not(
    kafka: SharedBroker, kafka_prefix: str
) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        await log.append(0, records(1))
        stranger = AIOKafkaProducer(bootstrap_servers=place.address, transactional_id=kafka_prefix)
        await stranger.start()
        for is_committed in (True, False):
            await stranger.begin_transaction()
            await stranger.send_and_wait(place.topic, b"of a stranger", partition=0)
            await (stranger.commit_transaction() if is_committed else stranger.abort_transaction())
        await stranger.stop()
        assert await log.wait(0, 4, 60)  # the last marker may come late
        await log.append(0, records(2))
        end = await log.end(0)
        found = await read_all(await place.log())
        assert numbers(found) == [1, -1, -1, -1, -1, 2]
        assert end == 6
        reasons = [entry.record.reason for entry in found if isinstance(entry.record, Malformed)]
        assert reasons[1] == reasons[3] == "a control record"

    run(kafka.address, kafka_prefix, body)


def test_what_a_stranger_compressed_is_kept_uncompressed_by_the_broker(kafka: SharedBroker, kafka_prefix: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        stranger = AIOKafkaProducer(bootstrap_servers=place.address, compression_type="gzip")
        await stranger.start()
        headers = wire.headers(record(5, size=9_000))
        await stranger.send_and_wait(place.topic, record(5, size=9_000).value, partition=0, headers=headers)
        await stranger.stop()
        await log.append(0, records(6))
        assert numbers(await read_all(log)) == [5, 6]

    run(kafka.address, kafka_prefix, body)
