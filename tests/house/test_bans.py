"""What would make a simulation differ from its seed is banned, and the message names what to use instead.

ruff knows names (`time.time`); what has none is looked for here: the builtin `open`, and methods of a loop.
"""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atomlog.kernel.ports
import atomlog.kernel.system
from tests.house.tree import ROOT, SOURCE_ROOTS, python_files

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
BANS: dict[str, str] = {name: ban["msg"] for name, ban in CONFIG["flake8-tidy-imports"]["banned-api"].items()}
EXEMPT: dict[str, list[str]] = {
    path: rules
    for path, rules in CONFIG["per-file-ignores"].items()
    if "TID251" in rules and path not in {"tests/**", "deploy/**"}
}
PORTS = "atomlog.kernel.ports."
# One of each kind must be among the bans: a list that shrinks is noticed.
KINDS = {
    "Clock": ("time.time", "time.monotonic", "time.perf_counter", "time.sleep", "datetime.datetime.now"),
    "Randomness": ("random", "secrets", "os.urandom", "numpy.random", "uuid.uuid4", "uuid.uuid1"),
    "Workers": ("asyncio.to_thread", "threading.Thread", "concurrent.futures"),
    "Files": ("os.open", "os.replace", "os.fsync", "os.path.exists", "pathlib.Path", "tempfile", "shutil", "mmap"),
}
# Methods of an event loop, and builtins → what to use. Only the modules of EXEMPT may have them. `loop.time` may be
# used with the loop's own timers: a simulation brings the loop.
NAMELESS = {
    "open": "Reach files through atomlog.kernel.ports.Files.",
    "run_in_executor": "Run blocking calls through atomlog.kernel.ports.Workers.",
    "call_soon_threadsafe": "Run blocking calls through atomlog.kernel.ports.Workers.",
}


def ruff(config: Path, where: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ruff", "check", "--config", str(config), "--select", "TID251", "--no-cache"]
    done = subprocess.run(
        [*command, "--output-format", "json", str(where)], capture_output=True, text=True, check=False
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_each_ban_is_found_and_names_its_replacement(tmp_path: Path) -> None:
    for number, name in enumerate(BANS):
        (tmp_path / f"plant{number}.py").write_text(f"import {name.partition('.')[0]}\n\n{name}\n", encoding="utf-8")
    said: dict[str, str] = {}
    for found in ruff(ROOT / "pyproject.toml", tmp_path):
        said[Path(found["filename"]).stem] = found["message"]
    for number, (name, message) in enumerate(BANS.items()):
        assert f"`{name}` is banned: {message}" == said.get(f"plant{number}"), name


@pytest.mark.parametrize("port", KINDS)
def test_each_kind_is_banned_in_favour_of_its_port(port: str) -> None:
    assert all(PORTS + port in BANS[name] for name in KINDS[port])


def test_each_replacement_exists() -> None:
    for message in (*BANS.values(), *NAMELESS.values()):
        for word in message.rstrip(".").split():
            if word.startswith(PORTS):
                assert hasattr(atomlog.kernel.ports, word.removeprefix(PORTS)), message
            elif word.startswith("atomlog.kernel.system."):
                assert hasattr(atomlog.kernel.system, word.removeprefix("atomlog.kernel.system.")), message


def test_only_the_exempted_modules_need_it_and_only_system_has_a_clock_or_randomness(tmp_path: Path) -> None:
    """Exempted from all bans are files, but nobody exempts a clock: that is checked with no exemption at all."""
    bans = "\n".join(f'"{name}".msg = "{message}"' for name, message in BANS.items())
    config = tmp_path / "ruff.toml"
    config.write_text(f"[lint.flake8-tidy-imports.banned-api]\n{bans}\n", encoding="utf-8")
    needy: set[str] = set()
    for folder in SOURCE_ROOTS:
        for found in ruff(config, ROOT / folder):
            where = Path(found["filename"]).relative_to(ROOT).as_posix()
            needy.add(where)
            if "Clock" in found["message"] or "Randomness" in found["message"]:
                assert where == "kernel/atomlog/kernel/system.py", f"{where}: {found['message']}"
    stale = [pattern for pattern in EXEMPT if not any(Path(where).match(pattern) for where in needy)]
    assert not stale, f"exempted and in no need of it: {stale}"
    assert not [where for where in needy if not is_exempt(where)]


def test_each_exemption_has_a_reason() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for pattern in EXEMPT:
        line = next(line for line in lines if line.startswith(f'"{pattern}"'))
        assert len(line.partition("] # ")[2]) > 10, pattern


def test_what_has_no_name_that_ruff_knows_is_not_used_either() -> None:
    strays = [
        f"{path.relative_to(ROOT)}:{line}: {NAMELESS[name]}"
        for folder in SOURCE_ROOTS
        for path in python_files(folder)
        if not is_exempt(path.relative_to(ROOT).as_posix())
        for name, line in nameless(path.read_text(encoding="utf-8"))
    ]
    assert not strays, "\n".join(strays)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("with open('x') as file: ...", "open"),
        ("import asyncio\nasyncio.get_running_loop().run_in_executor(None, print)", "run_in_executor"),
        ("self._loop.call_soon_threadsafe(print)", "call_soon_threadsafe"),
    ],
)
def test_what_has_no_name_that_ruff_knows_is_found(source: str, name: str) -> None:
    assert [found for found, _ in nameless(source)] == [name]


def is_exempt(where: str) -> bool:
    return any(Path(where).match(pattern) for pattern in EXEMPT)


def nameless(source: str) -> Iterator[tuple[str, int]]:
    """Calls of the builtin `open`, and of the methods of a loop that begin or are called by threads."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                yield "open", node.lineno
            case ast.Call(func=ast.Attribute(attr="run_in_executor" | "call_soon_threadsafe" as name)):
                yield name, node.lineno
            case _:
                pass
