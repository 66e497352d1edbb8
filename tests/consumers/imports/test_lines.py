"""What a line of an import may say, and how a bad one is refused."""

import json
from typing import Any

import pytest

from atomlog.consumers.imports.lines import BadLine, Line, membership_key, parse_line


def parsed(line: dict[str, Any] | str) -> Line | BadLine:
    return parse_line((line if isinstance(line, str) else json.dumps(line)).encode(), 7)


def good(line: dict[str, Any]) -> Line:
    found = parsed(line)
    assert isinstance(found, Line), found
    return found


def refused(line: dict[str, Any] | str) -> list[str]:
    found = parsed(line)
    assert isinstance(found, BadLine)
    return [detail["path"] for detail in found.error.details]


def test_a_line_is_a_put_of_a_source_unless_it_says_otherwise() -> None:
    line = good({"id": "a", "text": "Tea"})
    assert (line.id, line.delete, line.schema, line.value) == ("a", False, "source", {"text": "Tea"})
    assert (line.groups, line.time_us, line.batch) == (None, None, None)


def test_null_means_absent() -> None:
    nothing = dict.fromkeys(("value", "groups", "time", "batch", "who"))
    line, plain = good({"id": "a", "text": "Tea", **nothing}), good({"id": "a", "text": "Tea"})
    assert (line.groups, line.time_us, line.batch, line.value) == (None, None, None, plain.value)


def test_who_becomes_the_speaker_of_the_value() -> None:
    assert good({"id": "a", "text": "Tea", "who": "Aoi"}).value == {"text": "Tea", "speaker": "Aoi"}
    titled = good({"id": "a", "schema": "collection", "value": {"title": "T"}, "who": "Aoi"})
    assert titled.value == {"title": "T", "speaker": "Aoi"}
    said = {"text": "T", "speaker": "Aoi"}
    assert good({"id": "a", "value": said, "who": "Aoi"}).value == said
    assert refused({"id": "a", "value": {"text": "T", "speaker": "Ada"}, "who": "Aoi"}) == ["line 7.who"]


def test_ids_and_groups_are_keys_in_nfc() -> None:
    line = good({"id": "cafe\u0301", "text": "", "groups": ["e\u0301", "\u00e9", "b"]})
    assert (line.id, line.groups) == ("caf\u00e9", ("\u00e9", "b"))


def test_no_groups_and_unchanged_groups_are_different() -> None:
    assert good({"id": "a", "text": "", "groups": []}).groups == ()
    assert good({"id": "a", "text": ""}).groups is None


def test_the_key_of_a_membership_is_canonical_json() -> None:
    assert membership_key('say "tea"', "茶") == '["member","say \\"tea\\"","茶"]'


def test_every_failing_part_of_a_line_is_named() -> None:
    line = {
        "id": "",
        "op": "upsert",
        "text": 5,
        "groups": ["g", "a\u0007", 3],
        "time": "2026-01-01T00:00:00",
        "schema": "Source",
        "who": "",
        "batch": "b",
        "tag": 1,
    }
    assert refused(line) == [
        "line 7.tag",
        "line 7.op",
        "line 7.id",
        "line 7.schema",
        "line 7.time",
        "line 7.who",
        "line 7.groups[1]",
        "line 7.groups[2]",
        "line 7.text",
    ]


def test_a_misspelt_field_is_refused_with_the_right_one() -> None:
    found = parsed({"id": "a", "txt": "Tea"})
    assert isinstance(found, BadLine)
    assert "did you mean 'text'?" in found.error.message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"id": "a"}, 'needs "text" or "value"'),
        ({"id": "a", "text": "x", "value": {}}, "not both"),
        ({"id": "a", "value": "x"}, "must be an object"),
        ({"id": "a", "value": {"blob": {}}}, "the store's own"),
        ({"id": "a", "op": "delete", "text": "x"}, "a delete has none"),
        ({"id": "a", "op": "delete", "groups": ["g"]}, "a delete has none"),
        ({"id": '["member","g","a"]', "text": "x"}, "those of memberships"),
        ({"id": "a" * 300, "text": "x", "groups": ["g" * 300]}, "too long together"),
        ({"id": "a", "text": "x", "groups": [f"g{n}" for n in range(401)]}, "401 groups"),
        ({"id": "a" * 513, "text": "x"}, "1 to 512 bytes"),
        ({"id": "a", "text": "x", "time": "yesterday"}, "RFC 3339"),
        ({"id": "a", "text": "x", "batch": ""}, "text of 1 to 512 bytes"),
        ({"id": "a", "value": {"n": 1}}, "a source is a text"),
        ({"id": "a", "schema": "collection", "value": {"members": [], "title": "t"}}, "no list of members"),
        ({"id": "a", "schema": "summary", "text": "x"}, "a summary is not imported"),
        ({"id": "a", "value": {"text": "x", "n": [0] * 40_000}}, "bytes of canonical JSON are more than 65536"),
        ({"id": "a", "value": {"text": "x", "deep": json.loads("[" * 40 + "]" * 40)}}, "levels of nesting"),
        ("[]", "a line is an object"),
        ('{"id": "a", "id": "b"}', "twice"),
        ('{"id": "a", "text": NaN}', "no JSON number"),
        ('{"id": "a", "text": "\\ud800"}', "lone surrogate"),
        ('{"id": "a", "value": {"n": 9223372036854775808}}', "2^63"),
        ('{"id": "a", "text": "x"', "not JSON"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_the_reason(line: Any, reason: str) -> None:
    found = parsed(line)
    assert isinstance(found, BadLine)
    assert found.number == 7
    assert found.error.message.startswith("line 7")
    assert reason in found.error.message


def test_the_batch_of_a_bad_line_is_known_when_it_can_be_read() -> None:
    for line, batch, known in (
        ({"id": "", "batch": "b"}, "b", True),
        ({"id": ""}, None, True),
        ({"id": "a", "text": "x", "batch": 5}, None, False),
        ('{"id": "a", "batch": "b"', None, False),
    ):
        found = parsed(line)
        assert isinstance(found, BadLine)
        assert (found.batch, found.batch_known) == (batch, known)


def test_canonical_is_of_the_line_as_given() -> None:
    assert good({"text": "x", "id": "a"}).canonical == b'{"id":"a","text":"x"}'
    assert good({"text": "x", "id": "a", "op": "put"}).canonical != good({"text": "x", "id": "a"}).canonical


def test_a_delete_may_carry_time_and_who() -> None:
    """A list of events has them on every line; retiring has no place to keep them."""
    line = good({"id": "a", "op": "delete", "time": "2026-01-01T00:00:00Z", "who": "Aoi", "batch": "b"})
    assert (line.delete, line.value, line.batch) == (True, None, "b")
