"""Brokers that ask who you are: no login, no right, no service; and what was granted works."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kafka import probe
from deploy.kafka.errors import LauncherError
from tests.support.kafka_security import SecureBrokers, client_properties, make_authority, secure_brokers

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("own-broker")]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBrokers]:
    with secure_brokers(tmp_path_factory.mktemp("secure"), users={"kernel": "kernel-secret"}) as secure:
        connection = ("--bootstrap-server", secure.bootstrap, "--command-config", str(secure.admin_config))
        topic = ("--create", "--topic", "closed", "--partitions", "1", "--replication-factor", "1")
        secure.brokers.tool("org.apache.kafka.tools.TopicCommand", *connection, *topic)
        yield secure


def write(secure: SecureBrokers, directory: Path, user: str, password: str) -> None:
    """One line to the topic, LauncherError with what the client said if the broker refuses."""
    config = directory / "client.properties"
    config.write_text(client_properties(secure.authority, user, password), encoding="utf-8")
    connection = ("--bootstrap-server", secure.bootstrap, "--topic", "closed", "--command-config", str(config))
    patience = ("--sync", "--command-property", "max.block.ms=20000")
    secure.brokers.tool("org.apache.kafka.tools.ConsoleProducer", *connection, *patience, stdin="line\n")


def offset(secure: SecureBrokers) -> str:
    connection = ("--bootstrap-server", secure.bootstrap, "--command-config", str(secure.admin_config))
    return secure.brokers.tool("org.apache.kafka.tools.GetOffsetShell", *connection, "--topic", "closed").strip()


def test_plain_text_gets_no_answer(secure: SecureBrokers) -> None:
    host, _, port = secure.bootstrap.partition(":")
    with pytest.raises(probe.NoAnswer):
        probe.metadata(host, int(port))


def test_a_client_that_trusts_another_authority_finds_out(secure: SecureBrokers, tmp_path: Path) -> None:
    host, _, port = secure.bootstrap.partition(":")
    other = ssl.create_default_context(cafile=str(make_authority(tmp_path, "other").file))
    with pytest.raises(probe.NoAnswer, match="certificate verify failed"):
        probe.answers(host, int(port), tls=other)


def test_the_nodes_listeners_ask_for_a_certificate(secure: SecureBrokers) -> None:
    node = secure.brokers.node(1)
    trusting = ssl.create_default_context(cafile=str(secure.authority.file))
    with pytest.raises(probe.NoAnswer):
        probe.answers(node.spec.host, node.spec.broker_port, tls=trusting)


def test_a_user_may_do_what_was_allowed_and_nothing_before(secure: SecureBrokers, tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="invalid credentials"):
        write(secure, tmp_path, "kernel", "wrong")
    with contextlib.suppress(LauncherError):  # the tool may end well although the broker refused each line
        write(secure, tmp_path, "kernel", "kernel-secret")
    assert offset(secure) == "closed:0:0"
    secure.allow("kernel", "--operation", "Write", "--operation", "Describe", "--topic", "closed")
    write(secure, tmp_path, "kernel", "kernel-secret")
    assert offset(secure) == "closed:0:1"
    assert "principal=User:kernel" in secure.acls("--list")
