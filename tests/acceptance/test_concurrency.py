"""Many writers at once, in one process and in several: guards hold, chains have no gaps."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from atomlog.kernel.errors import AtomlogError
from tests.acceptance.writing import collection, history, ids, members, membership, source
from tests.support.deployments import Deployment
from tests.support.store_process import Shown, StoreProcess

LIMIT = 10
ADDERS = 20
CLIENTS = 50
PROCESSES = 3

Write = Callable[[Mapping[str, Any]], Awaitable[Any]]
Read = Callable[..., Awaitable[Shown]]


class Party:
    """A client with its way to write and to read."""

    def __init__(self, name: str, space: str, write: Write, read: Read) -> None:
        self.name = name
        self.space = space
        self.write = write
        self.read = read
        self.refusals = 0

    async def add_unless_full(self, group: str) -> bool:
        """Join a group of at most LIMIT, guarded by the range that was read; False when it is full."""
        seen: dict[str, Any] | None = None
        while True:
            page = await self.read(members(group), **({} if seen is None else {"at_least": seen}))
            assert page.continuation is None
            if len(page.rows) >= LIMIT:
                return False
            (partition,) = page.positions
            guard = {
                "type": "range",
                "role": "group",
                "target": group,
                "unchanged_since": page.positions[partition],
            }
            batch = {
                "space": self.space,
                "idempotency_key": f"{self.name} {self.refusals}",
                "changes": [source(self.name, **{"as": "@me"}), membership(group, "@me")],
                "preconditions": [guard],
            }
            try:
                await self.write(batch)
            except AtomlogError as error:
                assert error.code == "PRECONDITION_FAILED", error
                self.refusals += 1
                if "changed" in error.details[0]:
                    seen = {"partition": partition, "position": error.details[0]["changed"]}
            else:
                return True

    async def revise(self, atom: str, head: str) -> None:
        """Put one's name on top of the head, whoever's it is by then."""
        while True:
            change = {"op": "revise", "atom": atom, "expected": head, "value": {"text": self.name}}
            batch = {"space": self.space, "idempotency_key": f"{self.name} {self.refusals}", "changes": [change]}
            try:
                await self.write(batch)
            except AtomlogError as error:
                assert error.code == "REVISION_CONFLICT", error
                self.refusals += 1
                head = error.details[0]["head"]
            else:
                return


async def parties(deployment: Deployment, space: str, count: int, processes: list[StoreProcess]) -> list[Party]:
    """Some of this process, the others spread over processes that forward what they write."""

    def here(number: int) -> Party:
        return Party(f"client {number}", space, deployment.writer.write, deployment.read)

    def there(number: int, process: StoreProcess) -> Party:
        async def write(batch: Mapping[str, Any]) -> Any:
            return await process.ask("write", batch=dict(batch))

        async def read(selector: Mapping[str, Any], **options: Any) -> Shown:
            return await process.shown("read", selector=dict(selector), options=options)

        return Party(f"client {number}", space, write, read)

    places = [None, *processes]
    chosen = [places[number % len(places)] for number in range(count)]
    return [here(number) if place is None else there(number, place) for number, place in enumerate(chosen)]


async def test_20_adders_to_a_group_of_at_most_10_leave_exactly_10(deployment: Deployment, space: str) -> None:
    written = await deployment.write(space, [collection("at most ten")])
    group = written["results"][0]["atom"]
    await deployment.current()
    adders = await parties(deployment, space, ADDERS, [])

    joined = await asyncio.gather(*(adder.add_unless_full(group) for adder in adders))

    assert sum(joined) == LIMIT
    assert sum(adder.refusals for adder in adders) > 0, "nobody met anybody"
    await deployment.current()
    page = await deployment.read(members(group))
    names = [adder.name for adder, did in zip(adders, joined, strict=True) if did]
    assert sorted(row["value"]["text"] for row in page.rows) == sorted(names)


async def test_50_clients_revising_one_atom_leave_one_chain_without_a_gap(deployment: Deployment, space: str) -> None:
    created = (await deployment.write(space, [source("the first")]))["results"][0]
    clients = await parties(deployment, space, CLIENTS, [])

    await asyncio.gather(*(client.revise(created["atom"], created["revision"]) for client in clients))

    assert sum(client.refusals for client in clients) > 0, "nobody met anybody"
    await check_chain(deployment, created, {client.name for client in clients})


async def test_clients_of_several_processes_keep_the_guard_and_the_chain(deployment: Deployment, space: str) -> None:
    changes = [collection("at most ten"), source("the first")]
    group, created = (await deployment.write(space, changes))["results"]
    await deployment.current()
    processes = [await deployment.start_client(f"client{number}") for number in range(PROCESSES)]
    adders = await parties(deployment, space, ADDERS, processes)
    clients = await parties(deployment, f"{space}", CLIENTS, processes)
    for client in clients:
        client.name += " of the chain"

    joined, _ = await asyncio.gather(
        asyncio.gather(*(adder.add_unless_full(group["atom"]) for adder in adders)),
        asyncio.gather(*(client.revise(created["atom"], created["revision"]) for client in clients)),
    )
    assert sum(joined) == LIMIT
    assert sum(adder.refusals for adder in adders) > 0, "nobody met anybody"
    for process in processes:
        await process.close()
    await deployment.current()
    assert len((await deployment.read(members(group["atom"]))).rows) == LIMIT
    await check_chain(deployment, created, {client.name for client in clients})


async def check_chain(deployment: Deployment, created: Mapping[str, Any], names: set[str]) -> None:
    """One revision a client after the first, and each follows the one before it in the log."""
    await deployment.current()
    pages = await deployment.pages(history(created["atom"]), limit=20)
    rows = [row for page in pages for row in page.rows]
    assert rows[0]["revision"] == created["revision"]
    assert len(rows) == len(names) + 1
    assert {row["value"]["text"] for row in rows[1:]} == names
    times = [row["recorded_at"] for row in rows]
    assert times == sorted(set(times))
    head = await deployment.read(ids(created["atom"]))
    assert head.versions == [(created["atom"], rows[-1]["revision"])]
    chain = [row["revision"] for row in rows]
    assert await deployment.revisions_in_the_log(created["atom"]) == list(zip([None, *chain], chain, strict=False))
