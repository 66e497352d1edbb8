"""What the log alone decides: content ordinals, who is alive when, and what waits to be embedded."""

from pathlib import Path

import pytest

from atomlog.kernel.errors import CapabilityError, FatalError
from atomlog.kernel.kv import MemoryKv, u16
from atomlog.projections.vectors.blocks import Blocks
from atomlog.projections.vectors.layout import QUEUE, Row, row_key
from tests.projections.vectors.worlds import ScriptedEncoder, World, hits, space_of, supplied
from tests.support.batches import atom_id, create, member, retire, revise


def rows(world: World) -> list[tuple[bytes, int, int]]:
    found = [Row.from_bytes(world.kv.get(row_key(0, ordinal))) for ordinal in range(world.vectors.rows(0))]
    return [(row.atom, row.born, min(row.died, 999)) for row in found]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(directory=tmp_path, spaces=[space_of()])


def test_every_revision_that_is_not_retired_gets_the_next_ordinal(world: World) -> None:
    world.log.batch("test", [create("a"), create("b"), member("m", group="a", of="b")])
    world.log.fence()
    world.log.batch("test", [revise("a")])
    world.log.batch("test", [retire("b")])
    world.log.batch("test", [revise("b")])
    world.apply()
    assert rows(world) == [
        (atom_id("a"), 1, 3),
        (atom_id("b"), 1, 4),
        (atom_id("m"), 1, 999),
        (atom_id("a"), 3, 999),
        (atom_id("b"), 5, 999),
    ]


def test_ordinals_do_not_depend_on_how_records_are_grouped(world: World, tmp_path: Path) -> None:
    for number in range(6):
        world.log.batch("test", [create(f"x{number}"), create(f"y{number}")])
        world.log.batch("test", [revise(f"x{number}"), retire(f"y{number}")])
    world.apply()
    one = World(directory=tmp_path / "one", spaces=world.spaces, log=world.log)
    for record in one.log.records:
        one.vectors.apply(0, [record], one.log.checkpoints[record.position + 1])
    assert rows(one) == rows(world)
    assert one.vectors.digest(0) == world.vectors.digest(0)


def test_atoms_are_numbered_as_in_every_other_projection(world: World) -> None:
    """The atom ordinals count mentions, so that an allowed set of the postings means the same atoms here."""
    world.log.batch("test", [create("a")])
    world.log.batch("test", [member("m", group="p", of="q"), create("b")])
    world.apply()
    stored = [Row.from_bytes(world.kv.get(row_key(0, ordinal))) for ordinal in range(3)]
    assert {row.atom: row.atom_ordinal for row in stored} == {atom_id("a"): 0, atom_id("m"): 1, atom_id("b"): 4}


def test_a_waiting_revision_leaves_the_queue_when_every_space_is_done(tmp_path: Path) -> None:
    text, other = space_of(name="text"), space_of(name="supplied.other")
    encoder = ScriptedEncoder(text)
    encoder.error = ConnectionError("down")
    world = World(directory=tmp_path, spaces=[text, other], encoders={text.id: encoder})
    world.log.batch("test", [create("a", vectors=supplied(other, [1, 0, 0, 0]))])
    world.follow()
    assert world.vectors.work(0, other.id).embedded == 1
    assert len(list(world.kv.scan(QUEUE, QUEUE + u16(1)))) == 1
    encoder.error = None
    world.work()
    assert world.vectors.work(0, text.id).embedded == 1
    assert not list(world.kv.scan(QUEUE, QUEUE + u16(1)))


def test_a_deleted_atom_that_comes_back_is_found_by_its_new_vector_only(world: World) -> None:
    space = world.space
    world.log.batch("test", [create("a", vectors=supplied(space, [1, 0, 0, 0]))])
    world.log.batch("test", [retire("a")])
    world.log.batch("test", [revise("a", vectors=supplied(space, [0, 1, 0, 0]))])
    world.follow()
    assert hits(world, [1, 0, 0, 0]) == [(atom_id("a"), 0.0)]
    assert hits(world, [1, 0, 0, 0], at={0: 2}) == []
    assert hits(world, [1, 0, 0, 0], at={0: 1}) == [(atom_id("a"), 1.0)]


def test_a_position_that_is_not_applied_yet_sees_what_there_is(world: World) -> None:
    world.log.batch("test", [create("a", vectors=supplied(world.space, [1, 0, 0, 0]))])
    world.follow()
    assert hits(world, [1, 0, 0, 0], at={0: 50}) == [(atom_id("a"), 1.0)]
    assert hits(world, [1, 0, 0, 0], at={0: 0}) == []
    assert hits(world, [1, 0, 0, 0], at={0: -1}) == []


def test_a_space_or_a_shard_size_it_was_not_built_for_asks_for_a_rebuild(tmp_path: Path) -> None:
    world = World(directory=tmp_path, spaces=[space_of()])
    world.log.batch("test", [create("a")])
    world.apply()
    for changed in ({"spaces": [*world.spaces, space_of("l2")]}, {"spaces": world.spaces, "shard_rows": 7}):
        with pytest.raises(FatalError, match=r"put the right store\.json back, or rebuild vectors"):
            World(directory=tmp_path, kv=world.kv, **changed)
    assert World(directory=tmp_path, kv=world.kv, spaces=[]).vectors.rows(0) == 1


def test_a_space_that_is_not_declared_is_refused_by_name(world: World) -> None:
    with pytest.raises(Exception, match=r"hashing/1/512/cosine.*supplied\.test/1/4/cosine") as caught:
        world.vectors.search("hashing/1/512/cosine", [0.0] * 512, 1, world.at)
    assert not isinstance(caught.value, CapabilityError)


def test_a_store_without_spaces_keeps_rows_and_no_queue(tmp_path: Path) -> None:
    world = World(directory=tmp_path, spaces=[], kv=MemoryKv())
    world.log.batch("test", [create("a")])
    world.follow()
    assert world.vectors.rows(0) == 1
    assert not list(world.kv.scan(QUEUE, QUEUE + u16(1)))


def test_rows_in_memory_are_bounded_and_come_back_from_the_store(world: World) -> None:
    space = world.space
    world.log.batch("test", [create(f"a{n}", vectors=supplied(space, [n, 1, 0, 0])) for n in range(2_000)])
    world.follow()
    blocks = Blocks(world.kv, 100, bytes_max=5_000)  # a block of 100 rows takes 2,000
    work = world.vectors.work(0, space.id)
    found = [blocks.get(0, space, number, work).ordinals.tolist() for number in (*range(20), 0)]
    assert found[:20] == [list(range(number * 100, (number + 1) * 100)) for number in range(20)]
    assert found[20] == found[0]
    assert len(blocks._blocks) <= 3


def test_a_count_that_does_not_agree_is_found_by_verify(world: World) -> None:
    world.log.batch("test", [create("a", vectors=supplied(world.space, [1, 0, 0, 0]))])
    world.follow()
    assert world.vectors.verify(0) == 1
    vector = next(key for key, _ in world.kv.scan(b"V", b"W"))
    world.kv.write([], [vector])
    with pytest.raises(FatalError, match="0 vectors"):
        world.vectors.verify(0)
