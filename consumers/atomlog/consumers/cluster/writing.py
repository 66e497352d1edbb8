"""The write side of a node that owns nothing: each request goes to the node that owns its partition.

Who owns a partition is a hint here; whoever is asked wrongly says who it is. A request is sent again, to another node
if need be, until the write deadline: its idempotency key makes that safe. Only what was sent and not answered is in
doubt.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from atomlog.consumers.cluster.connections import Connections, Unreached
from atomlog.consumers.parts import Parts
from atomlog.consumers.writing import RawBatch, outcome_from, result_from
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, InDoubtError, fail
from atomlog.kernel.findings import Findings
from atomlog.kernel.ids import partition_of
from atomlog.kernel.prepare import cited_receipts
from atomlog.kernel.request_copy import plain_copy
from atomlog.kernel.requests import parse_write

RETRY_S: Final = 0.05  # doubles up to RETRY_MAX_S
RETRY_MAX_S: Final = 1.0
PLACES_S: Final = 2.0  # for one node to say where its partitions stand
AGAIN: Final = ("NOT_OWNER", "IN_DOUBT", "KAFKA_UNAVAILABLE")  # may be otherwise elsewhere, or a moment later
WAY_OUT: Final = "run `atomlog kernel` on a node of this store, or repeat when one has taken over"


class Owners(Protocol):
    """Where the owners are, as far as nodes have said so lately. May be wrong."""

    async def endpoint(self, partition: int) -> str | None:
        """Of the partition's owner; None when none is known. KAFKA_UNAVAILABLE when that cannot be found out."""
        ...

    async def kernels(self) -> Sequence[str]:
        """Endpoints of all nodes that own or could own."""
        ...

    async def close(self) -> None: ...


class ClusterWriteSide:
    """Implements `Writing` for a node of a shared store. It never claims a partition."""

    holder: None = None

    def __init__(self, parts: Parts, owners: Owners, connections: Connections) -> None:
        self._parts = parts
        self._owners = owners
        self._connections = connections
        self._clock = parts.machine.clock

    async def open(self) -> None:
        """Nothing is reached before it is needed."""

    async def write(self, batch: RawBatch, principal: str) -> model.WriteResult:
        if self._parts.read_only:
            raise fail("STORE_READ_ONLY", f"{self._parts.directory} was opened for reading only")
        request = parse_write(batch)
        cited = await self._cited(request)
        sent: dict[str, Any] = {"batch": plain_copy(batch, Findings())}
        if cited:
            sent["receipts"] = cited
        return result_from(await self._ask_owner(request.space, "write", sent))

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        try:
            return outcome_from(await self._ask_owner(space, "outcome", {"space": space, "key": key}))
        except InDoubtError:
            return model.Outcome(state="unknown")

    async def places(self) -> Mapping[int, Mapping[str, Any]]:
        """What the nodes that own say of each partition; those are missing that nobody speaks for."""
        answers = await asyncio.gather(*(self._places_of(endpoint) for endpoint in await self._owners.kernels()))
        found: dict[int, Mapping[str, Any]] = {}
        for answer in answers:
            for text, place in answer.items():
                partition = int(text)
                if partition not in found or _is_later(place, found[partition]):
                    found[partition] = place
        return found

    async def close(self) -> None:
        await self._connections.close()
        await self._owners.close()

    async def _places_of(self, endpoint: str) -> Mapping[str, Mapping[str, Any]]:
        try:
            found: Mapping[str, Mapping[str, Any]] = await self._connections.ask(endpoint, "places", PLACES_S)
        except (OSError, AtomlogError):
            return {}  # another one may speak for its partitions
        return found

    async def _cited(self, request: model.WriteRequest) -> Sequence[str]:
        """The receipts that the owner needs and has not: they are kept where they were read. Durable here first."""
        cited = cited_receipts(request)
        if not cited:
            return ()
        await self._parts.journal.flush()
        found: list[str] = []
        for receipt in cited:
            try:
                found.append((await self._parts.journal.receipt(receipt))[0].to_bytes().decode())
            except AtomlogError as error:
                if error.code != "RECEIPT_EXPIRED":  # the owner says so, and of which part of the request
                    raise
        return found

    async def _ask_owner(self, space: str, op: str, sent: Mapping[str, Any]) -> Any:
        partition = partition_of(space, self._parts.config.partitions)
        attempt = _Attempt(partition=partition, retry_s=RETRY_S)
        limit_us = self._clock.monotonic_us() + self._parts.settings.write_timeout_ms * 1_000
        while (left_us := limit_us - self._clock.monotonic_us()) > 0:
            try:
                endpoint = attempt.take_hint() or await self._owners.endpoint(partition)
                if endpoint is not None:
                    attempt.endpoint = endpoint
                    return await self._connections.ask(endpoint, op, self._call_s(left_us), **sent)
                attempt.why = f"no node owns partition {partition}"
                if not attempt.in_doubt and not await self._owners.kernels():
                    break
            except AtomlogError as error:
                attempt.refused(error)
            except OSError as error:
                attempt.unanswered(error)
            if attempt.hint is None:
                await self._clock.sleep(min(attempt.next_retry_s(), left_us / 1_000_000))
        raise attempt.given_up()

    def _call_s(self, left_us: int) -> float:
        return min(left_us / 1_000_000, self._parts.settings.node_call_timeout_ms / 1_000)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """What became so far of one request. `hint`: where the last one that was asked says that the owner is."""

    partition: int
    retry_s: float
    endpoint: str = ""
    hint: str | None = None
    followed: str | None = None
    why: str = ""
    code: str = "NOT_OWNER"
    in_doubt: bool = False

    def take_hint(self) -> str | None:
        self.followed, self.hint = self.hint, None
        return self.followed

    def refused(self, error: AtomlogError) -> None:
        """Raises what is a final answer."""
        if error.code not in AGAIN:
            raise error
        self.in_doubt |= error.code == "IN_DOUBT"
        self.why, self.code = error.message, error.code
        told = next((one["endpoint"] for one in error.details if isinstance(one.get("endpoint"), str)), None)
        if told and told != self.endpoint and self.followed is None:  # once; then it is looked up anew
            self.hint = told

    def unanswered(self, error: OSError) -> None:
        self.in_doubt |= not isinstance(error, Unreached)
        self.why, self.code = str(error) or f"{self.endpoint} did not answer in time", "NOT_OWNER"

    def next_retry_s(self) -> float:
        now_s, self.retry_s = self.retry_s, min(2 * self.retry_s, RETRY_MAX_S)
        return now_s

    def given_up(self) -> AtomlogError:
        if self.in_doubt:
            message = f"the owner of partition {self.partition} did not answer: {self.why}"
            return fail("IN_DOUBT", f"{message}; send the same batch with the same key again", retry_after_ms=1_000)
        detail = {"path": "partition", "code": self.code, "message": self.why, "partition": self.partition}
        message = f"partition {self.partition} cannot be written now: {self.why}; {WAY_OUT}"
        return fail(self.code, message, details=[detail], retry_after_ms=1_000)


def _is_later(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Of two nodes' words on a partition, whose counts: the higher term's, then the further."""
    return (one["term"], one["position"]) > (other["term"], other["position"])
