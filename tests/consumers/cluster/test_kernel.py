"""`run_kernel` and `move_owner` before they reach a broker, and the page of a kernel for Prometheus."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster.kernel import move_owner, run_kernel
from atomlog.consumers.cluster.kernel_metrics import KernelMetrics
from atomlog.consumers.creation import create_store
from atomlog.consumers.machine import Machine
from atomlog.kernel.errors import AtomlogError
from tests.consumers.cluster.nodes import Cluster
from tests.support.kernel_world import batch, create


@pytest.fixture
def embedded(tmp_path: Path) -> str:
    create_store(str(tmp_path / "store"), machine=Machine())
    return str(tmp_path / "store")


async def test_an_embedded_store_has_no_kernel(embedded: str) -> None:
    with pytest.raises(AtomlogError, match="embedded store") as refused:
        await run_kernel(embedded, listen="127.0.0.1:0")
    assert refused.value.code == "INVALID_INPUT"
    with pytest.raises(AtomlogError, match="embedded store"):
        await move_owner(embedded, 0)


@pytest.mark.parametrize("listen", ["", "host", ":7420", "host:", "host:70000", "ho st:1", "tls:host:1", "[zz]:1"])
async def test_where_it_listens_is_a_host_and_a_port(embedded: str, listen: str) -> None:
    with pytest.raises(AtomlogError, match="HOST:PORT") as refused:
        await run_kernel(embedded, listen=listen)
    assert refused.value.code == "INVALID_INPUT"


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"listen": "0.0.0.0:1"}, "advertise"),
        ({"listen": "[::]:1"}, "advertise"),
        ({"listen": "0.0.0.0:1", "advertise": "host:1"}, "advertise"),
        ({"listen": "host:1", "advertise": ""}, "advertise"),
        ({"listen": "host:1", "name": ""}, "name"),
        ({"listen": "host:1", "name": "tls:host:1"}, "name"),
        ({"listen": "host:1", "name": "a\nb"}, "name"),
    ],
)
async def test_what_others_are_told_can_be_used_by_them(embedded: str, wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(AtomlogError) as refused:
        await run_kernel(embedded, **wrong)
    assert (refused.value.code, refused.value.details[0]["path"]) == ("INVALID_INPUT", path)


async def test_the_page_of_a_kernel_counts_what_it_wrote(tmp_path: Path) -> None:
    made = Cluster(tmp_path)
    events: list[Mapping[str, Any]] = []
    metrics = KernelMetrics("127.0.0.1:0")
    heard = metrics.listening(events.append)
    try:
        running = await made.node("one")
        await made.owner()
        for event in running.events:
            heard(event)
        await made.ask(running, "write", batch=batch("k", create("a")))
        await metrics.start(running.parts, running.node)
        page = await _page(str(running.said("metrics")[0]["endpoint"]))
        assert 'atomlog_claims_total{partition="0"} 1.0' in page
        assert [event["event"] for event in events].count("claimed") == 1
    finally:
        await metrics.close()
        await made.close()


async def _page(endpoint: str) -> str:
    host, _, port = endpoint.removeprefix("http://").partition("/")[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    page = await reader.read()
    writer.close()
    return page.decode()
