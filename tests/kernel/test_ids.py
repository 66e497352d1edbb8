"""Ids, names and keys: what is taken, what is refused, and with which words."""

import hashlib
import unicodedata
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.ids import (
    ATOMLOG_NS,
    format_id,
    keyed_id,
    parse_id,
    parse_key,
    parse_name,
    partition_of,
    shown,
    uuid7,
)

GA_ONE, GA_TWO = "が", "か\u3099"


@given(st.binary(min_size=16, max_size=16).filter(any))
def test_an_id_comes_back_from_its_text_in_either_case(raw: bytes) -> None:
    text = format_id(raw)
    assert text == str(uuid.UUID(bytes=raw))
    assert parse_id(text, "p") == parse_id(text.upper(), "p") == raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0199",
        "0199aaaa00007000800000000000001",
        "0199aaaa000070008000000000000001",
        "{0199aaaa-0000-7000-8000-000000000001}",
        "urn:uuid:0199aaaa-0000-7000-8000-000000000001",
        " 0199aaaa-0000-7000-8000-000000000001",
        "0199aaaa-0000-7000-8000-000000000001\n",
        "0199aaaa-0000-7000-8000-00000000000g",
        "٠199aaaa-0000-7000-8000-000000000001",
        "00000000-0000-0000-0000-000000000000",
        "\ud800",
        5,
        None,
        b"0199aaaa-0000-7000-8000-000000000001",
        pytest.param(10**5_000, id="5001 digits"),
    ],
    ids=shown,
)
def test_what_is_no_uuid_is_refused_with_its_path(text: object) -> None:
    with pytest.raises(InvalidError) as raised:
        parse_id(text, "changes[3].atom")
    assert raised.value.details[0]["path"] == "changes[3].atom"
    assert raised.value.message.isascii()


@pytest.mark.parametrize("name", ["a", "0", "notes", "a.b_c-d", "x" * 64, "9lives"])
def test_a_name_of_the_pattern_is_taken(name: str) -> None:
    assert parse_name(name, "p") == name


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a b", "é", "x" * 65, "a\n", "a/b", None, 5, ["a"]])
def test_another_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidError, match=r"\[a-z0-9\]"):
        parse_name(name, "space")


@pytest.mark.parametrize("key", ["a", "x" * 512, "あ" * 170, "don't", "C:\\repo\\a|b", " ", "#tag", "0199aaaa-0000"])
def test_a_key_may_be_any_text_within_the_limit(key: str) -> None:
    assert parse_key(key, "key") == key


def test_a_key_in_two_normal_forms_is_one_key() -> None:
    assert GA_ONE != GA_TWO
    assert parse_key(GA_TWO, "key") == GA_ONE
    assert keyed_id("s", "p", GA_ONE) == keyed_id("s", "p", GA_TWO)


@pytest.mark.parametrize(
    "key",
    ["", "x" * 513, "あ" * 171, "a\x00b", "a\nb", "\x7f", "\x85", "\ud800", None, 5, "x" * 10_000, "\u0300" * 100_000],
    ids=["empty", "513", "513 in 171", "NUL", "line", "DEL", "NEL", "surrogate", "None", "5", "long", "combining"],
)
def test_a_key_out_of_the_limit_or_with_control_characters_is_refused(key: object) -> None:
    with pytest.raises(InvalidError):
        parse_key(key, "key")


def test_a_keyed_id_is_a_uuid5_in_the_namespace_of_space_and_policy() -> None:
    lengths = b"\x00\x00\x00\x05notes\x00\x00\x00\x01p"
    raw = bytearray(hashlib.sha1(ATOMLOG_NS + lengths).digest()[:16])
    raw[6], raw[8] = raw[6] & 0x0F | 0x50, raw[8] & 0x3F | 0x80
    assert keyed_id("notes", "p", "tea") == uuid.uuid5(uuid.UUID(bytes=bytes(raw)), "tea").bytes


def test_space_and_policy_do_not_run_into_each_other() -> None:
    assert keyed_id("ab", "c", "k") != keyed_id("a", "bc", "k")


@given(st.integers(0, 2**53), st.binary(min_size=10, max_size=10))
def test_a_uuid7_holds_the_time_and_its_version(time_us: int, random: bytes) -> None:
    made = uuid.UUID(bytes=uuid7(time_us, random))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == time_us // 1_000


@given(st.integers(0, 2**50), st.integers(1, 10_000), st.binary(min_size=10, max_size=10))
def test_a_later_uuid7_sorts_after_an_earlier_one(time_us: int, later_us: int, random: bytes) -> None:
    assert uuid7(time_us + later_us, bytes(10))[:8] >= uuid7(time_us, random)[:8]


@given(st.text("abcdefgh0123", min_size=1, max_size=8), st.integers(1, 1_000))
def test_a_space_has_one_partition(space: str, partitions: int) -> None:
    assert 0 <= partition_of(space, partitions) < partitions
    assert partition_of(space, 1) == 0


@pytest.mark.parametrize(
    "value",
    [
        "x" * 200,
        "あ" * 200,
        "'" * 100,
        pytest.param(10**5_000, id="5001 digits"),
        {"a": 1},
        [1] * 9,
        object(),
        b"x",
        1.5,
        None,
        True,
    ],
)
def test_a_part_is_shown_in_at_most_eighty_plain_characters(value: object) -> None:
    text = shown(value)
    assert len(text) <= 80
    assert unicodedata.normalize("NFKD", text.rstrip("…")).isascii()
