"""Small worlds for tests about keys and content: a clock that moves only when slept, randomness from a counter."""

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeVar

from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.ports import KeyPage, KeyPageOutline, KeyStore
from atomlog.kernel.sealing import MasterKey

T = TypeVar("T")
MASTER = MasterKey(key=bytes(range(32)))
OTHER_MASTER = MasterKey(key=bytes(range(1, 33)))
OWNER = b"o" * 16
FAMILY = "👨‍👩‍👧"  # three people joined by two zero-width joiners
HOSTILE_TEXTS = [
    "",
    "plain",
    "NUL \0 inside",
    FAMILY,
    "e\u0301te\u0301",  # NFD
    unicodedata.normalize("NFD", "がぎぐ"),
    "\u202eright to left\u202c שלום مرحبا",
    "\ufeffbyte order mark",
    "\u1100\u1161\u11a8",  # Hangul jamo, composed by NFC
    "\u2126 \u212b",  # ohm and angstrom signs, replaced by NFC
    "a\u0323\u0307",  # marks that NFC orders
    "\U0010ffff\uffff\ue000",
    "\r\n\t\u2028\u2029\x85\x7f",
]


class SleptClock:
    """Stands still except while somebody sleeps."""

    def __init__(self) -> None:
        self.us = 1_000_000
        self.slept: list[float] = []

    def now_us(self) -> int:
        return self.us

    def monotonic_us(self) -> int:
        return self.us

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.us += round(seconds * 1_000_000)


class CountedRandomness:
    """Different for every call, the same in every run."""

    def __init__(self, seed: str = "") -> None:
        self._seed = seed.encode()
        self._calls = 0

    def token(self, size: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(self._seed + self._calls.to_bytes(8, "big")).digest(size)


class InlineWorkers:
    """Runs the call at once."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()


class FaultyKeyStore:
    """A key store of which puts or gets fail while an error is set; counts what is asked."""

    def __init__(self, inner: KeyStore | None = None) -> None:
        self.inner = inner or MemoryKeyStore()
        self.put_error: Exception | None = None
        self.puts: list[int] = []
        self.gets: list[bytes] = []
        self.before_get: Callable[[], None] | None = None

    async def put(self, pages: Sequence[KeyPage]) -> None:
        if self.put_error is not None:
            raise self.put_error
        self.puts.append(len(pages))
        await self.inner.put(pages)

    async def get(self, page: bytes) -> KeyPage | None:
        self.gets.append(page)
        found = await self.inner.get(page)
        if self.before_get is not None:
            self.before_get()
        return found

    async def outlines(self, partition: int) -> Sequence[KeyPageOutline]:
        return await self.inner.outlines(partition)

    async def repair(self, partition: int) -> int:
        return await self.inner.repair(partition)

    async def close(self) -> None:
        await self.inner.close()


def ring_of(
    store: KeyStore,
    *,
    master: MasterKey | None = MASTER,
    clock: SleptClock | None = None,
    seed: str = "ring",
    key_wait_ms: int = 100,
) -> KeyRing:
    return KeyRing(
        store,
        master=master,
        randomness=CountedRandomness(seed),
        clock=clock or SleptClock(),
        key_wait_ms=key_wait_ms,
    )


def bitmap(*indexes: int) -> bytes:
    """A 256-bit map of these keys."""
    return sum(1 << index for index in set(indexes)).to_bytes(32, "little")


def indexes_of(raw: bytes) -> set[int]:
    return {index for index in range(256) if raw[index // 8] >> index % 8 & 1}
