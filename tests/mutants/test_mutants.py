"""The checks can fail: each planted fault is found by the test or the checker that is named for it.

A mutant is the program with one piece of text replaced. It is looked for in a process of its own, with the changed
package before the real one on the path. A fault that nobody finds fails here, and so does one that fits no more.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.page import PAGE, page
from tests.mutants.planted import MUTANTS, Checker, Mutant, NamedTest
from tests.statemachine.checkers import CHECKERS
from tests.statemachine.run import CAUGHT

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_fault_is_found(mutant: Mutant, tmp_path: Path) -> None:
    plant(mutant, tmp_path)
    if isinstance(mutant.caught_by, NamedTest):
        fails(mutant.caught_by, tmp_path / mutant.file.split("/")[0])
    else:
        is_seen_by(mutant.caught_by, tmp_path / mutant.file.split("/")[0])


def test_every_checker_is_shown_to_find_a_planted_fault_by_looking() -> None:
    """The program finds some faults itself while a checker asks it: that shows nothing of the checker."""
    checkers = [mutant.caught_by for mutant in MUTANTS if isinstance(mutant.caught_by, Checker)]
    assert {checker.name for checker in checkers} == set(CHECKERS)
    assert {checker.name for checker in checkers if checker.looks} == set(CHECKERS)


def test_the_page_of_mutants_is_in_step() -> None:
    assert PAGE.read_text("utf-8") == page(), f"write it anew: python -m tests.mutants.page > {PAGE.relative_to(ROOT)}"


def plant(mutant: Mutant, directory: Path) -> None:
    """A copy of the package with the fault in it."""
    package = mutant.file.split("/")[0]
    shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__", "README.md"))
    changed = directory / mutant.file
    source = changed.read_text("utf-8")
    assert source.count(mutant.old) == 1, f"the mutant does not fit {mutant.file} any more"
    changed.write_text(source.replace(mutant.old, mutant.new), "utf-8")


def fails(test: NamedTest, package: Path) -> None:
    named = f"{test.path}::{test.name}"
    done = python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", named, package=package)
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert f"FAILED {named}" in done.stdout


def is_seen_by(checker: Checker, package: Path) -> None:
    """With this checker alone; the same without the fault is what the state machine's own test runs."""
    arguments = (checker.log, "--seed", str(checker.seed), "--examples", str(checker.examples), "--only", checker.name)
    done = python("-m", "tests.statemachine.run", *arguments, package=package)
    assert done.returncode == CAUGHT, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert f"caught by {checker.name}{', which looked' if checker.looks else ''}: " in done.stdout


def python(*arguments: str, package: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(package), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
