"""The process that holds the store is killed while others write through it: nothing is lost, nothing is done twice."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from tests.acceptance.writing import history, source
from tests.support.store_process import StoreProcess

CLIENTS = 12
EACH = 6
KILL_AT = (10, 40)  # acknowledged writes at which the holder is killed


class Crowd:
    """Clients that revise one atom, each through some process that is alive."""

    def __init__(self, processes: Sequence[StoreProcess], space: str) -> None:
        self.alive = list(processes)
        self.space = space
        self.accepted: dict[str, str] = {}  # idempotency key → revision
        self._moved = asyncio.Condition()

    async def write(self, number: int, batch: Mapping[str, Any]) -> Any:
        """The same batch again, elsewhere if need be, until there is an answer."""
        while True:
            process = self.alive[number % len(self.alive)]
            try:
                return await process.ask("write", batch=dict(batch))
            except (ConnectionError, BrokenPipeError):
                await asyncio.sleep(0)  # killed: others take over
            except AtomlogError as error:
                if error.kind not in ("unknown", "unavailable"):
                    raise

    async def client(self, number: int, atom: str, head: str) -> None:
        for turn in range(EACH):
            key, tries = f"client {number} turn {turn}", 0
            while key not in self.accepted:
                change = {"op": "revise", "atom": atom, "expected": head, "value": {"text": key}}
                batch = {"space": self.space, "idempotency_key": f"{key} {tries}", "changes": [change]}
                try:
                    result = await self.write(number, batch)
                except AtomlogError as error:
                    assert error.code == "REVISION_CONFLICT", error
                    head, tries = error.details[0]["head"], tries + 1
                else:
                    head = self.accepted[key] = result["results"][0]["revision"]
                    async with self._moved:
                        self._moved.notify_all()

    async def kill_the_holder_now_and_then(self) -> None:
        """Processes take over in the order in which one of them happens to be first."""
        for at in KILL_AT:
            async with self._moved:
                while len(self.accepted) < at:
                    await self._moved.wait()
            status = await self.alive[-1].ask("status")
            pid = status["partitions"][0]["owner"]["pid"]
            (holder,) = (process for process in self.alive if process.process.pid == pid)
            self.alive.remove(holder)
            await holder.kill()


async def test_a_killed_holder_is_followed_by_another_process_without_a_lost_or_doubled_write(
    tmp_path: Path, space: str
) -> None:
    directory = str(tmp_path / "store")
    await AsyncStore.init(directory)
    processes = [
        await StoreProcess.start(directory, log=tmp_path / f"{number}.log", projections=PROJECTIONS, follow=True)
        for number in range(len(KILL_AT) + 1)
    ]
    crowd = Crowd(processes, space)
    created = await processes[0].ask(
        "write", batch={"space": space, "idempotency_key": "first", "changes": [source("the first")]}
    )
    atom, revision = created["results"][0]["atom"], created["results"][0]["revision"]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(crowd.kill_the_holder_now_and_then())
        for number in range(CLIENTS):
            tasks.create_task(crowd.client(number, atom, revision))

    (survivor,) = crowd.alive
    last = await survivor.ask("status")
    end = {"partition": 0, "position": last["partitions"][0]["end"] - 1}
    page = await survivor.shown("read", selector=history(atom), options={"at_least": end, "limit": 1_000})
    assert [row["revision"] for row in page.rows[1:]] == sorted(crowd.accepted.values(), key=order(page.rows))
    assert {row["value"]["text"]: row["revision"] for row in page.rows[1:]} == crowd.accepted
    assert last["partitions"][0]["term"] == len(KILL_AT) + 1
    assert last["partitions"][0]["effective_batches"] == len(page.rows)
    await survivor.close()


def order(rows: Sequence[Mapping[str, Any]]) -> Any:
    places = {row["revision"]: number for number, row in enumerate(rows)}
    return places.__getitem__
