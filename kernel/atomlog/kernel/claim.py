"""Taking a partition: a Claim that is read back as the effective one, and content keys for the new term."""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from atomlog.kernel.committer import Committer
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.following import Following
from atomlog.kernel.heads import HeadView
from atomlog.kernel.inflight import RETRY_MS, Group, Unread
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.tail import EffectiveRecord
from atomlog.kernel.world import Term, World
from atomlog.schemas import codec
from atomlog.schemas.record import RULE, ZERO16, Record
from atomlog.schemas.revision import time_bytes

DESTROYED_PAGES_MAX: Final = 4_096  # named by one KeysDestroyed record: some 170 KB
TRIES_MAX: Final = 3  # appends of one Claim before it is given up


class Claimer:
    """Claims one partition, as often as needed. Start at `claim`."""

    def __init__(
        self,
        world: World,
        partition: int,
        *,
        term: Term,
        settled: HeadView,
        unread: Unread,
        allocator: KeyAllocator,
        following: Following,
        committer: Committer,
    ) -> None:
        self._world = world
        self._partition = partition
        self._log = world.log
        self._term = term
        self._settled = settled
        self._unread = unread
        self._allocator = allocator
        self._following = following
        self._committer = committer
        self._won: asyncio.Future[bool] | None = None

    async def claim(self, *, over_others: bool, after: bytes | None = None) -> None:
        """Returns as the owner, without another await after that was seen.

        NOT_OWNER when another one won; unless `over_others`, also when the last Claim is not an own one: who lost
        the partition does not take it back by itself. With `after` also when that is not the chain at the log's end:
        somebody has written since it was decided to claim.

        Raises what the log and the key store raise; the Claim may then be effective all the same.
        """
        # 1. Nothing of an earlier term is still to be sent from here.
        await self._log.acquire(self._partition)
        await self._committer.abandon()
        await self._log.renew(self._partition)
        # 2. Only who can serve, and has read the log to its end, may claim.
        if not self._log.exclusive:
            await self._allocator.check_master()
        end = await self._log.end(self._partition)
        await self._following.until(lambda: self._following.checkpoint.position >= end)
        state = self._following.checkpoint.state
        if (not over_others and state.owner != self._term.owner) or (after is not None and state.chain != after):
            raise self.not_owner()
        self._check_clock()
        # 3. Append the Claim and see whether it is the effective one.
        await self._win()
        # 4. Content keys of this term; those that nothing used are destroyed.
        await self._take_keys()
        if not self._holds():
            raise self.not_owner()

    async def give_back(self, reason: str) -> None:
        """End the term with a Release, after everything that is on its way."""
        self._committer.latch()
        await self._committer.appended()
        await self._append_own("Release", {"reason": reason})

    def on_claim(self, record: EffectiveRecord) -> bool:
        """An effective Claim was read back; whether it is an own one."""
        own = record.record.owner == self._term.owner
        if self._won is not None and not self._won.done():
            self._won.set_result(own)
        return own

    def stop(self, failure: AtomlogError) -> None:
        """The log cannot be followed any more."""
        if self._won is not None and not self._won.done():
            self._won.set_exception(failure)
            self._won.exception()  # perhaps nobody waits

    def not_owner(self) -> AtomlogError:
        """NOT_OWNER naming who claimed last."""
        claim = self._settled.place(self._partition).claim
        details = [{"partition": self._partition, **claim}]
        whose = "owned by another process" if claim and "released" not in claim else "owned by nobody at the moment"
        message = f"partition {self._partition} is {whose}"
        return fail("NOT_OWNER", message, details=details, retry_after_ms=RETRY_MS)

    def _holds(self) -> bool:
        """Whether the term that this owner writes in is still the last one of the log."""
        read, own = self._following.checkpoint.state, self._term
        return (read.term, read.owner) == (own.state.term, own.owner)

    def _check_clock(self) -> None:
        self._term.last_us = max(self._term.last_us, self._settled.place(self._partition).recorded_at_us)
        behind_ms = self._world.check_clock(self._world.clock.now_us(), self._term.last_us)
        if behind_ms > self._world.settings.clock_skew_warn_ms:
            self._world.say({"event": "clock_behind", "partition": self._partition, "behind_ms": behind_ms})

    async def _win(self) -> None:
        if self._term.owner == ZERO16:
            self._term.owner = self._world.randomness.token(16)  # after the lock: never shared with a forked child
        self._won = won = asyncio.get_running_loop().create_future()
        try:
            await self._append_claim(self._record(self._following.checkpoint.state.term + 1))
        except Exception:  # it may be there all the same: up to the present end this can be told
            if self._log.exclusive:
                raise
            end = await self._log.end(self._partition)
            await self._following.until(lambda: won.done() or self._following.checkpoint.position >= end)
            if not won.done():
                raise
        is_won = await won
        state = self._following.checkpoint.state
        if not is_won or state.owner != self._term.owner:
            raise self.not_owner()
        self._term.state = state

    async def _append_claim(self, claim: Record) -> None:
        """Append it, several times if need be: the same Claim twice is harmless."""
        for attempt in range(1, TRIES_MAX + 1):
            try:
                await self._log.append(self._partition, [claim])
                return
            except Exception:
                if attempt == TRIES_MAX:
                    raise
                await self._log.renew(self._partition)

    def _record(self, term: int) -> Record:
        genesis = self._world.genesis[self._partition]
        claim = {
            "log_id": genesis.log_id,
            "partition": genesis.partition,
            "partitions": genesis.partitions,
            "hash_version": genesis.hash_version,
            "feature_level": self._following.checkpoint.state.feature_level,
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
        used = self._settled.used_keys(self._partition)
        destroyed = self._settled.destroyed_keys(self._partition)
        voids = self._settled.place(self._partition).voids
        clean = self._log.exclusive and self._world.clean_tail(self._partition) and not voids
        await self._allocator.start(
            self._term.state.term, self._term.owner, used, fresh_page=not clean, destroyed=destroyed
        )
        for unused in parts_of(self._allocator.unused(used)):
            await self._append_own("KeysDestroyed", keys_destroyed(unused))
            await self._allocator.destroy(unused)

    async def _append_own(self, kind: str, datum: Mapping[str, Any]) -> None:
        """Append one record that is no write and wait until it is read back; NOT_OWNER when it turns out void."""
        group = Group(term=self._term.state.term)
        self._unread.push(group)
        self._committer.add_record(group, kind, codec.encode(kind, dict(datum)))
        await self._log.append(self._partition, group.records)
        await self._following.until(lambda: group.left == 0 or not self._holds())
        if group.left:
            raise self.not_owner()


def parts_of(unused: Mapping[bytes, bytes]) -> Iterator[Mapping[bytes, bytes]]:
    """Keys to destroy, as many pages at a time as one record names."""
    pages = iter(sorted(unused.items()))
    while part := dict(islice(pages, DESTROYED_PAGES_MAX)):
        yield part


def keys_destroyed(unused: Mapping[bytes, bytes]) -> dict[str, Any]:
    pages = [{"page": page, "bitmap": bitmap} for page, bitmap in unused.items()]
    return {"pages": pages, "reason": "unused by any effective record"}
