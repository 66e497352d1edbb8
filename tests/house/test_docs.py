"""What a user can type, set or be told is documented, and what is documented exists."""

import ast
import dataclasses
import importlib
import importlib.metadata
import re
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from atomlog.consumers.cli.main import main
from atomlog.consumers.events import TROUBLES
from atomlog.kernel import bounds
from atomlog.kernel.errors import CODES
from atomlog.kernel.settings import Settings
from tests.house.tree import ROOT, SOURCE_ROOTS, markdown_files, python_files

FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
COMMAND_HEADING = re.compile(r"^#{2,4} `(atomlog(?: [a-z0-9-]+)*)`$", re.MULTILINE)
ERROR_HEADING = re.compile(r"^### `([A-Z_]+)`$", re.MULTILINE)
TEXT_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GLOSSARY_WORD = re.compile(r"^\| \*\*([^*]+)\*\* \|", re.MULTILINE)
ROW = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.MULTILINE)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every visible command with its full name, the groups too."""
    pending: list[tuple[str, click.Command]] = [("atomlog", main)]
    while pending:
        name, command = pending.pop(0)
        if command.hidden:
            continue
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                assert found is not None
                pending.append((f"{name} {sub}", found))


def sections(page: str) -> dict[str, str]:
    """docs/cli.md by command: the text from a command's heading to the next command's."""
    parts = COMMAND_HEADING.split(page)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@cache
def sources(without: str) -> str:
    """All Python of the four source roots but one file."""
    files = [path for root in SOURCE_ROOTS for path in python_files(root) if not path.match(f"*/{without}")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def messages() -> frozenset[str]:
    """Every text in the sources, `…` standing for what is filled in."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(sources("no file"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
    return frozenset(found)


def rows(text: str, cells: int) -> list[tuple[str, ...]]:
    """The first cells of each table row that begins with a name in code quotes."""
    return [(name, *(cell.strip() for cell in rest.split("|")[: cells - 1])) for name, rest in ROW.findall(text)]


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    section = sections(page("cli.md")).get(name)
    assert section is not None, f"docs/cli.md has no heading '## `{name}`'"
    shown = [max(parameter.opts, key=len) for parameter in COMMANDS[name].params if _is_visible_option(parameter)]
    missing = [flag for flag in shown if not re.search(rf"`[^`\n]*{re.escape(flag)}(?![\w-])[^`\n]*`", section)]
    assert not missing, f"docs/cli.md, section `{name}`, does not name {missing}"


def test_every_documented_command_exists() -> None:
    assert not sections(page("cli.md")).keys() - COMMANDS.keys()


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not isinstance(command, click.Group)])
def test_every_command_has_an_example_in_its_help(name: str) -> None:
    command = COMMANDS[name]
    assert f"{name}" in f"{command.help}\n{command.epilog}", f"the help of `{name}` shows no example of it"


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {name: ast.literal_eval(default) for name, default in rows(page("settings.md"), 2)}
    assert documented == {field.name: field.default for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_every_setting_is_used(name: str) -> None:
    assert re.search(rf"settings\.{name}\b", sources("kernel/settings.py"))


def test_every_bound_of_a_write_is_documented_with_its_value() -> None:
    write = page("bounds.md").partition("## Elsewhere")[0]
    documented = {name: ast.literal_eval(value) for name, value in rows(write, 2)}
    constants = {name: value for name, value in vars(bounds).items() if name.isupper()}
    assert documented == {field.name: field.default for field in dataclasses.fields(bounds.Bounds)} | constants


@pytest.mark.parametrize("name", [*(field.name for field in dataclasses.fields(bounds.Bounds)), *dir(bounds)])
def test_every_bound_of_a_write_is_used(name: str) -> None:
    if not name.startswith("_") and not isinstance(getattr(bounds, name, None), type | types.ModuleType):
        assert re.search(rf"\b{name}\b", sources("kernel/bounds.py"))


def test_every_other_documented_bound_is_that_of_its_module() -> None:
    elsewhere = rows(page("bounds.md").partition("## Elsewhere")[2], 3)
    documented = {(module.strip("`"), name): ast.literal_eval(value) for name, value, module in elsewhere}
    found = {(module, name): getattr(importlib.import_module(f"atomlog.{module}"), name) for module, name in documented}
    assert documented == found


def test_every_error_code_is_documented_with_its_kind_exit_code_and_meaning() -> None:
    documented = {code: tuple(rest) for code, *rest in rows(page("errors.md"), 4) if code.isupper()}
    assert documented == {code: (spec.error.kind, str(spec.exit_code), spec.meaning) for code, spec in CODES.items()}


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_has_a_section_whose_examples_are_messages_of_the_program(code: str) -> None:
    split = ERROR_HEADING.split(page("errors.md"))
    section = dict(zip(split[1::2], split[2::2], strict=True)).get(code)
    assert section is not None, f"docs/errors.md has no heading '### `{code}`'"
    examples = [line for block in TEXT_BLOCK.findall(section) for line in block.splitlines()]
    assert examples or "Nothing in this version raises it." in section
    parts = [part.strip(" .:;,()") for example in examples for part in re.split("…|; |, and ", example)]
    unknown = [part for part in parts if len(part) > 3 and not any(part in message for message in messages())]
    assert not unknown, f"no message of the program has {unknown}"


def test_every_kind_of_error_is_explained() -> None:
    explained = {name for name, _ in rows(page("errors.md"), 2) if name.islower()}
    assert explained == {spec.error.kind for spec in CODES.values()}


def test_every_trouble_that_is_said_unasked_is_explained() -> None:
    section = page("operations.md").partition("### Troubles")[2].partition("\n#")[0]
    assert {name for name, _ in rows(section, 2)} == TROUBLES


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = GLOSSARY_WORD.findall(page("glossary.md"))
    assert words == sorted(set(words))


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = {target for target in LINK.findall(page("README.md")) if "/" not in target}
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_resolves(path: Path) -> None:
    text = INLINE_CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    broken = [target for target in LINK.findall(text) if not _resolves(path, target)]
    assert not broken


def test_the_version_is_written_once() -> None:
    """The changelog's newest heading is Unreleased or the version of pyproject.toml."""
    headings = [heading for heading in HEADING.findall(page("../CHANGELOG.md")) if heading.startswith("[")]
    version = importlib.metadata.version("atomlog")
    assert headings[0] in {"[Unreleased]", f"[{version}]"}


def _is_visible_option(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.hidden


def _resolves(source: Path, target: str) -> bool:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return True  # an address elsewhere
    name, _, anchor = target.partition("#")
    file = (source.parent / name).resolve() if name else source
    if not file.is_relative_to(ROOT) or not file.exists():
        return False
    return not anchor or file.suffix != ".md" or anchor in _anchors(file.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(FENCE.sub("", text))
    }
