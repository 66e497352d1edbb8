"""The write path of one partition: group commit. Start at `Committer.commit`.

What comes out of it: groups of records, appended one at a time, each with an overlay that the next group is decided
on. What happens when the log gives the records back is `settle`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from atomlog.kernel import model
from atomlog.kernel.build import Builder, KeyMissing
from atomlog.kernel.decide import decide
from atomlog.kernel.effects import PENDING
from atomlog.kernel.heads import Accepted, HeadView
from atomlog.kernel.inflight import Appended, Ask, Group, Unread
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.plan import Decision, Duplicate, Plan, Prepared, Refused
from atomlog.kernel.ports import READ_BACK
from atomlog.kernel.prepare import DigestKeys
from atomlog.kernel.results import write_result
from atomlog.kernel.tail import EffectiveRecord
from atomlog.kernel.world import Term, World
from atomlog.schemas import codec
from atomlog.schemas.record import Record

GROUP_KEYS_MAX: Final = 4_096  # content keys made ready for one group; one batch may have more
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024  # of the values; far below what a group of the log may have


class Committer:
    """Takes asks, appends groups, answers from what is read back.

    `settled` reads the heads alone, `view` through the overlay of `unread`. `prepare_again` and `answer_stored` are
    given asks that must wait for something; `doubt` is told of an append whose outcome is not known; `spawn` runs a
    task of which no failure goes unseen.
    """

    def __init__(
        self,
        world: World,
        partition: int,
        *,
        term: Term,
        view: HeadView,
        settled: HeadView,
        unread: Unread,
        allocator: KeyAllocator,
        digest_keys: DigestKeys,
        prepare_again: Callable[[Ask], None],
        answer_stored: Callable[[Ask], None],
        doubt: Callable[[Exception], None],
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self._world = world
        self._partition = partition
        self._term = term
        self._view = view
        self._settled = settled
        self._unread = unread
        self._allocator = allocator
        self._digest_keys = digest_keys
        self._prepare_again = prepare_again
        self._answer_stored = answer_stored
        self._doubt = doubt
        self._spawn = spawn
        self._queue: deque[Ask] = deque()
        self._own: list[tuple[str, bytes, asyncio.Future[Group | None]]] = []  # records that answer nobody
        self._wake = asyncio.Event()
        self._open = False
        self._appending: asyncio.Task[None] | None = None
        self._builder = Builder(
            partition=partition,
            ring=world.ring,
            allocator=allocator,
            randomness=world.randomness,
            bounds=world.rules.bounds,
        )

    def put(self, ask: Ask) -> None:
        self._queue.append(ask)
        self._wake.set()

    async def put_own(self, kind: str, value: bytes) -> Group | None:
        """Append a record that is no write, in the next group, which is returned. None: the term ended before."""
        decided: asyncio.Future[Group | None] = asyncio.get_running_loop().create_future()
        if not self._open:
            return None
        self._own.append((kind, value, decided))
        self._wake.set()
        return await decided

    def open(self) -> None:
        """The term is ours: commit what is queued."""
        self._open = True
        self._wake.set()

    def latch(self) -> None:
        """Append nothing more until `open`."""
        self._open = False
        for _, _, decided in self._own:
            _give(decided, None)
        self._own.clear()

    def withdraw(self) -> list[Ask]:
        """Everything in hand, appended or not; the caller answers it."""
        asks = [*self._unread.clear(), *self._queue]
        self._queue.clear()
        return asks

    async def appended(self) -> None:
        """Until no append is under way."""
        if self._appending is not None:
            await asyncio.wait((self._appending,))

    async def abandon(self) -> None:
        """Give up the append under way, if one is. What it has sent may still arrive."""
        if self._appending is not None:
            self._appending.cancel()
        await self.appended()

    async def run(self) -> None:
        """Commit groups while the term is ours. Ends only by cancellation."""
        while True:
            await self._wake.wait()
            if not self._open or not (self._queue or self._own):
                self._wake.clear()
                continue
            await asyncio.sleep(0)  # let every client that is ready now join the group
            await self.commit()

    async def commit(self) -> None:
        """One group commit."""
        # 0. Content keys are durable before their first use. The term may be lost while they are made.
        if not await self._reserve_keys() or not self._open:
            return
        # 1. Check everything against heads ⊕ overlay, the sealed size included, before a seq is given.
        group = self._decide_group()
        # 2. Append each batch as one record, in order; one append at a time.
        await self.appended()
        if group.records and group in self._unread and self._open:
            self._appending = self._spawn(self._append(group))
        # 3. Acknowledge only what this owner's own tail has read back as effective: `settle`.
        # 4. Drop the overlay when the whole group is read back, and answer its refusals: `settle`.

    def settle(self, record: EffectiveRecord) -> None:
        """An own record was read back as effective, and the heads hold it."""
        group = self._unread.find(record.record.seq, record.record.term)
        if group is None:
            return
        appended = group.writes.pop(record.record.seq, None)
        if appended is not None:
            request = appended.ask.prepared.request
            appended.ask.accept(write_result(request, self._partition, appended.effects.batch, record))
        group.left -= 1
        if group.left == 0:
            if group.appended_us:  # not of a Claim, which waits for more than the log
                self._world.measure(READ_BACK, group.appended_us)
            self._unread.drop(group)
            for ask in group.refused:
                self._decide_refused(ask)

    def add_record(self, group: Group, kind: str, value: bytes) -> Record:
        """Make the next record of the term, at the end of a group."""
        record = self._term.record(kind, value)
        group.records.append(record)
        group.left += 1
        group.bytes_total += len(value)
        return record

    async def _reserve_keys(self) -> bool:
        """Keys for the next group; False, with everything queued refused, when there are none to be had."""
        wanted = 0
        for ask in self._queue:
            changes = len(ask.prepared.request.changes)
            if wanted and wanted + changes > GROUP_KEYS_MAX:
                break
            wanted += changes
        try:
            await self._allocator.reserve(wanted)
        except Exception as error:
            while self._queue:
                self._queue.popleft().refuse(error)
            return False
        return True

    def _decide_group(self) -> Group:
        """Decide queued asks in order until the group is full."""
        group = Group(term=self._term.state.term)
        self._unread.push(group)
        refused: list[Ask] = []
        bytes_max = min(self._world.settings.group_bytes_max, GROUP_BYTES_MAX)
        while self._queue and (not group.records or group.bytes_total < bytes_max):
            if len(self._queue[0].prepared.request.changes) > self._allocator.ready:
                break  # it came after keys were reserved
            self._decide_one(group, self._queue.popleft(), refused)
        for kind, value, decided in self._own:
            self.add_record(group, kind, value)
            _give(decided, group)
        self._own.clear()
        self._fence(group, refused)
        if not group.records:
            self._unread.drop(group)
        return group

    def _decide_one(self, group: Group, ask: Ask, refused: list[Ask]) -> None:
        prepared = ask.prepared
        if prepared.digest_key_id != self._digest_keys.find(prepared.request.space):
            self._prepare_again(ask)  # the term in which its key was drawn has ended, and the key with it
            return
        try:
            decision = self._answer_of(prepared) if ask.question else self._decision_on(prepared)
        except Exception as error:  # it is about this request, not about those beside it
            ask.refuse(error)
            return
        if isinstance(decision, Duplicate):
            self._duplicate(ask, decision.accepted)
        elif isinstance(decision, Plan):
            self._build(group, ask, decision)
        else:
            refused.append(ask)

    def _decision_on(self, prepared: Prepared) -> Decision:
        return decide(self._view, self._partition, prepared, self._world.rules)

    def _answer_of(self, prepared: Prepared) -> Duplicate | None:
        """To a question: the request that was accepted under its key, if one was."""
        accepted = self._view.request(self._partition, prepared.request_key)
        return None if accepted is None else Duplicate(accepted)

    def _build(self, group: Group, ask: Ask, plan: Plan) -> None:
        now_us = self._world.clock.now_us()
        recorded_at_us = max(now_us, self._term.last_us + 1)
        try:
            self._world.check_clock(now_us, self._term.last_us)
            built = self._builder.build(ask.prepared, plan.revisions, recorded_at_us)
        except KeyMissing:
            self._prepare_again(ask)
            return
        except Exception as error:
            ask.refuse(error)
            return
        record = self.add_record(group, "Batch", built.value)
        group.blobs += [(ask, blob) for blob in built.blobs]
        group.writes[record.seq] = Appended(ask, built.effects, built.value)
        built.effects.stage_pending(group.layer)
        self._term.last_us = recorded_at_us

    def _duplicate(self, ask: Ask, accepted: Accepted) -> None:
        """Answer from the idempotency table, or join the same request that is on its way."""
        writing = self._unread.writing(ask.prepared.request_key) if accepted.position == PENDING else None
        if writing is not None:
            writing.joined.append(ask)
        else:
            self._answer_stored(ask)

    def _fence(self, group: Group, refused: list[Ask]) -> None:
        """Give each refusal an own record to wait for, produced after its request arrived.

        When that record is read back as effective, nobody else owned the partition in between, and the refusal is
        decided again on the state there. A log that nobody else can append to needs no record for that; there a
        refusal only waits for the overlay it may rest on.
        """
        if not refused:
            return
        if not group.records and not self._world.log.exclusive:
            self.add_record(group, "Fence", codec.encode("Fence", {"requests": len(refused)}))
        waits_for = group if group.records else self._unread.before(group)
        if waits_for is not None:
            waits_for.refused += refused
            return
        for ask in refused:
            self._decide_refused(ask)

    def _decide_refused(self, ask: Ask) -> None:
        """The final word on a refusal, on the state that is read back."""
        try:
            if ask.question:
                if self._settled.request(self._partition, ask.prepared.request_key) is None:
                    ask.tell(model.Outcome(state="never", term=self._term.state.term))
                else:
                    self._answer_stored(ask)
                return
            decision = decide(self._settled, self._partition, ask.prepared, self._world.rules)
        except Exception as error:
            ask.refuse(error)
            return
        if isinstance(decision, Refused):
            ask.refuse(decision.error)
        else:
            self.put(ask)  # what it was refused for is gone

    async def _append(self, group: Group) -> None:
        group.appended_us = self._world.started_us()
        try:
            async with asyncio.timeout(self._world.timeout_s):
                await self._put_blobs(group)
                await self._world.log.append(self._partition, group.records)
        except Exception as error:  # whatever it was, the records may be there now, later, or never
            self.latch()
            self._doubt(error)

    async def _put_blobs(self, group: Group) -> None:
        """A blob is durable before the batch that names it; when it cannot be, nothing of the group is in the log."""
        for ask, blob in group.blobs:
            try:
                await self._world.blobs.put(blob)
            except Exception as error:
                ask.refuse(error)
                raise


def _give(waiter: "asyncio.Future[Group | None]", group: Group | None) -> None:
    if not waiter.done():
        waiter.set_result(group)
