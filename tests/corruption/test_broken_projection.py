"""One projection that cannot be opened fails alone, and a rebuild brings it back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.events import Event
from atomlog.consumers.rebuild import first_error, rebuild, verify
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.projections.ids import Ids
from tests.consumers.worlds import until

BATCH: dict[str, Any] = {
    "space": "notes",
    "idempotency_key": "k1",
    "changes": [{"op": "create", "key": "a", "schema": "source", "value": {"text": "green tea"}}],
}
MORE = BATCH | {"idempotency_key": "k2", "changes": [BATCH["changes"][0] | {"key": "b"}]}


def damage(store: Path, name: str) -> None:
    """Make the projection's database unreadable."""
    for path in (store / "projections" / name).glob("g*/db/MANIFEST-*"):
        path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("name", ["relations", "postings", "vectors"])
def test_a_damaged_index_fails_alone_and_is_rebuilt(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "store"

    async def scenario() -> None:
        async with await AsyncStore.open(str(directory)) as store:
            await store.write(BATCH)
            await store.wait_until_current()
        damage(directory, name)
        async with await AsyncStore.open(str(directory)) as store:
            written = await store.write(MORE)
            page = await store.get("key:b", space="notes", at_least=written.receipt)
            assert page.atoms[0].value == {"text": "green tea"}
            entry = next(one for one in (await store.status()).projections if one["name"] == name)
            assert entry["health"] == "STOPPED"
            assert entry["error"]["code"] == "CORRUPT"
            with pytest.raises(AtomlogError) as refused:
                await needs(store, name)
            assert refused.value.code == "CORRUPT"
            assert name in refused.value.message
            reports = await store.rebuild([name], force=True)
            assert first_error(reports) is None
            assert reports[0].swapped
            await store.wait_until_current()
            await needs(store, name)

    asyncio.run(scenario())


async def needs(store: AsyncStore, name: str) -> None:
    """A read that cannot do without the projection."""
    if name == "relations":
        await store.relations(target="key:a", space="notes")
    elif name == "postings":
        await store.members("key:a", and_=["key:b"], space="notes")
    else:
        await store.recall("green tea", space="notes")


def test_a_read_that_waits_for_a_stopped_index_is_told_why_and_not_to_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with await AsyncStore.open(str(tmp_path / "store")) as store:
            await store.write(BATCH)
            await store.wait_until_current()

            def unsynced(self: object) -> None:
                raise OSError("no space left")

            monkeypatch.setattr(Ids, "sync", unsynced)
            await store.write(MORE)
            follower = store.views["ids"].follower
            assert follower is not None
            await until(lambda: follower.error is not None, "the stop")
            written = await store.write(
                MORE | {"idempotency_key": "k3", "changes": [BATCH["changes"][0] | {"key": "c"}]}
            )
            with pytest.raises(AtomlogError, match=r"it stopped: .*syncing failed: no space left") as refused:
                await store.get("key:c", space="notes", at_least=written.receipt)
            assert (refused.value.code, refused.value.retry_after_ms) == ("INDEX_LAGGING", None)
            monkeypatch.undo()

    asyncio.run(scenario())


def test_damaged_heads_stop_writing_and_nothing_else_and_are_rebuilt(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    events: list[Event] = []

    async def scenario() -> None:
        async with await AsyncStore.open(str(directory)) as store:
            await store.write(BATCH)
            await store.wait_until_current()
        damage(directory, "heads")
        async with await AsyncStore.open(str(directory), on_event=events.append) as store:
            assert [event["projection"] for event in events if event["event"] == "projection_broken"] == ["heads"]
            assert (await store.get("key:a", space="notes")).atoms[0].value == {"text": "green tea"}
            with pytest.raises(AtomlogError, match="projections/heads") as refused:
                await store.write(MORE)
            assert refused.value.code == "CORRUPT"
            assert first_error(await store.rebuild(["heads"], force=True)) is None
            assert (await store.write(MORE)).receipt.position > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["removed", "cut"])
@pytest.mark.parametrize("name", ["heads", "ids", "vectors"])
def test_a_table_file_that_is_missing_or_cut_is_no_earlier_state_but_damage(
    tmp_path: Path, name: str, how: str
) -> None:
    directory = tmp_path / "store"

    async def scenario() -> None:
        async with await AsyncStore.open(str(directory)) as store:
            await store.write(BATCH)
            await store.wait_until_current()
        async with await AsyncStore.open(str(directory)):
            pass  # opening again moves what was in the write-ahead log into table files
        tables = list((directory / "projections" / name).glob("g*/db/*.sst"))
        assert tables
        for table in tables:
            table.write_bytes(table.read_bytes()[:-200]) if how == "cut" else table.unlink()
        (report,) = await verify(str(directory), [name])
        assert (report.equal, report.swapped) == (False, False)
        assert report.error is not None
        assert report.error["code"] == "CORRUPT"
        assert f"projections/{name}" in report.error["message"]
        (report,) = await rebuild(str(directory), [name], force=True)
        assert report.swapped
        async with await AsyncStore.open(str(directory)) as store:
            await store.write(MORE)
            assert len((await store.recall("green tea", space="notes")).atoms) >= 1

    asyncio.run(scenario())
