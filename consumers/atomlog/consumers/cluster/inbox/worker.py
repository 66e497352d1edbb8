"""One partition of one inbox: its requests are carried out in order, and what became of each is told in order.

Where it stands is where the outcomes end: they are the only memory. After a kill, requests from there on are carried
out again; the place of a record is in its batch, so that one which was accepted has its result again, to the byte.

1. find the position: one after the highest offset that an outcome of this partition tells of;
2. fetch requests, up to a bound of what is under way;
3. carry them out side by side; a refusal counts only if it was drawn after every earlier one had its answer;
4. tell the outcomes that are next in line, as one group; sent again until it is there.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from atomlog.consumers.cluster.inbox.outcomes import (
    Answer,
    Asked,
    bare_record,
    outcome_record,
    sent_bytes,
)
from atomlog.consumers.cluster.inbox.position import check_topics, find_position
from atomlog.consumers.cluster.inbox.registry import Registration
from atomlog.consumers.cluster.inbox.requests import InboxRequest, form_of, of_unreadable, read_request
from atomlog.consumers.events import OnEvent
from atomlog.kernel import model
from atomlog.kernel.errors import AtomlogError, FatalError, InDoubtError, UnavailableError, fail
from atomlog.kernel.ids import partition_of
from atomlog.kernel.kafka.client import FetchedRecord, KafkaClient, KafkaProducer, KafkaRecord
from atomlog.kernel.ports import Clock
from atomlog.kernel.settings import Settings
from atomlog.schemas.batch import Inbox

FETCH_BYTES: Final = 1024 * 1024
FETCH_WAIT_S: Final = 1.0
GROUP_BYTES_MAX: Final = 900 * 1024  # of outcomes that are sent as one
UNDER_WAY_BYTES_MAX: Final = 16 * 1024 * 1024  # of requests
SPACES_MAX: Final = 10_000  # that a worker remembers
RETRY_S: Final = 0.05  # doubles up to RETRY_MAX_S
RETRY_MAX_S: Final = 2.0
CONTROL_RECORD: Final = "a control record"  # of a producer's transaction: it asks for nothing

_PASSING: Final = ("NOT_OWNER", "OVERLOADED", "STORE_LOCKED", "KAFKA_UNAVAILABLE")


class Writes(Protocol):
    """Where requests are carried out: by an owner of this process, or by the node that owns."""

    async def write(self, request: InboxRequest, principal: str) -> model.WriteResult: ...
    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome: ...


class Moved(Exception):
    """Another kernel works on this inbox partition now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all inboxes of a process share. `partitions`: of the store."""

    client: KafkaClient
    writes: Writes
    partitions: int
    settings: Settings
    clock: Clock
    say: OnEvent


Request = InboxRequest | AtomlogError
"""What a record asks for, or why it asks for nothing."""

Answered = tuple[Answer, int]
"""An answer, and when it was drawn (monotonic, in microseconds)."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A record under way. `partition` is of the store, −1 for what asks for nothing."""

    inbox: Inbox
    asked: Asked
    size: int
    request: Request
    partition: int
    answering: "asyncio.Task[Answered]"

    def is_of(self, space: str) -> bool:
        return isinstance(self.request, InboxRequest) and self.request.parsed.space == space

    def is_older_than(self, then_us: int) -> bool:
        """Whether its answer rests on what the store held before then: a refusal, but for what is no request."""
        answer, at_us = self.answering.result()
        return self.partition >= 0 and isinstance(answer, AtomlogError) and at_us < then_us


class InboxWorker:
    """Works through one partition while `may_work()`, which says whether it is this process that should."""

    def __init__(self, around: Surroundings, one: Registration, partition: int, may_work: Callable[[], bool]) -> None:
        self._around = around
        self._client, self._clock = around.client, around.clock
        self._one = one
        self._partition = partition
        self._may_work = may_work
        self._queue: deque[_Entry] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()  # something was put into the queue, or taken out of it
        self._producer: KafkaProducer | None = None
        self._begun: set[str] = set()  # spaces of which a request had its answer
        self.told = 0  # outcomes that this worker has told

    async def run(self) -> None:
        """Until it is cancelled, or Moved. Raises what keeps it from going on; running it again begins anew."""
        try:
            position = await self._begin_at()
            async with asyncio.TaskGroup() as working:
                working.create_task(self._fetch(position))
                working.create_task(self._tell())
                working.create_task(self._watch())
        except BaseExceptionGroup as group:
            raise _first_of(group) from None
        finally:
            for entry in self._queue:
                entry.answering.cancel()
            await asyncio.gather(*(entry.answering for entry in self._queue), return_exceptions=True)
            self._queue.clear()
            self._bytes = 0
            if self._producer is not None:
                await self._producer.close()

    # -- where it stands

    async def _begin_at(self) -> int:
        place = await find_position(self._client, self._one, self._partition)
        if place.lost is not None:
            await self._tell_gap(place.lost, place.position)
        return place.position

    async def _tell_gap(self, start: int, stop: int) -> None:
        """Requests that the broker threw away before their turn came: said to operators and to the principal."""
        what = f"requests at offsets {start} to {stop - 1} were not carried out: they are not kept any more"
        self._say("inbox_gap", first=start, last=stop - 1, requests=stop - start)
        gap = {"path": "offsets", "code": "REQUEST_EXPIRED", "message": what, "first": start, "last": stop - 1}
        error = fail("REQUEST_EXPIRED", f"{what}; send them again", details=[gap])
        await self._send([outcome_record(self._inbox(stop - 1), Asked(), error)])

    async def _watch(self) -> None:
        """A topic that is made anew under a running worker would be read on as if it were the old one."""
        said = ""
        while True:
            try:
                found = await check_topics(self._client, self._one)
            except UnavailableError:
                found = None  # those who need the brokers say so
            if found is not None and found.message != said and self._partition == 0:
                self._say("inbox_failed", error=found.to_dict())
                said = found.message
            await self._clock.sleep(self._around.settings.metadata_refresh_ms / 1_000)

    # -- carrying out

    async def _fetch(self, position: int) -> None:
        stream = await self._client.stream(self._one.topic, self._partition, position)
        try:
            while True:
                await self._until(self._has_room)
                for record in await stream.next(FETCH_BYTES, FETCH_WAIT_S):
                    await self._until(self._has_room)
                    if not self._may_work():
                        raise Moved
                    self._begin(record)
                    await asyncio.sleep(0)  # what was begun first goes first; and others have their turn
                if not self._may_work():
                    raise Moved
        finally:
            await stream.close()

    def _has_room(self) -> bool:
        return (
            len(self._queue) < self._around.settings.inbox_requests_max
            and self._bytes < UNDER_WAY_BYTES_MAX  # a single request is never too much
        )

    def _begin(self, record: FetchedRecord) -> None:
        """Take a record in; its answer comes by itself. A control record asks for nothing and gets none."""
        if record.problem == CONTROL_RECORD:
            return
        request = self._read(record)
        partition = -1
        if isinstance(request, InboxRequest):
            partition = partition_of(request.parsed.space, self._around.partitions)
        before = [one for one in self._queue if one.partition == partition]
        entry = _Entry(
            inbox=self._inbox(record.offset),
            asked=Asked(key=record.key, headers=record.headers, form=form_of(record.value)),
            size=sent_bytes(record),
            request=request,
            partition=partition,
            answering=asyncio.create_task(self._answer(request, before)),
        )
        entry.answering.add_done_callback(self._has_answer)
        self._queue.append(entry)
        self._bytes += entry.size

    def _read(self, record: FetchedRecord) -> Request:
        try:
            if record.problem:
                return of_unreadable(record.problem)
            return read_request(record.value, self._inbox(record.offset), self._one.rights)
        except AtomlogError as error:
            return error
        except Exception as error:  # a bug, met by these bytes: those behind them are carried out all the same
            return of_unreadable(f"{type(error).__name__}: {ascii(error)[:200]}")

    def _has_answer(self, _: "asyncio.Task[Answered]") -> None:
        self._changed.set()

    async def _answer(self, request: Request, before: Sequence[_Entry]) -> Answered:
        """`before`: entries of the same partition of the store that are in line before it."""
        if isinstance(request, AtomlogError):
            return request, self._clock.monotonic_us()
        space = request.parsed.space
        undecided = [one.answering for one in before if not one.answering.done()]
        if space not in self._begun:  # the first one of a space waits for a key, and others would overtake it
            ahead = [one.answering for one in before if not one.answering.done() and one.is_of(space)]
            if ahead:
                await asyncio.wait(ahead[:1])
        answer = await self._carry_out(request)
        self._remember(space)
        if undecided and isinstance(answer, AtomlogError):
            await asyncio.wait(undecided)  # what it was refused for may be what an earlier one brings
            answer = await self._carry_out(request)
        return answer, self._clock.monotonic_us()

    def _remember(self, space: str) -> None:
        if len(self._begun) >= SPACES_MAX:
            self._begun.clear()
        self._begun.add(space)

    async def _carry_out(self, request: InboxRequest) -> Answer:
        """The result or the refusal, however long it takes until there is one."""
        started_us, retry_s = self._clock.monotonic_us(), RETRY_S
        while True:
            try:
                return await self._around.writes.write(request, self._one.principal)
            except AtomlogError as error:
                if not _is_passing(error):
                    return error
                failure = error
            except Exception as error:  # a bug, met by this request
                failure = fail("IN_DOUBT", f"the write failed: {type(error).__name__}: {error}")
            waited_us = self._clock.monotonic_us() - started_us
            if waited_us >= self._around.settings.inbox_give_up_ms * 1_000 and await self._is_hopeless(
                request, failure
            ):
                return _given_up(failure)
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _is_hopeless(self, request: InboxRequest, failure: AtomlogError) -> bool:
        """Whether nothing of a request that fails again and again was written, nor can be by what was tried so far."""
        if isinstance(failure, UnavailableError):
            return failure.code not in _PASSING  # those are no fault of this request; the others are refusals
        asked = request.parsed
        try:
            found = await self._around.writes.outcome(asked.space, asked.idempotency_key, self._one.principal)
        except Exception:  # nobody can tell now
            return False
        return found.state == "never"

    # -- telling

    async def _tell(self) -> None:
        while True:
            await self._until(lambda: bool(self._queue) and self._queue[0].answering.done())
            if not self._may_work():
                raise Moved
            group = self._next_group()
            if group:
                await self._send([record for _, record in group])
                self.told += len(group)
            for entry, _ in group:
                self._queue.popleft()
                self._bytes -= entry.size
            self._changed.set()

    def _next_group(self) -> list[tuple[_Entry, KafkaRecord]]:
        """The outcomes that are next in line, as many as fit.

        A refusal that waited for longer than a lease may not hold any more: it is decided again. Once it was sent it is
        not, as it may have arrived.
        """
        group: list[tuple[_Entry, KafkaRecord]] = []
        size = 0
        stale_us = self._clock.monotonic_us() - self._around.settings.lease_ms * 1_000
        for entry in self._queue:
            if not entry.answering.done():
                break
            if entry.is_older_than(stale_us):
                entry.answering = asyncio.create_task(self._answer(entry.request, ()))
                entry.answering.add_done_callback(self._has_answer)
                break
            record = self._outcome(entry)
            size += sent_bytes(record)
            if group and size > GROUP_BYTES_MAX:
                break
            group.append((entry, record))
        return group

    def _outcome(self, entry: _Entry) -> KafkaRecord:
        answer, _ = entry.answering.result()
        try:
            return outcome_record(entry.inbox, entry.asked, answer)
        except Exception as error:  # a bug, met by this answer: it is told in short, and the next ones are told too
            what = f"the outcome cannot be written: {type(error).__name__}"
            code = answer.code if isinstance(answer, AtomlogError) else "IN_DOUBT"
            return outcome_record(entry.inbox, Asked(form=entry.asked.form), fail(code, what))

    async def _send(self, records: Sequence[KafkaRecord]) -> None:
        """Sent until it is there: the same bytes twice are the same to who reads them."""
        retry_s = RETRY_S
        while True:
            self._producer = self._producer or await self._client.producer()
            try:
                await self._producer.send(self._one.results, self._partition, records)
                return
            except AtomlogError as error:
                if error.code == "BOUND_EXCEEDED":
                    break  # the topic takes less than it did
                if error.code != "KAFKA_UNAVAILABLE":
                    raise
            if not self._may_work():
                raise Moved
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)
        if len(records) > 1:
            for record in records:
                await self._send([record])
        elif (bare := bare_record(records[0])) != records[0]:
            await self._send([bare])
        else:
            raise fail(
                "STORE_UNSAFE", f"topic {self._one.results} takes no outcome, however short; raise max.message.bytes"
            )

    # -- small things

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _inbox(self, offset: int) -> Inbox:
        return Inbox(topic=self._one.id_text, partition=self._partition, offset=offset)

    def _say(self, event: str, **more: Any) -> None:
        self._around.say({"event": event, "principal": self._one.principal, "inbox_partition": self._partition, **more})


def _is_passing(error: AtomlogError) -> bool:
    """Whether it says nothing about the request: then it is carried out again."""
    if isinstance(error, InDoubtError | FatalError):
        return True
    return isinstance(error, UnavailableError) and (error.code in _PASSING or error.retry_after_ms is not None)


def _given_up(failure: AtomlogError) -> AtomlogError:
    message = f"given up, and nothing of it is written: {failure.message}"
    return fail(failure.code, message, details=failure.details, retry_after_ms=failure.retry_after_ms)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
