"""The golden history and its answers, written down by hand, against brute force and against the program's indexes.

Both are given the same raw records. What the oracle and the program agree on by a common mistake would show here.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.tail import Tail
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.relations import Relations
from atomlog.schemas.record import parse
from tests.oracle.brute_model import Model

TESTS = Path(__file__).resolve().parents[1]
HISTORY: dict[str, Any] = json.loads((TESTS / "schemas" / "golden" / "history.json").read_text("utf-8"))
NAMES: dict[str, str] = HISTORY["names"]
RAW: list[tuple[list[tuple[str, bytes]], bytes]] = [
    ([(name, bytes.fromhex(part)) for name, part in record["headers"].items()], bytes.fromhex(record["value"]))
    for record in HISTORY["records"]
]
POSITIONS = range(-1, len(RAW))
Answer = Callable[[int], Any]


def named(*ids: bytes) -> str:
    return " ".join(NAMES[one.hex()] for one in ids)


def atom(name: str) -> bytes:
    return next(bytes.fromhex(raw) for raw, known in NAMES.items() if known == name)


ATOMS = [atom(name) for name in "gabmno"]
G, A, B = ATOMS[:3]


def brute_answers() -> Mapping[str, Answer]:
    model = Model(log_id=bytes.fromhex(HISTORY["log_id"]))
    for position, (headers, value) in enumerate(RAW):
        model.replay(0, position, headers, value)
    assert model.voids == {"foreign_owner": 1}

    def members(at: int, **more: bool) -> str:
        return named(*(member for _, member, _ in model.members(G, {0: at}, **more)))

    return {
        "heads": lambda at: named(*(head.revision for one in ATOMS if (head := model.head(one, {0: at})))),
        "members of g": members,
        "members of g, retired ones too": lambda at: members(at, include_retired=True),
        "relations to b": lambda at: " ".join(
            f"{named(one)}:{role}" for one, role in model.relation_rows(B, None, {0: at})
        ),
        "relations to a as member": lambda at: named(*(one for one, _ in model.relation_rows(A, "member", {0: at}))),
        "relations to a as cites": lambda at: named(*(one for one, _ in model.relation_rows(A, "cites", {0: at}))),
        "groups of a": lambda at: named(*model.group_rows(A, {0: at})),
        "history of b": lambda at: named(*(version.revision for version in model.history(B, {0: at}))),
        "last change of b as about": lambda at: model.last_change("about", B, 0, at),
        "last change of a as member": lambda at: model.last_change("member", A, 0, at),
    }


def program_answers() -> Mapping[str, Answer]:
    tail = Tail(None, Genesis(log_id=bytes.fromhex(HISTORY["log_id"]), partition=0, partitions=1))  # type: ignore[arg-type]
    ids, relations, postings = Ids(MemoryKv(), 1), Relations(MemoryKv(), 1), Postings(MemoryKv(), 1, window=99)
    log = ReadOnly()
    tail.log = log  # type: ignore[assignment]
    effective = log.run(tail)
    for index in (ids, relations, postings):
        index.apply(0, effective, tail.checkpoint)
    assert tail.voids == {"foreign_owner": 1}

    def members(at: int, *, include_retired: bool = False) -> str:
        found, _ = relations.members(G, {0: at}, limit=9, include_retired=include_retired)
        return named(*(one.member for one in found))

    def referring(target: bytes, role: str | None, at: int) -> list[Any]:
        return relations.referring(target, role, {0: at}, limit=9)[0]

    return {
        "heads": lambda at: named(*(head.revision for head in ids.heads(ATOMS, {0: at}) if head)),
        "members of g": members,
        "members of g, retired ones too": lambda at: members(at, include_retired=True),
        "relations to b": lambda at: " ".join(f"{named(one.atom)}:{one.role}" for one in referring(B, None, at)),
        "relations to a as member": lambda at: named(*(one.atom for one in referring(A, "member", at))),
        "relations to a as cites": lambda at: named(*(one.atom for one in referring(A, "cites", at))),
        "groups of a": lambda at: named(*(one.group for one in relations.groups(A, {0: at}, limit=9)[0])),
        "history of b": lambda at: named(*(one.revision for one in ids.history(B, {0: at}, limit=9))),
        "last change of b as about": lambda at: relations.last_change("about", B, 0, at),
        "last change of a as member": lambda at: relations.last_change("member", A, 0, at),
    }


class ReadOnly:
    """The golden records, all at once."""

    async def read(self, partition: int, position: int, *, bytes_max: int) -> list[LogRecord]:
        parsed = [parse(headers, value) for headers, value in RAW]
        return [LogRecord(position=at, record=record) for at, record in enumerate(parsed)][position:]

    def run(self, tail: Tail) -> Any:
        """What one poll gives; it waits for nothing."""
        work = tail.poll()
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("the poll waits")


@pytest.mark.parametrize("answers", [brute_answers, program_answers])
def test_the_golden_history_is_answered_as_it_is_written_down(answers: Callable[[], Mapping[str, Answer]]) -> None:
    got = {question: [answer(at) for at in POSITIONS] for question, answer in answers().items()}
    assert got == HISTORY["answers"]


def test_the_script_makes_the_golden_history_again() -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "schemas" / "make_golden_history.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_ATOMLOG = """
import runpy, sys
sys.modules["atomlog"] = None  # importing it fails
import tests.oracle.brute_model, tests.oracle.commit_model, tests.oracle.decisions, tests.oracle.readers
import tests.schemas.make_golden, tests.schemas.make_golden_history
list(tests.schemas.make_golden.files())
tests.schemas.make_golden_history.text()
"""


def test_the_oracles_and_the_golden_scripts_work_without_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ATOMLOG], cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_brute_force_is_small() -> None:
    assert len((TESTS / "oracle" / "brute_model.py").read_text("utf-8").splitlines()) <= 300
