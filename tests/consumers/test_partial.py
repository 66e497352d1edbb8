"""Projections that are followed for some partitions only: who follows, who reads, and what is refused."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.assignment import check_assignment, parse_assignment
from atomlog.consumers.consume import run_consumer
from atomlog.consumers.parts import PROJECTIONS
from atomlog.consumers.rebuild import first_error, verify
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import partition_of
from atomlog.projections.read.elsewhere import NotHeld
from atomlog.projections.read.reader import ReadOptions
from atomlog.projections.read.selectors import parse_selector
from tests.acceptance.expect import refused
from tests.acceptance.writing import collection, membership, source
from tests.consumers.worlds import run, until

PARTITIONS = 3
HELD = (0, 2)


def space_in(partition: int) -> str:
    return next(name for name in (f"s{n}" for n in range(100)) if partition_of(name, PARTITIONS) == partition)


async def planted(directory: str) -> dict[int, dict[str, str]]:
    """A store with a tea, a group and a membership in each partition; partition → name → atom."""
    await AsyncStore.init(directory, partitions=PARTITIONS, shard_rows=4)
    made: dict[int, dict[str, str]] = {}
    async with AsyncStore.open(directory, create=False, projections=()) as store:
        for partition in range(PARTITIONS):
            tea, group = source(f"tea {partition}", **{"as": "@tea"}), collection("teas", **{"as": "@group"})
            changes = [tea, group, membership("@group", "@tea", **{"as": "@m"})]
            batch = {"space": space_in(partition), "idempotency_key": f"{partition}", "changes": changes}
            results = (await store.write(batch)).to_dict()["results"]
            made[partition] = {result["as"]: result["atom"] for result in results}
    return made


async def consumed(directory: str, **options: Any) -> list[Mapping[str, Any]]:
    """Follow until everything assigned is applied; the events."""
    events: list[Mapping[str, Any]] = []
    stop = asyncio.Event()

    def on_event(event: Mapping[str, Any]) -> None:
        events.append(event)
        if event["event"] == "status" and all(
            part["lag_records"] == 0 for entry in event["projections"] for part in entry["partitions"]
        ):
            stop.set()

    await run_consumer(directory, PROJECTIONS, on_event=on_event, status_seconds=0.0, stop=stop, **options)
    return events


def followed(events: list[Mapping[str, Any]]) -> set[tuple[str, ...]]:
    return {tuple(one["positions"]) for one in events[-1]["projections"]}


def test_a_projection_stays_with_its_partitions_until_it_is_told_otherwise(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        await planted(directory)
        assert followed(await consumed(directory, partitions=HELD)) == {("0", "2")}
        assert followed(await consumed(directory)) == {("0", "2")}, "the directory remembers"
        assert followed(await consumed(directory, partitions="all")) == {("0", "1", "2")}
        assert followed(await consumed(directory)) == {("0", "1", "2")}
        for name in PROJECTIONS:
            assert not Path(directory, "projections", name, "partitions.json").exists()

    run(work())


def test_a_read_of_atoms_in_partitions_that_are_here_is_answered(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        made = await planted(directory)
        await consumed(directory, partitions=HELD)
        async with AsyncStore.open(directory, create=False, follow=False) as store:
            page = await store.get(made[2]["@tea"])
            assert page.atoms[0].value == {"text": "tea 2"}
            assert sorted(page.receipt.positions) == [0, 2]
            assert len((await store.history(made[0]["@tea"])).atoms) == 1
            assert [row.value for row in (await store.get([made[0]["@tea"], made[2]["@tea"]])).atoms] == [
                {"text": "tea 0"},
                {"text": "tea 2"},
            ]
            found = await store.recall("tea", scope={"space": space_in(2), "schema": "source"})
            assert [row.value for row in found.atoms] == [{"text": "tea 2"}]
            assert (await store.replay(found.receipt)).body() == found.body()
            assert (await store.verify_receipt(page.receipt)).equal

    run(work())


def test_a_read_that_needs_other_partitions_is_refused_with_index_and_partition_named(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        made = await planted(directory)
        await consumed(directory, partitions=HELD)
        async with AsyncStore.open(directory, create=False, follow=False) as store:
            reads: dict[str, Callable[[], Any]] = {
                "an atom that lives elsewhere": lambda: store.get(made[1]["@tea"]),
                "one of several": lambda: store.get([made[0]["@tea"], made[1]["@tea"]]),
                "a history": lambda: store.history(made[1]["@tea"]),
                "members": lambda: store.members(made[0]["@group"]),
                "groups": lambda: store.groups(made[0]["@tea"]),
                "relations": lambda: store.relations(target=made[0]["@tea"]),
                "recall without a space": lambda: store.recall("tea"),
                "recall in a space elsewhere": lambda: store.recall("tea", scope={"space": space_in(1)}),
                "recall in groups": lambda: store.recall(
                    "tea", scope={"space": space_in(0), "groups": {"and": [made[0]["@group"]]}}
                ),
                "a position elsewhere": lambda: store.get(made[0]["@tea"], at={1: 0}),
            }
            for what, read in reads.items():
                with pytest.raises(NotHeld) as caught:
                    await read()
                assert caught.value.code == "CONSISTENCY_UNAVAILABLE", what
                assert caught.value.details[0]["index"] in PROJECTIONS
                assert all(detail["partitions"] == [1] for detail in caught.value.details), what
                assert "is not followed here for partition 1" in caught.value.message

    run(work())


def test_a_row_that_refers_to_an_atom_in_another_partition_is_not_shown_without_it(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        made = await planted(directory)
        async with AsyncStore.open(directory, create=False, projections=()) as store:
            across = membership(made[0]["@group"], made[1]["@tea"], **{"as": "@across"})
            batch = {"space": space_in(0), "idempotency_key": "across", "changes": [across]}
            result = (await store.write(batch)).to_dict()["results"][0]
        await consumed(directory, partitions=HELD)
        async with AsyncStore.open(directory, create=False, follow=False) as store:
            await refused(store.get(result["atom"]), "CONSISTENCY_UNAVAILABLE")

    run(work())


def test_a_version_pinned_read_that_may_lack_partitions_names_them_and_is_not_complete(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        made = await planted(directory)
        await consumed(directory, partitions=HELD)
        lacking = {"part": "partitions", "why": "unreachable", "index": "ids", "partitions": [1]}
        async with AsyncStore.open(directory, create=False, follow=False) as store:
            selector = parse_selector({"type": "members", "group": made[0]["@group"]})
            options = ReadOptions(consistency="version_pinned", may_lack=True)
            page = await store._reader.read(selector, options)
            assert [row.value for row in page.atoms] == [{"text": "tea 0"}]
            assert lacking in page.diagnostics.truncated
            assert lacking in page.receipt.truncations
            assert not page.receipt.ranges[0].complete
            for refused_too in (
                ReadOptions(consistency="snapshot", may_lack=True),
                ReadOptions(consistency="version_pinned"),
            ):
                with pytest.raises(NotHeld):
                    await store._reader.read(selector, refused_too)
            with pytest.raises(NotHeld):
                await store._reader.read(parse_selector({"type": "ids", "ids": [made[1]["@tea"]]}), options)

    run(work())


def test_digests_of_a_partition_are_the_same_whatever_else_is_followed(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        await planted(directory)
        await consumed(directory)
        whole = await verify(directory, PROJECTIONS)
        await consumed(directory, partitions=HELD)
        part = await verify(directory, PROJECTIONS)
        assert first_error(whole) is first_error(part) is None
        for one, other in zip(whole, part, strict=True):
            assert sorted(one.digests) == [0, 1, 2]
            assert other.digests == {partition: one.digests[partition] for partition in HELD}
            assert sorted(other.positions) == list(HELD)
            assert one.equal
            assert other.equal

    run(work())


def test_a_reader_sees_that_its_projection_is_followed_for_more_partitions(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        made = await planted(directory)
        await consumed(directory, partitions=HELD)
        async with AsyncStore.open(directory, create=False, follow=False) as store:
            await refused(store.members(made[1]["@group"]), "CONSISTENCY_UNAVAILABLE")
            await consumed(directory, partitions="all")

            async def found() -> bool:
                try:
                    return len((await store.members(made[1]["@group"])).atoms) == 1
                except AtomlogError as error:
                    assert error.code == "CONSISTENCY_UNAVAILABLE", error
                    return False

            await until(found, "the reader reads all partitions")

    run(work())


def test_a_damaged_note_of_partitions_is_told_and_written_anew_by_who_names_them(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        await planted(directory)
        await consumed(directory, partitions=HELD)
        note = Path(directory, "projections", "ids", "partitions.json")
        for damaged in (b"", b"{", b'{"partitions": []}', b'{"partitions": [3]}', b'{"partitions": [0, 0]}', b"[0]"):
            note.write_bytes(damaged)
            await refused(consumed(directory), "CORRUPT")
        assert followed(await consumed(directory, partitions=HELD)) == {("0", "2")}

    run(work())


@pytest.mark.parametrize("text", ["", "x", "0,", "-1", "1-", "0;1", "99999"])
def test_what_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(AtomlogError) as caught:
        parse_assignment(text, "--partitions")
    assert caught.value.code == "INVALID_INPUT"


@pytest.mark.parametrize("wanted", [(), (3,), (-1,), (True,), "some"])
def test_partitions_that_the_store_does_not_have_are_refused(wanted: Any) -> None:
    with pytest.raises(AtomlogError) as caught:
        check_assignment(wanted, PARTITIONS, "partitions")
    assert caught.value.code == "INVALID_INPUT"


def test_partitions_are_named_by_numbers_and_ranges() -> None:
    assert parse_assignment("0,2", "x") == (0, 2)
    assert parse_assignment(" 4 - 6, 1", "x") == (1, 4, 5, 6)
    assert check_assignment(parse_assignment("all", "x") or (), PARTITIONS, "x") == (0, 1, 2)


def test_an_atom_that_was_just_written_is_waited_for_where_its_partition_is_here(tmp_path: Path) -> None:
    async def work() -> None:
        directory = str(tmp_path / "store")
        await planted(directory)
        await consumed(directory, partitions=HELD)
        async with AsyncStore.open(directory, create=False) as store:
            follower = store.views["ids"].follower
            assert follower is not None
            follower.pause()
            batch = {"space": space_in(2), "idempotency_key": "new", "changes": [source("new", **{"as": "@new"})]}
            written = await store.write(batch)
            read = asyncio.create_task(store.get(written.results[0].atom, at_least=written.receipt))
            await asyncio.sleep(0)
            follower.resume()
            assert (await read).atoms[0].value == {"text": "new"}

    run(work())
