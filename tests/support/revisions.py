"""The histories of `revisions/*.jsonl.gz` as lines for `import jsonl`, and what they say at any commit.

One event a line: `{"commit", "t", "who", "path", "op": "add"|"revise"|"delete", "atom", "text"}`.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILES = ("awesome_readme_en.jsonl.gz", "awesome_japanese_llm_ja.jsonl.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What stands after a commit, by atom: the text, who wrote it, and the group it is in."""

    texts: Mapping[str, str]
    speakers: Mapping[str, str]
    paths: Mapping[str, str]


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def import_lines(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One line an event, one commit a batch."""
    for event in events:
        if event["op"] == "delete":
            yield {"id": event["atom"], "op": "delete", "batch": event["commit"]}
            continue
        yield {
            "id": event["atom"],
            "text": event["text"],
            "groups": [event["path"]],
            "time": datetime.fromtimestamp(event["t"], UTC).isoformat(),
            "who": event["who"],
            "batch": event["commit"],
        }


def states(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, State]]:
    """(commit, what stands after it), in order; computed from the events alone."""
    texts: dict[str, str] = {}
    speakers: dict[str, str] = {}
    paths: dict[str, str] = {}
    commit = None
    for event in events:
        if commit not in (None, event["commit"]):
            yield str(commit), State(texts=dict(texts), speakers=dict(speakers), paths=dict(paths))
        commit = event["commit"]
        atom = event["atom"]
        if event["op"] == "delete":
            del texts[atom], speakers[atom], paths[atom]
        else:
            texts[atom], speakers[atom], paths[atom] = event["text"], event["who"], event["path"]
    if commit is not None:
        yield str(commit), State(texts=texts, speakers=speakers, paths=paths)


def to_jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
