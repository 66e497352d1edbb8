"""The write side of an embedded store: by its own owners where it holds the log, else through the process that does.

One process holds all partitions of an embedded store. Whoever finds nobody takes the lock; whoever finds somebody
forwards. When the holder goes away, a forwarding process takes over with its next write: the idempotency key makes
sending the same request twice safe.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from atomlog.consumers.holder import Holder
from atomlog.consumers.owner_socket import OwnerConnection
from atomlog.consumers.owners import HEADS, is_of_heads
from atomlog.consumers.parts import Parts
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, InDoubtError, fail
from atomlog.kernel.findings import Findings
from atomlog.kernel.ids import parse_id
from atomlog.kernel.prepare import cited_receipts
from atomlog.kernel.request_copy import plain_copy
from atomlog.kernel.request_types import Batch
from atomlog.kernel.requests import parse_write

if TYPE_CHECKING:
    from atomlog.consumers.cluster.reports import Heard

ATTEMPTS_MAX: Final = 5  # to reach a holder, or become one, before giving up
RETRY_S: Final = 0.05

RawBatch = Mapping[str, Any] | Batch
"""One batch as a caller gives it: a mapping of the documented shape, or the typed form of it."""


class Writing(Protocol):
    """The write side of an open store of any kind."""

    @property
    def holder(self) -> Holder | None:
        """The owners of this process, when it holds the whole store."""
        ...

    async def open(self) -> None:
        """No error when writing is not possible now."""
        ...

    async def write(self, batch: RawBatch, principal: str) -> model.WriteResult: ...
    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome: ...
    async def places(self) -> Mapping[int, Mapping[str, Any]]:
        """What the owner of each partition knows of it; without those that nobody owns or that cannot be asked."""
        ...

    async def nodes(self) -> "Sequence[Heard]":
        """What every process of a shared store said last; none of an embedded one, which has no such talk."""
        ...

    async def close(self) -> None: ...


class WriteSide:
    """Writes of an embedded store, wherever they are carried out."""

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
            if is_of_heads(error):
                self._parts.on_event({"event": "projection_broken", "projection": HEADS, "error": error.to_dict()})
                return
            if error.code not in ("NOT_OWNER", "STORE_LOCKED", "STORE_READ_ONLY"):
                raise

    async def write(self, batch: RawBatch, principal: str) -> model.WriteResult:
        request = parse_write(batch)
        if cited_receipts(request):
            await self._parts.journal.flush()
        side = await self._side()
        if isinstance(side, Holder):
            return await side.write(request, principal)
        return result_from(await self._forward("write", batch=plain_copy(batch, Findings())))

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        side = await self._side()
        if isinstance(side, Holder):
            return await side.outcome(space, key, principal)
        try:
            found = await self._forward("outcome", space=space, key=key)
        except InDoubtError:
            return model.Outcome(state="unknown")
        return outcome_from(found)

    async def places(self) -> Mapping[int, Mapping[str, Any]]:
        """What the holder knows of each partition; empty when nobody holds the store and it cannot be taken."""
        if self._holder is not None:
            return self._holder.described()
        try:
            found = await self._forward("places")
        except AtomlogError:
            return {}
        return {int(partition): place for partition, place in found.items()}

    async def nodes(self) -> "Sequence[Heard]":
        return ()

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
                return await side.answer({"op": op, **parts})
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


def outcome_from(found: Mapping[str, Any]) -> model.Outcome:
    """What `Outcome.to_dict` described."""
    result = None if found["result"] is None else result_from(found["result"])
    return model.Outcome(state=found["outcome"], result=result, term=found["term"])


def result_from(found: Mapping[str, Any]) -> model.WriteResult:
    """What `WriteResult.to_dict` described."""
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
