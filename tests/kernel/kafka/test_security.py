"""Brokers that ask who you are: TLS, SCRAM and ACLs on a real node, and every way to be refused."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig
from atomlog.kernel.kafka.topics import ALLOWABLE, atoms_spec
from atomlog.kernel.log.kafka import KafkaLog
from atomlog.kernel.system import SystemClock
from tests.kernel.kafka.support import LOG_ID, MUCH, PARTITIONS, SETTINGS, numbers, records
from tests.support.kafka_security import ADMIN, ADMIN_PASSWORD, SecureBrokers, make_authority, secure_brokers

TOPIC = "atomlog.atoms"
NODE, READER, STRANGER = "kernel", "reader", "stranger"
PASSWORDS = {NODE: "node-secret-2741", READER: "reader-secret-1187", STRANGER: "stranger-secret-9002"}
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    brokers: SecureBrokers

    def config(self, user: str, **changes: Any) -> KafkaConfig:
        whole = KafkaConfig(
            bootstrap=tuple(self.brokers.bootstrap.split(",")),
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username=user,
            sasl_password={ADMIN: ADMIN_PASSWORD, **PASSWORDS}[user],
            ssl_ca_file=str(self.brokers.authority.file),
        )
        return replace(whole, **changes)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The topic is there; the node may do what a node does, the reader read and look, the stranger nothing."""
    with secure_brokers(tmp_path_factory.mktemp("secure"), users=PASSWORDS) as brokers:
        place = Secured(brokers=brokers)
        asyncio.run(_make_topic(place))
        looks = ("--operation", "Describe", "--operation", "DescribeConfigs", "--operation", "Read")
        brokers.allow(NODE, *looks, "--operation", "Write", "--topic", TOPIC)
        brokers.allow(READER, *looks, "--topic", TOPIC)
        yield place


async def _make_topic(place: Secured) -> None:
    client = KafkaClient(place.config(ADMIN), timeout_s=TIMEOUT_S)
    await client.start()
    await client.create_topics([atoms_spec(TOPIC, PARTITIONS, 1, SETTINGS, Bounds()).new])
    await client.close()


async def _opened(config: KafkaConfig) -> tuple[KafkaClient, KafkaLog]:
    client = KafkaClient(config, timeout_s=TIMEOUT_S)
    await client.start()
    return client, KafkaLog(client, TOPIC, LOG_ID, PARTITIONS, SystemClock(), SETTINGS, allow_weak=ALLOWABLE)


async def refused(call: Coroutine[Any, Any, object]) -> AtomlogError:
    with pytest.raises(AtomlogError) as raised:
        async with asyncio.timeout(TIMEOUT_S + 10):
            await call
    shown = repr(raised.value.to_dict())
    assert not any(secret in shown for secret in (*PASSWORDS.values(), ADMIN_PASSWORD, "wrong-secret"))
    return raised.value


async def start(config: KafkaConfig) -> None:
    client = KafkaClient(config, timeout_s=TIMEOUT_S)
    try:
        await client.start()
    finally:
        await client.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_is_known_and_allowed_writes_and_reads(secured: Secured, mechanism: str) -> None:
    async def body() -> None:
        client, log = await _opened(secured.config(NODE, sasl_mechanism=mechanism))
        await log.check()
        first = await log.end(1)
        await log.append(1, records(1, 2))
        assert await log.wait(1, first + 1, 10)
        assert numbers(await log.read(1, first, bytes_max=MUCH)) == [1, 2]
        await log.close()
        await client.close()

    asyncio.run(body())


def test_a_wrong_password_and_an_unknown_user_are_denied(secured: Secured) -> None:
    async def body() -> None:
        for change in ({"sasl_password": "wrong-secret"}, {"sasl_username": "nobody"}):
            error = await refused(start(secured.config(NODE, **change)))
            assert error.code == "ACCESS_DENIED"
            assert str(change.get("sasl_username", NODE)) in error.message

    asyncio.run(body())


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_authority(tmp_path_factory.mktemp("other"), "other").file

    async def body() -> None:
        error = await refused(start(secured.config(NODE, ssl_ca_file=str(other))))
        assert (error.code, str(other) in error.message) == ("INVALID_INPUT", True)
        error = await refused(start(secured.config(NODE, ssl_ca_file=None)))
        assert (error.code, "system certificates" in error.message) == ("INVALID_INPUT", True)

    asyncio.run(body())


def test_a_tls_file_that_cannot_be_used_is_named_before_anything_is_asked(secured: Secured) -> None:
    no_certificate = __file__
    for change in (
        {"ssl_ca_file": "/no/such/ca.pem"},
        {"ssl_ca_file": no_certificate},
        {"ssl_certificate_file": no_certificate, "ssl_key_file": no_certificate},
    ):
        with pytest.raises(AtomlogError) as raised:
            KafkaClient(secured.config(NODE, **change), timeout_s=1)
        assert raised.value.code == "INVALID_INPUT"
        assert next(iter(change.values())) in raised.value.message


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SSL"])
def test_another_protocol_than_the_ports_is_said_to_be_that(secured: Secured, protocol: str) -> None:
    async def body() -> None:
        error = await refused(start(secured.config(NODE, security_protocol=protocol)))
        assert error.code == "KAFKA_UNAVAILABLE"
        assert f"does the port expect {protocol}?" in error.message

    asyncio.run(body())


def test_a_mechanism_that_the_broker_does_not_have_is_said_to_be_wrong(secured: Secured) -> None:
    async def body() -> None:
        error = await refused(start(secured.config(NODE, sasl_mechanism="PLAIN")))
        assert (error.code, "PLAIN" in error.message) == ("INVALID_INPUT", True)

    asyncio.run(body())


def test_who_may_read_alone_reads_and_is_denied_to_write(secured: Secured) -> None:
    async def body() -> None:
        client, log = await _opened(secured.config(READER))
        await log.check()
        await log.read(0, 0, bytes_max=MUCH)
        error = await refused(log.append(0, records(1)))
        assert (error.code, TOPIC in error.message) == ("ACCESS_DENIED", True)
        await log.close()
        await client.close()

    asyncio.run(body())


def test_who_may_do_nothing_is_denied_everything(secured: Secured) -> None:
    async def body() -> None:
        client, log = await _opened(secured.config(STRANGER))
        stream = await client.stream(TOPIC, 0, 0)
        new = atoms_spec("mine.atoms", 1, 1, SETTINGS, Bounds()).new
        calls: list[Coroutine[Any, Any, object]] = [
            log.check(),
            log.acquire(0),
            log.append(0, records(1)),
            log.end(0),
            log.read(0, 0, bytes_max=1),
        ]
        calls += [log.wait(0, 0, 60), stream.next(1, 1), client.bounds(TOPIC, 0), client.create_topics([new])]
        assert {error.code for error in await asyncio.gather(*map(refused, calls))} == {"ACCESS_DENIED"}
        await log.close()
        await client.close()

    asyncio.run(body())


def test_no_secret_is_logged_even_where_everything_is(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        client, log = await _opened(secured.config(NODE))
        await log.append(0, records(1))
        await refused(start(secured.config(NODE, sasl_mechanism="PLAIN", sasl_password="wrong-secret")))
        await refused(start(secured.config(NODE, sasl_password="wrong-secret")))
        await log.close()
        await client.close()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(body())
        assert not logging.getLogger("aiokafka.conn").isEnabledFor(logging.DEBUG)  # there it has whole requests
    assert not any(secret in caplog.text for secret in (*PASSWORDS.values(), "wrong-secret"))
