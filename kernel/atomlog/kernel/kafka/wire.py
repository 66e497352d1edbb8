"""Requests to one broker over one connection. The only module that imports aiokafka.

Of aiokafka: its connections (TLS, SASL, pipelining), its request and answer forms, its record batches. Not its producer
and consumer: `kernel/README.md` says why. A request is sent once; who calls decides whether to send it again.
"""

import asyncio
import io
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import BrokerResponseError, KafkaError, for_code
from aiokafka.protocol import types
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.api import RequestHeader_v2, ResponseHeader_v1
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from atomlog.kernel.errors import fail
from atomlog.kernel.kafka.config import KafkaConfig
from atomlog.kernel.kafka.requests import FetchAnswer, FetchOne, Produced, ProduceOne
from atomlog.kernel.kafka.trust import message_of, of_connecting
from atomlog.kernel.kafka.values import (
    Address,
    Fetched,
    FetchedRecord,
    KafkaRecord,
    Leader,
    Lost,
    Metadata,
    NewTopic,
    Refusal,
    TopicMetadata,
)

EARLIEST: Final = -2
LATEST: Final = -1
ACKS_ALL: Final = -1
_MAGIC: Final = 2
_NO_PRODUCER: Final = -1
_READ_UNCOMMITTED: Final = 0
_TOPIC_RESOURCE: Final = 2
UNKNOWN_TOPIC: Final = 3
_NAMES: Final = {
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
}
_BUILDER_SLACK_BYTES: Final = 1024  # it reckons with the longest form of every number; the limit is looked at here
_CLOSE_S: Final = 1.0
_NEVER_MS: Final = 24 * 3_600 * 1_000  # its own timeouts are not used: every call here has a deadline of its own


class Connection:
    """One connection to one broker, made by `connect`. Requests are answered in order."""

    def __init__(self, connection: Any, address: Address) -> None:
        self._connection = connection
        self.address = address

    @classmethod
    async def connect(
        cls, address: Address, config: KafkaConfig, context: ssl.SSLContext | None, timeout_s: float
    ) -> "Connection":
        """Connected, and trusted.

        Raises:
            ACCESS_DENIED: the broker does not take the user or the password.
            INVALID_INPUT: TLS or SASL is not as the broker has it.
            KAFKA_UNAVAILABLE: nobody is there, or no answer came.
        """
        _keep_secrets_from_logs()
        connection = AIOKafkaConnection(
            address.host,
            address.port,
            client_id=config.client_id,
            request_timeout_ms=_NEVER_MS,
            ssl_context=context,
            security_protocol=config.security_protocol,
            sasl_mechanism=config.sasl_mechanism,
            sasl_plain_username=config.sasl_username,
            sasl_plain_password=config.sasl_password,
        )
        connection._request_timeout = None  # not a timer more for each request
        one = cls(connection, address)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.connect()
        except Exception as error:
            one.abort()
            code = error.errno if isinstance(error, BrokerResponseError) else None
            raise of_connecting(error, address, config, code) from error
        except BaseException:
            one.abort()
            raise
        return one

    @property
    def is_open(self) -> bool:
        writer = self._connection._writer  # connections that are lost are said to be connected for a while yet
        return bool(self._connection.connected()) and writer is not None and not writer.transport.is_closing()

    def abort(self) -> None:
        """Close the socket at once. What is still in its buffer is thrown away, what was sent may arrive."""
        writer = self._connection._writer  # its own close waits for the buffer, and with TLS for the other side
        self._connection.close()
        if writer is not None:
            writer.transport.abort()

    async def closed(self) -> None:
        """Abort, and wait a moment until the event loop has let the socket go."""
        self.abort()
        closed = self._connection._closed_fut
        if closed is not None:
            await asyncio.wait((closed,), timeout=_CLOSE_S)

    async def metadata(self, topics: Sequence[str], timeout_s: float) -> Metadata:
        """About the brokers and these topics; never creates one."""
        answer = await self._send(_MetadataRequest(topics), timeout_s)
        _, brokers, cluster_id, _, found, _, _ = answer
        return Metadata(
            cluster_id=cluster_id or "",
            brokers={node: Address(host=host, port=port) for node, host, port, _, _ in brokers},
            topics={row[1]: _topic_metadata(row) for row in found},
        )

    async def offset(self, topic: str, partition: int, which: int, timeout_s: float) -> int:
        """EARLIEST: the first one kept. LATEST: the high watermark. Only the leader answers."""
        request = OffsetRequest(-1, _READ_UNCOMMITTED, [(topic, [(partition, which)])])
        answer = await self._send(request, timeout_s)
        error, _, offset = answer.topics[0][1][0][1:4]
        _check(error)
        return int(offset)

    async def fetch(
        self, topic: str, partition: int, position: int, *, bytes_max: int, wait_ms: int, timeout_s: float
    ) -> Fetched:
        """Batches that hold `position` and what follows; at least one batch where there is one.

        Up to `wait_ms` the broker waits for something to give.
        """
        request = FetchOne(topic, partition, position, bytes_max=bytes_max, wait_ms=wait_ms)
        answer: FetchAnswer = await self._send(request, timeout_s)
        _check(answer.error)
        return answer.fetched

    async def produce(self, topic: str, partition: int, batch: bytes, timeout_s: float) -> int:
        """The offset of the batch's first record, once all in-sync replicas have it."""
        timeout_ms = max(1, int(timeout_s * 1_000))
        request = ProduceOne(topic, partition, batch, acks=ACKS_ALL, timeout_ms=timeout_ms)
        answer: Produced = await self._send(request, timeout_s)
        _check(answer.error)
        return answer.offset

    async def create_topics(self, topics: Sequence[NewTopic], timeout_s: float) -> Mapping[str, Refusal | None]:
        """Of each, why it was not made."""
        rows: list[Any] = [
            (one.name, one.partitions, one.replication, [], list(one.settings.items())) for one in topics
        ]
        request = CreateTopicsRequest(rows, max(1, int(timeout_s * 1_000)), False)
        answer = await self._send(request, timeout_s)
        return {
            name: Refusal(code, _name(code), message or "") if code else None
            for name, code, message in answer.topic_errors
        }

    async def settings(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, Mapping[str, str]]:
        """Every setting of each topic as it counts. Absent: a topic that is not there."""
        if not topics:
            return {}
        request = DescribeConfigsRequest([(_TOPIC_RESOURCE, name, None) for name in topics])
        answer = await self._send(request, timeout_s)
        found = {}
        for code, message, _, name, entries in answer.resources:
            if code == UNKNOWN_TOPIC:
                continue
            _check(code, message or "")
            found[name] = {entry[0]: entry[1] or "" for entry in entries}
        return found

    async def _send(self, request: Any, timeout_s: float) -> Any:
        """The answer. `Lost` when it does not come: later answers on this connection are of earlier requests then."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connection.send(request)
        except TimeoutError as error:
            raise Lost(f"broker {self.address} gave no answer within {timeout_s:.1f} s") from error
        except (KafkaError, OSError, EOFError) as error:
            raise Lost(f"broker {self.address}: {message_of(error)}") from error
        except (ValueError, NotImplementedError) as error:  # an answer that is none, or a broker of another age
            self.abort()
            raise Lost(f"broker {self.address} is not understood: {message_of(error)}") from error


def build_batch(records: Sequence[KafkaRecord], bytes_max: int) -> bytes:
    """One record batch. BOUND_EXCEEDED when it would have more than `bytes_max` bytes: nothing was sent then."""
    builder = DefaultRecordBatchBuilder(
        magic=_MAGIC,
        compression_type=0,
        is_transactional=0,
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        batch_size=bytes_max + _BUILDER_SLACK_BYTES,
    )
    for number, one in enumerate(records):
        added = builder.append(number, timestamp=None, key=one.key, value=one.value, headers=list(one.headers))
        if added is None or builder.size() > bytes_max:  # the first one is taken whatever its size
            message = f"{len(records)} records are more than {bytes_max} bytes as a batch for Kafka"
            raise fail("BOUND_EXCEEDED", f"{message}; write less at once, or raise max.message.bytes of the topic")
    return bytes(builder.build())


def parse_batches(data: bytes, position: int) -> tuple[list[FetchedRecord], int]:
    """The records from `position` on, and the position after them. A last batch that is cut off is left out.

    Whatever a stranger put there takes its offsets with a `problem` and harms nobody: batches are not decompressed
    (the topics are kept uncompressed), and each one that cannot be read is replaced as a whole.

    Raises:
        ValueError: the bytes are no batches at all, or one fails its checksum.
    """
    found: list[FetchedRecord] = []
    after = position
    batches = MemoryRecords(data)
    while batches.has_next():
        try:
            batch = batches.next_batch()
        except KafkaError as error:
            raise ValueError(f"no record batch: {message_of(error)}") from error
        if not isinstance(batch, DefaultRecordBatch):
            raise ValueError("a record batch of an old form")
        if batch.next_offset <= position:
            continue
        if not batch.validate_crc():
            raise ValueError(f"the batch at offset {batch.base_offset} fails its checksum")
        found += _records(batch, position)
        after = batch.next_offset
    return found, after


def _records(batch: Any, position: int) -> list[FetchedRecord]:
    problem = "a control record" if batch.is_control_batch else "compressed" if batch.compression_type else ""
    if not problem:
        try:
            return [_fetched(record) for record in batch if record.offset >= position]
        except (KafkaError, ValueError, IndexError, OverflowError, MemoryError) as error:
            problem = f"unreadable: {message_of(error)}"
    return [
        FetchedRecord(
            offset=offset, timestamp_ms=batch.max_timestamp, key=None, value=None, headers=(), problem=problem
        )
        for offset in range(max(position, batch.base_offset), batch.next_offset)
    ]


def _fetched(record: Any) -> FetchedRecord:
    return FetchedRecord(
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=[(name, value or b"") for name, value in record.headers],
    )


def _topic_metadata(row: Sequence[Any]) -> TopicMetadata:
    error, _, high, low, _, partitions, _, _ = row
    return TopicMetadata(
        error=error,
        error_name=_name(error),
        topic_id=high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True),
        leaders={one[1]: Leader(node=one[2], epoch=one[3], replicas=len(one[4])) for one in partitions},
    )


def _name(code: int) -> str:
    return _NAMES.get(code) or f"{for_code(code).message}" if code else ""


def _check(code: int, message: str = "") -> None:
    if code:
        raise Refusal(code, _name(code), message)


def _keep_secrets_from_logs() -> None:
    """aiokafka's log of level DEBUG has every request, also the ones with a password."""
    logger = logging.getLogger("aiokafka")
    if logger.getEffectiveLevel() < logging.INFO:
        logger.setLevel(logging.INFO)


_INT32, _INT64 = types.Int32, types.Int64
_NAME, _TAGS = types.CompactString("utf-8"), types.TaggedFields


class _MetadataRequest:
    """Metadata in version 10, which has topic ids and leader epochs; aiokafka has it up to 5.

    What a connection asks of a request, and no more.
    """

    API_KEY: Final = 3
    API_VERSION: Final = 10
    _REQUEST: Final = types.Schema(
        ("topics", types.CompactArray(("id_high", _INT64), ("id_low", _INT64), ("name", _NAME), ("tags", _TAGS))),
        ("may_create", types.Boolean),
        ("with_cluster_rights", types.Boolean),
        ("with_topic_rights", types.Boolean),
        ("tags", _TAGS),
    )
    RESPONSE_TYPE: Final = types.Schema(
        ("throttle_time_ms", _INT32),
        (
            "brokers",
            types.CompactArray(("node", _INT32), ("host", _NAME), ("port", _INT32), ("rack", _NAME), ("tags", _TAGS)),
        ),
        ("cluster_id", _NAME),
        ("controller", _INT32),
        (
            "topics",
            types.CompactArray(
                ("error", types.Int16),
                ("name", _NAME),
                ("id_high", _INT64),
                ("id_low", _INT64),
                ("is_internal", types.Boolean),
                (
                    "partitions",
                    types.CompactArray(
                        ("error", types.Int16),
                        ("partition", _INT32),
                        ("leader", _INT32),
                        ("leader_epoch", _INT32),
                        ("replicas", types.CompactArray(_INT32)),
                        ("in_sync", types.CompactArray(_INT32)),
                        ("offline", types.CompactArray(_INT32)),
                        ("tags", _TAGS),
                    ),
                ),
                ("rights", _INT32),
                ("tags", _TAGS),
            ),
        ),
        ("cluster_rights", _INT32),
        ("tags", _TAGS),
    )

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> "_MetadataRequest":
        low, high = versions.get(self.API_KEY, (0, 0))
        if not low <= self.API_VERSION <= high:
            raise NotImplementedError(f"it answers metadata {low} to {high}; Kafka 2.8 or newer is needed")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> Any:
        return RequestHeader_v2(self, correlation_id=correlation_id, client_id=client_id)

    def encode(self) -> bytes:
        rows: list[Any] = [(0, 0, name, {}) for name in self._topics]
        return bytes(self._REQUEST.encode((rows, False, False, False, {})))

    def parse_response_header(self, buffer: io.BytesIO) -> Any:
        return ResponseHeader_v1.decode(buffer)
