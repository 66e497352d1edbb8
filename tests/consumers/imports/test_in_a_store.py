"""Imports into a real store: what the store alone decides."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.store_side import StoreSide
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import partition_of
from atomlog.kernel.system import SystemClock
from tests.consumers.imports.importing import BytesFile, jsonl

SPACE = "notes"
T = TypeVar("T")


def in_store(path: Path, work: Callable[[AsyncStore], Awaitable[T]], **options: Any) -> T:
    async def opened() -> T:
        async with await AsyncStore.open(str(path / "store"), **options) as store:
            return await work(store)

    return asyncio.run(opened())


async def run(
    store: AsyncStore, lines: Sequence[Mapping[str, Any]], *, split: bool = False, policy: str = SPACE
) -> Summary:
    summary = Summary(space=SPACE)
    await JsonlImport(
        store=StoreSide(store, SPACE),
        keys=Keys(space=SPACE, policy=policy),
        file=BytesFile(jsonl(*lines)),
        clock=SystemClock(),
        split=split,
    ).run(summary)
    return summary


async def join(store: AsyncStore, key: str, space: str, group: bytes, member: bytes) -> None:
    """A membership of another hand."""
    slots = [{"role": "group", "target": group}, {"role": "member", "target": member}]
    change = {"op": "create", "key": key, "schema": "membership", "slots": slots}
    await store.write({"space": space, "idempotency_key": key, "changes": [change]})


async def groups(store: AsyncStore, name: str) -> list[str]:
    await store.wait_until_current()
    return sorted(row.value["title"] for row in (await store.groups(f"key:{name}", space=SPACE)).atoms)


def put(name: str, text: str = "t", **more: Any) -> dict[str, Any]:
    return {"id": name, "text": text, **more}


def test_a_text_that_went_to_the_blob_store_is_compared_whole(tmp_path: Path) -> None:
    async def work(store: AsyncStore) -> None:
        text = "茶" * 100_000
        assert (await run(store, [put("a", text, batch="1")])).changes == 1
        assert (await run(store, [put("a", text, batch="2")])).changes == 0
        assert (await run(store, [put("a", text + "!", batch="3")])).changes == 1

    in_store(tmp_path, work)


def test_numbers_and_order_of_members_do_not_make_a_difference(tmp_path: Path) -> None:
    async def work(store: AsyncStore) -> None:
        first = {"id": "a", "value": {"text": "x", "n": 1.0, "m": {"b": 1, "a": [-0.0, 1.5]}}}
        assert (await run(store, [{**first, "batch": "1"}])).changes == 1
        same = {"id": "a", "value": {"m": {"a": [0, 1.5], "b": 1.0}, "n": 1, "text": "x"}}
        assert (await run(store, [{**same, "batch": "2"}])).changes == 0

    in_store(tmp_path, work)


def test_a_batch_of_deletes_over_the_bounds_is_refused_or_halved(tmp_path: Path) -> None:
    """What a delete retires is known to the store alone."""
    puts = [put(f"n{n}", groups=["g", "h", "i"], batch=f"{n // 300}") for n in range(600)]
    deletes = [{"id": f"n{n}", "op": "delete", "batch": "all"} for n in range(600)]

    async def work(store: AsyncStore) -> None:
        await run(store, puts, split=True)
        with pytest.raises(AtomlogError, match="--split") as caught:
            await run(store, deletes)
        assert caught.value.code == "BOUND_EXCEEDED"
        done = await run(store, deletes, split=True)
        assert (done.changes, done.written, done.split) == (2_400, 4, 3)
        again = await run(store, deletes, split=True)
        assert (again.changes, again.skipped) == (0, 1)
        await store.wait_until_current()
        assert (await store.members("key:g", space=SPACE)).atoms == ()

    in_store(tmp_path, work)


@pytest.mark.parametrize("partitions", [1, 4])
def test_memberships_of_other_spaces_are_left_alone(tmp_path: Path, partitions: int) -> None:
    here, there = partition_of(SPACE, partitions), "other"
    while partitions > 1 and partition_of(there, partitions) == here:
        there += "x"

    async def work(store: AsyncStore) -> None:
        keys = Keys(space=SPACE, policy=SPACE)
        await run(store, [put("a", groups=["g"]), put("b", groups=["h"])])
        await store.wait_until_current()
        await join(store, "theirs", there, keys.atom("h"), keys.atom("a"))
        await store.wait_until_current()
        assert await groups(store, "a") == ["g", "h"]
        await run(store, [{"id": "a", "op": "delete"}])
        await store.wait_until_current()
        head = (await store.get("key:a", space=SPACE)).atoms[0]
        theirs = (await store.get({"key": "theirs", "space": there})).atoms[0]
        assert (head.state, theirs.state) == ("retired", "active")

    asyncio.run(AsyncStore.init(str(tmp_path / "store"), partitions=partitions))
    in_store(tmp_path, work)


def test_memberships_of_other_hands_stay_until_the_atom_goes(tmp_path: Path) -> None:
    async def work(store: AsyncStore) -> None:
        keys = Keys(space=SPACE, policy=SPACE)
        await run(store, [put("a", groups=["g"]), put("b", groups=["h"])])
        await join(store, "by hand", SPACE, keys.atom("h"), keys.atom("a"))
        await run(store, [put("a", groups=[], batch="none")])
        assert await groups(store, "a") == ["h"]
        await run(store, [{"id": "a", "op": "delete"}])
        await run(store, [put("a", groups=["g"], batch="back")])
        assert await groups(store, "a") == ["g"]

    in_store(tmp_path, work)


def test_what_is_imported_says_so_and_keeps_its_times(tmp_path: Path) -> None:
    async def work(store: AsyncStore) -> None:
        time = "2026-03-01T09:00:00+09:00"
        await run(store, [put("a", time=time, who="Aoi", groups=["g"])], policy="private")
        await store.wait_until_current()
        row = (await store.get("key:a", space=SPACE, policy="private")).atoms[0].to_dict()
        assert (row["kind"], row["policy"]) == ("imported", "private")
        assert row["valid_time"] == {"from": "2026-03-01T00:00:00.000000Z", "to": None}
        assert row["value"] == {"text": "t", "speaker": "Aoi"}

    in_store(tmp_path, work)


def test_two_imports_of_the_same_at_once_end_as_one(tmp_path: Path) -> None:
    lines = [put(f"n{n % 5}", f"{n}", groups=["g"], batch=f"{n // 3}") for n in range(60)]

    async def twice(store: AsyncStore) -> str:
        one, two = await asyncio.gather(run(store, lines, split=True), run(store, lines, split=True))
        assert one.written + one.skipped == two.written + two.skipped == one.batches
        await store.wait_until_current()
        return await store.content_digest()

    async def once(store: AsyncStore) -> str:
        await run(store, lines, split=True)
        await store.wait_until_current()
        return await store.content_digest()

    assert in_store(tmp_path / "a", twice) == in_store(tmp_path / "b", once)


def test_an_index_behind_the_log_is_waited_for(tmp_path: Path) -> None:
    """Compared with what ids said some records ago, the second line would seem to change nothing."""

    async def work(store: AsyncStore) -> None:
        await run(store, [put("a", "A", batch="1")])
        await store.wait_until_current()
        followers = [view.follower for view in store.views.values() if view.follower is not None]
        for follower in followers:
            follower.pause()
        change = {"op": "revise", "atom": "key:a", "expected": await _head(store), "value": {"text": "B"}}
        await store.write({"space": SPACE, "idempotency_key": "k", "changes": [change]})
        importing = asyncio.ensure_future(run(store, [put("a", "A", batch="2")]))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not importing.done()
        for follower in followers:
            follower.resume()
        assert (await importing).changes == 1

    in_store(tmp_path, work)


def test_without_the_master_key_nothing_is_compared(tmp_path: Path) -> None:
    in_store(tmp_path, lambda store: run(store, [put("a", "A", batch="1")]))
    (tmp_path / "store" / "master.key").rename(tmp_path / "away")

    async def work(store: AsyncStore) -> None:
        with pytest.raises(AtomlogError) as caught:
            await run(store, [put("a", "B", batch="2")])
        assert caught.value.code == "KEY_UNAVAILABLE"

    in_store(tmp_path, work)


async def _head(store: AsyncStore) -> bytes:
    return (await store.get("key:a", space=SPACE)).atoms[0].revision
