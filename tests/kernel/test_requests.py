"""From JSON to a typed write request: what is understood, and its canonical form."""

import json
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from atomlog.kernel.ids import keyed_id
from atomlog.kernel.model import (
    KEEP,
    Absent,
    Alias,
    Create,
    Handle,
    HeadIs,
    HeadUnchanged,
    OriginRequest,
    ProvenanceRequest,
    RangeUnchanged,
    Retire,
    Revise,
    ScopeUnchanged,
    SlotRequest,
)
from atomlog.kernel.request_types import Batch
from atomlog.kernel.requests import parse_write, parse_write_json
from atomlog.schemas.revision import ValidTime
from tests.kernel.write_batches import (
    SPACE,
    T0,
    A,
    B,
    C,
    Numbers,
    R,
    batch,
    create,
    failing,
    only_slot,
    ref,
    revise,
    slots,
)

# --- what is understood

WHOLE: Batch = {
    "space": "notes",
    "idempotency_key": "k-1",
    "changes": [
        {
            "op": "create",
            "as": "@p",
            "key": "tea",
            "schema": "collection",
            "policy": "private",
            "value": {"title": "Tea"},
        },
        {
            "op": "create",
            "as": "@b",
            "schema": "source",
            "value": {"text": "Green tea, 80 °C"},
            "valid_time": {"from": "2026-03-01T09:00:00+09:00", "to": None},
            "vectors": {"supplied/1/2/l2": [1, 0.5]},
        },
        {
            "op": "create",
            "schema": "membership",
            "slots": [
                {"role": "group", "target": "@p", "mode": "refer"},
                {"role": "member", "target": "@b", "order_key": "a0", "required": True},
            ],
        },
        {
            "op": "revise",
            "atom": ref(A),
            "expected": ref(B),
            "value": None,
            "origins": [{"source": ref(B), "revision": ref(C), "start": 0, "end": 16}],
            "provenance": {"kind": "extract", "activity": "split", "receipts": [ref(R)], "model": "m"},
        },
        {"op": "retire", "as": "@gone", "atom": "key:old", "expected": ref(B)},
    ],
    "preconditions": [
        {"type": "head", "atom": ref(A), "revision": ref(B)},
        {"type": "absent", "atom": "@p"},
        {"type": "unchanged", "atom": ref(A), "since": ref(B)},
        {"type": "unchanged", "atom": ref(A), "since": 7},
        {"type": "range", "role": "group", "target": ref(A), "unchanged_since": 1042},
        {"type": "scope", "schema": "source", "unchanged_since": -1},
    ],
}


def test_a_whole_batch_becomes_typed_values() -> None:
    request = parse_write(WHOLE)
    assert (request.space, request.idempotency_key) == ("notes", "k-1")
    assert request.changes == (
        Create(
            path="changes[0]",
            alias="@p",
            key="tea",
            schema="collection",
            policy="private",
            value={"title": "Tea"},
        ),
        Create(
            path="changes[1]",
            alias="@b",
            key=None,
            schema="source",
            policy="notes",
            value={"text": "Green tea, 80 °C"},
            valid_time=ValidTime(from_us=T0, to_us=None),
            vectors=(("supplied/1/2/l2", (1.0, 0.5)),),
        ),
        Create(
            path="changes[2]",
            alias=None,
            key=None,
            schema="membership",
            policy="notes",
            value=None,
            slots=(
                SlotRequest(role="group", target=Alias("@p")),
                SlotRequest(role="member", target=Alias("@b"), required=True, order_key=b"a0"),
            ),
        ),
        Revise(
            path="changes[3]",
            alias=None,
            atom=A,
            expected=B,
            value=None,
            slots=KEEP,
            valid_time=KEEP,
            origins=(OriginRequest(source=B, revision=C, start=0, end=16),),
            provenance=ProvenanceRequest(kind="extract", activity="split", receipts=(R,), model="m"),
        ),
        Retire(path="changes[4]", alias="@gone", atom=keyed_id("notes", "notes", "old"), expected=B),
    )
    assert request.preconditions == (
        HeadIs(path="preconditions[0]", atom=A, revision=B),
        Absent(path="preconditions[1]", atom=Alias("@p")),
        HeadUnchanged(path="preconditions[2]", atom=A, since=B),
        HeadUnchanged(path="preconditions[3]", atom=A, since=7),
        RangeUnchanged(path="preconditions[4]", role="group", target=A, unchanged_since=1042),
        ScopeUnchanged(path="preconditions[5]", schema="source", unchanged_since=-1),
    )


def test_json_text_is_read_as_the_mapping_it_stands_for() -> None:
    assert parse_write_json(json.dumps(WHOLE)) == parse_write(WHOLE)


def test_a_request_that_was_parsed_before_passes_as_it_is() -> None:
    request = parse_write(WHOLE)
    assert parse_write(request) is request


@pytest.mark.parametrize(
    "value", ["note", 7, 1.5, True, None, [], {}, {"a": [1, {"b": None}]}, "말/日本語/👨‍👩‍👧", "a\x00b"]
)
def test_any_json_may_be_a_value_and_stays_as_it_was(value: Any) -> None:
    change = parse_write(batch(create(value=value))).changes[0]
    assert isinstance(change, Create)
    assert change.value == value
    assert type(change.value) is type(value)


def test_slots_and_valid_time_left_out_of_a_revise_are_kept_and_empty_ones_clear() -> None:
    kept, cleared = parse_write(batch(revise(), revise(atom=ref(C), slots=[], valid_time=None))).changes
    assert isinstance(kept, Revise)
    assert isinstance(cleared, Revise)
    assert (kept.slots, kept.valid_time) == (KEEP, KEEP)
    assert (cleared.slots, cleared.valid_time) == ((), None)
    null = parse_write(batch(revise(slots=None))).changes[0]
    assert isinstance(null, Revise)
    assert null.slots == ()


@pytest.mark.parametrize("policy", [{}, {"policy": None}], ids=["absent", "null"])
def test_the_policy_left_out_is_named_like_the_space(policy: Mapping[str, Any]) -> None:
    change = parse_write(batch(create(**policy))).changes[0]
    assert isinstance(change, Create)
    assert change.policy == SPACE


@pytest.mark.parametrize(
    ("name", "atom"),
    [
        (ref(A), A),
        (ref(A).upper(), A),
        (A, A),
        (uuid.UUID(bytes=A), A),
        ("key:tea", keyed_id(SPACE, SPACE, "tea")),
        ("key:key:a#b@c", keyed_id(SPACE, SPACE, "key:a#b@c")),
        ({"key": "tea"}, keyed_id(SPACE, SPACE, "tea")),
        ({"key": "tea", "policy": "private"}, keyed_id(SPACE, "private", "tea")),
        ({"key": "tea", "space": "other"}, keyed_id("other", "other", "tea")),
        ({"key": "tea", "space": "other", "policy": "p"}, keyed_id("other", "p", "tea")),
        ({"key": "tea", "space": None, "policy": None}, keyed_id(SPACE, SPACE, "tea")),
        (f"{ref(R)}#a12", Handle(R, "a12")),
        ("@me", Alias("@me")),
    ],
    ids=str,
)
def test_an_atom_is_named_in_each_of_the_ways(name: Any, atom: Any) -> None:
    change = parse_write(slots({"role": "r", "target": name})).changes[0]
    assert isinstance(change, Create)
    assert change.slots[0].target == atom


def test_an_alias_may_be_used_before_the_change_that_gives_it() -> None:
    first = parse_write(batch(create(slots=[{"role": "r", "target": "@later"}]), create(**{"as": "@later"}))).changes[0]
    assert isinstance(first, Create)
    assert first.slots[0].target == Alias("@later")


def test_a_slot_refers_unless_it_includes() -> None:
    assert only_slot() == only_slot(mode="refer") == only_slot(mode=None, revision=None, required=None, order_key=None)
    assert only_slot(revision=ref(B)) == SlotRequest(role="r", target=A, at=B)
    assert only_slot(mode="include", revision=ref(B)) == SlotRequest(role="r", target=A, at=B, include=True)


def test_an_alias_in_an_include_or_as_a_revision_pins_the_new_revision() -> None:
    change = parse_write(
        batch(
            create(
                slots=[
                    {"role": "r", "target": "@x", "mode": "include"},
                    {"role": "r", "target": "@x", "revision": "@x"},
                    {"role": "r", "target": "@x"},
                    {"role": "r", "target": ref(A), "revision": "@y", "mode": "include"},
                ],
                origins=[{"source": "@x", "start": 0, "end": 1}],
            ),
            create(**{"as": "@x"}),
            revise(**{"as": "@y"}),
        )
    ).changes[0]
    assert isinstance(change, Create)
    assert [slot.at for slot in change.slots] == [Alias("@x"), Alias("@x"), None, Alias("@y")]
    assert change.origins[0].revision == Alias("@x")


@pytest.mark.parametrize(
    ("valid_time", "expected"),
    [
        (None, None),
        ({"from": "2026-03-01T00:00:00Z"}, ValidTime(from_us=T0, to_us=None)),
        ({"from": None, "to": "2026-03-01T09:00:00+09:00"}, ValidTime(from_us=None, to_us=T0)),
        ({"from": "1969-12-31T23:59:59.999999Z", "to": "1970-01-01T00:00:00Z"}, ValidTime(from_us=-1, to_us=0)),
        ({"from": "9999-01-01T00:00:00Z"}, ValidTime(from_us=253_370_764_800_000_000, to_us=None)),
    ],
    ids=str,
)
def test_valid_time_is_half_open_and_either_end_may_be_open(valid_time: Any, expected: Any) -> None:
    change = parse_write(batch(create(valid_time=valid_time))).changes[0]
    assert isinstance(change, Create)
    assert change.valid_time == expected


# --- the canonical form


def test_the_canonical_form_is_of_what_was_sent() -> None:
    request = parse_write(batch(create(**{"as": "@x", "key": "か\u3099"})))
    assert request.canonical.decode() == (
        '{"changes":[{"as":"@x","key":"か\u3099","op":"create","schema":"source",'
        '"value":{"text":"Green tea, 80 °C"}}],"preconditions":null,"session":null}'
    )


def canonical_of(**more: Any) -> bytes:
    return parse_write(batch(create(), **more)).canonical


def test_what_is_absent_is_null_and_the_key_and_the_order_of_fields_do_not_count() -> None:
    base = canonical_of()
    assert base == canonical_of(preconditions=None) == canonical_of(session=None) == canonical_of(idempotency_key="k-2")
    assert parse_write(OrderedDict(reversed(batch(create()).items()))).canonical == base
    assert canonical_of(preconditions=[]) != base


@pytest.mark.parametrize(
    "changes",
    [
        [create(policy=SPACE)],
        [create(slots=[])],
        [create(value={"text": "green tea, 80 °C"})],
        [create(key="tea")],
        [create(valid_time=None)],
        [create(), create()],
    ],
    ids=str,
)
def test_whatever_else_is_written_otherwise_is_another_request(changes: Any) -> None:
    assert parse_write(batch(*changes)).canonical != canonical_of()


def test_the_order_of_changes_counts() -> None:
    one, other = create(key="a"), create(key="b")
    assert parse_write(batch(one, other)).canonical != parse_write(batch(other, one)).canonical


def test_equal_numbers_are_the_same_request() -> None:
    assert parse_write(batch(create(value=1.0))).canonical == parse_write(batch(create(value=1))).canonical


# --- values from Python


class Double(float):
    """As a number of another library is a float, and shown otherwise."""

    def __repr__(self) -> str:
        return f"Double({float(self)})"


@pytest.mark.parametrize(
    "numbers",
    [
        [0.5, 1.0],
        (0.5, 1),
        Numbers([0.5, 1.0]),
        array("d", [0.5, 1.0]),
        [Double(0.5), Double(1.0)],
        (Numbers(0.5, 1), Numbers(1, 1)),
    ],
    ids=lambda numbers: type(numbers).__name__,
)
def test_numbers_may_come_in_any_sequence(numbers: Any) -> None:
    request = parse_write(batch(create(vectors={"supplied/1/2/l2": numbers})))
    assert isinstance(request.changes[0], Create)
    assert request.changes[0].vectors == (("supplied/1/2/l2", (0.5, 1.0)),)
    assert b'"vectors":{"supplied/1/2/l2":[0.5,1]}' in request.canonical


def test_mappings_and_tuples_are_the_json_they_stand_for() -> None:
    raw = MappingProxyType({**batch(), "changes": (MappingProxyType(create(value={"a": (1, (2,))})),)})
    assert parse_write(raw) == parse_write(batch(create(value={"a": [1, [2]]})))


def test_raw_ids_stand_for_ids_everywhere_but_inside_a_value() -> None:
    raw = batch(revise(atom=A, expected=B, provenance={"receipts": [R]}))
    assert parse_write(raw) == parse_write(batch(revise(provenance={"receipts": [ref(R)]})))
    assert failing(batch(create(value={"id": A}))) == ["changes[0].value.id"]
    assert failing(batch(revise(atom=A[:15]))) == ["changes[0].atom"]
