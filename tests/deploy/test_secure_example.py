"""deploy/secure: the files are read as their readers read them, and the ACLs are run and tried on a real broker."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.kafka.client import KafkaClient, KafkaConfig
from atomlog.kernel.system import SystemFiles
from tests.deploy.secured import SECURE, logged_in, look, read, write
from tests.support.kafka_security import SECURITY_PREFIXES, SecureBrokers, example_properties


def properties(name: str) -> Mapping[str, str]:
    """A file of Java properties; each name once."""
    lines = (SECURE / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    assert len({key for key, _, _ in pairs}) == len(pairs)
    assert all(equals for _, equals, _ in pairs)
    return {key: value for key, _, value in pairs}


def load_example(directory: Path, environment: Mapping[str, str]) -> KafkaConfig:
    """The example's kafka.toml, in a node directory."""
    (directory / "kafka.toml").write_bytes((SECURE / "kafka.toml").read_bytes())
    return KafkaConfig.load(SystemFiles(), str(directory / "kafka.toml"), environment)


def test_the_nodes_configuration_is_one_that_nodes_take(tmp_path: Path) -> None:
    (tmp_path / "kafka-password").write_text("k-secret\n", encoding="utf-8")
    config = load_example(tmp_path, {})
    assert len(config.bootstrap) == 3
    assert (config.security_protocol, config.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (config.sasl_username, config.sasl_password) == ("kernel", "k-secret")
    assert config.ssl_ca_file == f"{tmp_path}/ca.pem"
    assert load_example(tmp_path, {"ATOMLOG_KAFKA_PASSWORD": "other"}).sasl_password == "other"


def test_the_nodes_configuration_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AtomlogError, match="sasl_password_file"):
        load_example(tmp_path, {})


def test_the_brokers_lose_nothing_and_let_nobody_in_unasked() -> None:
    found = properties("broker.properties")
    assert (found["default.replication.factor"], found["min.insync.replicas"]) == ("3", "2")
    assert found["unclean.leader.election.enable"] == "false"
    assert found["allow.everyone.if.no.acl.found"] == "false"
    assert "PLAINTEXT" not in "".join(found.values())
    assert "ANONYMOUS" not in found["super.users"]
    assert example_properties().items() <= found.items()
    assert not [name for name in example_properties() if not name.startswith(SECURITY_PREFIXES)]


def test_the_producers_file_logs_in_as_the_brokers_ask() -> None:
    found = properties("producer.properties")
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.mechanism"] == properties("broker.properties")["sasl.enabled.mechanisms"]
    assert found["acks"] == "all"


Act = Callable[[KafkaClient, str], Awaitable[None]]
RIGHTS: Mapping[str, Mapping[Act, tuple[str, ...]]] = {
    "kernel": {
        write: ("atoms", "keys", "reads", "control", "results.alice"),
        read: ("atoms", "keys", "reads", "control", "inbox.alice", "inbox.bob"),
        look: ("atoms", "keys", "inbox.alice"),
    },
    "consumer": {write: ("reads", "control"), read: ("atoms", "keys", "reads", "control"), look: ("atoms", "keys")},
    "alice": {write: ("inbox.alice",), read: ("results.alice",)},
}
NO_RIGHTS: Mapping[str, Mapping[Act, tuple[str, ...]]] = {
    "consumer": {write: ("atoms", "keys", "inbox.alice", "results.alice"), read: ("inbox.alice",)},
    "alice": {
        write: ("atoms", "keys", "control", "inbox.bob", "results.alice"),
        read: ("atoms", "keys", "inbox.bob", "inbox.alice"),
    },
}


@pytest.mark.kafka
@pytest.mark.xdist_group("own-broker")
@pytest.mark.parametrize("user", RIGHTS)
async def test_what_the_acls_grant_can_be_done(secure: SecureBrokers, user: str) -> None:
    async with logged_in(secure, user) as client:
        for act, topics in RIGHTS[user].items():
            for topic in topics:
                await act(client, f"atomlog.{topic}")


@pytest.mark.kafka
@pytest.mark.xdist_group("own-broker")
@pytest.mark.parametrize("user", NO_RIGHTS)
async def test_what_the_acls_do_not_grant_is_denied(secure: SecureBrokers, user: str) -> None:
    async with logged_in(secure, user) as client:
        for act, topics in NO_RIGHTS[user].items():
            for topic in topics:
                with pytest.raises(AtomlogError) as refused:
                    await act(client, f"atomlog.{topic}")
                assert refused.value.code == "ACCESS_DENIED", (act, topic)
