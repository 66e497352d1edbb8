"""The tree is as CONTRIBUTING says: four source roots of one namespace, a README in each top-level folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import FOLDERS, ROOT, SOURCE_ROOTS, python_files

PROMISED = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "pyproject.toml",
    ".ci/run",
    *(f"docs/{page}.md" for page in ("concepts", "glossary", "formats", "commit-rule")),
    *(f"docs/{page}.md" for page in ("operations", "errors", "settings", "cli")),
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_stands_directly_in_an_atomlog_folder(folder: str) -> None:
    """`atomlog/__init__.py` would hide the other source roots; another module would belong to no layer."""
    assert not list((ROOT / folder).rglob("atomlog/*.py"))


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_a_source_root_holds_only_its_own_packages(folder: str) -> None:
    own = {folder, "client"} if folder == "consumers" else {folder}
    found = {path.relative_to(ROOT / folder).parts[:2] for path in python_files(folder)}
    assert found == {("atomlog", name) for name in own}
    assert all((ROOT / folder / "atomlog" / name / "py.typed").is_file() for name in own)


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_every_package_folder_has_an_init(folder: str) -> None:
    """Without one, a folder is a namespace package of its own and the import contracts do not see it."""
    packages = {path.parent for path in python_files(folder)}
    assert not [str(package) for package in packages if not (package / "__init__.py").is_file()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_top_level_folder_has_a_readme(folder: str) -> None:
    assert (ROOT / folder / "README.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_every_module_is_named_in_the_readme_of_its_source_root(folder: str) -> None:
    """What a README does not name, a newcomer does not find on the way through the folder."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    named = {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}
    modules = {path.stem for path in python_files(folder) if not path.stem.startswith("__")}
    assert not modules - named


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_file_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_what_is_skipped_is_said_with_its_reason(tmp_path: Path) -> None:
    """By `make test`, as the README promises: else nobody sees that no power was cut."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (flags,) = re.findall(r"^PYTEST := \$\(BIN\)/pytest (.+)$", makefile, re.MULTILINE)
    (tmp_path / "test_it.py").write_text("import pytest\n\ndef test_it():\n    pytest.skip('NOT TESTED: no disk')\n")
    command = [sys.executable, "-m", "pytest", *flags.split(), "-n", "1", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "NOT TESTED: no disk" in done.stdout
    assert "\t$(PYTEST) -n $(PYTEST_WORKERS)" in makefile.partition("\ntest:")[2].partition("\n\n")[0]


def test_every_path_named_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\.ci|docs|schemas|kernel|projections|consumers|tests|deploy)/[^`\s*…]*)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]
