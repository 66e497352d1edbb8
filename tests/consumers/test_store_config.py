"""store.json: what it says, and each way in which a directory is not this program's store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.store_config import KafkaPlace, ReplayOf, StoreConfig
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.system import SystemFiles

LOG_ID = bytes(range(16))


def saved(path: Path, **changes: Any) -> StoreConfig:
    config = StoreConfig(log_id=LOG_ID, **changes)
    config.save(SystemFiles(), str(path))
    return config


def load(path: Path) -> StoreConfig:
    return StoreConfig.load(SystemFiles(), str(path))


def refused(path: Path) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        load(path)
    return caught.value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partitions": 4_096, "shard_rows": 512, "vector_spaces": ("supplied.sift/1/128/l2", "hashing/1/64/ip")},
        {"vector_spaces": ()},
        {"kafka": KafkaPlace(cluster_id="kPOdLy9nRJqm", prefix="team.notes"), "blobs": "/shared/blobs"},
        {"replay": ReplayOf(source="/there", positions={0: 17, 1: -1}, master_key="/there/master.key")},
    ],
)
def test_what_was_saved_is_loaded(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = saved(tmp_path, **changes)
    assert load(tmp_path) == config
    assert config.read_only == ("replay" in changes)


def test_its_json_has_the_names_of_the_documentation(tmp_path: Path) -> None:
    saved(tmp_path)
    assert jsontext.loads((tmp_path / "store.json").read_bytes()) == {
        "format": 1,
        "log_id": "000102030405060708090a0b0c0d0e0f",
        "partitions": 1,
        "hash_version": 1,
        "shard_rows": 50_000,
        "vector_spaces": ["hashing/1/512/cosine"],
    }


def test_a_genesis_repeats_the_store(tmp_path: Path) -> None:
    genesis = saved(tmp_path, partitions=3).genesis(2)
    assert (genesis.log_id, genesis.partition, genesis.partitions, genesis.hash_version) == (LOG_ID, 2, 3, 1)


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda path: path.rmdir(), "no such directory"),
        (lambda path: None, "is empty"),
        (lambda path: (path / "notes.txt").write_text("mine"), "no store.json"),
        (lambda path: (path.rmdir(), path.write_text("mine")), "this is a file"),
    ],
)
def test_a_directory_that_is_no_store_is_told_apart_by_what_it_is(
    tmp_path: Path, prepare: Callable[[Path], Any], told: str
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    prepare(path)
    error = refused(path)
    assert (error.code, error.exit_code) == ("STORE_NOT_FOUND", 2)
    assert told in error.message
    assert str(path) in error.message


@pytest.mark.parametrize("change", [{"format": 2}, {"hash_version": 2}])
def test_a_store_of_a_newer_program_is_told_apart_from_a_damaged_one(tmp_path: Path, change: dict[str, int]) -> None:
    found = saved(tmp_path).to_dict()
    (tmp_path / "store.json").write_bytes(jsontext.dumps({**found, **change, "more": "fields"}))
    error = refused(tmp_path)
    assert error.code == "STORE_TOO_NEW"
    assert "newer version" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 0),
        ("format", True),
        ("log_id", "00"),
        ("log_id", 7),
        ("partitions", 0),
        ("partitions", 70_000),
        ("partitions", 1.0),
        ("shard_rows", -1),
        ("vector_spaces", ["hashing"]),
        ("vector_spaces", "hashing/1/512/cosine"),
        ("kafka", {"cluster_id": "x"}),
        ("kafka", {"cluster_id": "", "prefix": "atomlog"}),
        ("kafka", {"cluster_id": "x", "prefix": "a b"}),
        ("kafka", {"cluster_id": "x", "prefix": "atomlog", "more": 1}),
        ("blobs", ""),
        ("blobs", 7),
        ("replay", {"source": "x"}),
        ("replay", {"source": "x", "master_key": "y", "positions": {"a": 1}}),
    ],
)
def test_a_damaged_part_is_named(tmp_path: Path, name: str, value: Any) -> None:
    found = saved(tmp_path).to_dict()
    (tmp_path / "store.json").write_bytes(jsontext.dumps({**found, name: value}))
    error = refused(tmp_path)
    assert (error.code, error.exit_code) == ("CORRUPT", 70)
    assert name in error.message


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"format": 1, "format": 1}', b"\xff", b"{}"])
def test_bytes_that_are_no_store_json_are_corrupt_and_never_a_traceback(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "store.json").write_bytes(raw)
    assert refused(tmp_path).code == "CORRUPT"


@pytest.mark.parametrize("name", ["format", "log_id", "partitions", "hash_version", "shard_rows", "vector_spaces"])
def test_a_missing_part_is_corrupt(tmp_path: Path, name: str) -> None:
    found = saved(tmp_path).to_dict()
    del found[name]
    (tmp_path / "store.json").write_bytes(jsontext.dumps(found))
    assert name in refused(tmp_path).message
