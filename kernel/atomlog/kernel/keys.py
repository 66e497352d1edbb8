"""Content keys: finding them (`KeyRing`), and handing out unused ones and destroying others (`KeyAllocator`).

A key id is 9 bytes, page (8 random bytes) ‖ index. A bitmap of a page is 32 bytes, bit i of byte i // 8, least
significant first, for key i. Keys are made in pages that are durable before their first key is used.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from atomlog.kernel.errors import AtomlogError, FatalError, UnavailableError, fail
from atomlog.kernel.ports import Clock, KeyPage, KeyStore, Randomness
from atomlog.kernel.sealing import (
    BITMAP_BYTES,
    KEY_SIZE,
    MASTER_ID_BYTES,
    NONCE_BYTES,
    PAGE_BYTES,
    PAGE_KEYS,
    MasterKey,
    SealBroken,
    forget_ciphers,
    unwrap_page,
    wrap_page,
)

PAGE_ID_BYTES: Final = 8
_PAGES_CACHED_MAX: Final = 2_048  # 16 MiB of keys: half a million atoms
_MADE_CACHED_MAX: Final = 256  # of those that were made here; an atom is mostly changed soon, or not for long
_MISSED_MAX: Final = 1_024
_POLL_MS: Final = 20
_REFILL_PAGES_MAX: Final = 16
_DESTROY_CHUNK: Final = 64  # pages rewritten in one transaction
_DESTROY_TRIES_MAX: Final = 10  # each lost to another owner, which has destroyed some of the same page
_ALL: Final = (1 << PAGE_KEYS) - 1
_NOTHING: Final[Mapping[bytes, bytes]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """An unwrapped page; `destroyed` as an integer, bit i = key i."""

    keys: bytes = field(repr=False)
    destroyed: int


class KeyRing:
    """The content keys that this process can unwrap, with a bounded cache of pages."""

    def __init__(
        self, store: KeyStore, *, master: MasterKey | None, randomness: Randomness, clock: Clock, key_wait_ms: int
    ) -> None:
        self.store = store
        self.randomness = randomness
        self._master = master
        self._clock = clock
        self._wait_us = key_wait_ms * 1_000
        self._pages: OrderedDict[bytes, _Page] = OrderedDict()
        self._missed: OrderedDict[bytes, int] = OrderedDict()
        self._epoch = 0

    @property
    def can_unseal(self) -> bool:
        """False without a master key: then no content can be read or written."""
        return self._master is not None

    def key_now(self, key_id: bytes) -> bytes | None:
        """The key (32 bytes) if its page is cached; None also when it is destroyed: `key` tells why."""
        page = self._cached(key_id[:PAGE_ID_BYTES])
        return None if page is None else _key_of(page, key_id[PAGE_ID_BYTES])

    async def key(self, key_id: bytes) -> bytes:
        """The key (32 bytes) of a key id.

        Raises:
            KEY_UNAVAILABLE: with `retry_after_ms`, the page is not here yet (for `key_wait_ms` from the first
                question for it on); without, the master key is missing or another one.
            PURGED: the key is destroyed.
            CORRUPT: the page never came, or is damaged.
        """
        page_id = key_id[:PAGE_ID_BYTES]
        page = self._cached(page_id) or await self._load(page_id)
        key = _key_of(page, key_id[PAGE_ID_BYTES])
        if key is None:
            raise fail("PURGED", f"the content was erased: its key {key_id.hex()} is destroyed")
        return key

    async def wait_for_key(self, key_id: bytes) -> bytes:
        """As `key`, but waits while the page is not here yet: then CORRUPT instead of a retryable error."""
        while True:
            try:
                return await self.key(key_id)
            except UnavailableError as error:
                if error.code != "KEY_UNAVAILABLE" or error.retry_after_ms is None:
                    raise
                await self._clock.sleep(error.retry_after_ms / 1_000)

    def forget(self, pages: Sequence[bytes]) -> None:
        """Drop cached keys of pages that were rewritten, here or by another process."""
        self._epoch += 1
        for page in pages:
            self._pages.pop(page, None)
        forget_ciphers()

    def require_master(self) -> MasterKey:
        if self._master is None:
            raise fail(
                "KEY_UNAVAILABLE",
                "the content is sealed and there is no master key: name its file with --master-key, "
                "or put it back as master.key into the store's directory",
            )
        return self._master

    def unwrap(self, page: KeyPage) -> bytes:
        """The 8,192 bytes of a stored page's keys. KEY_UNAVAILABLE, CORRUPT as `key`."""
        master = self.require_master()
        if page.master_key_id != master.id:
            raise other_master(page.page, page.master_key_id, master)
        try:
            return unwrap_page(master, page)
        except SealBroken as error:
            raise fail(
                "CORRUPT", f"key page {page.page.hex()} is damaged: {error}; restore the key store from a backup"
            ) from None

    def wrap(self, page: KeyPage, keys: bytes) -> KeyPage:
        """The page with these keys in it, to be put."""
        return wrap_page(self.require_master(), self.randomness.token(NONCE_BYTES), page, keys)

    def remember(self, page: bytes, keys: bytes, destroyed: int) -> None:
        self._pages[page] = _Page(keys=keys, destroyed=destroyed)
        self._pages.move_to_end(page)
        while len(self._pages) > _PAGES_CACHED_MAX:
            self._pages.popitem(last=False)

    def let_go(self, page: bytes) -> None:
        """Take a page out of the cache; who needs it reads it from the store."""
        self._pages.pop(page, None)

    def _cached(self, page_id: bytes) -> _Page | None:
        page = self._pages.get(page_id)
        if page is not None:
            self._pages.move_to_end(page_id)
        return page

    async def _load(self, page_id: bytes) -> _Page:
        self.require_master()
        while True:
            epoch = self._epoch
            stored = await self.store.get(page_id)
            if stored is None:
                raise self._missing(page_id)
            if epoch != self._epoch:  # keys were destroyed meanwhile: what was read may be the old page
                continue
            keys = self.unwrap(stored)
            self._missed.pop(page_id, None)
            self.remember(page_id, keys, _number(stored.destroyed))
            return self._pages[page_id]

    def _missing(self, page_id: bytes) -> AtomlogError:
        now_us = self._clock.monotonic_us()
        left_us = self._wait_us - (now_us - self._missed.setdefault(page_id, now_us))
        while len(self._missed) > _MISSED_MAX:
            self._missed.popitem(last=False)
        if left_us > 0:
            message = f"waiting for key page {page_id.hex()}, which is not here yet"
            return fail("KEY_UNAVAILABLE", message, retry_after_ms=max(1, min(_POLL_MS, left_us // 1_000)))
        return fail("CORRUPT", f"key page {page_id.hex()} is not in the key store; restore the key store from a backup")


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
            KEY_UNAVAILABLE: the master key is missing, or is not the one of the newest page.
        """
        if self._refilling is not None:
            await asyncio.wait((self._refilling,))
        master = self._ring.require_master()
        self._term, self._owner = term, owner
        self._ready.clear()
        outlines = await self._ring.store.outlines(self._partition)
        if outlines and outlines[-1].master_key_id != master.id:
            raise other_master(outlines[-1].page, outlines[-1].master_key_id, master)
        named = {page.page: _number(destroyed.get(page.page)) for page in outlines}
        await self.destroy({page: _bitmap(keys) for page, keys in named.items() if keys})
        self._older = {page.page: _number(page.destroyed) | named[page.page] for page in outlines}
        if fresh_page:
            return
        last = max((n for n, page in enumerate(outlines) if _number(used.get(page.page))), default=0)
        for page in outlines[last:]:
            await self._continue(page.page, _number(used.get(page.page)))

    async def _continue(self, page: bytes, used: int) -> None:
        """Hand out the keys of a page above the highest used one."""
        free = _ALL & ~((1 << used.bit_length()) - 1) & ~self._older[page]
        if not free:
            return
        stored = await self._ring.store.get(page)
        if stored is None:
            raise fail("CORRUPT", f"key page {page.hex()} vanished from the key store")
        keys = self._ring.unwrap(stored)
        free &= ~_number(stored.destroyed)
        self._ring.remember(page, keys, _number(stored.destroyed))
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
        free = {page: _ALL & ~keys & ~_number(used.get(page)) for page, keys in self._older.items()}
        return {page: _bitmap(keys) for page, keys in free.items() if keys}

    async def destroy(self, pages: Mapping[bytes, bytes]) -> None:
        """Rewrite pages without these keys. Only after the KeysDestroyed record that names them is effective.

        What is destroyed already is left alone, so it may be repeated after any failure.
        """
        names = list(pages)
        for at in range(0, len(names), _DESTROY_CHUNK):
            chunk = names[at : at + _DESTROY_CHUNK]
            await self._rewrite({name: _number(pages[name]) for name in chunk})
            self._ring.forget(chunk)
            self._withdraw({name: _number(pages[name]) for name in chunk})

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
        if not keys & ~_number(stored.destroyed):
            return None
        content = bytearray(self._ring.unwrap(stored))
        for index in _indexes(keys):
            content[index * KEY_SIZE : (index + 1) * KEY_SIZE] = bytes(KEY_SIZE)
        destroyed = _bitmap(_number(stored.destroyed) | keys)
        return self._ring.wrap(replace(stored, version=stored.version + 1, destroyed=destroyed), bytes(content))

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


def other_master(page: bytes, expected: bytes, master: MasterKey) -> AtomlogError:
    return fail(
        "KEY_UNAVAILABLE",
        f"key page {page.hex()} needs master key {expected.hex()}, the one given is {master.id.hex()}; "
        "name the right file with --master-key",
    )


def _key_of(page: _Page, index: int) -> bytes | None:
    return None if page.destroyed >> index & 1 else page.keys[index * KEY_SIZE : (index + 1) * KEY_SIZE]


def _keys(page: bytes, keys: bytes, which: int) -> list[tuple[bytes, bytes]]:
    indexes = range(PAGE_KEYS) if which == _ALL else _indexes(which)
    return [(page + bytes((index,)), keys[index * KEY_SIZE : (index + 1) * KEY_SIZE]) for index in indexes]


def _indexes(keys: int) -> Iterator[int]:
    return (index for index in range(PAGE_KEYS) if keys >> index & 1)


def _number(bitmap: bytes | None) -> int:
    return 0 if bitmap is None else int.from_bytes(bitmap, "little")


def _bitmap(keys: int) -> bytes:
    return keys.to_bytes(BITMAP_BYTES, "little")
