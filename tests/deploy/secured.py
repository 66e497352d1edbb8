"""A broker secured as deploy/secure has it, and what its users try to do."""

import asyncio
import os
import shlex
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig, KafkaRecord, NewTopic
from tests.deploy.processes import script
from tests.house.tree import ROOT
from tests.support.kafka_security import MECHANISMS, SecureBrokers, secure_brokers

SECURE = ROOT / "deploy/secure"
TOPICS = ("atoms", "keys", "reads", "control", "inbox.alice", "results.alice", "inbox.bob")
CLOSED = "closed"  # no ACL names it
PASSWORDS = {"kernel": "k-secret", "consumer": "c-secret", "alice": "a-secret"}


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBrokers]:
    """With the store's topics, made by admin, and the ACLs of acls.sh, run as it stands."""
    directory = tmp_path_factory.mktemp("secure")
    with secure_brokers(directory, users=PASSWORDS) as secure:
        asyncio.run(make_topics(secure))
        java = secure.brokers.runtime.command(
            "org.apache.kafka.tools.AclCommand", (), heap="128m", logging="log4j2-tools.properties"
        )
        script(directory / "bin/kafka-acls.sh", f'exec {shlex.join(java)} "$@"')
        command = [str(SECURE / "acls.sh"), secure.bootstrap, str(secure.admin_config)]
        environment = {**os.environ, "PATH": f"{directory}/bin:{os.environ['PATH']}"}
        subprocess.run(command, env=environment, capture_output=True, check=True)
        yield secure


@asynccontextmanager
async def logged_in(secure: SecureBrokers, user: str, password: str | None = None) -> AsyncIterator[KafkaClient]:
    config = KafkaConfig(
        bootstrap=secure.brokers.addresses,
        security_protocol="SASL_SSL",
        sasl_mechanism=MECHANISMS[1],
        sasl_username=user,
        sasl_password=password or secure.users[user],
        ssl_ca_file=str(secure.authority.file),
    )
    client = KafkaClient(config, timeout_s=20.0)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


async def make_topics(secure: SecureBrokers) -> None:
    names = [*(f"atomlog.{name}" for name in TOPICS), CLOSED]
    async with logged_in(secure, "admin") as admin:
        await admin.create_topics([NewTopic(name=name, partitions=1, replication=1) for name in names])


async def write(client: KafkaClient, topic: str) -> None:
    producer = await client.producer()
    try:
        await producer.send(topic, 0, [KafkaRecord(value=b"a line")])
    finally:
        await producer.close()


async def read(client: KafkaClient, topic: str) -> None:
    await client.page(topic, 0, 0, bytes_max=65_536)


async def look(client: KafkaClient, topic: str) -> None:
    assert (await client.topics([topic]))[topic] is not None
