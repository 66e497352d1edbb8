"""docs/json.md names exactly the fields that requests may have and answers do have."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.cluster.reports import Heard, NodeReport
from atomlog.consumers.status import node_entry
from atomlog.consumers.store import AsyncStore
from atomlog.kernel import requests
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.jsontext import dumps, loads
from atomlog.kernel.request_parts import _ORIGIN_FIELDS, _PROVENANCE_FIELDS, _SLOT_FIELDS
from atomlog.projections.read import scope, selectors
from tests.house.tree import ROOT

HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
FIELDS = re.compile(r"^\| ((?:`[a-z0-9_]+`(?:, )?)+) \|(.*)\|$", re.MULTILINE)
NAME = re.compile(r"`([a-z0-9_]+)`")


@cache
def sections() -> Mapping[str, list[tuple[tuple[str, ...], str]]]:
    """Heading → (names in the first cell, the other cells) of each row of its tables."""
    parts = HEADING.split((ROOT / "docs/json.md").read_text(encoding="utf-8"))
    tables = zip(parts[1::2], parts[2::2], strict=True)
    return {
        title: [(tuple(NAME.findall(names)), rest) for names, rest in FIELDS.findall(body)] for title, body in tables
    }


def fields(title: str) -> list[str]:
    return sorted(name for names, _ in sections()[title] for name in names)


def kinds(title: str) -> dict[str, set[str]]:
    """Of a table of kinds: kind → the fields it has besides, as named in the second cell."""
    return {names[0]: set(NAME.findall(rest.split("|")[0])) for names, rest in sections()[title]}


def same(title: str, found: Iterable[str]) -> None:
    assert fields(title) == sorted(found)


def test_the_parts_of_a_batch_are_the_documented_ones() -> None:
    same("Batch", requests._BATCH_FIELDS)
    same("Slot", _SLOT_FIELDS)
    same("Origin", _ORIGIN_FIELDS)
    same("Provenance", _PROVENANCE_FIELDS)


def test_each_kind_of_change_has_the_documented_fields() -> None:
    of = {names[0]: rest.split("|")[0] for names, rest in sections()["Change"]}
    for op, known in requests._CHANGE_FIELDS.items():
        assert sorted(name for name, ops in of.items() if op in ops or "all" in ops) == sorted(known), op


def test_preconditions_selectors_and_scopes_have_the_documented_fields() -> None:
    assert kinds("Precondition") == {name: set(known) - {"type"} for name, known in requests._GUARD_FIELDS.items()}
    assert kinds("Selector").keys() == selectors._PARSERS.keys()
    for name, known in kinds("Selector").items():
        assert known == _accepted_by_selector(name), name
    same("Scope", _named_as_known(lambda: scope.parse_scope({"?": 0}, "scope")))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """One answer of each kind, as JSON."""
    return asyncio.run(_answers(tmp_path_factory.mktemp("json")))


@pytest.mark.parametrize(
    ("title", "path"),
    [
        ("Write result", "written"),
        ("Write receipt", "written.receipt"),
        ("Error result", "refused.error"),
        ("Outcome", "outcome"),
        ("Page", "page"),
        ("Row", "sealed.atoms.0"),
        ("Inputs of a row", "sealed.atoms.0.inputs"),
        ("Slot of a row", "page.atoms.0.slots.0"),
        ("Diagnostics", "page.diagnostics"),
        ("Receipt", "page.receipt"),
        ("Row of a receipt", "page.receipt.rows.0"),
        ("Verification", "verification"),
        ("Quote", "quote"),
        ("Status", "status"),
        ("Status of a partition", "status.partitions.0"),
        ("Status of a projection", "status.projections.0"),
        ("Status of a node", "node"),
        ("Report", "report"),
        ("Export", "export"),
        ("Record", "record"),
    ],
)
def test_what_comes_out_has_the_documented_fields(answers: Mapping[str, Any], title: str, path: str) -> None:
    found: Any = answers
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else found[step]
    same(title, found)


def test_the_batch_that_is_shown_is_accepted(answers: Mapping[str, Any]) -> None:
    assert answers["written"]["ok"] is True
    assert len(answers["written"]["results"]) == 3


async def _answers(folder: Path) -> Mapping[str, Any]:
    shown = re.search(r"```json\n(.*?)```", (ROOT / "docs/json.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    batch = loads(shown[1])
    async with await AsyncStore.open(str(folder / "store")) as store:
        written = await store.write(batch)
        answers: dict[str, Any] = {"written": written.to_dict()}
        answers["outcome"] = (await store.outcome("k-1", space="notes")).to_dict()
        answers["refused"] = {"ok": False, "error": fail("NOT_FOUND", "").to_dict()}
        page = await store.relations(target="key:tea", space="notes", at_least=written.receipt)
        answers["page"] = page.to_dict()
        answers["verification"] = (await store.verify_receipt(page.receipt)).to_dict()
        answers["quote"] = await _quote(store)
        await _summary(store, answers["page"]["receipt"]["receipt"])
        answers["status"] = (await store.status()).to_dict()
        report = NodeReport(
            node=bytes(16), name="n", role="store", endpoint="", pid=1, at_us=0, disk_free_bytes=0, disk_reserve_bytes=0
        )
        answers["node"] = node_entry(Heard(report=report, at_us=0), 0)
        answers["record"] = await anext(store.log_dump())
        answers["export"] = (await store.export(folder / "tables")).to_dict()
        answers["report"] = (await store.verify(["ids"]))[0].to_dict()
    (folder / "store/master.key").unlink()
    async with await AsyncStore.open(str(folder / "store")) as store:
        answers["sealed"] = (await store.get("key:summary", space="notes")).to_dict()
    return dict(loads(dumps(answers)))


async def _summary(store: AsyncStore, receipt: str) -> None:
    """An atom that is made from what was read."""
    provenance = {"kind": "generated", "receipts": [receipt]}
    change = {"op": "create", "key": "summary", "schema": "summary", "value": {"text": "tea"}, "provenance": provenance}
    await store.write({"space": "notes", "idempotency_key": "k-3", "changes": [change]})
    await store.wait_until_current()


async def _quote(store: AsyncStore) -> Mapping[str, Any]:
    changes = [
        {"op": "create", "as": "@s", "schema": "source", "value": "Green tea, 80 °C"},
        {
            "op": "create",
            "schema": "extract",
            "value": "Green tea",
            "origins": [{"source": "@s", "start": 0, "end": 9}],
        },
    ]
    done = await store.write({"space": "notes", "idempotency_key": "k-2", "changes": changes})
    return (await store.quote(done.results[1].atom, at_least=done.receipt)).to_dict()


def _accepted_by_selector(name: str) -> set[str]:
    return _named_as_known(lambda: selectors.parse_selector({"type": name, "?": 0}))


def _named_as_known(parse: Any) -> set[str]:
    """The fields that the refusal of an unknown one lists."""
    with pytest.raises(AtomlogError, match="unknown; known are ") as caught:
        parse()
    return set(caught.value.message.rpartition("known are ")[2].split(", "))
