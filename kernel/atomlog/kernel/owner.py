"""The writer of one partition: the only way a record gets into the log.

Three parts: taking the partition (`claim`), the write path (`committer`), and following the log, which settles what
was written (`following`). This module holds them together: phases, what is in hand, and who is told what.

Phases: standby (never claimed, given back, or lost to another) → claiming → owner → claiming again after a doubt: an
append that may or may not have worked. Releasing ends in standby. Failed and closed are final.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

from atomlog.kernel import model
from atomlog.kernel.claim import Claimer
from atomlog.kernel.committer import Committer
from atomlog.kernel.deadlines import Deadlines
from atomlog.kernel.decide import decide
from atomlog.kernel.errors import AtomlogError, FatalError, fail
from atomlog.kernel.following import Following
from atomlog.kernel.heads import HeadView, Place
from atomlog.kernel.inflight import RETRY_MS, Ask, InHand, Owed, Scope, Unread
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.key_audit import KeyAudit
from atomlog.kernel.plan import Prepared, Refused
from atomlog.kernel.ports import ACK
from atomlog.kernel.prepare import DigestKeys, Preparer
from atomlog.kernel.results import Digests, Stored
from atomlog.kernel.tail import EffectiveRecord
from atomlog.kernel.world import Term, World
from atomlog.schemas.record import ZERO16

TRIES_MAX: Final = 3  # appends of one ask before it is given up

Phase = Literal["standby", "claiming", "owner", "releasing", "failed", "closed"]


class Owner:
    """Writes of one partition. `start` first; on a log of its own, `write` claims by itself."""

    def __init__(self, world: World, partition: int) -> None:
        self._world = world
        self._partition = partition
        self._log = world.log
        self._phase: Phase = "standby"
        self._failure: AtomlogError | None = None
        self._may_claim = world.log.exclusive  # without being told to: nobody else can, or the last Claim is an own one
        self._claiming: asyncio.Task[None] | None = None
        self._is_leaving = False  # answers what is in hand, takes nothing more
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began: a set has another each run
        self._deadlines = Deadlines(world.timeout_s)
        self._in_hand = InHand(requests_max=world.settings.queue_requests_max, bytes_max=world.settings.queue_bytes_max)
        self._settled = HeadView(world.heads.kv, world.log.partitions)  # what is read back
        view = HeadView(world.heads.kv, world.log.partitions)  # what is on its way, laid over it
        self._unread = Unread(view)
        self._stored = Stored(self._settled, partition, world.log, world.ring)
        allocator = self._allocator = KeyAllocator(world.ring, partition)
        self._digest_keys = DigestKeys(view, partition, allocator)
        self._following = Following(
            world,
            partition,
            self._settled,
            known=self._unread.effects,
            tell=self._on_record,
            tell_voids=lambda: self._key_audit.wake(),
        )
        term = self._term = Term()
        self._committer = Committer(
            world,
            partition,
            term=term,
            view=view,
            settled=self._settled,
            unread=self._unread,
            allocator=allocator,
            digest_keys=self._digest_keys,
            prepare_again=lambda ask: self._work_on(ask, self._prepare_again),
            answer_stored=lambda ask: self._work_on(ask, self._answer_stored),
            doubt=self._doubt,
            spawn=self._spawn,
        )
        self._claimer = Claimer(
            world,
            partition,
            term=term,
            settled=self._settled,
            unread=self._unread,
            allocator=allocator,
            following=self._following,
            committer=self._committer,
        )
        self._key_audit = KeyAudit(
            world,
            partition,
            owns=self._owns,
            settled=self._settled,
            unread=self._unread,
            allocator=allocator,
            following=self._following,
            committer=self._committer,
        )
        world.ring.obey(self._settled.destroyed_of)
        self._preparer = Preparer(
            partition=partition,
            view=view,
            settled=self._settled,
            log=world.log,
            ring=world.ring,
            content=world.content,
            receipts=world.receipts,
            clock=world.clock,
            randomness=world.randomness,
            unread=self._unread.revision,
        )

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def term(self) -> int:
        """The term of the last effective Claim, whoever's it is."""
        return self._following.checkpoint.state.term

    @property
    def applied(self) -> int:
        """The next position the head state will apply."""
        return self._following.checkpoint.position

    @property
    def overlay(self) -> int:
        """Records that are on their way to the log, and laid over what is read back of it."""
        return self._unread.records

    @property
    def in_flight(self) -> int:
        """Requests that are not answered."""
        return len(self._in_hand)

    @property
    def failure(self) -> AtomlogError | None:
        """What ended it, in the phase failed."""
        return self._failure

    def is_own(self, owner: bytes) -> bool:
        """Whether a Claim with these owner bytes was made here."""
        return owner == self._term.owner != ZERO16

    def place(self) -> Place:
        return self._settled.place(self._partition)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Until something is so of what is read back; raises what made following impossible."""
        await self._following.until(is_so)

    async def start(self, *, may_fail: bool = False) -> None:
        """Apply what the log holds, then go on following it. Claims nothing.

        `may_fail`: what makes following impossible is this owner's `failure` then, and not raised.
        """
        try:
            await self._following.start()
        except FatalError as error:
            if not may_fail:
                raise
            self._failed(error)
            return
        for loop in (self._following.run(), self._following.run_sync(), self._committer.run()):
            self._spawn(loop)
        if not self._log.exclusive:
            self._spawn(self._key_audit.run())

    async def write(self, request: model.WriteRequest, principal: str) -> model.WriteResult:
        """The result of an accepted batch, or the typed error of its refusal.

        IN_DOUBT when the outcome is not known within `write_timeout_ms`: the same request again will tell.
        """
        self._check_running()
        try:
            with self._deadlines.begin():
                digests = await self._stored.digests(request, principal)
                known = await self._stored.find(request, digests)
                return known or await self._write(request, principal, digests)
        except TimeoutError:
            raise self._in_doubt("there was no answer in time") from None
        except OSError as error:
            message = f"a part of the store cannot be read or written: {error}; send the same request again"
            raise fail("OVERLOADED", message, retry_after_ms=1_000) from error

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        """What is known of an idempotency key. `never` is said only when no earlier attempt can still count."""
        question = model.WriteRequest(space=space, idempotency_key=key, changes=(), preconditions=(), canonical=b"")
        try:
            async with asyncio.timeout(self._world.timeout_s):
                return await self._outcome(question, principal)
        except TimeoutError:
            return model.Outcome(state="unknown")

    async def claim(self, *, after: bytes | None = None) -> None:
        """Become the owner, or raise NOT_OWNER naming who is. Joins a claim that is on its way.

        `after`: only while the chain at the log's end is this one, `place().checkpoint.state.chain` when it was
        decided. Else two who decide at the same time take the partition from each other.
        """
        self._check_running()
        if not self._owns():
            await self._claimed(self._begin_claim(over_others=True, after=after))

    async def release(self, reason: str) -> None:
        """Answer what is in hand and give the term up, so that a successor need not wait. Nothing more is taken in.

        IN_DOUBT or what the log raises: whether a successor knows of it cannot be said; this owner writes no more.
        """
        self._is_leaving = True
        try:
            await self._drain()
            if self._phase == "owner":
                self._phase = "releasing"
                await self._give_back(reason)
        finally:
            self._is_leaving = False

    async def _give_back(self, reason: str) -> None:
        try:
            async with asyncio.timeout(self._world.timeout_s):
                await self._claimer.give_back(reason)
        except TimeoutError:
            raise self._in_doubt("the Release was not read back in time") from None
        finally:
            if self._phase == "releasing":
                self._phase = "standby"
            self._may_claim = self._log.exclusive
            self._give_up("the partition was given back")

    async def close(self) -> None:
        """Answer what can be answered, stop following, make the heads durable."""
        if self._phase == "closed":
            return
        await self._drain()
        self._phase = "closed"
        tasks = [*self._tasks, *([] if self._claiming is None else [self._claiming])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._give_up("the store was closed")
        await self._allocator.close()
        await self._world.workers.run(self._world.heads.kv.sync)

    # -- one write, one question

    async def _write(self, request: model.WriteRequest, principal: str, digests: Digests | None) -> model.WriteResult:
        self._world.admit()
        started_us = self._world.started_us()
        scope = (request.space, principal, request.idempotency_key)
        answer = self._in_hand.take_in(scope, len(request.canonical))
        try:
            await self._refuse_unclaimed(request, principal)
            self._committer.put(Ask(prepared=await self._prepare(request, principal, digests), answer=answer))
        except BaseException:
            answer.drop()
            raise
        result = await answer.waiter
        assert isinstance(result, model.WriteResult)
        self._world.measure(ACK, started_us)
        return result

    async def _refuse_unclaimed(self, request: model.WriteRequest, principal: str) -> None:
        """Refuse without a Claim what has to be refused: on a log of its own the heads say it all before the first."""
        if self._claiming is not None or not self._log.exclusive:
            return
        trial = await self._preparer.prepare(request, principal, self._digest_keys.find(request.space))
        if self._claiming is None:
            decision = decide(self._settled, self._partition, trial, self._world.rules)
            if isinstance(decision, Refused):
                raise decision.error

    async def _outcome(self, question: model.WriteRequest, principal: str) -> model.Outcome:
        unknown = model.Outcome(state="unknown")
        scope: Scope = (question.space, principal, question.idempotency_key)
        if running := self._in_hand.of(scope):
            await asyncio.wait(running)
        if self._phase == "standby" and self._log.exclusive:
            await self._settle_own()
        digests = await self._stored.digests(question, principal)
        known = await self._stored.find(question, digests, same=False)
        if known is not None:
            return model.Outcome(state="accepted", result=known)
        if self._phase not in ("standby", "owner") or self._in_hand.of(scope):
            return unknown
        if self._log.exclusive:
            return model.Outcome(state="never", term=self.term)
        digest_key = self._digest_keys.find(question.space)
        if digest_key is None or not self._owns():
            return unknown
        prepared = await self._preparer.prepare(question, principal, digest_key)
        if not self._owns():
            return unknown
        ask = Ask(prepared=prepared, answer=Owed(), question=True)
        self._committer.put(ask)
        outcome = await ask.answer.waiter
        assert isinstance(outcome, model.Outcome)
        return outcome

    async def _settle_own(self) -> None:
        """After a claim that failed, an append may still be under way, or be in the log and not applied."""
        await self._log.renew(self._partition)
        end = await self._log.end(self._partition)
        await self._following.until(lambda: self.applied >= end)

    async def _prepare(self, request: model.WriteRequest, principal: str, digests: Digests | None = None) -> Prepared:
        """Returns as the owner: what is queued then is committed, or answered when the partition is lost."""
        await self._own()
        while (digest_key := self._digest_keys.find(request.space)) is None:
            await self._allocator.reserve(1)
            await self._own()  # the term may have ended meanwhile, and the keys that were made for it
            self._digest_keys.draw(request.space)
        prepared = await self._preparer.prepare(request, principal, digest_key, digests)
        await self._own()
        return prepared

    async def _own(self) -> None:
        """Be the owner; NOT_OWNER when somebody else is to be."""
        while not self._owns():
            self._check_running(owing=True)
            if self._phase == "standby" and not self._may_claim:
                raise self._claimer.not_owner()
            await self._claimed(self._begin_claim())

    async def _prepare_again(self, ask: Ask) -> None:
        ask.prepared = await self._prepare(ask.prepared.request, ask.prepared.principal)
        self._committer.put(ask)

    async def _answer_stored(self, ask: Ask) -> None:
        result = await self._stored.of_key(ask.prepared.request, ask.prepared.request_key)
        if result is None:  # it turned out void
            await self._prepare_again(ask)
        else:
            ask.accept(result)

    # -- what the log gives back

    def _on_record(self, record: EffectiveRecord) -> None:
        """A record was read back, and the heads hold it."""
        if record.kind == "Claim":
            self._on_claim(record)
        else:
            if record.kind == "KeysDestroyed":
                self._world.ring.forget([page["page"] for page in record.datum()["pages"]])
            self._committer.settle(record)

    def _on_claim(self, record: EffectiveRecord) -> None:
        """An effective Claim ends every older term: what is not read back by now is void for ever."""
        own = self._claimer.on_claim(record)
        self._may_claim = own or self._log.exclusive
        if not own:
            lost = self._phase == "owner"
            if lost:
                self._phase = "standby"
            self._give_up("another process took the partition over")
            if lost:
                self._say("ownership_lost", term=record.record.term)
            return
        self._digest_keys.clear()
        for ask in self._unread.clear():
            if ask.answer.is_given:
                continue
            ask.tries += 1
            if ask.question:
                ask.tell(model.Outcome(state="unknown"))
            elif ask.tries < TRIES_MAX:
                self._work_on(ask, self._prepare_again)
            else:
                ask.refuse(fail("OVERLOADED", "the log did not take the write; nothing of it was written"))

    def _failed(self, error: BaseException) -> None:
        """The log cannot be followed, or not be written, any more."""
        if self._phase in ("failed", "closed"):
            return
        if not isinstance(error, AtomlogError):
            message = f"partition {self._partition} stopped: {type(error).__name__}: {error}; open the store anew"
            error = fail("CORRUPT", message)
        self._phase = "failed"
        self._failure = error
        self._following.stop(error)
        self._claimer.stop(error)
        self._give_up(f"the log cannot be followed: {error.message}")
        self._say("writes_stopped", error=error.to_dict())

    # -- ownership

    def _owns(self) -> bool:
        return self._phase == "owner"

    def _begin_claim(self, *, over_others: bool = False, after: bytes | None = None) -> "asyncio.Task[None]":
        """Claim, or join the claim under way. Unless `over_others`, only while the last Claim is an own one."""
        if self._claiming is None or self._claiming.done():
            self._phase = "claiming"
            self._claiming = asyncio.create_task(self._claim(over_others or self._log.exclusive, after))
            self._claiming.add_done_callback(_seen)
        return self._claiming

    async def _claimed(self, claiming: "asyncio.Task[None]") -> None:
        """The claim's outcome. Being cancelled here does not cancel it: others may wait for it too."""
        await asyncio.wait((claiming,))
        if claiming.cancelled():
            raise fail("NOT_OWNER", "the store is closed")
        claiming.result()

    async def _claim(self, over_others: bool, after: bytes | None) -> None:
        try:
            async with asyncio.timeout(self._world.timeout_s):
                await self._claimer.claim(over_others=over_others, after=after)
        except TimeoutError:
            raise self._in_doubt("the claim was not read back in time") from None
        except OSError as error:
            raise fail("OVERLOADED", f"the log cannot be written: {error}", retry_after_ms=1_000) from None
        else:
            if self._phase == "claiming":
                self._phase = "owner"
                self._committer.open()
                self._key_audit.wake()
        finally:
            if self._phase == "claiming":
                self._phase = "standby"
                self._give_up("the partition could not be claimed again")
        if self._owns():
            self._say("claimed", term=self.term)

    def _doubt(self, error: Exception) -> None:
        """An append may or may not have worked: take nothing more, claim the next term, read back.

        Up to that Claim's own position everything of the old term is settled: answered where it was read back,
        void for ever where it was not.
        """
        if self._phase == "owner":
            self._begin_claim()
            self._say("in_doubt", error=f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        """Answer everything in hand: not known."""
        self._committer.latch()
        for ask in self._committer.withdraw():
            ask.refuse(self._in_doubt(why))

    async def _drain(self) -> None:
        """Wait until everything in hand is answered, as long as this process owns the partition."""
        deadline_us = self._world.clock.monotonic_us() + self._world.settings.write_timeout_ms * 1_000
        while self._phase in ("claiming", "owner") and (left_us := deadline_us - self._world.clock.monotonic_us()) > 0:
            answers = self._in_hand.all()
            if not answers:
                return
            await asyncio.wait(answers, timeout=left_us / 1_000_000)

    # -- tasks and errors

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that this owner cannot do without: its failure ends the partition."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    def _work_on(self, ask: Ask, work: Callable[[Ask], Coroutine[Any, Any, None]]) -> None:
        """A task for one ask, which is answered however it ends."""
        task = asyncio.create_task(work(ask))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._worked_on(ask, done))

    def _worked_on(self, ask: Ask, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            ask.refuse(self._in_doubt("the store was closed"))
        elif isinstance(error := task.exception(), Exception):
            ask.refuse(error)

    def _say(self, event: str, **fields: Any) -> None:
        self._world.say({"event": event, "partition": self._partition, **fields})

    def _check_running(self, *, owing: bool = False) -> None:
        """Raises unless something new may begin, or with `owing` something that was taken in may go on."""
        if self._failure is not None:
            raise self._failure
        if self._phase == "closed":
            raise fail("NOT_OWNER", "the store is closed")
        if self._phase == "releasing" or (self._is_leaving and not owing):
            raise fail("NOT_OWNER", f"partition {self._partition} is being given back", retry_after_ms=RETRY_MS)

    def _in_doubt(self, why: str) -> AtomlogError:
        message = f"{why}; send the same request with the same idempotency key again: it will tell"
        return fail("IN_DOUBT", message, retry_after_ms=RETRY_MS)


def _seen(done: "asyncio.Future[Any]") -> None:
    """An outcome that nobody may be waiting for any more is no unhandled error."""
    if not done.cancelled():
        done.exception()
