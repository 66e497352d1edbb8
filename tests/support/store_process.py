"""A process of its own that opens a store and answers requests.

A request is a line of JSON on stdin, `{"id", "op", …}`; its answer a line on stdout, `{"id", "ok": true, "result"}`
or `{"id", "ok": false, "error"}`. Answers come in any order. The process ends with its stdin. `StoreProcess` is the
other side.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError, from_dict
from atomlog.kernel.settings import Settings
from atomlog.projections.read.page import Page
from atomlog.projections.read.positions import parse_at
from tests.support.zygote import LINE_BYTES_MAX, Forked, zygote


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A page as its JSON, and the bytes of its body: what a reader in another process can give too."""

    page: dict[str, Any]
    made_by: Callable[[], bytes]

    @classmethod
    def of(cls, page: Page) -> "Shown":
        return cls(page=page.to_dict(), made_by=page.body)

    @cached_property
    def body(self) -> bytes:
        return self.made_by()

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.page["atoms"]
        return rows

    @property
    def atoms(self) -> list[str]:
        return [row["atom"] for row in self.rows]

    @property
    def versions(self) -> list[tuple[str, str]]:
        """(atom, revision) of each row."""
        return [(row["atom"], row["revision"]) for row in self.rows]

    @property
    def receipt(self) -> dict[str, Any]:
        receipt: dict[str, Any] = self.page["receipt"]
        return receipt

    @property
    def receipt_id(self) -> str:
        return str(self.receipt["receipt"])

    @property
    def positions(self) -> dict[int, int]:
        """The read position of each partition."""
        return {int(partition): at["position"] for partition, at in self.receipt["positions"].items()}

    @property
    def continuation(self) -> str | None:
        continuation: str | None = self.page["continuation"]
        return continuation

    @property
    def lag(self) -> dict[str, int]:
        """Records each index was behind, over all partitions."""
        return {name: sum(lag.values()) for name, lag in self.page["diagnostics"]["lag"].items()}


class StoreProcess:
    """Runs the process above, and asks it."""

    def __init__(self, process: Forked, log: Path) -> None:
        """Use `start`."""
        self.process = process
        self._log = log
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._receive())

    @classmethod
    async def start(
        cls,
        directory: str,
        *,
        log: Path,
        projections: Sequence[str],
        follow: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> "StoreProcess":
        """Returns before the store is open: the first answer waits for that."""
        options = {"projections": list(projections), "follow": follow}
        target = "tests.support.store_process:main"
        return cls(await zygote().fork(target, directory, options, log=log, environment=environment), log)

    async def ask(self, op: str, **parts: Any) -> Any:
        """The result of a request; the error that the store raised, or ConnectionError when the process is gone."""
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.process.stdin.write(json.dumps({"id": number, "op": op, **parts}).encode() + b"\n")
            await self.process.stdin.drain()
            return await answer
        finally:
            del self._waiting[number]

    async def shown(self, op: str, **parts: Any) -> Shown:
        found = await self.ask(op, **parts)
        return Shown(page=found["page"], made_by=partial(bytes.fromhex, found["body"]))

    async def close(self) -> None:
        """Let the process end by itself. It must end well."""
        self.process.stdin.close()
        code = await self.process.wait()
        await self._reading
        assert code == 0, f"the store process ended with {code}:\n{self._log.read_text()}"

    async def kill(self) -> None:
        """As a power cut would."""
        await self.process.killed()
        await self._reading

    async def _receive(self) -> None:
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            answer = self._waiting.get(message["id"])
            if answer is None or answer.done():
                continue
            if message["ok"]:
                answer.set_result(message["result"])
            else:
                answer.set_exception(from_dict(message["error"]))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"the store process is gone:\n{self._log.read_text()}"))


async def answer(store: AsyncStore, request: Mapping[str, Any]) -> Any:
    """One request, as the method of the store that is named like it."""
    parts = {name: value for name, value in request.items() if name not in ("id", "op")}
    match request["op"]:
        case "read":
            options = {**parts.pop("options"), **parts}
            if "at" in options:
                options["at"] = parse_at(options["at"])
            return _shown(await store.read(options.pop("selector"), **options))
        case "replay":
            return _shown(await store.replay(parts["receipt"]))
        case "verify":
            return (await store.verify_receipt(parts["receipt"])).to_dict()
        case "write":
            return (await store.write(parts["batch"])).to_dict()
        case "outcome":
            return (await store.outcome(parts["key"], space=parts["space"])).to_dict()
        case "status":
            return (await store.status()).to_dict()
    raise ValueError(f"no request is called {request['op']!r}")


def _shown(page: Page) -> dict[str, Any]:
    shown = Shown.of(page)
    return {"page": shown.page, "body": shown.body.hex()}


async def serve(directory: str, options: Mapping[str, Any]) -> None:
    settings = Settings.from_environment(os.environ)
    async with await AsyncStore.open(directory, create=False, settings=settings, **options) as store:
        requests = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
        async with asyncio.TaskGroup() as answering:
            while line := await requests.readline():
                answering.create_task(_serve_one(store, json.loads(line)))


async def _serve_one(store: AsyncStore, request: Mapping[str, Any]) -> None:
    try:
        reply = {"id": request["id"], "ok": True, "result": await answer(store, request)}
    except AtomlogError as error:
        reply = {"id": request["id"], "ok": False, "error": error.to_dict()}
    print(json.dumps(reply), flush=True)


def main(directory: str, options: Mapping[str, Any]) -> None:
    asyncio.run(serve(directory, options))
