"""Bytes that kill, freeze or fool an Avro library, in records that the rule counts as the owner's own.

Headers, term and chain are right, so that every reader has to decode the value. Each must refuse it with a typed
error, in little memory, and write nothing of it; no reader may take it for something else.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from atomlog.consumers.log_dump import log_dump
from atomlog.kernel.commit_rule import Effective, Genesis, Stop, fold
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.heads import Heads
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.ports import Kv, LogRecord
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemFiles
from atomlog.kernel.tail import Checkpoint, EffectiveRecord, Tail
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.relations import Relations
from atomlog.projections.vectors import Vectors
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, encode_batch
from atomlog.schemas.content import Content, Provenance, encode_content
from atomlog.schemas.record import RULE, Record, chain_after
from atomlog.schemas.revision import FIXED_BYTES, FLAGS_AT, Clear, encode_clear, join_sealed
from atomlog.schemas.varint import write_bytes, write_long
from tests.fuzz.measure import peak_bytes
from tests.projections.vectors.worlds import plain_opener, space_of
from tests.schemas.golden_files import encodings
from tests.support.batches import LOG_ID, OWNER, LogBuilder, create
from tests.support.sealed import InlineWorkers

MEMORY_BYTES: Final = 3_000_000  # while refusing some 20 kB
GENESIS: Final = Genesis(log_id=LOG_ID, partition=0, partitions=1)
TAILS: Final[Mapping[str, bytes]] = {
    "a nest of ten thousand": b"\x02" * 10_000,
    "a count of 2^60": write_long(1 << 60) + bytes(2_000),
    "a count of 50 million": write_long(50_000_000) + bytes(2_000),
    "a count of minus one": write_long(-1) + write_long(1 << 40) + bytes(2_000),
    "the lowest count": write_long(-(1 << 63)) + bytes(2_000),
    "a length of 2^62": write_long(1 << 62) + bytes(2_000),
    "a length one beyond the end": write_long(2_001) + bytes(2_000),
    "a negative length": write_long(-2) + bytes(2_000),
    "a number of eleven bytes": b"\xff" * 10 + b"\x01" + bytes(2_000),
    "a zero in ten bytes": b"\x80" * 9 + b"\x00" + bytes(2_000),
    "a number without end": b"\x80" * 20_000,
    "a branch that there is not": b"\x7f" + bytes(100),
    "a text that is none": b"\x08\xff\xfe\xff\xfe" + bytes(100),
    "many empty blocks": b"\x02\x00" * 5_000,
    "nothing": b"",
}
KINDS: Final = tuple(codec.KIND_SCHEMAS)


def values(kind: str) -> Iterator[tuple[str, bytes]]:
    """Values of a kind, sound up to some byte and hostile from there on; and sound ones with more behind."""
    golden = encodings(f"{kind}V1")["full"]
    places = sorted({0, 1, len(golden) // 3, len(golden) // 2, max(len(golden) - 1, 0), len(golden)})
    for place in places:
        for name, tail in TAILS.items():
            if golden[:place] + tail != golden:
                yield f"{name} at byte {place}", codec.wrap(codec.current(kind).fingerprint, golden[:place] + tail)


@contextmanager
def log_with(kind: str, value: bytes) -> Iterator[tuple[LogBuilder, LogRecord]]:
    """A small log and one more record behind it, by its owner, with this value."""
    log = LogBuilder()
    log.batch("notes", [create("a")])
    yield log, next_record(log, kind, value)


def next_record(log: LogBuilder, kind: str, value: bytes) -> LogRecord:
    state = log.checkpoint.state
    claims = kind == "Claim"
    record = Record(
        rule=RULE,
        kind=kind,
        term=state.term + claims,
        owner=OWNER,
        seq=0 if claims else state.next_seq,
        schema=codec.current(kind).fingerprint,
        chain=bytes(16),
        value=value,
    )
    if not claims:
        record = replace(record, chain=chain_after(state.chain, record))
    return LogRecord(position=log.end, record=record)


def readers(kv: Kv, folder: str) -> dict[str, Callable[[EffectiveRecord, Checkpoint], Any]]:
    vectors = Vectors(
        kv,
        1,
        spaces=[space_of()],
        shard_rows=100,
        directory=folder,
        files=SystemFiles(),
        workers=InlineWorkers(),
        settings=Settings(),
        content=plain_opener(),
        encoders={},
    )
    return {
        "heads": lambda record, after: Heads(kv, 1).apply(0, [record], after, {}),
        "ids": lambda record, after: Ids(kv, 1).apply(0, [record], after),
        "relations": lambda record, after: Relations(kv, 1).apply(0, [record], after),
        "postings": lambda record, after: Postings(kv, 1, window=1_000).apply(0, [record], after),
        "vectors": lambda record, after: vectors.apply(0, [record], after),
    }


READERS: Final = ("heads", "ids", "relations", "postings", "vectors")


def outcome(log: LogBuilder, entry: LogRecord, name: str) -> str:
    """The code of the error with which a reader refuses a record, or `applied`; it has written nothing, or all."""
    verdict = fold(log.checkpoint.state, entry.record, GENESIS, entry.position)
    if isinstance(verdict, Stop):
        return verdict.error.code
    assert isinstance(verdict, Effective), verdict
    assert isinstance(entry.record, Record)
    record = EffectiveRecord(position=entry.position, record=entry.record, chain=verdict.state.chain)
    kv = MemoryKv()
    with tempfile.TemporaryDirectory() as folder:
        apply = readers(kv, folder)[name]
        for known, after in zip(log.records, log.checkpoints[1:], strict=True):
            apply(known, after)
        before = list(kv.scan(b"", b"\xff" * 64))
        try:
            apply(record, Checkpoint(position=entry.position + 1, state=verdict.state))
        except AtomlogError as error:
            assert list(kv.scan(b"", b"\xff" * 64)) == before, "something of a refused record was written"
            error.message.encode()
            return error.code
    return "applied"


def measured(log: LogBuilder, entry: LogRecord, name: str) -> tuple[str, int]:
    """The outcome, and the bytes it took at the peak."""
    found: list[str] = []
    peak = peak_bytes(lambda: found.append(outcome(log, entry, name)))
    return found[0], peak


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_value_is_refused_by_every_reader_that_needs_it(kind: str) -> None:
    """Readers that have no use for a kind step over it; who decodes it, says so before anything is built."""
    needs: dict[str, set[str]] = {"Batch": set(READERS), "KeysDestroyed": {"heads"}, "Release": {"heads"}}
    for what, value in values(kind):
        with log_with(kind, value) as (log, entry):
            for name in READERS:
                code, peak = measured(log, entry, name)
                assert peak < MEMORY_BYTES + 200 * len(value), (what, name, peak)
                expected = "CORRUPT" if name in needs.get(kind, ()) else "applied"
                if kind in ("Claim", "Upgrade"):
                    expected = "UPGRADE_REQUIRED"
                assert code == expected, (what, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_value_is_shown_by_a_dump_of_the_log_and_stops_none_but_its_readers(kind: str) -> None:
    for what, value in values(kind):
        with log_with(kind, value) as (log, entry):
            shown = asyncio.run(dumped([*log.log_records, entry]))
            assert [one["position"] for one in shown] == list(range(entry.position + 1))
            verdict = "stop" if kind in ("Claim", "Upgrade") else "effective"
            assert (shown[-1]["verdict"], shown[-1]["kind"]) == (verdict, kind), what


async def dumped(entries: list[LogRecord]) -> list[dict[str, Any]]:
    log = MemoryLog(MemoryLogServer(log_id=LOG_ID, partitions=1))
    await log.append(0, [entry.record for entry in entries if isinstance(entry.record, Record)])
    found = [one async for one in log_dump(log, GENESIS, 0)]
    tail = Tail(log, GENESIS)
    while tail.checkpoint.position < await log.end(0):
        try:
            for record in await tail.poll():
                decoded(record)
        except AtomlogError as error:
            assert error.code == "UPGRADE_REQUIRED"
            break
    return found


def decoded(record: EffectiveRecord) -> None:
    """Whoever asks for the value gets it, or CORRUPT."""
    try:
        assert record.batch() if record.kind == "Batch" else isinstance(record.datum(), dict)
    except AtomlogError as error:
        assert error.code == "CORRUPT"


# -- a sound batch of hostile revisions


def a_revision(**changes: Any) -> bytes:
    parts: dict[str, Any] = {
        "atom_id": b"atom of sixteen.",
        "revision_id": b"its one revision",
        "previous": None,
        "key_id": None,
        "recorded_at_us": 1_800_000_000_000_000,
        "retired": False,
        "schema": "source",
        "policy": "notes",
    }
    content = Content(value=b'{"text":"x"}', origins=(), provenance=Provenance(kind="source"))
    return join_sealed(encode_clear(Clear(**{**parts, **changes})), encode_content(content))


def revisions() -> Iterator[tuple[str, bytes]]:
    sound = a_revision()
    names_at = FIXED_BYTES
    slots_at = names_at + len(b"\x0csource\x0anotes")
    for place in (names_at, names_at + 7, slots_at, slots_at + 1, len(sound) - 1):
        for name, tail in TAILS.items():
            yield f"{name} at byte {place}", (sound[:place] + tail).ljust(FIXED_BYTES, b"\0")
    for flags in (4, 16, 128, 255):
        yield f"flags {flags}", sound[:FLAGS_AT] + bytes((flags,)) + sound[FLAGS_AT + 1 :]
    slot = write_bytes(b"role") + bytes(32) + b"\x00" + b"\x00"
    yield "slots beyond any count", sound[:slots_at] + write_long(1 << 40) + slot * 100
    yield (
        "a slot with flags of no meaning",
        sound[:slots_at] + b"\x02" + slot[:-2] + b"\x7f\x00\x00" + sound[slots_at + 1 :],
    )
    yield "zeros", bytes(FIXED_BYTES)
    yield "ones", b"\xff" * 5_000


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_revision_in_a_sound_batch_is_refused_with_the_whole_batch(name: str) -> None:
    """What one reader takes though another refuses it must be only what that one never reads."""
    taken: dict[str, str] = {}
    for what, revision in revisions():
        batch = Batch(
            request_key=bytes(32),
            request_digest=bytes(32),
            digest_key_id=bytes(9),
            recorded_at_us=1_800_000_000_000_000,
            revision_schema=codec.load("RevisionV1").fingerprint,
            space="notes",
            principal="local",
            inbox=None,
            revisions=(a_revision(atom_id=b"another of the m", revision_id=b"another revision"), revision),
        )
        value = codec.wrap(codec.current("Batch").fingerprint, encode_batch(batch))
        with log_with("Batch", value) as (log, entry):
            taken[what] = outcome(log, entry, name)
    assert set(taken.values()) == {"CORRUPT", "applied"}
    if (
        name == "heads"
    ):  # which is never to be skipped, and reads the whole clear part; the sealed bytes are not its own
        sealed_at = f"at byte {len(a_revision()) - 1}"
        assert {what for what, code in taken.items() if code == "applied"} == {w for w in taken if sealed_at in w}


@pytest.mark.parametrize(("what", "revision"), list(revisions()), ids=lambda it: it if isinstance(it, str) else "")
def test_a_hostile_revision_that_is_kept_undecoded_is_corrupt_for_whoever_opens_it(what: str, revision: bytes) -> None:
    peak = peak_bytes(lambda: corrupt(plain_opener(), revision, what))
    assert peak < MEMORY_BYTES


def test_hostile_content_is_corrupt_when_it_is_opened_and_takes_little_memory() -> None:
    opener: ContentOpener = plain_opener()
    contents = {
        **{f"{name} alone": tail for name, tail in TAILS.items()},
        **{f"{name} behind a value": write_bytes(b"{}") + tail for name, tail in TAILS.items()},
        "ten thousand levels": write_bytes(b"[" * 10_000 + b"]" * 10_000) + encode_rest(),
        "no JSON": write_bytes(b"{,}") + encode_rest(),
        "half a character": write_bytes(b'"\xed\xa0\x80"') + encode_rest(),
        "a blob of nobody": write_bytes(b'{"blob":{"address":"00","bytes":-1,"sha256":"00"}}') + encode_rest(),
        "a blob of a negative size": write_bytes(
            b'{"blob":{"address":"%s","bytes":-1,"sha256":"%s"}}' % (b"0" * 64, b"0" * 64)
        )
        + encode_rest(),
    }
    for what, content in contents.items():
        revision = join_sealed(encode_clear(clear()), content)
        peak = peak_bytes(lambda revision=revision, what=what: corrupt(opener, revision, what))  # type: ignore[misc]
        assert peak < MEMORY_BYTES, (what, peak)


def corrupt(opener: ContentOpener, revision: bytes, what: str) -> None:
    with pytest.raises(AtomlogError) as caught:
        asyncio.run(opener.open(revision))
    assert caught.value.code == "CORRUPT", what


def clear() -> Clear:
    return Clear(
        atom_id=b"atom of sixteen.",
        revision_id=b"its one revision",
        previous=None,
        key_id=None,
        recorded_at_us=0,
        retired=False,
        schema="source",
        policy="notes",
    )


def encode_rest() -> bytes:
    whole = encode_content(Content(value=b"", origins=(), provenance=Provenance(kind="source")))
    return whole[1:]
