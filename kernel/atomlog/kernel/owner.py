"""The writer of one partition: the only way a record gets into the log.

Read `Owner._commit` first: the write path, step by step. Around it: `claim` takes the partition, `_read_back`
follows the log and answers, `_doubt` is what happens when an append may or may not have worked.

Phases: standby (never claimed, or lost to another) → claiming → owner → claiming again after a doubt;
failed and closed are final.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from atomlog.kernel import model
from atomlog.kernel.build import Builder, KeyMissing
from atomlog.kernel.commit_rule import CommitState, Genesis
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.decide import Duplicate, Plan, Prepared, Refused, Rules, decide, mismatch
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.heads import PENDING, Accepted, Heads, HeadView, Place, stage_pending
from atomlog.kernel.inflight import Answer, Appended, Ask, Group, Unread
from atomlog.kernel.keys import KeyAllocator, KeyRing
from atomlog.kernel.ports import BlobStore, Clock, Log, Randomness, Receipts, Workers
from atomlog.kernel.prepare import Preparer
from atomlog.kernel.sealing import request_digest, request_key
from atomlog.kernel.settings import Settings
from atomlog.kernel.tail import EffectiveRecord, Tail
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, encode_batch
from atomlog.schemas.record import RULE, ZERO16, Record, chain_after
from atomlog.schemas.revision import ATOM, REVISION, time_bytes

TRIES_MAX: Final = 3  # appends of one ask, or of one Claim, before it is given up
WAIT_S: Final = 1.0  # how long one wait for the log lasts
RETRY_MS: Final = 100

Phase = Literal["standby", "claiming", "owner", "failed", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What owners work with; one for all partitions of a process.

    `admit` raises OVERLOADED when no more writes may come in. `clean_tail` is False for a partition whose log was
    cut at its end when it was opened: keys of what was cut must not be used again.
    """

    log: Log
    genesis: Mapping[int, Genesis]
    heads: Heads
    ring: KeyRing
    content: ContentOpener
    blobs: BlobStore
    receipts: Receipts | None
    clock: Clock
    randomness: Randomness
    workers: Workers
    rules: Rules
    settings: Settings
    node: str
    pid: int
    endpoint: str
    admit: Callable[[], None]
    clean_tail: Callable[[int], bool]


class Owner:
    """Writes of one partition. `start` first; on a log of its own, `write` claims by itself."""

    def __init__(self, world: World, partition: int) -> None:
        self._world = world
        self._partition = partition
        self._log = world.log
        self._settled = HeadView(world.heads.kv, world.log.partitions)  # what is read back
        self._view = HeadView(world.heads.kv, world.log.partitions)  # what is on its way, laid over it
        self._unread = Unread(self._view)
        self._queue: deque[Ask] = deque()
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()  # set, and replaced, each time the tail moves
        self._active: dict[tuple[str, str, str], set[asyncio.Future[Answer]]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._phase: Phase = "standby"
        self._failure: AtomlogError | None = None
        self._owner = ZERO16
        self._next = CommitState()  # the state after everything appended
        self._last_us = 0
        self._claiming: asyncio.Task[None] | None = None
        self._claim_won: asyncio.Future[bool] | None = None
        self._appending: asyncio.Task[None] | None = None
        self._digest_keys: dict[str, bytes] = {}
        self._unsynced = 0
        self._tail = Tail(world.log, world.genesis[partition])
        self._allocator = KeyAllocator(world.ring, partition)
        self._builder = Builder(
            ring=world.ring, allocator=self._allocator, randomness=world.randomness, bounds=world.rules.bounds
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
        for loop in (self._follow(), self._commit_loop(), self._sync_loop()):
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
        answer = self._new_answer(request, principal)
        try:
            ask = Ask(prepared=await self._prepare(request, principal), answer=answer)
            self._check_room()
        except BaseException as error:
            answer.cancel()
            raise error
        self._enqueue(ask)
        result = await self._answered(ask)
        assert isinstance(result, model.WriteResult)
        return result

    async def outcome(self, space: str, key: str, principal: str) -> model.Outcome:
        """What is known of an idempotency key. `never` is said only when no earlier attempt can still count."""
        running = self._active.get((space, principal, key))
        if running:
            await asyncio.wait(running, timeout=self._world.settings.write_timeout_ms / 1_000)
        question = model.WriteRequest(space=space, idempotency_key=key, changes=(), preconditions=(), canonical=b"")
        digest_key = self._view.digest_key(self._partition, space)
        prepared = None
        if digest_key is not None:
            prepared = await self._preparer.prepare(question, principal, digest_key)
            accepted = self._settled.request(self._partition, prepared.request_key)
            if accepted is not None:
                result = await self._stored_result(question, accepted)
                return model.Outcome(state="accepted", result=result)
        if self._active.get((space, principal, key)) or self._phase not in ("standby", "owner"):
            return model.Outcome(state="unknown")
        if self._log.exclusive:
            return model.Outcome(state="never", term=self.term)
        if prepared is None or self._phase != "owner":
            return model.Outcome(state="unknown")
        ask = Ask(prepared=prepared, answer=asyncio.get_running_loop().create_future(), question=True)
        self._enqueue(ask)
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
            self._phase = "standby"

    async def close(self) -> None:
        """Answer what can be answered, stop following, make the heads durable."""
        if self._phase == "closed":
            return
        await self._drain()
        self._phase = "closed"
        tasks = [*self._background, *(task for task in (self._claiming, self._appending) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._give_up(self._in_doubt("the store was closed"))
        await self._allocator.close()
        await self._world.workers.run(self._world.heads.kv.sync)

    # -- the write path

    async def _commit_loop(self) -> None:
        while True:
            await self._wake.wait()
            if self._phase != "owner" or not self._queue:
                self._wake.clear()
                continue
            await asyncio.sleep(0)  # let every client that is ready now join the group
            await self._commit()

    async def _commit(self) -> None:
        """One group commit."""
        # 0. Content keys are durable before their first use.
        await self._allocator.reserve(sum(len(ask.prepared.request.changes) for ask in self._queue))
        # 1. Check everything against heads ⊕ overlay, the sealed size included, before a seq is given.
        group = self._decide_group()
        # 2. Append each batch as one record, in order; one append at a time.
        if self._appending is not None:
            await self._appending
        if group.records and group in self._unread and self._phase == "owner":
            self._appending = asyncio.create_task(self._append(group))
        # 3. Acknowledge only what this owner's own tail has read back as effective: `_on_own`.
        # 4. Drop the overlay when the whole group is read back, and answer its refusals: `_on_own`.

    def _decide_group(self) -> Group:
        """Decide queued asks in order until the group is full."""
        group = Group(term=self._next.term)
        self._unread.push(group)
        refused: list[Ask] = []
        while self._queue and group.bytes_total < self._world.settings.group_bytes_max:
            ask = self._queue.popleft()
            accepted = self._view.request(self._partition, ask.prepared.request_key)
            if ask.question and accepted is None:
                refused.append(ask)
                continue
            decision = decide(self._view, self._partition, ask.prepared, self._world.rules)
            if accepted is not None and (ask.question or isinstance(decision, Duplicate)):
                self._duplicate(ask, accepted)
            elif isinstance(decision, Plan):
                self._build(group, ask, decision)
            else:
                refused.append(ask)
        self._fence(group, refused)
        if not group.records:
            self._unread.drop(group)
        return group

    def _build(self, group: Group, ask: Ask, plan: Plan) -> None:
        now_us = self._world.clock.now_us()
        recorded_at_us = max(now_us, self._last_us + 1)
        try:
            self._check_clock(now_us)
            built = self._builder.build(ask.prepared, plan.revisions, recorded_at_us)
            value = codec.wrap(codec.current("Batch").fingerprint, encode_batch(built.batch))
            self._check_size(value)
        except KeyMissing:
            self._spawn(self._prepare_again(ask))
            return
        except AtomlogError as error:
            ask.refuse(error)
            return
        record = self._add(group, "Batch", value)
        group.blobs += built.blobs
        group.writes[record.seq] = Appended(ask, built.batch)
        stage_pending(self._view, group.layer, self._partition, built.batch)
        self._last_us = recorded_at_us

    def _duplicate(self, ask: Ask, accepted: Accepted) -> None:
        """Answer from the idempotency table, or join the same request that is on its way."""
        writing = self._unread.writing(ask.prepared.request_key) if accepted.position == PENDING else None
        if writing is not None:
            writing.joined.append(ask)
        else:
            self._spawn(self._answer_stored(ask))

    def _fence(self, group: Group, refused: list[Ask]) -> None:
        """Give each refusal an own record to wait for, produced after its request arrived.

        When that record is read back as effective, nobody else owned the partition in between, and the refusal is
        decided again on the state there. A log that nobody else can append to needs no record for that; there a
        refusal only waits for the overlay it may rest on.
        """
        if not refused:
            return
        if not group.records and not self._log.exclusive:
            self._add(group, "Fence", codec.encode("Fence", {"requests": len(refused)}))
        waits_for = group if group.records else self._unread.before(group)
        if waits_for is not None:
            waits_for.refused += refused
            return
        for ask in refused:
            self._decide_refused(ask)

    def _add(self, group: Group, kind: str, value: bytes) -> Record:
        """Make the next record of the term and add it to a group."""
        state = self._next
        record = Record(
            rule=RULE,
            kind=kind,
            term=state.term,
            owner=self._owner,
            seq=state.next_seq,
            schema=codec.current(kind).fingerprint,
            chain=ZERO16,
            value=value,
        )
        record = replace(record, chain=chain_after(state.chain, record))
        self._next = replace(state, next_seq=state.next_seq + 1, chain=record.chain)
        group.records.append(record)
        group.left += 1
        group.bytes_total += len(value)
        return record

    async def _append(self, group: Group) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                for blob in group.blobs:
                    await self._world.blobs.put(blob)
                await self._log.append(self._partition, group.records)
        except Exception as error:  # whatever it was, the records may be there now, later, or never
            self._doubt(error)

    # -- reading back

    async def _follow(self) -> None:
        while True:
            try:
                if await self._log.wait(self._partition, self._tail.checkpoint.position, WAIT_S):
                    await self._read_back()
            except AtomlogError as error:
                self._fail(error)
                return

    async def _read_back(self) -> None:
        """Apply the next records of the log and answer what they settle."""
        before = self._tail.checkpoint.position
        records = await self._tail.poll()
        if self._tail.checkpoint.position == before:
            return
        self._world.heads.apply(self._partition, records, self._tail.checkpoint, self._tail.voids)
        self._unsynced += self._tail.checkpoint.position - before
        for record in records:
            if record.kind == "Claim":
                self._on_claim(record)
            elif record.record.owner == self._owner:
                self._on_own(record)
        self._moved.set()
        self._moved = asyncio.Event()

    def _on_own(self, record: EffectiveRecord) -> None:
        group = self._unread.find(record.record.seq, record.record.term)
        if group is None:
            return
        appended = group.writes.pop(record.record.seq, None)
        if appended is not None:
            appended.ask.accept(self._result(appended.ask.prepared.request, appended.batch, record))
        group.left -= 1
        if group.left == 0:
            self._unread.drop(group)
            for ask in group.refused:
                self._decide_refused(ask)

    def _decide_refused(self, ask: Ask) -> None:
        """The final word on a refusal, on the state that is read back."""
        if ask.question:
            if self._settled.request(self._partition, ask.prepared.request_key) is None:
                ask.tell(model.Outcome(state="never", term=self.term))
            else:
                self._spawn(self._answer_stored(ask))
            return
        decision = decide(self._settled, self._partition, ask.prepared, self._world.rules)
        if isinstance(decision, Refused):
            ask.refuse(decision.error)
        else:
            self._enqueue(ask)  # what it was refused for is gone

    def _on_claim(self, record: EffectiveRecord) -> None:
        """An effective Claim ends every older term: what is not read back by now is void for ever."""
        own = record.record.owner == self._owner
        if self._claim_won is not None and not self._claim_won.done():
            self._claim_won.set_result(own)
        if not own:
            if self._phase == "owner":
                self._phase = "standby"
            self._give_up(self._in_doubt("another process took the partition over"))
            return
        for ask in self._unread.clear():
            ask.tries += 1
            if ask.question:
                ask.tell(model.Outcome(state="unknown"))
            elif ask.tries < TRIES_MAX:
                self._spawn(self._prepare_again(ask))
            else:
                ask.refuse(fail("OVERLOADED", "the log did not take the write; nothing of it was written"))

    # -- ownership

    async def _claim(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._log.acquire(self._partition)
                await self._caught_up()
                await self._win()
                await self._take_keys()
            self._phase = "owner"
            self._wake.set()
        except TimeoutError:
            raise self._in_doubt("the claim was not read back in time") from None
        except OSError as error:
            raise fail("OVERLOADED", f"the log cannot be written: {error}", retry_after_ms=1_000) from None
        finally:
            if self._phase == "claiming":
                self._phase = "standby"
                self._give_up(self._in_doubt("the partition could not be claimed again"))

    async def _caught_up(self) -> None:
        end = await self._log.end(self._partition)
        while self._tail.checkpoint.position < end:
            await self._moved.wait()
        self._last_us = max(self._last_us, self.place().recorded_at_us)
        self._check_clock(self._world.clock.now_us())

    async def _win(self) -> None:
        """Append a Claim of the next term and see whether it is the effective one."""
        if self._owner == ZERO16:
            self._owner = self._world.randomness.token(16)  # after the lock: never shared with a forked child
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
        if not await self._claim_won:
            raise self._not_owner()
        state = self._tail.checkpoint.state
        if state.owner != self._owner:
            raise self._not_owner()
        self._next = state

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
            owner=self._owner,
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
        await self._allocator.start(self._next.term, self._owner, used, fresh_page=not clean, destroyed=destroyed)
        unused = self._allocator.unused(used)
        if unused:
            pages = [{"page": page, "bitmap": bitmap} for page, bitmap in sorted(unused.items())]
            await self._append_own("KeysDestroyed", {"pages": pages, "reason": "unused by any effective record"})
            await self._allocator.destroy(unused)

    async def _append_own(self, kind: str, datum: Mapping[str, Any]) -> None:
        """Append one record that is no write and wait until it is read back."""
        group = Group(term=self._next.term)
        self._unread.push(group)
        self._add(group, kind, codec.encode(kind, dict(datum)))
        await self._log.append(self._partition, group.records)
        while group in self._unread:
            await self._moved.wait()

    def _doubt(self, error: BaseException) -> None:
        """An append may or may not have worked: take nothing more, claim the next term, read back.

        Up to that Claim's own position everything of the old term is settled: answered where it was read back,
        void for ever where it was not.
        """
        if self._phase != "owner":
            return
        self._phase = "claiming"
        self._claiming = asyncio.create_task(self._reclaim(error))

    async def _reclaim(self, error: BaseException) -> None:
        await self._log.renew(self._partition)
        await self._claim()

    def _fail(self, error: AtomlogError) -> None:
        """The log cannot be followed any more."""
        self._phase = "failed"
        self._failure = error
        self._give_up(self._in_doubt(f"the log cannot be followed: {error.message}"))
        if self._claim_won is not None and not self._claim_won.done():
            self._claim_won.set_result(False)
        self._moved.set()

    def _give_up(self, error: AtomlogError) -> None:
        """Answer everything in hand: not known."""
        asks = [*self._unread.clear(), *self._queue]
        self._queue.clear()
        for ask in asks:
            if ask.question:
                ask.tell(model.Outcome(state="unknown"))
            else:
                ask.refuse(error)

    # -- small parts

    @property
    def _timeout_s(self) -> float:
        return self._world.settings.write_timeout_ms / 1_000

    async def _known(self, request: model.WriteRequest, principal: str) -> model.WriteResult | None:
        """The answer to a request that was accepted before, without claiming or taking anything."""
        digest_key = self._settled.digest_key(self._partition, request.space)
        if digest_key is None:
            return None
        key = await self._world.ring.key(digest_key)
        accepted = self._settled.request(self._partition, request_key(key, principal, request.idempotency_key))
        if accepted is None:
            return None
        if accepted.digest != request_digest(key, request.canonical):
            raise mismatch(request.idempotency_key)
        return await self._stored_result(request, accepted)

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
            return
        self._enqueue(ask)

    def _enqueue(self, ask: Ask) -> None:
        self._queue.append(ask)
        self._wake.set()

    async def _answered(self, ask: Ask) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(ask.answer)
        except TimeoutError:
            raise self._in_doubt("there was no answer in time") from None

    def _new_answer(self, request: model.WriteRequest, principal: str) -> "asyncio.Future[Answer]":
        """A future that `outcome` of the same key waits for."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        scope = (request.space, principal, request.idempotency_key)
        self._active.setdefault(scope, set()).add(answer)

        def forget(done: "asyncio.Future[Answer]") -> None:
            waiting = self._active[scope]
            waiting.discard(done)
            if not waiting:
                del self._active[scope]
            if not done.cancelled():
                done.exception()  # seen: nobody may be waiting any more

        answer.add_done_callback(forget)
        return answer

    async def _answer_stored(self, ask: Ask) -> None:
        accepted = self._settled.request(self._partition, ask.prepared.request_key)
        if accepted is None:
            self._enqueue(ask)
            return
        try:
            ask.accept(await self._stored_result(ask.prepared.request, accepted))
        except AtomlogError as error:
            ask.refuse(error)

    async def _stored_result(self, request: model.WriteRequest, accepted: Accepted) -> model.WriteResult:
        """The result of an accepted batch, from the log."""
        found = await self._log.read(self._partition, accepted.position, bytes_max=1)
        raw = found[0].record
        assert isinstance(raw, Record)
        record = EffectiveRecord(position=accepted.position, record=raw, chain=raw.chain)
        return replace(self._result(request, record.batch(), record), replayed=True)

    def _result(self, request: model.WriteRequest, batch: Batch, record: EffectiveRecord) -> model.WriteResult:
        aliases = [change.alias for change in request.changes] or [None] * len(batch.revisions)
        results = tuple(
            model.ChangeResult(alias=alias, atom=revision[ATOM], revision=revision[REVISION])
            for alias, revision in zip(aliases, batch.revisions, strict=True)
        )
        receipt = model.WriteReceipt(
            space=batch.space,
            partition=self._partition,
            position=record.position,
            term=record.record.term,
            chain=record.chain,
        )
        return model.WriteResult(results=results, receipt=receipt, replayed=False)

    async def _drain(self) -> None:
        """Wait until everything in hand is answered, as long as this process owns the partition."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while (self._unread or self._queue) and self._phase == "owner":
                    await self._moved.wait()
        except TimeoutError:
            return  # what is left is answered IN_DOUBT by whoever called

    async def _sync_loop(self) -> None:
        """The heads' own log need not be durable for each write: after a power cut they replay."""
        settings = self._world.settings
        while True:
            await self._world.clock.sleep(settings.sync_interval_ms / 1_000)
            if self._unsynced:
                self._unsynced = 0
                await self._world.workers.run(self._world.heads.kv.sync)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._phase == "closed":
            raise fail("NOT_OWNER", "the store is closed", retry_after_ms=None)

    def _check_room(self) -> None:
        if len(self._queue) >= self._world.settings.queue_requests_max:
            raise fail("OVERLOADED", f"{len(self._queue)} writes are waiting", retry_after_ms=RETRY_MS)

    def _check_clock(self, now_us: int) -> None:
        behind_ms = (self._last_us - now_us) // 1_000
        if behind_ms > self._world.settings.clock_skew_stop_ms:
            raise fail(
                "CLOCK_SKEW",
                f"the clock stands {behind_ms} ms before the log's last time; set it right, then write again",
            )

    def _check_size(self, value: bytes) -> None:
        limit = self._world.rules.bounds.batch_bytes_max
        if len(value) > limit:
            message = f"{len(value)} bytes sealed are more than {limit}; split the batch"
            raise fail(
                "BOUND_EXCEEDED",
                f"changes: {message}",
                details=[
                    {
                        "path": "changes",
                        "code": "BOUND_EXCEEDED",
                        "message": message,
                        "found": len(value),
                        "limit": limit,
                    }
                ],
            )

    def _in_doubt(self, why: str) -> AtomlogError:
        message = f"{why}; send the same request with the same idempotency key again: it will tell"
        return fail("IN_DOUBT", message, retry_after_ms=RETRY_MS)

    def _not_owner(self) -> AtomlogError:
        claim = self.place().claim
        message = f"partition {self._partition} is owned by another process"
        return fail("NOT_OWNER", message, details=[{"partition": self._partition, **claim}], retry_after_ms=RETRY_MS)
