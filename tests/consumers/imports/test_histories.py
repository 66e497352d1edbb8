"""An import replays a file as history, ends in the same state however often it is killed or repeated."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.bounds import Bounds
from tests.consumers.imports.fake_store import FakeStore, Killed
from tests.consumers.imports.importing import run

IDS = ("a", "b", "c")
GROUPS = ("g", "h")

Lines = list[dict[str, Any]]


@st.composite
def histories(draw: st.DrawFn) -> Lines:
    lines = draw(st.lists(st.one_of(puts(), deletes(), group_puts()), min_size=1, max_size=14))
    name = 0
    for line in lines:
        step = draw(st.sampled_from(("same", "next", "none")))
        if step == "next":
            name += 1
        if step != "none":
            line["batch"] = f"b{name}"
    return lines


def puts() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"id": st.sampled_from(IDS), "text": st.sampled_from("ABC")},
        optional={
            "groups": st.lists(st.sampled_from(GROUPS), max_size=2),
            "time": st.sampled_from(("2026-01-01T00:00:00Z", "2025-01-01T00:00:00+09:00")),
            "who": st.sampled_from(("Ada", "Aoi")),
        },
    )


def deletes() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"id": st.sampled_from((*IDS, *GROUPS)), "op": st.just("delete")})


def group_puts() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "id": st.sampled_from(GROUPS),
            "schema": st.just("collection"),
            "value": st.sampled_from(({"title": "g"}, {"title": "h"})),
        }
    )


class Model:
    """What the lines say, one after the other, without batches, keys or heads."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.values: dict[str, Any] = {}
        self.seen: set[str] = set()
        self.groups: dict[str, set[str]] = {}
        for line in lines:
            if line.get("op") == "delete":
                self.delete(line["id"])
            else:
                self.put(line)

    def delete(self, name: str) -> None:
        if self.values.get(name) is not None:
            self.groups[name] = set()
            self.values[name] = None

    def put(self, line: Mapping[str, Any]) -> None:
        for group in line.get("groups") or ():
            if group not in self.seen:
                self.seen.add(group)
                self.values[group] = {"title": group}
        value = dict(line.get("value") or {"text": line["text"]})
        if "who" in line:
            value["speaker"] = line["who"]
        self.seen.add(line["id"])
        self.values[line["id"]] = value
        if line.get("groups") is not None:
            self.groups[line["id"]] = set(line["groups"])


def state(store: FakeStore) -> dict[str, Any]:
    return {
        name: None if head.retired else head.value
        for name in (*IDS, *GROUPS)
        for head in store.atoms.get(store.atom(name), [])[-1:]
    }


def groups(store: FakeStore) -> dict[str, set[bytes]]:
    found: dict[str, set[bytes]] = {name: set() for name in IDS}
    for *_, head in store.atoms.values():
        if head.schema == "membership" and not head.retired:
            slots = dict(head.slots)
            name = next(name for name in IDS if store.atom(name) == slots["member"])
            found[name].add(slots["group"])
    return found


@given(histories())
def test_the_end_is_what_the_lines_say_in_order(lines: Lines) -> None:
    store, model = FakeStore(), Model(lines)
    run(store, lines, split=True)
    assert state(store) == model.values
    assert groups(store) == {name: {store.atom(g) for g in model.groups.get(name, ())} for name in IDS}


@given(histories())
def test_a_second_import_writes_nothing(lines: Lines) -> None:
    store = FakeStore()
    first = run(store, lines, split=True)
    batches = len(store.batches)
    second = run(store, lines, split=True)
    assert len(store.batches) == batches == first.written
    assert second.written == second.changes == 0
    assert second.batches == second.skipped + second.unchanged


@given(histories(), st.lists(st.integers(1, 4), max_size=4), st.booleans())
def test_kills_and_repeats_end_as_one_uninterrupted_import(lines: Lines, kills: list[int], before: bool) -> None:
    whole, broken = FakeStore(), FakeStore()
    run(whole, lines, split=True)
    for writes in kills:
        kill_at(broken, len(broken.batches) + writes, before=before)
        try:
            run(broken, lines, split=True)
        except Killed:
            continue
    broken.before_write, broken.after_write = lambda batch: None, lambda: None
    run(broken, lines, split=True)
    assert broken.content_digest() == whole.content_digest()
    assert [batch["idempotency_key"] for batch in broken.batches] == [
        batch["idempotency_key"] for batch in whole.batches
    ]


@given(histories(), histories())
def test_a_file_that_grew_ends_as_if_it_had_been_whole(old: Lines, more: Lines) -> None:
    """Batches of the new lines are their own: a batch that grows is another batch."""
    more = [line | ({"batch": f"new {line['batch']}"} if "batch" in line else {}) for line in more]
    whole, grown = FakeStore(), FakeStore()
    run(whole, old + more, split=True)
    run(grown, old, split=True)
    run(grown, old + more, split=True)
    assert grown.content_digest() == whole.content_digest()


@given(histories(), st.integers(0, 14), st.sampled_from("XYZ"))
def test_a_new_id_in_the_middle_is_imported(lines: Lines, at: int, text: str) -> None:
    store = FakeStore()
    run(store, lines, split=True)
    before = state(store)
    at = min(at, len(lines))
    run(store, [*lines[:at], {"id": "new", "text": text}, *lines[at:]], split=True)
    assert store.text("new") == text
    assert state(store) == before


@given(histories(), st.integers(2, 5), st.lists(st.integers(1, 4), max_size=3))
def test_batches_that_turn_out_too_large_are_halved_and_repeatable(
    lines: Lines, revisions_max: int, kills: list[int]
) -> None:
    """The planner's bound is far, the store's is near: only the store can tell."""
    for line in lines:
        if line.get("groups"):
            line["groups"] = line["groups"][:1]  # a line alone must fit: atom, collection, membership, retired one
    whole, broken = FakeStore(revisions_max=revisions_max + 2), FakeStore(revisions_max=revisions_max + 2)
    run(whole, lines, split=True)
    for writes in kills:
        kill_at(broken, len(broken.batches) + writes, before=False)
        try:
            run(broken, lines, split=True)
        except Killed:
            continue
    broken.after_write = lambda: None
    run(broken, lines, split=True)
    assert state(broken) == state(whole) == Model(lines).values
    again = run(broken, lines, split=True)
    assert again.changes == 0


def test_a_to_b_to_a_is_three_revisions_and_stays_so() -> None:
    lines = [{"id": "a", "text": text} for text in ("A", "B", "A")]
    store = FakeStore()
    run(store, lines)
    run(store, lines)
    assert [revision.value["text"] for revision in store.atoms[store.atom("a")]] == ["A", "B", "A"]


def test_what_changed_nothing_the_first_time_undoes_nothing_the_second() -> None:
    """The first line finds its text there already and leaves no key; the second one moves on."""
    store = FakeStore()
    run(store, [{"id": "a", "text": "A"}])
    lines = [{"id": "a", "text": "A", "batch": "1"}, {"id": "a", "text": "B", "batch": "2"}]
    run(store, lines)
    again = run(store, lines)
    assert store.text("a") == "B"
    assert (again.superseded, again.changes) == (1, 0)


def test_a_delete_of_what_came_later_is_no_delete_the_second_time() -> None:
    store = FakeStore()
    lines = [{"id": "a", "op": "delete"}, {"id": "a", "text": "A"}]
    run(store, lines)
    run(store, lines)
    assert store.text("a") == "A"


@pytest.mark.parametrize("split", [True, False])
def test_a_batch_cut_by_bounds_keeps_its_order_and_says_so(split: bool) -> None:
    store = FakeStore()
    lines = [{"id": f"n{n}", "text": "t", "batch": "all"} for n in range(25)]
    said: list[str] = []
    bounds = Bounds(batch_revisions_max=10)
    if not split:
        with pytest.raises(Exception, match=r"lines 1 to 25: 25 lines are more than the 10 revisions.*--split"):
            run(store, lines, bounds=bounds)
        assert store.batches == []
        return
    summary = run(store, lines, split=True, bounds=bounds, said=said)
    assert [len(batch["changes"]) for batch in store.batches] == [10, 10, 5]
    assert [change["key"] for batch in store.batches for change in batch["changes"]] == [f"n{n}" for n in range(25)]
    assert summary.split == 1
    assert "written in parts" in said[0]


def kill_at(store: FakeStore, batches: int, *, before: bool) -> None:
    """Kill when the store has so many batches: before the next write reaches it, or before its answer comes back."""

    def check(batch: Any = None) -> None:
        if len(store.batches) >= batches:
            raise Killed

    if before:
        store.before_write, store.after_write = check, lambda: None
    else:
        store.before_write, store.after_write = lambda batch: None, check
