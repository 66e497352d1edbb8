"""Pages that neither repeat, skip nor end early, and scopes that hold whatever else is in the store."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from atomlog.client import Store
from atomlog.projections.read.page import Page, Row
from tests.hostile.asking import SPACE, note, recalled, texts, write

COUNT: Final = 47


def membership(group: str, member: str, order_key: str = "") -> dict[str, Any]:
    slots = [{"role": "group", "target": group}, {"role": "member", "target": member, "order_key": order_key}]
    return {"op": "create", "schema": "membership", "slots": slots}


def head_of(store: Store, atom: str) -> Row:
    store.wait_until_current(60)
    (row,) = store.get(atom, space=SPACE).atoms
    return row


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A group of 47 members, each of which refers to one topic; every third order key is shared by three."""
    with Store.open(str(tmp_path_factory.mktemp("reads") / "store")) as opened:
        slots = [{"role": "about", "target": "key:topic"}]
        group = {"op": "create", "key": "group", "schema": "collection", "value": {"title": "group"}}
        write(opened, group, {**group, "key": "topic"})
        changes = [note(f"item {n:02}", key=f"item {n}", slots=slots) for n in range(COUNT)]
        write(opened, *changes, *(membership("key:group", f"key:item {n}", f"{n // 3:02}") for n in range(COUNT)))
        for n in range(COUNT):
            head = head_of(opened, "key:item 0")
            write(
                opened,
                {"op": "revise", "atom": head.atom, "expected": head.revision, "value": {"text": f"item 00 {n}"}},
            )
        recalled(opened, "item")
        yield opened


ASKED: Final[dict[str, Callable[[Store], Callable[..., Page]]]] = {
    "members": lambda store: lambda **more: store.members("key:group", space=SPACE, **more),
    "relations": lambda store: lambda **more: store.relations(target="key:topic", role="about", space=SPACE, **more),
    "ids": lambda store: lambda **more: store.get([f"key:item {n}" for n in range(COUNT)], space=SPACE, **more),
    "history": lambda store: lambda **more: store.history("key:item 0", space=SPACE, **more),
    "recall": lambda store: lambda **more: store.recall("item", space=SPACE, **{"limit": 10, **more}),
}


def pages(ask: Callable[..., Page], limit: int | None, between: Callable[[], Any] = lambda: None) -> list[Page]:
    options: dict[str, Any] = {} if limit is None else {"limit": limit}
    found = [ask(**options)]
    while found[-1].continuation is not None:
        assert len(found) < 100, "a read without an end"
        between()
        found.append(ask(**options, continuation=found[-1].continuation))
    return found


def rows(found: list[Page]) -> list[tuple[bytes, bytes]]:
    return [(row.atom, row.revision) for page in found for row in page.atoms]


@pytest.mark.parametrize("limit", [1, 2, 10, 20, 46, 47, 48, 100, None])
@pytest.mark.parametrize("name", ASKED)
def test_a_list_of_47_comes_whole_in_pages_of_any_size_and_each_row_once(
    store: Store, name: str, limit: int | None
) -> None:
    ask = ASKED[name](store)
    whole = rows([ask(limit=1_000)])
    assert len(set(whole)) == (COUNT + 1 if name == "history" else COUNT)
    found = pages(ask, limit)
    size = limit or (10 if name == "recall" else 100)
    assert rows(found) == whole
    assert [len(page.atoms) for page in found[:-1]] == [size] * (len(found) - 1)


@pytest.mark.parametrize("name", ASKED)
def test_pages_of_one_read_are_of_one_moment_whatever_is_written_between_them(store: Store, name: str) -> None:
    ask = ASKED[name](store)
    whole = rows([ask(limit=1_000)])
    numbers = itertools.count()

    def more() -> None:
        for _ in range(2):
            n = f"{name} {next(numbers)}"
            slots = [{"role": "about", "target": "key:topic"}]
            write(store, note(f"item new {n}", key=f"new {n}", slots=slots), membership("key:group", f"key:new {n}"))
        head = head_of(store, "key:item 0")
        write(store, {"op": "revise", "atom": head.atom, "expected": head.revision, "value": {"text": f"item {n}"}})

    found = pages(ask, 9, more)
    assert rows(found) == whole
    assert len({tuple(sorted((p, at.position) for p, at in page.receipt.positions.items())) for page in found}) == 1
    # And the same continuation twice gives the same page.
    again = ask(limit=9, continuation=found[0].continuation)
    assert again.body() == found[1].body()
    undo(store, name)


def undo(store: Store, name: str) -> None:
    """Retire what a test added, so that the next one finds 47 again."""
    for n in itertools.count():
        store.wait_until_current(60)
        found = store.relations(target="key:topic", role="about", space=SPACE, limit=1_000).atoms
        new = [row for row in found if str(row.value["text"]).startswith("item new")][:200]
        if not new:
            break
        assert n < 100
        write(store, *({"op": "retire", "atom": row.atom, "expected": row.revision} for row in new))
    store.wait_until_current(60)


# -- scopes


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Three of everything that is asked for, among two thousand that match the words better."""
    with Store.open(str(tmp_path_factory.mktemp("crowd") / "store")) as opened:
        loud = [note("green tea green tea green tea", policy="public") for _ in range(1_000)]
        write(opened, *loud)
        write(opened, *loud)
        write(opened, *(note(f"a tea of mine {n}", policy="mine") for n in range(3)))
        write(opened, *({**note(f"a tea remembered {n}"), "schema": "memory"} for n in range(3)))
        write(opened, *(note(f"an old tea {n}", valid_time={"from": f"1969-0{n + 1}-01T00:00:00Z"}) for n in range(3)))
        write(opened, note("I am the agent", key="me"))
        write(opened, *(note(f"an agent's tea {n}", slots=[{"role": "agent", "target": "key:me"}]) for n in range(3)))
        group = {"op": "create", "key": "few", "schema": "collection", "value": {"title": "few"}}
        some = [note(f"a grouped tea {n}", **{"as": f"@t{n}"}) for n in range(3)]
        write(opened, group, *some, *(membership("key:few", f"@t{n}") for n in range(3)))
        opened.write(
            {"space": "tiny", "idempotency_key": "t", "changes": [note(f"a tea in a tiny space {n}") for n in range(3)]}
        )
        recalled(opened, "tea")
        yield opened


SCOPES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "a policy": ({"policy": "mine"}, "a tea of mine"),
    "a schema": ({"schema": ["memory"]}, "a tea remembered"),
    "a space": ({"space": "tiny"}, "a tea in a tiny space"),
    "a time": ({"time": {"to": "1970-01-01T00:00:00Z"}}, "an old tea"),
    "an agent": ({"agent": "key:me"}, "an agent's tea"),
    "a group": ({"groups": {"and": "key:few"}}, "a grouped tea"),
    "all of it": (
        {"policy": "mine", "schema": "source", "space": SPACE, "groups": {"not": "key:few"}},
        "a tea of mine",
    ),
}


@pytest.mark.parametrize("limit", [1, 3, 10, 1_000])
@pytest.mark.parametrize("name", SCOPES)
def test_a_small_scope_is_never_starved_by_what_is_outside_of_it(crowd: Store, name: str, limit: int) -> None:
    scope, prefix = SCOPES[name]
    found = texts(recalled(crowd, "green tea", scope=scope, limit=limit))
    assert len(found) == min(limit, 3)
    assert all(text.startswith(prefix) for text in found), found


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_holds_on_every_page(crowd: Store, name: str) -> None:
    scope, prefix = SCOPES[name]
    ask = lambda **more: crowd.recall("green tea", space=SPACE, scope=scope, **more)  # noqa: E731
    found = [text for page in pages(ask, 2) for text in texts(page)]
    assert len(found) == 3
    assert all(text.startswith(prefix) for text in found), found


def test_a_scope_that_nothing_is_in_is_empty_and_not_everything(crowd: Store) -> None:
    for scope in (
        {"policy": "nobody"},
        {"groups": {"and": ["key:few", "key:me"]}},
        {"policy": "mine", "schema": "memory"},
    ):
        page = recalled(crowd, "green tea", scope=scope)
        assert page.atoms == ()
        assert page.continuation is None


def test_set_algebra_filters_members_and_what_they_point_at_alike(crowd: Store) -> None:
    """A filter that held for the edge and not for the node would show members of the group that is left out."""
    few = texts(crowd.members("key:few", space=SPACE))
    assert sorted(few) == [f"a grouped tea {n}" for n in range(3)]
    assert crowd.members("key:few", not_="key:few", space=SPACE).atoms == ()
    (first,) = [row for row in crowd.members("key:few", space=SPACE).atoms if row.value["text"].endswith("0")]
    write(crowd, {"op": "retire", "atom": first.atom, "expected": first.revision})
    crowd.wait_until_current(60)
    left = [f"a grouped tea {n}" for n in (1, 2)]
    assert sorted(texts(crowd.members("key:few", space=SPACE))) == left
    assert sorted(texts(recalled(crowd, "green tea", scope={"groups": {"and": "key:few"}}))) == left
