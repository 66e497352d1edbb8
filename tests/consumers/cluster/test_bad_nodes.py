"""A node whose files are wrong or missing: told by name with the way out, and what can go on goes on."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atomlog.client import AsyncStore, AtomlogError
from tests.consumers.cluster.test_store_on_kafka import batch, kernel, nodes, note, store_of, written
from tests.support.kafka import SharedBroker


async def refused(directory: Path, **more: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        store = await store_of(directory, **more)
        await store.close()
    return caught.value


def edited(name: str, value: Any) -> Callable[[Path], None]:
    """Changes one part of store.json."""

    def edit(directory: Path) -> None:
        config = json.loads((directory / "store.json").read_text())
        (directory / "store.json").write_text(json.dumps({**config, name: value}))

    return edit


def toml(text: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / "kafka.toml").write_text(text)


WRONG: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "brokers": (toml('bootstrap = "127.0.0.1:1"'), "KAFKA_UNAVAILABLE", "127.0.0.1:1"),
    "security": (toml('bootstrap = "h:1"\nsecurity_protocol = "TLS"'), "INVALID_INPUT", "security_protocol"),
    "no kafka.toml": (lambda directory: (directory / "kafka.toml").unlink(), "STORE_NOT_FOUND", "kafka.toml"),
    "cluster": (edited("kafka", {"cluster_id": "other", "prefix": "p"}), "LOG_MISMATCH", "kafka.toml"),
    "partitions": (edited("partitions", 3), "LOG_MISMATCH", "partitions"),
    "log id": (edited("log_id", "00" * 16), "LOG_MISMATCH", "log"),
    "master key": (lambda directory: (directory / "master.key").write_text("x"), "INVALID_INPUT", "master key"),
}


@pytest.mark.timeout(180)
async def test_what_is_wrong_with_a_node_is_told_at_opening_and_nothing_is_left_open(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str, recwarn: pytest.WarningsRecorder
) -> None:
    first, second = await nodes(tmp_path, kafka, kafka_prefix, "1", "2")
    async with kernel(first), store_of(first, projections=["ids"]) as store:
        for space in ("notes", "mail", "papers"):
            await written(store, batch(space, "k", note("tea")))
    await AsyncStore.init(tmp_path / "other")
    with pytest.raises(AtomlogError, match=r"copy master\.key from another node") as caught:
        await nodes(tmp_path, kafka, kafka_prefix, "3", master_key=str(tmp_path / "other/master.key"))
    assert (caught.value.code, (tmp_path / "3/store.json").exists()) == ("INVALID_INPUT", False)
    kept = {path.name: path.read_bytes() for path in second.iterdir() if path.is_file()}
    for name, (spoil, code, told) in WRONG.items():
        spoil(second)
        error = await refused(second, projections=["ids"])
        assert (error.code, told in error.message) == (code, True), f"{name}: {error}"
        for file, raw in kept.items():
            (second / file).write_bytes(raw)
    async with store_of(second, projections=["ids"]) as store:
        await store.wait_until_current(30)
        assert len((await store.get(["key:tea"], space="notes")).atoms) == 1
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "unclosed" in str(warning.message)] == []


@pytest.mark.timeout(180)
async def test_without_the_clusters_files_a_node_reads_what_is_clear_and_writes_nothing(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    first, second = await nodes(tmp_path, kafka, kafka_prefix, "1", "2")
    (second / "master.key").unlink()
    pem = (second / "node.pem").read_bytes()
    (second / "node.pem").unlink()
    names = ["ids", "relations", "postings"]
    async with kernel(first), store_of(first, projections=["ids"]) as owner:
        made = await written(owner, batch("notes", "k", note("tea")))
        async with store_of(second, projections=names) as store:
            page = await store.get("key:tea", space="notes", at_least=made.receipt)
            assert (page.atoms[0].atom, page.atoms[0].value) == (made.results[0].atom, None)
            assert await code_of(store, "a") == ("STORE_NOT_FOUND", True)
            (second / "node.pem").write_bytes(pem)
            (second / "node.pem").chmod(0o644)
            assert await code_of(store, "a") == ("INVALID_INPUT", True)
            (second / "node.pem").chmod(0o600)
            assert not (await store.write(batch("notes", "a", note("a")))).replayed, "put there later, it is used"


async def code_of(store: AsyncStore, key: str) -> tuple[str, bool]:
    with pytest.raises(AtomlogError) as caught:
        await store.write(batch("notes", key, note(key)))
    return caught.value.code, "node.pem" in caught.value.message
