"""The process that holds an embedded store: the log's locks, the owners, and the socket for everybody else."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from atomlog.consumers.owner_socket import NAME, OwnerServer
from atomlog.consumers.owners import Owners
from atomlog.consumers.parts import Parts
from atomlog.kernel import model
from atomlog.kernel.heads import Place
from atomlog.kernel.log.embedded import EmbeddedLog
from atomlog.kernel.owner import Owner


class Holder:
    """This process holds the store: its owners, and `owner.sock` for everybody else."""

    def __init__(self, parts: Parts, owners: Owners) -> None:
        """Use `take`."""
        self._parts = parts
        self._owners = owners
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
            owners = await Owners.open(
                parts,
                node="local",
                endpoint=f"unix:{NAME}",
                clean_tail=lambda partition: not log.tail_was_cut(partition),
            )
            taking.push_async_callback(owners.close)
            holder = cls(parts, owners)
            await holder._server.start()
            taking.pop_all()
        return holder

    @property
    def owners(self) -> Mapping[int, Owner]:
        return self._owners.owners

    async def write(self, request: model.WriteRequest, principal: str) -> model.WriteResult:
        return await self._owners.write(request, principal)

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        return await self._owners.outcome(space, key, principal)

    async def places(self) -> Mapping[int, Place]:
        return await self._owners.places()

    def described(self) -> Mapping[int, Mapping[str, Any]]:
        """Where each partition stands, as JSON."""
        return self._owners.described()

    async def close(self) -> None:
        """Answer what is in hand, then give everything back, whatever of it fails."""
        log = embedded_log(self._parts)
        async with AsyncExitStack() as closing:
            for partition in self.owners:
                closing.push_async_callback(log.release, partition)
            closing.push_async_callback(self._owners.close)
            await self._server.close()

    async def answer(self, message: Mapping[str, Any]) -> Any:
        """A request of another process of this user, who is the principal `local` as here."""
        return await self._owners.answer(message)


def embedded_log(parts: Parts) -> EmbeddedLog:
    """The log of a store that one process holds: it is in the directory."""
    if parts.embedded is None:
        raise ValueError(f"{parts.directory} is a node of a shared store: nobody holds all of it")
    return parts.embedded
