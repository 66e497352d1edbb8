"""The owner looks after the key pages of its partition, as long as it owns it, where others may write beside it.

A former owner that stood still and goes on may still make pages and append records under their keys. The records are
void; their text must not be readable. A claim destroys what it finds unused; this destroys what came after it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from atomlog.kernel.claim import keys_destroyed, parts_of
from atomlog.kernel.committer import Committer
from atomlog.kernel.following import Following
from atomlog.kernel.heads import HeadView
from atomlog.kernel.inflight import Unread
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.world import World
from atomlog.schemas import codec

PAUSE_S: Final = 0.2  # between two audits: void records come as fast as anybody likes
REPAIRS_MAX: Final = 100  # calls in one audit


class KeyAudit:
    """Audits one partition: at once when `wake` was called, and every `key_audit_ms`."""

    def __init__(
        self,
        world: World,
        partition: int,
        *,
        owns: Callable[[], bool],
        settled: HeadView,
        unread: Unread,
        allocator: KeyAllocator,
        following: Following,
        committer: Committer,
    ) -> None:
        self._world = world
        self._partition = partition
        self._owns = owns
        self._settled = settled
        self._unread = unread
        self._allocator = allocator
        self._following = following
        self._committer = committer
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """The partition was taken, or a void record was read."""
        self._woken.set()

    async def run(self) -> None:
        """Ends only by cancellation: what fails is said and tried again, and keeps nobody from writing."""
        failed = False
        while True:
            try:
                async with asyncio.timeout(self._world.settings.key_audit_ms / 1_000):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            if not self._owns():
                continue
            try:
                await self._audit()
                failed = False
            except Exception as error:
                if not failed:
                    self._say("key_audit_failed", error=f"{type(error).__name__}: {error}")
                failed = True
            await self._world.clock.sleep(PAUSE_S)

    async def _audit(self) -> None:
        # 1. What others have written over pages is written over again.
        for _ in range(REPAIRS_MAX):
            if not await self._world.ring.store.repair(self._partition):
                break
            self._say("key_pages_repaired")
        # 2. What the log has decided to destroy is destroyed.
        await self._allocator.complete(self._settled.destroyed_keys(self._partition))
        # 3. Pages of older terms that came late have keys that no effective record uses.
        term = self._following.checkpoint.state.term
        late = await self._allocator.late(self._settled.used_keys(self._partition))
        for unused in parts_of(late):
            if not self._owns() or self._following.checkpoint.state.term != term:
                return  # a claim takes care of them
            if not await self._decide(unused):
                return
            await self._allocator.destroy(unused)
            self._say("late_keys_destroyed", pages=len(unused))

    async def _decide(self, unused: Mapping[bytes, bytes]) -> bool:
        """Whether a record that destroys these keys was read back as effective. If not, the term has ended."""
        value = codec.encode("KeysDestroyed", keys_destroyed(unused))
        group = await self._committer.put_own("KeysDestroyed", value)
        if group is None:
            return False
        await self._following.until(lambda: group.left == 0 or group not in self._unread)
        return group.left == 0

    def _say(self, event: str, **fields: Any) -> None:
        self._world.say({"event": event, "partition": self._partition, **fields})
