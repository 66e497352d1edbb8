"""The channel between nodes against strangers, peers that say nothing or nonsense, and many requests at once."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster import channel, credentials
from atomlog.consumers.cluster.channel import ChannelConnection, ChannelServer, parse_endpoint
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.kernel import jsontext
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.system import SystemFiles

SECONDS = 20.0
FILES = SystemFiles()


class Echo:
    """Answers with what was asked; `wait` waits for the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[Mapping[str, Any]] = []

    async def __call__(self, message: Mapping[str, Any]) -> Any:
        self.asked.append(message)
        if message["op"] == "wait":
            await self.gate.wait()
        if message["op"] == "refuse":
            raise fail("NOT_OWNER", "no", details=[{"path": "partition", "endpoint": "tls:b:1"}], retry_after_ms=7)
        return message.get("text")


def made(directory: Path, name: str = "node.pem") -> Credentials:
    path = str(directory / name)
    credentials.create(FILES, path)
    return Credentials.load(FILES, path)


@pytest.fixture
def own(tmp_path: Path) -> Credentials:
    return made(tmp_path)


@asynccontextmanager
async def serving(own: Credentials, echo: Echo) -> AsyncIterator[ChannelServer]:
    server = ChannelServer("127.0.0.1", 0, own, echo)
    await server.start()
    yield server
    await server.close()


async def opened(server: ChannelServer, own: Credentials) -> ChannelConnection:
    return await ChannelConnection.open(server.endpoint, own, SECONDS)


async def plain(server: ChannelServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*parse_endpoint(server.endpoint))


def message(**parts: Any) -> bytes:
    raw = jsontext.dumps(parts)
    return struct.pack(">I", len(raw)) + raw


def trusting(own: Credentials) -> ssl.SSLContext:
    """Of somebody who knows the certificate and has not the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=own.certificate)
    return context


async def refused_by(server: ChannelServer, context: ssl.SSLContext) -> None:
    """A TLS 1.3 client learns that it is refused when it reads."""
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        reader, writer = await asyncio.open_connection(*parse_endpoint(server.endpoint), ssl=context)
        try:
            writer.write(message(id=1, op="say", text="hello"))
            await writer.drain()
            await reader.readexactly(1)
        finally:
            writer.transport.abort()


async def test_a_node_is_answered_and_refused_in_the_owners_words(own: Credentials) -> None:
    async with serving(own, Echo()) as server:
        connection = await opened(server, own)
        assert await connection.ask("say", SECONDS, text="é") == "é"
        with pytest.raises(AtomlogError) as refused:
            await connection.ask("refuse", SECONDS)
        assert refused.value.code == "NOT_OWNER"
        assert refused.value.details == ({"path": "partition", "endpoint": "tls:b:1"},)
        assert refused.value.retry_after_ms == 7
        await connection.close()


async def test_what_is_said_is_tls_1_3_and_both_sides_show_their_certificate(own: Credentials) -> None:
    async with serving(own, Echo()) as server:
        _, writer = await asyncio.open_connection(*parse_endpoint(server.endpoint), ssl=own.asking)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.transport.abort()
        older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        older.check_hostname = False
        older.load_cert_chain(own.path)
        older.load_verify_locations(cadata=own.certificate)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        await refused_by(server, older)


async def test_a_stranger_is_refused_before_a_byte_of_its_request_is_read(tmp_path: Path, own: Credentials) -> None:
    echo = Echo()
    other = made(tmp_path, "other.pem")
    async with serving(own, echo) as server:
        await refused_by(server, trusting(own))  # no certificate
        forged = trusting(own)
        forged.load_cert_chain(other.path)
        await refused_by(server, forged)  # another one
        with pytest.raises(AtomlogError) as refused:
            await opened(server, other)  # trusts another one
        assert refused.value.code == "ACCESS_DENIED"
        assert "node.pem" in refused.value.message
        reader, writer = await plain(server)
        writer.write(message(id=1, op="say", text="hello"))
        assert await reader.read() in (b"", b"\x15\x03\x03\x00\x02\x02F"), "nothing, or a TLS alert"
        writer.close()
    assert echo.asked == []


async def test_what_the_own_certificate_signed_is_not_the_own_certificate(tmp_path: Path) -> None:
    """A certificate that may sign is trusted with all that it signed; here it must be itself."""
    authority, signed = signing_pair(tmp_path)
    echo = Echo()
    async with serving(authority, echo) as server:
        context = trusting(authority)
        context.load_cert_chain(signed)
        await refused_by(server, context)
    assert echo.asked == []


async def test_half_open_connections_are_let_go_of_and_hold_up_nobody(
    own: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.3)
    async with serving(own, Echo()) as server:
        halves = [await plain(server) for _ in range(20)]
        connection = await opened(server, own)
        assert await connection.ask("say", SECONDS, text=1) == 1
        for reader, writer in halves:
            assert await reader.read() == b""
            writer.close()
        await connection.close()
        while server._conversations:
            await asyncio.sleep(0)
        assert server._room._value == channel.CONNECTIONS_MAX - 1  # the one that is being waited for
        assert server._greetings._value == channel.GREETINGS_MAX - 1


async def test_few_connections_at_a_time_may_stand_without_a_certificate(
    own: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "GREETINGS_MAX", 2)
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.3)
    async with serving(own, Echo()) as server:
        halves = [await plain(server) for _ in range(5)]
        connection = await opened(server, own)  # when the first of them have been let go of
        assert len(server._conversations) <= 1 + channel.GREETINGS_MAX
        assert await connection.ask("say", SECONDS, text=1) == 1
        for _, writer in halves:
            writer.close()
        await connection.close()


async def test_connections_are_bounded_and_those_that_wait_come_in_later(
    own: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CONNECTIONS_MAX", 2)
    async with serving(own, Echo()) as server:
        first, second = [await opened(server, own) for _ in range(2)]
        third = asyncio.create_task(opened(server, own))
        assert await first.ask("say", SECONDS, text=1) == 1
        assert await second.ask("say", SECONDS, text=2) == 2
        assert not third.done()
        assert len(server._conversations) == 2
        await first.close()
        connection = await third
        assert await connection.ask("say", SECONDS, text=3) == 3
        await connection.close()
        await second.close()


GARBAGE = {
    "no JSON": struct.pack(">I", 4) + b"\xff\xfe{{",
    "no object": struct.pack(">I", 2) + b"[]",
    "no id": message(op="say"),
    "huge": struct.pack(">I", REQUEST_BYTES_MAX + 1) + b"{",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_what_is_no_message_ends_its_connection_and_no_other(own: Credentials, name: str) -> None:
    echo = Echo()
    async with serving(own, echo) as server:
        good = await opened(server, own)
        waiting = asyncio.create_task(good.ask("wait", SECONDS, text="still here"))
        reader, writer = await asyncio.open_connection(*parse_endpoint(server.endpoint), ssl=own.asking)
        writer.write(message(id=7, op="say", text="before") + GARBAGE[name])
        assert b"before" in await reader.read()
        writer.transport.abort()
        echo.gate.set()
        assert await waiting == "still here"
        await good.close()


async def test_garbage_instead_of_a_handshake_holds_up_nobody(own: Credentials) -> None:
    async with serving(own, Echo()) as server:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100_000, b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000):
            _, writer = await plain(server)
            writer.write(garbage)
            connection = await opened(server, own)
            assert await connection.ask("say", SECONDS, text=1) == 1
            await connection.close()
            writer.close()


async def test_a_thousand_requests_at_once_are_all_answered_each_to_its_own(own: Credentials) -> None:
    async with serving(own, Echo()) as server:
        connections = [await opened(server, own) for _ in range(2)]
        asked = [connections[n % 2].ask("say", SECONDS, text=n) for n in range(1_500)]
        assert await asyncio.gather(*asked) == list(range(1_500))
        large = "x" * 3_000_000
        assert await connections[0].ask("say", SECONDS, text=large) == large
        for connection in connections:
            await connection.close()


async def test_a_server_that_closes_leaves_no_question_open(own: Credentials) -> None:
    echo = Echo()
    async with serving(own, echo) as server:
        connection = await opened(server, own)
        asked = [asyncio.create_task(connection.ask("wait", SECONDS)) for _ in range(10)]
        while len(echo.asked) < 10:
            await asyncio.sleep(0)
        await server.close()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(error) for error in ended} == {ConnectionError}
        assert connection.broken
        await connection.close()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        await opened(server, own)


async def test_a_peer_that_never_shakes_hands_ends_in_a_timeout(own: Credentials) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    with pytest.raises(TimeoutError):
        await ChannelConnection.open(f"tls:127.0.0.1:{port}", own, 0.05)
    ended.set()
    listening.close()
    await listening.wait_closed()


async def test_a_place_that_is_taken_is_told_as_such(own: Credentials) -> None:
    async with serving(own, Echo()) as server:
        second = ChannelServer("127.0.0.1", parse_endpoint(server.endpoint)[1], own, Echo())
        with pytest.raises(AtomlogError) as refused:
            await second.start()
        assert refused.value.code == "INVALID_INPUT"
        await second.close()


def test_an_endpoint_names_host_and_port() -> None:
    assert parse_endpoint("tls:node-1.example:9443") == ("node-1.example", 9443)
    assert parse_endpoint("tls:[::1]:1") == ("::1", 1)
    for wrong in ("node:1", "tls:node", "tls:node:0", "tls:node:65536", "tls:a b:1", "unix:owner.sock", "", None, 7):
        with pytest.raises(AtomlogError):
            parse_endpoint(wrong)


def test_node_pem_is_the_users_alone_and_is_not_used_otherwise(tmp_path: Path, own: Credentials) -> None:
    path = tmp_path / "node.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in repr(own)
    path.chmod(0o640)
    with pytest.raises(AtomlogError) as refused:
        Credentials.load(FILES, str(path))
    assert (refused.value.code, "chmod 600" in refused.value.message) == ("INVALID_INPUT", True)
    path.chmod(0o600)
    whole = path.read_bytes()
    key, certificate = whole[: whole.index(b"-----BEGIN CERT")], whole[whole.index(b"-----BEGIN CERT") :]
    other = made(tmp_path, "other.pem")
    for raw in (b"", key, certificate, whole + certificate, b"x" * 100_000, key + Path(other.path).read_bytes()[-600:]):
        path.write_bytes(raw)
        with pytest.raises(AtomlogError) as refused:
            Credentials.load(FILES, str(path))
        assert refused.value.code == "INVALID_INPUT"
    path.unlink()
    with pytest.raises(AtomlogError) as refused:
        Credentials.load(FILES, str(path))
    assert refused.value.code == "STORE_NOT_FOUND"
    assert "--node-pem" in refused.value.message


def signing_pair(directory: Path) -> tuple[Credentials, Path]:
    """Credentials whose certificate may sign, and the file of what it has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def built(key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, name: str, ca: bool) -> bytes:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        certificate = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(credentials._FROM)
            .not_valid_after(credentials._UNTIL)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(by, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private + certificate.public_bytes(serialization.Encoding.PEM)

    authority, member = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (directory / "authority.pem").write_bytes(built(authority, authority, "authority", True))
    (directory / "authority.pem").chmod(0o600)
    (directory / "signed.pem").write_bytes(built(member, authority, "member", False))
    return Credentials.load(FILES, str(directory / "authority.pem")), directory / "signed.pem"
