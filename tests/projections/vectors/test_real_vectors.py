"""Vectors and texts that nobody here made."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from atomlog.kernel.errors import CapabilityError
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.rocks import open_primary
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.projections.encoders import encoder_of
from tests.projections.vectors.worlds import World, space_of, supplied
from tests.support.batches import Change, atom_id, create, retire, revise
from tests.support.sealed import InlineWorkers

SIFT = space_of("l2", dim=128, name="supplied.sift")


@pytest.fixture(scope="module")
def sift(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with np.load(test_data / "vectors" / "sift5k_split_gt.npz") as found:
        base = found["base"].astype(np.float32)
    folder = tmp_path_factory.mktemp("sift")
    kv = open_primary(str(folder / "db"), block_cache_bytes=1 << 22)
    world = World(directory=folder, spaces=[SIFT], kv=kv)
    log_of_sift(world, base)
    world.follow()
    yield world
    world.vectors.close()


def log_of_sift(world: World, base: NDArray[np.float32]) -> None:
    for start in range(0, len(base), 400):
        rows = range(start, min(start + 400, len(base)))
        world.log.batch("test", [create(str(row), value=None, vectors=supplied(SIFT, base[row])) for row in rows])


def recall(world: World, folder: Path) -> float:
    """The mean share of the 10 exact neighbours that a search for 10 finds."""
    names = {atom_id(str(row)): row for row in range(4_800)}
    shares: list[float] = []
    with np.load(folder / "vectors" / "sift5k_split_gt.npz") as found:
        for query, exact, distances in zip(found["query"], found["neighbours"], found["dist2"], strict=True):
            result = world.vectors.search(SIFT.id, query, 10, world.at)
            assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)
            shares.append(len({names[hit.atom] for hit in result.hits} & set(exact[:10].tolist())) / 10)
            assert not distances[0] or result.hits[0].score <= -distances[0]
    return float(np.mean(shares))


def test_sift_neighbours_are_found_over_nine_shards_and_a_tail(sift: World, test_data: Path) -> None:
    assert len(sift.shard_files(".hnsw")) == 9
    assert recall(sift, test_data) >= 0.99


def test_sift_neighbours_are_found_in_one_large_graph(sift: World, test_data: Path) -> None:
    one = World(directory=sift.directory / "one", spaces=[SIFT], log=sift.log, shard_rows=4_800)
    one.follow()
    assert len(one.shard_files(".hnsw")) == 1
    assert recall(one, test_data) >= 0.99


def test_a_second_build_of_sift_seals_the_same_shards(sift: World) -> None:
    again = World(directory=sift.directory / "again", spaces=[SIFT], log=sift.log)
    again.follow()
    digests = [[entry.content_sha256 for entry in one.vectors._shelf.current.shards] for one in (sift, again)]
    assert len(digests[0]) == 9
    assert digests[0] == digests[1]
    assert again.vectors.digest(0) == sift.vectors.digest(0)


def test_a_shard_of_sift_is_renewed_and_the_manifest_before_stays_pinned(test_data: Path, tmp_path: Path) -> None:
    with np.load(test_data / "vectors" / "sift5k_split_gt.npz") as found:
        base, queries = found["base"].astype(np.float32), found["query"][:20]
    world = World(directory=tmp_path / "live", spaces=[SIFT])
    log_of_sift(world, base)
    world.follow()
    generation, before = world.vectors.generation, world.at
    world.vectors.pin(generation)
    asked = [world.vectors.search(SIFT.id, query, 10, before) for query in queries]
    world.log.batch("test", [retire(str(row)) for row in range(1_024, 1_024 + 154)])  # 30.1 % of the third range
    world.follow()
    assert [entry.floor for entry in world.vectors._shelf.current.shards] == [-1, -1, world.at[0], *[-1] * 6]
    with pytest.raises(CapabilityError):
        world.vectors.search(SIFT.id, queries[0], 10, before)
    assert [world.vectors.search(SIFT.id, query, 10, before, generation=generation) for query in queries] == asked
    again = World(directory=tmp_path / "again", spaces=[SIFT], log=world.log)
    again.follow()
    for one, other in zip(again.vectors._shelf.current.shards, world.vectors._shelf.current.shards, strict=True):
        assert (one.content_sha256, one.floor, one.count) == (other.content_sha256, other.floor, other.count)


def test_rows_of_zeros_are_told_apart_and_the_others_are_found(test_data: Path, tmp_path: Path) -> None:
    """Under cosine such rows hung an index elsewhere."""
    rows = np.load(test_data / "vectors" / "cosine_hang.npy").astype(np.float32)
    space = space_of("cosine", dim=rows.shape[1])
    world = World(directory=tmp_path, spaces=[space])
    for start in range(0, len(rows), 400):
        numbers = range(start, min(start + 400, len(rows)))
        world.log.batch("test", [create(str(n), value=None, vectors=supplied(space, rows[n])) for n in numbers])
    world.follow()
    refused = {row.atom for row in world.vectors.troubles(space.id)}
    assert refused == {atom_id(str(number)) for number in np.flatnonzero(~rows.any(axis=1))}
    assert len(refused) == 773
    assert world.vectors.work(0, space.id).embedded == len(rows) - 773
    for number in np.flatnonzero(rows.any(axis=1))[::500]:
        result = world.vectors.search(space.id, rows[number], 10, world.at)
        assert result.approximate
        assert result.hits[0].score == pytest.approx(1, abs=1e-6)
        assert not {hit.atom for hit in result.hits} & refused


def test_near_duplicates_are_built_and_all_found(test_data: Path, tmp_path: Path) -> None:
    rows = np.load(test_data / "vectors" / "cosine_near_duplicates.npy")
    space = space_of("cosine", dim=2)
    world = World(directory=tmp_path, spaces=[space], shard_rows=len(rows))
    world.log.batch("test", [create(str(n), value=None, vectors=supplied(space, row)) for n, row in enumerate(rows)])
    world.follow()
    assert len(world.shard_files(".hnsw")) == 1
    result = world.vectors.search(space.id, rows[0], len(rows), world.at)
    assert {hit.atom for hit in result.hits} == {atom_id(str(number)) for number in range(len(rows))}


def test_a_real_history_seals_is_renewed_and_is_rebuilt_alike(test_data: Path, tmp_path: Path) -> None:
    """Lines of a document over years, most of them superseded: live embedding in pieces against one rebuild."""
    space = parse_vector_space("hashing/1/512/cosine", "space")
    encoders = {space.id: encoder_of(space, InlineWorkers())}
    live = World(directory=tmp_path / "live", spaces=[space], encoders=encoders, cache=MemoryKv())
    for number, changes in enumerate(commits(test_data / "revisions" / "awesome_japanese_llm_ja.jsonl.gz")):
        live.log.batch("test", changes)
        if number % 40 == 0:
            live.follow()
    live.follow()
    shards = live.vectors._shelf.current.shards
    assert len(shards) >= 4
    assert any(entry.floor >= 0 for entry in shards)
    rebuilt = World(directory=tmp_path / "rebuilt", spaces=[space], encoders=encoders, cache=live.cache, log=live.log)
    rebuilt.follow()
    assert rebuilt.vectors.digest(0) == live.vectors.digest(0)
    assert [entry.content_sha256 for entry in rebuilt.vectors._shelf.current.shards] == [
        entry.content_sha256 for entry in shards
    ]
    assert rebuilt.vectors.floors() == live.vectors.floors()


def commits(path: Path) -> Iterator[list[Change]]:
    """The changes of each commit of a history; the last of an atom counts where it is named twice."""
    known: set[str] = set()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        commit, changes = "", dict[str, Change]()
        for line in map(json.loads, file):
            if line["commit"] != commit:
                if changes:
                    yield list(changes.values())
                commit, changes = line["commit"], {}
            atom = line["atom"]
            if line["op"] == "delete":
                changes[atom] = retire(atom)
            else:
                changes[atom] = (revise if atom in known else create)(atom, value={"text": line["text"]})
                known.add(atom)
        yield list(changes.values())
