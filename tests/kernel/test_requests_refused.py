"""A batch that breaks a rule is refused with the path of every failing part, and the way out."""

import json
import math
from typing import Any

import pytest

from atomlog.kernel.errors import InvalidError
from atomlog.kernel.requests import parse_write, parse_write_json
from tests.kernel.write_batches import (
    A,
    B,
    R,
    batch,
    create,
    error_of,
    failing,
    message,
    only_slot,
    ref,
    retire,
    revise,
    slots,
)


@pytest.mark.parametrize("raw", [None, 5, "text", [], (), b"{}", ...], ids=repr)
def test_what_is_no_mapping_is_no_batch(raw: Any) -> None:
    assert failing(raw)[0] == "$"


def test_every_missing_field_is_named() -> None:
    assert failing({}) == ["space", "idempotency_key", "changes"]


def test_every_failing_part_of_every_change_is_named_at_once() -> None:
    raw = batch(
        {"op": "creat"},
        5,
        create(
            schema="No Such", policy="", key="", value=math.nan, slots=[{"role": "r"}, {"target": "@q", "mode": "x"}]
        ),
        revise(atom="0199", expected=None, value={"text": "\udc95"}),
        {"op": "retire"},
        preconditions=[{"type": "rnge"}, {"type": "range", "role": "r"}],
        spaces=1,
        session="s",
    )
    assert sorted(failing(raw)) == sorted(
        [
            "changes[0].op",
            "changes[1]",
            "changes[2].schema",
            "changes[2].policy",
            "changes[2].key",
            "changes[2].value",
            "changes[2].slots[0].target",
            "changes[2].slots[1].role",
            "changes[2].slots[1].target",
            "changes[2].slots[1].mode",
            "changes[3].atom",
            "changes[3].expected",
            "changes[3].value.text",
            "changes[4].atom",
            "changes[4].expected",
            "preconditions[0].type",
            "preconditions[1].target",
            "preconditions[1].unchanged_since",
            "spaces",
            "session",
        ]
    )


def test_the_error_says_the_first_and_how_many_more() -> None:
    error = error_of({})
    assert error.message == "space: is missing (and 2 more)"


@pytest.mark.parametrize(
    ("raw", "path", "hint"),
    [
        (batch(create(), preconditons=[]), "preconditons", "did you mean 'preconditions'"),
        (batch(create(shema="x")), "changes[0].shema", "did you mean 'schema'"),
        (batch({**create(), "op": "Create"}), "changes[0].op", "did you mean 'create'"),
        (batch(create(expected=ref(B))), "changes[0].expected", "no head"),
        (batch(create(atom=ref(A))), "changes[0].atom", '"key"'),
        (batch(revise(policy="p")), "changes[0].policy", "leave it out"),
        (batch(retire(policy="p")), "changes[0].policy", "leave it out"),
        (batch(revise(schema="s")), "changes[0].schema", "leave it out"),
        (batch(revise(key="k")), "changes[0].key", '"key:TEXT"'),
        (batch(retire(value=None)), "changes[0].value", "unknown field"),
        (slots({"role": "r", "target": ref(A), "rvision": ref(B)}), "changes[0].slots[0].rvision", "'revision'"),
        (slots({"role": "r", "target": ref(A), "at": ref(B)}), "changes[0].slots[0].at", '"revision"'),
        (slots({"role": "r", "target": "@you"}), "changes[0].slots[0].target", "@me"),
        (slots({"role": "r", "target": {"key": "a", "polcy": "p"}}), "changes[0].slots[0].target.polcy", "'policy'"),
        (batch(create(provenance={"kind": "sourc"})), "changes[0].provenance.kind", "'source'"),
        (batch(create(provenance={"who": "me"})), "changes[0].provenance.who", "unknown field"),
        (
            batch(create(origins=[{"source": ref(A), "revision": ref(B), "start": 0, "stop": 1, "end": 1}])),
            "changes[0].origins[0].stop",
            "unknown field",
        ),
        (
            batch(create(valid_time={"from": "2026-03-01T00:00:00Z", "till": None})),
            "changes[0].valid_time.till",
            "unknown",
        ),
        (
            batch(create(), preconditions=[{"type": "head", "atom": ref(A), "revision": ref(B), "since": 1}]),
            "preconditions[0].since",
            "unknown field",
        ),
        (batch(create(**{"a b": 1})), "changes[0]['a b']", "unknown field"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_field_or_word_is_refused_with_a_better_one(raw: Any, path: str, hint: str) -> None:
    assert failing(raw) == [path]
    assert hint in message(raw)


@pytest.mark.parametrize(
    "name",
    [
        "0199",
        "tea",
        "",
        "key:",
        "key:a\x00",
        "@nobody",
        "@",
        "@a b",
        5,
        True,
        [],
        {},
        {"space": "s"},
        {"key": 5},
        {"key": "a", "space": "No"},
        f"{ref(R)}#",
        f"{ref(R)}#b1",
        f"{ref(R)}#a0",
        f"{ref(R)}#a1#a2",
        "x#a1",
        f"{ref(R)}@3",
        "00000000-0000-0000-0000-000000000000",
    ],
    ids=repr,
)
def test_what_names_no_atom_is_refused_wherever_it_stands(name: Any) -> None:
    """In a slot, a change, an origin and a guard; a part of a key object is named itself."""
    raw = batch(
        revise(
            atom=name,
            slots=[{"role": "r", "target": name}],
            origins=[{"source": name, "revision": ref(B), "start": 0, "end": 1}],
        ),
        preconditions=[
            {"type": "absent", "atom": name},
            {"type": "range", "role": "r", "target": name, "unchanged_since": 0},
        ],
    )
    paths = [
        "changes[0].atom",
        "changes[0].slots[0].target",
        "changes[0].origins[0].source",
        "preconditions[0].atom",
        "preconditions[1].target",
    ]
    found = failing(raw)
    assert {path.removesuffix(".key").removesuffix(".space") for path in found} == set(paths)
    assert len(found) == len(paths)


@pytest.mark.parametrize("mode", ["refer", "include"])
def test_an_include_needs_a_fixed_version_and_a_reference_does_not(mode: str) -> None:
    for target in (ref(A), "key:tea", f"{ref(R)}#a1"):
        raw = slots({"role": "r", "target": target, "mode": mode})
        if mode == "refer":
            parse_write(raw)
        else:
            assert failing(raw) == ["changes[0].slots[0].revision"]


@pytest.mark.parametrize("revision", ["0199", "key:tea", f"{ref(R)}#a1", "@nobody", 5, {"key": "tea"}], ids=repr)
def test_a_pin_is_a_revision_or_an_alias(revision: Any) -> None:
    assert failing(slots({"role": "r", "target": ref(A), "revision": revision})) == ["changes[0].slots[0].revision"]


def test_an_alias_pins_only_the_atom_that_it_stands_for() -> None:
    raw = batch(
        create(**{"as": "@x"}, slots=[{"role": "r", "target": "@y", "revision": "@x"}]),
        create(
            **{"as": "@y"},
            slots=[{"role": "r", "target": ref(A), "revision": "@y"}],
            origins=[{"source": ref(B), "revision": "@z", "start": 0, "end": 1}],
        ),
        revise(
            **{"as": "@z"},
            slots=[
                {"role": "r", "target": ref(A), "revision": "@z"},
                {"role": "r", "target": f"{ref(R)}#a1", "revision": "@z"},
            ],
        ),
        create(key="tea", **{"as": "@k"}, slots=[{"role": "r", "target": "key:tea", "revision": "@k"}]),
    )
    assert failing(raw) == [
        "changes[0].slots[0].revision",
        "changes[1].slots[0].revision",
        "changes[1].origins[0].revision",
    ]


@pytest.mark.parametrize(
    ("slot", "part"),
    [
        ({"role": "No"}, "role"),
        ({"role": None}, "role"),
        ({"mode": "embed"}, "mode"),
        ({"mode": 5}, "mode"),
        ({"required": 1}, "required"),
        ({"required": "yes"}, "required"),
        ({"order_key": 5}, "order_key"),
        ({"order_key": "x" * 65}, "order_key"),
        ({"order_key": "あ" * 22}, "order_key"),
    ],
    ids=str,
)
def test_a_part_of_a_slot_that_is_not_as_it_must_be_is_named(slot: dict[str, Any], part: str) -> None:
    assert failing(slots({"role": "r", "target": ref(A), **slot})) == [f"changes[0].slots[0].{part}"]


def test_an_order_key_is_the_bytes_of_its_text() -> None:
    assert only_slot(order_key="あ" * 21 + "a").order_key == ("あ" * 21 + "a").encode()
    assert only_slot(order_key="").order_key == b""


@pytest.mark.parametrize(
    ("valid_time", "path"),
    [
        ({}, ""),
        ({"from": None, "to": None}, ""),
        ({"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T00:00:00Z"}, ""),
        ({"from": "2026-03-02T00:00:00Z", "to": "2026-03-02T08:00:00+09:00"}, ""),
        ("2026-03-01T00:00:00Z", ""),
        ([], ""),
        ({"from": "2026-03-01T00:00:00"}, ".from"),
        ({"from": "yesterday"}, ".from"),
        ({"to": 0}, ".to"),
        ({"from": "2026-03-01T00:00:00Z", "to": "0001-01-01T00:00:00+09:00"}, ".to"),
    ],
    ids=str,
)
def test_a_valid_time_that_says_nothing_or_cannot_be_is_refused(valid_time: Any, path: str) -> None:
    assert failing(batch(create(valid_time=valid_time))) == [f"changes[0].valid_time{path}"]


@pytest.mark.parametrize(
    ("origin", "parts"),
    [
        ({"start": 5, "end": 5}, [""]),
        ({"start": 6, "end": 5}, [""]),
        ({"start": -1}, [".start"]),
        ({"start": 0.5}, [".start"]),
        ({"start": "0", "end": True}, [".start", ".end"]),
        ({"start": None, "end": None}, [".start", ".end"]),
        ({"revision": None}, [".revision"]),
        ({"source": None, "revision": "0199"}, [".source", ".revision"]),
    ],
    ids=str,
)
def test_an_origin_that_is_no_range_of_a_fixed_version_is_refused(origin: dict[str, Any], parts: list[str]) -> None:
    whole = {"source": ref(A), "revision": ref(B), "start": 0, "end": 9, **origin}
    assert failing(batch(create(origins=[whole]))) == [f"changes[0].origins[0]{part}" for part in parts]


@pytest.mark.parametrize(
    ("vectors", "parts"),
    [
        ({"supplied/1/2/l2": []}, ["['supplied/1/2/l2']"]),
        ({"supplied/1/2/l2": None}, ["['supplied/1/2/l2']"]),
        ({"supplied/1/2/l2": "1,2"}, ["['supplied/1/2/l2']"]),
        ({"supplied/1/2/l2": [1, math.nan]}, ["['supplied/1/2/l2'][1]"]),
        ({"supplied/1/2/l2": [math.inf, -math.inf]}, ["['supplied/1/2/l2'][0]", "['supplied/1/2/l2'][1]"]),
        ({"supplied/1/2/l2": [1, "2", None, True, [1]]}, [f"['supplied/1/2/l2'][{n}]" for n in (1, 2, 3, 4)]),
        ({"supplied": [1]}, [".supplied"]),
        ({"supplied/1/0/l2": [1]}, ["['supplied/1/0/l2']"]),
        ({"supplied/1/5000/l2": [1]}, ["['supplied/1/5000/l2']"]),
        ({"supplied/1/2/euclid": [1]}, ["['supplied/1/2/euclid']"]),
        ([[1, 2]], [""]),
    ],
    ids=str,
)
def test_a_vector_that_could_not_be_indexed_is_refused_with_its_number(vectors: Any, parts: list[str]) -> None:
    assert failing(batch(create(vectors=vectors))) == [f"changes[0].vectors{part}" for part in parts]


def test_one_bad_vector_among_a_hundred_is_named() -> None:
    changes = [create(vectors={"supplied/1/2/l2": [1.0, n]}) for n in range(100)]
    changes[41]["vectors"] = {"supplied/1/2/l2": [1.0, math.nan]}
    assert failing(batch(*changes)) == ["changes[41].vectors['supplied/1/2/l2'][1]"]


@pytest.mark.parametrize(
    ("provenance", "part"),
    [
        ({"kind": "self"}, ".kind"),
        ({"kind": 5}, ".kind"),
        ({"activity": 5}, ".activity"),
        ({"model": "x" * 1_025}, ".model"),
        ({"prompt_digest": ["a"]}, ".prompt_digest"),
        ({"receipts": ref(R)}, ".receipts"),
        ({"receipts": [ref(R), "0199"]}, ".receipts[1]"),
        ("source", ""),
        ([], ""),
    ],
    ids=str,
)
def test_provenance_that_is_not_as_it_must_be_is_named(provenance: Any, part: str) -> None:
    assert failing(batch(create(provenance=provenance))) == [f"changes[0].provenance{part}"]


@pytest.mark.parametrize(
    ("guard", "part"),
    [
        ({"type": "head", "atom": ref(A)}, ".revision"),
        ({"type": "head", "atom": ref(A), "revision": "@me"}, ".revision"),
        ({"type": "unchanged", "atom": ref(A), "since": -2}, ".since"),
        ({"type": "unchanged", "atom": ref(A), "since": "7"}, ".since"),
        ({"type": "unchanged", "atom": ref(A), "since": 1.5}, ".since"),
        ({"type": "unchanged", "atom": ref(A), "since": True}, ".since"),
        ({"type": "range", "role": "No", "target": ref(A), "unchanged_since": 0}, ".role"),
        ({"type": "range", "role": "r", "target": ref(A), "unchanged_since": None}, ".unchanged_since"),
        ({"type": "scope", "schema": "s", "unchanged_since": 2**63}, ".unchanged_since"),
        ({"type": "scope", "schema": 5, "unchanged_since": 0}, ".schema"),
        ({"atom": ref(A)}, ".type"),
        (5, ""),
    ],
    ids=str,
)
def test_a_precondition_that_is_not_as_it_must_be_is_named(guard: Any, part: str) -> None:
    assert failing(batch(create(), preconditions=[guard])) == [f"preconditions[0]{part}"]


@pytest.mark.parametrize(
    "key",
    ["", "x" * 513, "あ" * 171, "a\x00", "a\nb", "\x85", "\ud800", 5, None, b"k"],
    ids=["empty", "513", "513 in 171", "NUL", "line", "NEL", "surrogate", "number", "null", "bytes"],
)
def test_an_idempotency_key_is_a_text_within_its_limit(key: Any) -> None:
    assert failing({**batch(create()), "idempotency_key": key}) == ["idempotency_key"]


def test_an_idempotency_key_is_the_same_in_every_normal_form() -> None:
    key = parse_write({**batch(create()), "idempotency_key": "か\u3099"}).idempotency_key
    assert key == "が"


@pytest.mark.parametrize("space", ["", "No", "a b", "x" * 65, 5, None])
def test_a_space_is_a_name(space: Any) -> None:
    assert failing({**batch(create(key="k")), "space": space}) == ["space"]


@pytest.mark.parametrize("changes", [[], None, {}, "x", 5], ids=repr)
def test_a_batch_has_changes(changes: Any) -> None:
    assert failing({**batch(), "changes": changes}) == ["changes"]


@pytest.mark.parametrize("op", ["create", "revise"])
def test_the_word_that_is_the_stores_own_is_refused_in_a_value(op: str) -> None:
    change = {"create": create, "revise": revise}[op](value={"blob": {"address": "00"}})
    assert failing(batch(change)) == ["changes[0].value.blob"]
    parse_write(batch({**change, "value": {"inside": {"blob": 1}}}))


def test_a_revise_without_a_value_is_refused_and_null_is_a_value() -> None:
    raw = revise()
    del raw["value"]
    assert failing(batch(raw)) == ["changes[0].value"]
    parse_write(batch(revise(value=None)))


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**63, -(2**63), 1e20, "\udc95", {"\ud800": 1}, {1: 2}, {1, 2}, b"x", ..., bytearray(2)],
    ids=repr,
)
def test_what_json_cannot_hold_is_refused_inside_a_value(value: Any) -> None:
    assert len(failing(batch(create(value={"a": [value]})))) == 1
    assert failing(batch(create(value={"a": [value]})))[0].startswith("changes[0].value.a[0]")


def test_an_emoji_cut_in_half_is_one_finding_and_the_rest_is_still_checked() -> None:
    whole, half = json.dumps("😀"), json.dumps("\ud83d")
    text = (
        f'{{"space":"notes","idempotency_key":"k","changes":[{json.dumps(create())},{{"op":"create","schema":"source",'
    )
    assert parse_write_json(text + f'"value":{whole}}}]}}').changes[1].path == "changes[1]"
    with pytest.raises(InvalidError) as raised:
        parse_write_json(text + f'"value":{half},"policy":5}}]}}')
    assert [found["path"] for found in raised.value.details] == ["changes[1].value", "changes[1].policy"]
