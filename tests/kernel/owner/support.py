"""What the tests of the write path ask of a log and of an owner."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Final

from atomlog.kernel.commit_rule import INITIAL, Effective, Genesis, Void, fold
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.log.faults import Fault
from atomlog.kernel.log.memory import MemoryLogServer
from atomlog.kernel.owner import Owner
from atomlog.kernel.ports import KeyPage
from tests.support.kernel_world import LOG_ID, QUICK, Bench, create
from tests.support.sealed import FaultyKeyStore

HASTY: Final = replace(QUICK, write_timeout_ms=150)
PATIENT: Final = replace(QUICK, write_timeout_ms=20_000)  # who waits so long fails: IN_DOUBT tells
# What a fault of an append of one record leaves behind, when it is written again or claimed again after a doubt.
VOIDS_OF_ONE_RECORD: Final[dict[Fault, dict[str, int]]] = {
    Fault.NONE: {},
    Fault.ERROR_BEFORE: {},
    Fault.LOST_NOT_APPLIED: {},
    Fault.LOST_APPLIED: {},
    Fault.DELAYED: {"stale_term": 1},
    Fault.DUPLICATED: {"seq_repeated": 1},
    Fault.DUPLICATED_LATER: {"seq_repeated": 1},
    Fault.TORN: {},
    Fault.HANGS_NOT_APPLIED: {},
    Fault.HANGS_APPLIED: {},
}


def server(partitions: int = 1) -> MemoryLogServer:
    return MemoryLogServer(log_id=LOG_ID, partitions=partitions)


def verdicts(log: MemoryLogServer) -> tuple[list[str], dict[str, int]]:
    """Kinds of the effective records, and void records by reason, folded anew from the start."""
    genesis = Genesis(log_id=LOG_ID, partition=0, partitions=1)
    state, kinds, voids = INITIAL, [], Counter[str]()
    for entry in log.records(0):
        verdict = fold(state, entry.record, genesis, entry.position)
        if isinstance(verdict, Effective):
            state = verdict.state
            kinds.append(str(entry.record.kind))
        else:
            assert isinstance(verdict, Void)
            voids[verdict.reason] += 1
    return kinds, dict(voids)


def kinds(log: MemoryLogServer) -> list[str]:
    """Kinds of all records, void ones too."""
    return [str(entry.record.kind) for entry in log.records(0)]


async def claimed(bench: Bench) -> Owner:
    owner = await bench.owner()
    await owner.claim()
    return owner


async def code_of(work: Awaitable[Any]) -> str:
    try:
        await work
    except AtomlogError as error:
        return error.code
    return "accepted"


async def settle(times: int = 50) -> None:
    """Let everything go on that can."""
    for _ in range(times):
        await asyncio.sleep(0)


async def going_on(log: MemoryLogServer, *tasks: "asyncio.Task[Any]") -> None:
    """Let stalled calls go on until these tasks are done."""
    while not all(task.done() for task in tasks):
        log.let_go()
        await asyncio.sleep(0.001)


def revise(name: str, expected: bytes, text: str) -> dict[str, object]:
    return {"op": "revise", "atom": f"key:{name}", "expected": format_id(expected), "value": {"text": text}}


def creates(name: str, count: int) -> list[dict[str, object]]:
    return [create(f"{name}{n}") for n in range(count)]


class GatedKeyStore(FaultyKeyStore):
    """Puts wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def put(self, pages: Sequence[KeyPage]) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        await super().put(pages)
