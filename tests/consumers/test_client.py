"""The Python face: `Store` and `AsyncStore` say the same, and refuse what is no argument instead of failing in it."""

import asyncio
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atomlog.client import AsyncStore, AtomlogError, Store
from atomlog.consumers.indexes import OpenIndexes
from atomlog.projections.read.receipts import ReadReceipt

INTERNAL = {"views"}  # of the asynchronous store: for the demonstration and the commands


def batch(key: str, *groups: str) -> dict[str, Any]:
    """A batch that creates the source `key` and its memberships."""
    changes: list[dict[str, Any]] = [{"op": "create", "key": key, "schema": "source", "value": {"text": key}}]
    for group in groups:
        slots = [{"role": "group", "target": f"key:{group}"}, {"role": "member", "target": f"key:{key}"}]
        changes.append({"op": "create", "schema": "membership", "slots": slots})
    return {"space": "notes", "idempotency_key": key, "changes": changes}


def collection(key: str) -> dict[str, Any]:
    change = {"op": "create", "key": key, "schema": "collection", "value": {"title": key}}
    return {"space": "notes", "idempotency_key": key, "changes": [change]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store")) as opened:
        yield opened


def refused(call: Callable[[], Any], path: str) -> None:
    with pytest.raises(AtomlogError) as caught:
        call()
    assert (caught.value.code, caught.value.details[0]["path"]) == ("INVALID_INPUT", path)


def test_both_stores_have_the_same_methods() -> None:
    def methods(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert methods(Store) == methods(AsyncStore) - INTERNAL


def test_an_asynchronous_store_can_be_entered_or_awaited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncStore.open(str(tmp_path / "store")) as entered:
            written = await entered.write(batch("tea"))
        awaited = await AsyncStore.open(str(tmp_path / "store"), create=False)
        try:
            page = await awaited.get("key:tea", space="notes", at_least=written.receipt)
            assert page.atoms[0].value == {"text": "tea"}
        finally:
            await awaited.close()
        with pytest.raises(AtomlogError, match="the store is closed"):
            await entered.status()

    asyncio.run(scenario())


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: store.write(batch("tea")),
        lambda: store.get("key:tea"),
        lambda: store.status(),
        lambda: list(store.log_dump()),
        lambda: store.receipt("01a22c92-eae3-71eb-9a31-09b61917bc24"),
    ]
    for call in calls:
        refused(call, "store")


def test_a_call_that_waits_while_another_thread_closes_ends(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    ends: list[BaseException] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            store.get("key:tea", at_least={"partition": 0, "position": 1_000}, timeout_s=600)
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    waits.wait()
    store.close()
    thread.join(timeout=60)
    assert len(ends) == 1


def test_one_group_may_stand_for_a_list_of_groups(store: Store) -> None:
    store.write(collection("tea"))
    store.write(collection("green"))
    store.write(batch("sencha", "tea", "green"))
    last = store.write(batch("hojicha", "tea")).receipt

    def members(**groups: Any) -> list[str]:
        page = store.members("key:tea", space="notes", at_least=last, **groups)
        return sorted(row.value["text"] for row in page.atoms)

    assert members(and_="key:green") == members(and_=["key:green"]) == ["sencha"]
    assert members(not_={"key": "green", "space": "notes"}) == members(not_=("key:green",)) == ["hojicha"]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1, "5"])
def test_what_is_no_length_of_time_is_refused(store: Store, seconds: Any) -> None:
    refused(lambda: store.get("key:tea", timeout_s=seconds), "timeout_s")


@pytest.mark.parametrize("receipt", ["01a22c92-eae3-71eb-9a31-09b61917bc24", {}, {"partition": 0}, 5])
def test_what_is_no_write_receipt_is_refused(store: Store, receipt: Any) -> None:
    refused(lambda: store.get("key:tea", at_least=receipt), "at_least")


def test_a_refusal_names_the_argument_as_the_caller_wrote_it(store: Store) -> None:
    refused(lambda: store.get("key:tea", at=0, as_of="2026-01-01T00:00:00Z"), "as_of")


def test_the_log_can_be_read_and_projections_built_anew(store: Store) -> None:
    written = store.write(batch("tea"))
    assert [record["kind"] for record in store.log_dump()] == ["Claim", "Batch"]
    assert [record["position"] for record in store.log_dump(0)] == [0, written.receipt.position]
    store.wait_until_current()
    (report,) = store.rebuild(["relations"])
    assert (report.name, report.equal, report.swapped) == ("relations", True, True)
    assert len(store.content_digest()) == 64


def test_a_receipt_that_is_not_kept_is_named_once_by_its_place(store: Store) -> None:
    lost = "01a22c92-eae3-71eb-9a31-09b61917bc24"
    change = {"op": "create", "schema": "summary", "value": {"text": "s"}, "provenance": {"receipts": [lost]}}
    with pytest.raises(AtomlogError) as caught:
        store.write({"space": "notes", "idempotency_key": "s", "changes": [change]})
    place = "changes[0].provenance.receipts[0]"
    assert [detail["path"] for detail in caught.value.details] == [place]
    assert caught.value.code == "RECEIPT_EXPIRED"
    assert caught.value.message.count("changes[0]") == 1


def test_a_receipt_of_another_log_is_told_from_one_of_this_log(tmp_path: Path) -> None:
    receipts: dict[str, ReadReceipt] = {}
    for name in ("here", "elsewhere"):
        with Store.open(str(tmp_path / name)) as one:
            written = one.write(batch("tea")).receipt
            receipts[name] = one.get("key:tea", space="notes", at_least=written).receipt
    shutil.copy(tmp_path / "elsewhere" / "reads.sqlite", tmp_path / "here" / "reads.sqlite")
    with Store.open(str(tmp_path / "here")) as here, pytest.raises(AtomlogError) as caught:
        here.receipt(receipts["elsewhere"])
    assert caught.value.code == "LOG_MISMATCH"
    with Store.open(str(tmp_path / "elsewhere")) as elsewhere:
        assert elsewhere.receipt(receipts["elsewhere"]) == receipts["elsewhere"]


def test_a_close_that_is_cancelled_goes_on_and_can_be_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        for turns in range(12):
            store = await AsyncStore.open(str(tmp_path / "store"))
            await store.write(batch(f"n{turns}"))
            closing = asyncio.create_task(store.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await store.close()
            await store.close()

    asyncio.run(scenario())


def test_a_caller_that_asks_again_at_once_sees_what_it_wrote(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncStore.open(str(tmp_path / "store")) as store:
            await store.write(batch("tea"))
            for _ in range(50_000):
                try:
                    await store.get("key:tea", space="notes")
                    return
                except AtomlogError as error:
                    assert error.code == "NOT_FOUND"
            raise AssertionError("nothing but the reads ever ran")

    asyncio.run(scenario())


def test_an_opening_that_is_given_up_while_its_indexes_catch_up_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        catching_up = asyncio.Event()

        async def never(self: OpenIndexes) -> None:
            catching_up.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(OpenIndexes, "settle", never)
            opening = asyncio.ensure_future(AsyncStore.open(str(tmp_path / "store")))
            await catching_up.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with AsyncStore.open(str(tmp_path / "store")) as store:
            assert all(view.follower is not None for view in store.views.values())

    asyncio.run(scenario())


def test_a_store_of_another_event_loop_is_refused_at_once(tmp_path: Path) -> None:
    async def opened() -> AsyncStore:
        return await AsyncStore.open(str(tmp_path / "store"))

    async def used(store: AsyncStore) -> None:
        for call in (store.write(batch("tea")), store.get("key:tea"), store.status(), store.close()):
            with pytest.raises(AtomlogError, match="another event loop"):
                await call

    with asyncio.Runner() as its_own, asyncio.Runner() as another:
        store = its_own.run(opened())
        another.run(used(store))
        its_own.run(store.close())
