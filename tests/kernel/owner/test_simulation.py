"""Owners that fault, stall, lose their term, die and come back, in an order drawn from a seed; and clients that insist.

In the end the log says what happened, and everything that anybody was told has to agree with it.
"""

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.commit_rule import INITIAL, Effective, Genesis, fold
from atomlog.kernel.content import Opened
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.faults import Fault, ReadFault
from atomlog.kernel.log.memory import MemoryLog
from atomlog.kernel.owner import Owner
from atomlog.kernel.tail import EffectiveRecord
from atomlog.schemas.record import Record
from atomlog.schemas.revision import decode_clear
from tests.kernel.owner.support import HASTY, server
from tests.support.kernel_world import LOG_ID, Bench, SteppingClock, batch, create, outcome, write

SEEDS: Final = int(os.environ.get("ATOMLOG_SIMULATIONS", "25"))
FIRST: Final = int(os.environ.get("ATOMLOG_SIMULATION", "0"))
CLIENTS: Final = 4
OPS: Final = 8
STEPS: Final = 120
COUNTER: Final = keyed_id("notes", "notes", "counter")
TO_RETRY: Final = ("IN_DOUBT", "NOT_OWNER", "OVERLOADED")


class Killed(BaseException):
    """The process ends here."""


@dataclass(kw_only=True)
class Process:
    """An owner and what outlives it: its heads, as far as they were written."""

    bench: Bench
    owner: Owner
    is_dead: bool = False


@dataclass(kw_only=True)
class Told:
    """What clients were told, by idempotency key."""

    accepted: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # revision, position
    refused: dict[str, str | None] = field(default_factory=dict)  # the head that a conflict named
    never: set[str] = field(default_factory=set)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = server()
        self.keys = MemoryKeyStore()
        self.blobs = MemoryBlobStore()
        self.clock = SteppingClock()
        self.told = Told()
        self.processes: list[Process] = []
        self.claims: list[asyncio.Future[None]] = []
        self.lives = 0
        self.running = CLIENTS

    async def born(self, heads: MemoryKv | None = None) -> Process:
        self.lives += 1
        name = f"life {self.lives}"
        bench = Bench(
            log=MemoryLog(self.log, name=name),
            keys=self.keys,
            blobs=self.blobs,
            heads=heads or MemoryKv(),
            clock=self.clock,
            settings=HASTY,
            seed=name,
        )
        while True:
            try:
                return Process(bench=bench, owner=await bench.owner())
            except OSError:  # the log did not answer: whoever starts it tries again
                await asyncio.sleep(0)

    def kill(self, process: Process) -> None:
        def dead(point: str) -> None:
            raise Killed(point)

        process.is_dead = True
        process.bench.log.on_await = dead  # type: ignore[attr-defined]
        for task in [*process.owner._tasks, *([process.owner._claiming] if process.owner._claiming else [])]:
            task.cancel()

    async def chaos(self) -> None:
        """Everything that may happen to owners and to the log."""
        for _ in range(STEPS):
            if not self.running:
                return
            await self.let_go_on(self.chance.choice((1, 3, 10, 40)))
            process = self.chance.choice(self.processes)
            match self.chance.randrange(12):
                case 0 | 1 | 2:
                    self.log.script(self.chance.choice(list(Fault)))
                case 3:
                    self.log.script_reads(self.chance.choice(list(ReadFault)))
                case 4 | 5:
                    self.claims.append(asyncio.ensure_future(self.claim(process.owner)))
                case 6 if self.log.in_flight:
                    self.log.deliver(self.chance.choice(self.log.in_flight).number)
                case 7 if self.log.in_flight:
                    self.log.drop(self.chance.choice(self.log.in_flight).number)
                case 8:
                    self.kill(process)
                    self.processes.remove(process)
                    heads = process.bench.heads if self.chance.random() < 0.5 else None
                    self.processes.append(await self.while_letting_go(self.born(heads)))
                case _:
                    self.log.let_go()

    async def let_go_on(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    async def while_letting_go(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        while not task.done():
            self.log.let_go()
            await asyncio.sleep(0.001)
        return task.result()

    async def claim(self, owner: Owner) -> None:
        with suppress(AtomlogError, OSError):
            await owner.claim()

    async def client(self, number: int) -> None:
        for op in range(OPS):
            await self.insist(f"k{number}-{op}", *self.change(number, op))
        self.running -= 1

    def change(self, number: int, op: int) -> tuple[dict[str, Any], str]:
        if self.chance.random() < 0.5:
            return create(f"a{number}-{op}"), self.chance.choice(("notes", "new"))
        return {}, "notes"

    async def insist(self, key: str, change: dict[str, Any], space: str) -> None:
        """One write until what became of it is known; a revision of the counter on what one owner says is its head."""
        while True:
            owner = self.chance.choice(self.processes).owner
            if not change:
                head = owner._settled.head(0, COUNTER)
                if head is None:
                    await asyncio.sleep(0.001)
                    continue
                expected = format_id(head.clear.revision_id)
                change = {"op": "revise", "atom": "key:counter", "expected": expected, "value": {"text": key}}
            try:
                result = await write(owner, batch(key, change, space=space))
            except AtomlogError as error:
                if error.code in TO_RETRY:
                    if await self.give_up(key, space):
                        return
                    await asyncio.sleep(0.001)
                    continue
                assert error.code == "REVISION_CONFLICT", error
                self.told.refused[key] = error.details[0]["head"]
                return
            self.told.accepted[key] = (result.results[0].revision, result.receipt.position)
            return

    async def give_up(self, key: str, space: str) -> bool:
        """Ask what became of it; whoever hears `never` does not try again."""
        if self.chance.random() < 0.5:
            return False
        found = await outcome(self.chance.choice(self.processes).owner, key, space)
        if found.state == "never":
            self.told.never.add(key)
        if found.state == "accepted":
            assert found.result is not None
            self.told.accepted[key] = (found.result.results[0].revision, found.result.receipt.position)
        return found.state in ("never", "accepted")

    async def run(self) -> None:
        self.processes = [await self.born() for _ in range(3)]
        await self.processes[0].owner.claim()
        await self.insist("counter", create("counter"), "notes")
        clients = [asyncio.ensure_future(self.client(number)) for number in range(CLIENTS)]
        await self.chaos()
        # Peace: what is in flight arrives, and one owner is left to answer whoever still insists.
        last = await self.while_letting_go(self.born())
        self.processes.append(last)
        self.log.deliver()
        while not all(client.done() for client in clients):
            self.log.let_go()
            if last.owner.phase == "standby":
                await self.claim(last.owner)
            await asyncio.sleep(0.001)
        await asyncio.gather(*clients)
        for process in self.processes[:-1]:
            await self.while_letting_go(process.owner.close())
        while last.owner.applied < len(self.log.records(0)):
            self.log.let_go()
            await asyncio.sleep(0.001)
        await last.owner.close()
        await self.check(last)

    async def check(self, last: Process) -> None:
        state, records = INITIAL, []
        genesis = Genesis(log_id=LOG_ID, partition=0, partitions=1)
        for entry in self.log.records(0):
            verdict = fold(state, entry.record, genesis, entry.position)
            if isinstance(verdict, Effective):
                assert isinstance(entry.record, Record)
                state = verdict.state
                records.append(EffectiveRecord(position=entry.position, record=entry.record, chain=state.chain))
        batches = [(record.position, record.batch()) for record in records if record.kind == "Batch"]
        # 1. Each request counts at most once, and its digest key is one of its space.
        assert max(Counter(found.request_key for _, found in batches).values()) == 1
        assert len({(found.space, found.digest_key_id) for _, found in batches}) == len({b.space for _, b in batches})
        # 2. Times rise; each revision follows the one before it; all of it can be read.
        times = [found.recorded_at_us for _, found in batches]
        assert times == sorted(set(times))
        heads: dict[bytes, bytes] = {}
        revisions: dict[bytes, int] = {}
        content = last.bench.world().content
        for position, found in batches:
            for data in found.revisions:
                clear, _ = decode_clear(data)
                assert clear.previous == heads.get(clear.atom_id)
                heads[clear.atom_id] = clear.revision_id
                revisions[clear.revision_id] = position
                assert isinstance(await content.open(data), Opened)
        # 3. What was accepted is where it was said to be; what was refused or never happened is not there.
        for key, (revision, position) in self.told.accepted.items():
            assert revisions.get(revision) == position, key
        assert len(batches) == len(self.told.accepted)
        for head in self.told.refused.values():
            assert head is None or bytes.fromhex(head.replace("-", "")) in revisions
        assert not self.told.never & self.told.accepted.keys()
        # 4. The heads of whoever followed all of it say the same.
        anew = replace(last.bench, log=MemoryLog(self.log, name="reader"), heads=MemoryKv())
        reader = await anew.owner()
        await reader.close()
        assert list(anew.heads.scan(b"", b"\xff")) == list(last.bench.heads.scan(b"", b"\xff"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_what_anybody_was_told_agrees_with_the_log(seed: int) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await Simulation(seed).run()

    # What killed tasks raise is the point of the test, not an error of it.
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _loop, _context: None)
        runner.run(bounded())
