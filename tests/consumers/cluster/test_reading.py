"""Reads that span nodes: forwarded whole to one that has it all, to the byte, and refused by name where nobody has.

Each node is a directory with the same log and other partitions; they talk over the real channel.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster import credentials
from atomlog.consumers.cluster.channel import ChannelServer
from atomlog.consumers.cluster.connections import Connections
from atomlog.consumers.cluster.credentials import Credentials
from atomlog.consumers.cluster.holdings import projection_reports
from atomlog.consumers.cluster.reading import Elsewhere, ReadService
from atomlog.consumers.cluster.reports import NodeReport
from atomlog.consumers.cluster.routed import RoutedReader
from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ids import parse_id
from atomlog.kernel.system import SystemFiles
from atomlog.projections.read.elsewhere import NotHeld
from atomlog.projections.read.page import Page
from atomlog.projections.read.reader import Reader, ReadOptions
from atomlog.projections.read.selectors import parse_selector
from tests.acceptance.expect import refused
from tests.acceptance.writing import membership
from tests.consumers.test_partial import HELD, consumed, planted, space_in
from tests.consumers.worlds import run


class Node:
    """One node: its store, what it is asked, and what it says of itself."""

    def __init__(self, name: str, store: AsyncStore, own: Credentials) -> None:
        self.name = name
        self.store = store
        self.asked: list[str] = []
        self.answers_with: Any = ...  # instead of the truth
        reader = store._reader
        assert isinstance(reader, Reader)
        self.service = ReadService(reader=reader)
        self.server = ChannelServer("127.0.0.1", 0, own, self.answer)

    async def answer(self, message: Mapping[str, Any]) -> Any:
        self.asked.append(message["op"])
        if self.answers_with is not ...:
            return self.answers_with
        return await self.service.answer(message)

    async def report(self) -> NodeReport:
        return NodeReport(
            node=self.name.encode().ljust(16),
            name=self.name,
            role="consumer",
            endpoint=self.server.endpoint,
            pid=1,
            at_us=0,
            projections=await projection_reports(list(self.store.views.values())),
            disk_free_bytes=0,
            disk_reserve_bytes=0,
        )


class Said:
    """What was heard on the control topic."""

    def __init__(self, reports: Sequence[NodeReport]) -> None:
        self.reports = list(reports)

    async def nodes(self) -> Sequence[NodeReport]:
        return self.reports


class Cluster:
    """A node that has partitions 0 and 2, and others by name; `made`: partition → name → atom."""

    def __init__(self, here: RoutedReader, store: AsyncStore, others: Mapping[str, Node], said: Said) -> None:
        self.here = here
        self.store = store
        self.others = others
        self.said = said
        self.made: dict[int, dict[str, str]] = {}

    async def read(self, selector: Mapping[str, Any], **options: Any) -> Page:
        return await self.here.read(parse_selector(selector), ReadOptions(**options))

    @property
    def asked(self) -> list[str]:
        return [name for name, node in self.others.items() for _ in node.asked]


@asynccontextmanager
async def cluster(
    tmp_path: Path, others: Mapping[str, Sequence[int] | str], *, own_projections: Sequence[str] = PROJECTIONS
) -> AsyncIterator[Cluster]:
    directory = tmp_path / "here"
    made = await planted(str(directory))
    async with AsyncStore.open(str(directory), create=False, projections=()) as store:
        across = membership(made[0]["@group"], made[1]["@tea"])
        await store.write({"space": space_in(0), "idempotency_key": "across", "changes": [across]})
    credentials.create(SystemFiles(), str(tmp_path / "node.pem"))
    own = Credentials.load(SystemFiles(), str(tmp_path / "node.pem"))
    nodes: dict[str, Node] = {}
    for name, partitions in others.items():
        copy = str(tmp_path / name)
        shutil.copytree(directory, copy)
        await consumed(copy, partitions=partitions)
        nodes[name] = Node(name, await AsyncStore.open(copy, create=False, follow=False), own)
        await nodes[name].server.start()
    await consumed(str(directory), partitions=HELD)
    connections = Connections(lambda: own)
    store = await AsyncStore.open(str(directory), create=False, follow=False, projections=own_projections)
    try:
        said = Said([await node.report() for node in nodes.values()])
        reader = store._reader
        assert isinstance(reader, Reader)
        elsewhere = Elsewhere(reader, said, connections, call_timeout_ms=5_000)
        found = Cluster(RoutedReader(reader, elsewhere, store.views), store, nodes, said)
        found.made = made
        yield found
    finally:
        await connections.close()
        await store.close()
        for node in nodes.values():
            await node.server.close()
            await node.store.close()


def test_a_read_of_what_is_here_asks_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all"}) as nodes:
            page = await nodes.read({"type": "ids", "ids": [nodes.made[2]["@tea"]]})
            assert page.atoms[0].value == {"text": "tea 2"}
            assert nodes.asked == []
            assert "network_calls" not in page.receipt.budget

    run(work())


@pytest.mark.parametrize("mode", ["snapshot", "version_pinned"])
def test_a_forwarded_read_is_the_page_of_the_node_that_has_it_all_to_the_byte(tmp_path: Path, mode: str) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all", "c": [1]}) as nodes:
            made = nodes.made
            selectors: list[dict[str, Any]] = [
                {"type": "ids", "ids": [made[1]["@tea"]]},
                {"type": "ids", "ids": [made[0]["@tea"], made[1]["@tea"]]},
                {"type": "history", "atom": made[1]["@tea"]},
                {"type": "members", "group": made[0]["@group"]},
                {"type": "members", "group": made[0]["@group"], "and": [made[1]["@group"]]},
                {"type": "groups", "member": made[1]["@tea"]},
                {"type": "relations", "target": made[1]["@tea"]},
                {"type": "recall", "text": "tea"},
                {"type": "recall", "text": "tea", "scope": {"space": space_in(1)}},
            ]
            whole = nodes.others["b"].store
            for number, selector in enumerate(selectors, 1):
                page = await nodes.read(selector, consistency=mode)
                there = await whole.read(selector, consistency=mode)
                if selector["type"] != "ids" or len(page.atoms) > 1:
                    assert page.body() == there.body(), selector
                assert page.receipt.mode == mode
                assert page.receipt.budget["network_calls"] == 1
                assert page.diagnostics.to_dict() == there.diagnostics.to_dict()
                # The receipt was made there, and is kept on both.
                assert (await nodes.here.receipt(page.receipt.receipt)).to_dict() == page.receipt.to_dict()
                assert (await whole.receipt(page.receipt)).to_dict() == page.receipt.to_dict()
                assert len(nodes.others["b"].asked) == number
            assert nodes.others["c"].asked == [], "only who has it all is asked"

    run(work())


def test_the_receipt_of_a_forwarded_read_replays_here_and_is_verified_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all"}) as nodes:
            page = await nodes.read({"type": "members", "group": nodes.made[0]["@group"]})
            assert len(page.atoms) == 2
            again = await nodes.here.replay(page.receipt.receipt)
            assert again.body() == page.body()
            verified = await nodes.here.verify(page.receipt.receipt)
            assert (verified.receipt, verified.exact, verified.equal) == (page.receipt.receipt, True, True)
            nodes.others["b"].asked.clear()
            local = await nodes.read({"type": "ids", "ids": [nodes.made[0]["@tea"]]})
            assert (await nodes.here.replay(local.receipt.receipt)).body() == local.body()
            assert nodes.asked == []

    run(work())


def test_pages_go_on_at_the_node_that_keeps_their_cursor(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all", "c": "all"}) as nodes:
            selector = {"type": "members", "group": nodes.made[0]["@group"]}
            first = await nodes.read(selector, limit=1)
            assert first.continuation is not None
            server = nodes.asked[0]
            second = await nodes.read(selector, limit=1, continuation=first.continuation)
            assert nodes.asked == [server, server]
            assert second.receipt.continues == first.receipt.receipt
            both = await nodes.others["b"].store.read(selector)
            assert [row.atom for row in (*first.atoms, *second.atoms)] == [row.atom for row in both.atoms]
            # A continuation of another read, or of a node that is gone, is no continuation.
            other = {**selector, "include_retired": True}
            await refused(nodes.read(other, continuation=first.continuation), "CURSOR_EXPIRED")
            await nodes.others[server].server.close()
            await refused(nodes.read(selector, continuation=first.continuation), "CURSOR_EXPIRED")
            nodes.said.reports.clear()
            await refused(nodes.read(selector, continuation=first.continuation), "CURSOR_EXPIRED")

    run(work())


def test_another_node_is_asked_when_the_first_is_gone_or_has_less_than_it_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all", "c": [1], "d": "all"}) as nodes:
            by_name = {report.name: report for report in nodes.said.reports}
            await nodes.others["b"].server.close()
            lying = replace(by_name["c"], projections=by_name["b"].projections)
            nodes.said.reports = [by_name["b"], lying, by_name["d"]]
            page = await nodes.read({"type": "members", "group": nodes.made[0]["@group"]})
            assert len(page.atoms) == 2
            assert nodes.asked == ["c", "d"]
            assert page.receipt.budget["network_calls"] == 3

    run(work())


def test_what_nobody_holds_is_refused_in_a_snapshot_and_named_in_a_version_pinned_page(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all", "c": [1]}) as nodes:
            await nodes.others["b"].server.close()
            selector = {"type": "members", "group": nodes.made[0]["@group"]}
            with pytest.raises(NotHeld) as caught:
                await nodes.read(selector, consistency="snapshot")
            assert "b at tls:127.0.0.1" in caught.value.message
            page = await nodes.read(selector, consistency="version_pinned")
            named = [cut for cut in page.diagnostics.truncated if cut["part"] == "partitions"]
            assert {cut["index"] for cut in named} == {"ids", "relations"}
            assert all(cut["partitions"] == [1] for cut in named)
            assert [dict(cut) for cut in page.receipt.truncations] == [dict(cut) for cut in page.diagnostics.truncated]
            assert not page.receipt.ranges[0].complete
            assert page.receipt.budget["network_calls"] == 1
            # An atom that nobody can look for is not "not found".
            for mode in ("snapshot", "version_pinned"):
                with pytest.raises(NotHeld):
                    await nodes.read({"type": "ids", "ids": [nodes.made[1]["@group"]]}, consistency=mode)

    run(work())


def test_what_the_other_node_says_of_the_request_is_the_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all"}) as nodes:
            unknown = "0190a0b4-5c3e-7000-8000-000000000000"
            await refused(nodes.read({"type": "ids", "ids": [unknown]}), "NOT_FOUND")
            await refused(nodes.read({"type": "history", "atom": nodes.made[1]["@tea"]}, limit=0), "INVALID_INPUT")
            history = {"type": "history", "atom": nodes.made[1]["@tea"]}
            await refused(nodes.read(history, at={1: 10**6}, timeout_ms=1), "INVALID_INPUT")

    run(work())


def test_a_node_without_any_projection_reads_through_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all"}, own_projections=()) as nodes:
            page = await nodes.read({"type": "ids", "ids": [nodes.made[2]["@tea"]]})
            assert page.atoms[0].value == {"text": "tea 2"}
            assert (await nodes.here.replay(page.receipt.receipt)).body() == page.body()
            revision = page.receipt.rows[0].revision
            assert await nodes.here.revision(revision) is not None
            assert await nodes.here.revision(parse_id("0190a0b4-5c3e-7000-8000-000000000000", "x")) is None

    run(work())


def test_a_page_with_other_revisions_than_its_receipt_is_of_is_not_given_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, {"b": "all"}) as nodes:
            node = nodes.others["b"]
            selector = {"type": "ids", "ids": [nodes.made[0]["@tea"], nodes.made[1]["@tea"]]}
            honest = await node.service.answer(
                {"op": "read", "log_id": node.store.config.log_id.hex(), "selector": selector, "options": {}}
            )

            wrongs: list[Any] = [
                {**honest, "revisions": honest["revisions"][::-1]},
                {**honest, "revisions": honest["revisions"][:1]},
                {**honest, "receipt": {}},
                {**honest, "continuation": 1},
                {},
                [],
            ]
            for wrong in wrongs:
                node.answers_with = wrong
                error = await refused(nodes.read(selector), "CORRUPT")
                assert "other bytes" in error.message or "not understood" in error.message

    run(work())


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"op": "read"}, "LOG_MISMATCH"),
        ({"op": "read", "log_id": "00" * 16}, "LOG_MISMATCH"),
        ({"op": "fly", "log_id": None}, "INVALID_INPUT"),
        ({"op": "read", "log_id": None}, "INVALID_INPUT"),
        ({"op": "read", "log_id": None, "selector": [], "options": {}}, "INVALID_INPUT"),
        ({"op": "read", "log_id": None, "selector": {"type": "ids", "ids": []}, "options": 7}, "INVALID_INPUT"),
        ({"op": "revisions", "log_id": None, "revisions": ["x"]}, "INVALID_INPUT"),
        ({"op": "revisions", "log_id": None, "revisions": ["00"] * 10_001}, "BOUND_EXCEEDED"),
        ({"op": "verify_receipt", "log_id": None, "receipt": 5}, "INVALID_INPUT"),
    ],
)
def test_a_request_that_is_none_is_refused(tmp_path: Path, message: dict[str, Any], code: str) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        async with AsyncStore.open(directory) as store:
            reader = store._reader
            assert isinstance(reader, Reader)
            log_id = store.config.log_id.hex()
            asked = {**message, "log_id": log_id} if message.get("log_id", "") is None else message
            await refused(ReadService(reader=reader).answer(asked), code)

    asyncio.run(work())
