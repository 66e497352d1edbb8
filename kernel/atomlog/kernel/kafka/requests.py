"""The two requests that every write and every read makes, to the byte: one topic, one partition.

The library's own forms are built and taken apart field by field, which is an eighth of the processor time of a write.
These go to its connection in their place, and offer what it calls.
"""

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.kafka.values import Fetched

_HEADER: Final = struct.Struct(">hhi")  # kind, version, number; then who asks
_NO_REPLICA, _NO_SESSION, _NO_EPOCH, _NOWHERE = -1, 0, -1, -1
_FETCH: Final = struct.Struct(">iiiibiii")  # replica, wait, bytes least and most, isolation, session, epoch, topics
_FETCHED_PARTITION: Final = struct.Struct(">iiiqqi")  # count, partition, leader epoch, position, first, bytes most
_FETCH_END: Final = struct.Struct(">ih")  # topics to forget: none; rack: empty
_FETCH_HEAD: Final = struct.Struct(">ihii")  # throttled, error, session, topics
_FETCH_ROW: Final = struct.Struct(">iihqqqi")  # partitions, partition, error, end, stable, first, aborted
_ABORTED_BYTES: Final = 16
_PRODUCE: Final = struct.Struct(">hhii")  # transaction: none, acknowledgements, time, topics
_PRODUCED_PARTITION: Final = struct.Struct(">iii")  # count, partition, bytes
_PRODUCE_ROW: Final = struct.Struct(">iihq")  # partitions, partition, error, offset
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """`error` is a code, 0 for none; `offset` that of the first record."""

    error: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """`error` is a code, 0 for none: then there is something in `fetched`, perhaps no bytes."""

    error: int
    fetched: Fetched


@dataclass(frozen=True, slots=True)
class Number:
    """The header of an answer: which request it answers."""

    correlation_id: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a request."""

    raw: bytes

    def encode(self) -> bytes:
        return self.raw


class FetchAnswers:
    """Reads what comes back. ValueError for what is no such answer."""

    @staticmethod
    def decode(answer: io.BytesIO) -> FetchAnswer:
        data = answer.getbuffer()
        try:
            return _fetch_answer(data, answer.tell())
        except struct.error as error:
            raise ValueError(f"no answer to a fetch: {error}") from error


class ProduceAnswers:
    """Reads what comes back. ValueError for what is no such answer."""

    @staticmethod
    def decode(answer: io.BytesIO) -> Produced:
        data, at = answer.getbuffer(), answer.tell()
        try:
            if _INT32.unpack_from(data, at)[0] != 1:
                raise ValueError("an answer that is not about one topic")
            at = _after_name(data, at + _INT32.size)
            partitions, _, code, offset = _PRODUCE_ROW.unpack_from(data, at)
        except struct.error as error:
            raise ValueError(f"no answer to a produce request: {error}") from error
        if partitions != 1:
            raise ValueError("an answer that is not about one partition")
        return Produced(error=code, offset=offset)


class _Request:
    """What a connection of the library asks of one."""

    API_KEY: int
    API_VERSION: int

    def __init__(self, body: bytes) -> None:
        self._body = body

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> "_Request":
        low, high = versions.get(self.API_KEY, (0, 0))
        if not low <= self.API_VERSION <= high:
            what = f"it answers request {self.API_KEY} in versions {low} to {high}, not in {self.API_VERSION}"
            raise NotImplementedError(f"{what}; Kafka 2.8 or newer is needed")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> Header:
        return Header(_HEADER.pack(self.API_KEY, self.API_VERSION, correlation_id) + _name(client_id))

    def encode(self) -> bytes:
        return self._body

    def parse_response_header(self, answer: io.BytesIO) -> Number:
        return Number(_INT32.unpack(answer.read(_INT32.size))[0])


class FetchOne(_Request):
    """Batches of one partition from `position` on; see the constants for what is left at its default."""

    API_KEY = 1
    API_VERSION = 11
    RESPONSE_TYPE = FetchAnswers

    def __init__(self, topic: str, partition: int, position: int, *, bytes_max: int, wait_ms: int) -> None:
        """The broker waits until there is one byte, `wait_ms` at the most. Uncommitted records are read, too."""
        head = _FETCH.pack(_NO_REPLICA, wait_ms, 1, bytes_max, 0, _NO_SESSION, _NO_EPOCH, 1)
        row = _FETCHED_PARTITION.pack(1, partition, _NO_EPOCH, position, _NOWHERE, bytes_max)
        super().__init__(head + _name(topic) + row + _FETCH_END.pack(0, 0))


class ProduceOne(_Request):
    """One record batch to one partition."""

    API_KEY = 0
    API_VERSION = 7
    RESPONSE_TYPE = ProduceAnswers

    def __init__(self, topic: str, partition: int, batch: bytes, *, acks: int, timeout_ms: int) -> None:
        head = _PRODUCE.pack(-1, acks, timeout_ms, 1)
        super().__init__(head + _name(topic) + _PRODUCED_PARTITION.pack(1, partition, len(batch)) + batch)


def _fetch_answer(data: memoryview, at: int) -> FetchAnswer:
    _, error, _, topics = _FETCH_HEAD.unpack_from(data, at)
    if error:
        return FetchAnswer(error=error, fetched=Fetched(first_kept=0, end=0, data=b""))
    if topics != 1:
        raise ValueError("an answer that is not about one topic")
    at = _after_name(data, at + _FETCH_HEAD.size)
    partitions, _, error, end, _, first_kept, aborted = _FETCH_ROW.unpack_from(data, at)
    if partitions != 1:
        raise ValueError("an answer that is not about one partition")
    at += _FETCH_ROW.size + max(0, aborted) * _ABORTED_BYTES + _INT32.size  # and which replica to prefer
    size = max(0, _INT32.unpack_from(data, at)[0])
    at += _INT32.size
    if at + size > len(data):
        raise ValueError(f"{size} bytes were announced, {len(data) - at} are there")
    return FetchAnswer(error=error, fetched=Fetched(first_kept=first_kept, end=end, data=bytes(data[at : at + size])))


def _name(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _after_name(data: memoryview, at: int) -> int:
    return at + _INT16.size + max(0, int(_INT16.unpack_from(data, at)[0]))
