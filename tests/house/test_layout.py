"""The tree is as CONTRIBUTING says: four source roots of one namespace, a README in each top-level folder."""

import re

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


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_file_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_every_path_named_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\.ci|docs|schemas|kernel|projections|consumers|tests|deploy)/[^`\s*…]*)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]
