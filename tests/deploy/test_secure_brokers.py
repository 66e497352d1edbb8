"""Brokers that ask who you are: no login, no right, no service; and what was granted works."""

import ssl
from pathlib import Path

import pytest

from atomlog.kernel.errors import AtomlogError
from deploy.kafka import probe
from tests.deploy.secured import CLOSED, logged_in, write
from tests.support.kafka_security import SecureBrokers, make_authority

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("own-broker")]


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


async def test_a_wrong_password_is_refused(secure: SecureBrokers) -> None:
    with pytest.raises(AtomlogError) as refused:
        async with logged_in(secure, "kernel", "wrong"):
            pass
    assert refused.value.code == "ACCESS_DENIED"


async def test_a_user_may_do_what_was_allowed_and_nothing_before(secure: SecureBrokers) -> None:
    async with logged_in(secure, "kernel") as kernel, logged_in(secure, "admin") as admin:
        with pytest.raises(AtomlogError) as refused:
            await write(kernel, CLOSED)
        assert refused.value.code == "ACCESS_DENIED"
        assert await admin.end(CLOSED, 0) == 0
        secure.allow("kernel", "--operation", "Write", "--operation", "Describe", "--topic", CLOSED)
        await write(kernel, CLOSED)
        assert await admin.end(CLOSED, 0) == 1
    assert f"name={CLOSED}" in secure.acls("--list", "--principal", "User:kernel")
