"""Continuations: opaque, bound to their read, and useless to anybody who made them up."""

import asyncio
import base64
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.settings import Settings
from atomlog.projections.read.cursors import HANDLE_BYTES, SECOND_US
from atomlog.projections.read.page import Page
from atomlog.projections.read.selectors import Members, Recall, Selector
from atomlog.projections.read.shelf import MemoryShelf, SqliteShelf
from tests.projections.read.worlds import NewWorld, World, atoms_of
from tests.support.batches import atom_id, create, member

P = Members(group=atom_id("p"))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


async def first_page(world: World, count: int = 5) -> tuple[Page, str]:
    log = world.log0
    names = [f"d{number}" for number in range(count)]
    log.batch("notes", [create("p", schema="collection"), *(create(name, value=f"tea {name}") for name in names)])
    log.batch("notes", [member(f"m{name}", group="p", of=name) for name in names])
    await world.follow()
    page = await world.read(P, limit=2)
    assert page.continuation is not None
    return page, page.continuation


async def refused(world: World, continuation: str, selector: Selector = P, **options: Any) -> AtomlogError:
    with pytest.raises(AtomlogError) as caught:
        await world.read(selector, continuation=continuation, **options)
    return caught.value


def test_a_continuation_with_any_character_changed_is_refused(world: World) -> None:
    async def run() -> None:
        _, text = await first_page(world)
        assert len(base64.urlsafe_b64decode(text)) == HANDLE_BYTES
        for index, character in enumerate(text):
            for other in (ALPHABET[(ALPHABET.index(character) + 1) % 64], character.swapcase(), "+", "/", "=", "é"):
                if other != character:
                    error = await refused(world, text[:index] + other + text[index + 1 :])
                    assert error.code == "CURSOR_EXPIRED"
        for wrong in (
            "",
            text[:-1],
            text[:-4],
            text + "AAAA",
            text + "=",
            f" {text}",
            f"{text}\n",
            text[4:] + text[:4],
        ):
            assert (await refused(world, wrong)).code == "CURSOR_EXPIRED"
        assert (await world.read(P, continuation=text)).atoms

    asyncio.run(run())


def test_a_continuation_gives_the_same_page_as_often_as_it_is_used(world: World) -> None:
    async def run() -> None:
        _, text = await first_page(world)
        one = await world.read(P, continuation=text, limit=2)
        world.log0.batch("notes", [create("late"), member("mlate", group="p", of="late")])
        await world.follow()
        two = await world.read(P, continuation=text, limit=2)
        assert one.body() == two.body()
        assert one.receipt.receipt != two.receipt.receipt
        assert one.continuation != two.continuation

    asyncio.run(run())


def test_a_continuation_belongs_to_one_selector_one_reader_and_one_store(new_world: NewWorld) -> None:
    async def run() -> None:
        world, other = new_world(), new_world(seed="other")
        page, text = await first_page(world)
        await first_page(other)
        for selector in (
            Members(group=atom_id("q")),
            Members(group=atom_id("p"), include_retired=True),
            Members(group=atom_id("p"), and_=(atom_id("p"),)),
            Recall(text="tea"),
        ):
            assert (await refused(world, text, selector)).code == "CURSOR_EXPIRED"
        assert (await refused(world, text, principal="somebody")).code == "CURSOR_EXPIRED"
        assert (await refused(other, text)).code == "CURSOR_EXPIRED"
        for options in ({"at": 1}, {"as_of_us": 1}, {"at_least": {0: 1}}, {"consistency": "snapshot"}):
            assert (await refused(world, text, **options)).code == "INVALID_INPUT"
        assert len(atoms_of(page, await world.read(P, continuation=text))) == 5

    asyncio.run(run())


def test_a_continuation_expires(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(settings=Settings(cursor_ttl_ms=60_000))
        _, text = await first_page(world)
        world.clock.us += 59 * SECOND_US
        later = await world.read(P, continuation=text, limit=1)
        world.clock.us += 1 * SECOND_US
        assert (await refused(world, text)).code == "CURSOR_EXPIRED"
        assert later.continuation is not None
        assert (await world.read(P, continuation=later.continuation)).atoms
        world.clock.us += 3_600 * SECOND_US
        await world.journal.flush()
        assert isinstance(world.shelf, MemoryShelf)
        assert not world.shelf._kept

    asyncio.run(run())


def test_a_continuation_for_ever_is_as_long_as_its_text_can_hold(new_world: NewWorld) -> None:
    async def run() -> None:
        world = new_world(settings=Settings(cursor_ttl_ms=2**53 - 1))
        _, text = await first_page(world)
        assert (await world.read(P, continuation=text)).atoms

    asyncio.run(run())


def test_a_cursor_that_is_gone_or_damaged_is_told_apart(tmp_path: Path, new_world: NewWorld) -> None:
    async def run() -> None:
        path = str(tmp_path / "reads.sqlite")
        world = new_world(shelf=SqliteShelf(path))
        _, text = await first_page(world)
        with sqlite3.connect(path) as raw:
            raw.execute("UPDATE kept SET body = CAST(body || ' ' AS BLOB)")
        raw.close()
        assert (await refused(world, text)).code == "CORRUPT"
        with sqlite3.connect(path) as raw:
            raw.execute("DELETE FROM kept")
        raw.close()
        assert (await refused(world, text)).code == "CURSOR_EXPIRED"
        await world.journal.close()

    asyncio.run(run())


def test_another_process_goes_on_where_one_stopped_a_recall_too(tmp_path: Path, new_world: NewWorld) -> None:
    async def run() -> None:
        path = str(tmp_path / "reads.sqlite")
        world = new_world(shelf=SqliteShelf(path))
        page, text = await first_page(world)
        whole = await world.read(Recall(text="tea d1"))
        assert len(whole.atoms) > 2
        first = await world.read(Recall(text="tea d1"), limit=1)
        peer = new_world(logs=world.logs, shelf=SqliteShelf(path), seed="peer")
        await peer.follow()
        assert len(atoms_of(page, await peer.read(P, continuation=text))) == 5
        rest = await peer.read(Recall(text="tea d1"), continuation=first.continuation)
        assert atoms_of(first, rest) == atoms_of(whole)
        for here in (world, peer):
            await here.journal.close()

    asyncio.run(run())
