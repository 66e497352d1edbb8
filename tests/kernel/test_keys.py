"""The ring finds keys and says why it cannot; the allocator hands each key out once and destroys what is unused."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel import key_allocator
from atomlog.kernel import keys as keys_module
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.keystore import MemoryKeyStore, SqliteKeyStore
from atomlog.kernel.ports import KeyPage, KeyStore
from atomlog.kernel.sealing import unwrap_page
from atomlog.kernel.system import ThreadWorkers
from tests.support.sealed import (
    MASTER,
    OTHER_MASTER,
    OWNER,
    FaultyKeyStore,
    InlineWorkers,
    SleptClock,
    bitmap,
    indexes_of,
    ring_of,
)

KeyId = bytes


async def started(
    ring: KeyRing, term: int = 1, used: Mapping[bytes, bytes] | None = None, **rest: object
) -> KeyAllocator:
    allocator = KeyAllocator(ring, 0)
    await allocator.start(term, OWNER, used or {}, **{"fresh_page": False, **rest})  # type: ignore[arg-type]
    return allocator


async def some_keys(ring: KeyRing, count: int) -> list[tuple[KeyId, bytes]]:
    allocator = await started(ring)
    await allocator.reserve(count)
    taken = [allocator.take() for _ in range(count)]
    await allocator.close()
    return taken


def used_by(*key_ids: KeyId) -> dict[bytes, bytes]:
    pages: dict[bytes, set[int]] = {}
    for key_id in key_ids:
        pages.setdefault(key_id[:8], set()).add(key_id[8])
    return {page: bitmap(*indexes) for page, indexes in pages.items()}


def key_ids(pages: Mapping[bytes, bytes]) -> set[KeyId]:
    return {page + bytes((index,)) for page, raw in pages.items() for index in indexes_of(raw)}


def error_of(ring: KeyRing, key_id: KeyId) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        asyncio.run(ring.key(key_id))
    return caught.value


# -- the ring


def test_a_key_is_found_by_another_process_and_then_at_once() -> None:
    store = MemoryKeyStore()
    [(key_id, key)] = asyncio.run(some_keys(ring_of(store), 1))
    ring = ring_of(store)
    assert ring.key_now(key_id) is None
    assert asyncio.run(ring.key(key_id)) == key
    assert ring.key_now(key_id) == key
    assert len(key) == 32


def test_the_maker_of_a_key_has_it_at_once() -> None:
    ring = ring_of(MemoryKeyStore())
    [(key_id, key)] = asyncio.run(some_keys(ring, 1))
    assert ring.key_now(key_id) == key


def test_the_keys_of_a_page_are_all_different() -> None:
    taken = asyncio.run(some_keys(ring_of(MemoryKeyStore()), 600))
    assert len({key_id for key_id, _ in taken}) == len({key for _, key in taken}) == 600


def test_without_a_master_key_a_key_is_unavailable_and_the_way_out_is_told() -> None:
    store = MemoryKeyStore()
    [(key_id, _)] = asyncio.run(some_keys(ring_of(store), 1))
    ring = ring_of(store, master=None)
    assert not ring.can_unseal
    error = error_of(ring, key_id)
    assert (error.code, error.retry_after_ms) == ("KEY_UNAVAILABLE", None)
    assert "--master-key" in error.message


def test_with_another_master_key_both_are_named() -> None:
    store = MemoryKeyStore()
    [(key_id, _)] = asyncio.run(some_keys(ring_of(store), 1))
    error = error_of(ring_of(store, master=OTHER_MASTER), key_id)
    assert (error.code, error.retry_after_ms) == ("KEY_UNAVAILABLE", None)
    assert MASTER.id.hex() in error.message
    assert OTHER_MASTER.id.hex() in error.message


@pytest.mark.parametrize("change", [{"maker_term": 9}, {"destroyed": bitmap(1)}, {"wrapped": bytes(8_220)}])
def test_a_damaged_page_is_corrupt_and_named(change: dict[str, bytes]) -> None:
    store = MemoryKeyStore()
    [(key_id, _)] = asyncio.run(some_keys(ring_of(store), 1))
    store._pages[key_id[:8]] = replace(store._pages[key_id[:8]], **change)  # type: ignore[arg-type]
    error = error_of(ring_of(store), key_id)
    assert error.code == "CORRUPT"
    assert key_id[:8].hex() in error.message


def test_a_page_that_is_not_here_yet_is_waited_for_and_then_missing() -> None:
    clock = SleptClock()
    ring = ring_of(MemoryKeyStore(), clock=clock, key_wait_ms=50)
    first = error_of(ring, b"somepage\x01")
    assert first.code == "KEY_UNAVAILABLE"
    assert first.retry_after_ms is not None
    clock.us += 49_999
    assert error_of(ring, b"somepage\x02").code == "KEY_UNAVAILABLE"
    assert error_of(ring, b"nextpage\x02").code == "KEY_UNAVAILABLE"
    clock.us += 1
    missing = error_of(ring, b"somepage\x01")
    assert missing.code == "CORRUPT"
    assert b"somepage".hex() in missing.message
    assert error_of(ring, b"nextpage\x02").code == "KEY_UNAVAILABLE"


def test_waiting_for_a_page_ends_when_it_comes() -> None:
    made = MemoryKeyStore()
    [(key_id, key)] = asyncio.run(some_keys(ring_of(made), 1))
    store, clock = MemoryKeyStore(), SleptClock()

    async def late_sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        if len(clock.slept) == 3:
            await store.put([made._pages[key_id[:8]]])

    clock.sleep = late_sleep  # type: ignore[method-assign]
    assert asyncio.run(ring_of(store, clock=clock).wait_for_key(key_id)) == key
    assert len(clock.slept) == 3


def test_waiting_for_a_page_that_never_comes_ends_after_key_wait_ms() -> None:
    clock = SleptClock()
    with pytest.raises(AtomlogError, match="CORRUPT"):
        asyncio.run(ring_of(MemoryKeyStore(), clock=clock, key_wait_ms=70).wait_for_key(b"somepage\x01"))
    assert round(sum(clock.slept) * 1_000) == 70


def test_waiting_does_not_help_where_the_master_key_is_missing() -> None:
    clock = SleptClock()
    with pytest.raises(AtomlogError, match="KEY_UNAVAILABLE"):
        asyncio.run(ring_of(MemoryKeyStore(), master=None, clock=clock).wait_for_key(b"somepage\x01"))
    assert clock.slept == []


def test_cached_pages_are_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "_PAGES_CACHED_MAX", 2)
    store = MemoryKeyStore()
    taken = asyncio.run(some_keys(ring_of(store), 700))
    a, b, c = taken[0][0], taken[300][0], taken[600][0]
    ring = ring_of(store)
    for key_id in (a, b, a, c):
        asyncio.run(ring.key(key_id))
    assert [ring.key_now(key_id) is None for key_id in (a, b, c)] == [False, True, False]


def test_a_maker_keeps_few_of_its_pages_and_reads_an_older_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_allocator, "_MADE_CACHED_MAX", 2)
    monkeypatch.setattr(key_allocator, "_REFILL_PAGES_MAX", 1)
    ring = ring_of(MemoryKeyStore())
    taken = asyncio.run(some_keys(ring, 256 * 6))
    (oldest, key), (newest, _) = taken[0], taken[-1]
    assert ring.key_now(newest) is not None
    assert ring.key_now(oldest) is None
    assert asyncio.run(ring.key(oldest)) == key
    assert ring.key_now(oldest) == key


def test_a_page_read_before_a_destruction_is_not_cached_after_it() -> None:
    """The read is answered by the old page; meanwhile the keys are destroyed."""
    inner = MemoryKeyStore()
    owner = ring_of(inner)
    [(key_id, _)] = asyncio.run(some_keys(owner, 1))
    store = FaultyKeyStore(inner)
    ring = ring_of(store)
    page = key_id[:8]

    def meanwhile() -> None:
        store.before_get = None
        old = inner._pages[page]
        inner._pages[page] = owner.wrap(replace(old, version=2, destroyed=bitmap(key_id[8])), bytes(8_192))
        ring.forget([page])

    store.before_get = meanwhile
    assert error_of(ring, key_id).code == "PURGED"
    assert ring.key_now(key_id) is None


# -- handing keys out


def test_keys_are_durable_before_they_are_handed_out() -> None:
    store = MemoryKeyStore()

    async def work() -> None:
        allocator = await started(ring_of(store))
        await allocator.reserve(300)
        for _ in range(300):
            key_id, key = allocator.take()
            assert await ring_of(store).key(key_id) == key
        await allocator.close()

    asyncio.run(work())


def test_a_key_that_was_not_reserved_is_not_handed_out() -> None:
    async def work() -> None:
        allocator = await started(ring_of(MemoryKeyStore()))
        with pytest.raises(RuntimeError, match="reserve"):
            allocator.take()

    asyncio.run(work())


def test_keys_are_not_reserved_before_a_term() -> None:
    with pytest.raises(RuntimeError, match="start a term"):
        asyncio.run(KeyAllocator(ring_of(MemoryKeyStore()), 0).reserve(1))


def test_a_spare_page_is_always_ready() -> None:
    async def work() -> None:
        store = FaultyKeyStore()
        allocator = await started(ring_of(store))
        for _ in range(2_000):
            await allocator.reserve(1)
            allocator.take()
            await allocator.close()
            assert allocator.ready >= 255
        assert sum(store.puts) <= 2_000 // 256 + 16 + 2

    asyncio.run(work())


def test_a_reservation_that_is_covered_does_not_wait_for_the_next_page() -> None:
    class Blocked(FaultyKeyStore):
        gate: asyncio.Event

        async def put(self, pages: object) -> None:
            await self.gate.wait()
            await super().put(pages)  # type: ignore[arg-type]

    async def work() -> None:
        store = Blocked()
        store.gate = asyncio.Event()
        store.gate.set()
        allocator = await started(ring_of(store))
        await allocator.reserve(1)
        store.gate.clear()
        left = allocator.ready
        for _ in range(left):
            reserving = allocator.reserve(1)
            with pytest.raises(StopIteration):
                reserving.send(None)  # it ends without ever waiting
            allocator.take()
        waiting = asyncio.create_task(allocator.reserve(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        store.gate.set()
        await waiting
        assert allocator.ready >= 1

    asyncio.run(work())


def test_a_failed_refill_is_told_to_who_needs_it_and_tried_again() -> None:
    async def work() -> None:
        store = FaultyKeyStore()
        allocator = await started(ring_of(store))
        await allocator.reserve(1)
        store.put_error = fail("OVERLOADED", "no space left")
        while allocator.ready:
            await allocator.reserve(1)
            allocator.take()
            await allocator.close()
        for _ in range(2):
            with pytest.raises(AtomlogError, match="OVERLOADED"):
                await allocator.reserve(1)
        store.put_error = None
        await allocator.reserve(1)
        allocator.take()

    asyncio.run(work())


def test_a_failed_refill_that_nobody_waits_for_is_not_reported_as_lost() -> None:
    async def work() -> list[dict[str, object]]:
        lost: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        store = FaultyKeyStore()
        allocator = await started(ring_of(store))
        await allocator.reserve(256)
        for _ in range(256):
            allocator.take()
        store.put_error = OSError("disk")
        await allocator.reserve(1)
        await allocator.close()
        gc.collect()
        return lost

    assert asyncio.run(work()) == []


def test_a_reservation_that_is_given_up_does_not_stop_the_refill() -> None:
    async def work() -> None:
        allocator = await started(ring_of(MemoryKeyStore()))
        waiting = asyncio.create_task(allocator.reserve(1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await allocator.close()
        assert waiting.cancelled()
        assert allocator.ready >= 1

    asyncio.run(work())


def test_a_writer_needs_the_master_key_of_the_newest_page() -> None:
    store = MemoryKeyStore()
    asyncio.run(some_keys(ring_of(store), 1))
    with pytest.raises(AtomlogError, match=MASTER.id.hex()) as caught:
        asyncio.run(started(ring_of(store, master=OTHER_MASTER), fresh_page=True))
    assert caught.value.code == "KEY_UNAVAILABLE"
    with pytest.raises(AtomlogError, match="KEY_UNAVAILABLE"):
        asyncio.run(started(ring_of(store, master=None)))


# -- the next term


def test_the_next_term_continues_after_the_highest_used_key() -> None:
    store = MemoryKeyStore()
    taken = [key_id for key_id, _ in asyncio.run(some_keys(ring_of(store), 10))]
    before = len(store._pages)

    async def work() -> None:
        used = used_by(taken[0], taken[1], taken[4])
        allocator = await started(ring_of(store), 2, used)
        await allocator.reserve(1)
        assert allocator.take()[0] == taken[5]
        assert key_ids(allocator.unused(used)) == {taken[2], taken[3]}
        assert len(store._pages) == before

    asyncio.run(work())


def test_processes_that_write_once_do_not_use_up_pages() -> None:
    """The spare page of one process is the spare page of the next, and nothing is destroyed between them."""
    store = MemoryKeyStore()
    used: list[KeyId] = []

    async def process(term: int) -> None:
        allocator = await started(ring_of(store, seed=f"term {term}"), term, used_by(*used))
        assert allocator.unused(used_by(*used)) == {}
        await allocator.reserve(1)
        used.append(allocator.take()[0])
        await allocator.close()

    for term in range(1, 601):
        asyncio.run(process(term))
    assert len(set(used)) == 600
    assert len(store._pages) == 4


def test_after_an_unclean_end_a_fresh_page_starts_and_every_unused_key_is_named() -> None:
    store = MemoryKeyStore()
    taken = [key_id for key_id, _ in asyncio.run(some_keys(ring_of(store), 10))]
    old = {page + bytes((index,)) for page in store._pages for index in range(256)}

    async def work() -> None:
        used = used_by(taken[0], taken[5])
        allocator = await started(ring_of(store, seed="2"), 2, used, fresh_page=True)
        await allocator.reserve(1)
        assert allocator.take()[0] not in old
        unused = allocator.unused(used)
        assert key_ids(unused) == old - {taken[0], taken[5]}
        await allocator.destroy(unused)
        assert allocator.unused(used) == {}

    asyncio.run(work())


def test_a_clean_start_after_a_fresh_one_goes_on_where_it_left_off() -> None:
    store = MemoryKeyStore()
    taken = [key_id for key_id, _ in asyncio.run(some_keys(ring_of(store), 10))]
    used = used_by(*taken[:3])

    async def work() -> None:
        fresh = await started(ring_of(store, seed="2"), 2, used, fresh_page=True)
        await fresh.reserve(1)
        await fresh.close()
        expected = fresh.take()[0]
        await fresh.destroy(fresh.unused(used))
        clean = await started(ring_of(store, seed="3"), 3, used)
        assert clean.unused(used) == {}
        assert clean.take()[0] == expected

    asyncio.run(work())


def test_pages_of_another_partition_are_left_alone() -> None:
    store = MemoryKeyStore()

    async def work() -> None:
        other = KeyAllocator(ring_of(store, seed="other"), 1)
        await other.start(1, OWNER, {}, fresh_page=False)
        await other.reserve(1)
        mine = await started(ring_of(store), 5, fresh_page=True)
        assert mine.unused({}) == {}
        assert mine.ready == 0

    asyncio.run(work())


def test_starting_again_in_one_process_drops_what_was_ready() -> None:
    """After an append in doubt: its keys may be in a void record."""

    async def work() -> None:
        ring = ring_of(MemoryKeyStore())
        allocator = await started(ring)
        await allocator.reserve(3)
        first, doubtful = allocator.take()[0], allocator.take()[0]
        await allocator.start(2, OWNER, used_by(first), fresh_page=True)
        assert allocator.ready == 0
        assert doubtful in key_ids(allocator.unused(used_by(first)))
        await allocator.reserve(1)
        assert allocator.take()[0][:8] != first[:8]

    asyncio.run(work())


# -- destroying


def test_a_destroyed_key_is_gone_and_its_neighbours_stay() -> None:
    store = MemoryKeyStore()
    ring = ring_of(store)
    taken = asyncio.run(some_keys(ring, 3))

    async def work() -> None:
        allocator = await started(ring, 2, used_by(*(key_id for key_id, _ in taken)))
        await allocator.destroy(used_by(taken[1][0]))

    asyncio.run(work())
    for reader in (ring, ring_of(store)):
        assert asyncio.run(reader.key(taken[0][0])) == taken[0][1]
        assert asyncio.run(reader.key(taken[2][0])) == taken[2][1]
        assert error_of(reader, taken[1][0]).code == "PURGED"
        assert reader.key_now(taken[1][0]) is None
    page = store._pages[taken[1][0][:8]]
    assert (page.version, indexes_of(page.destroyed)) == (2, {1})
    assert unwrap_page(MASTER, page)[32:64] == bytes(32)


def test_destroying_twice_changes_nothing() -> None:
    store = FaultyKeyStore()
    taken = asyncio.run(some_keys(ring_of(store), 3))

    async def work() -> None:
        allocator = await started(ring_of(store, seed="2"), 2)
        await allocator.destroy(used_by(taken[1][0]))
        puts = list(store.puts)
        await allocator.destroy(used_by(taken[1][0]))
        assert store.puts == puts

    asyncio.run(work())


def test_two_owners_that_destroy_keys_of_one_page_at_once_destroy_both() -> None:
    class Overtaken(MemoryKeyStore):
        """Another owner's put comes before the first one of this one."""

        async def put(self, pages: Sequence[KeyPage]) -> None:
            if pages[0].version > 1 and not met:
                met.append(pages)
                await other.destroy(used_by(taken[2][0]))
            await super().put(pages)

    store, met = Overtaken(), list[Sequence[KeyPage]]()
    taken: list[tuple[KeyId, bytes]] = []
    other = KeyAllocator(ring_of(store), 0)

    async def run() -> None:
        nonlocal other
        taken.extend(await some_keys(ring_of(store), 3))
        other = await started(ring_of(store), 2)
        await (await started(ring_of(store), 3)).destroy(used_by(taken[1][0]))

    asyncio.run(run())
    assert met
    page = store._pages[taken[0][0][:8]]
    assert (page.version, indexes_of(page.destroyed)) == (3, {1, 2})


def test_a_key_that_is_ready_is_not_handed_out_once_destroyed() -> None:
    async def work() -> None:
        allocator = await started(ring_of(MemoryKeyStore()))
        await allocator.reserve(3)
        page = allocator.take()[0][:8]
        await allocator.destroy({page: bitmap(1)})
        assert allocator.take()[0] == page + b"\x02"

    asyncio.run(work())


def test_destroying_a_key_of_this_term_names_none_of_its_neighbours() -> None:
    async def work() -> None:
        allocator = await started(ring_of(MemoryKeyStore()))
        await allocator.reserve(3)
        await allocator.destroy({allocator.take()[0][:8]: bitmap(0)})
        assert allocator.unused({}) == {}

    asyncio.run(work())


def test_a_page_to_destroy_that_is_missing_is_corrupt() -> None:
    async def work() -> None:
        allocator = await started(ring_of(MemoryKeyStore()))
        with pytest.raises(AtomlogError, match=b"lostpage".hex()) as caught:
            await allocator.destroy({b"lostpage": bitmap(1)})
        assert caught.value.code == "CORRUPT"

    asyncio.run(work())


def test_a_destruction_that_was_cut_short_is_completed_by_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_allocator, "_DESTROY_CHUNK", 1)
    inner = MemoryKeyStore()
    taken = [key_id for key_id, _ in asyncio.run(some_keys(ring_of(inner), 600))]
    used = used_by(*taken[:2])

    class DiesAtTheSecondPut(FaultyKeyStore):
        async def put(self, pages: object) -> None:
            if self.puts:
                self.put_error = OSError("died")
            await super().put(pages)  # type: ignore[arg-type]

    async def die() -> Mapping[bytes, bytes]:
        allocator = await started(ring_of(DiesAtTheSecondPut(inner), seed="2"), 2, used, fresh_page=True)
        unused = allocator.unused(used)
        assert len(unused) >= 3
        with pytest.raises(OSError, match="died"):
            await allocator.destroy(unused)
        assert len(_destroyed(inner)) == 1
        return unused

    named = asyncio.run(die())

    async def again() -> None:
        allocator = await started(ring_of(inner, seed="3"), 3, used, destroyed=named)
        assert allocator.unused(used) == {}
        assert allocator.ready == 0

    asyncio.run(again())
    assert _destroyed(inner) == named


def _destroyed(store: MemoryKeyStore) -> dict[bytes, bytes]:
    return {page.page: page.destroyed for page in store._pages.values() if any(page.destroyed)}


def test_destroyed_keys_leave_nothing_in_the_file(tmp_path: Path) -> None:
    """The wrapped page is looked for in the raw file: with the old bytes and the master key it could be opened."""
    path = tmp_path / "keys.sqlite"

    async def work() -> None:
        store = SqliteKeyStore(str(path), InlineWorkers())
        ring = ring_of(store)
        allocator = await started(ring)
        await allocator.reserve(300)
        taken = [allocator.take()[0] for _ in range(300)]
        await allocator.close()
        old = {page: await _wrapped(store, page) for page in {key_id[:8] for key_id in taken}}
        assert all(_is_in(wrapped, path) for wrapped in old.values())
        victim = taken[0][:8]
        await allocator.destroy(used_by(*(key_id for key_id in taken if key_id[:8] == victim)))
        assert {page: _is_in(wrapped, path) for page, wrapped in old.items()} == {page: page != victim for page in old}
        assert [file.name for file in tmp_path.iterdir()] == ["keys.sqlite"]
        await store.close()

    asyncio.run(work())


async def _wrapped(store: KeyStore, page: bytes) -> bytes:
    found = await store.get(page)
    assert found is not None
    return found.wrapped


def _is_in(wrapped: bytes, path: Path) -> bool:
    raw = path.read_bytes()
    return any(wrapped[at : at + 16] in raw for at in range(0, len(wrapped) - 16, 16))


# -- over many lives


@given(
    lives=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["effective", "void", "unused"]), max_size=8),
            st.integers(0, 300),  # keys that are used up at once, so that pages end
            st.sampled_from(["clean", "void record", "killed before destroying", "killed while destroying"]),
        ),
        max_size=8,
    )
)
def test_no_key_serves_two_records_and_no_void_record_can_be_read(
    lives: list[tuple[list[str], int, str]],
) -> None:
    """Effective records keep their keys for ever; those of void records are dead after the next take-over."""
    store = FaultyKeyStore()
    effective: dict[KeyId, bytes] = {}
    void: set[KeyId] = set()
    named: dict[bytes, int] = {}  # what effective KeysDestroyed records name

    async def live(term: int, uses: list[str], bulk: int, end: str) -> None:
        used = used_by(*effective)
        allocator = KeyAllocator(ring_of(store, seed=f"life {term}"), 0)
        destroyed = {page: keys.to_bytes(32, "little") for page, keys in named.items()}
        dirty = bool(void - {key for page, raw in destroyed.items() for key in key_ids({page: raw})})
        await allocator.start(term, OWNER, used, fresh_page=dirty, destroyed=destroyed)
        unused = allocator.unused(used)
        assert not key_ids(unused) & effective.keys()
        if end != "killed before destroying":
            for page, raw in unused.items():
                named[page] = named.get(page, 0) | int.from_bytes(raw, "little")
            if end == "killed while destroying":
                store.put_error = OSError("killed")
                if unused:
                    with pytest.raises(OSError, match="killed"):
                        await allocator.destroy(unused)
                store.put_error = None
                return
            await allocator.destroy(unused)
            for key_id in void:
                with pytest.raises(AtomlogError, match="PURGED"):
                    await ring_of(store).key(key_id)
        await allocator.reserve(len(uses) + bulk)
        for use in ["effective"] * bulk + uses:
            key_id, key = allocator.take()
            assert key_id not in effective
            assert key_id not in void
            if use == "effective":
                effective[key_id] = key
            elif use == "void" and end != "clean":
                void.add(key_id)
        await allocator.close()

    async def check() -> None:
        ring = ring_of(store)
        for key_id, key in effective.items():
            assert await ring.key(key_id) == key

    for term, (uses, bulk, end) in enumerate(lives, start=1):
        asyncio.run(live(term, uses, bulk, end))
    asyncio.run(check())


def test_pages_are_made_in_threads_while_keys_are_taken(tmp_path: Path) -> None:
    async def work() -> set[KeyId]:
        workers = ThreadWorkers(2)
        store = SqliteKeyStore(str(tmp_path / "keys.sqlite"), workers)
        allocator = await started(ring_of(store))
        taken: set[KeyId] = set()
        for count in (1, 1_000, 7, 600, 1):
            await allocator.reserve(count)
            taken |= {allocator.take()[0] for _ in range(count)}
        await allocator.close()
        await store.close()
        workers.close()
        return taken

    assert len(asyncio.run(work())) == 1_609
