"""What people get wrong with a shared store at night: refused at once, by name, with the way out."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atomlog.consumers.cli.main import main
from atomlog.consumers.cluster import founding
from atomlog.consumers.cluster.creation import create_node
from atomlog.consumers.cluster.founding import NodeRequest
from atomlog.consumers.cluster.kernel import run_kernel
from atomlog.consumers.consume import run_consumer
from atomlog.consumers.machine import Machine
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.settings import Settings
from tests.consumers.cluster.test_store_on_kafka import QUICK, WEAK, batch, nodes, note, store_of
from tests.support.commands import atomlog
from tests.support.kafka import SharedBroker

HERE = "127.0.0.1:0"


async def told(work: Coroutine[Any, Any, Any]) -> tuple[str, str]:
    with pytest.raises(AtomlogError) as caught:
        await work
    return caught.value.code, caught.value.message


async def making(path: Path, kafka: SharedBroker, prefix: str, **more: Any) -> tuple[str, str]:
    request = NodeRequest(bootstrap=kafka.bootstrap, prefix=prefix, **more)
    return await told(create_node(str(path), request, machine=Machine()))


def starting(directory: Path, **more: Any) -> Coroutine[Any, Any, int]:
    return run_kernel(str(directory), **{"listen": HERE, "allow_weak": WEAK, "settings": QUICK, **more})


async def test_a_store_on_one_broker_is_refused_until_each_risk_is_named(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    code, message = await making(tmp_path / "1", kafka, kafka_prefix, allow_weak=WEAK)
    assert code == "INVALID_INPUT"
    assert "start more brokers, or ask for fewer copies with --replication" in message
    code, message = await making(tmp_path / "1", kafka, kafka_prefix, replication=1)
    assert code == "STORE_UNSAFE"
    assert message.endswith("take the risk with " + " ".join(f"--allow-weak {name}" for name in WEAK))
    machine = Machine(environment={"ATOMLOG_ALLOW_WEAK": "replication"})
    request = NodeRequest(bootstrap=kafka.bootstrap, prefix=kafka_prefix, replication=1)
    code, message = await told(create_node(str(tmp_path / "1"), request, machine=machine))
    assert (code, message.startswith("ATOMLOG_ALLOW_WEAK: 'replication' is none of replication.factor,")) == (
        "INVALID_INPUT",
        True,
    )


async def test_brokers_that_are_not_there_are_named(tmp_path: Path) -> None:
    request, brief = NodeRequest(bootstrap="127.0.0.1:1"), Settings(kafka_timeout_ms=500)
    code, message = await told(create_node(str(tmp_path / "1"), request, machine=Machine(), settings=brief))
    assert (code, message.startswith("127.0.0.1:1: no broker answers: ")) == ("KAFKA_UNAVAILABLE", True)
    assert message.endswith("; start one, or put the addresses right")


async def test_a_write_that_no_kernel_takes_names_the_command(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    (first,) = await nodes(tmp_path, kafka, kafka_prefix, "1")
    async with store_of(first, projections=[]) as store:
        code, message = await told(store.write(batch("notes", "k", note("tea"))))
    assert (code, "run `atomlog kernel` on a node of this store" in message) == ("NOT_OWNER", True)


async def test_a_kernel_says_which_file_is_missing_or_open_to_others(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    (first,) = await nodes(tmp_path, kafka, kafka_prefix, "1")
    (first / "node.pem").chmod(0o644)
    code, message = await told(starting(first))
    assert (code, f"chmod 600 {first}/node.pem" in message) == ("INVALID_INPUT", True)
    (first / "node.pem").unlink()
    code, message = await told(starting(first))
    assert (code, "copy node.pem from another node" in message) == ("STORE_NOT_FOUND", True)
    (first / "master.key").unlink()
    code, message = await told(starting(first))
    assert (code, "--master-key" in message) == ("KEY_UNAVAILABLE", True)


@pytest.mark.timeout(180)
async def test_a_second_kernel_in_a_directory_names_the_first(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    (first,) = await nodes(tmp_path, kafka, kafka_prefix, "1")
    stop, events = asyncio.Event(), asyncio.Queue[str]()
    running = asyncio.create_task(starting(first, stop=stop, on_event=lambda event: events.put_nowait(event["event"])))
    while await events.get() != "keeping":
        pass
    second = await atomlog(
        "kernel", "--listen", HERE, "--store", str(first), *(f"--allow-weak={name}" for name in WEAK)
    )
    assert second.code == 4, second.err
    assert "owns partitions in this directory already, and one can; stop that process, or wait for it" in second.err
    stop.set()
    await running


async def test_a_consumer_listens_where_others_can_reach_it(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    (first,) = await nodes(tmp_path, kafka, kafka_prefix, "1")
    for wrong, path, why in (
        ({"listen": "127.0.0.1"}, "listen", "is not HOST:PORT"),
        ({"listen": "0.0.0.0:0"}, "advertise", "name one of them with --advertise"),
        ({"listen": HERE, "advertise": "host:1"}, "advertise", "the port is that of --listen"),
        ({"advertise": "host"}, "advertise", "this goes with --listen only"),
        ({"name": "tls:host:1"}, "name", "is no name"),
        ({"partitions": [7]}, "partitions", "the store has 2, counted from 0"),
    ):
        code, message = await told(run_consumer(str(first), ["ids"], **wrong))
        assert (code, message.startswith(f"{path}: "), why in message) == ("INVALID_INPUT", True, True), message


def test_who_wanted_to_join_and_named_another_prefix_is_told_that_the_store_is_new(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    def init(directory: str, prefix: str, *files: str) -> str:
        options = ("--kafka", kafka.bootstrap, "--prefix", prefix, "--replication", "1", "--partitions", "1")
        weak = [f"--allow-weak={name}" for name in WEAK]
        done = CliRunner().invoke(main, ["init", "--store", str(tmp_path / directory), *options, *weak, *files])
        assert done.exit_code == 0, done.output
        return done.output

    assert "this is a new one" not in init("1", kafka_prefix)
    files = ("--master-key", str(tmp_path / "1/master.key"), "--node-pem", str(tmp_path / "1/node.pem"))
    assert f"there was no store below {kafka_prefix}x: this is a new one" in init("2", f"{kafka_prefix}x", *files)
    assert "joined" in init("3", kafka_prefix, *files)


def test_the_help_of_init_says_how_many_partitions_a_shared_store_has() -> None:
    said = " ".join(CliRunner().invoke(main, ["init", "--help"]).output.split())
    assert f"of a shared store {founding.PARTITIONS}]" in said
