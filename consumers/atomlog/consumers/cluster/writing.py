"""The write side of a node that owns nothing: each request goes to the node that owns its partition.

Who owns a partition is a hint here; whoever is asked wrongly says who it is, and whoever could own is asked in turn. A
request is sent again, to another node if need be, until the write deadline: its idempotency key makes that safe. Only
what was sent and not answered is in doubt.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from atomlog.consumers.cluster.channel import Stranger, is_endpoint
from atomlog.consumers.cluster.claims import LastClaims
from atomlog.consumers.cluster.connections import Connections, Unreached
from atomlog.consumers.cluster.reports import Heard
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
RETRY_MAX_S: Final = 0.25  # a new owner is found that much later at the most
LOOK_S: Final = 1.0  # while an answer is awaited, between two looks at who owns
PLACES_S: Final = 2.0  # for one node to say where its partitions stand
# May be otherwise elsewhere, or a moment later: an owner whose clock is off gives back what it has.
AGAIN: Final = ("NOT_OWNER", "IN_DOUBT", "KAFKA_UNAVAILABLE", "CLOCK_SKEW")
WAY_OUT: Final = "run `atomlog kernel` on a node of this store, or repeat when one has taken over"


class Owners(Protocol):
    """Where the owners are, as far as nodes have said so lately. May be wrong."""

    async def endpoint(self, partition: int) -> str | None:
        """Of the partition's owner; None when none is known. KAFKA_UNAVAILABLE when that cannot be found out."""
        ...

    async def candidates(self, partition: int) -> Sequence[str]:
        """Whom to ask, one after the other: who says that it owns the partition, then everybody that could."""
        ...

    async def kernels(self) -> Sequence[str]:
        """Endpoints of all nodes that own or could own."""
        ...

    async def heard(self) -> Sequence[Heard]:
        """What every process said last, by name; without those that have been silent for long."""
        ...

    async def close(self) -> None: ...


class ClusterWriteSide:
    """Implements `Writing` for a node of a shared store. It never claims a partition."""

    holder: None = None

    def __init__(self, parts: Parts, owners: Owners, connections: Connections) -> None:
        self._parts = parts
        self._claims = LastClaims(parts.log, parts.machine.clock)
        self._answered: dict[int, str] = {}  # by partition: who carried out the last request
        self._owners = owners
        self._connections = connections
        self._clock = parts.machine.clock
        self._closed = False

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

    async def nodes(self) -> Sequence[Heard]:
        return await self._owners.heard()

    async def close(self) -> None:
        """What is on its way is in doubt."""
        self._closed = True
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
        attempt = _Attempt(partition=partition)
        limit_us = self._clock.monotonic_us() + self._parts.settings.write_timeout_ms * 1_000
        while not self._closed and (left_us := limit_us - self._clock.monotonic_us()) > 0:
            try:
                endpoint = attempt.next_of(*await self._candidates(partition))
                if endpoint is not None:
                    result = await self._ask(endpoint, partition, op, left_us, sent)
                    self._answered[partition] = endpoint
                    return result
            except Stranger as error:
                attempt.not_reached(error)
            except AtomlogError as error:
                attempt.refused(error)
            except OSError as error:
                attempt.unanswered(error)
            if attempt.is_round_over:
                if not attempt.may_go_on():
                    break
                await self._clock.sleep(min(attempt.next_retry_s(), left_us / 1_000_000))
        raise attempt.given_up()

    async def _candidates(self, partition: int) -> tuple[Sequence[str], Sequence[str]]:
        """Who says so, and who else may own the partition: those are enough while the control topic cannot be read."""
        try:
            said = await self._owners.candidates(partition)
        except AtomlogError as error:
            guessed = await self._guessed(partition)
            if not guessed:
                raise error
            return guessed, ()
        return said, () if said else await self._guessed(partition)

    async def _guessed(self, partition: int) -> Sequence[str]:
        claimed = await self._claims.endpoint(partition)
        return [one for one in (self._answered.get(partition), claimed) if one is not None]

    async def _owner_now(self, partition: int) -> str | None:
        try:
            return await self._owners.endpoint(partition)
        except AtomlogError:
            return None

    async def _ask(self, endpoint: str, partition: int, op: str, left_us: int, sent: Mapping[str, Any]) -> Any:
        """One node's answer. ConnectionError also when another node says meanwhile that it owns the partition."""
        owner = await self._owner_now(partition)
        timeout_s = min(left_us / 1_000_000, self._parts.settings.node_call_timeout_ms / 1_000)
        asking = asyncio.ensure_future(self._connections.ask(endpoint, op, timeout_s, **sent))
        try:
            while not (await asyncio.wait((asking,), timeout=LOOK_S))[0]:
                now = await self._owner_now(partition)
                if now not in (None, owner, endpoint):
                    raise ConnectionError(f"{endpoint} did not answer, and {now} owns partition {partition} now")
            return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            elif not asking.cancelled():
                asking.exception()  # it came while this was being cancelled


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """What became so far of one request.

    A round asks each candidate once, and whom they name. `reached`: somebody of this cluster answered, or may have.
    """

    partition: int
    retry_s: float = RETRY_S
    endpoint: str = ""
    hint: str | None = None
    asked: set[str] = field(default_factory=set)
    said: Sequence[str] = ()
    is_round_over: bool = False
    reached: bool = False
    in_doubt: bool = False
    error: AtomlogError | None = None

    def next_of(self, said: Sequence[str], guessed: Sequence[str]) -> str | None:
        """Whom to ask next; None when the round is over. Who is guessed may be gone for good."""
        self.said = said
        if self.is_round_over:
            self.asked.clear()
            self.is_round_over = False
        hint, self.hint = self.hint, None
        found = next((one for one in (hint, *said, *guessed) if one and one not in self.asked), None)
        self.is_round_over = found is None
        if found is not None:
            self.endpoint = found
            self.asked.add(found)
        return found

    def refused(self, error: AtomlogError) -> None:
        """Raises what is a final answer. While something is in doubt, that it could not be tried now is none."""
        self.reached = True
        if error.code not in AGAIN and not (self.in_doubt and error.kind == "unavailable"):
            raise error
        self.in_doubt |= error.code == "IN_DOUBT"
        self.error = error
        self.is_round_over = error.code != "NOT_OWNER"  # the same one may be asked again in a moment
        told = (one.get("endpoint") for one in error.details)
        self.hint = next((one for one in told if is_endpoint(one)), None)

    def unanswered(self, error: OSError) -> None:
        why = str(error) or f"{self.endpoint} did not answer in time"
        is_sent = not isinstance(error, Unreached)
        self.in_doubt |= is_sent
        self.reached |= is_sent or self.endpoint in self.said
        self.error = fail("NOT_OWNER", why)

    def not_reached(self, error: AtomlogError) -> None:
        """Somebody listens there who is no node of this cluster, or takes this process for none."""
        self.error = error

    def may_go_on(self) -> bool:
        """Not while nobody is there who could own, or all who are there are strangers."""
        return self.reached or self.in_doubt

    def next_retry_s(self) -> float:
        now_s, self.retry_s = self.retry_s, min(2 * self.retry_s, RETRY_MAX_S)
        return now_s

    def given_up(self) -> AtomlogError:
        error = self.error or fail("NOT_OWNER", f"no node owns partition {self.partition}")
        if self.in_doubt:
            message = f"the owner of partition {self.partition} did not answer: {error.message}"
            return fail("IN_DOUBT", f"{message}; send the same batch with the same key again", retry_after_ms=1_000)
        if error.kind != "unavailable":
            return error
        detail = {"path": "partition", "code": error.code, "message": error.message, "partition": self.partition}
        message = f"partition {self.partition} cannot be written now: {error.message}; {WAY_OUT}"
        return fail(error.code, message, details=[detail], retry_after_ms=1_000)


def _is_later(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Of two nodes' words on a partition, whose counts: the higher term's, then the further."""
    return (one["term"], one["position"]) > (other["term"], other["position"])
