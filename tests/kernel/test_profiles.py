"""Content profiles, and who may call an atom what: one row of the table a test."""

from dataclasses import replace
from typing import Any

import pytest

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.profiles import KINDS, PROFILES, RIGHTS, ProfileCase, check_profile, resolve_provenance

UNMARKED = RIGHTS - {"mark-source"}
GOOD: dict[str, dict[str, Any]] = {
    "source": {"value": {"text": "x"}},
    "extract": {"value": {"text": "x"}, "origins": 1},
    "collection": {"value": {"title": "Tea"}},
    "membership": {"slots": [("group", False, False), ("member", False, False)]},
    "statement": {"slots": [("subject", False, False), ("object", False, False)]},
    "summary": {"value": {"text": "x"}, "receipts": 1},
    "hypothesis": {"value": {"text": "x"}, "receipts": 1},
    "manifest": {"slots": [("member", False, True)]},
    "anything-else": {},
}
REFER, PIN, INCLUDE = (False, False), (False, True), (True, True)


def case(schema: str, **parts: Any) -> ProfileCase:
    base = ProfileCase(path="changes[3]", schema=schema, value=None, slots=(), origins=0, receipts=0, kind=None)
    return replace(base, **{**GOOD.get(schema, {}), **parts})


def failing(schema: str, *, rights: frozenset[str] = RIGHTS, strict: bool = False, **parts: Any) -> list[str]:
    """The failing paths, without the change's own."""
    _, found = check_profile(case(schema, **parts), rights=rights, strict=strict)
    assert all(failure["code"] == "INVALID_INPUT" and failure["message"] for failure in found)
    return [failure["path"].removeprefix("changes[3]") for failure in found]


def message(schema: str, *, rights: frozenset[str] = RIGHTS, **parts: Any) -> str:
    [failure] = check_profile(case(schema, **parts), rights=rights, strict=False)[1]
    return str(failure["message"])


def slots(*roles: str, **forms: tuple[bool, bool]) -> list[tuple[str, bool, bool]]:
    return [(role, *REFER) for role in roles] + [(role, *form) for role, form in forms.items()]


@pytest.mark.parametrize("schema", GOOD)
def test_a_proper_atom_of_each_schema_passes(schema: str) -> None:
    assert failing(schema) == []


def test_the_table_has_these_profiles() -> None:
    assert set(PROFILES) == set(GOOD) - {"anything-else"}


@pytest.mark.parametrize("value", ["text", "", {"text": ""}, {"text": "x", "speaker": "me"}], ids=str)
def test_a_source_is_a_text(value: Any) -> None:
    assert failing("source", value=value) == []


@pytest.mark.parametrize("value", [None, 5, [], {}, {"text": 5}, {"title": "x"}, {"Text": "x"}], ids=str)
def test_a_source_without_a_text_is_refused(value: Any) -> None:
    assert failing("source", value=value) == [".value"]


def test_an_extract_has_an_origin() -> None:
    assert failing("extract", origins=0) == [".origins"]
    assert failing("extract", origins=0, kind="imported") == [".origins"]


@pytest.mark.parametrize("value", ["Tea", {"title": "Tea"}, {"description": "…"}, {"text": "…"}], ids=str)
def test_a_collection_describes_itself(value: Any) -> None:
    assert failing("collection", value=value) == []


@pytest.mark.parametrize("value", [None, {}, 5, {"name": "Tea"}, {"title": 5}], ids=str)
def test_a_collection_without_a_description_is_refused(value: Any) -> None:
    assert failing("collection", value=value) == [".value"]


def test_a_collection_holds_no_members_itself() -> None:
    assert failing("collection", value={"title": "Tea", "members": []}) == [".value.members"]
    assert failing("collection", slots=slots("topic", "member")) == [".slots[1].role"]
    assert "membership" in message("collection", slots=slots("member"))


@pytest.mark.parametrize(
    ("roles", "paths"),
    [
        ([], [".slots", ".slots"]),
        (["group"], [".slots"]),
        (["member"], [".slots"]),
        (["group", "member", "member"], [".slots"]),
        (["group", "group", "member"], [".slots"]),
    ],
)
def test_a_membership_has_one_group_and_one_member(roles: list[str], paths: list[str]) -> None:
    assert failing("membership", slots=slots(*roles)) == paths


def test_a_membership_refers_and_may_pin_but_not_include() -> None:
    assert failing("membership", slots=slots(group=REFER, member=PIN)) == []
    assert failing("membership", slots=slots("why", group=INCLUDE, member=INCLUDE)) == [
        ".slots[1].mode",
        ".slots[2].mode",
    ]


@pytest.mark.parametrize(
    "roles", [["subject", "object"], ["from", "to"], ["spouse", "spouse"], ["a", "b", "condition"]]
)
def test_a_statement_relates_two_things_in_roles_of_its_own(roles: list[str]) -> None:
    assert failing("statement", slots=slots(*roles)) == []


@pytest.mark.parametrize(
    "roles", [[], ["subject"], ["subject", "condition", "speaker", "negated", "about_time", "context"]]
)
def test_a_statement_that_relates_nothing_is_refused(roles: list[str]) -> None:
    assert failing("statement", slots=slots(*roles)) == [".slots"]


def test_a_manifest_pins_its_members_and_has_one_next_page_at_most() -> None:
    assert failing("manifest", slots=slots("next", member=PIN)) == []
    assert failing("manifest", slots=[("member", *PIN), ("member", *REFER)]) == [".slots[1].revision"]
    assert failing("manifest", slots=slots("next", "next")) == [".slots"]
    assert failing("manifest", slots=[("member", *PIN)] * 64) == []
    assert failing("manifest", slots=[("member", *PIN)] * 65) == [".slots"]


@pytest.mark.parametrize("schema", ["summary", "hypothesis"])
def test_what_is_generated_names_what_was_read(schema: str) -> None:
    assert failing(schema, receipts=0) == [".provenance.receipts"]
    assert failing(schema, receipts=0, origins=1) == [".provenance.receipts"]
    assert failing(schema, receipts=3, origins=1) == []


def test_every_failing_part_is_named_at_once() -> None:
    assert failing("membership", slots=slots("member", "member"), kind="generated") == [
        ".slots",
        ".slots",
        ".provenance.receipts",
    ]


# --- names without a profile


def test_an_unknown_name_has_only_the_rules_of_its_provenance() -> None:
    assert failing("anything-else", value=5, slots=slots("member")) == []
    assert failing("anything-else", kind="extract") == [".origins"]
    assert failing("anything-else", kind="generated") == [".provenance.receipts"]


def test_a_strict_space_takes_no_unknown_name_and_says_which_one_was_meant() -> None:
    assert failing("anything-else", strict=True) == [".schema"]
    [failure] = check_profile(case("sourc"), rights=RIGHTS, strict=True)[1]
    assert "did you mean 'source'" in failure["message"]
    assert failing("source", strict=True) == []


# --- provenance


@pytest.mark.parametrize(
    ("schema", "marked", "unmarked"),
    [
        ("source", "source", None),
        ("extract", "extract", "extract"),
        ("summary", "generated", "generated"),
        ("hypothesis", "generated", "generated"),
        ("statement", "source", "generated"),
        ("collection", "source", "generated"),
        ("membership", "source", "generated"),
        ("manifest", "source", "generated"),
        ("anything-else", "source", "generated"),
    ],
)
def test_the_kind_follows_from_schema_and_rights_when_none_is_asked_for(
    schema: str, marked: str, unmarked: str | None
) -> None:
    assert resolve_provenance(schema, None, RIGHTS) == marked
    if unmarked is None:
        with pytest.raises(InvalidError, match="mark-source"):
            resolve_provenance(schema, None, UNMARKED)
    else:
        assert resolve_provenance(schema, None, UNMARKED) == unmarked


ALLOWED = {
    "source": {"source", "imported"},
    "extract": {"extract", "generated", "imported"},
    "summary": {"generated"},
    "hypothesis": {"generated"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schema", GOOD)
@pytest.mark.parametrize("rights", [RIGHTS, UNMARKED], ids=["marked", "unmarked"])
def test_a_kind_is_taken_only_where_schema_and_rights_allow_it(schema: str, kind: str, rights: frozenset[str]) -> None:
    allowed = kind in ALLOWED.get(schema, set(KINDS))
    if allowed and (rights is RIGHTS or kind in ("extract", "generated")):
        assert resolve_provenance(schema, kind, rights) == kind
    else:
        with pytest.raises(InvalidError) as raised:
            resolve_provenance(schema, kind, rights)
        assert raised.value.details[0]["path"] == "provenance.kind"


@pytest.mark.parametrize(
    ("schema", "kind", "rights", "right"),
    [
        ("summary", "source", RIGHTS, "generated"),
        ("hypothesis", "imported", RIGHTS, "generated"),
        ("statement", "source", UNMARKED, "generated"),
        ("extract", "source", RIGHTS, "extract"),
        ("source", "generated", RIGHTS, "source"),
        ("source", "source", UNMARKED, "generated"),
    ],
)
def test_the_kind_that_is_right_is_named(schema: str, kind: str, rights: frozenset[str], right: str) -> None:
    with pytest.raises(InvalidError, match=f"the kind that is right is {right}$"):
        resolve_provenance(schema, kind, rights)
    failures = check_profile(case(schema, kind=kind, receipts=1), rights=rights, strict=False)[1]
    assert [failure["path"] for failure in failures] == ["changes[3].provenance.kind"]


def test_generated_text_that_calls_itself_a_source_is_refused() -> None:
    kind, failures = check_profile(case("summary", kind="source"), rights=RIGHTS, strict=False)
    assert kind == "generated"
    assert [failure["path"] for failure in failures] == ["changes[3].provenance.kind"]
