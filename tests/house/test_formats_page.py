"""docs/formats.md names the offsets of the fixed fields, the kinds of records, and every file of a store."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from atomlog.client import Store
from atomlog.kernel import heads
from atomlog.schemas import batch, codec, record, revision
from tests.house.tree import ROOT

PAGE = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
FIELD = re.compile(r"^\| (\d+) \| (\d+) \| `(\w+)`", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
MODULE = re.compile(r"`(atomlog\.[\w.]+)`")


def section(title: str) -> str:
    found = re.search(rf"^(#+) {re.escape(title)}$(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[2]


def layout(title: str) -> Mapping[str, slice]:
    return {name: slice(int(at), int(at) + int(size)) for at, size, name in FIELD.findall(section(title))}


def test_the_fixed_fields_of_a_revision_stand_where_the_page_says() -> None:
    assert layout("Revision") == {
        "atom_id": revision.ATOM,
        "revision_id": revision.REVISION,
        "previous_revision_id": revision.PREVIOUS,
        "key_id": revision.KEY,
        "recorded_at": revision.RECORDED_AT,
        "valid_from": revision.VALID_FROM,
        "valid_to": revision.VALID_TO,
        "flags": slice(revision.FLAGS_AT, revision.FIXED_BYTES),
    }


def test_the_fixed_fields_of_a_batch_stand_where_the_page_says() -> None:
    assert layout("Batch") == {
        "request_key": batch.REQUEST_KEY,
        "request_digest": batch.REQUEST_DIGEST,
        "digest_key_id": batch.DIGEST_KEY,
        "recorded_at": batch.RECORDED_AT,
        "revision_schema": batch.REVISION_SCHEMA,
    }


@pytest.mark.parametrize(
    ("title", "schema"), [("Revision", "RevisionV1"), ("Batch", "BatchV1"), ("Content", "ContentV1")]
)
def test_every_field_of_the_schema_is_named(title: str, schema: str) -> None:
    fields = [field["name"] for field in codec.load(schema).source["fields"]]
    assert not set(fields) - set(CODE.findall(section(title)))


def test_every_kind_of_record_is_named() -> None:
    table = [line for line in section("Other kinds").splitlines() if line.startswith("| `")]
    assert {name for line in table for name in CODE.findall(line.split("|")[1])} == codec.KIND_SCHEMAS.keys()


def test_no_schema_has_what_the_page_rules_out() -> None:
    for schema in codec.by_fingerprint().values():
        text = str(schema.source)
        assert "logicalType" not in text
        assert not re.search(r"'(?:type|items)': \[", text), f"{schema.name} has a union"


def test_every_module_that_the_page_points_to_describes_its_keys() -> None:
    pointed = set(MODULE.findall(section("Projections")))
    assert {"atomlog.kernel.heads", "atomlog.projections.ids"} < pointed
    for name in pointed:
        module = __import__(name, fromlist=["__doc__"])
        assert "====" in (module.__doc__ or ""), f"{name} has no table of its keys"
    assert heads.__doc__


def test_every_file_of_a_store_is_in_the_table(tmp_path: Path) -> None:
    first_cells = [line.split("|")[1] for line in section("Store directory").splitlines() if line.startswith("| `")]
    patterns = [_pattern(path) for cell in first_cells for path in CODE.findall(cell)]
    root = tmp_path / "store"
    change = {"op": "create", "key": "long", "schema": "source", "value": {"text": "tea " * 20_000}}
    with Store.open(str(root)) as store:
        written = store.write({"space": "default", "idempotency_key": "k", "changes": [change]})
        store.get("key:long", at_least=written.receipt)
        with Store.open(str(root)) as beside:
            beside.get("key:long", at_least=written.receipt)
            found = [str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()]
    unknown = [path for path in found if not any(pattern.match(path) for pattern in patterns)]
    unused = [pattern.pattern for pattern in patterns if not any(map(pattern.match, found))]
    assert (unknown, unused) == ([], [])


def _pattern(path: str) -> re.Pattern[str]:
    """A path of the table: `<…>` stands for a part of a name, `/` at the end for everything below."""
    text = "".join(r"[^/]+" if part.startswith("<") else re.escape(part) for part in re.split(r"(<[^>]+>)", path))
    return re.compile(text if path.endswith("/") else rf"{text}(?:-(?:wal|shm|journal))?$")


def test_the_schemas_of_the_commit_rule_are_these() -> None:
    rule = (ROOT / "docs/commit-rule.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"\| `([A-Z]\w+)` \| `([0-9a-f]{16})` (?=\|)", rule))
    assert told == {kind: codec.current(kind).fingerprint.hex() for kind in codec.KIND_SCHEMAS}


def test_the_worked_example_of_the_commit_rule_is_right() -> None:
    rule = (ROOT / "docs/commit-rule.md").read_text(encoding="utf-8")
    example = rule.partition("## Check your implementation")[2]
    rule_, kind, term, owner, seq, schema, chain, value, after = re.findall(r"`([0-9a-f]{4,})`", example)
    names = ("rule", "kind", "term", "owner", "seq", "schema", "chain")
    headers = dict(zip(names, map(bytes.fromhex, (rule_, kind, term, owner, seq, schema, chain)), strict=True))
    claim = record.parse(list(headers.items()), bytes.fromhex(value))
    assert isinstance(claim, record.Record)
    assert record.chain_after(record.ZERO16, claim).hex() == after
    found = codec.decode(claim.value, "Claim")
    assert (found["log_id"], found["partitions"], found["node"], found["pid"]) == (bytes(range(64, 80)), 1, "local", 7)
