"""Receipts: what they hold, where they are kept, and the page they render again."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel.blobs import MemoryBlobStore
from atomlog.kernel.content import ContentOpener, seal_content
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.keystore import MemoryKeyStore
from atomlog.kernel.ports import KeyStore
from atomlog.kernel.settings import Settings
from atomlog.projections.read import reader
from atomlog.projections.read.journal import BUFFERED_MAX, DAY_US, Journal, merge_inputs
from atomlog.projections.read.receipts import from_dict, receipt_from_bytes, score_bits, score_of
from atomlog.projections.read.selectors import (
    ByIds,
    Groups,
    History,
    Members,
    Recall,
    Relations,
    Selector,
    SlotsOf,
    parse_selector,
)
from atomlog.projections.read.shelf import Kept, KeptReceipt, ReadOnlyShelf, SqliteShelf
from atomlog.schemas.revision import ReadRange, ReadVersion, decode_clear, encode_clear, join_sealed, sealed_of
from tests.projections.read.worlds import NAMES, NewWorld, World, atoms_of
from tests.support.batches import LogBuilder, atom_id, create, member, retire, revise, slot
from tests.support.sealed import OWNER, CountedRandomness, InlineWorkers, ring_of


def filled(world: World) -> list[Selector]:
    """Something of everything, and a selector for each kind of read."""
    log = world.log0
    log.batch("notes", [create("p", schema="collection", value={"title": "tea"}), create("q", schema="collection")])
    log.batch("notes", [create(f"d{n}", value={"text": f"tea {n}", "n": n / 3}) for n in range(6)])
    log.batch("notes", [member(f"m{n}", group="p", of=f"d{n}", order_key=b"%d" % (9 - n)) for n in range(6)])
    log.batch("notes", [member("mq", group="q", of="d1"), create("s", slots=[slot("about", "d1"), slot("by", "p")])])
    log.batch("notes", [revise("d0", value="new"), retire("d5"), retire("m4")])
    return [
        ByIds(ids=tuple(map(atom_id, ("d5", "d0", "s", "p")))),
        ByIds(ids=(atom_id("d0"),), revision=world.log0.heads[atom_id("d0")].previous),
        History(atom=atom_id("d0")),
        Relations(target=atom_id("d1")),
        SlotsOf(atom=atom_id("s")),
        Members(group=atom_id("p"), not_=(atom_id("q"),)),
        Groups(member=atom_id("d1")),
        Recall(text="tea 3", context="more"),
    ]


async def refused(call: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        await call
    return caught.value


def test_replay_gives_the_same_bytes_live_restarted_rebuilt_and_with_only_ids(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world()
        selectors = filled(world)
        await world.follow()
        given = [page for selector in selectors for page in await world.pages(selector, limits=[3])]
        log = world.log0
        log.batch("notes", [revise("d1", value="later"), retire("p"), retire("m0"), revise("d5", value="back")])
        await world.follow()
        rebuilt = new_world(logs=world.logs, shelf=world.shelf)
        await rebuilt.follow()
        for here in (world, rebuilt):
            here.removed = set(NAMES[1:])
        await world.journal.flush()
        for here in (world, rebuilt):
            here.open()
            for page in given:
                again = await here.reader.replay(page.receipt.receipt)
                assert again.body() == page.body()
                assert again.receipt == page.receipt
                assert again.atoms == page.atoms
                assert again.continuation is None

    asyncio.run(run())


def test_a_page_that_renders_otherwise_is_corrupt_and_never_shown(world: World) -> None:
    async def run() -> None:
        world.log0.batch("notes", [create("a", value="one")])
        await world.follow()
        page = await world.read(ByIds(ids=(atom_id("a"),)))
        other = replace(page.receipt, receipt=world.journal.new_id(), body_sha256=bytes(32))
        elsewhere = replace(page.receipt, receipt=world.journal.new_id(), log_id=b"x" * 16)
        strange = replace(
            page.receipt,
            receipt=world.journal.new_id(),
            rows=tuple(replace(row, revision=b"r" * 16) for row in page.receipt.rows),
        )
        for receipt in (other, elsewhere, strange):
            await world.journal.record(receipt, b"{}")
        assert (await refused(world.reader.replay(other.receipt))).code == "CORRUPT"
        assert (await refused(world.reader.replay(strange.receipt))).code == "CORRUPT"
        assert (await refused(world.reader.replay(elsewhere.receipt))).code == "LOG_MISMATCH"

    asyncio.run(run())


def test_replay_waits_for_ids_and_then_says_that_it_lags(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world()
        filled(world)
        await world.follow()
        page = await world.read(ByIds(ids=(atom_id("d0"),)))
        await world.journal.flush()
        behind = new_world(logs=world.logs, shelf=world.shelf)
        behind.apply("ids", until=3)
        assert (await refused(behind.reader.replay(page.receipt.receipt))).code == "INDEX_LAGGING"
        behind.come_along()
        assert (await behind.reader.replay(page.receipt.receipt)).body() == page.body()

    asyncio.run(run())


def test_verify_finds_an_exact_read_again_and_measures_a_search(world: World) -> None:
    async def run() -> None:
        selectors = filled(world)
        await world.follow()
        given = [page for selector in selectors for page in await world.pages(selector, limits=[2, 1])]
        world.log0.batch("notes", [member("m9", group="p", of="d4"), revise("d2", value="tea 3"), retire("m1")])
        await world.follow()
        for page in given:
            found = await world.reader.verify(page.receipt.receipt)
            assert found.equal
            assert found.exact == (page.receipt.scoring is None)
            assert (found.rows, found.found, found.overlap) == (len(page.atoms), len(page.atoms), 1.0)
        assert found.to_dict()["receipt"] == format_id(page.receipt.receipt)

    asyncio.run(run())


def test_verify_reports_what_an_index_lost_or_made_up(world: World) -> None:
    async def run() -> None:
        filled(world)
        await world.follow()
        page = await world.read(Members(group=atom_id("p")))
        known = {row.atom: row for row in page.receipt.rows}
        dropped, kept = page.receipt.rows[0], page.receipt.rows[1:]
        short = replace(page.receipt, receipt=world.journal.new_id(), rows=kept)
        _, search = await world.journal.receipt(page.receipt.receipt)
        await world.journal.record(short, search)
        found = await world.reader.verify(short.receipt)
        assert (found.exact, found.equal, found.rows) == (True, False, len(known) - 1)
        assert len(found.added) == 1
        assert found.missing == (page.receipt.rows[-1].revision,)
        assert found.added == (dropped.revision,)
        assert found.overlap == pytest.approx((len(known) - 2) / len(known))

    asyncio.run(run())


def test_a_receipt_has_no_text_and_everything_else(world: World) -> None:
    async def run() -> None:
        filled(world)
        await world.follow()
        page = await world.read(Recall(text="tea 3 sugar"), session="run-1", limit=2)
        receipt = page.receipt
        shown = receipt.to_dict()
        assert from_dict(shown) == receipt
        assert receipt_from_bytes(receipt.to_bytes()) == receipt
        raw, search = receipt.to_bytes(), (await world.journal.receipt(receipt.receipt))[1]
        for text in (b"tea", b"sugar"):
            assert text not in raw
            assert text not in search
        assert set(shown) >= {
            "receipt", "session", "log_id", "mode", "positions", "indexes", "rows", "ranges", "scopes", "encoders",
            "scoring", "renderer", "tokenizer", "permission_generation", "budget", "truncations", "body_sha256",
        }  # fmt: skip
        assert (shown["session"], shown["mode"], shown["log_id"]) == ("run-1", "snapshot", format_id(world.log.log_id))
        assert shown["scoring"]["name"] == "cosine-max-v1"
        assert shown["scopes"][0]["observed"] == {"0": 5}
        assert shown["indexes"]["vectors"] == {"position": {"0": 5}, "lag": {"0": 0}, "generation": "g000001/0"}
        assert shown["rows"][0]["score_bits"] == score_bits(page.atoms[0].score or 0).hex()
        assert shown["budget"]["atoms"] == 2
        assert receipt.receipt[6] >> 4 == 7

    asyncio.run(run())


@pytest.mark.parametrize("score", [0.83, 1.0, 0.0, -0.0, 1e-7, 1 / 3, -12345.678, 3.4028235e38, 1.17549435e-38])
def test_a_score_is_the_shortest_number_that_is_its_float32(score: float) -> None:
    bits = score_bits(score)
    assert score_bits(score_of(bits)) == bits
    assert len(repr(score_of(bits))) <= len(repr(score)) + 3
    assert score_of(score_bits(0.83)) == 0.83


def test_a_sealed_row_shows_no_value_and_stays_sealed_when_it_is_replayed(new_world: NewWorld) -> None:
    async def run() -> None:
        store = MemoryKeyStore()
        key_id, key = await first_key(store)
        log = SealedLog(key_id=key_id, key=key)
        log.batch("notes", [create("a", value={"text": "secret"}, slots=[slot("about", "a")])])
        with_key = ContentOpener(ring_of(store), MemoryBlobStore())
        without = ContentOpener(ring_of(store, master=None), MemoryBlobStore())
        world = new_world(logs=[log], content=with_key)
        await world.follow("ids")
        opened = await world.read(ByIds(ids=(atom_id("a"),)))
        assert opened.atoms[0].value == {"text": "secret"}
        await world.journal.flush()
        bare = new_world(logs=[log], content=without, shelf=world.shelf)
        await bare.follow("ids")
        sealed = await bare.read(ByIds(ids=(atom_id("a"),)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "gather", None)  # the general way is not gone
            again = await bare.read(ByIds(ids=(atom_id("a"),)))
        assert again.body() == sealed.body()
        assert replace(again.receipt, receipt=sealed.receipt.receipt) == sealed.receipt
        row = sealed.to_dict()["atoms"][0]
        assert (row["value"], row["sealed"], row["kind"], row["origins"]) == (None, True, None, [])
        assert row["slots"][0]["resolved"] == format_id(log.head("a"))
        assert (await refused(bare.reader.replay(opened.receipt.receipt))).code == "KEY_UNAVAILABLE"
        await bare.journal.flush()
        assert (await world.reader.replay(sealed.receipt.receipt)).body() == sealed.body()
        assert b"secret" not in sealed.body()

    asyncio.run(run())


def test_receipts_survive_a_reopening_and_are_seen_by_every_process(tmp_path: Path, new_world: NewWorld) -> None:
    async def run() -> None:
        path = str(tmp_path / "reads.sqlite")
        world = new_world(shelf=SqliteShelf(path))
        filled(world)
        await world.follow()
        page = await world.read(Members(group=atom_id("p")), limit=2)
        await world.journal.close()
        other = new_world(logs=world.logs, shelf=SqliteShelf(path), seed="other")
        await other.follow()
        assert (await other.reader.receipt(page.receipt.receipt)) == page.receipt
        assert (await other.reader.replay(page.receipt.receipt)).body() == page.body()
        following = await other.read(Members(group=atom_id("p")), continuation=page.continuation)
        assert atoms_of(page, following) == [row.atom for row in (await other.read(Members(group=atom_id("p")))).atoms]
        assert b"tea" not in (tmp_path / "reads.sqlite").read_bytes()
        await other.journal.close()

    asyncio.run(run())


def test_a_receipt_is_written_after_the_flush_time_and_by_a_flush_at_once(tmp_path: Path, new_world: NewWorld) -> None:
    async def run() -> None:
        path = str(tmp_path / "reads.sqlite")
        world, peer = new_world(shelf=SqliteShelf(path)), SqliteShelf(path)
        filled(world)
        await world.follow()
        first = await world.read(ByIds(ids=(atom_id("p"),)))
        assert peer.receipt(first.receipt.receipt) is None
        for _ in range(5):
            await asyncio.sleep(0)
        assert peer.receipt(first.receipt.receipt) is not None
        second = await world.read(ByIds(ids=(atom_id("p"),)))
        await world.journal.flush()
        assert peer.receipt(second.receipt.receipt) is not None
        await world.journal.close()
        peer.close()

    asyncio.run(run())


class HeldWorkers:
    """Calls wait for `gate`; `asked` counts them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = 0

    async def run(self, call: Callable[[], Any]) -> Any:
        self.asked += 1
        await self.gate.wait()
        return call()


def test_a_receipt_that_is_recorded_while_others_are_written_is_written_too(new_world: NewWorld) -> None:
    async def run() -> None:
        world, workers = new_world(), HeldWorkers()
        filled(world)
        await world.follow()
        receipt = (await world.read(ByIds(ids=(atom_id("p"),)))).receipt
        journal = world.journal_with(workers, "held")
        first, second = (replace(receipt, receipt=journal.new_id()) for _ in range(2))
        await journal.record(first, b"{}")
        while not workers.asked:
            await asyncio.sleep(0)
        await journal.record(second, b"{}")
        workers.gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.shelf.receipt(first.receipt) is not None
        assert world.shelf.receipt(second.receipt) is not None
        await journal.close()

    asyncio.run(run())


class FullWorkers:
    """Calls fail while `is_full`."""

    is_full = True

    async def run(self, call: Callable[[], Any]) -> Any:
        if self.is_full:
            raise OSError("No space left on device")
        return call()


def test_receipts_that_cannot_be_written_do_not_pile_up(new_world: NewWorld) -> None:
    async def run() -> None:
        world, workers = new_world(), FullWorkers()
        filled(world)
        await world.follow()
        receipt = (await world.read(ByIds(ids=(atom_id("p"),)))).receipt
        journal = world.journal_with(workers, "full")
        given = []
        for _ in range(BUFFERED_MAX + 20):
            one = replace(receipt, receipt=journal.new_id())
            try:
                await journal.record(one, b"{}")
                given.append(one)
            except OSError:
                with pytest.raises(OSError, match="No space"):
                    await journal.receipt(one.receipt)
        assert len(given) == BUFFERED_MAX - 1, "a page whose receipt cannot be kept is not given out"
        workers.is_full = False
        await journal.record(replace(receipt, receipt=journal.new_id()), b"{}")
        assert [one for one in given if world.shelf.receipt(one.receipt) is None] == []
        await journal.close()

    asyncio.run(run())


def test_a_process_that_only_reads_sees_what_others_kept_and_leaves_the_file_alone(
    tmp_path: Path, new_world: NewWorld
) -> None:
    async def run() -> None:
        path = tmp_path / "reads.sqlite"
        early = new_world(shelf=ReadOnlyShelf(str(path)))
        assert not path.exists()
        world = new_world(shelf=SqliteShelf(str(path)))
        filled(world)
        await world.follow()
        page = await world.read(Members(group=atom_id("p")), limit=2)
        await world.journal.close()
        written = path.read_bytes()
        reader = new_world(logs=world.logs, shelf=ReadOnlyShelf(str(path)), seed="reader")
        await reader.follow()
        assert (await reader.reader.replay(page.receipt.receipt)).body() == page.body()
        own = await reader.read(Members(group=atom_id("p")), continuation=page.continuation, limit=1)
        assert (await reader.read(Members(group=atom_id("p")), continuation=own.continuation)).atoms
        await reader.journal.flush()
        assert (await reader.reader.replay(own.receipt.receipt)).body() == own.body()
        for here in (reader, early):
            assert (await refused(here.reader.replay(b"\x01" * 16))).code == "RECEIPT_EXPIRED"
            await here.journal.close()
        assert path.read_bytes() == written

    asyncio.run(run())


class RefusingShelf(SqliteShelf):
    """Cannot be written while `full`."""

    full = False

    def put(self, receipts: Sequence[KeptReceipt], kept: Sequence[Kept] = (), *, sync: bool = False) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().put(receipts, kept, sync=sync)


def test_receipts_that_cannot_be_written_stay_and_a_flush_says_so(tmp_path: Path, new_world: NewWorld) -> None:
    async def run() -> None:
        shelf = RefusingShelf(str(tmp_path / "reads.sqlite"))
        world = new_world(shelf=shelf)
        filled(world)
        await world.follow()
        shelf.full = True
        page = await world.read(ByIds(ids=(atom_id("p"),)))
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="No space"):
            await world.journal.flush()
        with pytest.raises(OSError, match="No space"):
            await world.read(Members(group=atom_id("p")), limit=1)  # its continuation could not be kept
        assert (await world.reader.receipt(page.receipt.receipt)) == page.receipt
        for _ in range(BUFFERED_MAX - 2):
            await world.journal.record(replace(page.receipt, receipt=world.journal.new_id()), b"{}")
        with pytest.raises(OSError, match="No space"):
            await world.read(ByIds(ids=(atom_id("p"),)))
        shelf.full = False
        await world.journal.flush()
        assert shelf.receipt(page.receipt.receipt) is not None
        await world.journal.close()

    asyncio.run(run())


def test_a_receipt_that_is_unknown_or_older_than_the_retention_is_expired(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(settings=Settings(receipt_retention_days=2))
        filled(world)
        await world.follow()
        page = await world.read(Members(group=atom_id("p")), limit=1)
        await world.journal.flush()
        for call in (world.reader.replay, world.reader.verify, world.reader.receipt):
            assert (await refused(call(b"\x01" * 16))).code == "RECEIPT_EXPIRED"
        world.clock.us += 2 * DAY_US - 1_000_000
        assert (await world.reader.replay(page.receipt.receipt)).body() == page.body()
        world.clock.us += 2_000_000
        assert (await refused(world.reader.replay(page.receipt.receipt))).code == "RECEIPT_EXPIRED"
        await world.journal.flush()
        assert world.shelf.receipt(page.receipt.receipt) is None
        assert await world.journal.kept(b"\x01" * 16) is None

    asyncio.run(run())


class Others:
    """Implements `ReceiptExchange`: other nodes tell of `tell`, which comes with the next catching up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offered: list[bytes] = []
        self.tell: list[KeptReceipt] = []
        self.asked = 0

    def offer(self, receipts: Sequence[KeptReceipt]) -> None:
        assert all(self._world.shelf.receipt(one.id) == one for one in receipts), "what is told is kept here first"
        self.offered += [one.id for one in receipts]

    async def catch_up(self) -> None:
        self.asked += 1
        self._world.shelf.put(self.tell)

    async def close(self) -> None:
        self.offered.append(b"closed")


def test_other_nodes_are_told_once_of_what_was_made_here_and_asked_for_what_is_not_here(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(settings=Settings(receipt_retention_days=2))
        filled(world)
        await world.follow()
        page = await world.read(Members(group=atom_id("p")), limit=1)
        await world.journal.flush()
        others = Others(world)
        randomness, workers = CountedRandomness("others"), InlineWorkers()
        journal = world.journal = Journal(
            world.shelf,
            clock=world.clock,
            randomness=randomness,
            workers=workers,
            settings=world.settings,
            exchange=others,
        )
        own, copy, theirs, nobodys = (replace(page.receipt, receipt=journal.new_id()) for _ in range(4))
        await journal.record(own, b"{}")
        await journal.record(copy, b"{}", is_copy=True)
        for receipt in (own, copy, page.receipt):
            assert (await journal.receipt(receipt.receipt))[0] == receipt
        with journal.lent([theirs.to_bytes()]):
            assert (await journal.receipt(theirs.receipt))[0] == theirs
        assert others.asked == 0, "what is here is asked of nobody"
        await journal.flush()
        await journal.flush()
        assert others.offered == [own.receipt]

        others.tell = [KeptReceipt(id=theirs.receipt, body=theirs.to_bytes(), search=b"")]
        assert (await journal.row(theirs.receipt, "a1"))[0] == theirs.rows[0].atom
        reader = replace(world.reader, journal=journal)
        assert (await reader.replay(theirs.receipt)).body() == page.body()
        error = await refused(reader.verify(theirs.receipt))
        assert (error.code, "the node that read" in error.message) == ("RECEIPT_EXPIRED", True)
        assert others.asked == 1
        assert (await refused(journal.receipt(nobodys.receipt))).code == "RECEIPT_EXPIRED"
        assert others.asked == 2
        world.clock.us += 3 * DAY_US
        assert (await refused(journal.receipt(nobodys.receipt))).code == "RECEIPT_EXPIRED"
        assert others.asked == 2, "what is too old is not looked for"
        await journal.close()
        assert others.offered == [own.receipt, b"closed"]

    asyncio.run(run())


@pytest.mark.parametrize("column", ["body", "search", "digest"])
def test_a_damaged_row_is_corrupt_and_the_others_are_read(tmp_path: Path, new_world: NewWorld, column: str) -> None:
    async def run() -> None:
        path = str(tmp_path / "reads.sqlite")
        world = new_world(shelf=SqliteShelf(path))
        filled(world)
        await world.follow()
        pages = [await world.read(ByIds(ids=(atom_id(name),))) for name in ("d1", "d2")]
        await world.journal.flush()
        with sqlite3.connect(path) as raw:
            [(stored,)] = raw.execute(f"SELECT {column} FROM receipts WHERE id = ?", (pages[0].receipt.receipt,))
            flipped = bytes((stored[0] ^ 1,)) + stored[1:]
            raw.execute(f"UPDATE receipts SET {column} = ? WHERE id = ?", (flipped, pages[0].receipt.receipt))
        raw.close()
        error = await refused(world.reader.replay(pages[0].receipt.receipt))
        assert (error.code, path in error.message) == ("CORRUPT", True)
        assert (await world.reader.replay(pages[1].receipt.receipt)).body() == pages[1].body()
        await world.journal.close()

    asyncio.run(run())


def test_a_file_that_is_no_database_or_a_newer_one_is_told_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "reads.sqlite"
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(AtomlogError, match="only receipts and continuations are lost") as caught:
        SqliteShelf(str(path))
    assert caught.value.code == "CORRUPT"
    newer = tmp_path / "newer.sqlite"
    SqliteShelf(str(newer)).close()
    with sqlite3.connect(newer) as raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(AtomlogError, match="STORE_TOO_NEW"):
        SqliteShelf(str(newer))


def test_a_write_that_cites_receipts_gets_what_they_saw(world: World) -> None:
    async def run() -> None:
        filled(world)
        await world.follow()
        members = await world.pages(Members(group=atom_id("p"), not_=(atom_id("q"),)), limits=[2])
        nothing = await world.read(Recall(vectors=(("scripted/1/4/cosine", (1.0, 0, 0, 0)),)), at={0: 0})
        receipts = [page.receipt.receipt for page in (*members, nothing)]
        inputs = await world.journal.inputs(receipts, "changes[0].provenance.receipts")
        assert inputs.versions == tuple(
            ReadVersion(atom=row.atom, revision=row.revision) for page in members for row in page.atoms
        )
        assert inputs.ranges == (
            ReadRange(role="group", target=atom_id("p"), observed=((0, 5),), complete=True),
            ReadRange(role="group", target=atom_id("q"), observed=((0, 5),), complete=True),
        )
        assert [(scope.observed, scope.empty) for scope in inputs.scopes] == [(((0, 0),), True)]
        assert inputs.encoders == ("scripted/1/4/cosine",)
        partial = await world.journal.inputs(receipts[:1], "path")
        assert [found.complete for found in partial.ranges] == [False, True]
        row = members[1].atoms[0]
        assert await world.journal.row(receipts[1], "a1") == (row.atom, row.revision)
        assert (await refused(world.journal.row(receipts[1], "a9"))).code == "NOT_FOUND"
        error = await refused(world.journal.inputs([receipts[0], b"\x01" * 16], "changes[0].provenance.receipts"))
        assert (error.code, error.details[0]["path"]) == ("RECEIPT_EXPIRED", "changes[0].provenance.receipts[1]")

    asyncio.run(run())


def test_receipts_that_another_process_keeps_are_known_while_they_are_lent(world: World, new_world: NewWorld) -> None:
    async def run() -> None:
        filled(world)
        await world.follow()
        page = (await world.pages(Members(group=atom_id("p")), limits=[2]))[0]
        receipt, body = page.receipt.receipt, page.receipt.to_bytes()
        there = new_world().journal
        assert (await refused(there.row(receipt, "a1"))).code == "RECEIPT_EXPIRED"
        with there.lent([body]):
            with there.lent([body]):  # two writes at once may cite it
                assert await there.row(receipt, "a1") == (page.atoms[0].atom, page.atoms[0].revision)
            assert await there.inputs([receipt], "path") == await world.journal.inputs([receipt], "path")
        assert (await refused(there.inputs([receipt], "path"))).code == "RECEIPT_EXPIRED"
        with pytest.raises(AtomlogError, match="CORRUPT"), there.lent([body[:-9]]):
            pass

    asyncio.run(run())


def test_merged_inputs_keep_the_lowest_position_that_was_seen(world: World) -> None:
    async def run() -> None:
        filled(world)
        await world.follow()
        late, early = [(await world.read(Members(group=atom_id("p")), at=at)).receipt for at in (5, 3)]
        merged = merge_inputs([late, early])
        assert [found.observed for found in merged.ranges] == [((0, 3),)]
        assert merge_inputs([]).versions == ()

    asyncio.run(run())


def test_a_row_of_a_receipt_is_an_id_in_every_selector(world: World) -> None:
    async def run() -> None:
        filled(world)
        await world.follow()
        page = await world.read(ByIds(ids=(atom_id("p"),)))
        handle = f"{format_id(page.receipt.receipt)}#a1"
        members = await world.read(parse_selector({"type": "members", "group": handle}))
        assert atoms_of(members) == atoms_of(await world.read(Members(group=atom_id("p"))))
        for unknown, code in (("a2", "NOT_FOUND"), ("a1", "RECEIPT_EXPIRED")):
            receipt = page.receipt.receipt if code == "NOT_FOUND" else b"\x07" * 16
            selector = parse_selector({"type": "history", "atom": f"{format_id(receipt)}#{unknown}"})
            assert (await refused(world.read(selector))).code == code

    asyncio.run(run())


class SealedLog(LogBuilder):
    """Seals every content with one key."""

    def __init__(self, *, key_id: bytes, key: bytes) -> None:
        self.key_id, self.key = key_id, key
        super().__init__()

    def _revision(self, space: str, change: Any) -> bytes:
        revision = super()._revision(space, change)
        clear, at = decode_clear(revision)
        sealed_clear = encode_clear(replace(clear, key_id=self.key_id))
        nonce = self._draw(12)
        return join_sealed(sealed_clear, seal_content(self.key, nonce, sealed_of(revision, at), sealed_clear))


async def first_key(store: KeyStore) -> tuple[bytes, bytes]:
    """(key id, key) of a page that is in the store."""
    allocator = KeyAllocator(ring_of(store), 0)
    await allocator.start(1, OWNER, {}, fresh_page=False)
    await allocator.reserve(1)
    taken = allocator.take()
    await allocator.close()
    return taken
