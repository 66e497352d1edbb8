"""Everything a store can be asked, its answers, and whether they may be given."""

import json
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atomlog.consumers.events import Event
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.projections.read.page import Page
from tests.corruption.store import PARTITIONS, SETTINGS, SPACES, Asked

Answer = Mapping[str, Any]  # {"body", "lag", "sealed", "unembedded"} or {"code", "message", "details"} or {"untyped"}
KEYS = [f"key:a{number}" for number in range(19)]


@dataclass(slots=True)
class Seen:
    """What a store answered, by question, and the events that it said."""

    answers: dict[str, Answer] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"answers": self.answers, "events": [event["event"] for event in self.events]}

    async def ask(self, name: str, question: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.answers[name] = _shown(await question())
        except AtomlogError as error:
            self.answers[name] = error.to_dict()
        except Exception:
            self.answers[name] = {"untyped": traceback.format_exc()[-1500:]}


async def probe(directory: Path, asked: Asked, *, read_only: bool = False) -> Seen:
    """Open the store, ask everything, write, close."""
    seen = Seen()

    async def whole() -> str:
        opening = AsyncStore.open(
            directory, create=False, settings=SETTINGS, read_only=read_only, on_event=seen.events.append
        )
        async with await opening as store:
            await _ask_all(store, asked, seen, follows=not read_only)
            if not read_only:
                await _write(store, seen)
        return "opened and closed"

    await seen.ask("open", whole)
    return seen


async def _ask_all(store: AsyncStore, asked: Asked, seen: Seen, *, follows: bool) -> None:
    ends = {int(partition): position for partition, position in asked.ends.items()}
    middle = {int(partition): position for partition, position in asked.middle.items()}
    home: dict[str, Any] = {"space": SPACES[0]}
    pinned: dict[str, Any] = {"at": ends, **home}
    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "heads": lambda: store.get(KEYS[:13], **pinned),
        "more heads": lambda: store.get(["key:a13", "key:a14"], **pinned),
        "elsewhere": lambda: store.get("key:a15", at=ends, space=SPACES[1]),
        "earlier": lambda: store.get(KEYS[:13], at=middle, space=SPACES[0]),
        "unpinned": lambda: store.get("key:a0", **home),
        "history": lambda: store.history("key:a0", **pinned),
        "relations": lambda: store.relations(target="key:a1", **pinned),
        "slots": lambda: store.relations(of="key:a1", **pinned),
        "members": lambda: store.members("key:g", **pinned),
        "earlier members": lambda: store.members("key:g", at=middle, space=SPACES[0]),
        "groups": lambda: store.groups("key:a2", **pinned),
        "and": lambda: store.members("key:g", and_=["key:g"], **pinned),
        "recall": lambda: store.recall("tea number 4", limit=100, **pinned),
        "recall in a scope": lambda: store.recall("tea", limit=100, scope={"groups": {"and": ["key:g"]}}, **pinned),
        **{f"log {number}": _bound(_log, store, number) for number in range(PARTITIONS)},
        **({"content": store.content_digest} if follows else {}),
    }
    for number, continuation in enumerate(asked.continuations):
        selector = ({"type": "members", "group": "key:g"}, {"type": "recall", "text": "tea number 4"})[number]
        reads[f"continuation {number}"] = _bound(store.read, selector, continuation=continuation, limit=3, **home)
    for number, receipt in enumerate(asked.receipts):
        reads[f"replay {number}"] = _bound(store.replay, receipt)
    for name, read in reads.items():
        await seen.ask(name, read)


def _bound(method: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: method(*arguments, **named)


async def _log(store: AsyncStore, partition: int) -> str:
    found = [(one["position"], one["kind"], one["verdict"], one["chain"]) async for one in store.log_dump(partition)]
    return str(found).rstrip("]")


async def _write(store: AsyncStore, seen: Seen) -> None:
    change = {"op": "create", "key": "new", "schema": "source", "value": {"text": "written afterwards"}}
    batch = {"space": SPACES[0], "idempotency_key": "afterwards", "changes": [change]}

    async def written() -> str:
        receipt = (await store.write(batch)).receipt
        page = await store.get("key:new", space=SPACES[0], at_least=receipt)
        return str(page.to_dict()["atoms"][0]["value"])

    await seen.ask("write", written)


def _shown(found: Any) -> Answer:
    if isinstance(found, Page):
        page = found.to_dict()
        lag = sum(sum(one.values()) for one in page["diagnostics"]["lag"].values())
        sealed = any(row.get("sealed") for row in page["atoms"])
        return {
            "body": found.body().decode(),
            "lag": lag,
            "sealed": sealed,
            "unembedded": page["diagnostics"]["unembedded"],
        }
    return {"body": str(found), "lag": 0, "sealed": False, "unembedded": 0}


def judge(truth: Mapping[str, Answer], answers: Mapping[str, Answer]) -> tuple[list[str], dict[str, Answer]]:
    """(what must not be, what was refused): each answer is the same, or a typed error, or says that it lags.

    Rows that say they are sealed count as refused: their content is not there.
    """
    wrong: list[str] = []
    refused: dict[str, Answer] = {}
    for name, answer in answers.items():
        true = truth[name]
        if "untyped" in answer:
            wrong.append(f"{name}: {answer['untyped']}")
        elif "code" in answer:
            refused[name] = answer
        elif answer["sealed"]:
            refused[name] = {"code": "KEY_UNAVAILABLE", "message": "sealed"}
        elif answer["body"] != true["body"] and not _says_what_it_lacks(name, answer, true):
            wrong.append(f"{name}: {answer['body'][:600]} and not {true['body'][:600]}")
    return wrong, refused


def _says_what_it_lacks(name: str, answer: Answer, true: Answer) -> bool:
    """An earlier state that says so; a part of the log, or of the rows of a recall, of which each is right."""
    if name == "unpinned":
        return bool(answer["lag"])
    if name.startswith("log"):
        return str(true["body"]).startswith(answer["body"])
    return bool(name.startswith("recall") and answer["unembedded"] and _rows(answer) <= _rows(true))


def _rows(answer: Answer) -> set[str]:
    """The rows of a page without their numbers on it."""
    return {str({**row, "handle": ""}) for row in json.loads(answer["body"])["atoms"]}
