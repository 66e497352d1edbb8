"""The two requests that are made by hand: byte for byte what the library makes, and its answers read alike."""

import io
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest

from atomlog.kernel.kafka.requests import FetchAnswer, FetchOne, Produced, ProduceOne
from atomlog.kernel.kafka.values import Fetched

VERSIONS = {0: (3, 7), 1: (4, 11)}
TOPIC = "shop.atoms"
BATCH = bytes(range(256)) * 3


def their_fetch() -> Any:
    rows = [(TOPIC, [(7, 123_456_789_012, 65_536)])]
    return FetchRequest(500, 1, 65_536, 0, rows).prepare(VERSIONS)


def their_produce() -> Any:
    rows = [(TOPIC, [(7, BATCH)])]
    return ProduceRequest(transactional_id=None, required_acks=-1, timeout=900, topics=rows).prepare(VERSIONS)


OUR_FETCH = FetchOne(TOPIC, 7, 123_456_789_012, bytes_max=65_536, wait_ms=500)
OUR_PRODUCE = ProduceOne(TOPIC, 7, BATCH, acks=-1, timeout_ms=900)


def fetch_answer(error: int = 0, aborted: Any = None, data: bytes | None = BATCH) -> bytes:
    row = (7, error, 900, 890, 12, aborted, -1, data)
    return bytes(their_fetch().RESPONSE_TYPE(5, 0, 0, [(TOPIC, [row])]).encode())


def produce_answer(error: int = 0) -> bytes:
    row = (7, error, 900, -1, 12)
    return bytes(their_produce().RESPONSE_TYPE([(TOPIC, [row])], 5).encode())


@pytest.mark.parametrize(("ours", "theirs"), [(OUR_FETCH, their_fetch()), (OUR_PRODUCE, their_produce())])
def test_a_request_has_the_bytes_of_the_library(ours: Any, theirs: Any) -> None:
    assert ours.prepare(VERSIONS) is ours
    assert ours.encode() == theirs.encode()
    made = [one.build_request_header(correlation_id=42, client_id="nö").encode() for one in (ours, theirs)]
    assert made[0] == made[1]
    assert ours.parse_response_header(io.BytesIO(b"\x00\x00\x00\x2a")).correlation_id == 42


@pytest.mark.parametrize("aborted", [None, [], [(1, 2), (3, 4)]])
@pytest.mark.parametrize("data", [BATCH, b"", None])
def test_a_fetch_is_read_as_the_library_wrote_it(aborted: Any, data: bytes | None) -> None:
    found = FetchOne.RESPONSE_TYPE.decode(behind_header(fetch_answer(aborted=aborted, data=data)))
    assert found == FetchAnswer(error=0, fetched=Fetched(first_kept=12, end=900, data=data or b""))


def test_refusals_are_found_wherever_they_stand() -> None:
    assert FetchOne.RESPONSE_TYPE.decode(behind_header(fetch_answer(error=1))).error == 1
    whole = bytes(their_fetch().RESPONSE_TYPE(5, 58, 0, []).encode())
    assert FetchOne.RESPONSE_TYPE.decode(behind_header(whole)).error == 58
    assert ProduceOne.RESPONSE_TYPE.decode(behind_header(produce_answer(error=19))).error == 19


def test_a_produced_batch_has_its_offset() -> None:
    assert ProduceOne.RESPONSE_TYPE.decode(behind_header(produce_answer())) == Produced(error=0, offset=900)


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    whole = fetch_answer()
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=r"no answer|were announced"):
            FetchOne.RESPONSE_TYPE.decode(behind_header(whole[:size]))
    for size in range(24):
        with pytest.raises(ValueError, match="no answer"):
            ProduceOne.RESPONSE_TYPE.decode(behind_header(produce_answer()[:size]))


@pytest.mark.parametrize("kind", ["topics", "partitions"])
def test_an_answer_about_something_else_is_none(kind: str) -> None:
    fetched: list[Any] = [] if kind == "topics" else [(TOPIC, [(7, 0, 1, 1, 0, None, -1, b"")] * 2)]
    answer = bytes(their_fetch().RESPONSE_TYPE(0, 0, 0, fetched).encode())
    with pytest.raises(ValueError, match="is not about one"):
        FetchOne.RESPONSE_TYPE.decode(behind_header(answer))
    produced: list[Any] = [] if kind == "topics" else [(TOPIC, [(7, 0, 1, -1, 0)] * 2)]
    answer = bytes(their_produce().RESPONSE_TYPE(produced, 0).encode())
    with pytest.raises(ValueError, match="is not about one"):
        ProduceOne.RESPONSE_TYPE.decode(behind_header(answer))


def test_a_broker_of_another_age_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"it answers request 1 in versions 0 to 10, not in 11; Kafka 2.8"):
        OUR_FETCH.prepare({1: (0, 10)})
    with pytest.raises(NotImplementedError, match="request 0"):
        OUR_PRODUCE.prepare({})


def behind_header(answer: bytes) -> io.BytesIO:
    """As the connection gives it: the number was read already."""
    stream = io.BytesIO(bytes(4) + answer)
    stream.read(4)
    return stream
