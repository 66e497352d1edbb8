"""The last Claim of a partition is found from the end of the log, whatever strangers have written after it."""

from atomlog.consumers.cluster import claims
from atomlog.consumers.cluster.claims import LastClaims
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.schemas import codec
from atomlog.schemas.record import ZERO16, Malformed, Record, next_record
from tests.support.kernel_world import LOG_ID, SteppingClock


def record(kind: str, value: bytes) -> Record:
    schema = codec.current(kind).fingerprint
    return next_record(ZERO16, kind=kind, term=1, owner=ZERO16, seq=0, schema=schema, value=value)


def claim(endpoint: str) -> Record:
    datum = {"log_id": LOG_ID, "partition": 0, "partitions": 2, "hash_version": 1, "feature_level": 1}
    datum |= {"claimed_at": bytes(8), "endpoint": endpoint, "node": "n", "pid": 7}
    return record("Claim", codec.encode("Claim", datum))


FENCE = record("Fence", codec.encode("Fence", {"requests": 1}))


async def found(*records: Record | Malformed, partition: int = 0) -> str | None:
    server = MemoryLogServer(log_id=LOG_ID, partitions=2)
    server.put(0, *records)
    return await LastClaims(MemoryLog(server), SteppingClock()).endpoint(partition)


async def test_the_last_claim_counts_however_far_back_it_is() -> None:
    claims_first = (claim("tls:a:1"), FENCE, claim("tls:b:2"))
    for after in (0, 1, claims.SPAN - 1, claims.SPAN, claims.SPAN + 1, 5 * claims.SPAN):
        assert await found(*claims_first, *[FENCE] * after) == "tls:b:2"


async def test_without_one_that_says_where_there_is_none() -> None:
    assert await found() is None
    assert await found(*[FENCE] * 3) is None
    assert await found(claim("tls:a:1"), partition=1) is None
    stranger = Malformed(reason="no headers", term=None, owner=None, kind="Claim")
    assert await found(claim("unix:owner.sock"), record("Claim", b"nonsense"), stranger) is None
    assert await found(claim("tls:a:1"), record("Claim", b"nonsense"), stranger, claim("")) == "tls:a:1"


async def test_an_answer_is_given_again_for_a_moment_and_then_looked_up_anew() -> None:
    server, clock = MemoryLogServer(log_id=LOG_ID, partitions=2), SteppingClock()
    last = LastClaims(MemoryLog(server), clock)
    assert await last.endpoint(0) is None
    server.put(0, claim("tls:a:1"))
    assert await last.endpoint(0) is None
    clock.us += claims.KNOWN_US
    assert await last.endpoint(0) == "tls:a:1"
