"""Content keys: finding the one that a revision names. `key_allocator` hands out unused ones and destroys others.

A key id is 9 bytes, page (8 random bytes) ‖ index. A bitmap of a page is 32 bytes, bit i of byte i // 8, least
significant first, for key i. Keys are made in pages that are durable before their first key is used.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.kernel.errors import AtomlogError, UnavailableError, fail
from atomlog.kernel.ports import Clock, KeyPage, KeyStore, Randomness
from atomlog.kernel.sealing import (
    KEY_SIZE,
    NONCE_BYTES,
    MasterKey,
    SealBroken,
    forget_ciphers,
    unwrap_page,
    wrap_page,
)

PAGE_ID_BYTES: Final = 8
_PAGES_CACHED_MAX: Final = 2_048  # 16 MiB of keys: half a million atoms
_MISSED_MAX: Final = 1_024
_POLL_MS: Final = 20


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
        self.waits = 0  # times that somebody waited for a page, and for how long in all
        self.waited_ms = 0
        self._decided: Callable[[bytes], int] = lambda page: 0

    @property
    def can_unseal(self) -> bool:
        """False without a master key: then no content can be read or written."""
        return self._master is not None

    def obey(self, decided: Callable[[bytes], int]) -> None:
        """`decided`: the keys of a page that the log has decided to destroy, as an integer, bit i = key i.

        They are destroyed from then on, whatever a page says that somebody has put back. Who applies such a decision
        tells of it by `forget`.
        """
        self._decided = decided

    def key_now(self, key_id: bytes) -> bytes | None:
        """The key (32 bytes) if its page is cached; None also when it is destroyed: `key` tells why."""
        page = self._cached(key_id[:PAGE_ID_BYTES])
        return None if page is None else _key_of(page, key_id[PAGE_ID_BYTES])

    async def key(self, key_id: bytes) -> bytes:
        """The key (32 bytes) of a key id.

        Raises:
            KEY_UNAVAILABLE: with `retry_after_ms`, the page is not here yet (for `key_wait_ms` from the first
                question for it on); without, the master key is missing or another one.
            PURGED: the key is destroyed, or decided to be.
            CORRUPT: the page never came, or is damaged.
            KAFKA_UNAVAILABLE: whether there is such a page cannot be asked.
        """
        page_id = key_id[:PAGE_ID_BYTES]
        page = self._cached(page_id) or await self._load(page_id, key_id[PAGE_ID_BYTES])
        key = _key_of(page, key_id[PAGE_ID_BYTES])
        if key is None:
            raise fail("PURGED", f"the content was erased: its key {key_id.hex()} is destroyed")
        return key

    async def wait_for_key(self, key_id: bytes) -> bytes:
        """As `key`, but waits while the page is not here yet: then CORRUPT instead of a retryable error."""
        waited = False
        while True:
            try:
                return await self.key(key_id)
            except UnavailableError as error:
                if error.code not in ("KEY_UNAVAILABLE", "KAFKA_UNAVAILABLE") or error.retry_after_ms is None:
                    raise
                self.waits += not waited
                self.waited_ms += error.retry_after_ms
                waited = True
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

    async def _load(self, page_id: bytes, index: int) -> _Page:
        """The page, which may be an empty one where the key at `index` is destroyed."""
        self.require_master()
        while True:
            epoch = self._epoch
            stored = await self.store.get(page_id)
            decided = self._decided(page_id)
            if stored is None and decided >> index & 1:
                return _Page(keys=b"", destroyed=decided)
            if stored is None:
                raise self._missing(page_id)
            if epoch != self._epoch:  # keys were destroyed meanwhile: what was read may be the old page
                continue
            keys = self.unwrap(stored)
            self._missed.pop(page_id, None)
            self.remember(page_id, keys, bitmap_number(stored.destroyed) | decided)
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


def other_master(page: bytes, expected: bytes, master: MasterKey) -> AtomlogError:
    return fail(
        "KEY_UNAVAILABLE",
        f"key page {page.hex()} needs master key {expected.hex()}, the one given is {master.id.hex()}; "
        "name the right file with --master-key",
    )


def _key_of(page: _Page, index: int) -> bytes | None:
    return None if page.destroyed >> index & 1 else page.keys[index * KEY_SIZE : (index + 1) * KEY_SIZE]


def bitmap_number(bitmap: bytes | None) -> int:
    """A bitmap as an integer, bit i = key i; 0 for none."""
    return 0 if bitmap is None else int.from_bytes(bitmap, "little")
