"""What processes say: every event is documented, and none has in it what a user wrote."""

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.events import TEXT_CHARACTERS_MAX, TROUBLES, Event, stamped
from atomlog.consumers.store import AsyncStore
from atomlog.projections.encoders.hashing import FeatureHasher
from atomlog.projections.relations import Relations
from tests.consumers.worlds import run
from tests.house.tree import ROOT, SOURCE_ROOTS, python_files

ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
NAME = re.compile(r"[a-z]+(?:_[a-z]+)*")
# Said through a variable: nothing in the call shows its name.
NAMED_ELSEWHERE = {"apply_failed", "heads_failed", "log_unavailable", "read_failed"}
# Ids, positions, counts, names of parts, and errors, whose messages name parts and positions. Whoever adds one sees to
# it that no text, key or value of a user can be in it.
FIELDS = {
    *("event", "projection", "projections", "partition", "partitions", "position", "positions", "generation", "before"),
    *("term", "pid", "pins", "restarts", "attempt", "behind_ms", "removed", "found", "rebuilt_as", "reason", "reasons"),
    *(
        "error",
        "why",
        "what",
        "part",
        "topic",
        "principal",
        "inbox_partition",
        "first",
        "last",
        "requests",
        "pages",
        "receipts",
    ),
    *("receipts", "endpoint", "serves", "name", "meant"),  # a node's name is the operator's
}


def spoken() -> Iterator[tuple[str | None, set[str], str]]:
    """(event, its fields, where) of each place in the sources at which one is made."""
    for path in [path for root in SOURCE_ROOTS for path in python_files(root)]:
        if path.is_relative_to(ROOT / "consumers/atomlog/consumers/demo"):
            continue  # says sentences
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Dict(keys=keys, values=values):
                    names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
                    if "event" in names:
                        said = values[names.index("event")]
                        fields = {str(name) for name in names if name}
                        yield (said.value if isinstance(said, ast.Constant) else None), fields, where  # type: ignore[misc]
                case ast.Call(func=ast.Attribute(attr="_say"), args=[ast.Constant(value=str(name)), *_], keywords=more):
                    yield name, {one.arg for one in more if one.arg}, where
                case _:
                    pass


def documented() -> list[str]:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    sections = [page.partition(f"### {title}\n")[2].partition("\n#")[0] for title in ("Troubles", "Other events")]
    return [name for section in sections for name in ROW.findall(section)]


def test_every_event_is_in_the_list_and_every_listed_one_is_said() -> None:
    said = {name for name, _, _ in spoken() if name is not None} | NAMED_ELSEWHERE
    assert set(documented()) == said
    assert len(documented()) == len(said), "once each"
    assert said >= TROUBLES


@pytest.mark.parametrize("name", sorted(NAMED_ELSEWHERE))
def test_what_is_said_through_a_variable_is_in_the_sources(name: str) -> None:
    sources = [path.read_text(encoding="utf-8") for root in SOURCE_ROOTS for path in python_files(root)]
    assert any(f'"{name}"' in source for source in sources if "TROUBLES: Final" not in source)


def test_no_event_has_a_field_that_could_hold_what_a_user_wrote() -> None:
    assert [(where, name, fields - FIELDS) for name, fields, where in spoken() if fields - FIELDS] == []


def test_a_line_has_time_level_and_event_first() -> None:
    found = stamped({"event": "stopped", "projection": "ids", "error": {"code": "CORRUPT"}}, 1_772_323_200_000_000)
    assert list(found) == ["time", "level", "event", "projection", "error"]
    assert (found["time"], found["level"]) == ("2026-03-01T00:00:00.000000Z", "warning")
    assert stamped({"event": "consuming"}, 0)["level"] == "info"


def test_a_long_text_is_cut() -> None:
    found = stamped({"event": "stopped", "error": {"message": "x" * 5_000}}, 0)
    assert len(found["error"]["message"]) == TEXT_CHARACTERS_MAX + 1


CANARY = "canary-5f3a"


def test_texts_keys_and_values_of_users_are_in_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when everything goes wrong that meets content: encoding fails, a projection cannot apply."""
    heard: list[Event] = []

    async def scenario() -> None:
        def fails(*_: Any) -> Any:
            raise ValueError("it cannot be done")

        monkeypatch.setattr(FeatureHasher, "rows", fails)
        monkeypatch.setattr(Relations, "_effects", fails)
        async with await AsyncStore.open(tmp_path / "store", on_event=heard.append) as store:
            change = {
                "op": "create",
                "key": f"key {CANARY}",
                "schema": "source",
                "value": {"text": f"text {CANARY}", CANARY: 1},
                "provenance": {"kind": "source", "activity": CANARY},
            }
            batch = {"space": "notes", "idempotency_key": CANARY, "changes": [change]}
            written = await store.write(batch)
            await store.get(f"key:key {CANARY}", space="notes", at_least=written.receipt)
            while not {"quarantined"} <= {event["event"] for event in heard}:
                await store.views["relations"].catch_up()
                await asyncio.sleep(0.01)

    run(scenario())
    lines = [json.dumps(stamped(event, 0), default=str) for event in heard]
    assert lines
    assert not [line for line in lines if CANARY in line]
