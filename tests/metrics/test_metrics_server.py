"""The server of the page: it answers one question, and nothing that is sent to it costs more than a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atomlog.consumers import metrics_server
from atomlog.consumers.metrics_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsServer, parse_address
from atomlog.kernel.errors import AtomlogError


async def the_page() -> bytes:
    return b"atomlog_x 1\n"


@asynccontextmanager
async def serving(page: Callable[[], Awaitable[bytes]] = the_page) -> Any:
    server = MetricsServer("0", page)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def asked(server: MetricsServer, request: bytes) -> bytes:
    host, port = server.endpoint.removeprefix("http://").removesuffix("/metrics").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def answer(request: bytes, page: Callable[[], Awaitable[bytes]] = the_page) -> bytes:
    async def scenario() -> bytes:
        async with serving(page) as server:
            return await asyncio.wait_for(asked(server, request), 30)

    return asyncio.run(scenario())


def test_the_page_is_what_get_metrics_gives() -> None:
    head, _, body = answer(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert b"Content-Length: 12" in head
    assert body == b"atomlog_x 1\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
        (b"DELETE /metrics HTTP/1.0\r\n\r\n", b"405"),
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", b"200"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
        (b"hello\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (2 * REQUEST_BYTES_MAX), b"400"),
    ],
)
def test_anything_else_is_refused(request_bytes: bytes, status: bytes) -> None:
    assert answer(request_bytes).startswith(b"HTTP/1.1 " + status)


def test_a_page_that_cannot_be_made_is_said_without_saying_what_went_wrong() -> None:
    async def broken() -> bytes:
        raise OSError("/secret/path is full")

    found = answer(b"GET /metrics HTTP/1.1\r\n\r\n", broken)
    assert found.startswith(b"HTTP/1.1 503")
    assert b"secret" not in found


def test_who_sends_nothing_is_let_go_of_and_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "SECONDS_MAX", 0.2)

    async def scenario() -> None:
        async with serving() as server:
            silent = await asyncio.gather(*(asked(server, b"") for _ in range(2 * CONNECTIONS_MAX)))
            assert silent == [b""] * (2 * CONNECTIONS_MAX)
            assert (await asked(server, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_two_pages_are_never_made_at_once() -> None:
    async def scenario() -> None:
        making, most, go_on = 0, 0, asyncio.Event()

        async def slow() -> bytes:
            nonlocal making, most
            making += 1
            most = max(most, making)
            await go_on.wait()
            making -= 1
            return b""

        async with serving(slow) as server:
            asking = [asyncio.create_task(asked(server, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(5)]
            while making == 0:
                await asyncio.sleep(0)
            go_on.set()
            answers = await asyncio.gather(*asking)
        assert most == 1
        assert all(one.startswith(b"HTTP/1.1 200") for one in answers)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_closing_ends_what_is_being_answered() -> None:
    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    async def scenario() -> bytes:
        async with serving(never) as server:
            asking = asyncio.create_task(asked(server, b"GET /metrics HTTP/1.1\r\n\r\n"))
            while not server._connections:
                await asyncio.sleep(0)
        return await asking

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == b""


def test_an_address_is_a_host_and_a_port_and_this_machine_alone_unless_named() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address(":9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:1") == ("0.0.0.0", 1)
    assert parse_address("[::1]:80") == ("[::1]", 80)


@pytest.mark.parametrize("address", ["", "host", "host:", "a:b", "1:2:3", "x:65536", "a b:1", None, 80])
def test_what_is_no_address_is_refused(address: Any) -> None:
    with pytest.raises(AtomlogError, match="INVALID_INPUT"):
        parse_address(address)


def test_an_address_that_is_taken_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with serving() as server:
            with pytest.raises(AtomlogError, match=r"INVALID_INPUT.*name another address"):
                await MetricsServer(server.endpoint.removeprefix("http://").removesuffix("/metrics"), the_page).start()

    asyncio.run(scenario())
