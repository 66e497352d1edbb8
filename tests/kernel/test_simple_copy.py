"""The fast way in for simple JSON: it copies and writes exactly what the careful way does, or leaves it to that."""

import copy
from collections import OrderedDict
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel import requests
from atomlog.kernel.bounds import REQUEST_BYTES_MAX, REQUEST_DEPTH_MAX, REQUEST_VALUES_MAX
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.findings import Findings
from atomlog.kernel.jsontext import canonical, simple_copy, simple_json
from atomlog.kernel.request_copy import plain_copy
from atomlog.kernel.requests import parse_write

NUMBERS = st.integers(-(2**64), 2**64) | st.floats() | st.integers(-1_000, 1_000).map(float)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(st.characters(), max_size=8)
JSON = st.recursive(LEAVES, lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=4), inside))
CONTAINERS = st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=4), JSON, max_size=4)


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


def levels(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@given(CONTAINERS)
def test_what_is_copied_the_fast_way_is_what_the_careful_way_copies_and_writes(value: Any) -> None:
    copied = simple_copy(value)
    if copied is None:
        return
    found, depth = copied
    findings = Findings()
    assert repr(found) == repr(plain_copy(value, findings))  # 1.0 and 1, −0.0 and 0.0 are equal, but not the same
    assert not findings.count
    assert depth == levels(value)
    assert simple_json(found) == canonical(value)


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**62), 2**62) | st.text("aä あ"))
)
def test_ordinary_requests_go_the_fast_way(value: dict[str, Any]) -> None:
    assert simple_copy({"changes": [{"value": value}]}) is not None


@pytest.mark.parametrize(
    "part",
    [
        float("nan"),
        float("inf"),
        1.0,
        -0.0,
        1e16,
        1.5e-7,
        2**63,
        -(2**63),
        "\ud800",
        (1, 2),
        b"raw",
        UUID(int=1),
        Number.ONE,
        Text("text"),
        OrderedDict(a=1),
        {1: 2},
        {"\udc00": 1},
        {Text("key"): 1},
    ],
    ids=repr,
)
def test_whatever_needs_care_is_left_to_the_careful_way(part: Any) -> None:
    assert simple_copy([part]) is None
    assert simple_copy({"in": {"side": part}}) is None


def test_it_goes_as_deep_as_a_request_may_be_and_no_deeper() -> None:
    found = simple_copy(nested(REQUEST_DEPTH_MAX))
    assert found is not None
    assert found[1] == REQUEST_DEPTH_MAX
    assert simple_copy(nested(REQUEST_DEPTH_MAX + 1)) is None


def test_a_few_lists_that_hold_one_another_many_times_are_not_multiplied() -> None:
    value: Any = [0] * 1_000
    for _ in range(20):
        value = [value] * 1_000  # 10^63 numbers in 21 lists
    assert simple_copy(value) is None
    assert simple_copy([0] * (REQUEST_VALUES_MAX + 1)) is None
    text = "x" * (REQUEST_BYTES_MAX // 4)
    assert simple_copy([text, "x"]) is None


def test_a_caller_may_change_what_it_gave() -> None:
    given_value = {"a": [1, {"b": "c"}]}
    kept = copy.deepcopy(given_value)
    copied = simple_copy(given_value)
    given_value["a"].clear()
    assert copied is not None
    assert copied[0] == kept


@given(JSON, st.text(max_size=4))
def test_a_request_means_the_same_on_both_ways(value: Any, key: str) -> None:
    raw = {
        "space": "s",
        "idempotency_key": f"k{key}",
        "changes": [{"op": "create", "schema": "note", "value": value}, {"op": "create", "schema": "x", "key": key}],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "simple_copy", lambda value: None)
        careful = outcome(raw)
    assert outcome(raw) == careful


def outcome(raw: dict[str, Any]) -> object:
    try:
        request = parse_write(raw)
    except AtomlogError as error:
        return error.to_dict()
    return request, request.canonical
