"""What stands on the key topic: key pages, and the one record that says what the store is. Pure but for two functions.

Whoever may write to the topic may write anything there, so each record is checked before it is looked at.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.kafka.client import KafkaClient, records_to
from atomlog.kernel.kafka.values import FetchedRecord, KafkaRecord
from atomlog.kernel.keys import PAGE_ID_BYTES
from atomlog.kernel.ports import KeyPage
from atomlog.kernel.sealing import PAGE_BYTES, SEAL_BYTES
from atomlog.schemas import codec
from atomlog.schemas.varint import WireError

STORE_KEY: Final = b"store:"
PARTITION: Final = 0  # the topic has one
FETCH_BYTES: Final = 1024 * 1024
FETCH_WAIT_S: Final = 1.0
_VALUE_BYTES_MAX: Final = 64 * 1024  # a page has 8.3 KB, a list of vector spaces less
_VERSION_MAX: Final = 2**62  # leaves room to rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecord:
    """What all nodes of a shared store agree on, fixed when it is made. `log_id` is 16 bytes."""

    log_id: bytes
    partitions: int
    hash_version: int
    shard_rows: int
    vector_spaces: tuple[str, ...]


def page_record(page: KeyPage) -> KafkaRecord:
    return KafkaRecord(key=page.page, value=codec.encode_as("KeyPageV1", {name: getattr(page, name) for name in _PAGE}))


def page_of(record: FetchedRecord) -> KeyPage:
    """The page that a record under a page's key carries; WireError when it is none."""
    page = KeyPage(**_decoded("KeyPageV1", record.value))
    if record.key != page.page:
        raise WireError("the page is not the one that the key names")
    if not 0 < page.version <= _VERSION_MAX or page.maker_partition < 0 or page.maker_term < 0:
        raise WireError("version, partition or term is out of range")
    if len(page.wrapped) != PAGE_BYTES + SEAL_BYTES:
        raise WireError(f"{len(page.wrapped)} wrapped bytes")
    return page


def is_page(record: FetchedRecord) -> bool:
    return record.key is not None and len(record.key) == PAGE_ID_BYTES


def is_store(record: FetchedRecord) -> bool:
    return record.key is not None and record.key.startswith(STORE_KEY)


def store_of(record: FetchedRecord) -> StoreRecord:
    """What a record under a store's key says; WireError when it says nothing."""
    datum = _decoded("StoreV1", record.value)
    if record.key != STORE_KEY + datum["log_id"]:
        raise WireError("the store is not the one that the key names")
    if min(datum["partitions"], datum["hash_version"], datum["shard_rows"]) < 1:
        raise WireError("partitions, hash_version or shard_rows is out of range")
    return StoreRecord(**{**datum, "vector_spaces": tuple(datum["vector_spaces"])})


async def write_store_record(client: KafkaClient, topic: str, store: StoreRecord) -> StoreRecord:
    """Say what the store is. Returns what counts then: not `store` when another one stood there first.

    Raises what the broker's side raises; the record may be there all the same, so look again before the next try.
    """
    datum = {name: getattr(store, name) for name in StoreRecord.__slots__} | {"vector_spaces": [*store.vector_spaces]}
    record = KafkaRecord(key=STORE_KEY + store.log_id, value=codec.encode_as("StoreV1", datum))
    producer = await client.producer()
    try:
        await producer.send(topic, PARTITION, [record])
    finally:
        await producer.close()
    found = await read_store_record(client, topic)
    if found is None:
        raise fail("LOG_DIVERGED", f"topic {topic}: the record that was just written is not there; was it made anew?")
    return found


async def read_store_record(client: KafkaClient, topic: str) -> StoreRecord | None:
    """What the topic says of its store, read from its beginning; None when it says nothing up to its present end.

    Records of strangers that cannot be read count for nothing.
    """
    first, end = await client.bounds(topic, PARTITION)
    if first >= end:
        return None
    stream = await client.stream(topic, PARTITION, first)
    try:
        async with aclosing(records_to(stream, topic, end)) as groups:
            async for records in groups:
                if (store := first_store(records)) is not None:
                    return store
    finally:
        await stream.close()
    return None


def first_store(records: Sequence[FetchedRecord]) -> StoreRecord | None:
    for record in records:
        if is_store(record):
            try:
                return store_of(record)
            except WireError:
                continue
    return None


_PAGE: Final = tuple(KeyPage.__slots__)


def _decoded(schema: str, value: bytes | None) -> codec.Datum:
    if value is None:
        raise WireError("there is no value")
    if len(value) > _VALUE_BYTES_MAX:
        raise WireError(f"{len(value)} bytes are too many")
    return codec.decode_as(schema, value)
