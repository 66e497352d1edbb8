"""A kernel on small, deterministic parts: an owner over any log, and what a test asks of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.heads import Heads
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.kv import MemoryKv
from atomlog.kernel.log.memory import MemoryLog, MemoryLogServer
from atomlog.kernel.model import LOCAL_PRINCIPAL, Outcome, WriteResult
from atomlog.kernel.owner import Owner
from atomlog.kernel.plan import Rules
from atomlog.kernel.ports import KeyStore, Log, Receipts
from atomlog.kernel.requests import parse_write
from atomlog.kernel.settings import Settings
from atomlog.kernel.vector_spaces import parse_vector_space
from atomlog.kernel.world import World
from tests.support.sealed import MASTER, CountedRandomness, InlineWorkers

LOG_ID = bytes(range(16))
START_US = 1_700_000_000_000_000
SPACE = "hashing/1/8/cosine"
RIGHTS = frozenset({"read", "write", "mark-source", "purge", "admin"})
QUICK = Settings(write_timeout_ms=2_000, key_wait_ms=50)


class SteppingClock:
    """Moves a little with every look; sleeping waits for the event loop."""

    def __init__(self, now_us: int = START_US) -> None:
        self.us = now_us

    def now_us(self) -> int:
        self.us += 7
        return self.us

    def monotonic_us(self) -> int:
        return self.now_us()

    async def sleep(self, seconds: float) -> None:
        self.us += round(seconds * 1_000_000)
        await asyncio.sleep(0.001)


@dataclass(kw_only=True)
class Bench:
    """Parts that outlive an owner: a restart is a new `owner` over the same ones."""

    log: Log
    keys: KeyStore = field(default_factory=MemoryKeyStore)
    blobs: MemoryBlobStore = field(default_factory=MemoryBlobStore)
    heads: MemoryKv = field(default_factory=MemoryKv)
    clock: SteppingClock = field(default_factory=SteppingClock)
    settings: Settings = QUICK
    bounds: Bounds = field(default_factory=Bounds)
    receipts: Receipts | None = None
    seed: str = "bench"
    clean_tail: bool = True
    admit: Callable[[], None] = lambda: None
    off_ms: Callable[[], int | None] = lambda: None
    rights: frozenset[str] = RIGHTS
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def world(self) -> World:
        randomness = CountedRandomness(f"{self.seed}{id(self.log)}")
        ring = KeyRing(
            self.keys, master=MASTER, randomness=randomness, clock=self.clock, key_wait_ms=self.settings.key_wait_ms
        )
        partitions = self.log.partitions
        return World(
            log=self.log,
            genesis={p: Genesis(log_id=self.log.log_id, partition=p, partitions=partitions) for p in range(partitions)},
            heads=Heads(self.heads, partitions),
            ring=ring,
            content=ContentOpener(ring, self.blobs),
            blobs=self.blobs,
            receipts=self.receipts,
            clock=self.clock,
            randomness=randomness,
            workers=InlineWorkers(),
            rules=Rules(bounds=self.bounds, spaces={SPACE: parse_vector_space(SPACE, "space")}, rights=self.rights),
            settings=self.settings,
            node=self.seed,
            pid=1,
            endpoint=f"test:{self.seed}",
            say=self.events.append,
            admit=self.admit,
            off_ms=self.off_ms,
            clean_tail=lambda partition: self.clean_tail,
        )

    async def owner(self, partition: int = 0) -> Owner:
        owner = Owner(self.world(), partition)
        await owner.start()
        return owner


def memory_bench(server: MemoryLogServer | None = None, *, seed: str = "one", **parts: Any) -> Bench:
    """A bench on the in-memory log; several on one server share keys and blobs only when given them."""
    server = server or MemoryLogServer(log_id=LOG_ID, partitions=1)
    return Bench(log=MemoryLog(server, name=seed), seed=seed, **parts)


def sharing(bench: Bench, server: MemoryLogServer, *, seed: str, **parts: Any) -> Bench:
    """Another process on the same log: own heads, same keys and blobs."""
    return replace(bench, log=MemoryLog(server, name=seed), heads=MemoryKv(), seed=seed, **parts)


def create(name: str, *, schema: str = "source", text: str = "text", **rest: Any) -> dict[str, Any]:
    value = {"title": text} if schema == "collection" else {"text": text}
    return {"op": "create", "key": name, "schema": schema, "value": value, **rest}


def member(group: str, of: str, **rest: Any) -> dict[str, Any]:
    slots = [
        {"role": "group", "target": group, "mode": "refer"},
        {"role": "member", "target": of, "mode": "refer"},
    ]
    return {"op": "create", "schema": "membership", "value": {}, "slots": slots, **rest}


def batch(key: str, *changes: Mapping[str, Any], space: str = "notes", **rest: Any) -> dict[str, Any]:
    return {"space": space, "idempotency_key": key, "changes": list(changes), **rest}


async def write(owner: Owner, raw: Mapping[str, Any]) -> WriteResult:
    return await owner.write(parse_write(raw), LOCAL_PRINCIPAL)


async def outcome(owner: Owner, key: str, space: str = "notes") -> Outcome:
    return await owner.outcome(space, key, LOCAL_PRINCIPAL)


def run(work: Awaitable[Any], *, timeout_s: float = 30) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded())
