"""docs/mutants.md, made from what is planted: `python -m tests.mutants.page > docs/mutants.md`."""

from pathlib import Path
from typing import Final

from tests.mutants.planted import MUTANTS, Checker, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "mutants.md"
HEAD: Final = """\
# Planted faults

A check that cannot fail checks nothing. So the tests plant faults in the program, one at a time: a piece of its text is
replaced, and the test or the checker that is named here must find it, by itself. A fault that is not found fails the
build, and so does one whose text is no longer in the program.

A *checker* is a function of `tests/statemachine/checkers.py`, which the state machine calls; every one of them is
here with a fault that it finds by comparing. *By refusal*: the program itself refused to go on, or to answer, when the
checker asked it.
This page is made by `python -m tests.mutants.page` from `tests/mutants/planted.py`, which has the texts.

| the program with this fault | in | is found by |
|---|---|---|
"""


def page() -> str:
    return HEAD + "".join(map(_line, MUTANTS))


def _line(mutant: Mutant) -> str:
    caught_by = mutant.caught_by
    if isinstance(caught_by, Checker):
        found = f"checker `{caught_by.name}`, {caught_by.log} log{'' if caught_by.looks else ', by refusal'}"
    else:
        found = f"`{caught_by.name}`"
    return f"| {mutant.name} | `{mutant.file.partition('/atomlog/')[2]}` | {found} |\n"


if __name__ == "__main__":
    print(page(), end="")
