"""The id index, held against a brute-force model at every position."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kv import MemoryKv
from atomlog.projections.ids import Ids, Row
from tests.oracle.brute_model import Model, Version
from tests.projections.histories import MEMBERSHIPS, NAMES, histories
from tests.projections.stores import NewKv, Watched
from tests.support.batches import START_US, STEP_US, LogBuilder, atom_id, create, retire, revise

ATOMS = [atom_id(name) for name in (*NAMES, *MEMBERSHIPS, "never")]
Seen = tuple[int, int, str, bytes, bytes, bytes]
few = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def seen(row: Row | None) -> Seen | None:
    return None if row is None else (row.partition, row.position, row.space, row.atom, row.revision, row.data)


def expected(version: Version | None) -> Seen | None:
    if version is None:
        return None
    return (version.partition, version.position, version.space, version.atom, version.revision, version.data)


def positions(logs: Sequence[LogBuilder]) -> list[dict[int, int]]:
    """Every vector of positions, for one or two partitions."""
    return [dict(enumerate(at)) for at in product(*(range(-1, log.end) for log in logs))]


@given(logs=histories(partitions=2, records=8))
@few
def test_heads_and_histories_are_exact_at_every_position(new_kv: NewKv, logs: Sequence[LogBuilder]) -> None:
    brute = Model(partitions=2)
    with new_kv() as kv:
        ids = Ids(kv, 2)
        for log in logs:
            ids.apply(log.partition, log.records, log.checkpoint)
            brute.apply(log.partition, log.records)
        for at in positions(logs):
            assert [seen(row) for row in ids.heads(ATOMS, at)] == [expected(brute.head(atom, at)) for atom in ATOMS]
            for atom in ATOMS:
                whole = [expected(version) for version in brute.history(atom, at)]
                assert [seen(row) for row in ids.history(atom, at, limit=1_000)] == whole
                assert seen(ids.head(atom, at)) == (whole[-1] if whole else None)
        for versions in brute.versions.values():
            for version in versions:
                assert seen(ids.revision(version.revision)) == expected(version)
        assert all(ids.verify(partition) == ids.rows(partition) for partition in (0, 1))


@given(logs=histories(records=10), limit=st.integers(1, 3))
@few
def test_a_history_is_paged_without_gaps_or_repeats(new_kv: NewKv, logs: Sequence[LogBuilder], limit: int) -> None:
    (log,) = logs
    brute = Model()
    brute.apply(0, log.records)
    with new_kv() as kv:
        ids = Ids(kv, 1)
        ids.apply(0, log.records, log.checkpoint)
        at = {0: log.end - 2}
        for atom in ATOMS:
            found: list[Row] = []
            after: int | None = None
            while page := ids.history(atom, at, after=after, limit=limit):
                assert len(page) <= limit
                found += page
                after = page[-1].position
            assert [seen(row) for row in found] == [expected(version) for version in brute.history(atom, at)]


def test_a_time_is_the_last_position_recorded_at_or_before_it(new_kv: NewKv) -> None:
    log = LogBuilder()
    first = log.batch("notes", [create("a")])
    log.fence()
    second = log.batch("notes", [revise("a")])
    with new_kv() as kv:
        ids = Ids(kv, 2)
        assert ids.last_time_us(0) is None
        ids.apply(0, log.records, log.checkpoint)
        recorded = START_US + STEP_US
        asked = [recorded - 1, recorded, recorded + STEP_US - 1, recorded + STEP_US, 2**62]
        found = [ids.position_at(0, time_us) for time_us in asked]
        assert found == [-1, first.position, first.position, second.position, second.position]
        assert ids.last_time_us(0) == recorded + STEP_US
        assert (ids.position_at(1, 2**62), ids.last_time_us(1)) == (-1, None)


def test_atoms_are_scanned_in_the_order_of_ids_from_any_place(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create(f"a{index}") for index in range(9)])
    log.batch("notes", [retire("a3"), revise("a4")])
    every = sorted(atom_id(f"a{index}") for index in range(9))
    with new_kv() as kv:
        ids = Ids(kv, 1)
        ids.apply(0, log.records, log.checkpoint)
        assert list(ids.scan_atoms(0)) == every
        assert list(ids.scan_atoms(0, every[4])) == every[5:]


def test_a_revision_that_does_not_follow_its_head_stops_the_index_and_writes_nothing(new_kv: NewKv) -> None:
    log, fork = LogBuilder(), LogBuilder(seed=1)
    log.batch("notes", [create("a")])
    fork.batch("notes", [create("a")])
    fork.batch("notes", [create("b"), revise("a")])
    with new_kv() as kv:
        ids = Ids(kv, 1)
        ids.apply(0, log.records, log.checkpoint)
        digest = ids.digest(0)
        with pytest.raises(AtomlogError, match=r"CORRUPT: partition 0, position 2: revisions\[1\] .* whose head is"):
            ids.apply(0, fork.records[2:], fork.checkpoint)
        assert (ids.checkpoint(0), ids.digest(0)) == (log.checkpoint, digest)
        assert not ids.skips_poison


def test_a_second_creation_is_corruption(new_kv: NewKv) -> None:
    log, fork = LogBuilder(), LogBuilder(seed=1)
    log.batch("notes", [create("a")])
    fork.fence()
    fork.batch("notes", [create("b"), create("a")])
    with new_kv() as kv:
        ids = Ids(kv, 1)
        ids.apply(0, log.records, log.checkpoint)
        with pytest.raises(AtomlogError, match=r"CORRUPT: partition 0, position 2: revisions\[1\] .* whose head is"):
            ids.apply(0, fork.records[2:], fork.checkpoint)


def test_a_revision_of_an_absent_atom_is_corruption(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("a")])
    log.batch("notes", [revise("a")])
    with new_kv() as kv:
        ids = Ids(kv, 1)
        with pytest.raises(AtomlogError, match=r"CORRUPT: partition 0, position 2: .*, which does not exist"):
            ids.apply(0, [log.records[0], log.records[2]], log.checkpoint)


def test_two_revisions_of_one_atom_in_a_batch_are_corruption(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("a"), revise("a")])
    with new_kv() as kv, pytest.raises(AtomlogError, match="CORRUPT"):
        Ids(kv, 1).apply(0, log.records, log.checkpoint)


def test_a_reader_that_catches_up_between_two_looks_sees_each_revision_once() -> None:
    log = LogBuilder()
    log.batch("notes", [create("a")])
    log.batch("notes", [revise("a")])
    log.batch("notes", [revise("a")])
    before, after = MemoryKv(), MemoryKv()
    Ids(before, 1).apply(0, log.records[:3], log.checkpoints[3])
    Ids(after, 1).apply(0, log.records, log.checkpoint)

    class CaughtUpMeanwhile(Watched):
        def get(self, key: bytes) -> bytes | None:
            return before.get(key)  # the head, which is looked at first

    ids = Ids(CaughtUpMeanwhile(after), 1)
    found = ids.history(atom_id("a"), {0: 2}, limit=9)
    assert [row.position for row in found] == [1, 2]
