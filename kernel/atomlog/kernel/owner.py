"""The writer of one partition: the only way a record gets into the log.

Three parts: taking the partition (`claim`), the write path (`committer`), and following the log, which settles what
was written (`_read_back`). In between stands `_doubt`: an append that may or may not have worked.

Phases: standby (never claimed, or lost to another) → claiming → owner → claiming again after a doubt;
failed and closed are final.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Literal

from atomlog.kernel import model
from atomlog.kernel.committer import RETRY_MS, Committer
from atomlog.kernel.decide import Prepared, mismatch
from atomlog.kernel.errors import AtomlogError, FatalError, fail
from atomlog.kernel.heads import HeadView, Place
from atomlog.kernel.inflight import Answer, Ask, Group, Unread
from atomlog.kernel.keys import KeyAllocator
from atomlog.kernel.prepare import Preparer
from atomlog.kernel.results import read_effective, write_result
from atomlog.kernel.sealing import request_digest, request_key
from atomlog.kernel.tail import EffectiveRecord, Tail
from atomlog.kernel.world import Term, World
from atomlog.schemas import codec
from atomlog.schemas.record import RULE, ZERO16, Record
from atomlog.schemas.revision import time_bytes

TRIES_MAX: Final = 3  # appends of one ask, or of one Claim, before it is given up
WAIT_S: Final = 1.0  # how long one wait for the log lasts

Phase = Literal["standby", "claiming", "owner", "failed", "closed"]


class Owner:
    """Writes of one partition. `start` first; on a log of its own, `write` claims by itself."""

    def __init__(self, world: World, partition: int) -> None:
        self._world = world
        self._partition = partition
        self._log = world.log
        self._phase: Phase = "standby"
        self._failure: AtomlogError | None = None
        self._term = Term()
        self._settled = HeadView(world.heads.kv, world.log.partitions)  # what is read back
        self._view = HeadView(world.heads.kv, world.log.partitions)  # what is on its way, laid over it
        self._unread = Unread(self._view)
        self._tail = Tail(world.log, world.genesis[partition])
        self._moved = asyncio.Event()  # set, and replaced, each time the tail moves
        self._active: dict[tuple[str, str, str], set[asyncio.Future[Answer]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._claiming: asyncio.Task[None] | None = None
        self._claim_won: asyncio.Future[bool] | None = None
        self._digest_keys: dict[str, bytes] = {}  # of spaces that have no effective record yet
        self._unsynced = 0
        self._allocator = KeyAllocator(world.ring, partition)
        self._committer = Committer(
            world,
            partition,
            term=self._term,
            view=self._view,
            settled=self._settled,
            unread=self._unread,
            allocator=self._allocator,
            prepare_again=lambda ask: self._spawn(self._prepare_again(ask)),
            answer_stored=lambda ask: self._spawn(self._answer_stored(ask)),
            doubt=self._doubt,
        )
        self._preparer = Preparer(
            partition=partition,
            view=self._view,
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
        return self._tail.checkpoint.state.term

    @property
    def applied(self) -> int:
        """The next position the head state will apply."""
        return self._tail.checkpoint.position

    def place(self) -> Place:
        return self._settled.place(self._partition)

    async def start(self) -> None:
        """Apply what the log holds, then go on following it. Claims nothing."""
        place = self.place()
        self._tail.checkpoint = place.checkpoint
        self._tail.voids.update(place.voids)
        end = await self._log.end(self._partition)
        if place.checkpoint.position > end:
            raise fail(
                "LOG_DIVERGED",
                f"partition {self._partition}: the heads stand at {place.checkpoint.position}, the log ends at {end}: "
                "it was replaced or cut; bring the right log back, or remove the projections to have them rebuilt",
            )
        while self._tail.checkpoint.position < end:
            await self._read_back()
        for loop in (self._follow(), self._committer.run(), self._sync_loop()):
            self._spawn(loop)

    async def write(self, request: model.WriteRequest, principal: str) -> model.WriteResult:
        """The result of an accepted batch, or the typed error of its refusal.

        IN_DOUBT when the outcome is not known within `write_timeout_ms`: the same request again will tell.
        """
        self._check_running()
        known = await self._known(request, principal)
        if known is not None:
            return known
        self._world.admit()
        answer = self._new_answer((request.space, principal, request.idempotency_key))
        try:
            ask = Ask(prepared=await self._prepare(request, principal), answer=answer)
            self._committer.check_room()
        except BaseException:
            answer.cancel()
            raise
        self._committer.put(ask)
        result = await self._answered(ask)
        assert isinstance(result, model.WriteResult)
        return result

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        """What is known of an idempotency key. `never` is said only when no earlier attempt can still count."""
        scope = (space, principal, key)
        if running := self._active.get(scope):
            await asyncio.wait(running, timeout=self._world.timeout_s)
        question = model.WriteRequest(space=space, idempotency_key=key, changes=(), preconditions=(), canonical=b"")
        known = await self._known(question, principal, same=False)
        if known is not None:
            return model.Outcome(state="accepted", result=known)
        if self._active.get(scope) or self._phase not in ("standby", "owner"):
            return model.Outcome(state="unknown")
        if self._log.exclusive:
            return model.Outcome(state="never", term=self.term)
        digest_key = self._view.digest_key(self._partition, space) or self._digest_keys.get(space)
        if self._phase != "owner" or digest_key is None:
            return model.Outcome(state="unknown")
        prepared = await self._preparer.prepare(question, principal, digest_key)
        ask = Ask(prepared=prepared, answer=asyncio.get_running_loop().create_future(), question=True)
        self._committer.put(ask)
        outcome = await self._answered(ask)
        assert isinstance(outcome, model.Outcome)
        return outcome

    async def claim(self) -> None:
        """Become the owner, or raise NOT_OWNER naming who is. Joins a claim that is on its way."""
        self._check_running()
        if self._phase == "owner":
            return
        if self._claiming is None or self._claiming.done():
            self._phase = "claiming"
            self._claiming = asyncio.create_task(self._claim())
        await asyncio.shield(self._claiming)

    async def release(self, reason: str) -> None:
        """Answer what is in hand and give the term up, so that a successor need not wait."""
        await self._drain()
        if self._phase == "owner":
            await self._append_own("Release", {"reason": reason})
            self._committer.latch()
            self._phase = "standby"

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

    # -- following the log

    async def _follow(self) -> None:
        while True:
            try:
                if await self._log.wait(self._partition, self._tail.checkpoint.position, WAIT_S):
                    await self._read_back()
            except FatalError as error:
                self._fail(error)
                return
            except (AtomlogError, OSError):  # the log does not answer now; nothing was applied
                await self._world.clock.sleep(RETRY_MS / 1_000)

    async def _read_back(self) -> None:
        """Apply the next records of the log, then answer what they settle: never before they are applied."""
        before = self._tail.checkpoint.position
        records = await self._tail.poll()
        if self._tail.checkpoint.position == before:
            return
        self._world.heads.apply(self._partition, records, self._tail.checkpoint, self._tail.voids)
        self._unsynced += self._tail.checkpoint.position - before
        for record in records:
            if record.kind == "Claim":
                self._on_claim(record)
            elif record.record.owner == self._term.owner:
                self._committer.settle(record)
        self._moved.set()
        self._moved = asyncio.Event()

    def _on_claim(self, record: EffectiveRecord) -> None:
        """An effective Claim ends every older term: what is not read back by now is void for ever."""
        own = record.record.owner == self._term.owner
        if self._claim_won is not None and not self._claim_won.done():
            self._claim_won.set_result(own)
        if not own:
            if self._phase == "owner":
                self._phase = "standby"
                self._say("ownership_lost", term=record.record.term)
            self._give_up("another process took the partition over")
            return
        for ask in self._unread.clear():
            ask.tries += 1
            if ask.question:
                ask.tell(model.Outcome(state="unknown"))
            elif ask.tries < TRIES_MAX:
                self._spawn(self._prepare_again(ask))
            else:
                ask.refuse(fail("OVERLOADED", "the log did not take the write; nothing of it was written"))

    def _fail(self, error: AtomlogError) -> None:
        """The log cannot be followed any more."""
        self._phase = "failed"
        self._failure = error
        self._say("failed", error=error.to_dict())
        self._give_up(f"the log cannot be followed: {error.message}")
        if self._claim_won is not None and not self._claim_won.done():
            self._claim_won.set_result(False)
        self._moved.set()

    # -- ownership

    async def _claim(self) -> None:
        try:
            async with asyncio.timeout(self._world.timeout_s):
                await self._log.acquire(self._partition)
                await self._catch_up()
                await self._win()
                await self._take_keys()
            self._phase = "owner"
            self._committer.open()
            self._say("claimed", term=self.term)
        except TimeoutError:
            raise self._in_doubt("the claim was not read back in time") from None
        except OSError as error:
            raise fail("OVERLOADED", f"the log cannot be written: {error}", retry_after_ms=1_000) from None
        finally:
            if self._phase == "claiming":
                self._phase = "standby"
                self._give_up("the partition could not be claimed again")

    async def _catch_up(self) -> None:
        """Only who has read the log to its end may claim."""
        end = await self._log.end(self._partition)
        while self._tail.checkpoint.position < end:
            await self._moved.wait()
            self._check_running()
        self._term.last_us = max(self._term.last_us, self.place().recorded_at_us)
        settings = self._world.settings
        behind_ms = self._term.behind_ms(self._world.clock.now_us(), settings.clock_skew_stop_ms)
        if behind_ms > settings.clock_skew_warn_ms:
            self._say("clock_behind", behind_ms=behind_ms)

    async def _win(self) -> None:
        """Append a Claim of the next term and see whether it is the effective one."""
        if self._term.owner == ZERO16:
            self._term.owner = self._world.randomness.token(16)  # after the lock: never shared with a forked child
        self._claim_won = asyncio.get_running_loop().create_future()
        record = self._claim_record(self.term + 1)
        for attempt in range(1, TRIES_MAX + 1):
            try:
                await self._log.append(self._partition, [record])
                break
            except Exception:  # it may be there all the same; the same Claim twice is harmless
                if attempt == TRIES_MAX and self._log.exclusive:
                    raise
                await self._log.renew(self._partition)
        won = await self._claim_won
        state = self._tail.checkpoint.state
        if not won or state.owner != self._term.owner:
            self._check_running()
            raise self._not_owner()
        self._term.state = state

    def _claim_record(self, term: int) -> Record:
        genesis = self._world.genesis[self._partition]
        claim = {
            "log_id": genesis.log_id,
            "partition": genesis.partition,
            "partitions": genesis.partitions,
            "hash_version": genesis.hash_version,
            "feature_level": self._tail.checkpoint.state.feature_level,
            "claimed_at": time_bytes(self._world.clock.now_us()),
            "endpoint": self._world.endpoint,
            "node": self._world.node,
            "pid": self._world.pid,
        }
        return Record(
            rule=RULE,
            kind="Claim",
            term=term,
            owner=self._term.owner,
            seq=0,
            schema=codec.current("Claim").fingerprint,
            chain=ZERO16,
            value=codec.encode("Claim", claim),
        )

    async def _take_keys(self) -> None:
        """Content keys for this term; keys of older terms that no effective record uses are destroyed.

        So the text in void records cannot be read any more. The record comes first, the store of keys follows.
        """
        self._digest_keys = {}
        used = self._settled.used_keys(self._partition)
        destroyed = self._settled.destroyed_keys(self._partition)
        clean = self._log.exclusive and self._world.clean_tail(self._partition) and not self.place().voids
        await self._allocator.start(self.term, self._term.owner, used, fresh_page=not clean, destroyed=destroyed)
        unused = self._allocator.unused(used)
        if unused:
            pages = [{"page": page, "bitmap": bitmap} for page, bitmap in sorted(unused.items())]
            await self._append_own("KeysDestroyed", {"pages": pages, "reason": "unused by any effective record"})
            await self._allocator.destroy(unused)

    async def _append_own(self, kind: str, datum: Mapping[str, Any]) -> None:
        """Append one record that is no write and wait until it is read back."""
        group = Group(term=self._term.state.term)
        self._unread.push(group)
        self._committer.add_record(group, kind, codec.encode(kind, dict(datum)))
        await self._log.append(self._partition, group.records)
        while group in self._unread:
            await self._moved.wait()

    def _doubt(self, error: Exception) -> None:
        """An append may or may not have worked: take nothing more, claim the next term, read back.

        Up to that Claim's own position everything of the old term is settled: answered where it was read back,
        void for ever where it was not.
        """
        if self._phase != "owner":
            return
        self._say("in_doubt", error=f"{type(error).__name__}: {error}")
        self._phase = "claiming"
        self._claiming = asyncio.create_task(self._reclaim())
        self._claiming.add_done_callback(_seen)

    async def _reclaim(self) -> None:
        await self._log.renew(self._partition)
        await self._claim()

    def _give_up(self, why: str) -> None:
        """Answer everything in hand: not known."""
        self._committer.latch()
        for ask in self._committer.withdraw():
            if ask.question:
                ask.tell(model.Outcome(state="unknown"))
            else:
                ask.refuse(self._in_doubt(why))

    # -- before and after the write path

    async def _known(
        self, request: model.WriteRequest, principal: str, *, same: bool = True
    ) -> model.WriteResult | None:
        """The result of a request that was accepted before, without claiming or taking anything.

        IDEMPOTENCY_MISMATCH when it was another one, unless not `same`: then only the key counts.
        """
        digest_key = self._settled.digest_key(self._partition, request.space)
        if digest_key is None:
            return None
        key = await self._world.ring.key(digest_key)
        accepted = self._settled.request(self._partition, request_key(key, principal, request.idempotency_key))
        if accepted is None:
            return None
        if same and accepted.digest != request_digest(key, request.canonical):
            raise mismatch(request.idempotency_key)
        return await self._stored_result(request, accepted.position)

    async def _prepare(self, request: model.WriteRequest, principal: str) -> Prepared:
        if self._phase == "standby" and not self._log.exclusive:
            raise self._not_owner()
        await self.claim()
        digest_key = self._view.digest_key(self._partition, request.space) or self._digest_keys.get(request.space)
        if digest_key is None:
            await self._allocator.reserve(1)
            # Another write of the same new space may have drawn the key while this one waited.
            digest_key = self._digest_keys.get(request.space) or self._allocator.take()[0]
            self._digest_keys[request.space] = digest_key
        return await self._preparer.prepare(request, principal, digest_key)

    async def _prepare_again(self, ask: Ask) -> None:
        try:
            ask.prepared = await self._prepare(ask.prepared.request, ask.prepared.principal)
        except AtomlogError as error:
            ask.refuse(error)
        else:
            self._committer.put(ask)

    async def _answer_stored(self, ask: Ask) -> None:
        accepted = self._settled.request(self._partition, ask.prepared.request_key)
        if accepted is None:
            self._committer.put(ask)
            return
        try:
            ask.accept(await self._stored_result(ask.prepared.request, accepted.position))
        except AtomlogError as error:
            ask.refuse(error)

    async def _stored_result(self, request: model.WriteRequest, position: int) -> model.WriteResult:
        record = await read_effective(self._log, self._partition, position)
        return write_result(request, self._partition, record.batch(), record, replayed=True)

    async def _answered(self, ask: Ask) -> Answer:
        try:
            async with asyncio.timeout(self._world.timeout_s):
                return await asyncio.shield(ask.answer)
        except TimeoutError:
            raise self._in_doubt("there was no answer in time") from None

    def _new_answer(self, scope: tuple[str, str, str]) -> "asyncio.Future[Answer]":
        """A future that `outcome` of the same key waits for."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._active.setdefault(scope, set()).add(answer)

        def forget(done: "asyncio.Future[Answer]") -> None:
            waiting = self._active[scope]
            waiting.discard(done)
            if not waiting:
                del self._active[scope]
            _seen(done)

        answer.add_done_callback(forget)
        return answer

    async def _drain(self) -> None:
        """Wait until everything in hand is answered, as long as this process owns the partition."""
        deadline_us = self._world.clock.monotonic_us() + self._world.settings.write_timeout_ms * 1_000
        while self._phase in ("claiming", "owner") and (left_us := deadline_us - self._world.clock.monotonic_us()) > 0:
            answers = [answer for waiting in self._active.values() for answer in waiting]
            if not answers:
                return
            await asyncio.wait(answers, timeout=left_us / 1_000_000)

    async def _sync_loop(self) -> None:
        """The heads' own log need not be durable for each write: after a power cut they replay."""
        while True:
            await self._world.clock.sleep(self._world.settings.sync_interval_ms / 1_000)
            if self._unsynced:
                self._unsynced = 0
                await self._world.workers.run(self._world.heads.kv.sync)

    def _say(self, event: str, **fields: Any) -> None:
        self._world.say({"event": event, "partition": self._partition, **fields})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._phase == "closed":
            raise fail("NOT_OWNER", "the store is closed")

    def _in_doubt(self, why: str) -> AtomlogError:
        message = f"{why}; send the same request with the same idempotency key again: it will tell"
        return fail("IN_DOUBT", message, retry_after_ms=RETRY_MS)

    def _not_owner(self) -> AtomlogError:
        message = f"partition {self._partition} is owned by another process"
        details = [{"partition": self._partition, **self.place().claim}]
        return fail("NOT_OWNER", message, details=details, retry_after_ms=RETRY_MS)


def _seen(done: "asyncio.Future[Any]") -> None:
    """An outcome that nobody may be waiting for any more is no unhandled error."""
    if not done.cancelled():
        done.exception()
