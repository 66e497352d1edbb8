"""Writes that are repeated, raced, refused in part, or read back another way: once, whole, and the same."""

import asyncio
import json
import logging
import re
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from atomlog.client import AsyncStore, AtomlogError, Store
from atomlog.consumers.owner_socket import OwnerConnection
from atomlog.consumers.replay import replay_until
from atomlog.kernel.settings import Settings
from tests.consumers.cli.driving import COMMAND, atomlog
from tests.hostile.asking import SPACE, a_batch, note, recalled, refusal, texts, write


def revise(made: dict[str, Any], text: str, **more: Any) -> dict[str, Any]:
    return {"op": "revise", "atom": made["atom"], "expected": made["revision"], "value": {"text": text}, **more}


# -- repeated


def test_a_retry_after_a_lost_reply_adds_no_second_row_however_often_and_from_wherever(tmp_path: Path) -> None:
    """In this process, after opening anew, and from a process that forwards."""
    folder, line = tmp_path / "s", a_batch(note("once"), note("and this"))
    with Store.open(str(folder)) as store:
        first = store.write(line)
        again = [store.write(json.loads(json.dumps(line))) for _ in range(3)]
        done = subprocess.run(
            [*COMMAND, "write", "--store", str(folder)], input=json.dumps(line), capture_output=True, text=True
        )
        from_elsewhere = json.loads(done.stdout)
    with Store.open(str(folder)) as store:
        again.append(store.write(line))
        assert all(one.replayed and one.results == first.results and one.receipt == first.receipt for one in again)
        assert (from_elsewhere["replayed"], from_elsewhere["receipt"]) == (True, first.receipt.to_dict())
        assert len(texts(recalled(store, "once and this", limit=100))) == 2
        assert store.status().to_dict()["partitions"][0]["effective_batches"] == 1


def test_a_reply_that_is_lost_on_the_socket_leaves_one_write_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has carried it out, the connection breaks before the answer: the same call ends well, and once."""
    folder = str(tmp_path / "s")
    asked = OwnerConnection.ask
    lost: list[str] = []

    async def and_lost(self: OwnerConnection, op: str, timeout_s: float, **parts: Any) -> Any:
        found = await asked(self, op, timeout_s, **parts)
        if op == "write" and not lost:
            lost.append(op)
            await self.close()
            raise ConnectionError("the reply is lost")
        return found

    async def both() -> tuple[Any, list[str]]:
        async with AsyncStore.open(folder) as owner, AsyncStore.open(folder, projections=[]) as other:
            monkeypatch.setattr(OwnerConnection, "ask", and_lost)
            result = await other.write(a_batch(note("lost and found", key="lost")))
            await owner.wait_until_current(60)
            page = await owner.history("key:lost", space=SPACE)
            return result, texts(page)

    result, found = asyncio.run(both())
    assert (lost, found, result.replayed) == (["write"], ["lost and found"], True)


def test_a_pinned_id_with_other_content_is_a_conflict_with_the_ways_out(store: Store) -> None:
    (made,) = write(store, note("the first", key="pinned"))
    error = refusal(lambda: write(store, note("another", key="pinned")))
    (detail,) = error.details
    assert error.code == "REVISION_CONFLICT"
    assert (detail["path"], detail["atom"], detail["head"]) == ("changes[0].key", made["atom"], made["revision"])
    assert detail["expected"] is None
    assert texts(store.history("key:pinned", space=SPACE)) == ["the first"]
    write(store, revise({**made, "revision": detail["head"]}, "the second"))  # the named head is the way out
    assert texts(store.history("key:pinned", space=SPACE)) == ["the first", "the second"]


def test_a_retired_id_is_not_created_again_and_says_so(store: Store) -> None:
    (made,) = write(store, note("gone", key="retired"))
    write(store, {"op": "retire", "atom": made["atom"], "expected": made["revision"]})
    assert refusal(lambda: write(store, note("back", key="retired"))).code == "REVISION_CONFLICT"
    assert [row.state for row in store.history("key:retired", space=SPACE).atoms] == ["active", "retired"]


OTHERWISE: Final[dict[str, dict[str, Any]]] = {
    "another text": {"changes": [note("B")]},
    "one change more": {"changes": [note("A"), note("A")]},
    "a field more": {"changes": [note("A", key="k")]},
    "a precondition more": {"preconditions": [{"type": "absent", "atom": "key:nobody"}]},
    "a member more in the value": {"changes": [{**note("A"), "value": {"text": "A", "n": 2}}]},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_key_that_was_used_for_another_body_is_refused_and_writes_nothing(store: Store, name: str) -> None:
    batch = a_batch(note("A"))
    first = store.write(batch)
    end = store.status().to_dict()["partitions"][0]["end"]
    error = refusal(lambda: store.write({**batch, **OTHERWISE[name]}))
    assert error.code == "IDEMPOTENCY_MISMATCH"
    assert store.status().to_dict()["partitions"][0]["end"] == end
    assert store.outcome(batch["idempotency_key"], space=SPACE).result == first or store.write(batch).replayed


def test_a_key_belongs_to_its_space(store: Store) -> None:
    batch = a_batch(note("here"))
    store.write(batch)
    assert not store.write({**batch, "space": "elsewhere"}).replayed


# -- side by side


def test_two_processes_with_one_store_overwrite_nothing_of_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with Store.open(str(folder)) as store:
        (made,) = write(store, note("0", key="shared"))
        lines = [a_batch(note(f"from elsewhere {n}", key=f"e{n}")) for n in range(20)]
        lines.append({**a_batch(revise(made, "theirs")), "idempotency_key": "theirs"})
        elsewhere = subprocess.Popen(
            [*COMMAND, "write", "--keep-going", "--store", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert elsewhere.stdin is not None
        elsewhere.stdin.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        elsewhere.stdin.flush()
        for n in range(20):
            write(store, note(f"from here {n}", key=f"h{n}"))
        try:
            write(store, revise(made, "ours"))
            winner = "ours"
        except AtomlogError as error:
            assert error.code == "REVISION_CONFLICT"
            winner = "theirs"
        out, _ = elsewhere.communicate()
        results = [json.loads(line) for line in out.splitlines()]
        assert [one["ok"] for one in results] == [True] * 20 + [winner == "theirs"]
        store.wait_until_current(60)
        keys = [f"key:{who}{n}" for who in "eh" for n in range(20)]
        assert texts(store.get(keys, space=SPACE)) == [
            f"from {w} {n}" for w in ("elsewhere", "here") for n in range(20)
        ]
        assert texts(store.history("key:shared", space=SPACE)) == ["0", winner]


def test_one_bad_document_takes_nothing_of_the_others_with_it(tmp_path: Path) -> None:
    """Bad lines, bad batches, batches that are cut into parts, in one file, twice: the good ones are there once."""
    lines: list[str] = []
    for n in range(30):
        line: dict[str, Any] = {"id": f"d{n}", "text": f"document {n}", "groups": [f"g{n % 3}"], "batch": f"b{n // 3}"}
        bad = {10: '{"id": "d10", "text": ', 19: json.dumps({**line, "text": 7}), 28: json.dumps({**line, "id": ""})}
        lines.append(bad.get(n, json.dumps(line)))
    file, folder = tmp_path / "documents.jsonl", tmp_path / "s"
    file.write_text("\n".join(lines))
    for _ in range(2):
        done = atomlog("import", "jsonl", file, "--space", SPACE, "--keep-going", "--split", store=folder)
        assert (done.code, "Traceback" in done.err) == (2, False)
    good = [n for n in range(30) if n // 3 not in (3, 6, 9)]
    # The line that is no JSON may belong to its neighbours' batch: that one is refused whole, and no other.
    with Store.open(str(folder)) as store:
        rows = store.get([f"key:d{n}" for n in range(30)], space=SPACE).atoms
        assert [row.value["text"] for row in rows] == [f"document {n}" for n in good]
        assert all(len(store.history(f"key:d{n}", space=SPACE).atoms) == 1 for n in good)
        members = [texts(store.members(f"key:g{g}", space=SPACE, limit=100)) for g in range(3)]
        assert sorted(chain.from_iterable(members)) == sorted(f"document {n}" for n in good)


def test_a_batch_that_is_cut_into_parts_overwrites_none_of_its_own_parts(tmp_path: Path) -> None:
    file, folder = tmp_path / "large.jsonl", tmp_path / "s"
    rows = [{"id": f"p{n}", "text": f"part {n} " + "x" * 800, "batch": "one"} for n in range(1_500)]
    file.write_text("\n".join(map(json.dumps, rows)))
    done = atomlog("import", "jsonl", file, "--space", SPACE, "--split", store=folder)
    assert done.code == 0, done.err
    with Store.open(str(folder)) as store:
        store.wait_until_current(60)
        for start in range(0, 1_500, 100):
            found = store.get([f"key:p{n}" for n in range(start, start + 100)], space=SPACE).atoms
            assert [row.value["text"].split(" x")[0] for row in found] == [
                f"part {n}" for n in range(start, start + 100)
            ]


def test_a_conflict_is_normal_and_leaves_no_traceback_in_any_log(
    store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    (made,) = write(store, note("first", key="contended"))
    write(store, revise(made, "second"))
    stale = a_batch(revise(made, "third"))
    guarded = a_batch(note("x"), preconditions=[{"type": "absent", "atom": "key:contended"}])
    for batch, code in ((stale, "REVISION_CONFLICT"), (guarded, "PRECONDITION_FAILED")):
        assert refusal(lambda batch=batch: store.write(batch)).code == code  # type: ignore[misc]
    assert [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info] == []
    lines = json.dumps(a_batch(note("a", key="k"))) + "\n" + json.dumps(a_batch(note("b", key="k")))
    done = subprocess.run(
        [*COMMAND, "write", "--store", str(tmp_path / "s")], input=lines, capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert "REVISION_CONFLICT" in done.stdout


# -- read back


VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63) + 1, 0.5, 1e-7, 1e22, 1.7976931348623157e308, 5e-324),
    *("", "text", "\0", [], {}, [[], {}, None], {"": ""}, {"true": True, "one": 1}, {"n": 1.5, "t": "1.5"}, [0, False]),
    *("2026-01-01T00:00:00Z", "0192f0c1-2b3a-7c4d-8e5f-0123456789ab", "null", "0x10", "1e5"),
)


def typed(value: Any) -> Any:
    """A value with the type of each part, since 1 == 1.0 == True."""
    if isinstance(value, dict):
        return {name: typed(item) for name, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value).__name__, value)


def test_live_rebuilt_reopened_and_replayed_state_are_equal_type_for_type(tmp_path: Path) -> None:
    """Also numbers that were given as another number of the same value: all four say the same one."""
    folder, copy, moved = (str(tmp_path / name) for name in ("s", "copy", "moved"))
    given = [*VALUES, 1.0, -0.0, 100.0]
    expected = [*VALUES, 1, 0, 100]
    settings = Settings(page_limit_max=1_000)
    with Store.open(folder, settings=settings) as store:
        made = write(store, *({"op": "create", "schema": "other", "value": value} for value in given))
        group = {"op": "create", "key": "all", "schema": "collection", "value": {"title": "all"}}
        write(store, group, *(membership(one["atom"], n) for n, one in enumerate(made)))
        atoms = [one["atom"] for one in made]
        store.wait_until_current(60)
        live = whole(store, atoms)
        assert typed(live["values"]) == typed(expected)
        assert [report for report in store.rebuild() if not report.equal] == []
        assert typed(whole(store, atoms)) == typed(live)
        end = store.status().to_dict()["partitions"][0]["end"]
        digest = store.content_digest()
    asyncio.run(replay_until(folder, copy, positions={0: end - 1}, master_key_file=f"{folder}/master.key"))
    shutil.copytree(folder, moved)  # a cold copy, as a backup is put back
    for place in (folder, copy, moved):
        with Store.open(place, create=False, settings=settings) as store:
            store.wait_until_current(60)
            assert typed(whole(store, atoms)) == typed(live), place
            assert store.content_digest() == digest


def membership(atom: str, order: int) -> dict[str, Any]:
    slots = [{"role": "group", "target": "key:all"}, {"role": "member", "target": atom, "order_key": f"{order:04}"}]
    return {"op": "create", "schema": "membership", "slots": slots}


def whole(store: Store, atoms: list[str]) -> dict[str, Any]:
    """What pages say of the atoms, without what is of the moment (receipts, handles)."""
    page = store.get(atoms).to_dict()["atoms"]
    members = store.members("key:all", space=SPACE, limit=1_000).to_dict()["atoms"]
    history = [row for atom in atoms for row in store.history(atom).to_dict()["atoms"]]
    slots = store.relations(target="key:all", space=SPACE, limit=1_000).to_dict()["atoms"]
    return {"values": [row["value"] for row in page], "rows": [page, members, history, slots]}


# -- places that cannot be


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "log" / "0").glob("*.seg"))


def test_an_index_that_stands_after_the_end_of_the_log_is_refused_by_name(tmp_path: Path) -> None:
    """The log was put back from an older copy, the indexes were not."""
    folder, old = tmp_path / "s", tmp_path / "old"
    with Store.open(str(folder)) as store:
        write(store, note("kept", key="kept"))
    shutil.copytree(folder / "log", old)
    with Store.open(str(folder)) as store:
        for n in range(5):
            write(store, note(f"later {n}"))
        store.wait_until_current(60)
    shutil.rmtree(folder / "log")
    shutil.copytree(old, folder / "log")
    with pytest.raises(AtomlogError) as caught, Store.open(str(folder)) as store:
        store.get("key:kept", space=SPACE, timeout_s=5)
    assert caught.value.code == "LOG_DIVERGED", caught.value
    assert re.search(r"stands? at 8\b|\b8\b.*ends at", caught.value.message), caught.value.message
    assert "bring the right log back" in caught.value.message


def test_an_index_that_stands_before_the_beginning_of_the_log_is_refused_by_name(tmp_path: Path) -> None:
    """The first segment is gone, and an index is to be read from it: nothing is skipped silently."""
    folder = tmp_path / "s"
    settings = Settings(segment_bytes=64 * 1024)
    with Store.open(str(folder), settings=settings) as store:
        for n in range(12):
            write(store, note(f"{n} " + "x" * 20_000, key=f"k{n}"))
    assert len(segments(folder)) > 2
    shutil.rmtree(folder / "projections" / "ids")
    segments(folder)[0].unlink()
    with pytest.raises(AtomlogError) as caught, Store.open(str(folder), settings=settings) as store:
        store.get("key:k1", space=SPACE, timeout_s=5)
    assert caught.value.code == "CORRUPT", caught.value
    assert "00000000000000000000.seg" in caught.value.message or "missing" in caught.value.message
