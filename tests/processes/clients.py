"""Clients that write until they are told to stop, and keep a journal of what they asked and were told.

A journal outlives its process: a line is in the kernel's hands before the batch is sent. The next process goes on with
the journals of one that was killed, so a batch whose outcome nobody was told is asked about, or sent again.
"""

import asyncio
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.settings import Settings
from tests.acceptance.writing import membership, source

PAUSE_S: Final = 0.02
STOP: Final = "stop"
TRANSIENT: Final = ("IN_DOUBT", "OVERLOADED", "NOT_OWNER", "STORE_LOCKED", "KAFKA_UNAVAILABLE", "CLOCK_SKEW")

Batch = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What became of one batch: its result, or the code it was refused with and the head that it named."""

    batch: Batch
    result: dict[str, Any] | None
    refused: str | None
    head: str | None = None


class Journal:
    """The file of one client: `{"ask": batch}`, and after it `{"result": …}` or `{"refused": code, "head": …}`."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"{number}.journal"

    def lines(self) -> list[dict[str, Any]]:
        """Whole lines: one that a killed process did not finish told nobody anything."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_bytes().split(b"\n")[:-1]]

    def open(self) -> None:
        """Cut off what a killed process did not finish, and go on after it."""
        raw = self._path.read_bytes() if self._path.exists() else b""
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, raw.rfind(b"\n") + 1)

    def say(self, **line: Any) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def told(self) -> list[Told]:
        """Every batch whose outcome is known, in the order in which it was asked."""
        found, asked = [], None
        for line in self.lines():
            if "ask" in line:
                asked = line["ask"]
            elif asked is not None:
                found.append(
                    Told(batch=asked, result=line.get("result"), refused=line.get("refused"), head=line.get("head"))
                )
                asked = None
        return found


class Client:
    """One writer, in a space of its own or not. `shared`: a result whose atom every client revises.

    `pause_s`: at most so long between two batches.
    """

    def __init__(
        self,
        store: AsyncStore,
        journal: Journal,
        number: int,
        seed: str,
        space: str,
        shared: Any,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._store = store
        self._pause_s = pause_s
        self._journal = journal
        self._number = number
        self._space = space
        self._seed = seed
        self._shared = shared

    async def run(self, stopping: Path) -> None:
        head, turn, open_ask = self._restored()
        chance = random.Random(f"{self._seed} {self._number} {turn}")
        if open_ask is not None:
            head = await self._settle(open_ask, head, chance.random() < 0.5)
        while not stopping.exists():
            turn += 1
            batch = self._batch(turn, head, chance)
            self._journal.say(ask=batch)
            head = await self._settle(batch, head, False)
            await asyncio.sleep(chance.random() * self._pause_s)

    def _restored(self) -> tuple[str, int, Batch | None]:
        """The last known head of the shared atom, the last turn, and the batch that is not answered."""
        head, turn, open_ask = self._shared["revision"], 0, None
        for line in self._journal.lines():
            if "ask" in line:
                open_ask, turn = line["ask"], turn + 1
            elif open_ask is not None:
                head, open_ask = _head_after(open_ask, line, head), None
        return head, turn, open_ask

    def _batch(self, turn: int, head: str, chance: random.Random) -> Batch:
        key = f"client {self._number} turn {turn}"
        changes: list[dict[str, Any]] = [
            {"op": "revise", "atom": self._shared["atom"], "expected": head, "value": {"text": key}}
        ]
        if chance.random() < 0.7:
            changes = [source(key, **{"as": "@a"}), membership(self._shared["atom"], "@a"), source(f"{key} too")]
        return {"space": self._space, "idempotency_key": key, "changes": changes}

    async def _settle(self, batch: Batch, head: str, ask_first: bool) -> str:
        """Until it is known what became of the batch; the head of the shared atom as far as that tells it."""
        while True:
            try:
                known = await self._asked(batch) if ask_first else None
                line: dict[str, Any] = {"result": (await self._store.write(batch)).to_dict()}
                assert known in (None, made_of(line["result"])), "a repetition tells what outcome told"
            except AtomlogError as error:
                if error.code in TRANSIENT:
                    ask_first = not ask_first  # both ways of finding out take turns
                    await asyncio.sleep(0.01)
                    continue
                assert error.code == "REVISION_CONFLICT", error
                line = {"refused": error.code, "head": error.details[0]["head"]}
            self._journal.say(**line)
            return _head_after(batch, line, head)

    async def _asked(self, batch: Batch) -> Any:
        outcome = await self._store.outcome(batch["idempotency_key"], space=self._space)
        return None if outcome.result is None else made_of(outcome.result.to_dict())


def made_of(result: Mapping[str, Any]) -> Any:
    """All of a result that the log can tell: not how the request named its changes."""
    return [(one["atom"], one["revision"]) for one in result["results"]], result["receipt"]


def _head_after(batch: Batch, line: Mapping[str, Any], head: str) -> str:
    if line.get("head") is not None:
        return str(line["head"])
    if batch["changes"][0]["op"] == "revise":
        return str(line["result"]["results"][0]["revision"])
    return head


def main(directory: str, folder: str, numbers: Sequence[int], seed: str, space: str, shared: Mapping[str, Any]) -> None:
    """A process with these clients, which writes the store or forwards, and follows nothing."""

    async def running() -> None:
        settings = Settings.from_environment(os.environ)
        journals = {number: Journal(Path(folder), number) for number in numbers}
        for journal in journals.values():
            journal.open()
        store = await opened(directory, settings)
        async with store, asyncio.TaskGroup() as tasks:
            for number, journal in journals.items():
                client = Client(store, journal, number, seed, space, shared)
                tasks.create_task(client.run(Path(folder, STOP)))

    asyncio.run(running())


async def opened(directory: str, settings: Settings) -> AsyncStore:
    """Again while the holder is on its way in or out."""
    while True:
        try:
            return await AsyncStore.open(directory, create=False, settings=settings, projections=(), follow=False)
        except AtomlogError as error:
            assert error.code in TRANSIENT, error
            await asyncio.sleep(0.01)
