"""Comparing with the store, losing races, and what a refusal ends."""

from collections.abc import Mapping
from typing import Any

import pytest

from atomlog.consumers.imports.heads import Keys
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from tests.consumers.imports.fake_store import FakeStore
from tests.consumers.imports.importing import run


def put(name: str, text: str = "t", **more: Any) -> dict[str, Any]:
    return {"id": name, "text": text, **more}


def test_a_missing_group_becomes_a_collection_once() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["tea"], batch="1"), put("b", groups=["tea"], batch="1"), put("c", groups=["tea"])])
    (group,) = store.atoms[store.atom("tea")]
    assert (group.schema, group.value) == ("collection", {"title": "tea"})
    assert store.groups("a") == store.groups("b") == store.groups("c") == {"tea"}


def test_a_later_put_of_a_group_revises_it_and_memberships_stay() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["tea"])])
    run(store, [{"id": "tea", "schema": "collection", "value": {"title": "Tea", "description": "hot"}}])
    assert len(store.atoms[store.atom("tea")]) == 2
    assert store.groups("a") == {"tea"}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (put("tea"), "line 1.schema"),
        (put("b", groups=["a"]), "line 1.groups"),
        ({"id": "a", "schema": "statement", "value": {"text": "t"}}, "line 1.schema"),
    ],
)
def test_another_schema_is_refused(line: dict[str, Any], path: str) -> None:
    store = FakeStore()
    run(store, [put("a", groups=["tea"])])
    with pytest.raises(AtomlogError) as caught:
        run(store, [line])
    assert caught.value.code == "INVALID_INPUT"
    assert [detail["path"] for detail in caught.value.details] == [path]
    assert len(store.batches) == 1


def test_the_same_text_with_other_groups_writes_memberships_only() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["g", "h"])])
    summary = run(store, [put("a", groups=["h", "i"])])
    assert len(store.atoms[store.atom("a")]) == 1
    assert store.groups("a") == {"h", "i"}
    assert [change["op"] for change in store.batches[-1]["changes"]] == ["create", "create", "retire"]
    assert summary.changes == 3


def test_groups_absent_leaves_them_and_an_empty_list_takes_them_away() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["g"])])
    run(store, [put("a", "u")])
    assert store.groups("a") == {"g"}
    run(store, [put("a", "u", groups=[])])
    assert store.groups("a") == set()


def test_memberships_that_no_import_made_stay_on_a_put_and_go_with_a_delete() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["g"]), put("b", groups=["h"])])
    store.join("h", "a")
    run(store, [put("a", groups=[])])
    assert store.groups("a") == {"h"}
    run(store, [{"id": "a", "op": "delete"}])
    assert store.groups("a") == set()
    assert store.text("a") is None


def test_a_put_after_a_delete_revives_the_atom_and_its_memberships_by_their_keys() -> None:
    store = FakeStore()
    lines = [put("a", groups=["g"]), {"id": "a", "op": "delete"}, put("a", "again", groups=["g"])]
    run(store, lines)
    assert store.text("a") == "again"
    assert store.groups("a") == {"g"}
    memberships = [revisions for revisions in store.atoms.values() if revisions[0].schema == "membership"]
    assert [[revision.retired for revision in revisions] for revisions in memberships] == [[False, True, False]]


def test_a_delete_of_an_absent_or_retired_id_is_counted_and_changes_nothing() -> None:
    store = FakeStore()
    run(store, [put("a")])
    deletes = [{"id": "a", "op": "delete"}, {"id": "a", "op": "delete"}, {"id": "never", "op": "delete"}]
    summary = run(store, deletes)
    assert (summary.changes, summary.no_ops, summary.written, summary.unchanged) == (1, 2, 1, 2)


def test_a_delete_is_guarded_by_the_range_of_its_memberships() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["g"])])
    run(store, [{"id": "a", "op": "delete"}])
    (guard,) = store.batches[-1]["preconditions"]
    assert guard == {
        "type": "range",
        "role": "member",
        "target": format_id(store.atom("a")),
        "unchanged_since": 0,
    }


def test_value_speaker_and_a_given_time_are_compared() -> None:
    store = FakeStore()
    first = put("a", who="Aoi", time="2026-03-01T09:00:00+09:00", batch="1")
    run(store, [first])
    for line, changes in (
        (put("a", who="Aoi", time="2026-03-01T00:00:00Z", batch="2"), 0),
        (put("a", who="Aoi", batch="3"), 0),
        (put("a", who="Aoi", time="2026-03-01T00:00:01Z", batch="4"), 1),
        (put("a", batch="5"), 1),
        ({"id": "a", "value": {"text": "t", "x": 1}, "batch": "6"}, 1),
    ):
        assert run(store, [line]).changes == changes


def test_a_lost_race_is_read_again_and_retried() -> None:
    store = FakeStore()
    run(store, [put("a", "1")])
    races = iter(("2", "3"))

    def race(batch: Mapping[str, Any]) -> None:
        if (text := next(races, None)) is not None:
            store.revise("a", text)

    store.before_write = race
    summary = run(store, [put("a", "4")])
    assert [revision.value["text"] for revision in store.atoms[store.atom("a")]] == ["1", "2", "3", "4"]
    assert summary.retries == 2
    assert store.settled == 1 + 1 + 2  # each import once, each lost race once


def test_a_membership_added_during_a_delete_is_retired_too() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["g"]), put("b", groups=["h"])])
    joins = iter(("h",))

    def race(batch: Mapping[str, Any]) -> None:
        if (group := next(joins, None)) is not None:
            store.join(group, "a")

    store.before_write = race
    run(store, [{"id": "a", "op": "delete"}])
    assert store.groups("a") == set()


def test_races_lost_without_end_are_reported() -> None:
    store = FakeStore()
    run(store, [put("a", "1")])
    store.before_write = lambda batch: store.revise("a", f"other {len(store.atoms[store.atom('a')])}")
    with pytest.raises(AtomlogError) as caught:
        run(store, [put("a", "2")])
    assert caught.value.code == "REVISION_CONFLICT"
    assert caught.value.message.startswith("line 1: ")
    assert caught.value.details[0]["line"] == 1


def test_a_write_in_doubt_that_was_accepted_counts_as_written_once() -> None:
    store = FakeStore()
    doubts = iter((True,))

    def doubt() -> None:
        if next(doubts, False):
            raise fail("IN_DOUBT", "no answer")

    store.after_write = doubt
    summary = run(store, [put("a", "1"), put("a", "2")])
    assert (summary.written, len(store.batches)) == (2, 2)


def test_a_busy_store_is_asked_again_after_its_own_time() -> None:
    store = FakeStore()
    busy = iter((True, True))

    def refuse(batch: Mapping[str, Any]) -> None:
        if next(busy, False):
            raise fail("OVERLOADED", "queue full", retry_after_ms=20)

    store.before_write = refuse
    assert run(store, [put("a")]).written == 1


@pytest.mark.parametrize(
    ("code", "retry_after_ms"), [("STORE_READ_ONLY", None), ("CORRUPT", None), ("OVERLOADED", None)]
)
def test_what_concerns_the_whole_store_ends_the_import_even_with_keep_going(
    code: str, retry_after_ms: int | None
) -> None:
    store = FakeStore()

    def refuse(batch: Mapping[str, Any]) -> None:
        raise fail(code, "no", retry_after_ms=retry_after_ms)

    store.before_write = refuse
    with pytest.raises(AtomlogError, match=code):
        run(store, [put("a"), put("b")], keep_going=True)


def test_without_keep_going_the_first_refused_batch_ends_the_import() -> None:
    store = FakeStore()
    with pytest.raises(AtomlogError, match="line 2"):
        run(store, [put("a"), put(""), put("b")])
    assert (store.text("a"), store.text("b")) == ("t", None)


def test_keep_going_goes_on_with_the_next_batch_and_tells_of_each() -> None:
    store = FakeStore()
    said: list[str] = []
    lines: list[dict[str, Any] | str] = [
        put("a"),
        put("", batch="1"),
        put("x", batch="1"),
        put("b"),
        "{",
        put("c", groups=["a"]),
        put("d"),
    ]
    summary = run(store, lines, keep_going=True, said=said)
    assert [store.text(name) for name in "abxd"] == ["t", "t", None, "t"]
    assert (summary.refused, summary.written, summary.batches) == (3, 3, 6)
    assert [error.code for error in summary.errors] == ["INVALID_INPUT"] * 3
    assert len(said) == 3


def test_the_stores_refusal_names_the_line() -> None:
    store = FakeStore()
    detail = {"path": "changes[1].value", "code": "BOUND_EXCEEDED", "message": "too long"}

    def refuse(batch: Mapping[str, Any]) -> None:
        raise fail("INVALID_INPUT", "changes[1].value: too long", details=[detail])

    store.before_write = refuse
    with pytest.raises(AtomlogError) as caught:
        run(store, [put("a", batch="1"), put("b", batch="1")])
    assert caught.value.message == "line 2: too long"
    assert {"path": "line 2", "line": 2}.items() <= caught.value.details[0].items()


def test_a_line_that_is_too_large_itself_is_refused_and_its_batch_is_not_cut_around_it() -> None:
    store = FakeStore()
    detail = {"path": "changes[1].value", "code": "BOUND_EXCEEDED", "message": "too long"}

    def refuse(batch: Mapping[str, Any]) -> None:
        raise fail("BOUND_EXCEEDED", "changes[1].value: too long", details=[detail])

    store.before_write = refuse
    with pytest.raises(AtomlogError, match="line 2: too long"):
        run(store, [put(name, batch="1") for name in "abcd"], split=True)
    assert store.batches == []


def test_purged_ids_are_counted_and_the_rest_goes_on() -> None:
    store = FakeStore()

    def purged(batch: Mapping[str, Any]) -> None:
        details = [
            {"path": f"changes[{n}].key", "code": "PURGED", "message": "erased"}
            for n, change in enumerate(batch["changes"])
            if change["key"].startswith("gone")
        ]
        if details:
            raise fail("PURGED", "erased", details=details)

    store.before_write = purged
    summary = run(store, [put(name, batch="1") for name in ("gone1", "a", "gone2", "b")])
    assert (store.text("a"), store.text("b"), store.text("gone1")) == ("t", "t", None)
    assert (summary.purged, summary.written, summary.changes) == (2, 1, 2)


def test_memberships_of_other_spaces_stay_when_their_member_is_deleted() -> None:
    store = FakeStore()
    run(store, [put("a", groups=["g"]), put("b", groups=["h"])])
    elsewhere = format_id(store.join("h", "a"))

    def foreign(batch: Mapping[str, Any]) -> None:
        details = [
            {"path": f"changes[{n}].atom", "code": "ATOMICITY_UNAVAILABLE", "message": "another space"}
            for n, change in enumerate(batch["changes"])
            if change.get("atom") == elsewhere
        ]
        if details:
            raise fail("ATOMICITY_UNAVAILABLE", "another space", details=details)

    store.before_write = foreign
    run(store, [{"id": "a", "op": "delete"}])
    assert store.text("a") is None
    assert store.groups("a") == {"h"}


def test_keys_of_another_policy_are_other_atoms() -> None:
    """The policy is part of a key's home, so the same ids under another policy meet nothing of the first."""
    store = FakeStore()
    run(store, [put("a", "1")])
    other = Keys(space="notes", policy="other")
    assert other.atom("a") != store.atom("a")
    assert other.membership("g", "a") != Keys(space="notes", policy="notes").membership("g", "a")
