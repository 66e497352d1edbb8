"""Kernels in processes of their own on a real broker: killed, ended, moved, started at once, frozen."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from atomlog.kernel.errors import AtomlogError
from tests.cluster.kernels import PATIENT, Kernel, Kernels
from tests.support.commands import atomlog, until
from tests.support.kafka import SharedBroker
from tests.support.kernel_world import batch, create

pytestmark = pytest.mark.timeout(240)


async def two(kernels: Kernels, environment: Mapping[str, str] | None = None) -> tuple[Kernel, Kernel]:
    """The owner, and a standby that follows."""
    first = await kernels.start("one", environment=environment)
    await kernels.kept(first)
    assert await kernels.owner() is first
    second = await kernels.start("two", environment=environment)
    await kernels.kept(second)
    return first, second


async def acknowledged(kernels: Kernels, among: list[Kernel], first: int, count: int) -> list[int]:
    """Positions of batches that were accepted just now."""
    return [
        (await kernels.write(among, batch(f"k{n}", create(f"a{n}"))))["receipt"]["position"]
        for n in range(first, first + count)
    ]


async def all_there(kernels: Kernels, kernel: Kernel, positions: list[int]) -> None:
    """What was acknowledged before is known to the new owner, at the same positions."""
    for n, position in enumerate(positions):
        again = await kernels.write([kernel], batch(f"k{n}", create(f"a{n}")))
        assert again["replayed"]
        assert again["receipt"]["position"] == position


async def test_a_killed_owner_is_followed_by_another_one_that_has_what_was_acknowledged(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        owner, standby = await two(kernels)
        positions = await acknowledged(kernels, [owner, standby], 0, 20)
        await owner.kill()
        assert await kernels.owner(among=[standby]) is standby
        assert standby.said("owner_asked")[-1]["serves"] is False
        await all_there(kernels, standby, positions)
        assert await acknowledged(kernels, [standby], 20, 5) > positions[-5:]


async def test_an_owner_that_is_told_to_end_hands_over_without_waiting_for_a_lease(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        owner, standby = await two(kernels, PATIENT)
        positions = await acknowledged(kernels, [owner], 0, 10)
        assert await owner.terminate() == 0
        assert [event["event"] for event in owner.events][-1] == "stopping"
        await until(lambda: standby.said("claimed"), "the standby claimed")
        assert not standby.said("owner_asked"), "it did not wait for silence"
        await all_there(kernels, standby, positions)


async def test_a_partition_is_moved_by_a_command_to_the_node_that_it_names(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        owner, standby = await two(kernels, PATIENT)
        third = await kernels.start("three", environment=PATIENT)
        await kernels.kept(third)
        positions = await acknowledged(kernels, [owner, standby, third], 0, 5)
        asked = ("move", "owner", "--store", str(standby.directory), "--partition", "0", "--to")
        moved = await atomlog(*asked, "two")
        assert moved.code == 0, moved.err
        assert f"two at {standby.endpoint}, term 2" in moved.out
        assert await kernels.owner() is standby
        await all_there(kernels, third, positions)
        refused = await atomlog(*asked, "nobody")
        assert (refused.code, "no kernel" in refused.err) == (2, True)
        assert not third.said("claimed")


async def test_of_five_kernels_that_start_at_once_one_owns_each_partition(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=2) as kernels:
        for name in ("n0", "n1", "n2", "n3", "n4"):
            await kernels.directory(name)
        started = [await kernels.start(name) for name in ("n0", "n1", "n2", "n3", "n4")]
        await kernels.kept(*started)
        for partition in range(2):
            owner = await kernels.owner(partition)
            places = await kernels.ask(owner, "places")
            assert places[str(partition)]["term"] == 1, "nobody took it from anybody"
        claims = [event["partition"] for kernel in started for event in kernel.said("claimed")]
        assert sorted(claims) == [0, 1]


async def test_an_owner_that_was_frozen_past_the_lease_comes_back_as_a_standby(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        owner, standby = await two(kernels)
        positions = await acknowledged(kernels, [owner], 0, 10)
        owner.freeze()
        assert await kernels.owner(among=[standby]) is standby
        owner.go_on()
        await until(lambda: owner.said("ownership_lost"), "the former owner knows")
        positions += await acknowledged(kernels, [owner, standby], 10, 10)
        await all_there(kernels, standby, positions)
        assert await kernels.owner(among=[standby]) is standby
        assert len(owner.said("claimed")) == 1, "it did not claim it back"


async def test_an_owner_that_gets_no_new_keys_any_more_hands_over(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        owner, standby = await two(kernels)
        positions = await acknowledged(kernels, [owner], 0, 5)
        (owner.directory / "keys.sqlite").unlink()
        with suppress(AtomlogError):  # more atoms than there are keys at hand
            await kernels.ask(owner, "write", batch=batch("many", *(create(f"m{n}") for n in range(900))))
        assert await kernels.owner(among=[standby]) is standby
        assert "removed or exchanged" in owner.said("keys_stopped")[0]["error"]["message"]
        assert "removed or exchanged" in owner.said("released")[0]["reason"]
        positions += await acknowledged(kernels, [owner, standby], 5, 5)
        await all_there(kernels, standby, positions)


async def test_two_kernels_never_have_one_directory(tmp_path: Path, kafka: SharedBroker, kafka_prefix: str) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        first = await kernels.start("one")
        await kernels.kept(first)
        second = await kernels.start("one")
        assert await second.process.wait() == 4
        assert f"process {first.process.pid} " in (tmp_path / "one.log").read_text(), "it says which process has it"


async def test_a_command_on_any_node_writes_through_the_owner_and_reads_what_it_wrote(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix, partitions=2) as kernels:
        kernel = await kernels.start("one")
        await kernels.kept(kernel)
        for partition in range(2):
            assert await kernels.owner(partition) is kernel
        elsewhere = await kernels.directory("two")
        batches = tmp_path / "batches.jsonl"
        lines = [json.dumps(batch(f"k{n}", create(f"a{n}"), space=f"space-{n}")) for n in range(4)]
        batches.write_text("\n".join(lines))
        written = await atomlog("write", str(batches), "--store", str(elsewhere))
        assert written.code == 0, written.err
        assert {json.loads(line)["receipt"]["partition"] for line in written.out.splitlines()} == {0, 1}
        read = await atomlog("get", "key:a3", "--space", "space-3", "--store", str(elsewhere), "--json")
        assert read.code == 0, read.err
        assert json.loads(read.out)["atoms"][0]["value"] == {"text": "text"}


async def test_a_kernel_ends_when_its_topic_is_not_the_one_of_its_store_any_more(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels:
        kernel = await kernels.start("one", environment={"ATOMLOG_METADATA_REFRESH_MS": "200"})
        await kernels.kept(kernel)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        try:
            await admin.create_partitions({f"{kafka_prefix}.atoms": NewPartitions(total_count=3)})
        finally:
            await admin.close()
        assert await kernel.process.wait() == 70
        assert "LOG_MISMATCH" in (tmp_path / "one.log").read_text()
