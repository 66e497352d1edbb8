"""Runs the command in this process, and as one of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from atomlog.consumers.cli.main import main

COMMAND = (sys.executable, "-m", "atomlog.consumers.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one line of standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def jsons(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def atomlog(*arguments: str | Path, stdin: str | bytes | None = None, store: Path | None = None) -> Done:
    """Run in this process."""
    words = [*map(str, arguments), *(() if store is None else ("--store", str(store)))]
    done = CliRunner().invoke(main, words, input=stdin, prog_name="atomlog")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(code=done.exit_code, out=done.stdout, err=done.stderr)


def process(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    """Start a process of its own, with pipes."""
    words = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def environment(**variables: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ATOMLOG_")} | variables


def batch(key: str, *changes: dict[str, Any], space: str = "notes", **more: Any) -> str:
    return json.dumps({"space": space, "idempotency_key": key, "changes": changes, **more}) + "\n"


def note(name: str, text: str) -> dict[str, Any]:
    return {"op": "create", "key": name, "schema": "source", "value": {"text": text}}


def member(group: str, name: str) -> dict[str, Any]:
    slots = [{"role": "group", "target": f"key:{group}"}, {"role": "member", "target": f"key:{name}"}]
    return {"op": "create", "key": f"{group}/{name}", "schema": "membership", "slots": slots}


def fill(store: Path, *batches: str) -> list[Any]:
    """Write batches; each must be accepted."""
    done = atomlog("write", stdin="".join(batches), store=store)
    assert done.code == 0, done
    return done.jsons


def lines(found: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in found)
