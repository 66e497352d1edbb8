"""What holds for every projection over a key-value store."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kv import MemoryKv, u16, u64
from atomlog.kernel.ports import Kv
from atomlog.kernel.rocks import open_primary, open_secondary
from atomlog.kernel.tail import START, Checkpoint
from atomlog.projections.base import QUARANTINE, STANDING, KvProjection
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.relations import Relations
from tests.projections.histories import GROUPS, NAMES, histories
from tests.projections.stores import CACHE_BYTES, NewKv, Watched, new_directory
from tests.support.batches import LogBuilder, atom_id, create, member, retire, revise, slot

few = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def make(name: str, kv: Kv, partitions: int = 1) -> KvProjection:
    match name:
        case "ids":
            return Ids(kv, partitions)
        case "relations":
            return Relations(kv, partitions)
        case _:
            return Postings(kv, partitions, window=5)


every = pytest.mark.parametrize("name", ["ids", "relations", "postings"])


@pytest.fixture
def directory() -> Iterator[str]:
    with new_directory() as path:
        yield path


def some_log() -> LogBuilder:
    log = LogBuilder()
    log.batch("notes", [create("g"), create("b"), create("c", slots=[slot("about", "b")])])
    log.batch("notes", [member(f"m{index}", group="g", of="b", order_key=bytes([index])) for index in range(3)])
    log.fence()
    log.batch("tasks", [create("d", slots=[slot("about", "b"), slot("about", "c")])])
    log.void()
    log.batch("notes", [revise("c", slots=[slot("about", "g")]), retire("m1")])
    log.claim()
    log.batch("notes", [revise("m1"), retire("b")])
    return log


def apply_all(projection: KvProjection, log: LogBuilder, each: int = 1_000) -> KvProjection:
    """Apply what is left of a log, `each` records at a time."""
    position = projection.checkpoint(log.partition).position
    records = [record for record in log.records if record.position >= position]
    for start in range(0, len(records), each):
        some = records[start : start + each]
        last = start + each >= len(records)
        after = log.checkpoint if last else log.checkpoints[some[-1].position + 1]
        projection.apply(log.partition, some, after)
    return projection


def standing(projection: KvProjection, partition: int = 0) -> tuple[Checkpoint, int, bytes, dict[int, int]]:
    """All that must not depend on how it came about."""
    return (
        projection.checkpoint(partition),
        projection.rows(partition),
        projection.digest(partition),
        dict(projection.floors()),
    )


@every
@given(logs=histories(partitions=2, records=14), sizes=st.lists(st.integers(1, 6), min_size=1))
@few
def test_however_records_are_grouped_the_digest_is_the_same(
    new_kv: NewKv, name: str, logs: Sequence[LogBuilder], sizes: list[int]
) -> None:
    with new_kv() as kv, new_kv() as other:
        whole, parts = make(name, kv, 2), make(name, other, 2)
        for log in logs:
            apply_all(whole, log)
            left, turn = list(log.records), 0
            while left:
                some, left = left[: sizes[turn % len(sizes)]], left[sizes[turn % len(sizes)] :]
                parts.apply(log.partition, some, log.checkpoints[some[-1].position + 1] if left else log.checkpoint)
                turn += 1
        for partition in (0, 1):
            assert standing(whole, partition) == standing(parts, partition)
            assert whole.verify(partition) == parts.verify(partition) == whole.rows(partition)


@every
@pytest.mark.parametrize("each", [1, 3])
def test_a_store_that_is_closed_anywhere_goes_on_where_it_stood(directory: str, name: str, each: int) -> None:
    log = some_log()
    expected = standing(apply_all(make(name, MemoryKv()), log))
    for start in range(0, len(log.records), each):
        kv = open_primary(directory, block_cache_bytes=CACHE_BYTES)
        projection = make(name, kv)
        assert projection.checkpoint(0) == log.checkpoints[log.records[start].position if start else 0]
        some = log.records[start : start + each]
        following = log.records[start + each].position if start + each < len(log.records) else log.end
        projection.apply(0, some, log.checkpoints[following])
        projection.close()
    kv = open_primary(directory, block_cache_bytes=CACHE_BYTES)
    assert standing(make(name, kv)) == expected
    kv.close()


@every
def test_after_a_power_cut_a_projection_is_earlier_and_replays_to_the_same(name: str) -> None:
    log = some_log()
    kv = MemoryKv()
    projection = make(name, kv)
    projection.apply(0, log.records[:3], log.checkpoints[3])
    projection.sync()
    apply_all(projection, log)
    expected = standing(projection)
    survivor = make(name, MemoryKv(kv.durable))
    assert survivor.checkpoint(0) == log.checkpoints[3]
    assert standing(apply_all(survivor, log)) == expected


@every
def test_records_without_effects_still_move_the_position_with_its_chain(new_kv: NewKv, name: str) -> None:
    log = LogBuilder()
    log.fence()
    log.void()
    with new_kv() as kv:
        projection = make(name, kv)
        assert projection.checkpoint(0) == START
        empty = projection.digest(0)
        apply_all(projection, log)
        assert projection.checkpoint(0) == log.checkpoint
        assert (projection.rows(0), projection.digest(0)) == (0, empty)


@every
def test_partitions_stand_and_count_apart(new_kv: NewKv, name: str) -> None:
    first, second = LogBuilder(partition=0, partitions=2), LogBuilder(partition=1, partitions=2)
    first.batch("notes", [create("a"), create("b")])
    second.batch("tasks", [create("c")])
    with new_kv() as kv:
        projection = make(name, kv, 2)
        apply_all(projection, first)
        before = standing(projection, 0)
        assert projection.checkpoint(1) == START
        apply_all(projection, second)
        assert standing(projection, 0)[:3] == before[:3]
        assert projection.digest(0) != projection.digest(1)
        assert projection.rows(0) > projection.rows(1) > 0


@every
def test_a_record_twice_a_gap_backwards_or_a_position_too_far_is_refused(name: str) -> None:
    log = some_log()
    projection = make(name, MemoryKv())
    projection.apply(0, log.records[:3], log.checkpoints[3])
    before = standing(projection)
    for records, after in (
        (log.records[2:4], log.checkpoints[5]),  # 2 was applied
        ([log.records[4], log.records[3]], log.checkpoints[5]),
        ([log.records[3], log.records[3]], log.checkpoints[5]),
        (log.records[3:5], log.checkpoints[4]),  # the last one lies at the next position
        ([], log.checkpoints[2]),
    ):
        with pytest.raises(AtomlogError, match=r"CORRUPT: .* partition 0 stands at 3"):
            projection.apply(0, records, after)
        assert standing(projection) == before


@every
def test_a_record_in_quarantine_is_named_and_the_rest_goes_on(new_kv: NewKv, name: str) -> None:
    log = some_log()
    with new_kv() as kv:
        projection = make(name, kv, 2)
        projection.apply(0, log.records[:3], log.checkpoints[3])
        projection.quarantine(0, 3, "cannot: " + "x" * 5_000, log.checkpoints[4])
        assert projection.checkpoint(0) == log.checkpoints[4]
        apply_all(projection, log)
        (one,) = projection.quarantined()
        assert (one.partition, one.position, one.error[:12], len(one.error)) == (0, 3, "cannot: xxxx", 1_000)
        assert projection.verify(0) == projection.rows(0)
        with pytest.raises(AtomlogError, match="CORRUPT"):
            projection.quarantine(0, 2, "again", log.checkpoint)


def test_relations_and_postings_go_on_after_a_creation_they_skipped() -> None:
    log = some_log()
    for name in ("relations", "postings"):
        projection = make(name, MemoryKv())
        projection.apply(0, log.records[:1], log.checkpoints[1])
        projection.quarantine(0, 1, "poison", log.checkpoints[2])
        apply_all(projection, log)
        assert projection.verify(0) == projection.rows(0)


@every
def test_a_batch_that_cannot_be_read_is_corruption_and_changes_nothing(name: str) -> None:
    log = some_log()
    projection = make(name, MemoryKv())
    projection.apply(0, log.records[:2], log.checkpoints[2])
    before = standing(projection)
    record = log.records[2]
    broken = replace(record, record=replace(record.record, value=record.record.value[:-3]))
    with pytest.raises(AtomlogError, match="CORRUPT"):
        projection.apply(0, [broken], log.checkpoints[3])
    assert standing(projection) == before


@every
def test_revisions_in_an_unknown_schema_need_a_newer_program(name: str) -> None:
    log = some_log()
    record = log.records[1]
    value = record.record.value.replace(record.batch().revision_schema, b"unknown!")
    newer = replace(record, record=replace(record.record, value=value))
    with pytest.raises(AtomlogError, match="UPGRADE_REQUIRED: position 1: revisions in schema"):
        make(name, MemoryKv()).apply(0, [log.records[0], newer], log.checkpoints[2])


@pytest.mark.parametrize("name", ["relations", "postings"])
def test_a_revision_that_is_cut_off_is_corruption_naming_the_positions(name: str) -> None:
    log = LogBuilder()
    record = log.batch("notes", [create("a", slots=[slot("about", "b")])])
    role = b"\x0aabout"
    value = record.record.value.replace(role, b"\x0aab\x00ut")
    poison = replace(record, record=replace(record.record, value=value))
    with pytest.raises(AtomlogError, match=rf"CORRUPT: {name}: partition 0, positions 1–1: slots: .*role b'ab"):
        make(name, MemoryKv()).apply(0, [poison], log.checkpoint)


@every
def test_a_write_that_fails_leaves_position_and_content_as_they_were(name: str) -> None:
    log = some_log()
    kv = Watched(MemoryKv())
    projection = make(name, kv)
    projection.apply(0, log.records[:3], log.checkpoints[3])
    before = standing(projection)
    kv.fails = True
    with pytest.raises(OSError, match="disk full"):
        apply_all(projection, log)
    kv.fails = False
    assert standing(projection) == before
    assert standing(apply_all(projection, log)) == standing(apply_all(make(name, MemoryKv()), log))


@every
def test_a_store_of_a_newer_program_is_not_opened(name: str) -> None:
    kv = MemoryKv()
    apply_all(make(name, kv), some_log())
    key = STANDING + u16(0)
    stored = kv.get(key)
    assert stored is not None
    for newer in (b"\xff\xff" + stored[2:], stored[:2] + b"\xff\xff" + stored[4:]):
        kv.write([(key, newer)])
        with pytest.raises(AtomlogError, match="STORE_TOO_NEW"):
            make(name, kv)
    kv.write([(key, b"\x00\x00" + stored[2:])])
    with pytest.raises(AtomlogError, match=r"CORRUPT: .* rebuild it"):
        make(name, kv)


@every
def test_a_row_that_is_lost_is_found_and_changes_the_digest(name: str) -> None:
    kv = MemoryKv()
    projection = apply_all(make(name, kv), some_log())
    assert projection.verify(0) == projection.rows(0) > 0
    digest = projection.digest(0)
    for tag in projection.content:
        for key, value in list(kv.scan(tag, tag + b"\xff")):
            kv.write([], [key])
            with pytest.raises(AtomlogError, match=r"CORRUPT: .* rebuild it"):
                projection.verify(0)
            assert projection.digest(0) != digest
            kv.write([(key, value)])
    assert projection.digest(0) == digest


@every
def test_damage_in_what_no_read_needs_is_found_by_reading_all(name: str, directory: str) -> None:
    kv = open_primary(directory, block_cache_bytes=CACHE_BYTES)
    apply_all(make(name, kv), some_log())
    notes = [(QUARANTINE + u16(0) + u64(number), random.Random(number).randbytes(1_000)) for number in range(40)]
    kv.write(notes)  # fills blocks of its own between the standing and the content
    kv._database.flush()
    kv.close()
    (table,) = Path(directory).glob("*.sst")
    raw = bytearray(table.read_bytes())
    raw[20_000] ^= 1
    table.write_bytes(raw)
    kv = open_primary(directory, block_cache_bytes=CACHE_BYTES)
    projection = make(name, kv)
    projection.verify(0)
    projection.digest(0)
    with pytest.raises(AtomlogError, match=f"checksum mismatch.*{table.name}") as caught:
        projection.read_all()
    assert caught.value.code == "CORRUPT"
    projection.close()


@every
def test_a_digest_hangs_on_content_alone(name: str) -> None:
    """A position without effects, a quarantine note and old changes are no content."""
    log = some_log()
    kv = MemoryKv()
    projection = apply_all(make(name, kv), log)
    digest = projection.digest(0)
    log.fence()
    apply_all(projection, log)
    projection.quarantine(0, log.end, "poison", replace(log.checkpoint, position=log.end + 1))
    assert projection.digest(0) == digest


def queries(projection: KvProjection, at: Mapping[int, int]) -> list[object]:
    """Answers of a projection as of a position, without anything that may differ later."""
    atoms = [atom_id(name_) for name_ in NAMES]
    groups = [atom_id(name_) for name_ in GROUPS]
    match projection:
        case Ids():
            return [projection.heads(atoms, at), [projection.history(atom, at, limit=99) for atom in atoms]]
        case Relations():
            return [
                [projection.referring(atom, None, at, limit=99) for atom in atoms],
                [projection.slots_of(atom, at) for atom in atoms],
                [projection.members(group, at, limit=99) for group in groups],
                [projection.groups(atom, at, limit=99) for atom in atoms],
                [projection.last_change("about", atom, 0, at[0]) for atom in atoms],
            ]
        case Postings():
            return [
                [list(projection.members(group, 0, at[0])) for group in groups],
                [list(projection.referring("about", atom, 0, at[0])) for atom in atoms],
                list(projection.all_atoms(0, at[0])),
            ]
    raise AssertionError(projection)


@every
@given(logs=histories(records=16))
@settings(few, max_examples=10)
def test_a_secondary_answers_as_of_its_own_position_while_the_primary_goes_on(
    name: str, logs: Sequence[LogBuilder]
) -> None:
    (log,) = logs
    with new_directory() as path:
        primary = make(name, open_primary(f"{path}/db", block_cache_bytes=CACHE_BYTES))
        primary.apply(0, log.records[:1], log.checkpoints[1])
        secondary = make(name, open_secondary(f"{path}/db", f"{path}/scratch", block_cache_bytes=CACHE_BYTES))
        answers = {0: queries(primary, {0: 0})}
        for record in log.records[1:]:
            primary.apply(0, [record], log.checkpoints[record.position + 1])
            answers[record.position] = queries(primary, {0: record.position})
            behind = secondary.checkpoint(0).position - 1
            assert queries(secondary, {0: behind}) == answers[behind]
            secondary.catch_up()
            assert standing(secondary) == standing(primary)
            for at in range(max(secondary.floors()[0], 0), record.position + 1):
                if at in answers:
                    assert queries(secondary, {0: at}) == answers[at]
        with pytest.raises(AtomlogError, match="STORE_READ_ONLY"):
            secondary.apply(0, [], log.checkpoint)
        secondary.close()
        primary.close()
