"""The write side of an open store: by its own owners where it holds the log, else through the process that does.

One process holds all partitions of an embedded store. Whoever finds nobody takes the lock; whoever finds somebody
forwards. When the holder goes away, a forwarding process takes over with its next write: the idempotency key makes
sending the same request twice safe.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from atomlog.consumers.generations import Generation, GenerationDirectory
from atomlog.consumers.handles import opened
from atomlog.consumers.indexes import ALONE
from atomlog.consumers.owner_socket import NAME, OwnerConnection, OwnerServer
from atomlog.consumers.parts import Parts
from atomlog.consumers.processes import process_id
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, InDoubtError, fail
from atomlog.kernel.findings import Findings
from atomlog.kernel.heads import Heads, Place
from atomlog.kernel.ids import parse_id, parse_key, parse_name, partition_of
from atomlog.kernel.owner import Owner
from atomlog.kernel.plan import Rules
from atomlog.kernel.prepare import cites_receipts
from atomlog.kernel.request_copy import plain_copy
from atomlog.kernel.request_types import Batch
from atomlog.kernel.requests import parse_write
from atomlog.kernel.rocks import RocksKv, open_primary
from atomlog.kernel.world import World

HEADS: Final = "heads"
HEADS_CACHE_BYTES: Final = 24 * 1024 * 1024  # filters and indexes of some million atoms; full after few writes
ATTEMPTS_MAX: Final = 5  # to reach a holder, or become one, before giving up
RETRY_S: Final = 0.05
RIGHTS: Final = frozenset({"read", "write", "mark-source", "purge", "admin"})  # of the principal `local`
DISK_CHECK_US: Final = 1_000_000

RawBatch = Mapping[str, Any] | Batch
"""One batch as a caller gives it: a mapping of the documented shape, or the typed form of it."""


class Holder:
    """This process holds the store: one owner a partition, and `owner.sock` for everybody else."""

    def __init__(self, parts: Parts, heads: RocksKv, lock_of_heads: Any, owners: Mapping[int, Owner]) -> None:
        """Use `take`."""
        self._parts = parts
        self._heads = heads
        self._heads_lock = lock_of_heads
        self.owners = owners
        self._server = OwnerServer(parts.directory, self._answer)

    @classmethod
    async def take(cls, parts: Parts) -> "Holder":
        """Take every partition's lock, apply the log to the heads, and listen.

        Raises NOT_OWNER naming the process that holds the store; nothing is held then.
        """
        async with AsyncExitStack() as taking:  # whatever of giving back fails, the rest of it is given back, too
            for partition in range(parts.config.partitions):
                await parts.log.acquire(partition)
                taking.push_async_callback(parts.log.release, partition)
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
                closing.push_async_callback(self._parts.log.release, partition)
            closing.callback(self._heads_lock.release)
            closing.callback(self._heads.close)
            closing.push_async_callback(self._close_owners)
            await self._server.close()

    async def _close_owners(self) -> None:
        """All at once: each may have to wait for what is in hand."""
        await _all_of(owner.close() for owner in self.owners.values())

    async def _answer(self, message: Mapping[str, Any]) -> Any:
        """A request of another process of this user, who is the principal `local` as here."""
        op = message.get("op")
        if op == "write":
            batch: Any = message.get("batch")
            return (await self.write(parse_write(batch), model.LOCAL_PRINCIPAL)).to_dict()
        if op == "outcome":
            space, key = parse_name(message.get("space"), "space"), parse_key(message.get("key"), "key")
            return (await self.outcome(space, key, model.LOCAL_PRINCIPAL)).to_dict()
        if op == "places":
            return {str(partition): _place_dict(place) for partition, place in (await self.places()).items()}
        raise fail("INVALID_INPUT", f"the owner knows no request {ascii(op)[:40]}")


async def _all_of(works: Iterable[Awaitable[None]]) -> None:
    """All at once, each to its end; then the first one's error."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if error is not None:
            raise error


class WriteSide:
    """Writes of an open store, wherever they are carried out."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._holder: Holder | None = None
        self._connection: OwnerConnection | None = None
        self._changing = asyncio.Lock()
        self._closed = False

    @property
    def holder(self) -> Holder | None:
        """The owners of this process, when it holds the store."""
        return self._holder

    async def open(self) -> None:
        """Take the store if nobody has it; no error when somebody has, or when only writing is not possible."""
        try:
            await self._side()
        except AtomlogError as error:
            if _is_of_heads(error):
                self._parts.on_event({"event": "projection_broken", "projection": HEADS, "error": error.to_dict()})
                return
            if error.code not in ("NOT_OWNER", "STORE_LOCKED", "STORE_READ_ONLY"):
                raise

    async def write(self, batch: RawBatch, principal: str) -> model.WriteResult:
        request = parse_write(batch)
        if cites_receipts(request):
            await self._parts.journal.flush()
        side = await self._side()
        if isinstance(side, Holder):
            return await side.write(request, principal)
        return _result_from(await self._forward("write", batch=plain_copy(batch, Findings())))

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        side = await self._side()
        if isinstance(side, Holder):
            return await side.outcome(space, key, principal)
        try:
            found = await self._forward("outcome", space=space, key=key)
        except InDoubtError:
            return model.Outcome(state="unknown")
        result = None if found["result"] is None else _result_from(found["result"])
        return model.Outcome(state=found["outcome"], result=result, term=found["term"])

    async def places(self) -> Mapping[int, Mapping[str, Any]]:
        """What the holder knows of each partition; empty when nobody holds the store and it cannot be taken."""
        if self._holder is not None:
            return {partition: _place_dict(place) for partition, place in (await self._holder.places()).items()}
        try:
            found = await self._forward("places")
        except AtomlogError:
            return {}
        return {int(partition): place for partition, place in found.items()}

    async def close(self) -> None:
        async with self._changing:
            self._closed = True
            holder, self._holder = self._holder, None
            connection, self._connection = self._connection, None
            if holder is not None:
                await holder.close()
            if connection is not None:
                await connection.close()

    async def _forward(self, op: str, **parts: Any) -> Any:
        """Ask the holder. When it goes away before it answers, the same request is sent again, or carried out here."""
        why = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                side = await self._side()
            except AtomlogError as error:
                if not why:
                    raise
                why = error.message  # nobody is there to ask what became of it
                break
            if isinstance(side, Holder):
                return await side._answer({"op": op, **parts})
            try:
                return await side.ask(op, self._parts.settings.owner_socket_timeout_ms / 1_000, **parts)
            except ConnectionError as error:
                why = str(error)
                await self._parts.machine.clock.sleep(RETRY_S)
            except TimeoutError:
                why = "it did not answer in time"
                break
        message = f"the process that holds the store did not answer: {why}"
        raise fail("IN_DOUBT", f"{message}; send the same batch with the same key again", retry_after_ms=1_000)

    async def _side(self) -> Holder | OwnerConnection:
        """The owners of this process, or a connection to the process that has them."""
        known = self._known_side()
        if known is not None:
            return known
        async with self._changing:
            if self._closed:
                raise fail("NOT_OWNER", "the store is closed")
            return self._known_side() or await self._take_or_connect()

    def _known_side(self) -> Holder | OwnerConnection | None:
        if self._holder is not None:
            return self._holder
        return None if self._connection is None or self._connection.broken else self._connection

    async def _take_or_connect(self) -> Holder | OwnerConnection:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        attempt = 0
        while True:
            attempt += 1
            taken = await self._try_to_take()
            if isinstance(taken, Holder):
                self._holder = taken
                return taken
            try:
                self._connection = await OwnerConnection.open(self._parts.directory)
                return self._connection
            except OSError:  # it holds the lock and does not listen yet, or not any more
                if attempt >= ATTEMPTS_MAX or self._parts.read_only:
                    raise taken from None
                await self._parts.machine.clock.sleep(RETRY_S * 2**attempt)

    async def _try_to_take(self) -> Holder | AtomlogError:
        """Become the holder, or say why not."""
        if self._parts.read_only:
            return fail("STORE_READ_ONLY", f"{self._parts.directory} was opened for reading only")
        try:
            return await Holder.take(self._parts)
        except AtomlogError as error:
            if error.code != "NOT_OWNER":
                raise
            return error


def _open_heads(parts: Parts, generation: Generation) -> RocksKv:
    """What is wrong with the heads stops writing, and nothing else."""
    try:
        cache_bytes = min(parts.settings.block_cache_bytes, HEADS_CACHE_BYTES)
        return open_primary(f"{generation.directory}/db", block_cache_bytes=cache_bytes)
    except AtomlogError as error:
        if error.code not in ALONE:
            raise
        detail = {"path": HEADS, "code": error.code, "message": error.message}
        raise fail(error.code, error.message, details=[detail]) from None


def _is_of_heads(error: AtomlogError) -> bool:
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
        clean_tail=lambda partition: not parts.log.tail_was_cut(partition),
    )


def _disk_gate(parts: Parts) -> Any:
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


def _place_dict(place: Place) -> dict[str, Any]:
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


def _result_from(found: Mapping[str, Any]) -> model.WriteResult:
    receipt = found["receipt"]
    return model.WriteResult(
        results=tuple(
            model.ChangeResult(
                alias=one.get("as"), atom=parse_id(one["atom"], "atom"), revision=parse_id(one["revision"], "revision")
            )
            for one in found["results"]
        ),
        receipt=model.WriteReceipt(
            space=receipt["space"],
            partition=receipt["partition"],
            position=receipt["position"],
            term=receipt["term"],
            chain=bytes.fromhex(receipt["chain"]),
        ),
        replayed=found["replayed"],
    )
