"""Whatever is accepted can be read again: at once, in every way of reading, after opening anew, and rebuilt."""

import json
import math
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atomlog.client import AtomlogError, Store
from tests.hostile.asking import SPACE, a_batch

EXAMPLES: Final = 60
REFUSALS: Final = {"INVALID_INPUT", "BOUND_EXCEEDED", "REVISION_CONFLICT", "REFERENCE_UNAVAILABLE"}

hostile_text = st.text(max_size=40) | st.sampled_from(
    [
        "",
        "\0",
        "\ud800",
        "\udcff",
        "e\u0301",
        "\u00e9",
        "👨‍👩‍👧",
        "\u202e",
        "\ufeff",
        "\uffff",
        "x" * 300,
        "key:a",
        "@a",
        "null",
    ]
)
numbers = (
    st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e22, 1e-7, 2**63 - 1, -(2**63), 2**53 + 1])
)
leaves = st.none() | st.booleans() | numbers | hostile_text
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hostile_text, inner, max_size=4), max_leaves=12
)
times = st.none() | st.sampled_from(
    ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z", "2026-01-01T00:00:00", "x"]
)
sound_slots = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["about", "by", "x.y-z_1"])},
        optional={"order_key": st.text("aé\U0010ffff\0", max_size=9), "required": st.booleans()},
    ),
    max_size=3,
)
odd_slots = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["about", "member", "group", "Über", ""])},
        optional={"order_key": hostile_text, "mode": st.sampled_from(["refer", "include"])},
    ),
    min_size=1,
    max_size=3,
)
odd_vectors = st.dictionaries(
    st.sampled_from(["mine/1/2/l2", "mine/1/3/l2"]), st.lists(numbers, min_size=1, max_size=3), min_size=1, max_size=1
)
# Mostly sound, with one part that may be anything: else hardly a change would be taken.
sound = st.fixed_dictionaries(
    {"schema": st.sampled_from(["other", "source", "a.b-c_9"]), "value": values}, optional={"slots": sound_slots}
)
odd = st.one_of(
    st.just({}),
    st.just({}),
    st.fixed_dictionaries({"key": hostile_text}),
    st.fixed_dictionaries({"valid_time": st.fixed_dictionaries({}, optional={"from": times, "to": times})}),
    st.fixed_dictionaries({"slots": odd_slots}),
    st.fixed_dictionaries({"vectors": odd_vectors}),
    st.fixed_dictionaries({"policy": st.sampled_from(["p", "P"])}),
    st.fixed_dictionaries({"schema": st.sampled_from(["collection", "statement", "membership", "No"])}),
    st.fixed_dictionaries({"provenance": st.fixed_dictionaries({"kind": st.sampled_from(["imported", "extract"])})}),
)
changes = st.builds(lambda one, other: {**one, **other}, sound, odd)


def same(value: Any) -> Any:
    """A value as the canonical form has it: 1.0 is 1, −0 is 0; with the type of each part."""
    if isinstance(value, dict):
        return {name: same(item) for name, item in value.items()}
    if isinstance(value, list):
        return [same(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e21:
        value = int(value)
    return type(value).__name__, value


class Accepted:
    """A store, and what it has accepted: atom → revision → the change that made it."""

    def __init__(self, store: Store, target: str) -> None:
        self.store = store
        self.target = target
        self.changes: dict[str, dict[str, dict[str, Any]]] = {}
        self.refused = 0

    def offer(self, batch: list[dict[str, Any]]) -> None:
        """Write each with a target for its slots, then a second version of it; a refusal has to be a typed one."""
        for change in batch:
            pointed = [{**slot, "target": self.target} for slot in change.get("slots", ())]
            create = {"op": "create", **change, **({"slots": pointed} if "slots" in change else {})}
            made = self._write(create)
            if made is not None:
                expected = {"atom": made["atom"], "expected": made["revision"]}
                self._write({"op": "revise", "value": change["value"], **expected})

    def _write(self, change: dict[str, Any]) -> dict[str, Any] | None:
        try:
            (made,) = self.store.write(a_batch(change)).to_dict()["results"]
        except AtomlogError as error:
            assert error.code in REFUSALS, error
            assert all(detail["path"] for detail in error.details)
            json.dumps(error.to_dict()).encode()
            self.refused += 1
            return None
        self.changes.setdefault(made["atom"], {})[made["revision"]] = change
        found: dict[str, Any] = made
        return found

    def check(self, store: Store) -> None:
        """Every version by its atom, by itself, and again from its receipt."""
        for atom, versions in self.changes.items():
            history = store.history(atom, limit=1_000)
            rows = history.to_dict()["atoms"]
            assert [row["revision"] for row in rows] == list(versions)
            for row, change in zip(rows, versions.values(), strict=True):
                assert same(row["value"]) == same(json.loads(json.dumps(change["value"]))), change
            assert store.replay(history.receipt).body() == history.body()
            (head,) = store.get(atom, space=SPACE).to_dict()["atoms"]
            assert head["value"] == rows[-1]["value"]
            store.relations(of=atom)
            store.groups(atom)


def test_whatever_is_accepted_reads_back_the_same_now_after_reopening_and_after_a_rebuild(tmp_path: Path) -> None:
    folder = str(tmp_path / "s")
    Store.init(folder, vector_spaces=["hashing/1/512/cosine", "mine/1/2/l2"])
    with Store.open(folder) as store:
        target = store.write(a_batch({"op": "create", "schema": "other", "value": 0})).to_dict()["results"][0]["atom"]
        accepted = Accepted(store, target)

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @example([{"schema": "other", "value": {"\0": [1.0, -0.0, 1e22, 2**63 - 1], "": None}}])
        @example([{"schema": "other", "value": "\ud800"}, {"schema": "other", "value": float("nan")}])
        @given(st.lists(changes, min_size=1, max_size=3))
        def offer(batch: list[dict[str, Any]]) -> None:
            accepted.offer(batch)

        offer()
        assert len(accepted.changes) > EXAMPLES / 4, "almost nothing was accepted"
        assert accepted.refused > EXAMPLES / 4, "almost nothing was refused"
        store.wait_until_current(60)
        accepted.check(store)
        digest = store.content_digest()
    with Store.open(folder) as store:
        store.wait_until_current(60)
        accepted.check(store)
        reports = store.rebuild()
        assert [report for report in reports if not report.equal] == []
        accepted.check(store)
        assert store.content_digest() == digest
        health = [projection["health"] for projection in store.status().to_dict()["projections"]]
        assert health == ["OK"] * len(health)
