"""Looks at processes from outside, and a program that holds brokers until it is killed."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.house.tree import ROOT

DEADLINE_S = 30.0


def is_alive(pid: int) -> bool:
    """A process that has ended and was not waited for is none."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() != "" and not done.stdout.startswith("Z")


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Waits for a state; the deadline only ends a test that has failed."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def run_python(program: str, *arguments: str) -> "subprocess.Popen[str]":
    """A Python of its own that can import `deploy` and `tests`; what it prints can be read."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the process ended with {process.wait()}"
    return line


def go_on(process: "subprocess.Popen[str]") -> None:
    """Gives it the line that it waits for."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def end(process: "subprocess.Popen[str]") -> None:
    """Kills it, if it lives, and closes the pipes."""
    process.kill()
    process.communicate()


def script(path: Path, text: str) -> Path:
    """A shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
