"""Every ```console block of the README and of docs/ is run, in order, and shows what is printed.

The commands of a page are typed into one shell that begins in the page's own empty folder, so variables last to
the end of the page. Lines `> …` after a line `$ command` continue it. It must end with 0, or with n where the
line ends in `# exit n`. Output lines below it, when there are any, must be what the command printed (both
streams): `…` inside a line stands for any text, a line that is only `…` for any number of lines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.tree import ROOT

CONSOLE = re.compile(r"^```console\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"\s+# exit (\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    command: str
    exit_code: int
    output: tuple[str, ...]


def steps(text: str) -> list[Step]:
    return [step for block in CONSOLE.findall(text) for step in _of_block(block)]


def matches(expected: tuple[str, ...], printed: str) -> bool:
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"[ ]*\n"
        for line in expected
    )
    return re.fullmatch(pattern, printed if printed.endswith("\n") else printed + "\n") is not None


PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if CONSOLE.search(path.read_text(encoding="utf-8"))
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    for step, (exit_code, printed) in _typed(steps(page.read_text(encoding="utf-8")), tmp_path):
        assert exit_code == step.exit_code, f"$ {step.command}\n{printed}"
        if step.output:
            assert matches(step.output, printed), f"$ {step.command}\nprinted:\n{printed}"


def test_one_shell_runs_a_page_to_its_end_or_to_where_it_exits(tmp_path: Path) -> None:
    typed = ["who=me; mkdir deep; cd deep", 'echo "$who"; pwd; cat', "(exit 4)", "cat <<X\n}\nX", "exit 3", "echo no"]
    told = [answer for _, answer in _typed([Step(command=one, exit_code=0, output=()) for one in typed], tmp_path)]
    deep = tmp_path / "page" / "deep"
    assert told == [(0, ""), (0, f"me\n{deep}\n"), (4, ""), (0, "}\n"), (None, ""), (None, "")]


def test_a_block_is_read_as_commands_exit_codes_and_output() -> None:
    text = "```console\n$ a <<X\n> b\n> X\n$ c  # exit 3\none …\n…\n```\n\n```sh\n$ not run\n```\n"
    assert steps(text) == [
        Step(command="a <<X\nb\nX", exit_code=0, output=()),
        Step(command="c", exit_code=3, output=("one …", "…")),
    ]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (("a …",), "a 1\n", True),
        (("a …",), "b 1\n", False),
        (("a",), "a\nb\n", False),
        (("a", "…"), "a\nb\nc\n", True),
        (("a", "…", "c"), "a\nc\n", True),
        (("(x).",), "(x).\n", True),
    ],
)
def test_an_ellipsis_stands_for_any_text(expected: tuple[str, ...], printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def _of_block(block: str) -> list[Step]:
    found: list[Step] = []
    for chunk in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        first, *rest = chunk.splitlines()
        continued = 0
        while continued < len(rest) and (rest[continued].startswith("> ") or rest[continued] == ">"):
            continued += 1
        ends_with = EXIT.search(first)
        command = "\n".join([EXIT.sub("", first), *(line[2:] for line in rest[:continued])])
        output = tuple(line for line in rest[continued:] if line.strip())
        found.append(Step(command=command, exit_code=int(ends_with[1]) if ends_with else 0, output=output))
    return found


def _typed(typed: Sequence[Step], folder: Path) -> list[tuple[Step, tuple[int | None, str]]]:
    """Each step with its exit code (None when the shell never came to its end) and what it printed."""
    notes, page = folder / "notes", folder / "page"
    notes.mkdir()
    page.mkdir()
    script = "".join(
        f"{{\n{step.command}\n}} </dev/null >{notes}/{number}.out 2>&1; echo $? >{notes}/{number}.code\n"
        for number, step in enumerate(typed)
    )
    _run(script, page)
    return [
        (step, (_code(notes / f"{number}.code"), _text(notes / f"{number}.out"))) for number, step in enumerate(typed)
    ]


def _code(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text else None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _run(script: str, folder: Path) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ATOMLOG_")}
    environment = ours | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    done = subprocess.run(
        ["bash", "-s"],
        input=script,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not done.stderr, f"the shell itself says: {done.stderr}"
