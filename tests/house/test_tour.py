"""Every ```console block of the README and of docs/ is run, in order, and shows what is printed.

The commands of a page are typed into one shell that begins in the page's own empty folder, so variables last to
the end of the page. Lines `> …` after a line `$ command` continue it. It must end with 0, or with n where the
line ends in `# exit n`. Output lines below it, when there are any, must be what the command printed (both
streams): `…` inside a line stands for any text, a line that is only `…` for any number of lines. A command that
ends in `&` goes on beside those that follow.

The README's part on Kafka is a page of its own: its broker is that of the tests, in place of the one at localhost:9092.
"""

import fcntl
import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.house.typed import CONSOLE, Step, check, matches, steps, typed
from tests.support.kafka import SharedBroker

TOUR = "## A tour on Apache Kafka"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE = re.compile(r"^(?:export \S+ )?make ([a-z-]+)", re.MULTILINE)


def on_kafka(page: str) -> str:
    """The section of the README that needs a broker."""
    found = re.search(rf"^{TOUR}\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if CONSOLE.search(path.read_text(encoding="utf-8"))
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    check(steps(text.replace(on_kafka(text), "")), tmp_path)


@pytest.mark.timeout(300)
def test_what_the_tour_on_kafka_shows_is_what_happens(kafka: SharedBroker, tmp_path: Path) -> None:
    """Below the prefix `atomlog`, which no other test has on this broker."""
    tour = on_kafka(README)
    assert "localhost:9092" in tour
    check(steps(tour.replace("localhost:9092", kafka.bootstrap)), tmp_path)


def test_what_the_readme_makes_is_in_the_makefile() -> None:
    named = MAKE.findall(README)
    assert {"demo", "test", "kafka", "kafka-down"} <= set(named)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= set(targets)


def test_one_shell_runs_a_page_to_its_end_or_to_where_it_exits(tmp_path: Path) -> None:
    lines = ["who=me; mkdir deep; cd deep", 'echo "$who"; pwd; cat', "(exit 4)", "cat <<X\n}\nX", "exit 3", "echo no"]
    told = [answer for _, answer in typed([Step(command=one, exit_code=0, output=()) for one in lines], tmp_path)]
    deep = tmp_path / "page" / "deep"
    assert told == [(0, ""), (0, f"me\n{deep}\n"), (4, ""), (0, "}\n"), (None, ""), (None, "")]


def test_what_a_page_leaves_running_ends_with_its_shell(tmp_path: Path) -> None:
    lines = [
        "(flock 9; exec sleep 1000) 9>held &",
        "until ! flock --nonblock held true; do sleep 0.01; done",
    ]
    answers = [answer for _, answer in typed([Step(command=one, exit_code=0, output=()) for one in lines], tmp_path)]
    assert answers == [(0, ""), (0, "")]
    with (tmp_path / "page" / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # waits for ever while somebody has it


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
