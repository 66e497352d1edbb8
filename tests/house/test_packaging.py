"""What is declared is locked with hashes, and what is in the source roots is in the wheel."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house.tree import ROOT, SOURCE_ROOTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DECLARED = {"run": PROJECT["project"]["dependencies"], **PROJECT["dependency-groups"]}
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pins(name: str) -> dict[str, set[str]]:
    """The exact versions in requirements/<name>.txt, by distribution; several where they depend on a marker."""
    found: dict[str, set[str]] = {}
    for distribution, version, _, _ in PIN.findall((ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")):
        found.setdefault(distribution, set()).add(version)
    return found


@pytest.mark.parametrize("name", DECLARED)
def test_every_declared_dependency_is_locked(name: str) -> None:
    declared = {re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in DECLARED[name]}
    assert declared <= pins(name).keys(), "run `make lock`"


@pytest.mark.parametrize("name", DECLARED)
def test_every_line_of_the_lock_is_a_pin_with_hashes(name: str) -> None:
    rest = PIN.sub("", (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8"))
    assert rest.strip() == ""


def test_files_that_are_installed_together_agree() -> None:
    build, run, dev = pins("build"), pins("run"), pins("dev")
    for one, other in ((build, run), (build, dev), (run, dev)):
        assert {name: one[name] for name in one.keys() & other.keys()} == {
            name: other[name] for name in one.keys() & other.keys()
        }


def test_every_dependency_has_its_reason_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    declared = {re.split(r"[^A-Za-z0-9._-]", item)[0] for group in DECLARED.values() for item in group}
    assert not {name for name in declared if not re.search(rf"^\|[^|]*\b{name}\b[^|]*\|", table, re.MULTILINE)}


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("atomlog/")}
    expected = {
        str(path.relative_to(ROOT / root))
        for root in SOURCE_ROOTS
        for path in (ROOT / root / "atomlog").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == expected
