"""Unused content keys for an owner, made in pages that are durable before their first key is used; and their end."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from atomlog.kernel.errors import FatalError, fail
from atomlog.kernel.keys import PAGE_ID_BYTES, KeyRing, bitmap_number, other_master
from atomlog.kernel.ports import KeyPage, KeyPageOutline
from atomlog.kernel.sealing import BITMAP_BYTES, KEY_SIZE, MASTER_ID_BYTES, PAGE_BYTES, PAGE_KEYS, MasterKey

_MADE_CACHED_MAX: Final = 256  # of those that were made here; an atom is mostly changed soon, or not for long
_REFILL_PAGES_MAX: Final = 16
_DESTROY_CHUNK: Final = 64  # pages rewritten in one transaction
_DESTROY_TRIES_MAX: Final = 10  # each lost to another owner, which has destroyed some of the same page
_ALL: Final = (1 << PAGE_KEYS) - 1
_NOTHING: Final[Mapping[bytes, bytes]] = {}


class KeyAllocator:
    """Unused keys for the owner of one partition, and the destruction of keys. One writer uses it at a time."""

    def __init__(self, ring: KeyRing, partition: int) -> None:
        self._ring = ring
        self._partition = partition
        self._term = 0
        self._owner: bytes | None = None
        self._ready: deque[tuple[bytes, bytes]] = deque()
        self._older: dict[bytes, int] = {}  # page → keys that are destroyed or kept for use
        self._refilling: asyncio.Task[None] | None = None
        self._refill_pages = 1
        self._made: deque[bytes] = deque()  # pages that stand in the ring's cache although nobody has asked for them

    @property
    def ready(self) -> int:
        """How many durable unused keys `take` can hand out."""
        return len(self._ready)

    async def start(
        self,
        term: int,
        owner: bytes,
        used: Mapping[bytes, bytes],
        fresh_page: bool,
        destroyed: Mapping[bytes, bytes] = _NOTHING,
    ) -> None:
        """Begin a term. `used` and `destroyed`: what effective records use, and what KeysDestroyed ones name.

        Keys after the last used one are handed out next, unless `fresh_page`: then only keys of new pages. It must
        be true while a record that is void, or was cut off, may hold text under a key that no effective record uses:
        until the KeysDestroyed of such a start is effective. Destructions that were cut short are completed.

        Raises:
            KEY_UNAVAILABLE: the master key is missing, or is not that of any page.
        """
        if self._refilling is not None:
            await asyncio.wait((self._refilling,))
        master = self._ring.require_master()
        self._term, self._owner = term, owner
        self._ready.clear()
        outlines = await self._ring.store.outlines(self._partition)
        _check_master(outlines, master)
        await self._complete(outlines, destroyed)
        self._older = {
            page.page: bitmap_number(page.destroyed) | bitmap_number(destroyed.get(page.page)) for page in outlines
        }
        if fresh_page:
            return
        last = max((n for n, page in enumerate(outlines) if bitmap_number(used.get(page.page))), default=0)
        for page in outlines[last:]:
            await self._continue(page.page, bitmap_number(used.get(page.page)))

    async def check_master(self) -> None:
        """KEY_UNAVAILABLE when `start` would raise it."""
        _check_master(await self._ring.store.outlines(self._partition), self._ring.require_master())

    async def complete(self, destroyed: Mapping[bytes, bytes]) -> None:
        """Destroy what effective KeysDestroyed records name and pages still hold. KeysDestroyed comes first."""
        await self._complete(await self._ring.store.outlines(self._partition), destroyed)

    async def _complete(self, outlines: Sequence[KeyPageOutline], destroyed: Mapping[bytes, bytes]) -> None:
        held = {
            page.page: bitmap_number(destroyed.get(page.page)) & ~bitmap_number(page.destroyed) for page in outlines
        }
        await self.destroy({page: _bitmap(keys) for page, keys in held.items() if keys})

    async def late(self, used: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """As `unused`, with the pages of older terms that a former owner still made after `start`."""
        outlines = await self._ring.store.outlines(self._partition)
        for page in outlines:
            if page.maker_term < self._term:
                self._older.setdefault(page.page, bitmap_number(page.destroyed))
        return self.unused(used)

    async def _continue(self, page: bytes, used: int) -> None:
        """Hand out the keys of a page above the highest used one."""
        free = _ALL & ~((1 << used.bit_length()) - 1) & ~self._older[page]
        if not free:
            return
        stored = await self._ring.store.get(page)
        if stored is None:
            raise fail("CORRUPT", f"key page {page.hex()} vanished from the key store")
        keys = self._ring.unwrap(stored)
        free &= ~bitmap_number(stored.destroyed)
        self._ring.remember(page, keys, bitmap_number(stored.destroyed))
        self._older[page] |= free
        self._ready.extend(_keys(page, keys, free))

    async def reserve(self, count: int) -> None:
        """Until `count` keys are ready. Makes the next page ahead of need, so that this seldom waits.

        Raises KEY_UNAVAILABLE (no master key) and what the key store raises.
        """
        if len(self._ready) < count + PAGE_KEYS and self._refilling is None:
            self._begin_refill(count)
        while len(self._ready) < count:
            await asyncio.shield(self._refilling or self._begin_refill(count))

    def take(self) -> tuple[bytes, bytes]:
        """An unused key: (key id, key). RuntimeError when `reserve` was not asked for so many."""
        if not self._ready:
            raise RuntimeError("no key is ready: reserve keys before taking them")
        return self._ready.popleft()

    def give_back(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Keys of `take`, in its order, under which nothing was stored: they are handed out next."""
        self._ready.extendleft(reversed(keys))

    def unused(self, used: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """For a take-over: every key of the pages that stood at `start` that is to be destroyed.

        Those are neither used by an effective record, nor destroyed, nor continued by this term.
        """
        free = {page: _ALL & ~keys & ~bitmap_number(used.get(page)) for page, keys in self._older.items()}
        return {page: _bitmap(keys) for page, keys in free.items() if keys}

    async def destroy(self, pages: Mapping[bytes, bytes]) -> None:
        """Rewrite pages without these keys. Only after the KeysDestroyed record that names them is effective.

        What is destroyed already is left alone, so it may be repeated after any failure.
        """
        names = list(pages)
        for at in range(0, len(names), _DESTROY_CHUNK):
            chunk = names[at : at + _DESTROY_CHUNK]
            await self._rewrite({name: bitmap_number(pages[name]) for name in chunk})
            self._ring.forget(chunk)
            self._withdraw({name: bitmap_number(pages[name]) for name in chunk})

    async def close(self) -> None:
        """Let a page that is being made become durable."""
        if self._refilling is not None:
            await asyncio.wait((self._refilling,))

    async def _rewrite(self, pages: Mapping[bytes, int]) -> None:
        """Store these pages without these keys. Where another owner did so at the same time, add to what it stored."""
        tries_left = _DESTROY_TRIES_MAX
        while rewritten := [page for name, keys in pages.items() if (page := await self._without(name, keys))]:
            tries_left -= 1
            try:
                await self._ring.store.put(rewritten)
                return
            except FatalError:
                stored = [await self._ring.store.get(page.page) for page in rewritten]
                moved = any(
                    now is not None and now.version >= new.version for now, new in zip(stored, rewritten, strict=True)
                )
                if not moved or not tries_left:
                    raise

    async def _without(self, page: bytes, keys: int) -> KeyPage | None:
        stored = await self._ring.store.get(page)
        if stored is None:
            raise fail("CORRUPT", f"key page {page.hex()}, which has keys to destroy, is not in the key store")
        if not keys & ~bitmap_number(stored.destroyed):
            return None
        destroyed = bitmap_number(stored.destroyed) | keys
        # A page of which nothing is left need not be opened: it may be a stranger's, that nobody can open.
        content = bytearray(PAGE_BYTES if destroyed == _ALL else self._ring.unwrap(stored))
        for index in _indexes(keys):
            content[index * KEY_SIZE : (index + 1) * KEY_SIZE] = bytes(KEY_SIZE)
        rewritten = replace(stored, version=stored.version + 1, destroyed=_bitmap(destroyed))
        return self._ring.wrap(rewritten, bytes(content))

    def _withdraw(self, pages: Mapping[bytes, int]) -> None:
        for page in pages.keys() & self._older.keys():
            self._older[page] |= pages[page]
        kept = [item for item in self._ready if not pages.get(item[0][:PAGE_ID_BYTES], 0) >> item[0][PAGE_ID_BYTES] & 1]
        if len(kept) < len(self._ready):
            self._ready = deque(kept)

    def _begin_refill(self, count: int) -> asyncio.Task[None]:
        missing = count + PAGE_KEYS - len(self._ready)
        pages = max(-(-missing // PAGE_KEYS), self._refill_pages)
        # A busy writer syncs less often for its keys; one that writes once leaves few unused.
        self._refill_pages = min(2 * self._refill_pages, _REFILL_PAGES_MAX)
        self._refilling = asyncio.create_task(self._refill(pages))
        self._refilling.add_done_callback(self._refilled)
        return self._refilling

    async def _refill(self, pages: int) -> None:
        made = [self._new_page() for _ in range(pages)]
        await self._ring.store.put([page for page, _ in made])
        for page, keys in made:
            self._ring.remember(page.page, keys, 0)
            self._ready.extend(_keys(page.page, keys, _ALL))
            self._made.append(page.page)
            if len(self._made) > _MADE_CACHED_MAX:
                self._ring.let_go(self._made.popleft())

    def _refilled(self, task: asyncio.Task[None]) -> None:
        """Its failure reaches who waits for it; when nobody does, the next `reserve` tries again."""
        self._refilling = None
        if not task.cancelled():
            task.exception()

    def _new_page(self) -> tuple[KeyPage, bytes]:
        if self._owner is None:
            raise RuntimeError("start a term before reserving keys")
        keys = self._ring.randomness.token(PAGE_BYTES)
        page = KeyPage(
            page=self._ring.randomness.token(PAGE_ID_BYTES),
            version=1,
            maker_partition=self._partition,
            maker_term=self._term,
            maker_owner=self._owner,
            master_key_id=bytes(MASTER_ID_BYTES),
            destroyed=bytes(BITMAP_BYTES),
            wrapped=b"",
        )
        return self._ring.wrap(page, keys), keys


def _check_master(outlines: Sequence[KeyPageOutline], master: MasterKey) -> None:
    """A page of another key may be a stranger's; when all are, it is ours that is wrong."""
    if outlines and all(page.master_key_id != master.id for page in outlines):
        raise other_master(outlines[-1].page, outlines[-1].master_key_id, master)


def _keys(page: bytes, keys: bytes, which: int) -> list[tuple[bytes, bytes]]:
    indexes = range(PAGE_KEYS) if which == _ALL else _indexes(which)
    return [(page + bytes((index,)), keys[index * KEY_SIZE : (index + 1) * KEY_SIZE]) for index in indexes]


def _indexes(keys: int) -> Iterator[int]:
    return (index for index in range(PAGE_KEYS) if keys >> index & 1)


def _bitmap(keys: int) -> bytes:
    return keys.to_bytes(BITMAP_BYTES, "little")
