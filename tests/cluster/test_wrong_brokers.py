"""Brokers that are not there, are somebody else's, or do not let a node in: one line that says what to change.

Nothing is left behind of an `init` that failed, but what the next one goes on with.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster.kernels import SETTINGS, Kernels
from tests.cluster.strangers import command, is_one_clear_line
from tests.support.commands import Done
from tests.support.kafka import SharedBroker
from tests.support.kafka_security import ADMIN, ADMIN_PASSWORD, SecureBrokers, make_authority, secure_brokers
from tests.support.zygote import COMMAND, zygote

QUICK = {**SETTINGS, "ATOMLOG_KAFKA_TIMEOUT_MS": "1500"}
UNAVAILABLE, DENIED, INVALID = "KAFKA_UNAVAILABLE", "ACCESS_DENIED", "INVALID_INPUT"
CODES = {UNAVAILABLE: 4, DENIED: 5, INVALID: 2, "LOG_MISMATCH": 70}
COMMANDS = (
    ("kernel", "--listen", "127.0.0.1:0"),
    ("consume", "ids"),
    ("get", "key:a", "--space", "s"),
    ("status",),
    ("move", "owner", "--partition", "0"),
    ("log", "dump", "--json"),
    ("inbox", "list"),
)

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def something_else() -> AsyncIterator[str]:
    """A port where somebody answers who is no broker."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n" * 3)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def check(done: Done, code: str, told: str, secret: str = "never said") -> None:
    assert (done.code, is_one_clear_line(done, code)) == (CODES[code], True), (done.code, done.err, done.out)
    assert told in done.err
    assert secret not in done.err + done.out


async def test_init_and_every_command_say_which_address_is_wrong_and_how(
    tmp_path: Path, kafka: SharedBroker, kafka_prefix: str
) -> None:
    log, target = tmp_path / "said.log", tmp_path / "new"
    config = tmp_path / "kafka.toml"
    async with Kernels(tmp_path, kafka, kafka_prefix) as kernels, something_else() as elsewhere:
        wrong: Mapping[str, tuple[str, str, str, str]] = {
            "nobody listens": ("127.0.0.1:1", "", UNAVAILABLE, "127.0.0.1:1"),
            "no such host": ("no.such.host.invalid:9092", "", UNAVAILABLE, "no.such.host.invalid:9092"),
            "no broker": (elsewhere, "", UNAVAILABLE, "does the port expect PLAINTEXT?"),
            "no port": ("localhost", "", INVALID, "localhost"),
            "no such port": ("localhost:99999", "", INVALID, "99999"),
            "nothing": ("", "", INVALID, "bootstrap"),
            "TLS": (kafka.bootstrap, 'security_protocol = "SSL"', UNAVAILABLE, "does the port expect SSL?"),
            "no security": (kafka.bootstrap, 'security_protocol = "TLS"', INVALID, "security_protocol"),
            "no password": (kafka.bootstrap, 'sasl_username = "u"\nsasl_mechanism = "PLAIN"', INVALID, "sasl_"),
            "no such file": (
                kafka.bootstrap,
                'security_protocol = "SSL"\nssl_ca_file = "/no/such.pem"',
                INVALID,
                "/no/such.pem",
            ),
        }
        for address, lines, code, told in wrong.values():
            config.write_text(lines)
            given = ("--kafka", address, "--kafka-config", str(config), "--prefix", f"{kafka_prefix}x")
            done = await command(log, "init", "--store", str(target), *given, environment=QUICK)
            check(done, code, told)
            assert not (target / "store.json").exists()
        # The node that was right, and whose brokers have gone.
        node = await kernels.directory("node")
        (node / "kafka.toml").write_text('bootstrap = "127.0.0.1:1"')
        for asked in COMMANDS:
            done = await command(log, *asked, "--store", str(node), environment=QUICK)
            check(done, UNAVAILABLE, "127.0.0.1:1")
        # What was begun goes on once the address is right.
        given = ("--kafka", kafka.bootstrap, "--prefix", f"{kafka_prefix}x", "--replication", "1")
        done = await command(log, "init", "--store", str(target), *given, environment=QUICK)
        assert done.code == 0, done.err


def toml(brokers: SecureBrokers, **changes: str) -> str:
    values = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": ADMIN,
        "ssl_ca_file": str(brokers.authority.file),
        **changes,
    }
    return "".join(f'{name} = "{value}"\n' for name, value in values.items() if value)


@pytest.mark.kafka
@pytest.mark.xdist_group("own-broker")
async def test_who_is_not_let_in_is_told_why_and_a_cluster_that_is_another_one_is_not_used(tmp_path: Path) -> None:
    users = {"reader": "reader-secret", "nobody": "nobody-secret"}
    log, node, config = tmp_path / "said.log", tmp_path / "node", tmp_path / "kafka.toml"
    other = make_authority(tmp_path, "other").file
    password = {**QUICK, "ATOMLOG_KAFKA_PASSWORD": ADMIN_PASSWORD}
    with secure_brokers(tmp_path / "brokers", users=users) as brokers:
        address = f'bootstrap = "{brokers.bootstrap}"\n'
        wrong: Mapping[str, tuple[dict[str, str], str, str, str]] = {
            "password": ({}, "wrong-secret", DENIED, ADMIN),
            "user": ({"sasl_username": "mallory"}, ADMIN_PASSWORD, DENIED, "mallory"),
            "authority": ({"ssl_ca_file": str(other)}, ADMIN_PASSWORD, INVALID, str(other)),
            "mechanism": ({"sasl_mechanism": "PLAIN"}, ADMIN_PASSWORD, INVALID, "PLAIN"),
            "protocol": (
                {"security_protocol": "SASL_PLAINTEXT", "ssl_ca_file": ""},
                ADMIN_PASSWORD,
                UNAVAILABLE,
                "SASL_PLAINTEXT?",
            ),
            "rights": ({"sasl_username": "nobody"}, users["nobody"], DENIED, "nobody"),
        }
        given = ("--kafka", brokers.bootstrap, "--kafka-config", str(config), "--replication", "1")

        async def asked(arguments: tuple[str, ...], secret: str) -> Done:
            environment = {**password, "ATOMLOG_KAFKA_PASSWORD": secret}
            return await command(log, *arguments, "--store", str(node), environment=environment)

        for changes, secret, code, told in wrong.values():
            config.write_text(toml(brokers, **changes))
            done = await asked(("init", *given), secret)
            check(done, code, told if "nobody" not in told else "atomlog.", secret)
        config.write_text(toml(brokers))
        done = await asked(("init", *given), ADMIN_PASSWORD)
        assert done.code == 0, done.err
        for changes, secret, code, told in wrong.values():
            (node / "kafka.toml").write_text(address + toml(brokers, **changes))
            for arguments in COMMANDS[:2]:
                done = await asked(arguments, secret)
                check(done, code, told if "nobody" not in told else "atomlog.", secret)
        (node / "kafka.toml").write_text(address + toml(brokers))
        environment = {**password, "ATOMLOG_METADATA_REFRESH_MS": "200"}
        listening = (*COMMANDS[0], "--store", str(node))
        kernel = await zygote().fork(COMMAND, *listening, log=tmp_path / "kernel.log", environment=environment)
        try:
            while b'"claimed"' not in (line := await kernel.stdout.readline()):
                assert line, (tmp_path / "kernel.log").read_text()
            # The same broker, with the same records, of another cluster.
            broker = brokers.brokers.node(1)
            await asyncio.to_thread(broker.stop)
            for meta in broker.data.rglob("meta.properties"):
                text = re.sub(r"cluster\.id=.*", "cluster.id=AnotherClusterIdXYZ0Q", meta.read_text())
                meta.write_text(text)
            await asyncio.to_thread(brokers.brokers.restart, 1)
            assert await kernel.wait() == 70
            (line_,) = (tmp_path / "kernel.log").read_text().splitlines()
            assert "LOG_MISMATCH" in line_
        finally:
            await kernel.killed()
        for asking in COMMANDS:
            done = await asked(asking, ADMIN_PASSWORD)
            check(done, "LOG_MISMATCH", "kafka.toml")
