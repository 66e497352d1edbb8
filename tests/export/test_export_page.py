"""docs/export.md names exactly the columns that an export has. Its queries are run by the test of the pages."""

import re

import pytest

from atomlog.consumers.export.tables import TABLES
from tests.house.tree import ROOT

PAGE = (ROOT / "docs/export.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


def sections() -> dict[str, str]:
    parts = re.split(r"^### (\w+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_table_has_its_section_in_order() -> None:
    assert list(sections()) == list(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_column_is_documented_with_its_type_and_whether_it_may_be_null(name: str) -> None:
    documented = [(column, kind, null != "never") for column, kind, null in ROW.findall(sections()[name])]
    assert documented == [(column.name, column.shown, column.nullable) for column in TABLES[name].columns]


def test_the_page_shows_a_query_in_each_engine() -> None:
    for engine in ("import duckdb", "import polars"):
        assert engine in PAGE
