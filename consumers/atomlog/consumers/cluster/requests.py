"""What other nodes ask of a node that owns partitions.

A request for a partition that is owned elsewhere is forwarded once, to the endpoint of the latest effective Claim;
then, or when nobody answers there, NOT_OWNER names that endpoint, and who asks decides.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomlog.consumers.cluster.connections import Connections, Unreached
from atomlog.consumers.cluster.inbox.requests import with_origin
from atomlog.consumers.cluster.keeper import Keeper
from atomlog.consumers.cluster.moving import Mover
from atomlog.consumers.owners import Owners
from atomlog.consumers.parts import Parts
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import invalid, parse_key, parse_name, partition_of, shown
from atomlog.kernel.prepare import cited_receipts
from atomlog.kernel.requests import parse_write

RETRY_MS: Final = 100
_ENVELOPE: Final = ("id", "op", "forwarded")


class Requests:
    """Answers one node's peers. Each raises what the request raises; NOT_OWNER when nobody here may carry it out."""

    def __init__(
        self,
        parts: Parts,
        endpoint: str,
        owners: Owners,
        keepers: Mapping[int, Keeper],
        mover: Mover,
        connections: Connections,
    ) -> None:
        self._parts = parts
        self._endpoint = endpoint
        self._owners = owners
        self._keepers = keepers
        self._mover = mover
        self._connections = connections

    async def answer(self, message: Mapping[str, Any]) -> Any:
        match message.get("op"):
            case "write":
                return await self._write(message)
            case "outcome":
                return await self._outcome(message)
            case "places":
                return await self._owners.answer(message)
            case "probe":
                return self._probe(message)
            case "fit":
                return {"unfit": await self._keepers[self._partition(message)].unfit()}
            case "move":
                return await self._move(message)
        raise invalid("op", f"a kernel knows no request {shown(message.get('op'))}")

    async def _write(self, message: Mapping[str, Any]) -> Any:
        batch: Any = message.get("batch")
        request = with_origin(parse_write(batch), message)
        partition = partition_of(request.space, self._parts.config.partitions)
        if not self._owns(partition):
            return await self._forward(partition, message)
        try:
            with self._parts.journal.lent(_receipts(message, request)):
                return (await self._owners.write(request, _principal(message))).to_dict()
        except AtomlogError as error:
            if error.code != "NOT_OWNER":
                raise
            return await self._forward(partition, message)  # it was lost meanwhile, and nothing was written

    async def _outcome(self, message: Mapping[str, Any]) -> Any:
        space, key = parse_name(message.get("space"), "space"), parse_key(message.get("key"), "key")
        partition = partition_of(space, self._parts.config.partitions)
        if not self._owns(partition):
            return await self._forward(partition, message)
        return (await self._owners.outcome(space, key, _principal(message))).to_dict()

    def _probe(self, message: Mapping[str, Any]) -> Any:
        keeper, owner = self._keepers[self._partition(message)], message.get("owner")
        is_own = isinstance(owner, str) and owner != "" and keeper.owner.is_own(_bytes(owner, "owner"))
        return {"serves": is_own and keeper.serves, "phase": keeper.phase, "term": keeper.owner.term}

    async def _move(self, message: Mapping[str, Any]) -> Any:
        partition, to = self._partition(message), message.get("to")
        if to is not None and not isinstance(to, str):
            raise invalid("to", f"{shown(to)} is no name or endpoint of a node")
        if not self._owns(partition):
            return await self._forward(partition, message)
        return await self._mover.move(partition, to)

    async def _forward(self, partition: int, message: Mapping[str, Any]) -> Any:
        """Ask the owner that the log names, once."""
        owner = self._keepers[partition].owner
        claim = owner.place().claim
        endpoint = claim.get("endpoint", "")
        stopped = None if owner.failure is None else f"this node cannot follow it: {owner.failure}"
        if not claim or "released" in claim:
            raise _not_owner(partition, claim, stopped or "nobody owns it at the moment")
        if endpoint == self._endpoint:
            why = stopped or "its owner was here and is to be replaced"
            raise _not_owner(partition, {**claim, "endpoint": ""}, why)
        if message.get("forwarded"):
            raise _not_owner(partition, claim, f"it is owned by {endpoint}")
        parts = {name: part for name, part in message.items() if name not in _ENVELOPE}
        timeout_s = self._parts.settings.node_call_timeout_ms / 1_000
        try:
            return await self._connections.ask(endpoint, str(message["op"]), timeout_s, forwarded=True, **parts)
        except Unreached as error:
            raise _not_owner(partition, claim, f"its owner cannot be reached: {error}") from None
        except (ConnectionError, TimeoutError) as error:
            text = f"{endpoint}, which owns partition {partition}, did not answer: {error}"
            raise fail("IN_DOUBT", f"{text}; send the same request again", retry_after_ms=RETRY_MS) from None

    def _owns(self, partition: int) -> bool:
        keeper = self._keepers[partition]
        return keeper.owner.phase in ("owner", "claiming") and not keeper.is_leaving

    def _partition(self, message: Mapping[str, Any]) -> int:
        partition = message.get("partition")
        if type(partition) is not int or partition not in self._keepers:
            raise invalid("partition", f"{shown(partition)} is none; the store has {len(self._keepers)}, from 0")
        return partition


def _not_owner(partition: int, claim: Mapping[str, Any], why: str) -> AtomlogError:
    detail = {"path": "partition", "code": "NOT_OWNER", "message": why, "partition": partition, **claim}
    message = f"partition {partition} is not owned here: {why}"
    return fail("NOT_OWNER", message, details=[detail], retry_after_ms=RETRY_MS)


def _principal(message: Mapping[str, Any]) -> str:
    """On whose behalf a node asks; itself has the rights of the local user."""
    principal = message.get("principal", model.LOCAL_PRINCIPAL)
    return parse_name(principal, "principal")


def _receipts(message: Mapping[str, Any], request: model.WriteRequest) -> Sequence[bytes]:
    """The receipts that a batch cites and another node keeps: no more than it cites."""
    sent = message.get("receipts", [])
    if not isinstance(sent, list) or not all(isinstance(one, str) for one in sent):
        raise invalid("receipts", "not receipts as text")
    if len(sent) > len(cited_receipts(request)):
        raise invalid("receipts", f"{len(sent)} were sent, which is more than the batch cites")
    return [one.encode() for one in sent]


def _bytes(text: str, path: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise invalid(path, f"{shown(text)} is no hexadecimal text") from None
