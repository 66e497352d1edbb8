"""Reading commands: what they print for people and as JSON."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.consumers.cli.driving import atomlog, batch, fill, note


def keys(*arguments: str) -> tuple[str, ...]:
    return (*arguments, "--space", "notes")


def texts(found: dict[str, object]) -> list[str]:
    atoms = found["atoms"]
    assert isinstance(atoms, list)
    return [atom["value"].get("text") or atom["value"]["title"] for atom in atoms]


def test_get_shows_a_line_an_atom_and_says_the_rest_on_stderr(store: Path) -> None:
    done = atomlog(*keys("get", "key:sencha", "key:black"), store=store)
    assert [line.split("  ", 3)[2:] for line in done.out.splitlines()] == [
        ["source", "Sencha, 70 °C"],
        ["source", "Assam, boiling water"],
    ]
    assert done.err.startswith("2 rows at 2; receipt ")


def test_json_is_the_page_and_nothing_else(store: Path) -> None:
    done = atomlog(*keys("get", "key:sencha", "--json"), store=store)
    page = done.json
    assert page["atoms"][0]["value"] == {"text": "Sencha, 70 °C"}
    assert page.keys() >= {"atoms", "receipt", "continuation", "diagnostics"}
    assert done.err == ""


def test_an_id_may_be_a_key_object_or_a_row_of_a_receipt(store: Path) -> None:
    named = json.dumps({"key": "sencha", "space": "notes", "policy": "notes"})
    page = atomlog("get", named, "--json", store=store).json
    assert texts(page) == ["Sencha, 70 °C"]
    cited = f"{page['receipt']['receipt']}#a1"
    assert texts(atomlog("get", cited, "--json", store=store).json) == ["Sencha, 70 °C"]


def test_the_space_of_keys_may_come_from_the_environment(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMLOG_SPACE", "notes")
    monkeypatch.setenv("ATOMLOG_STORE", str(store))
    assert texts(atomlog("get", "key:sencha", "--json").json) == ["Sencha, 70 °C"]


def test_the_store_may_be_named_before_or_after_the_command(store: Path) -> None:
    before = atomlog("--store", store, *keys("get", "key:sencha"))
    after = atomlog(*keys("get", "key:sencha", "--store", str(store)))
    assert before.out == after.out
    assert before.out


def test_what_is_missing_among_several_is_listed(store: Path) -> None:
    done = atomlog(*keys("get", "key:sencha", "key:nothing"), store=store)
    assert done.code == 0
    assert "not found, or not visible to you" in done.err


def test_history_and_reads_as_of_earlier(store: Path) -> None:
    head = atomlog(*keys("get", "key:sencha", "--json"), store=store).json["atoms"][0]
    change = {"op": "revise", "atom": "key:sencha", "expected": head["revision"], "value": {"text": "Sencha, 75 °C"}}
    (result,) = fill(store, batch("k-3", change))
    assert [
        line.rsplit("  ", 1)[1] for line in atomlog(*keys("history", "key:sencha"), store=store).out.splitlines()
    ] == [
        "Sencha, 70 °C",
        "Sencha, 75 °C",
    ]
    for option in (("--at", "1"), ("--at", "0:1"), ("--as-of", head["recorded_at"]), ("--revision", head["revision"])):
        assert texts(atomlog(*keys("get", "key:sencha", "--json", *option), store=store).json) == ["Sencha, 70 °C"]
    waited = atomlog(*keys("get", "key:sencha", "--json", "--at-least", json.dumps(result["receipt"])), store=store)
    assert texts(waited.json) == ["Sencha, 75 °C"]


def test_members_with_set_algebra(store: Path) -> None:
    def members(*options: str) -> set[str]:
        return set(texts(atomlog(*keys("members", "key:tea", "--json", *options), store=store).json))

    assert members() == {"Sencha, 70 °C", "Assam, boiling water"}
    assert members("--and", "key:green") == {"Sencha, 70 °C"}
    assert members("--not", "key:green") == {"Assam, boiling water"}
    assert members("--or", "key:green") == {"Sencha, 70 °C", "Assam, boiling water"}


def test_a_read_sees_what_was_written_before_it_however_far_the_indexes_are(store: Path) -> None:
    shutil.rmtree(store / "projections")
    assert atomlog(*keys("get", "key:sencha"), store=store).code == 0
    shutil.rmtree(store / "projections")
    assert len(texts(atomlog(*keys("members", "key:tea", "--json"), store=store).json)) == 2


def test_pages_continue(store: Path) -> None:
    first = atomlog(*keys("members", "key:tea", "--limit", "1"), store=store)
    token = first.err.split("more: --continue ")[1].strip()
    second = atomlog(*keys("members", "key:tea", "--limit", "1", "--continue", token), store=store)
    assert first.out.split()[1] != second.out.split()[1]
    assert "more:" not in second.err


def test_groups_and_relations(store: Path) -> None:
    assert set(texts(atomlog(*keys("groups", "key:sencha", "--json"), store=store).json)) == {"tea", "green"}
    done = atomlog(*keys("relations", "--target", "key:sencha", "--role", "member"), store=store)
    assert [line.split("  ")[2] for line in done.out.splitlines()] == ["membership"] * 2
    assert "group=" in done.out
    of = atomlog(*keys("relations", "--of", "key:tea/sencha", "--json"), store=store).json
    assert texts(of) == ["tea", "Sencha, 70 °C"]


def test_relations_need_one_side(store: Path) -> None:
    for arguments in (("relations",), ("relations", "--target", "key:a", "--of", "key:b")):
        done = atomlog(*arguments, store=store)
        assert (done.code, "either --target or --of" in done.err) == (2, True)


def test_recall_finds_by_words_and_explains(store: Path) -> None:
    done = atomlog("recall", "Assam boiling", "--limit", "1", "--explain", store=store)
    row, why = done.out.splitlines()
    assert row.endswith("Assam, boiling water")
    assert json.loads(why)
    narrowed = atomlog("recall", "green tea", "--scope", '{"schema": "collection"}', "--json", store=store).json
    assert sorted(texts(narrowed)) == ["green", "tea"]


def test_recall_by_a_vector_from_a_file(tmp_path: Path) -> None:
    store, space = tmp_path / "v", "supplied.mine/1/3/cosine"
    assert atomlog("init", "--vector-space", space, store=store).code == 0
    changes = [
        {**note(name, name), "vectors": {space: vector}} for name, vector in (("x", [1, 0, 0]), ("y", [0, 1, 0]))
    ]
    fill(store, batch("k", *changes))
    file = tmp_path / "query.json"
    file.write_text(json.dumps({space: [0.1, 0.9, 0]}))
    assert texts(atomlog("recall", "--vector", file, "--limit", "1", "--json", store=store).json) == ["y"]


def test_receipts_are_shown_replayed_and_verified(store: Path) -> None:
    page = atomlog(*keys("members", "key:tea", "--json"), store=store).json
    receipt = page["receipt"]["receipt"]
    assert atomlog("receipt", "show", receipt, "--json", store=store).json == page["receipt"]
    assert receipt in atomlog("receipt", "show", receipt, store=store).out
    again = atomlog("receipt", "replay", receipt, "--json", store=store).json
    assert again["atoms"] == page["atoms"]
    verified = atomlog("receipt", "verify", receipt, "--json", store=store).json
    assert (verified["equal"], verified["exact"]) == (True, True)
    assert "the same rows" in atomlog("receipt", "verify", receipt, store=store).out


def test_the_body_of_a_replay_is_what_its_receipt_digests(store: Path) -> None:
    page = atomlog(*keys("get", "key:sencha", "--json"), store=store).json
    done = atomlog("receipt", "replay", page["receipt"]["receipt"], "--body", store=store)
    assert hashlib.sha256(done.out.encode()).hexdigest() == page["receipt"]["body_sha256"]


def test_a_frozen_list_of_members_does_not_move(store: Path) -> None:
    names = [f"n{n:03}" for n in range(100)]
    slots = [{"role": "group", "target": "key:big"}]
    joins = [
        {"op": "create", "schema": "membership", "slots": [*slots, {"role": "member", "target": f"key:{name}"}]}
        for name in names
    ]
    big = {"op": "create", "key": "big", "schema": "collection", "value": {"title": "big"}}
    fill(store, batch("k-3", big, *(note(name, name) for name in names), *joins))
    frozen = atomlog(*keys("members", "key:big", "--freeze", "--json"), store=store).json
    assert (frozen["members"], frozen["pages"]) == (100, 2)
    fill(
        store,
        batch("k-4", note("late", "late"), {**joins[0], "slots": [*slots, {"role": "member", "target": "key:late"}]}),
    )
    first, second = atomlog("get", *(result["atom"] for result in frozen["results"]), "--json", store=store).json[
        "atoms"
    ]
    pinned = [slot for page in (first, second) for slot in page["slots"] if slot["role"] == "member"]
    members = atomlog(*keys("members", "key:big", "--limit", "200", "--json"), store=store).json["atoms"]
    assert {slot["target"] for slot in pinned} == {row["atom"] for row in members if row["value"]["text"] != "late"}
    assert all(slot["revision"] for slot in pinned)
    assert [slot["target"] for slot in first["slots"] if slot["role"] == "next"] == [second["atom"]]
    assert atomlog(*keys("members", "key:big", "--freeze", "--limit", "3"), store=store).code == 2


def test_a_quote_is_the_exact_bytes(store: Path) -> None:
    head = atomlog(*keys("get", "key:sencha", "--json"), store=store).json["atoms"][0]
    origin = {"source": head["atom"], "revision": head["revision"], "start": 8, "end": 14}
    extract = {"op": "create", "key": "heat", "schema": "extract", "value": {"text": "70 °C"}, "origins": [origin]}
    fill(store, batch("k-3", extract))
    assert atomlog(*keys("quote", "key:heat#0"), store=store).out == "70 °C"
    assert atomlog(*keys("quote", "key:heat#1"), store=store).code == 2
    assert "write ID#N" in atomlog(*keys("quote", "key:heat"), store=store).err


def test_text_of_atoms_cannot_steer_the_terminal(store: Path) -> None:
    fill(store, batch("k-3", note("evil", "\x1b]0;owned\x07\x1b[2Jred\u202e\nnext")))
    out = atomlog(*keys("get", "key:evil"), store=store).out
    assert len(out.splitlines()) == 1
    assert not any(character in out for character in "\x1b\x07\u202e")


def test_long_text_is_shortened_to_columns(store: Path) -> None:
    fill(store, batch("k-3", note("long", "茶" * 500)))
    (line,) = atomlog(*keys("get", "key:long"), store=store).out.splitlines()
    assert line.endswith("茶…")
    assert line.count("茶") == 35


def test_outcome_tells_what_became_of_a_key(store: Path) -> None:
    assert atomlog("outcome", "k-1", "--space", "notes", store=store).out == "accepted at 0:1\n"
    assert atomlog("outcome", "k-1", "--space", "notes", "--json", store=store).json["outcome"] == "accepted"
    assert atomlog("outcome", "other", "--space", "notes", store=store).out in ("never\n", "unknown\n")
