"""Selectors from JSON and back, and every wrong part refused by its path."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id, keyed_id
from atomlog.kernel.model import Handle
from atomlog.projections.read.positions import parse_at
from atomlog.projections.read.refs import KeyHome, parse_ref
from atomlog.projections.read.scope import SLOT_FACETS, Scope
from atomlog.projections.read.selectors import (
    ByIds,
    Groups,
    History,
    Members,
    Recall,
    Relations,
    Selector,
    SlotsOf,
    parse_selector,
    selector_dict,
)
from tests.support.batches import atom_id

A, B = format_id(atom_id("a")), format_id(atom_id("b"))
RECEIPT = format_id(b"\x01" * 16)

refs = st.one_of(
    st.binary(min_size=16, max_size=16).filter(any),
    st.builds(Handle, st.binary(min_size=16, max_size=16).filter(any), st.integers(1, 99).map(lambda n: f"a{n}")),
)
several = st.lists(refs, max_size=3, unique=True).map(tuple)
names = st.lists(st.sampled_from(("a", "b-1", "c.d_e")), max_size=2, unique=True).map(tuple)
times = st.one_of(st.none(), st.integers(-(10**15), 10**15))
scopes = st.builds(
    Scope,
    policies=names,
    schemas=names,
    spaces=names,
    group_and=several,
    group_not=several,
    slots=st.lists(refs, max_size=4).map(lambda found: tuple(zip(SLOT_FACETS, found, strict=False))),
    time_from_us=times,
)
texts = st.one_of(st.none(), st.text(min_size=1, max_size=9).filter(str.strip))
vectors = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=3).map(
    lambda numbers: (("x/1/3/l2", tuple(numbers)),)
)
selectors = st.one_of(
    st.builds(ByIds, ids=several.filter(bool)),
    st.builds(ByIds, ids=refs.map(lambda ref: (ref,)), revision=st.just(b"\x05" * 16)),
    st.builds(History, atom=refs),
    st.builds(Relations, target=refs, role=st.sampled_from((None, "about"))),
    st.builds(SlotsOf, atom=refs),
    st.builds(Members, group=refs, and_=several, or_=several, not_=several, include_retired=st.booleans()),
    st.builds(Groups, member=refs),
    st.builds(Recall, text=texts, context=texts, reasoning=texts, vectors=vectors, scope=scopes),
)


@given(selectors)
def test_a_selector_reads_back_from_its_json(selector: Selector) -> None:
    assert parse_selector(selector_dict(selector)) == selector


def test_ids_are_uuids_keys_rows_of_receipts_or_bytes() -> None:
    home = KeyHome(space="notes", policy="team")
    assert parse_ref(A.upper(), "x") == atom_id("a")
    assert parse_ref(atom_id("a"), "x") == atom_id("a")
    assert parse_ref(f"{RECEIPT}#a12", "x") == Handle(b"\x01" * 16, "a12")
    assert parse_ref("key:茶#1", "x") == keyed_id("default", "default", "茶#1")
    assert parse_ref("key:tea", "x", KeyHome(space="notes")) == keyed_id("notes", "notes", "tea")
    assert parse_ref("key:tea", "x", home) == keyed_id("notes", "team", "tea")
    assert parse_ref({"key": "tea"}, "x", home) == keyed_id("notes", "team", "tea")
    assert parse_ref({"key": "tea", "space": "other"}, "x", home) == keyed_id("other", "other", "tea")
    assert parse_ref({"key": "tea", "policy": "p"}, "x", home) == keyed_id("notes", "p", "tea")
    assert parse_ref({"key": "tea", "space": "s", "policy": "p"}, "x") == keyed_id("s", "p", "tea")


@pytest.mark.parametrize(
    "wrong",
    [
        "", "tea", A[:-1], f"{A}0", "@p", "key:", "key:a\x00", "key:\ud800", f"{RECEIPT}#b1", f"{RECEIPT}#a0", "#a1",
        None, 7, 1.5, True, [A], {}, {"key": "k", "name": 1}, {"key": 3}, {"key": "k", "space": "A B"}, b"", b"x" * 15,
        bytes(16), "00000000-0000-0000-0000-000000000000",
    ],
)  # fmt: skip
def test_what_names_no_atom_is_refused_with_its_path(wrong: Any) -> None:
    with pytest.raises(AtomlogError) as caught:
        parse_ref(wrong, "selector.group")
    assert caught.value.code == "INVALID_INPUT"
    assert caught.value.details[0]["path"].startswith("selector.group")


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (None, "selector"),
        ([], "selector"),
        ({}, "selector.type"),
        ({"type": "everything"}, "selector.type"),
        ({"type": ["ids"]}, "selector.type"),
        ({"type": "ids"}, "selector.ids"),
        ({"type": "ids", "ids": A}, "selector.ids"),
        ({"type": "ids", "ids": []}, "selector.ids"),
        ({"type": "ids", "ids": [A, "x"]}, "selector.ids[1]"),
        ({"type": "ids", "ids": [A] * 1_001}, "selector.ids"),
        ({"type": "ids", "ids": [A, B], "revision": B}, "selector.revision"),
        ({"type": "ids", "ids": [A], "revision": "new"}, "selector.revision"),
        ({"type": "ids", "ids": [A], "at": 3}, "selector.at"),
        ({"type": "history"}, "selector.atom"),
        ({"type": "relations", "target": A, "role": "No Role"}, "selector.role"),
        ({"type": "members", "group": A, "and": [B, None]}, "selector.and[1]"),
        ({"type": "members", "group": A, "nand": [B]}, "selector.nand"),
        ({"type": "members", "group": A, "include_retired": "yes"}, "selector.include_retired"),
        ({"type": "members", "group": A, "and": [B] * 65}, "selector.and"),
        ({"type": "recall"}, "selector"),
        ({"type": "recall", "text": " \n"}, "selector.text"),
        ({"type": "recall", "text": 7}, "selector.text"),
        ({"type": "recall", "text": "a\ud800"}, "selector.text"),
        ({"type": "recall", "text": "x" * 65_537}, "selector.text"),
        ({"type": "recall", "context": ""}, "selector.context"),
        ({"type": "recall", "vectors": [1.0]}, "selector.vectors"),
        ({"type": "recall", "vectors": {"x/1/2/l2": []}}, "selector.vectors['x/1/2/l2']"),
        ({"type": "recall", "vectors": {"x/1/2/l2": "12"}}, "selector.vectors['x/1/2/l2']"),
        ({"type": "recall", "vectors": {"x/1/2/l2": [1.0, float("nan")]}}, "selector.vectors['x/1/2/l2'][1]"),
        ({"type": "recall", "vectors": {"x/1/2/l2": [1e39]}}, "selector.vectors['x/1/2/l2'][0]"),
        ({"type": "recall", "vectors": {"x/1/2/l2": [True]}}, "selector.vectors['x/1/2/l2'][0]"),
        ({"type": "recall", "vectors": {"x/1/2/l2": [10**400]}}, "selector.vectors['x/1/2/l2'][0]"),
        ({"type": "recall", "vectors": {"a/1/1/l2": [1], "b/1/1/l2": [1]}}, "selector.vectors"),
        ({"type": "recall", "text": "x", "scope": {"colour": "red"}}, "selector.scope.colour"),
        ({"type": "recall", "text": "x", "scope": []}, "selector.scope"),
        ({"type": "recall", "text": "x", "scope": {"schema": "A"}}, "selector.scope.schema"),
        ({"type": "recall", "text": "x", "scope": {"policy": ["a", 3]}}, "selector.scope.policy[1]"),
        ({"type": "recall", "text": "x", "scope": {"groups": {"or": [A]}}}, "selector.scope.groups.or"),
        ({"type": "recall", "text": "x", "scope": {"groups": {"not": ["x"]}}}, "selector.scope.groups.not[0]"),
        ({"type": "recall", "text": "x", "scope": {"agent": "x"}}, "selector.scope.agent"),
        ({"type": "recall", "text": "x", "scope": {"time": {"from": "2026-01-01"}}}, "selector.scope.time.from"),
        (
            {"type": "recall", "text": "x", "scope": {"time": {"from": "2026-01-01T00:00:00"}}},
            "selector.scope.time.from",
        ),
        (
            {
                "type": "recall",
                "text": "x",
                "scope": {"time": {"from": "2026-01-02T00:00:00Z", "to": "2026-01-02T09:00:00+09:00"}},
            },
            "selector.scope.time",
        ),
    ],
)
def test_a_wrong_part_is_refused_by_its_path(wrong: Any, path: str) -> None:
    with pytest.raises(AtomlogError) as caught:
        parse_selector(wrong)
    assert (caught.value.code, caught.value.details[0]["path"]) == ("INVALID_INPUT", path)
    assert len(caught.value.message) < 400


def test_what_is_named_twice_counts_once() -> None:
    assert parse_selector({"type": "ids", "ids": [A, B, A]}) == ByIds(ids=(atom_id("a"), atom_id("b")))
    assert parse_selector({"type": "members", "group": A, "and": [B, B]}) == Members(
        group=atom_id("a"), and_=(atom_id("b"),)
    )
    one = parse_selector({"type": "members", "group": A, "and": B})
    assert one == Members(group=atom_id("a"), and_=(atom_id("b"),))


def test_a_position_from_json_is_a_number_or_one_a_partition() -> None:
    assert [parse_at(value) for value in (None, 7, {"0": 3, "1": -1}, {1: 2})] == [None, 7, {0: 3, 1: -1}, {1: 2}]
    for wrong in ("7", 1.0, True, {}, {"x": 1}, {"0": "1"}, {"-1": 1}, {"0": True}, [1], {"０": 1}):
        with pytest.raises(AtomlogError, match="at:"):
            parse_at(wrong)
