"""What several parts of one batch together make wrong, absolute caps, and batches of anything."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.bounds import REQUEST_BYTES_MAX, REQUEST_VALUES_MAX
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.model import (
    WriteRequest,
)
from atomlog.kernel.requests import parse_write
from tests.kernel.write_batches import (
    SPACE,
    A,
    Numbers,
    R,
    batch,
    create,
    error_of,
    failing,
    message,
    ref,
    retire,
    revise,
    slots,
)


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        (revise(), retire(), "changes[1].atom"),
        (retire(), retire(atom=ref(A).upper()), "changes[1].atom"),
        (create(key="tea"), create(key="tea"), "changes[1].key"),
        (create(key="が"), create(key="か\u3099"), "changes[1].key"),
        (create(key="tea"), revise(atom="key:tea"), "changes[1].atom"),
        (revise(atom="key:tea"), create(key="tea"), "changes[1].key"),
        (create(key="tea", policy="p"), retire(atom={"key": "tea", "policy": "p"}), "changes[1].atom"),
        (revise(atom=f"{ref(R)}#a1"), retire(atom=f"{ref(R)}#a1"), "changes[1].atom"),
        (create(**{"as": "@x"}), revise(atom="@x"), "changes[1].atom"),
        (revise(atom="@x"), revise(**{"as": "@x"}), "changes[0].atom"),
    ],
    ids=str,
)
def test_an_atom_is_changed_at_most_once(one: Any, other: Any, path: str) -> None:
    assert failing(batch(one, other)) == [path]


def test_the_other_change_of_the_same_atom_is_named() -> None:
    assert "changes[0]" in message(batch(revise(), create(), retire()))


def test_a_change_cannot_change_itself_by_its_alias() -> None:
    assert failing(batch(revise(atom="@x", **{"as": "@x"}))) == ["changes[0].atom"]


def test_the_same_key_under_another_policy_is_another_atom() -> None:
    parse_write(batch(create(key="tea"), create(key="tea", policy="p")))


def test_an_alias_is_given_once_and_both_places_are_named() -> None:
    raw = batch(create(**{"as": "@x"}), create(), create(**{"as": "@x"}))
    assert failing(raw) == ["changes[2].as"]
    assert "changes[0]" in message(raw)


@pytest.mark.parametrize("alias", ["x", "@", "@a b", "@a#1", "@a@b", "@" + "x" * 65, "@\x00", 5, ["@x"]], ids=repr)
def test_an_alias_has_its_form(alias: Any) -> None:
    assert failing(batch(create(**{"as": alias}))) == ["changes[0].as"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (create(space="other"), "changes[1].space"),
        (retire(atom={"key": "tea", "space": "other"}), "changes[1].atom"),
        (revise(atom={"key": "tea", "space": "other", "policy": SPACE}), "changes[1].atom"),
    ],
    ids=str,
)
def test_a_batch_that_names_two_spaces_cannot_be_atomic(change: Any, path: str) -> None:
    error = error_of(batch(create(space=SPACE), change))
    assert error.code == "ATOMICITY_UNAVAILABLE"
    assert [found["path"] for found in error.details] == [path]


def test_a_reference_may_go_to_another_space() -> None:
    parse_write(slots({"role": "r", "target": {"key": "tea", "space": "other"}}))


def test_a_guard_of_an_atom_of_another_space_cannot_be_given() -> None:
    guard = {"type": "absent", "atom": {"key": "tea", "space": "other"}}
    error = error_of(batch(create(), preconditions=[guard]))
    assert (error.code, error.details[0]["path"]) == ("CONSISTENCY_UNAVAILABLE", "preconditions[0].atom")


# --- absolute caps


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [nested(100), nested(10_000), Numbers([0], REQUEST_VALUES_MAX)],
    ids=["deep", "deeper", "a large array"],
)
def test_a_request_beyond_an_absolute_cap_is_refused_before_anything_else(value: Any) -> None:
    error = error_of({**batch(create(value=value)), "unknown": 1})
    assert error.code == "BOUND_EXCEEDED"
    assert error.details[0]["path"].startswith("changes[0].value")
    assert error.details[0]["limit"] in (64, REQUEST_VALUES_MAX)


def test_a_request_with_too_many_values_is_refused_though_its_parts_are_shared() -> None:
    shared: Any = [0] * 100
    for _ in range(20):
        shared = [shared] * 100
    error = error_of(batch(create(value=shared)))
    assert (error.code, error.details[0]["limit"]) == ("BOUND_EXCEEDED", REQUEST_VALUES_MAX)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    assert error_of(batch(create(value=loop))).code == "BOUND_EXCEEDED"


def test_more_text_than_the_cap_is_refused_though_its_parts_are_shared() -> None:
    text = "x" * (1024 * 1024)
    error = error_of(batch(*[create(value=text) for _ in range(REQUEST_BYTES_MAX // len(text) + 1)]))
    assert (error.code, error.details[0]["limit"]) == ("BOUND_EXCEEDED", REQUEST_BYTES_MAX)


def test_a_batch_above_the_bounds_is_still_parsed_because_a_retry_must_be_recognised() -> None:
    request = parse_write(batch(*[create(value=nested(40)) for _ in range(1_500)]))
    assert len(request.changes) == 1_500


# --- whatever it is

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=17)
    | st.sampled_from(["create", "revise", "retire", "head", "range", "@x", "key:a", ref(A), f"{ref(R)}#a1", SPACE]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "op",
                    "as",
                    "key",
                    "schema",
                    "policy",
                    "value",
                    "slots",
                    "atom",
                    "expected",
                    "role",
                    "target",
                    "mode",
                    "revision",
                    "valid_time",
                    "from",
                    "to",
                    "origins",
                    "source",
                    "start",
                    "end",
                    "provenance",
                    "kind",
                    "receipts",
                    "vectors",
                    "type",
                    "since",
                    "unchanged_since",
                    "space",
                    "\ud800",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


@given(st.lists(junk, max_size=4), junk)
def test_a_batch_of_anything_is_parsed_or_refused_with_paths(changes: Any, preconditions: Any) -> None:
    raw = {"space": SPACE, "idempotency_key": "k", "changes": changes, "preconditions": preconditions}
    try:
        request = parse_write(raw)
    except AtomlogError:
        error = error_of(raw)
        assert error.code in ("INVALID_INPUT", "ATOMICITY_UNAVAILABLE", "CONSISTENCY_UNAVAILABLE")
        assert error.details
    else:
        assert isinstance(request, WriteRequest)
        assert len(request.changes) == len(changes)


@given(st.dictionaries(st.text(max_size=10), junk, max_size=6))
def test_a_mapping_of_anything_is_refused(raw: Any) -> None:
    assert error_of(raw).code == "INVALID_INPUT"
