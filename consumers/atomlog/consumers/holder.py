"""The process that holds the store: one owner a partition, the heads that they share, and the socket for all others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from atomlog.consumers.generations import Generation, GenerationDirectory, HeldLock
from atomlog.consumers.handles import opened
from atomlog.consumers.indexes import ALONE
from atomlog.consumers.owner_socket import NAME, OwnerServer
from atomlog.consumers.parts import Parts
from atomlog.consumers.processes import process_id
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.heads import Heads, Place
from atomlog.kernel.ids import parse_key, parse_name, partition_of
from atomlog.kernel.log.embedded import EmbeddedLog
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


class Holder:
    """This process holds the store: one owner a partition, and `owner.sock` for everybody else."""

    def __init__(self, parts: Parts, heads: RocksKv, lock_of_heads: HeldLock, owners: Mapping[int, Owner]) -> None:
        """Use `take`."""
        self._parts = parts
        self._heads = heads
        self._heads_lock = lock_of_heads
        self.owners = owners
        self._server = OwnerServer(parts.directory, self.answer)

    @classmethod
    async def take(cls, parts: Parts) -> "Holder":
        """Take every partition's lock, apply the log to the heads, and listen.

        Raises NOT_OWNER naming the process that holds the store; nothing is held then.
        """
        log = embedded_log(parts)
        async with AsyncExitStack() as taking:  # whatever of giving back fails, the rest of it is given back, too
            for partition in range(parts.config.partitions):
                await log.acquire(partition)
                taking.push_async_callback(log.release, partition)
            directory = GenerationDirectory(parts.machine.files, parts.directory, HEADS, parts.on_event)
            lock = directory.lock()
            taking.callback(lock.release)
            generation, fresh = directory.current_or_new()
            heads = await opened(parts.machine.workers, partial(_open_heads, parts, generation))
            taking.callback(heads.close)
            if fresh:
                directory.publish(generation)
            world = _world(parts, Heads(heads, parts.config.partitions))
            owners = {partition: Owner(world, partition) for partition in range(parts.config.partitions)}
            holder = cls(parts, heads, lock, owners)
            taking.push_async_callback(holder._close_owners)
            await _all_of(owner.start() for owner in owners.values())
            await holder._server.start()
            taking.pop_all()
        return holder

    async def write(self, request: model.WriteRequest, principal: str) -> model.WriteResult:
        owner = self.owners[partition_of(request.space, self._parts.config.partitions)]
        return await owner.write(request, principal)

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        owner = self.owners[partition_of(space, self._parts.config.partitions)]
        return await owner.outcome(space, key, principal)

    async def places(self) -> Mapping[int, Place]:
        return {partition: owner.place() for partition, owner in self.owners.items()}

    async def close(self) -> None:
        """Answer what is in hand, then give everything back, whatever of it fails."""
        async with AsyncExitStack() as closing:
            for partition in self.owners:
                closing.push_async_callback(embedded_log(self._parts).release, partition)
            closing.callback(self._heads_lock.release)
            closing.callback(self._heads.close)
            closing.push_async_callback(self._close_owners)
            await self._server.close()

    async def _close_owners(self) -> None:
        """All at once: each may have to wait for what is in hand."""
        await _all_of(owner.close() for owner in self.owners.values())

    async def answer(self, message: Mapping[str, Any]) -> Any:
        """A request of another process of this user, who is the principal `local` as here."""
        op = message.get("op")
        if op == "write":
            batch: Any = message.get("batch")
            return (await self.write(parse_write(batch), model.LOCAL_PRINCIPAL)).to_dict()
        if op == "outcome":
            space, key = parse_name(message.get("space"), "space"), parse_key(message.get("key"), "key")
            return (await self.outcome(space, key, model.LOCAL_PRINCIPAL)).to_dict()
        if op == "places":
            return {str(partition): place_dict(place) for partition, place in (await self.places()).items()}
        raise fail("INVALID_INPUT", f"the owner knows no request {ascii(op)[:40]}")


def embedded_log(parts: Parts) -> EmbeddedLog:
    """The log of a store that one process holds: it is in the directory."""
    if parts.embedded is None:
        raise ValueError(f"{parts.directory} is a node of a shared store: nobody holds all of it")
    return parts.embedded


async def _all_of(works: Iterable[Awaitable[None]]) -> None:
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
    """Whether it is what `Holder.take` says of heads that are broken by themselves."""
    return bool(error.details) and error.details[0].get("path") == HEADS


def _world(parts: Parts, heads: Heads) -> World:
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
        node="local",
        pid=process_id(),
        endpoint=f"unix:{NAME}",
        say=parts.on_event,
        admit=_disk_gate(parts),
        clean_tail=lambda partition: not embedded_log(parts).tail_was_cut(partition),
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


def place_dict(place: Place) -> dict[str, Any]:
    state = place.checkpoint.state
    return {
        "position": place.checkpoint.position,
        "term": state.term,
        "chain": state.chain.hex(),
        "effective_batches": place.batches,
        "revisions": place.revisions,
        "void": dict(place.voids),
        "owner": dict(place.claim) or None,
    }
