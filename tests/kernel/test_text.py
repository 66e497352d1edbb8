"""The text of values: what spans address, what is searched, and long texts moved out and back."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.text import (
    SEARCH_CHARACTERS_MAX,
    BlobRef,
    blob_of,
    check_span,
    long_text,
    nfc_bytes,
    refuse_blob,
    search_text,
    slice_bytes,
    text_of,
    with_blob,
    without_blob,
)
from tests.support.sealed import FAMILY, HOSTILE_TEXTS

BLOB = BlobRef(address=b"a" * 32, sha256=b"s" * 32, size_bytes=70_000)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("tea", "tea"),
        ("", ""),
        ({"text": "tea", "title": "x"}, "tea"),
        ({"title": "tea"}, None),
        ({"text": 5}, None),
        ({"text": {"text": "tea"}}, None),
        (["tea"], None),
        (None, None),
        (5, None),
        ({"blob": BLOB.to_dict()}, None),
    ],
)
def test_the_text_of_a_value(value: Any, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ("source", "tea", "tea"),
        ("source", {"text": " tea ", "title": "not searched"}, "tea"),
        ("collection", {"title": "Tea", "description": "All of it", "x": "no"}, "Tea\nAll of it"),
        ("collection", {"description": "d", "title": "t", "text": "x"}, "t\nd\nx"),
        ("collection", {"text": "tea"}, "tea"),
        ("collection", {"names": ["a", "b"]}, "a\nb"),
        ("collection", "plain", "plain"),
        ("statement", {"z": "last", "a": {"n": 5, "m": ["first", None, "second"]}}, "first\nsecond\nlast"),
        ("statement", {"ü": "3", "z": "2", "B": "1"}, "1\n2\n3"),
        ("membership", None, None),
        ("membership", {"note": "because"}, "because"),
        ("statement", {"negated": True, "count": 3}, None),
        ("source", "", None),
        ("source", {"text": " \n\t"}, None),
        ("source", {"text": " "}, None),
        ("source", {"blob": {"address": "ff"}, "title": "seen"}, "seen"),
        ("source", [], None),
    ],
)
def test_the_search_text_of_a_value(schema: str, value: Any, text: str | None) -> None:
    assert search_text(schema, value) == text


@pytest.mark.parametrize("value", ["x" * 2**21, ["x" * 400_000] * 10, {"text": "x" * 2**21}, ["x"] * 600_000])
def test_the_search_text_is_bounded(value: Any) -> None:
    text = search_text("other", value)
    assert text is not None
    assert SEARCH_CHARACTERS_MAX - 1 <= len(text) <= SEARCH_CHARACTERS_MAX


@given(JSON)
def test_the_search_text_does_not_depend_on_the_order_of_members(value: Any) -> None:
    stored = jsontext.loads(jsontext.canonical(value))
    assert search_text("statement", value) == search_text("statement", stored)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_spans_count_bytes_of_nfc(text: str) -> None:
    expected = unicodedata.normalize("NFC", text).encode()
    assert nfc_bytes(text) == expected
    assert nfc_bytes(expected.decode()) == expected


@given(st.text())
def test_a_span_is_accepted_exactly_between_characters(text: str) -> None:
    raw = nfc_bytes(text)
    edges = {len(raw.decode()[:n].encode()) for n in range(len(raw.decode()) + 1)}
    for start in range(-1, len(raw) + 2):
        for end in range(start - 1, len(raw) + 2):
            allowed = start < end and start in edges and end in edges
            assert (check_span(raw, start, end) is None) == allowed
            if allowed:
                assert slice_bytes(raw, start, end).decode() in raw.decode()


def test_a_span_may_cut_a_joined_emoji_between_its_code_points() -> None:
    raw = nfc_bytes(FAMILY)
    assert slice_bytes(raw, 0, 4) == "👨".encode()
    assert slice_bytes(raw, 4, 7) == "\u200d".encode()


@pytest.mark.parametrize(("start", "end"), [(1, 4), (0, 2), (-1, 3), (0, 99), (3, 0), (0, 0)])
def test_a_bad_span_is_refused_by_path(start: int, end: int) -> None:
    with pytest.raises(AtomlogError) as caught:
        slice_bytes("日本".encode(), start, end, "changes[0].origins[2]")
    assert caught.value.code == "INVALID_INPUT"
    assert caught.value.details[0]["path"] == "changes[0].origins[2]"


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: {"text": text},
        lambda text: {"text": text, "plain": True},
        lambda text: {"text": text, "a": 1, "zz": [None], "ü": "x"},
    ],
    ids=["text", "object", "plain", "more"],
)
def test_a_text_is_moved_out_and_back(text: str, wrap: Any) -> None:
    value = wrap(text)
    moved = with_blob(value, BLOB)
    assert text not in moved.values()
    assert blob_of(moved) == BLOB
    stored = jsontext.loads(jsontext.canonical(moved))
    assert blob_of(stored) == BLOB
    back = without_blob(stored, text)
    assert back == value
    assert jsontext.dumps(back) == jsontext.canonical(value)


@pytest.mark.parametrize("value", [None, 5, ["x"], {"title": "x"}, {"text": 5}, {"text": "x", "blob": 1}])
def test_what_has_no_text_cannot_be_moved(value: Any) -> None:
    with pytest.raises(ValueError, match="no text"):
        with_blob(value, BLOB)


@pytest.mark.parametrize(
    "reference",
    [
        None,
        "x",
        {},
        {**BLOB.to_dict(), "address": "aa"},
        {**BLOB.to_dict(), "sha256": "zz" * 32},
        {**BLOB.to_dict(), "sha256": "AB" * 32},
        {**BLOB.to_dict(), "sha256": 5},
        {**BLOB.to_dict(), "bytes": "70000"},
        {**BLOB.to_dict(), "bytes": -1},
        {**BLOB.to_dict(), "more": 1},
        {**BLOB.to_dict(), "plain": False},
    ],
)
def test_a_reference_that_is_not_as_written_is_no_reference(reference: Any) -> None:
    with pytest.raises(ValueError):
        blob_of({"blob": reference})


@pytest.mark.parametrize(
    "value", [{"blob": BLOB.to_dict(), "text": "x"}, {"blob": {**BLOB.to_dict(), "plain": True}, "a": 1}]
)
def test_a_reference_stands_where_its_text_stood(value: Any) -> None:
    with pytest.raises(ValueError):
        blob_of(value)


@pytest.mark.parametrize("value", ["x", None, 5, [{"blob": 1}], {"text": "x"}, {"a": {"blob": 1}}])
def test_a_value_without_a_reference_has_none(value: Any) -> None:
    assert blob_of(value) is None
    refuse_blob(value, "changes[0].value")


def test_a_caller_may_not_write_a_reference() -> None:
    with pytest.raises(AtomlogError) as caught:
        refuse_blob({"blob": {}}, "changes[0].value")
    assert caught.value.details[0]["path"] == "changes[0].value.blob"


@pytest.mark.parametrize(
    ("value", "long"),
    [
        ("x" * 998, False),  # with its quotes 1,000 bytes
        ("x" * 999, True),
        ("日" * 333, True),
        ("日" * 332, False),
        ("\0" * 300, True),  # six bytes each in JSON
        ({"text": "x" * 989}, False),
        ({"text": "x" * 990}, True),
        ({"text": "x" * 300, "a": "y" * 700}, True),
        ({"text": "x" * 100, "a": "y" * 2_000}, False),
        ({"a": "y" * 2_000}, False),
        (["y" * 2_000], False),
        (None, False),
    ],
)
def test_a_text_is_long_when_its_value_is_longer_than_the_limit(value: Any, long: bool) -> None:
    text = long_text(value, 1_000)
    assert text == (text_of(value) if long else None)


@given(st.text(max_size=400), st.integers(600, 1_400))
def test_what_is_not_long_fits(text: str, limit: int) -> None:
    for value in (text, {"text": text}):
        if long_text(value, limit) is None:
            assert len(jsontext.canonical(value)) <= limit or len(text) < 256
