"""Topics that somebody changes, deletes or makes anew under a store that is in use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.topics import atoms_spec
from atomlog.kernel.settings import Settings
from tests.cluster.kernels import SETTINGS, Kernels
from tests.cluster.strangers import command, is_one_clear_line, stranger
from tests.support.commands import until
from tests.support.kafka import SharedBroker
from tests.support.kernel_world import batch, create

REFRESHED = {"ATOMLOG_METADATA_REFRESH_MS": "200"}
LISTEN = ("--listen", "127.0.0.1:0")

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def administrator(kafka: SharedBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def test_a_topic_that_takes_less_refuses_what_is_too_large_and_every_kernel_that_starts(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    topic = f"{kafka_prefix}.atoms"
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels, administrator(kafka) as admin:
        kernel = await kernels.start("kernel", environment=REFRESHED)
        await kernels.kept(kernel)
        await kernels.write([kernel], batch("k", create("a")))
        smaller = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "20000"})
        await admin.alter_configs([smaller])
        await until(lambda: kernel.said("log_check_failed"), "the kernel has looked again")
        error = kernel.said("log_check_failed")[0]["error"]
        assert error["code"] == "STORE_UNSAFE"
        found = {detail["path"]: detail["message"] for detail in error["details"]}
        assert "20000" in found["max.message.bytes"]
        # What does not fit is not written, and nobody claims a partition of a topic like that.
        for text in ("x" * 40_000, "small"):

            async def is_refused(text: str = text) -> bool:
                try:
                    made = await kernels.ask(kernel, "write", batch=batch("l", create("b", text=text)))
                except AtomlogError as refused:
                    assert refused.code in ("IN_DOUBT", "NOT_OWNER", "STORE_UNSAFE"), refused
                    return refused.code == "STORE_UNSAFE"
                raise AssertionError(made)

            await until(is_refused, "it is said why nothing is written")
        assert await kernel.terminate() == 0
        asked = ("kernel", *LISTEN, "--store", str(kernel.directory))
        done = await command(tmp_path / "said.log", *asked, environment=SETTINGS)
        assert (done.code, done.err.splitlines()[0].startswith("error: STORE_UNSAFE: topic ")) == (2, True), done.err
        assert f"topic {topic}: max.message.bytes is 20000, needed is 4194304 or more" in done.err
        assert "Traceback" not in done.err


async def test_a_topic_that_is_deleted_is_missed_and_one_that_is_made_anew_ends_who_stood_on_it(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    topic = f"{kafka_prefix}.atoms"
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels, administrator(kafka) as admin:
        kernel = await kernels.start("kernel", environment=REFRESHED)
        await kernels.kept(kernel)
        for number in range(5):
            await kernels.write([kernel], batch(f"k{number}", create(f"a{number}")))
        node = str(await kernels.directory("node"))
        log = tmp_path / "said.log"
        asked = ("get", "key:a1", "--space", "notes", "--store", node)
        read = await command(log, *asked, environment=SETTINGS)
        assert read.code == 0, read.err
        # 1. Deleted: a kernel that runs goes on looking for it, everybody who starts is told.
        async with stranger(kafka.bootstrap, kafka_prefix, kernel.directory) as other:
            await admin.delete_topics([topic])
            await until(lambda: kernel.said("log_check_failed"), "the kernel has looked again")
            assert kernel.said("log_check_failed")[-1]["error"]["code"] == "STORE_NOT_FOUND"
            joining = ("--kafka", kafka.bootstrap, "--prefix", kafka_prefix, "--replication", "1")
            for arguments in (
                ("consume", "ids", "--store", node),
                asked,
                ("init", *joining, "--store", str(tmp_path / "fresh")),
            ):
                done = await command(log, *arguments, environment=SETTINGS)
                assert (done.code, is_one_clear_line(done, "STORE_NOT_FOUND")) == (2, True), done.err
                assert f"topic {topic}: there is no such topic. Restore it" in done.err
            # 2. Made anew: it is another log for who has applied some of the former one.
            await other.client.create_topics([atoms_spec(topic, 1, 1, Settings(), Bounds()).new])
            assert await kernel.process.wait() == 70
            (line,) = (tmp_path / "kernel.log").read_text().splitlines()
            assert "LOG_DIVERGED" in line
        for standing in (
            ("kernel", *LISTEN, "--store", str(kernel.directory)),
            ("consume", "ids", "--store", node),
        ):
            done = await command(log, *standing, environment=SETTINGS)
            assert (done.code, is_one_clear_line(done, "LOG_DIVERGED")) == (70, True), done.err
            name = "heads" if standing[0] == "kernel" else "ids"
            assert f"atomlog rebuild {name} --force" in done.err
