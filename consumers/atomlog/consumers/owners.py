"""The owners of one process, one a partition, and the heads they share: of an embedded store and of a node alike."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from atomlog.consumers.generations import Generation, GenerationDirectory, HeldLock
from atomlog.consumers.handles import opened
from atomlog.consumers.indexes import ALONE
from atomlog.consumers.parts import Parts
from atomlog.consumers.processes import process_id
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.heads import Heads, Place
from atomlog.kernel.ids import parse_key, parse_name, partition_of
from atomlog.kernel.owner import Owner
from atomlog.kernel.plan import Rules
from atomlog.kernel.requests import parse_write
from atomlog.kernel.rocks import RocksKv, open_primary
from atomlog.kernel.world import World

HEADS: Final = "heads"
HEADS_CACHE_SHARE: Final = 8  # an eighth of `block_cache_bytes`: few heads are looked at twice
HEADS_BUFFER_BYTES: Final = 8 * 1024 * 1024  # heads are written as writes come, never all at once
RIGHTS: Final = frozenset({"read", "write", "mark-source", "purge", "admin"})  # of the principal `local`
DISK_CHECK_US: Final = 1_000_000


class Owners:
    """Every partition's owner of this process, started; no other process has these heads open."""

    def __init__(self, parts: Parts, world: World, heads: RocksKv, lock_of_heads: HeldLock) -> None:
        """Use `open`."""
        self._partitions = parts.config.partitions
        self._heads = heads
        self._heads_lock = lock_of_heads
        self.world = world
        self.owners: Mapping[int, Owner] = {n: Owner(world, n) for n in range(parts.config.partitions)}

    @classmethod
    async def open(
        cls,
        parts: Parts,
        *,
        node: str,
        endpoint: str,
        clean_tail: Callable[[int], bool] = lambda partition: False,
        off_ms: Callable[[], int | None] = lambda: None,
        may_fail: bool = False,
    ) -> "Owners":
        """Apply the log to the heads and go on following it. Claims nothing.

        `node` and `endpoint` stand in each Claim; `clean_tail` and `off_ms`: see `World`. `may_fail`: a partition that
        cannot be followed fails alone, and the others start. STORE_LOCKED names the process that has the heads open.
        """
        async with AsyncExitStack() as opening:  # whatever of giving back fails, the rest of it is given back, too
            directory = GenerationDirectory(parts.machine.files, parts.directory, HEADS, parts.on_event)
            lock = directory.lock("owns partitions in this directory already, and one can")
            opening.callback(lock.release)
            generation, fresh = directory.current_or_new()
            heads = await opened(parts.machine.workers, partial(_open_heads, parts, generation))
            opening.callback(heads.close)
            if fresh:
                directory.publish(generation)
            world = replace(
                _world(parts, Heads(heads, parts.config.partitions), node, endpoint, clean_tail), off_ms=off_ms
            )
            found = cls(parts, world, heads, lock)
            opening.push_async_callback(found._close_owners)
            await all_of(owner.start(may_fail=may_fail) for owner in found.owners.values())
            opening.pop_all()
        return found

    def of_space(self, space: str) -> Owner:
        return self.owners[partition_of(space, self._partitions)]

    async def write(self, request: model.WriteRequest, principal: str) -> model.WriteResult:
        return await self.of_space(request.space).write(request, principal)

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        return await self.of_space(space).outcome(space, key, principal)

    async def places(self) -> Mapping[int, Place]:
        return {partition: owner.place() for partition, owner in self.owners.items()}

    def bytes_per_revision(self) -> float | None:
        """What the heads take on the disk for each; None while there is none."""
        revisions = sum(owner.place().revisions for owner in self.owners.values())
        return self._heads.size_bytes() / revisions if revisions else None

    def described(self) -> Mapping[int, Mapping[str, Any]]:
        """Where each partition stands, as JSON."""
        return {partition: place_dict(owner.place(), owner.in_flight) for partition, owner in self.owners.items()}

    async def close(self) -> None:
        """Answer what is in hand, then give everything back, whatever of it fails."""
        async with AsyncExitStack() as closing:
            closing.callback(self._heads_lock.release)
            closing.callback(self._heads.close)
            closing.push_async_callback(self._close_owners)

    async def answer(self, message: Mapping[str, Any], principal: str = model.LOCAL_PRINCIPAL) -> Any:
        """A request of another process, carried out for `principal`."""
        op = message.get("op")
        if op == "write":
            batch: Any = message.get("batch")
            return (await self.write(parse_write(batch), principal)).to_dict()
        if op == "outcome":
            space, key = parse_name(message.get("space"), "space"), parse_key(message.get("key"), "key")
            return (await self.outcome(space, key, principal)).to_dict()
        if op == "places":
            return {str(partition): place for partition, place in self.described().items()}
        raise fail("INVALID_INPUT", f"the owner knows no request {ascii(op)[:40]}")

    async def _close_owners(self) -> None:
        """All at once: each may have to wait for what is in hand."""
        await all_of(owner.close() for owner in self.owners.values())


async def all_of(works: Iterable[Awaitable[None]]) -> None:
    """All at once, each to its end; then the first one's error."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if error is not None:
            raise error


def _open_heads(parts: Parts, generation: Generation) -> RocksKv:
    """What is wrong with the heads stops writing, and nothing else."""
    try:
        cache_bytes = parts.settings.block_cache_bytes // HEADS_CACHE_SHARE
        return open_primary(
            f"{generation.directory}/db", block_cache_bytes=cache_bytes, write_buffer_bytes=HEADS_BUFFER_BYTES
        )
    except AtomlogError as error:
        if error.code not in ALONE:
            raise
        detail = {"path": HEADS, "code": error.code, "message": error.message}
        raise fail(error.code, error.message, details=[detail]) from None


def is_of_heads(error: AtomlogError) -> bool:
    """Whether it is what `Owners.open` says of heads that are broken by themselves."""
    return bool(error.details) and error.details[0].get("path") == HEADS


def _world(parts: Parts, heads: Heads, node: str, endpoint: str, clean_tail: Callable[[int], bool]) -> World:
    return World(
        log=parts.log,
        genesis={partition: parts.config.genesis(partition) for partition in range(parts.config.partitions)},
        heads=heads,
        ring=parts.ring,
        content=parts.content,
        blobs=parts.blobs,
        receipts=parts.journal,
        clock=parts.machine.clock,
        randomness=parts.machine.randomness,
        workers=parts.machine.workers,
        rules=Rules(bounds=parts.bounds, spaces=parts.spaces, rights=RIGHTS),
        settings=parts.settings,
        node=node,
        pid=process_id(),
        endpoint=endpoint,
        say=parts.on_event,
        admit=_disk_gate(parts),
        clean_tail=clean_tail,
        meters=parts.meters,
    )


def _disk_gate(parts: Parts) -> Callable[[], None]:
    """Raises OVERLOADED while less than the reserve is free, before the log or RocksDB meets a full disk."""
    clock, reserve = parts.machine.clock, parts.settings.disk_reserve_bytes
    checked_us, free = -DISK_CHECK_US, 0

    def admit() -> None:
        nonlocal checked_us, free
        if clock.monotonic_us() - checked_us >= DISK_CHECK_US:
            checked_us, free = clock.monotonic_us(), parts.machine.files.free_bytes(parts.directory)
        if free < reserve:
            message = f"{free} bytes are free on the disk of {parts.directory}, less than the reserve of {reserve}"
            raise fail("OVERLOADED", f"{message}; free some space", retry_after_ms=10_000)

    return admit


def place_dict(place: Place, in_flight: int) -> dict[str, Any]:
    state = place.checkpoint.state
    return {
        "position": place.checkpoint.position,
        "term": state.term,
        "chain": state.chain.hex(),
        "effective_batches": place.batches,
        "revisions": place.revisions,
        "void": dict(place.voids),
        "owner": dict(place.claim) or None,
        "in_flight": in_flight,
    }
