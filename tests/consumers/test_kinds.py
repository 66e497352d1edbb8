"""How vectors are opened: the embedding cache is shared by generations, and written by one process."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.vectors_kind import VectorsKind
from atomlog.kernel.system import SystemFiles, ThreadWorkers
from atomlog.kernel.vector_spaces import VectorSpace, parse_vector_space
from atomlog.projections.base import Projection
from atomlog.projections.encoders import HashingEncoder
from atomlog.projections.vectors import Vectors
from tests.consumers.test_content_digest import opener
from tests.consumers.worlds import QUICK, World, run
from tests.support.batches import create

SPACE = parse_vector_space("hashing/1/64/cosine", "space")


class CountingEncoder(HashingEncoder):
    """Counts the texts that it was really asked to encode."""

    def __init__(self, space: VectorSpace) -> None:
        super().__init__(space, ThreadWorkers())
        self.texts = 0

    async def encode_passages(self, texts: Sequence[str]) -> Any:
        self.texts += len(texts)
        return await super().encode_passages(texts)


def kind(world: World, encoder: CountingEncoder) -> VectorsKind:
    return VectorsKind(
        partitions=1,
        shard_rows=512,
        spaces=[SPACE],
        encoders={SPACE.id: encoder},
        content=opener(),
        directory=world.directory("vectors"),
        files=SystemFiles(),
        workers=ThreadWorkers(),
        settings=QUICK,
    )


async def built(world: World, vectors: VectorsKind, generation: str) -> Projection:
    """A generation with everything applied and embedded."""
    Path(world.root, "projections/vectors").mkdir(parents=True, exist_ok=True)
    projection = vectors.open_primary(f"{world.root}/projections/vectors/{generation}")
    builder = world.builders[0]
    if projection.checkpoint(0).position == 0:
        projection.apply(0, builder.records, builder.checkpoint)
    while await vectors.step(projection):
        pass
    assert vectors.unfinished(projection) == 0
    projection.sync()
    return projection


def store(tmp_path: Path) -> World:
    world = World.make(tmp_path)
    for number in range(30):
        world.builders[0].batch("notes", [create(f"a{number}", value={"text": f"text {number}"})])
    return world


def test_two_generations_open_at_once_share_the_cache_and_embed_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = store(tmp_path)
        encoder = CountingEncoder(SPACE)
        vectors = kind(world, encoder)
        first = await built(world, vectors, "g000001")
        second = await built(world, vectors, "g000002")
        assert encoder.texts == 30
        assert first.digest(0) == second.digest(0)
        first.close()
        third = await built(world, vectors, "g000003")
        assert encoder.texts == 30, "the cache must stay open while a generation uses it"
        second.close()
        third.close()
        reopened = await built(world, vectors, "g000004")
        assert encoder.texts == 30
        reopened.close()

    run(scenario())


HOLD = """
import sys
from atomlog.kernel.rocks import open_primary
kv = open_primary(sys.argv[1], block_cache_bytes=1 << 20)
print("held", flush=True)
sys.stdin.read()
"""


def test_beside_a_process_that_has_the_cache_it_is_read_and_nothing_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = store(tmp_path)
        encoder = CountingEncoder(SPACE)
        (await built(world, kind(world, encoder), "g000001")).close()
        world.builders[0].batch("notes", [create("more", value={"text": "a text that the cache does not hold"})])
        command = [sys.executable, "-c", HOLD, f"{world.root}/projections/vectors/cache"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            beside = await built(world, kind(world, encoder), "g000002")
            assert encoder.texts == 31
            assert len(list(Path(world.root, "projections/vectors").glob("secondary-*"))) == 1
            beside.close()
            assert list(Path(world.root, "projections/vectors").glob("secondary-*")) == []
            holder.kill()

    run(scenario())


def test_a_generation_that_cannot_be_opened_leaves_the_cache_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = store(tmp_path)
        encoder = CountingEncoder(SPACE)
        vectors = kind(world, encoder)
        (await built(world, vectors, "g000001")).close()
        other = kind(world, encoder)
        other._shard_rows = 64
        with pytest.raises(Exception, match="rebuil"):
            other.open_primary(f"{world.root}/projections/vectors/g000001")
        (await built(world, vectors, "g000001")).close()
        assert encoder.texts == 30

    run(scenario())


class RefusingEncoder(CountingEncoder):
    async def encode_passages(self, texts: Sequence[str]) -> Any:
        raise ValueError("a fault of this process")


def test_what_failed_in_one_process_is_tried_again_by_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = store(tmp_path)
        Path(world.root, "projections/vectors").mkdir(parents=True)
        generation = f"{world.root}/projections/vectors/g000001"
        failing = kind(world, RefusingEncoder(SPACE))
        projection = failing.open_primary(generation)
        assert isinstance(projection, Vectors)
        projection.apply(0, world.builders[0].records, world.builders[0].checkpoint)
        while failing.unfinished(projection):
            await failing.step(projection)
        assert projection.work(0, SPACE.id).failed == 30
        projection.close()
        again = await built(world, kind(world, CountingEncoder(SPACE)), "g000001")
        assert isinstance(again, Vectors)
        assert again.unembedded(SPACE.id) == 0
        again.close()

    run(scenario())


def test_a_reader_needs_no_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = store(tmp_path)
        vectors = kind(world, CountingEncoder(SPACE))
        first = await built(world, vectors, "g000001")
        scratch = world.directory("vectors").scratch()
        beside = vectors.open_secondary(f"{world.root}/projections/vectors/g000001", scratch.directory)
        await vectors.prepare(beside)
        assert isinstance(beside, Vectors)
        assert beside.digest(0) == first.digest(0)
        beside.close()
        first.close()

    run(scenario())
