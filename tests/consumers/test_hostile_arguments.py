"""Whatever a caller passes, wherever: an answer or a typed error, never another exception, and no harm to others."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.client import AtomlogError, Store
from atomlog.consumers.paths import NAME_BYTES_MAX, PATH_BYTES_MAX, checked_path
from atomlog.kernel.settings import Settings

BATCH: Final = {
    "space": "notes",
    "idempotency_key": "k-1",
    "changes": [
        {"op": "create", "key": "tea", "schema": "collection", "value": {"title": "Tea"}},
        {"op": "create", "key": "sencha", "schema": "source", "value": {"text": "Sencha: 70 °C"}},
    ],
}
HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 2**70, -(2**70), 10**5_000, float("nan"), float("inf"), -0.0),
    *("", " ", "\0", "a\0b", "\ud800", "‮evil", "x" * 100_000, "key:", f"key:{'k' * 513}", "key:\ud800", "@a", "#a1"),
    *(b"", bytes(16), b"x" * 16, b"\xff", bytearray(16), memoryview(b"x" * 16)),
    *(
        [],
        [None],
        [[]],
        ["x"],
        (),
        {},
        {"a": 1},
        {1: 2},
        {10**5_000: 1},
        {None: None},
        {"key": 1},
        {"\ud800": 1},
        set(),
    ),
    *(object(), Exception, range(3), "00000000-0000-0000-0000-000000000000", "0199-not-a-uuid"),
    *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2020-12-31T23:59:60Z", "2020-01-01T00:00:00"),
)
OPTIONS: Final = ("consistency", "at", "as_of", "at_least", "limit", "continuation", "timeout_s", "session", "revision")


def scoped(part: str) -> Callable[[Store, Any], Any]:
    return lambda store, it: store.recall("tea", scope={part: it}, space="notes")


def with_option(option: str) -> Callable[[Store, Any], Any]:
    return lambda store, it: store.get("key:tea", space="notes", **{"timeout_s": 0, option: it})


PLACES: Final[dict[str, Callable[[Store, Any], Any]]] = {
    "ids": lambda store, it: store.get(it, space="notes"),
    "ids[0]": lambda store, it: store.get([it, "key:tea"], space="notes"),
    "atom": lambda store, it: store.history(it, space="notes"),
    "target": lambda store, it: store.relations(target=it, space="notes"),
    "of": lambda store, it: store.relations(of=it, space="notes"),
    "role": lambda store, it: store.relations(target="key:tea", role=it, space="notes"),
    "group": lambda store, it: store.members(it, space="notes"),
    "and": lambda store, it: store.members("key:tea", and_=it, space="notes"),
    "not": lambda store, it: store.members("key:tea", not_=[it], space="notes"),
    "include_retired": lambda store, it: store.members("key:tea", include_retired=it, space="notes"),
    "member": lambda store, it: store.groups(it, space="notes"),
    "text": lambda store, it: store.recall(it, space="notes"),
    "context": lambda store, it: store.recall("tea", context=it, space="notes"),
    "vectors": lambda store, it: store.recall("tea", vectors=it, space="notes"),
    "numbers": lambda store, it: store.recall("tea", vectors={"hashing/1/512/cosine": it}, space="notes"),
    "number": lambda store, it: store.recall("tea", vectors={"hashing/1/512/cosine": [it] * 512}, space="notes"),
    "scope": lambda store, it: store.recall("tea", scope=it, space="notes"),
    **{f"scope.{part}": scoped(part) for part in ("schema", "policy", "space", "groups", "time", "agent")},
    "scope.time.from": lambda store, it: store.recall("tea", scope={"time": {"from": it}}, space="notes"),
    "scope.groups.and": lambda store, it: store.recall("tea", scope={"groups": {"and": it}}, space="notes"),
    "selector": lambda store, it: store.read(it, space="notes"),
    "type": lambda store, it: store.read({"type": it}, space="notes"),
    "space": lambda store, it: store.get("key:tea", space=it),
    "policy": lambda store, it: store.get("key:tea", space="notes", policy=it),
    **{option: with_option(option) for option in OPTIONS},
    "at[0]": lambda store, it: store.get("key:tea", space="notes", at={0: it}, timeout_s=0),
    "at_least.partition": lambda store, it: store.get(
        "key:tea", at_least={"partition": it, "position": 1}, timeout_s=0
    ),
    "at_least.position": lambda store, it: store.get("key:tea", at_least={"partition": 0, "position": it}, timeout_s=0),
    "receipt": lambda store, it: store.receipt(it),
    "replay": lambda store, it: store.replay(it),
    "verify_receipt": lambda store, it: store.verify_receipt(it),
    "quote": lambda store, it: store.quote(it, space="notes"),
    "quote.n": lambda store, it: store.quote("key:tea", it, space="notes"),
    "outcome": lambda store, it: store.outcome(it, space="notes"),
    "outcome.space": lambda store, it: store.outcome("k-1", space=it),
    "write": lambda store, it: store.write(it),
    "write.changes": lambda store, it: store.write({**BATCH, "idempotency_key": "k-2", "changes": it}),
    "write.key": lambda store, it: store.write({**BATCH, "idempotency_key": it}),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(str(tmp_path_factory.mktemp("hostile") / "store")) as opened:
        opened.write(BATCH)
        yield opened


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_argument_gets_an_answer_or_a_typed_error(store: Store, place: str) -> None:
    call = PLACES[place]
    for hostile in HOSTILE:
        try:
            call(store, hostile)
        except AtomlogError as error:
            assert error.code in {
                *("INVALID_INPUT", "BOUND_EXCEEDED", "NOT_FOUND", "CURSOR_EXPIRED", "RECEIPT_EXPIRED", "INDEX_LAGGING"),
                *("REVISION_CONFLICT", "ATOMICITY_UNAVAILABLE"),
            }
            assert len(error.message) < 1_000
            error.message.encode()


def test_a_receipt_that_could_not_be_kept_is_refused_and_harms_no_other(tmp_path: Path) -> None:
    settings = Settings(receipt_flush_ms=3_600_000)  # nothing is written before the store closes
    with Store.open(str(tmp_path / "store"), settings=settings) as store:
        written = store.write(BATCH).receipt
        kept = store.get("key:tea", space="notes", session="s-1", at_least=written).receipt
        for session in ("\ud800", ["s"], {"s": 1}, b"s", 7, "", "s" * 129):
            with pytest.raises(AtomlogError) as caught:
                store.get("key:tea", space="notes", session=session)
            assert caught.value.details[0]["path"] == "session"
    with Store.open(str(tmp_path / "store")) as again:
        assert again.receipt(kept).session == "s-1"


def test_a_scope_with_an_empty_list_of_names_does_not_let_everything_pass(store: Store) -> None:
    for part in ("schema", "policy", "space"):
        with pytest.raises(AtomlogError, match=f"scope.{part}: an empty list"):
            store.recall("tea", scope={part: []}, space="notes")
    nothing = {"schema": None, "groups": None, "time": None, "agent": None}
    assert len(store.recall("sencha tea", scope=nothing, space="notes").atoms) == 2


@pytest.mark.parametrize("wrong", [None, "", 7, b"store", ["store"], "a\0b", "\udcff", "n" * 256, "n/" * 2_000])
def test_a_path_that_is_none_is_refused_by_name(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(AtomlogError) as caught:
        Store.open(wrong)
    assert (caught.value.code, caught.value.details[0]["path"]) == ("INVALID_INPUT", "directory")
    if wrong is not None:
        with pytest.raises(AtomlogError) as caught:
            Store.open(str(tmp_path / "store"), master_key_file=wrong)
        assert (caught.value.code, caught.value.details[0]["path"]) == ("INVALID_INPUT", "master_key_file")


def test_a_path_may_be_long_and_of_any_characters(tmp_path: Path) -> None:
    longest = "/".join(["n" * NAME_BYTES_MAX] * (PATH_BYTES_MAX // (NAME_BYTES_MAX + 1)))
    assert checked_path(longest, "directory") == longest
    with Store.open(tmp_path / "a b\n‮é") as store:
        written = store.write(BATCH).receipt
        assert store.get("key:tea", space="notes", at_least=written).atoms[0].value == {"title": "Tea"}


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_a_setting_that_is_no_number_of_its_kind_is_refused_by_name(name: str) -> None:
    wrongs: list[Any] = [None, True, -1, 1.5, 2**53, 10**5_000, float("nan"), "1", b"1", [], {}]
    for wrong in wrongs:
        if name == "shard_dead_share_max" and wrong == 1.5:
            continue
        with pytest.raises(AtomlogError) as caught:
            Settings(**{name: wrong})
        assert (caught.value.code, [detail["path"] for detail in caught.value.details]) == ("INVALID_INPUT", [name])


def test_what_is_no_settings_is_refused(tmp_path: Path) -> None:
    wrongs: list[Any] = [True, 7, "page_limit=5", {"page_limit": 5}, object()]
    for wrong in wrongs:
        with pytest.raises(AtomlogError, match="is no Settings"):
            Store.open(tmp_path / "store", settings=wrong)
    with pytest.raises(AtomlogError) as caught:
        Settings(page_limit=-1, embed_batch=True)
    assert [detail["path"] for detail in caught.value.details] == ["embed_batch", "page_limit"]
