"""`owner.sock` against peers that are strangers, broken, slow, many, or gone."""

import asyncio
import errno
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers import exchange, owner_socket
from atomlog.consumers.owner_socket import NAME, OwnerConnection, OwnerServer
from atomlog.kernel import jsontext
from atomlog.kernel.bounds import REQUEST_BYTES_MAX
from atomlog.kernel.errors import AtomlogError, fail

SECONDS = 20.0


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
            raise fail("REVISION_CONFLICT", "no", details=[{"path": "changes[0]"}], retry_after_ms=7)
        if message["op"] == "break":
            raise ZeroDivisionError("a bug")
        return message.get("text")


@asynccontextmanager
async def serving(directory: Path, echo: Echo) -> AsyncIterator[OwnerServer]:
    server = OwnerServer(str(directory), echo)
    await server.start()
    yield server
    await server.close()


class Raw:
    """A peer that sends bytes."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.socket.connect(f"/proc/self/fd/{descriptor}/{NAME}")
        finally:
            os.close(descriptor)

    async def send(self, raw: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, raw)

    async def receive(self) -> bytes:
        """Everything until the other side closes."""
        parts = []
        while part := await asyncio.get_running_loop().sock_recv(self.socket, 65_536):
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self.socket.close()


def message(**parts: Any) -> bytes:
    raw = jsontext.dumps(parts)
    return struct.pack(">I", len(raw)) + raw


async def ask(connection: OwnerConnection, op: str, **parts: Any) -> Any:
    return await connection.ask(op, SECONDS, **parts)


async def test_the_socket_is_the_users_alone_and_a_long_path_does_not_matter(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    async with serving(directory, Echo()):
        mode = (directory / NAME).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        connection = await OwnerConnection.open(str(directory))
        assert await ask(connection, "say", text="é") == "é"
        await connection.close()
    assert not (directory / NAME).exists()
    with pytest.raises(ConnectionError):
        await OwnerConnection.open(str(directory))


async def test_what_stands_in_the_sockets_place_is_replaced_and_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    for plant in (
        lambda: stale.bind(str(tmp_path / NAME)),
        lambda: (tmp_path / NAME).symlink_to(precious),
        lambda: (tmp_path / NAME).write_text("a file"),
    ):
        plant()
        async with serving(tmp_path, Echo()):
            connection = await OwnerConnection.open(str(tmp_path))
            assert await ask(connection, "say", text=1) == 1
            await connection.close()
    assert precious.read_text() == "mine"
    assert stat.S_IMODE(precious.stat().st_mode) != 0o600
    stale.close()


async def test_another_user_is_not_served_and_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    async with serving(tmp_path, echo):
        monkeypatch.setattr(owner_socket, "peer_uid", lambda writer: os.getuid() + 1)
        raw = Raw(tmp_path)
        await raw.send(message(id=1, op="say", text="hello"))
        with suppress(ConnectionResetError):
            assert await raw.receive() == b""
        raw.close()
        with pytest.raises(AtomlogError) as refused:
            await OwnerConnection.open(str(tmp_path))
        assert refused.value.code == "STORE_LOCKED"
        assert f"user {os.getuid() + 1}" in refused.value.message
    assert echo.asked == []


NO_MESSAGES = {
    "no JSON": message(id=1) + struct.pack(">I", 4) + b"\xff\xfe{{",
    "deep": struct.pack(">I", 400_000) + b"[" * 400_000,
    "no object": struct.pack(">I", 2) + b"[]",
    "a text": struct.pack(">I", 2) + b'""',
    "empty": struct.pack(">I", 0),
    "huge": struct.pack(">I", REQUEST_BYTES_MAX + 1) + b"{",
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", NO_MESSAGES)
async def test_what_is_no_message_ends_its_connection_and_no_other(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Echo()
    async with serving(tmp_path, echo):
        good = await OwnerConnection.open(str(tmp_path))
        waiting = asyncio.create_task(ask(good, "wait", text="still here"))
        raw = Raw(tmp_path)
        await raw.send(message(id=7, op="say", text="before") + NO_MESSAGES[name])
        answered = await raw.receive()
        assert b"before" in answered, "what was asked before is answered"
        raw.close()
        echo.gate.set()
        assert await waiting == "still here"
        assert await ask(good, "say", text=2) == 2
        await good.close()
    assert caplog.records == []


async def test_half_a_message_and_silence_hold_up_nobody_and_not_the_closing(tmp_path: Path) -> None:
    async with serving(tmp_path, Echo()):
        peers = [Raw(tmp_path) for _ in range(3)]
        await peers[0].send(b"\x00\x00")
        await peers[1].send(struct.pack(">I", 1_000) + b'{"id"')
        await peers[2].send(struct.pack(">I", REQUEST_BYTES_MAX) + b" " * 100)
        good = await OwnerConnection.open(str(tmp_path))
        assert await ask(good, "say", text=1) == 1
        peers[1].close()
        assert await ask(good, "say", text=2) == 2
        await good.close()
    for peer in peers:
        peer.close()


async def test_a_reader_that_does_not_read_is_asked_no_more_and_holds_up_nobody(tmp_path: Path) -> None:
    echo = Echo()
    async with serving(tmp_path, echo):
        slow = Raw(tmp_path)
        request = message(id=1, op="say", text="x" * 10_000)
        sending = asyncio.create_task(slow.send(request * 20_000))  # 200 MB, were they all answered
        while not echo.asked:
            await asyncio.sleep(0)
        good = await OwnerConnection.open(str(tmp_path))
        for n in range(100):
            assert await ask(good, "say", text=n) == n
        assert len(echo.asked) < exchange.REQUESTS_MAX + 1_000
        assert not sending.done()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await good.close()
    slow.close()


async def test_two_thousand_requests_at_once_are_all_answered_each_to_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path, Echo()):
        connections = [await OwnerConnection.open(str(tmp_path)) for _ in range(2)]
        asked = [ask(connections[n % 2], "say", text=n) for n in range(2_000)]
        assert await asyncio.gather(*asked) == list(range(2_000))
        for connection in connections:
            assert connection._waiting == {}
            await connection.close()


async def test_a_refusal_comes_in_the_owners_words_and_a_bug_is_told_as_not_known(tmp_path: Path) -> None:
    async with serving(tmp_path, Echo()):
        connection = await OwnerConnection.open(str(tmp_path))
        with pytest.raises(AtomlogError) as refused:
            await ask(connection, "refuse")
        assert refused.value.to_dict() == {
            "code": "REVISION_CONFLICT",
            "kind": "conflict",
            "message": "no",
            "details": [{"path": "changes[0]"}],
            "retry_after_ms": 7,
        }
        others = asyncio.create_task(ask(connection, "say", text="beside"))
        with pytest.raises(AtomlogError) as unknown:
            await ask(connection, "break")
        assert unknown.value.code == "IN_DOUBT"
        assert "ZeroDivisionError" in unknown.value.message
        assert await others == "beside"
        await connection.close()


async def test_a_request_that_is_too_long_is_refused_by_who_sends_it(tmp_path: Path) -> None:
    async with serving(tmp_path, Echo()):
        connection = await OwnerConnection.open(str(tmp_path))
        with pytest.raises(AtomlogError) as refused:
            await ask(connection, "say", text="x" * REQUEST_BYTES_MAX)
        assert refused.value.code == "BOUND_EXCEEDED"
        assert await ask(connection, "say", text=1) == 1
        await connection.close()


async def test_a_server_that_closes_leaves_no_question_open(tmp_path: Path) -> None:
    echo = Echo()
    async with serving(tmp_path, echo) as server:
        connection = await OwnerConnection.open(str(tmp_path))
        asked = [asyncio.create_task(ask(connection, "wait")) for _ in range(10)]
        while len(echo.asked) < 10:
            await asyncio.sleep(0)
        await server.close()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(error) for error in ended} == {ConnectionError}
        assert connection.broken
        with pytest.raises(ConnectionError):
            await ask(connection, "say")
        await connection.close()


async def test_an_owner_that_does_not_answer_ends_in_a_timeout_and_forgets_the_question(tmp_path: Path) -> None:
    async with serving(tmp_path, Echo()):
        connection = await OwnerConnection.open(str(tmp_path))
        with pytest.raises(TimeoutError):
            await connection.ask("wait", 0.01)
        assert connection._waiting == {}
        assert await ask(connection, "say", text=1) == 1
        await connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"id": 1, "ok": False, "error": {"code": "OF_THE_FUTURE", "message": "?"}},
        {"id": 1},
        {"ok": True, "result": 1},
    ],
    ids=["unknown code", "no verdict", "no id"],
)
async def test_an_answer_that_is_not_understood_breaks_the_connection(tmp_path: Path, answer: dict[str, Any]) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(message(**answer))
        await writer.drain()
        await reader.read()
        writer.close()

    listening = await asyncio.start_unix_server(peer, path=str(tmp_path / NAME))
    connection = await OwnerConnection.open(str(tmp_path))
    with pytest.raises(ConnectionError, match="not understood"):
        await ask(connection, "say")
    assert connection.broken
    await connection.close()
    listening.close()
    await listening.wait_closed()


async def test_an_owner_that_takes_nobody_in_is_not_there_yet(tmp_path: Path) -> None:
    busy = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    busy.bind(str(tmp_path / NAME))
    busy.listen(0)
    waiting = Raw(tmp_path)  # fills the queue
    with pytest.raises(ConnectionError, match="more connections"):
        await OwnerConnection.open(str(tmp_path))
    waiting.close()
    busy.close()


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, "STORE_READ_ONLY"), (errno.EOPNOTSUPP, "STORE_LOCKED")], ids=["rights", "none"]
)
async def test_a_socket_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def bind(self: socket.socket, address: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", bind)
    server = OwnerServer(str(tmp_path), Echo())
    with pytest.raises(AtomlogError) as refused:
        await server.start()
    assert refused.value.code == code
    await server.close()
