"""The postings, held against a brute-force model at every position above the floor."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.ports import Kv
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.postings import ACTIVE, Has, InGroup, Postings, Refers, Selection, Term
from atomlog.projections.postings.layout import INLINE_CHANGES_MAX, PAGE, SMALL_MAX
from atomlog.projections.relations import Relations
from tests.oracle.brute_model import Model
from tests.projections.histories import GROUPS, MEMBERSHIPS, NAMES, ROLES, SPACES, histories
from tests.projections.stores import NewKv, Watched
from tests.support.batches import LogBuilder, atom_id, create, member, retire, revise, slot

WINDOW = 10_000
TARGETS = [atom_id(name) for name in NAMES]
ATOMS = [*TARGETS, *map(atom_id, MEMBERSHIPS)]
Value = str | int | bytes
few = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def applied(kv: Kv, logs: Sequence[LogBuilder], *, window: int = WINDOW, each: int = 1_000) -> tuple[Postings, Model]:
    postings, brute = Postings(kv, len(logs), window=window), Model(partitions=len(logs))
    for log in logs:
        for start in range(0, len(log.records), each):
            records = log.records[start : start + each]
            postings.apply(log.partition, records, log.checkpoints[records[-1].position + 1])
        brute.apply(log.partition, log.records)
    return postings, brute


def ids(postings: Postings, partition: int, bitmap: Bitmap) -> set[bytes]:
    found = postings.ordinals.atoms(partition, list(bitmap))
    assert None not in found
    return {atom for atom in found if atom is not None}


def facets_of(brute: Model, partition: int, at: int) -> dict[tuple[str, Value], set[bytes]]:
    """Facet → atoms, of the atoms that live in a partition."""
    facets: dict[tuple[str, Value], set[bytes]] = {}
    for head in brute.heads({partition: at}):
        values: dict[str, Value] = {
            "schema": head.schema,
            "policy": head.policy,
            "space": head.space,
            "day": head.day,
            "state": "retired" if head.retired else "active",
        }
        for kind, value in values.items():
            facets.setdefault((kind, value), set()).add(head.atom)
        for one in head.current_slots:
            facets.setdefault((one.role, one.target), set()).add(head.atom)
    return facets


def members_of(brute: Model, partition: int, at: int) -> dict[bytes, set[bytes]]:
    """Group → members, by memberships of one partition."""
    groups: dict[bytes, set[bytes]] = {}
    for head in brute.heads({partition: at}):
        for stated in head.memberships():
            groups.setdefault(stated.group, set()).add(stated.member)
    return groups


def check_position(postings: Postings, brute: Model, partition: int, at: int) -> None:
    read = partial(ids, postings, partition)
    facets, groups = facets_of(brute, partition, at), members_of(brute, partition, at)
    for kind, value in facets:
        if kind in ("schema", "policy", "space", "state", "day") and not isinstance(value, bytes):
            assert read(postings.facet(kind, value, partition, at)) == facets[kind, value]
    for role, target in product(ROLES, TARGETS):
        assert read(postings.referring(role, target, partition, at)) == facets.get((role, target), set())
    for group in map(atom_id, GROUPS):
        assert read(postings.members(group, partition, at)) == groups.get(group, set())
    for name in (*SPACES, "source", "statement", "sour", "membership"):
        for kind in ("schema", "policy", "space"):
            assert read(postings.facet(kind, name, partition, at)) == facets.get((kind, name), set())
    days = sorted({value for kind, value in facets if kind == "day" and isinstance(value, int)})
    for first, last in product((None, *days), repeat=2):
        inside = [day for day in days if (first is None or day >= first) and (last is None or day < last)]
        expected = set().union(*(facets["day", day] for day in inside))
        assert read(postings.days(first, last, partition, at)) == expected
    everybody = {head.atom for head in brute.heads({partition: at})}
    assert read(postings.all_atoms(partition, at)) == everybody


@given(logs=histories(partitions=2, records=10), each=st.integers(1, 5))
@few
def test_every_facet_is_exact_at_every_position(new_kv: NewKv, logs: Sequence[LogBuilder], each: int) -> None:
    with new_kv() as kv:
        postings, brute = applied(kv, logs, each=each)
        for log in logs:
            for at in range(-1, log.end):
                check_position(postings, brute, log.partition, at)
            assert postings.verify(log.partition) == postings.rows(log.partition)


@given(logs=histories(records=12), each=st.integers(1, 4))
@few
def test_what_is_newest_is_exact_while_records_are_applied(
    new_kv: NewKv, logs: Sequence[LogBuilder], each: int
) -> None:
    (log,) = logs
    brute = Model()
    with new_kv() as kv:
        postings = Postings(kv, 1, window=WINDOW)
        for start in range(0, len(log.records), each):
            records = log.records[start : start + each]
            brute.apply(0, records)
            postings.apply(0, records, log.checkpoints[records[-1].position + 1])
            check_position(postings, brute, 0, records[-1].position)


@given(logs=histories(records=20), each=st.integers(1, 5), window=st.integers(0, 6))
@few
def test_above_a_moving_floor_every_facet_is_exact_and_below_it_the_floor_is_named(
    new_kv: NewKv, logs: Sequence[LogBuilder], each: int, window: int
) -> None:
    with new_kv() as kv:
        postings, brute = applied(kv, logs, window=window, each=each)
        applied_at = postings.checkpoint(0).position - 1
        floor = postings.floors()[0]
        assert floor == max(applied_at - window, -1)
        for at in range(floor, applied_at + 1):
            check_position(postings, brute, 0, at)
        for at in range(-1, floor):
            with pytest.raises(
                AtomlogError, match=f"CONSISTENCY_UNAVAILABLE: .* position {floor} and later, not {at};"
            ):
                postings.members(atom_id("g0"), 0, at)
        assert postings.verify(0) == postings.rows(0)


@given(
    logs=histories(partitions=2, records=10),
    chosen=st.tuples(*(st.lists(st.sampled_from(GROUPS), max_size=2) for _ in range(3))),
)
@few
def test_and_or_not_of_groups_agree_with_relations_and_brute_force_over_partitions(
    new_kv: NewKv, logs: Sequence[LogBuilder], chosen: tuple[list[str], list[str], list[str]]
) -> None:
    with new_kv() as kv, new_kv() as other:
        postings, brute = applied(kv, logs)
        relations = Relations(other, 2)
        for log in logs:
            relations.apply(log.partition, log.records, log.checkpoint)
        all_of, any_of, none_of = (tuple(InGroup(atom_id(name)) for name in names) for names in chosen)
        for at in ({0: a, 1: b} for a, b in product(*(range(-1, log.end) for log in logs))):
            sets = {
                group: {one.member for one in relations.members(group, at, limit=1_000)[0]}
                for group in map(atom_id, GROUPS)
            }
            active = {atom for atom in ATOMS if brute.is_active(atom, at)}
            expected = {
                atom
                for atom in active
                if all(atom in sets[term.group] for term in all_of)
                and (not any_of or any(atom in sets[term.group] for term in any_of))
                and not any(atom in sets[term.group] for term in none_of)
            }
            selection = Selection(postings=postings, at=at, all_of=(*all_of, ACTIVE), any_of=any_of, none_of=none_of)
            assert selection.atoms() == sorted(expected)
            assert selection.test(ATOMS) == [atom in expected for atom in ATOMS]
            assert ids_at_home(postings, sorted(expected), at) == expected


def ids_at_home(postings: Postings, atoms: Sequence[bytes], at: Mapping[int, int]) -> set[bytes]:
    by_partition = postings.at_home(atoms, at)
    found = [atom for partition, ordinals in by_partition.items() for atom in ids(postings, partition, ordinals)]
    assert len(found) == len(set(found))
    return set(found)


@given(logs=histories(records=12))
@few
def test_in_one_partition_selections_mix_groups_references_and_facets(
    new_kv: NewKv, logs: Sequence[LogBuilder]
) -> None:
    (log,) = logs
    with new_kv() as kv:
        postings, brute = applied(kv, logs)
        at = {0: log.end - 1}
        terms: list[Term] = [InGroup(atom_id("g0")), Refers("about", atom_id("a0")), Has("schema", "source"), ACTIVE]
        facets, groups = facets_of(brute, 0, at[0]), members_of(brute, 0, at[0])
        sets = [
            groups.get(atom_id("g0"), set()),
            facets.get(("about", atom_id("a0")), set()),
            facets.get(("schema", "source"), set()),
            facets.get(("state", "active"), set()),
        ]
        for first, second, third in product(range(4), repeat=3):
            selection = Selection(
                postings=postings, at=at, all_of=(terms[first],), any_of=(terms[second],), none_of=(terms[third],)
            )
            expected = (sets[first] & sets[second]) - sets[third]
            assert selection.atoms() == sorted(expected)
            assert [atom for atom in ATOMS if selection.test([atom])[0]] == [a for a in ATOMS if a in expected]


def test_a_member_by_two_memberships_stays_until_both_are_retired(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("g"), create("b")])
    log.batch("notes", [member("m1", group="g", of="b"), member("m2", group="g", of="b"), create("c")])
    log.batch("notes", [member("m3", group="g", of="b", order_key=b"1")])
    for name in ("m2", "m1", "m3"):
        log.batch("notes", [retire(name)])
    log.batch("notes", [revise("m1"), revise("m2")])
    expected = [0, 0, 1, 1, 1, 1, 0, 1]
    with new_kv() as kv:
        postings = Postings(kv, 1, window=WINDOW)
        for record, count in zip(log.records, expected, strict=True):
            postings.apply(0, [record], log.checkpoints[record.position + 1])
            assert len(postings.members(atom_id("g"), 0, record.position)) == count
        assert [len(postings.members(atom_id("g"), 0, at)) for at in range(log.end)] == expected


def test_a_membership_that_moves_inside_one_batch_leaves_the_other_group_alone(new_kv: NewKv) -> None:
    log = LogBuilder()
    log.batch("notes", [create("g"), create("h"), create("b"), member("m1", group="g", of="b")])
    log.batch("notes", [revise("m1", slots=[slot("group", "h"), slot("member", "b")]), member("m2", group="g", of="b")])
    log.batch("notes", [retire("m2"), revise("m1", slots=[slot("group", "g"), slot("member", "b")])])
    with new_kv() as kv:
        postings, _ = applied(kv, [log])
        read = [[len(postings.members(atom_id(group), 0, at)) for at in range(4)] for group in ("g", "h")]
        assert read == [[0, 1, 1, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize("each", [1, 7, 1_000])
def test_pages_and_old_changes_are_exact_when_there_are_many(new_kv: NewKv, each: int) -> None:
    """More members than a small page holds, more changes than a page keeps, spilled several times."""
    log = LogBuilder()
    atoms = [f"a{index}" for index in range(3 * INLINE_CHANGES_MAX + SMALL_MAX)]
    log.batch("notes", [create(name) for name in atoms[:20]])
    for start in range(20, len(atoms), 4):
        log.batch("notes", [create(name) for name in atoms[start : start + 4]])
        log.batch("notes", [(revise if log.heads[atom_id(a)].retired else retire)(a) for a in atoms[start % 13 : 20]])
    with new_kv() as kv:
        postings, brute = applied(kv, [log], each=each)
        assert any(True for _ in kv.scan(b"X", b"Y"))
        for at in range(-1, log.end):
            check_position(postings, brute, 0, at)


def test_old_changes_below_the_floor_are_dropped(new_kv: NewKv) -> None:
    def kept(window: int) -> Counter[bytes]:
        with new_kv() as kv:
            applied(kv, [log], window=window, each=1)
            return Counter(key[:1] for key, _ in kv.scan(b"", b"\xff"))

    log = LogBuilder()
    log.batch("notes", [create(f"a{index}") for index in range(40)])
    for _ in range(30):
        log.batch("notes", [(revise if log.heads[atom_id(f"a{i}")].retired else retire)(f"a{i}") for i in range(40)])
    many, few_ = kept(WINDOW), kept(2)
    assert many[b"X"] == many[b"G"] > 50
    assert few_[b"X"] == few_[b"G"] < 10
    assert many[PAGE] == few_[PAGE]


def test_a_read_during_which_the_floor_passes_it_is_refused_and_not_wrong() -> None:
    """On a secondary that catches up between two looks: the old changes that the second one needs may be gone."""
    log = LogBuilder()
    log.batch("notes", [create(f"a{index}") for index in range(40)])
    log.batch("notes", [retire(f"a{index}") for index in range(40)])
    for _ in range(4):
        log.fence()
    kv = MemoryKv()
    writer = Postings(kv, 1, window=3)
    writer.apply(0, log.records[:3], log.checkpoints[3])

    class CatchingUp(Watched):
        def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
            for pair in self.kv.scan(start, stop):
                yield pair
                if writer.checkpoint(0) != log.checkpoint:
                    writer.apply(0, log.records[3:], log.checkpoint)

    reader = Postings(CatchingUp(kv), 1, window=3)
    with pytest.raises(AtomlogError, match=r"CONSISTENCY_UNAVAILABLE: .* position 3 and later, not 1;"):
        reader.facet("state", "active", 0, 1)


def test_a_floor_does_not_come_back_down_when_the_window_grows(new_kv: NewKv) -> None:
    log = LogBuilder()
    for index in range(10):
        log.batch("notes", [create(f"a{index}")])
    with new_kv() as kv:
        applied(kv, [log], window=2)
        floor = log.end - 3
        log.batch("notes", [create("b")])
        wider = Postings(kv, 1, window=6)
        assert wider.floors() == {0: floor}
        wider.apply(0, log.records[-1:], log.checkpoint)
        assert wider.floors() == {0: floor}
        for _ in range(6):
            log.fence()
        wider.apply(0, log.records[-6:], log.checkpoint)
        assert wider.floors() == {0: log.end - 1 - 6}


def test_a_facet_that_postings_do_not_have_is_refused(new_kv: NewKv) -> None:
    with new_kv() as kv:
        postings = Postings(kv, 1, window=WINDOW)
        for kind, value in (("schema", 1), ("state", "gone"), ("colour", "red"), ("day", "2026-01-01")):
            with pytest.raises(AtomlogError, match="INVALID_INPUT: postings have no facet"):
                postings.facet(kind, value, 0, -1)
        with pytest.raises(AtomlogError, match="INVALID_INPUT"):
            Selection(postings=postings, at={0: -1}, none_of=(ACTIVE,)).atoms()


def test_an_apply_that_fails_gives_no_numbers_away(new_kv: NewKv) -> None:
    good, bad = LogBuilder(), LogBuilder()
    bad.batch("notes", [create("x"), create("y")])
    good.batch("notes", [create("y"), create("x")])
    with new_kv() as kv, new_kv() as clean:
        watched = Watched(kv, fails=True)
        postings, other = Postings(watched, 1, window=WINDOW), Postings(clean, 1, window=WINDOW)
        with pytest.raises(OSError, match="disk full"):
            postings.apply(0, bad.records, bad.checkpoint)
        watched.fails = False
        for one in (postings, other):
            one.apply(0, good.records, good.checkpoint)
        assert postings.digest(0) == other.digest(0)
        assert postings.ordinals.of(0, [atom_id("y"), atom_id("x")]) == [0, 1]


@given(numbers=st.sets(st.integers(0, 2**32 - 1), max_size=200), dropped=st.sets(st.integers(0, 300)))
def test_a_bitmap_is_a_set_and_its_canonical_bytes_forget_its_history(numbers: set[int], dropped: set[int]) -> None:
    numbers |= set(range(280))
    bitmap = Bitmap(numbers | dropped)
    for number in dropped:
        bitmap.discard(number)
    left = numbers - dropped
    assert (list(bitmap), len(bitmap)) == (sorted(left), len(left))
    assert bitmap.canonical_bytes() == Bitmap(left).canonical_bytes()
    assert Bitmap.from_bytes(bitmap.to_bytes()) == bitmap


@given(first=st.sets(st.integers(0, 2**32 - 1)), second=st.sets(st.integers(0, 2**32 - 1)))
def test_the_operators_of_bitmaps_are_those_of_sets(first: set[int], second: set[int]) -> None:
    a, b = Bitmap(first), Bitmap(second)
    assert [set(one) for one in (a & b, a | b, a - b, a ^ b)] == [
        first & second,
        first | second,
        first - second,
        first ^ second,
    ]
    assert Bitmap.union([a, b]) == a | b
    assert not Bitmap.union([])


@pytest.mark.parametrize("spoil", [lambda raw: raw + b"\x00", lambda raw: raw[:-1], lambda raw: b"", lambda raw: b"no"])
def test_bytes_that_are_no_bitmap_are_corruption(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(AtomlogError, match="CORRUPT"):
        Bitmap.from_bytes(spoil(Bitmap(range(0, 100, 3)).to_bytes()))
