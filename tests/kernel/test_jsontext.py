"""JSON in and out: what is refused, by its path, and the one canonical form."""

import json
import math
import struct
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.jsontext import canonical, check_json, dumps, loads, parse_json

MAX = 2**63 - 1

# Appendix B of RFC 8785: the bits of a double, and how it is written.
RFC_NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]
# Also there, but integers beyond ±(2^63 − 1), or no numbers.
RFC_NUMBERS_REFUSED = [
    "4430000000000000",
    "444b1ae4d6e2ef4e",
    "444b1ae4d6e2ef4f",
    "7fffffffffffffff",
    "7ff0000000000000",
]


def double(bits: str) -> float:
    found: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return found


@pytest.mark.parametrize(("bits", "text"), RFC_NUMBERS)
def test_a_number_is_written_as_the_standard_says(bits: str, text: str) -> None:
    assert canonical(double(bits)).decode() == text
    assert canonical([double(bits), 0.1]).decode() == f"[{text},0.1]"


@pytest.mark.parametrize("bits", RFC_NUMBERS_REFUSED)
def test_a_number_that_is_none_or_an_integer_beyond_the_range_is_refused(bits: str) -> None:
    with pytest.raises(InvalidError):
        canonical(double(bits))


def test_the_example_of_the_standard_is_written_as_it_says() -> None:
    text = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    assert canonical(parse_json(text)).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_sorted_by_their_utf8_bytes() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6", "", "10", "a", "B"]
    written = json.loads(canonical(dict.fromkeys(keys, 0)), object_pairs_hook=list)
    assert [key for key, _ in written] == sorted(keys, key=str.encode)
    with_float = json.loads(canonical(dict.fromkeys(keys, 1e-9)), object_pairs_hook=list)
    assert [key for key, _ in with_float] == sorted(keys, key=str.encode)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "0"),
        (1.0, "1"),
        ([1.0, {"a": -0.0}], '[1,{"a":0}]'),
        (MAX, "9223372036854775807"),
        (-MAX, "-9223372036854775807"),
        (9.2e18, "9200000000000000000"),
        (1e-5, "0.00001"),
        (1.5e-7, "1.5e-7"),
        ("\x00\x1f\x7f", '"\\u0000\\u001f\x7f"'),
        ("말/日本語/👨‍👩‍👧", '"말/日本語/👨‍👩‍👧"'),
        ((1, (2,)), "[1,[2]]"),
        ({}, "{}"),
        (None, "null"),
    ],
    ids=repr,
)
def test_a_value_has_one_form(value: Any, text: str) -> None:
    assert canonical(value).decode() == text


class Colour(str, Enum):  # noqa: UP042 - shown as Colour.RED, and yet it holds red
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Pair(NamedTuple):
    a: int
    b: float


class Half(float):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, '"red"'),
        ({Colour.RED: Size.BIG}, '{"red":3}'),
        (Pair(1, 2.0), "[1,2]"),
        (Half(0.5), "0.5"),
        ([Half(1e-9)], "[1e-9]"),
        (MappingProxyType({"b": 1, "a": (Half(2.0),)}), '{"a":[2],"b":1}'),
        (OrderedDict(b=1, a=1e30), '{"a":1e+30,"b":1}'),
        (range(3), "[0,1,2]"),
    ],
    ids=repr,
)
def test_other_types_are_written_as_the_json_they_stand_for(value: Any, text: str) -> None:
    assert canonical(value).decode() == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX, MAX) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def is_writable(value: Any) -> bool:
    try:
        canonical(value)
    except InvalidError:
        return False
    return True


@given(json_values.filter(is_writable))
def test_what_was_written_is_read_as_the_same_and_written_the_same_again(value: Any) -> None:
    text = canonical(value)
    read = parse_json(text)
    assert read == value
    assert canonical(read) == text
    assert json.loads(text) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_fraction_keeps_every_bit(number: float) -> None:
    if number.is_integer():
        return
    assert struct.pack(">d", json.loads(canonical(number))) == struct.pack(">d", number)
    assert canonical([number, 1e-9]) == b"[" + canonical(number) + b",1e-9]"


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ({"a": [1, math.nan], "b": {"c": math.inf}}, ["v.a[1]", "v.b.c"]),
        ({"a": 2**63, "b": -(2**63), "c": 1e20}, ["v.a", "v.b", "v.c"]),
        (["note \udc95 end", {"\ud800": 1}], ["v[0]", "v[1]['\\ud800']"]),
        ({"a b": b"x", "c": {1, 2}, "d": ...}, ["v['a b']", "v.c", "v.d"]),
        ({1: "a", "b": 2**70}, ["v", "v.b"]),
        ([Half(math.nan)], ["v[0]"]),
    ],
    ids=str,
)
def test_every_part_that_json_cannot_hold_is_named(value: Any, paths: list[str]) -> None:
    with pytest.raises(InvalidError) as raised:
        canonical(value, "v")
    assert raised.value.code == "INVALID_INPUT"
    assert [found["path"] for found in raised.value.details] == paths


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded_where_asked() -> None:
    check_json(nested(32), "v", depth_max=32)
    with pytest.raises(InvalidError) as raised:
        check_json(nested(33), "v", depth_max=32)
    assert raised.value.code == "BOUND_EXCEEDED"


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidError):
        canonical(loop)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":1,"a":2}', "twice"),
        ('{"a":{"b":1,"\\u0062":2}}', "twice"),
        ("[1,]", "not JSON"),
        ("", "not JSON"),
        ("{'a':1}", "not JSON"),
        ('"a\nb"', "not JSON"),
        ("1 2", "not JSON"),
        ("\ufeff1", "not JSON"),
        ("01", "not JSON"),
        ("[1", "not JSON"),
        ("NaN", "no JSON number"),
        ("[-Infinity]", "no JSON number"),
        ("1e999", "no JSON number"),
        ("1" * 500, "integer beyond"),
        ("-9223372036854775808", "integer beyond"),
        ("1e20", "integer beyond"),
        ("1." + "1" * 500, "no JSON number"),
        ('"\\ud800"', "lone surrogate"),
        ('{"\\udfff":1}', "lone surrogate"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as raised:
        parse_json(text)
    assert raised.value.code == "INVALID_INPUT"
    json.dumps(raised.value.to_dict()).encode()  # the error itself can be shown


def test_bytes_that_are_no_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(InvalidError, match="byte 1"):
        parse_json(b'"\xff"')


@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
def test_ten_thousand_levels_are_refused(opening: str) -> None:
    with pytest.raises(InvalidError) as raised:
        parse_json(opening * 10_000)
    assert raised.value.code == "BOUND_EXCEEDED"


def test_the_deepest_text_that_is_read_can_be_written_again() -> None:
    text = "[" * 64 + "]" * 64
    assert canonical(parse_json(text)).decode() == text
    with pytest.raises(InvalidError):
        parse_json(f"[{text}]")


def test_a_text_beyond_the_cap_is_refused_unread() -> None:
    with pytest.raises(InvalidError) as raised:
        parse_json(b"x" * 11, bytes_max=10)
    assert (raised.value.code, raised.value.details[0]["found"], raised.value.details[0]["limit"]) == (
        "BOUND_EXCEEDED",
        11,
        10,
    )


def test_a_part_is_named_from_the_root_without_a_sign_for_it() -> None:
    with pytest.raises(InvalidError) as raised:
        parse_json('{"changes":[{"value":NaN}]}')
    assert raised.value.details[0]["path"] == "changes[0].value"


def test_surrogate_pairs_are_one_character() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "😀"


def test_what_we_show_keeps_the_order_of_its_keys() -> None:
    shown: Mapping[str, int] = {"b": 1, "a": 2}
    assert dumps(shown) == b'{"b":1,"a":2}'
    assert list(loads(dumps(shown))) == ["b", "a"]
