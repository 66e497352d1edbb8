"""P3, P4 and P10 in small: both sides do all of the work, and what ours made is the index of the log."""

from pathlib import Path

import pytest

from atomlog.consumers.bench import opening, replay, vectors
from atomlog.consumers.bench.corpus import BATCH_CHANGES, Corpus
from atomlog.consumers.bench.ladder import Bench, Rung
from atomlog.consumers.bench.registry import RUNGS
from atomlog.kernel.model import ChangeResult, WriteReceipt, WriteResult


@pytest.fixture(autouse=True)
def _garbage_is_collected_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sides set the collector of their own process; here they share the test's."""
    for module in (opening, replay, vectors):
        monkeypatch.setattr(module, "make_no_cycles", lambda: None)


def sides(rung: Rung, directory: Path) -> dict[str, float]:
    """Both sides after `prepare`; the figures of ours."""
    bench = Bench(directory=str(directory), scale="smoke")
    rung.prepare(bench)
    ours, base = rung.ours(bench), rung.base(bench)
    assert (ours.checked, base.checked) == (ours.units, base.units)
    assert ours.units == base.units > 0
    return dict(ours.figures)


@pytest.mark.parametrize(("rung_id", "rows"), [("P3-ids", 2), ("P3-relations", 1.5), ("P3-postings", 2)])
def test_a_replay_makes_every_row_of_the_index(rung_id: str, rows: float, tmp_path: Path) -> None:
    assert sides(RUNGS[rung_id], tmp_path)["rows_revision"] > rows


def test_a_replay_into_vectors_embeds_and_finds_every_text(tmp_path: Path) -> None:
    assert sides(RUNGS["P4"], tmp_path)["recall_at_10"] == 1


def test_an_opened_store_has_caught_up(tmp_path: Path) -> None:
    assert sides(RUNGS["P10"], tmp_path)["rss_mib"] > 1


def test_a_corpus_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    def writes(seed: int) -> list[object]:
        corpus, found = Corpus(seed=seed), list[object]()
        for number in range(3):
            found.append(corpus.next_write())
            corpus.accept(_result(number))
        assert corpus.revisions == 3 * BATCH_CHANGES
        return found

    assert writes(1) == writes(1)
    assert writes(1) != writes(2)


def test_a_corpus_creates_refers_joins_revises_and_retires() -> None:
    corpus = Corpus()
    for number in range(3):
        changes = corpus.next_write()["changes"]
        corpus.accept(_result(number))
    made = {(change["op"], change.get("schema")) for change in changes}
    creations = {("create", schema) for schema in ("source", "collection", "membership")}
    assert made == {*creations, ("revise", None), ("retire", None)}
    assert any(change.get("slots") for change in changes if change.get("schema") == "source")


def _result(write: int) -> WriteResult:
    """As if the store had accepted it: an id a change."""
    ids = [(write * BATCH_CHANGES + number + 1).to_bytes(16, "big") for number in range(BATCH_CHANGES)]
    results = tuple(ChangeResult(alias=None, atom=one, revision=one) for one in ids)
    receipt = WriteReceipt(space="bench", partition=0, position=write + 1, term=1, chain=bytes(16))
    return WriteResult(results=results, receipt=receipt, replayed=False)
