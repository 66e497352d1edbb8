"""`init --kafka` on a real broker: the store is made once, whoever begins, and a killed one goes on."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from atomlog.client import AsyncStore, AtomlogError
from atomlog.consumers.cluster.creation import MadeNode, create_node
from atomlog.consumers.cluster.founding import NodeRequest
from atomlog.consumers.machine import Machine
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig, KafkaRecord
from atomlog.kernel.kafka.topics import MIN_IN_SYNC, REPLICATION
from atomlog.kernel.system import SystemFiles
from tests.consumers.test_creation import Killed, KilledFiles
from tests.support.kafka import SharedBroker

WEAK = (REPLICATION, MIN_IN_SYNC)


def request(kafka: SharedBroker, prefix: str, **more: Any) -> NodeRequest:
    return NodeRequest(**{"bootstrap": kafka.bootstrap, "prefix": prefix, "replication": 1, "allow_weak": WEAK, **more})


async def made(path: Path, asked: NodeRequest, machine: Machine | None = None) -> MadeNode:
    return await create_node(str(path), asked, machine=machine or Machine())


async def refused(path: Path, asked: NodeRequest) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        await made(path, asked)
    return caught.value


async def test_the_first_makes_the_store_and_the_others_join_it(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    spaces = ("hashing/1/64/cosine", "supplied.mine/1/3/l2")
    first = await made(tmp_path / "1", request(kafka, kafka_prefix, partitions=3, shard_rows=128, vector_spaces=spaces))
    assert (first.joined, first.lacks) == (False, ())
    second = await made(tmp_path / "2", request(kafka, kafka_prefix, blobs=str(tmp_path / "blobs")))
    assert (second.joined, second.lacks) == (True, ("master.key", "node.pem"))
    assert second.config.blobs == str(tmp_path / "blobs")
    third = await made(
        tmp_path / "3",
        request(
            kafka,
            kafka_prefix,
            partitions=3,
            master_key=str(tmp_path / "1/master.key"),
            node_pem=str(tmp_path / "1/node.pem"),
        ),
    )
    assert (third.joined, third.lacks) == (True, ())
    for name in ("master.key", "node.pem", "kafka.toml"):
        assert (tmp_path / "3" / name).stat().st_mode & 0o777 == 0o600
    for name in ("master.key", "node.pem"):
        assert (tmp_path / "3" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
    configs = [StoreConfig.load(SystemFiles(), str(tmp_path / name)) for name in "123"]
    assert {(c.log_id, c.partitions, c.shard_rows, c.vector_spaces, c.kafka) for c in configs} == {
        (first.config.log_id, 3, 128, spaces, first.config.kafka)
    }
    with (tmp_path / "3/kafka.toml").open("rb") as file:
        assert tomllib.load(file) == {"bootstrap": kafka.bootstrap}


async def test_what_was_asked_for_and_is_otherwise_is_refused(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    error = await refused(tmp_path / "1", request(kafka, kafka_prefix, allow_weak=()))
    assert (error.code, "--allow-weak" in error.message) == ("STORE_UNSAFE", True)
    await made(tmp_path / "1", request(kafka, kafka_prefix, partitions=2))  # nothing was made before
    for wrong in ({"partitions": 3}, {"shard_rows": 7}, {"vector_spaces": ("hashing/1/64/cosine",)}):
        error = await refused(tmp_path / "2", request(kafka, kafka_prefix, **wrong))
        assert (error.code, "--prefix" in error.message) == ("INVALID_INPUT", True)
    error = await refused(tmp_path / "2", request(kafka, kafka_prefix, allow_weak=()))
    assert (error.code, "--allow-weak" in error.message) == ("STORE_UNSAFE", True)
    error = await refused(tmp_path / "2", request(kafka, kafka_prefix, master_key=str(tmp_path / "nowhere")))
    assert error.code == "INVALID_INPUT"
    assert (await made(tmp_path / "2", request(kafka, kafka_prefix))).joined, "a refusal leaves a directory to be used"
    error = await refused(tmp_path / "2", request(kafka, kafka_prefix))
    assert (error.code, "not empty" in error.message) == ("INVALID_INPUT", True)
    nobody = await refused(tmp_path / "3", request(kafka, kafka_prefix, bootstrap="127.0.0.1:1"))
    assert nobody.code == "KAFKA_UNAVAILABLE"


async def test_two_at_once_make_one_store(tmp_path: Path, kafka: SharedBroker, kafka_prefix: str) -> None:
    asked = request(kafka, kafka_prefix, partitions=1)
    nodes = await asyncio.gather(*(made(tmp_path / str(n), asked) for n in range(4)))
    assert len({node.config.log_id for node in nodes}) == 1
    assert [node.joined for node in nodes].count(False) == 1
    for n, node in enumerate(nodes):
        assert node.lacks == (("master.key", "node.pem") if node.joined else ())
        assert (tmp_path / str(n) / "master.key").exists() != node.joined


@pytest.mark.timeout(240)
async def test_a_making_that_was_killed_anywhere_goes_on_as_the_same_store(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    for changes in range(100):
        directory, asked = tmp_path / str(changes), request(kafka, f"{kafka_prefix}{changes}", partitions=1)
        try:
            await made(directory, asked, Machine(files=KilledFiles(changes)))
        except Killed:
            again = await made(directory, asked)
            assert (again.joined, again.lacks) == (False, ()), "it is the one that was begun"
            assert [path.name for path in directory.iterdir() if path.name.endswith((".tmp", ".making"))] == []
            assert (await made(tmp_path / f"{changes}+", asked)).config.log_id == again.config.log_id
        else:
            break
    assert changes > 6, "nothing was interrupted"


async def test_a_node_that_was_begun_does_not_become_an_embedded_store(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    assert (await refused(tmp_path, request(kafka, kafka_prefix, bootstrap="127.0.0.1:1"))).code == "KAFKA_UNAVAILABLE"
    with pytest.raises(AtomlogError, match="init --kafka"):
        await AsyncStore.open(tmp_path)
    other = await refused(tmp_path, request(kafka, f"{kafka_prefix}.other", bootstrap="127.0.0.1:1"))
    assert other.code == "KAFKA_UNAVAILABLE"
    assert not (await made(tmp_path, request(kafka, kafka_prefix))).joined


async def test_a_log_that_nobody_describes_is_not_taken_over(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    await made(tmp_path / "1", request(kafka, kafka_prefix, partitions=1))
    client = KafkaClient(KafkaConfig(bootstrap=kafka.addresses), timeout_s=20)
    await client.start()
    from atomlog.kernel.bounds import Bounds
    from atomlog.kernel.kafka.topics import atoms_spec
    from atomlog.kernel.settings import Settings

    atoms = f"{kafka_prefix}.other.atoms"
    await client.create_topics([atoms_spec(atoms, 1, 1, Settings(), Bounds()).new])
    producer = await client.producer()
    await producer.send(atoms, 0, [KafkaRecord(value=b"somebody's")])
    await producer.close()
    await client.close()
    error = await refused(tmp_path / "2", request(kafka, f"{kafka_prefix}.other", partitions=1))
    assert (error.code, "key topic" in error.message) == ("LOG_MISMATCH", True)


async def test_a_node_reads_status_and_log_and_says_what_is_missing_for_a_write(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    await made(tmp_path / "1", request(kafka, kafka_prefix, partitions=2))
    async with AsyncStore.open(tmp_path / "1") as store:
        status = (await store.status()).to_dict()
        assert [one["end"] for one in status["partitions"]] == [0, 0]
        assert [one["owner"] for one in status["partitions"]] == [None, None]
        assert [record async for record in store.log_dump()] == []
        change = {"op": "create", "key": "tea", "schema": "source", "value": {"text": "tea"}}
        with pytest.raises(AtomlogError, match="atomlog kernel") as caught:
            await store.write({"space": "notes", "idempotency_key": "k", "changes": [change]})
        assert caught.value.code == "NOT_OWNER"
        assert (await store.members("key:tea", space="notes")).atoms == ()
    async with AsyncStore.kafka(
        kafka.bootstrap, data=tmp_path / "2", prefix=kafka_prefix, replication=1, allow_weak=WEAK
    ) as store:
        assert store.config.partitions == 2
    async with AsyncStore.kafka(kafka.bootstrap, data=tmp_path / "2", read_only=True) as store:
        assert (await store.status()).to_dict()["log_id"] == status["log_id"]
