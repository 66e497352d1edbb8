"""Shards: sealed alike everywhere, never changed, renewed when too much is dead, verified before they are loaded."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.errors import CapabilityError, FatalError, GoneError
from atomlog.kernel.kv import MemoryKv, u32
from atomlog.kernel.rocks import open_primary, open_secondary
from atomlog.kernel.system import SystemFiles, ThreadWorkers
from atomlog.projections.vectors.layout import NEVER, VECTOR, in_space, space_tag
from atomlog.projections.vectors.manifest import MANIFESTS_KEPT, Manifest, ShardEntry
from atomlog.projections.vectors.shards import floor_of, load_shard
from tests.projections.vectors.worlds import ScriptedEncoder, World, drained, hits, space_of, supplied, vector_of
from tests.support.batches import atom_id, create, retire, revise

T = TypeVar("T")
SPACE = space_of(dim=8)
RANGE = 128
ENOUGH = 39  # dead rows of a range, more than 30 %
POINTS = np.random.default_rng(11).normal(size=(10 * RANGE, 8)).astype(np.float32)


def world_at(directory: Path, **rest: object) -> World:
    return World(**{"directory": directory, "spaces": [SPACE], "shard_rows": RANGE, **rest})  # type: ignore[arg-type]


def fill(world: World, ranges: int, start: int = 0) -> None:
    """Full ranges, a batch each."""
    for number in range(start, start + ranges):
        names = range(number * RANGE, (number + 1) * RANGE)
        made = [create(f"p{name}", value=None, vectors=supplied(SPACE, POINTS[name])) for name in names]
        world.log.batch("test", made)
    world.follow()


def retire_some(world: World, first: int, count: int) -> int:
    """Retire atoms one batch each; the position of the last."""
    for number in range(first, first + count):
        world.log.batch("test", [retire(f"p{number}")])
    world.follow()
    return world.log.end - 1


def entries(world: World) -> dict[int, ShardEntry]:
    return {entry.range: entry for entry in world.vectors._shelf.current.shards}


def contents(world: World) -> dict[int, tuple[int, int, str]]:
    """What of a shard must be the same on every node."""
    return {number: (entry.count, entry.floor, entry.content_sha256) for number, entry in entries(world).items()}


def nearest(world: World, number: int, **rest: object) -> bytes:
    return hits(world, POINTS[number], 1, **rest)[0][0]


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.unlink()  # another inode: what is mapped stays as it was
    path.write_bytes(raw)


def test_a_range_is_sealed_when_each_of_its_rows_has_found_its_end(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 2)
    assert list(entries(world)) == [0, 1]
    assert [(entry.count, entry.floor) for entry in entries(world).values()] == [(RANGE, -1)] * 2
    world.log.batch("test", [create(f"q{number}") for number in range(RANGE - 1)])
    world.follow()
    assert list(entries(world)) == [0, 1]
    world.log.batch("test", [create("last")])
    world.follow()
    empty = entries(world)[2]  # no row has a vector of this space
    assert (empty.count, empty.files) == (0, ())


def test_a_row_that_waits_for_another_try_holds_its_own_range_only(tmp_path: Path) -> None:
    encoder = ScriptedEncoder(SPACE)
    encoder.poison = {"bad": ValueError("no")}
    world = world_at(tmp_path, encoders={SPACE.id: encoder})
    world.log.batch("test", [create(text, value=text) for text in ["bad", *(f"t{n}" for n in range(2 * RANGE - 1))]])
    world.apply()
    asyncio.run(world.vectors.step())
    asyncio.run(world.vectors.step())
    assert list(entries(world)) == [1]
    for _ in range(world.settings.embed_retries + 1):
        world.work()
    assert [entry.count for entry in entries(world).values()] == [RANGE - 1, RANGE]


def test_every_build_from_the_same_log_gives_the_same_files(tmp_path: Path) -> None:
    """Whether rows came one by one with work between, or all at once: the same rows, the same bytes."""
    slow = world_at(tmp_path / "slow")
    fill(slow, 9)
    retire_some(slow, RANGE + 6, ENOUGH + 6)
    fill(slow, 1, start=9)
    quick = world_at(tmp_path / "quick", log=slow.log)
    quick.follow()
    assert len(entries(quick)) == 10
    assert contents(quick) == contents(slow)
    assert quick.vectors.digest(0) == slow.vectors.digest(0)
    sums = [
        {entry.range: [file.sha256 for file in entry.files] for entry in entries(one).values()} for one in (slow, quick)
    ]
    assert sums[0] == sums[1]


def test_a_shard_is_renewed_above_the_dead_share_and_its_floor_rises(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 3)
    sealed = contents(world)
    retire_some(world, RANGE, ENOUGH - 1)
    assert contents(world) == sealed
    assert world.vectors.floors() == {0: -1}
    position = retire_some(world, RANGE + ENOUGH - 1, 1)
    assert entries(world)[1].floor == position
    assert entries(world)[1].count == RANGE - ENOUGH
    assert {number: contents(world)[number] for number in (0, 2)} == {number: sealed[number] for number in (0, 2)}
    assert world.vectors.floors() == {0: position}
    with pytest.raises(CapabilityError, match=f"positions ≥ {position} of partition 0"):
        hits(world, POINTS[RANGE], 1, at={0: position - 1})
    assert nearest(world, 2 * RANGE - 1, at={0: position}) == atom_id(f"p{2 * RANGE - 1}")


def test_rows_below_the_floor_are_all_that_a_renewal_leaves_out(tmp_path: Path) -> None:
    """Deaths after the floor stay in: as of the floor itself they are alive."""
    world = world_at(tmp_path)
    fill(world, 1)
    retire_some(world, 0, ENOUGH + 10)  # all known at once; one of them is the one too many
    floor = world.log.end - 1 - 10
    assert contents(world)[0][:2] == (RANGE - ENOUGH, floor)
    last = ENOUGH + 9
    assert nearest(world, last, at={0: floor}) == atom_id(f"p{last}")
    assert nearest(world, last) != atom_id(f"p{last}")


def test_a_pinned_generation_stays_searchable_below_the_new_floor(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 3)
    generation, before = world.vectors.generation, world.at
    asked = [world.vectors.search(SPACE.id, query, 5, before, generation=generation) for query in POINTS[::20]]
    world.vectors.pin(generation)
    retire_some(world, RANGE, ENOUGH)
    fill(world, 3, start=3)
    retire_some(world, 2 * RANGE, ENOUGH + 5)
    assert world.vectors.floors()[0] > before[0]
    again = [world.vectors.search(SPACE.id, query, 5, before, generation=generation) for query in POINTS[::20]]
    assert again == asked
    assert any(result.approximate for result in again)
    files = {path.name for path in world.shard_files()}
    named = world.vectors._shelf.manifest(generation).file_names()
    assert named <= files
    world.vectors.unpin(generation)
    fill(world, 1, start=6)
    replaced = {name for name in named if name.split("-")[2] in ("000001", "000002")}
    assert len(replaced) == 4
    assert not replaced & {path.name for path in world.shard_files()}


def test_an_unpinned_generation_is_searched_from_its_rows_when_its_files_are_gone(tmp_path: Path) -> None:
    """As another process does that still has a continuation of it."""
    world = world_at(tmp_path)
    fill(world, 2)
    generation, before = world.vectors.generation, world.at
    retire_some(world, 0, ENOUGH)
    fill(world, 2, start=2)
    world.reopen()
    assert not [path for path in world.shard_files(".hnsw") if path.stem.endswith(f"{1:08d}")]
    result = world.vectors.search(SPACE.id, POINTS[5], 1, before, generation=generation)
    assert [hit.atom for hit in result.hits] == [atom_id("p5")]


def test_a_generation_that_is_not_kept_any_more_is_told(tmp_path: Path) -> None:
    world = world_at(tmp_path, shard_rows=2)
    world.log.batch(
        "test", [create(f"p{n}", vectors=supplied(SPACE, POINTS[n])) for n in range(2 * MANIFESTS_KEPT + 8)]
    )
    world.follow()
    assert len(world.shard_files(".json")) == MANIFESTS_KEPT
    world.vectors.pin(world.vectors.generation - MANIFESTS_KEPT + 1)
    with pytest.raises(GoneError, match="start the read again"):
        world.vectors.pin(1)
    with pytest.raises(GoneError):
        world.vectors.search(SPACE.id, POINTS[0], 1, world.at, generation=2)


def test_files_of_the_generation_before_stay_until_the_next_opening(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 2)
    names = {path.name for path in world.shard_files(".rows")}
    retire_some(world, 0, ENOUGH)
    assert names < {path.name for path in world.shard_files(".rows")}
    (world.directory / "shards" / "left-over.tmp").write_bytes(b"x")
    world.reopen()
    assert {path.name for path in world.shard_files()} & {"left-over.tmp"} == set()
    assert len(world.shard_files(".rows")) == 2


@pytest.mark.parametrize("ending", [".hnsw", ".rows"])
def test_flipped_bits_are_found_before_loading_and_the_shard_is_built_anew(tmp_path: Path, ending: str) -> None:
    world = world_at(tmp_path)
    fill(world, 2)
    sealed = contents(world)
    path = world.shard_files(ending)[0]
    size = path.stat().st_size
    for at in [*range(0, 96, 7), *range(96, size, size // 20)]:  # the header of a graph is what crashes its loader
        flip(path, at, bit=at % 8)
        world.reopen()
        entry = entries(world)[0]
        with pytest.raises(FatalError, match=path.name):
            load_shard(SystemFiles(), str(path.parent), entry, SPACE)
        assert nearest(world, 5) == atom_id("p5")
        assert not [number for number in world.vectors.faults if path.stem not in number]
        assert "is not what was written" in world.vectors.incidents[-1]
        flip(path, at, bit=at % 8)
    flip(path, size // 2)
    world.reopen()
    with pytest.raises(FatalError, match=path.name):
        world.vectors.verify(0)
    nearest(world, 5)
    assert world.work() == 1
    assert contents(world) == sealed
    assert world.vectors.faults == {}
    assert "built anew" in world.vectors.incidents[-1]
    assert world.vectors.verify(0) == 2 * RANGE
    assert nearest(world, 5) == atom_id("p5")


def test_cut_and_missing_files_are_told_and_built_anew(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 3)
    first, second, _ = world.shard_files(".hnsw")
    first.unlink()
    second.write_bytes(second.read_bytes()[:-100])
    world.reopen()
    with pytest.raises(FatalError, match=first.name):
        world.vectors.verify(0)
    asyncio.run(world.vectors.load())
    assert sorted(Path(path).name for path in world.vectors.faults) == [first.name, second.name]
    assert [nearest(world, number) for number in (5, 150, 300)] == [atom_id(f"p{number}") for number in (5, 150, 300)]
    assert world.work() == 2
    assert world.vectors.faults == {}


@pytest.mark.parametrize("damage", [lambda raw: raw[:-30], lambda raw: raw.replace(b'"floor":-1', b'"floor":-2')])
def test_a_damaged_manifest_gives_way_to_the_one_before(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    world = world_at(tmp_path)
    fill(world, 3)
    sealed = contents(world)
    newest = world.shard_files(".json")[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    world.reopen()
    assert newest.name in world.vectors.incidents[0]
    assert list(entries(world)) == [0, 1]
    assert nearest(world, 300) == atom_id("p300")
    world.work()
    assert contents(world) == sealed
    assert world.vectors.generation == 4
    newest.unlink()
    for path in world.shard_files(".json"):
        path.write_bytes(b"{}")
    world.reopen()
    assert entries(world) == {}
    world.work()
    assert contents(world) == sealed


def test_a_manifest_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 2)
    retire_some(world, 0, ENOUGH)
    raw = world.shard_files(".json")[-1].read_bytes()
    manifest = Manifest.from_bytes(raw, "m")
    assert manifest.to_bytes() == raw
    assert json.loads(raw)["shards"][0]["floor"] == world.vectors.floors()[0]


class HeldWorkers:
    """Does nothing until it is let go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def run(self, call: Callable[[], T]) -> T:
        await self.free.wait()
        return call()


async def seal_held(world: World, workers: HeldWorkers, until: Callable[[], bool]) -> "asyncio.Task[bool]":
    """A step that has begun to build a shard, whose builder waits, when `until` holds."""
    step = asyncio.create_task(world.vectors.step())
    for _ in range(1_000):
        if until():
            return step
        await asyncio.sleep(0)
    raise AssertionError("embedding waits for the shard")


def test_embedding_goes_on_while_a_shard_is_built(tmp_path: Path) -> None:
    workers = HeldWorkers()
    world = world_at(tmp_path, workers=workers)
    for number in range(2):
        names = range(number * RANGE, (number + 1) * RANGE)
        world.log.batch("test", [create(f"p{n}", value=None, vectors=supplied(SPACE, POINTS[n])) for n in names])
    world.apply()

    async def scenario() -> None:
        await world.vectors.step()  # both ranges but a few rows: the first one is full
        before = world.vectors.work(0, SPACE.id).embedded
        assert before >= RANGE
        names = [create(f"late{n}", value=None, vectors=supplied(SPACE, POINTS[n])) for n in range(RANGE)]
        world.log.batch("test", names)
        world.apply()
        step = await seal_held(world, workers, lambda: world.vectors.unembedded(SPACE.id) == 0)
        assert not step.done()
        assert entries(world) == {}
        workers.free.set()
        assert await step
        await drained(world.vectors)

    asyncio.run(scenario())
    alone = world_at(tmp_path / "alone", log=world.log)
    alone.follow()
    assert contents(world) == contents(alone)
    assert list(contents(world)) == [0, 1, 2]
    assert world.vectors.digest(0) == alone.vectors.digest(0)


class GatedReads(MemoryKv):
    """Point reads of many keys by another thread wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read, self.may_read = threading.Event(), threading.Event()
        self.main = threading.get_ident()

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        if threading.get_ident() != self.main:
            self.is_read.set()
            assert self.may_read.wait(60)
        return super().get_many(keys)


def test_a_step_that_is_cancelled_has_left_the_store_and_its_files_alone_when_it_ends(tmp_path: Path) -> None:
    workers, kv = ThreadWorkers(), GatedReads()
    world = world_at(tmp_path, workers=workers, kv=kv)
    names = range(RANGE)
    world.log.batch("test", [create(f"p{n}", value=None, vectors=supplied(SPACE, POINTS[n])) for n in names])
    world.apply()

    async def scenario() -> None:
        await world.vectors.step()
        step = asyncio.create_task(world.vectors.step())
        await asyncio.to_thread(kv.is_read.wait, 60)
        step.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not step.done()
        kv.may_read.set()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert len(asyncio.all_tasks()) == 1
        assert world.shard_files(".hnsw") == []  # given up before the graph was begun
        await drained(world.vectors)

    asyncio.run(scenario())
    workers.close()
    assert list(entries(world)) == [0]


def test_a_row_without_direction_never_reaches_an_index(tmp_path: Path) -> None:
    """Written past every check: the builder refuses it, nothing is committed."""
    world = world_at(tmp_path)
    fill(world, 1)
    world.log.batch("test", [create(f"n{n}", vectors=supplied(SPACE, POINTS[n])) for n in range(RANGE)])
    world.apply()
    asyncio.run(world.vectors.step())
    key = in_space(VECTOR, 0, space_tag(SPACE.id)) + u32(RANGE + 3)
    for bad in (np.zeros(8), np.full(8, np.nan)):
        world.kv.write([(key, bad.astype("<f4").tobytes())])
        with pytest.raises(FatalError, match="row 3 is not finite, or all zeros"):
            asyncio.run(world.vectors.step())
        assert list(entries(world)) == [0]


def test_rows_that_came_late_are_searched_beside_their_shard_until_it_is_renewed(tmp_path: Path) -> None:
    encoder = ScriptedEncoder(SPACE)
    texts = [f"t{number}" for number in range(RANGE)]
    encoder.poison = dict.fromkeys(texts[:50], ValueError("not now"))
    world = world_at(tmp_path, encoders={SPACE.id: encoder})
    world.log.batch("test", [create(text, value=text) for text in texts])
    world.apply()
    for _ in range(world.settings.embed_retries + 2):
        world.work()
    assert [entry.count for entry in entries(world).values()] == [RANGE - 50]
    encoder.poison = dict.fromkeys(texts[5:50], ValueError("not now"))
    assert world.vectors.retry_failed() == 50
    for _ in range(world.settings.embed_retries + 2):
        world.work()
    assert [entry.count for entry in entries(world).values()] == [RANGE - 50]  # five are not too many
    assert all(hits(world, vector_of(text, 8), 1)[0][0] == atom_id(text) for text in (*texts[:5], texts[60]))
    encoder.poison = {}
    world.vectors.retry_failed()
    world.work()
    assert [entry.count for entry in entries(world).values()] == [RANGE]
    assert all(hits(world, vector_of(text, 8), 1)[0][0] == atom_id(text) for text in texts)
    whole = world_at(tmp_path / "whole", encoders={SPACE.id: encoder}, log=world.log)
    whole.follow()
    assert contents(whole) == contents(world)
    assert whole.vectors.digest(0) == world.vectors.digest(0)


def test_log_and_searches_go_on_while_a_shard_is_built(tmp_path: Path) -> None:
    """Rows that die meanwhile are in the shard, and dead in the search."""
    world = world_at(tmp_path)
    world.log.batch("test", [create(f"p{n}", vectors=supplied(SPACE, POINTS[n])) for n in range(RANGE)])
    world.apply()
    asyncio.run(world.vectors.step())

    class Interrupting(ThreadWorkers):
        async def run(self, call: Callable[[], T]) -> T:
            if not entries(world):
                world.log.batch("test", [retire(f"p{world.log.end}")])
                world.apply()
                assert nearest(world, 40) == atom_id("p40")
            return await super().run(call)

    workers = Interrupting(threads=1)
    world.workers = workers
    world.reopen()
    asyncio.run(drained(world.vectors))
    workers.close()
    assert entries(world)[0].count == RANGE
    gone = [number for number in range(RANGE) if nearest(world, number) != atom_id(f"p{number}")]
    assert len(gone) == world.log.end - 2 >= 2


def test_a_reading_process_uses_the_shards_and_rows_of_the_follower(tmp_path: Path) -> None:
    primary = world_at(tmp_path, kv=open_primary(str(tmp_path / "db"), block_cache_bytes=1 << 20))
    fill(primary, 2)
    secondary = open_secondary(str(tmp_path / "db"), str(tmp_path / "scratch"), block_cache_bytes=1 << 20)
    reader = world_at(tmp_path, kv=secondary, log=primary.log)

    def same() -> None:
        for number in range(0, 10 * RANGE, 37):
            found = [one.vectors.search(SPACE.id, POINTS[number], 7, primary.at) for one in (primary, reader)]
            assert found[0] == found[1]

    same()
    retire_some(primary, RANGE, ENOUGH + 5)
    fill(primary, 2, start=2)
    primary.log.batch("test", [revise("p3", vectors=supplied(SPACE, POINTS[1_000]))])
    primary.follow()
    assert reader.vectors.generation == 2
    reader.vectors.catch_up()
    assert reader.vectors.generation == primary.vectors.generation
    assert reader.vectors.floors() == primary.vectors.floors()
    same()
    with pytest.raises(Exception, match="only reads"):
        asyncio.run(reader.vectors.step())
    for path in primary.shard_files(".hnsw"):
        path.unlink()
    fresh = world_at(tmp_path, kv=secondary, log=primary.log)
    for number in range(0, 10 * RANGE, 37):
        result = fresh.vectors.search(SPACE.id, POINTS[number], 7, primary.at)
        assert not result.approximate
        known = {hit.atom for hit in primary.vectors.search(SPACE.id, POINTS[number], 7, primary.at).hits}
        assert len(known & {hit.atom for hit in result.hits}) >= 6
    assert len(fresh.vectors.faults) == len(entries(fresh))
    primary.reopen()
    asyncio.run(primary.vectors.load())
    primary.work()
    fresh.vectors.catch_up()
    assert fresh.vectors.faults == {}
    assert fresh.vectors.search(SPACE.id, POINTS[0], 7, primary.at).approximate
    secondary.close()
    primary.vectors.close()


def test_a_manifest_that_is_ahead_of_the_rows_is_not_used(tmp_path: Path) -> None:
    """As after a power cut without the order that a build keeps, or beside a database put back from a backup."""
    world = world_at(tmp_path)
    fill(world, 2)
    other = world_at(tmp_path, kv=MemoryKv())
    other.log.batch("test", [create("only", vectors=supplied(SPACE, POINTS[0]))])
    other.follow()
    assert [atom for atom, _ in hits(other, POINTS[0])] == [atom_id("only")]


def test_what_was_sealed_survives_a_power_cut_with_its_rows(tmp_path: Path) -> None:
    kv = MemoryKv()
    world = world_at(tmp_path, kv=kv)
    fill(world, 2)
    cut = world_at(tmp_path, kv=MemoryKv(kv.durable), log=world.log)
    assert contents(cut) == contents(world)
    assert nearest(cut, 100) == atom_id("p100")
    cut.follow()
    assert cut.vectors.digest(0) == world.vectors.digest(0)


def test_damage_that_only_verify_sees_is_mended_by_the_running_follower(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    fill(world, 2)
    flip(world.shard_files(".rows")[1], 33)
    assert world.work() == 0
    with pytest.raises(FatalError, match="is not what was written"):
        world.vectors.verify(0)
    assert world.work() == 1
    assert world.vectors.verify(0) == 2 * RANGE


@pytest.mark.parametrize(("dead", "floor"), [(3, -1), (4, 7)])
def test_a_share_that_is_just_reached_is_not_exceeded(dead: int, floor: int) -> None:
    assert floor_of(np.array([7] * dead + [NEVER] * (10 - dead)), 0.3) == floor


@given(st.lists(st.one_of(st.just(NEVER), st.integers(0, 30)), max_size=40), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_the_floor_follows_from_the_deaths_not_from_when_one_looks(deaths: list[int], share: float) -> None:
    """Looking after every position, and dropping rows at once, ends where one look at the end does."""
    died = np.array(deaths, dtype=np.int64)
    rows, floor = sorted(deaths), -1
    for now in range(31):
        seen = [death if death <= now else NEVER for death in rows]
        new = floor_of(np.array(seen, dtype=np.int64), share)
        if new > floor:
            floor = new
            rows = [death for death in rows if death > floor]
    assert floor_of(died, share) == floor
    assert not rows or sum(death != NEVER for death in rows) <= share * len(rows)
