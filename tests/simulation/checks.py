"""What must hold when everything has come to rest: the log says what happened, the commit-rule model what counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atomlog.kernel.content import Opened
from atomlog.kernel.ids import HASH_VERSION, parse_id
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.ports import Log, LogRecord
from atomlog.kernel.tail import EffectiveRecord, Tail
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.relations import Relations
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch
from atomlog.schemas.record import Record, headers
from atomlog.schemas.revision import decode_clear
from tests.oracle import commit_model
from tests.simulation.clients import Told, Written
from tests.simulation.node import SETTINGS, Node
from tests.simulation.worlds import CONFIG
from tests.support.kernel_world import LOG_ID

WORLD: Mapping[str, Any] = {
    "genesis": {"log_id": LOG_ID, "partition": 0, "partitions": 1, "hash_version": HASH_VERSION},
    "schemas": {kind: [codec.load(name).fingerprint for name in names] for kind, names in codec.KIND_SCHEMAS.items()},
    "level": 1,
}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A batch that counts. `texts` are what its revisions say."""

    position: int
    batch: Batch
    revisions: tuple[bytes, ...]
    texts: tuple[Any, ...]


async def whole_log(log: Log) -> list[LogRecord]:
    """Every record; positions tile the log from 0 to its end."""
    found: list[LogRecord] = []
    end = await log.end(0)
    while len(found) < end:
        some = await log.read(0, len(found), bytes_max=4_000)
        assert some, f"nothing at {len(found)} of {end}"
        found += some
    assert [one.position for one in found] == list(range(end))
    return found


async def check(node: Node, told: Told) -> list[Counted]:
    """Everything that can be said of the log and of what anybody was told. The batches that count."""
    records = await whole_log(node.log)
    positions = _effective(records)
    effective = [one for one in await _followed(node.log) if one.kind == "Batch"]
    assert [one.position for one in effective] == positions, "the program counts other records than the model"
    batches = [await _opened(node, one) for one in effective]
    _check_chains(batches)
    _check_told(batches, told)
    return batches


def _effective(records: Sequence[LogRecord]) -> list[int]:
    """The positions of the batches that count, by the model alone."""
    state, counted = commit_model.START, []
    for one in records:
        assert isinstance(one.record, Record)
        kind, found = commit_model.verdict(state, headers(one.record), one.record.value, dict(WORLD))
        assert kind != "stop", f"position {one.position} stops every reader: {found}"
        if kind == "effective":
            state = found
            if one.record.kind == "Batch":
                counted.append(one.position)
    return counted


async def _followed(log: Log) -> list[EffectiveRecord]:
    tail, found, end = Tail(log, CONFIG.genesis(0)), list[EffectiveRecord](), await log.end(0)
    while tail.checkpoint.position < end:
        found += await tail.poll(bytes_max=4_000)
    return found


async def _opened(node: Node, one: EffectiveRecord) -> Counted:
    """Every revision that counts can be read: its key is there and not destroyed, its blob too."""
    batch, texts = one.batch(), []
    for data in batch.revisions:
        opened = await node.content.open(data)
        assert isinstance(opened, Opened)
        texts.append(opened.value)
    revisions = tuple(data[16:32] for data in batch.revisions)
    return Counted(position=one.position, batch=batch, revisions=revisions, texts=tuple(texts))


def _check_chains(batches: Sequence[Counted]) -> None:
    """A single chain an atom, so one winner a head; times rise; a request and a revision once."""
    heads: dict[bytes, bytes] = {}
    seen: set[bytes] = set()
    times = [one.batch.recorded_at_us for one in batches]
    assert times == sorted(set(times))
    requests = Counter(one.batch.request_key for one in batches)
    assert not [key.hex() for key, count in requests.items() if count > 1], "a request counts twice"
    assert len({(one.batch.space, one.batch.digest_key_id) for one in batches}) == len(
        {one.batch.space for one in batches}
    )
    for one in batches:
        for data in one.batch.revisions:
            clear, _ = decode_clear(data)
            assert clear.previous == heads.get(clear.atom_id), f"position {one.position}: two follow one head"
            assert clear.revision_id not in seen
            heads[clear.atom_id] = clear.revision_id
            seen.add(clear.revision_id)


def _check_told(batches: Sequence[Counted], told: Told) -> None:
    by_position = {one.position: one for one in batches}
    left = dict(by_position)
    for written in told.writes.values():
        if written.accepted is None:
            continue
        revisions, position = written.accepted
        found = by_position.get(position)
        assert found is not None, f"{written.key} was accepted at {position}, where nothing counts"
        assert found.revisions == revisions, f"{written.key} was accepted as other revisions"
        assert position > written.begun_after, f"{written.key} stands before what its client had heard of"
        _check_whole(found, written)
        del left[position]
    # What is there and nobody was told of does not exist: every client insists until it knows.
    assert not left, f"nobody was told of {sorted(left)}"
    order = [revision for one in batches for revision in one.revisions]
    for written in told.writes.values():
        if written.refused_head is not None:
            won, expected = (order.index(parse_id(one, "head")) for one in (written.refused_head, _expected(written)))
            assert won > expected, f"{written.key} lost to what was there before that which it followed"
    for position, atom, revision in told.heads_seen:
        assert _head_as_of(batches, position, atom) == revision, f"a reader saw another head at {position}"


def _expected(written: Written) -> str:
    return str(written.changes[0]["expected"])


def _check_whole(found: Counted, written: Written) -> None:
    """All of it, and what was asked for."""
    assert len(found.revisions) == len(written.changes), f"half of {written.key} is there"
    assert found.batch.space == written.space
    assert [change["value"] for change in written.changes] == list(found.texts), f"{written.key} says something else"


def _head_as_of(batches: Sequence[Counted], position: int, atom: bytes) -> bytes | None:
    head = None
    for one in batches:
        if one.position <= position:
            for data in one.batch.revisions:
                if data[:16] == atom:
                    head = data[16:32]
    return head


async def check_outcomes(node: Node, told: Told) -> bool:
    """What an owner says of each key afterwards agrees with what was said before; False when it does not know."""
    for written in told.writes.values():
        found = await node.outcome(written.space, written.key)
        if found.state == "unknown":
            return False
        if written.accepted is None:
            assert found.state == "never", f"{written.key}: {found}"
        else:
            assert found.result is not None, f"{written.key}: {found}"
            told.accept(written, found.result)
    return True


async def check_projections(node: Node, names: Sequence[str]) -> None:
    """Each is as one that is built from the log at once."""
    records: list[EffectiveRecord] = []
    tail = Tail(node.log, CONFIG.genesis(0))
    end = await node.log.end(0)
    while tail.checkpoint.position < end:
        records += await tail.poll(bytes_max=4_000)
    window = SETTINGS.postings_window
    built = {
        "ids": Ids(MemoryKv(), 1),
        "relations": Relations(MemoryKv(), 1),
        "postings": Postings(MemoryKv(), 1, window=window),
    }
    for name in names:
        async with node.attachments[name].pinned() as projection:
            assert projection.checkpoint(0) == tail.checkpoint, f"{name} stands elsewhere"
            assert not projection.quarantined(), f"{name} skipped {projection.quarantined()}"
            if name in built:
                built[name].apply(0, records, tail.checkpoint)
                assert projection.rows(0) == built[name].rows(0), name
                assert projection.digest(0) == built[name].digest(0), f"{name} differs from one built anew"
