"""Clients that insist: each write is sent, to any process, until what became of it is known; and what they heard."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.model import WriteResult
from atomlog.kernel.requests import parse_write
from tests.simulation.node import Node
from tests.support.kernel_world import create, member

# Answers that say nothing about the write: it may be there, or may never be.
NOT_KNOWN: Final = ("IN_DOUBT", "NOT_OWNER", "OVERLOADED", "STORE_LOCKED", "KEY_UNAVAILABLE")
BROKEN: Final = ("CORRUPT", "LOG_DIVERGED", "INDEX_LAGGING")  # of this process; not after everything was healed
COUNTER: Final = keyed_id("notes", "notes", "counter")
PAUSE_S: Final = 0.01


@dataclass(kw_only=True)
class Written:
    """A write that was sent. `changes` are as sent; `accepted` and `refused` what somebody was told."""

    key: str
    space: str
    changes: tuple[Mapping[str, Any], ...]
    begun_after: int  # the last position that the client had heard of by then
    accepted: tuple[tuple[bytes, ...], int] | None = None  # revisions, position
    refused: str | None = None
    refused_head: str | None = None
    never: bool = False


@dataclass(kw_only=True)
class Told:
    """What anybody was told, by idempotency key, and what readers saw."""

    writes: dict[str, Written] = field(default_factory=dict)
    heads_seen: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)  # position, atom, revision

    def accept(self, written: Written, result: WriteResult) -> None:
        told = tuple(one.revision for one in result.results), result.receipt.position
        assert written.accepted in (None, told), f"{written.key} was accepted as {written.accepted} and as {told}"
        assert not written.never, f"{written.key} is accepted, and was said never to be"
        assert written.refused is None, f"{written.key} is accepted, and was refused"
        written.accepted = told

    def refuse(self, written: Written, error: AtomlogError) -> None:
        assert written.accepted is None, f"{written.key} is refused, and was accepted: {error}"
        written.refused = error.code
        if error.code == "REVISION_CONFLICT":
            written.refused_head = error.details[0]["head"]

    def say_never(self, written: Written) -> None:
        assert written.accepted is None, f"{written.key} was accepted, and is said never to be"
        written.never = True


class Client:
    """One writer. `nodes` gives the processes that are up; `is_peace`, that nothing fails any more."""

    def __init__(
        self, number: int, chance: Random, told: Told, nodes: Callable[[], list[Node]], is_peace: Callable[[], bool]
    ) -> None:
        self._number = number
        self._chance = chance
        self._told = told
        self._nodes = nodes
        self._is_peace = is_peace
        self._heard_of = -1
        self._own: list[str] = []  # atoms of its own that were accepted, by key

    async def run(self, ops: int) -> None:
        for op in range(ops):
            key = f"k{self._number}-{op}"
            changes = await self._changes(key)
            is_of_notes = changes[0]["op"] == "revise" or changes[0]["schema"] == "membership"
            space = "notes" if is_of_notes else self._chance.choice(("notes", "notes", "new"))
            await self.insist(key, space, changes)

    async def insist(self, key: str, space: str, changes: tuple[Mapping[str, Any], ...]) -> bool:
        """One write until what became of it is known; whether it was accepted."""
        written = Written(key=key, space=space, changes=changes, begun_after=self._heard_of)
        self._told.writes[key] = written
        request = parse_write({"space": space, "idempotency_key": key, "changes": list(changes)})
        while written.accepted is None and written.refused is None and not written.never:
            node = await self._node()
            try:
                async with asyncio.timeout(self._chance.choice((0.05, 5.0, 5.0))):
                    self._accept(written, await node.process.ask(partial(node.write, request)))
            except (ConnectionError, TimeoutError, OSError):
                await self._after_a_doubt(written)
            except AtomlogError as error:
                if error.code not in NOT_KNOWN and (self._is_peace() or error.code not in BROKEN):
                    assert error.code == "REVISION_CONFLICT", f"{key}: {error!r}"
                    self._told.refuse(written, error)
                await self._after_a_doubt(written)
        await self._look_again(written, request)
        return written.accepted is not None

    async def _after_a_doubt(self, written: Written) -> None:
        """Sometimes ask what became of it; who hears `never` does not try again."""
        await asyncio.sleep(PAUSE_S * self._chance.random())
        if self._chance.random() < 0.5:
            return
        node = await self._node()
        try:
            async with asyncio.timeout(5.0):
                found = await node.process.ask(partial(node.outcome, written.space, written.key))
        except (ConnectionError, TimeoutError, OSError):
            return
        except AtomlogError as error:
            assert error.code in NOT_KNOWN or (error.code in BROKEN and not self._is_peace()), f"{error!r}"
            return
        if found.state == "never":
            self._told.say_never(written)
        elif found.state == "accepted":
            assert found.result is not None
            self._accept(written, found.result)

    async def _look_again(self, written: Written, request: Any) -> None:
        """Send some accepted writes once more, and read some back, from any process."""
        if written.accepted is None or self._chance.random() < 0.5:
            return
        revisions, position = written.accepted
        node = await self._node()
        try:
            async with asyncio.timeout(5.0):
                if self._chance.random() < 0.5:
                    again = await node.process.ask(partial(node.write, request))
                    assert again.replayed, f"{written.key} was carried out twice"
                    self._accept(written, again)
                else:
                    is_there = await node.process.ask(partial(node.revision_at, revisions[0], position))
                    assert is_there, f"{written.key} was accepted, and is not read at {position}"
                    at, head = await node.process.ask(partial(node.head_as_of, COUNTER))
                    self._told.heads_seen.append((at, COUNTER, head))
        except (ConnectionError, TimeoutError, OSError):
            pass
        except AtomlogError as error:
            assert error.code in NOT_KNOWN + BROKEN, f"{error!r}"

    def _accept(self, written: Written, result: WriteResult) -> None:
        self._told.accept(written, result)
        position = result.receipt.position
        self._heard_of = max(self._heard_of, position)
        self._own += [
            f"key:{change['key']}" for change in written.changes if "key" in change and written.space == "notes"
        ]

    async def _changes(self, key: str) -> tuple[Mapping[str, Any], ...]:
        """What to write next: a revision that others may want too, a new atom, several, a membership, a long text."""
        text = f"{key} says something"
        match self._chance.randrange(8):
            case 0 | 1 | 2:
                return (await self._revision(key),)
            case 3 if self._own:
                group, of = "key:group", self._chance.choice(self._own)
                return (member(group, of), create(f"{key}-beside", text=text))
            case 4:
                return tuple(create(f"{key}-{n}", text=f"{text} {n}") for n in range(3))
            case 5:
                return (create(f"{key}-long", text=text + " and more of it" * 40),)
            case _:
                return (create(f"{key}-0", text=text),)

    async def _revision(self, key: str) -> Mapping[str, Any]:
        """A revision of the counter on what some process takes for its head."""
        while True:
            node = await self._node()
            try:
                async with asyncio.timeout(5.0):
                    _, head = await node.process.ask(partial(node.head_as_of, COUNTER))
            except (ConnectionError, TimeoutError, OSError, AtomlogError):
                head = None
            if head is not None:
                return {"op": "revise", "atom": "key:counter", "expected": format_id(head), "value": {"text": key}}
            await asyncio.sleep(PAUSE_S)

    async def _node(self) -> Node:
        while not (nodes := self._nodes()):
            await asyncio.sleep(PAUSE_S)
        return self._chance.choice(nodes)
