"""docs/python.md and the README show Python that runs, and every method with every argument."""

import inspect
import re
from pathlib import Path

import pytest

from atomlog.client import AsyncStore, Store
from tests.house.tree import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
NAME = re.compile(r"`(\w+)`")
READ_ARGUMENTS = frozenset({"space", "policy", "options"})  # of every read, explained once
PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """Method or property → the section under the heading that names it."""
    parts = HEADING.split(PAGE)
    return {name: body for title, body in zip(parts[1::2], parts[2::2], strict=True) for name in NAME.findall(title)}


METHODS = [name for name in dir(AsyncStore) if not name.startswith("_")]


@pytest.mark.parametrize("path", ["docs/python.md", "README.md"])
def test_the_blocks_of_a_page_run_in_their_order(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = BLOCK.findall((ROOT / path).read_text(encoding="utf-8"))
    assert blocks
    for number, block in enumerate(blocks):
        exec(compile(block, f"{path}, block {number + 1}", "exec"), names)


def test_every_method_has_a_section() -> None:
    assert sections().keys() == set(METHODS)


def test_only_what_is_said_to_be_of_the_asynchronous_store_alone_is() -> None:
    alone = {name for name, body in sections().items() if body.lstrip().startswith("Of `AsyncStore` alone")}
    assert alone == {name for name in METHODS if not hasattr(Store, name)}


@pytest.mark.parametrize("name", METHODS)
def test_every_argument_of_a_method_is_named_in_its_section(name: str) -> None:
    method = getattr(AsyncStore, name)
    arguments = list(inspect.signature(method).parameters) if callable(method) else []
    shared = READ_ARGUMENTS if "options" in arguments or name == "read" else frozenset()
    told = sections()[name] + (sections_of_reads() if shared else "")
    missing = [one for one in arguments if one not in {"self", *shared} and not re.search(rf"\b{one}\b", told)]
    assert not missing


def sections_of_reads() -> str:
    return PAGE.partition("## Read\n")[2].partition("\n### ")[0]
