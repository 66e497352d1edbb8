"""How lines become writes: batches, keys, refusals, parts."""

import hashlib
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.consumers.imports import runs
from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.occurrences import Occurrences
from atomlog.consumers.imports.plan import Refused, Write
from atomlog.consumers.imports.raw import raw_lines
from atomlog.kernel.bounds import Bounds
from tests.consumers.imports.fake_store import FakeStore
from tests.consumers.imports.importing import BytesFile, StillClock, jsonl


def plan(*lines: dict[str, Any] | str, split: bool = False, bounds: Bounds | None = None) -> list[Write | Refused]:
    return planned(jsonl(*lines), split=split, bounds=bounds)


def planned(data: bytes, *, split: bool = False, bounds: Bounds | None = None) -> list[Write | Refused]:
    keys = Keys(space="notes", policy="notes")
    return list(
        JsonlImport(
            store=FakeStore(),
            keys=keys,
            file=BytesFile(data),
            clock=StillClock(),
            split=split,
            bounds=bounds or Bounds(),
        ).plan()
    )


def numbers(items: list[Write | Refused]) -> list[Any]:
    """Line numbers of each write; (first, last) of each refused run."""
    return [
        [line.number for line in item.lines] if isinstance(item, Write) else (item.first, item.last) for item in items
    ]


def put(name: str, batch: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": name, **({} if batch is None else {"batch": batch}), **more}


BAD = '{"id": "bad"'


def test_consecutive_lines_of_a_batch_are_one_write_and_others_are_alone() -> None:
    items = plan(put("a", "1"), put("b", "1"), put("c"), put("d"), put("e", "2"), put("f", "1"))
    assert numbers(items) == [[1, 2], [3], [4], [5], [6]]


def test_blank_lines_and_a_byte_order_mark_are_no_lines_and_the_last_needs_no_end() -> None:
    data = b'\xef\xbb\xbf{"id": "a", "text": ""}\r\n\n   \n{"id": "b", "text": ""}'
    assert numbers(planned(data)) == [[1], [4]]


def test_a_key_is_the_digest_of_the_canonical_lines_and_how_often_they_came_before() -> None:
    items = plan(put("a", "1"), put("b", "1"), put("a"), put("a"), put("b"), put("a"))
    assert all(isinstance(item, Write) for item in items)
    keys = [item.key for item in items if isinstance(item, Write)]
    lines = b'{"batch":"1","id":"a","text":"a"}\n{"batch":"1","id":"b","text":"b"}\n'
    assert keys[0] == f"import:{hashlib.sha256(lines).hexdigest()}:0"
    assert keys[1].endswith(":0")
    assert keys[2] == keys[1][:-1] + "1"
    assert keys[4] == keys[1][:-1] + "2"


def test_the_order_of_fields_and_spaces_do_not_change_a_key() -> None:
    (one,), (two,) = plan('{"id":"a","text":"x"}'), plan('{ "text": "x",  "id": "a" }')
    assert isinstance(one, Write)
    assert isinstance(two, Write)
    assert one.key == two.key


def test_a_bad_line_refuses_its_batch_and_no_other() -> None:
    items = plan(put("a", "1"), put("", "1"), put("b", "1"), put("c", "2"))
    assert numbers(items) == [(1, 3), [4]]
    assert isinstance(items[0], Refused)
    assert items[0].error.message.startswith("line 2.id: ")
    assert "nothing of batch '1' was written" in items[0].error.message


def test_every_bad_line_of_a_batch_is_named() -> None:
    (item,) = plan(put("", "1"), put("b", "1"), put("", "1", time="now"))
    assert isinstance(item, Refused)
    assert [detail["line"] for detail in item.error.details] == [1, 3, 3]
    assert "(bad lines: 2)" in item.error.message


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ([put("a", "1"), BAD, put("b", "1")], [(1, 3)]),
        ([put("a", "1"), BAD, put("b", "2")], [(1, 2), (3, 3)]),
        ([put("a", "1"), BAD], [(1, 2)]),
        ([BAD, put("a", "1"), put("b", "1")], [(1, 1), (2, 3)]),
        ([put("a"), BAD, put("b")], [[1], (2, 2), [3]]),
        ([put("a", "1"), BAD, put("b")], [(1, 2), [3]]),
        ([put("a", "1"), BAD, BAD, put("b", "2"), put("c", "3")], [(1, 3), (4, 4), [5]]),
    ],
)
def test_a_line_of_unknown_batch_refuses_every_batch_that_it_may_be_of(lines: list[Any], refused: list[Any]) -> None:
    assert numbers(plan(*lines)) == refused


def test_the_same_id_twice_in_a_batch_is_refused_with_both_lines() -> None:
    (item,) = plan(put("a", "1"), put("b", "1"), put("a", "1"))
    assert isinstance(item, Refused)
    assert item.error.message.startswith("line 3.id: line 1 has the id 'a' too")
    assert item.error.details[0]["other"] == 1


def test_with_split_the_same_id_starts_a_new_part() -> None:
    assert numbers(plan(put("a", "1"), put("b", "1"), put("a", "1"), split=True)) == [[1, 2], [3]]


@pytest.mark.parametrize("order", [0, 1])
def test_a_group_deleted_and_named_in_one_batch_is_refused_or_cut(order: int) -> None:
    lines = [{"id": "g", "op": "delete", "batch": "1"}, put("a", "1", groups=["g"])][:: 1 - 2 * order]
    (item,) = plan(*lines)
    assert isinstance(item, Refused)
    assert numbers(plan(*lines, split=True)) == [[1], [2]]


def test_a_put_of_a_group_goes_with_the_lines_that_name_it() -> None:
    group = {"id": "g", "schema": "collection", "value": {"title": "G"}, "batch": "1"}
    assert numbers(plan(put("a", "1", groups=["g"]), group, split=True)) == [[1, 2]]


def test_parts_count_collections_and_memberships() -> None:
    lines = [put(f"n{n}", "1", groups=["g"]) for n in range(6)]
    bounds = Bounds(batch_revisions_max=5)  # the first line costs 3, those after it 2
    assert numbers(plan(*lines, split=True, bounds=bounds)) == [[1, 2], [3, 4], [5, 6]]
    parts = [(item.part, item.last) for item in plan(*lines, split=True, bounds=bounds) if isinstance(item, Write)]
    assert parts == [(1, False), (2, False), (3, True)]


def test_parts_count_bytes_and_long_texts_go_elsewhere() -> None:
    bounds = Bounds(batch_bytes_max=10_000, value_bytes_max=4_000)
    lines = [put(f"n{n}", "1", text="x" * size) for n, size in enumerate((3_000, 3_000, 3_000, 100_000, 100_000))]
    assert numbers(plan(*lines, split=True, bounds=bounds)) == [[1, 2], [3, 4, 5]]


def test_where_parts_are_cut_depends_on_the_lines_alone() -> None:
    lines = [put(f"n{n % 7}", f"{n // 9}", groups=["g", "h"][: n % 3]) for n in range(60)]
    bounds = Bounds(batch_revisions_max=8)
    one, two = (plan(*lines, split=True, bounds=bounds) for _ in range(2))
    assert one == two


def test_a_long_batch_is_read_again_instead_of_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [put("z"), *(put(f"n{n}", "1") for n in range(40)), put("y", "2")]
    kept = plan(*lines, split=True)
    monkeypatch.setattr(runs, "KEPT_BYTES_MAX", 100)
    assert plan(*lines, split=True) == kept


def test_nothing_of_a_long_batch_is_written_when_its_last_line_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_BYTES_MAX", 100)
    lines = [*(put(f"n{n}", "1") for n in range(40)), put("", "1")]
    assert numbers(plan(*lines, split=True, bounds=Bounds(batch_revisions_max=5))) == [(1, 41)]


def test_a_line_beyond_the_limit_is_refused_without_being_held() -> None:
    file = BytesFile(b"a" * 50 + b"\n" + b"b" * 10 + b"\n" + b"c" * 60)
    found = [(raw.number, raw.data, raw.end) for raw in raw_lines(file, line_bytes_max=20)]
    assert found == [(1, None, 51), (2, b"b" * 10, 62), (3, None, 122)]


@given(st.lists(st.integers(0, 40), max_size=300))
def test_occurrences_are_counted_over_any_number_of_things(values: list[int]) -> None:
    seen = Occurrences(recent_max=4)
    counts = [seen.count(hashlib.sha256(bytes([value])).digest()) for value in values]
    assert counts == [values[:n].count(value) for n, value in enumerate(values)]


def test_occurrences_keep_eight_bytes_a_thing() -> None:
    seen = Occurrences(recent_max=64)
    for n in range(1_000):
        seen.count(hashlib.sha256(str(n).encode()).digest())
    held = seen._runs
    assert {(type(run), run.itemsize) for run in held} == {(array, 8)}
    assert sum(map(len, held)) + len(seen._recent) == 1_000
    assert len(held) <= 8


def test_lines_survive_json_forms() -> None:
    """The helper that the tests stand on writes what it is given."""
    assert json.loads(jsonl(put("a"))) == {"id": "a", "text": "a"}
