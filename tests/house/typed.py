"""The commands of a page, typed into one shell, and what they print compared with what the page shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHELL_SECONDS: Final = 240.0  # of one page; only ends a shell that hangs
AT_THE_END: Final = "trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT"
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


def typed(steps: Sequence[Step], folder: Path) -> list[tuple[Step, tuple[int | None, str]]]:
    """Each step with its exit code (None when the shell never came to its end) and what it printed.

    What was begun with `&` goes on beside the steps behind it, and is killed when the shell has ended.
    """
    notes, page = folder / "notes", folder / "page"
    notes.mkdir()
    page.mkdir()
    script = "".join(
        f"{{\n{step.command}\n}} </dev/null >{notes}/{number}.out 2>&1; echo $? >{notes}/{number}.code\n"
        for number, step in enumerate(steps)
    )
    _run(script, page)
    return [
        (step, (_code(notes / f"{number}.code"), _text(notes / f"{number}.out"))) for number, step in enumerate(steps)
    ]


def check(steps: Sequence[Step], folder: Path) -> None:
    """Type the steps; each must end and print as it says."""
    for step, (exit_code, printed) in typed(steps, folder):
        assert exit_code == step.exit_code, f"$ {step.command}\n{printed}"
        if step.output:
            assert matches(step.output, printed), f"$ {step.command}\nprinted:\n{printed}"


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
    shell = subprocess.Popen(
        ["bash", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = shell.communicate(f"{AT_THE_END}\n{script}", timeout=SHELL_SECONDS)
    except subprocess.TimeoutExpired:  # the step that hangs has no exit code
        os.killpg(shell.pid, signal.SIGKILL)
        _, said = shell.communicate()
    assert not said, f"the shell itself says: {said}"
