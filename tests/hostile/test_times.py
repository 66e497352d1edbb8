"""Times at the edges: the moment before 1970, the first and the last that can be written, later than now."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from atomlog.client import Store
from tests.hostile.asking import SPACE, note, paths, recalled, refusal, texts, write

EDGES: Final = (
    "0001-01-01T00:00:00.000000Z",
    "1600-02-29T23:59:59.999999Z",
    "1901-12-13T20:45:51.000000Z",
    "1969-12-31T23:59:59.000000Z",
    "1969-12-31T23:59:59.999999Z",
    "1970-01-01T00:00:00.000000Z",
    "1970-01-01T00:00:00.000001Z",
    "2038-01-19T03:14:08.000000Z",
    "2262-04-11T23:47:16.854776Z",
    "9999-12-31T23:59:59.999999Z",
)


@pytest.mark.parametrize("edge", EDGES)
def test_a_valid_time_comes_back_as_it_was_wherever_it_stands(store: Store, edge: str) -> None:
    since, until = write(store, note("since", valid_time={"from": edge}), note("until", valid_time={"to": edge}))
    shown = [store.get(one["atom"]).to_dict()["atoms"][0]["valid_time"] for one in (since, until)]
    assert shown == [{"from": edge, "to": None}, {"from": None, "to": edge}]


@pytest.fixture(scope="module")
def ages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(str(tmp_path_factory.mktemp("ages") / "store")) as opened:
        write(opened, *(note(f"age {edge}", valid_time={"from": edge}) for edge in EDGES))
        write(opened, note("age now"))
        yield opened


@pytest.mark.parametrize("place", range(len(EDGES) - 1))
def test_a_scope_in_time_takes_its_begin_and_leaves_its_end(ages: Store, place: int) -> None:
    begin, end = EDGES[place], EDGES[place + 1]
    page = recalled(ages, "age", scope={"time": {"from": begin, "to": end}}, limit=100)
    now = [] if not begin < datetime.now(UTC).isoformat() < end else ["age now"]
    assert sorted(texts(page)) == sorted([f"age {begin}", *now])


def test_a_scope_before_1970_has_only_what_was_before_it(ages: Store) -> None:
    page = recalled(ages, "age", scope={"time": {"to": "1970-01-01T09:00:00+09:00"}}, limit=100)
    assert sorted(texts(page)) == sorted(f"age {edge}" for edge in EDGES if edge < "1970")


@pytest.mark.parametrize("early", [*EDGES[:6], "1970-01-01T09:00:00+09:00"])
def test_as_of_a_time_before_the_log_there_is_nothing(store: Store, early: str) -> None:
    (made,) = write(store, note("made now"))
    assert refusal(lambda: store.get(made["atom"], as_of=early)).code == "NOT_FOUND"
    assert recalled(store, "made", as_of=early).atoms == ()


@pytest.mark.parametrize("late", ["9999-12-31T23:59:59.999999Z", "2262-04-11T23:47:16.854776Z", "in a minute"])
def test_as_of_a_time_to_come_is_refused_because_its_answer_could_still_change(store: Store, late: str) -> None:
    (made,) = write(store, note("made now"))
    text = (datetime.now(UTC) + timedelta(minutes=1)).isoformat() if late == "in a minute" else late
    error = refusal(lambda: store.get(made["atom"], as_of=text))
    assert (error.code, paths(error), "later than now" in error.message) == ("INVALID_INPUT", ["as_of"], True)


def test_positions_before_the_first_at_it_and_after_the_last(store: Store) -> None:
    result = store.write({"space": SPACE, "idempotency_key": "a place", "changes": [note("placed", key="placed")]})
    place, end = result.receipt.position, store.status().to_dict()["partitions"][0]["end"]
    assert end == place + 1
    store.wait_until_current(60)
    for early in (-1, 0, place - 1):
        assert refusal(lambda early=early: store.get("key:placed", space=SPACE, at=early)).code == "NOT_FOUND"  # type: ignore[misc]
    assert texts(store.get("key:placed", space=SPACE, at=place)) == ["placed"]
    wrong: tuple[Any, ...] = (
        -2,
        place + 1,
        2**63 - 1,
        2**63,
        -(2**63),
        10**400,
        1.5,
        True,
        {"0": 2**64},
        {"9" * 5_000: 1},
    )
    for at in wrong:
        error = refusal(lambda at=at: store.get("key:placed", space=SPACE, at=at))  # type: ignore[misc]
        assert (error.code, paths(error)) == ("INVALID_INPUT", ["at"])


@pytest.mark.parametrize(
    "text",
    [
        *("-0001-01-01T00:00:00Z", "0000-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01"),
        *("9999-12-31T23:59:59.999999-00:01", "1969-02-29T00:00:00Z", "1970-01-01T24:00:00Z", "1970-01-01T00:00:60Z"),
        *("-1", "0", "1e9", "١٩٧٠-01-01T00:00:00Z", "1970-01-01T00:00:00", "1970-01-01", "now", "yesterday"),
        *("1970-01-01T00:00:00.Z", "1970-01-01T00:00:00z\0", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+9:00"),
    ],
)
def test_what_is_no_moment_is_refused_by_name_wherever_a_time_may_stand(store: Store, text: str) -> None:
    calls = {
        "changes[0].valid_time.from": lambda: write(store, note("x", valid_time={"from": text})),
        "as_of": lambda: store.recall("x", space=SPACE, as_of=text),
        "selector.scope.time.to": lambda: store.recall("x", space=SPACE, scope={"time": {"to": text}}),
    }
    for path, call in calls.items():
        error = refusal(call)
        assert (error.code, paths(error)) == ("INVALID_INPUT", [path])
