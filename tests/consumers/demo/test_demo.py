"""The demonstration tells the whole story, and ends with an error when a claim is false."""

import asyncio
from pathlib import Path

import pytest

from atomlog.consumers.demo import story
from atomlog.consumers.demo.importing import notes
from atomlog.consumers.imports.lines import Line, parse_line
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.errors import AtomlogError


def test_every_chapter_is_told_and_the_store_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    asyncio.run(story.run_demo(said.append, str(tmp_path / "kept")))
    told = "\n".join(said)
    for part in (
        "A write",
        "REVISION_CONFLICT",
        "A retry is recognised",
        "without touching its group",
        "A pinned reference",
        "as of an earlier moment",
        "kill -9",
        "none of them is lost",
        "the same content digest",
        "A recall in each language",
        "all digests agree",
        "the same bytes",
        "Everything said above was checked.",
    ):
        assert part in told
    assert (tmp_path / "kept" / "store.json").exists()


def test_a_false_claim_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def another(self: AsyncStore) -> str:
        return self.directory

    monkeypatch.setattr(AsyncStore, "content_digest", another)
    with pytest.raises(AtomlogError, match="claims what does not hold: a second store") as caught:
        asyncio.run(story.run_demo(lambda line: None))
    assert caught.value.exit_code == 70


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AtomlogError, match="not empty"):
        asyncio.run(story.run_demo(lambda line: None, str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_notes_are_of_two_people_in_two_languages_with_revisions() -> None:
    lines = [parse_line(raw, number) for number, raw in enumerate(notes().splitlines(), start=1)]
    good = [line for line in lines if isinstance(line, Line)]
    assert len(good) == len(lines) >= 35
    assert {line.value["speaker"] for line in good if line.value} == {"Aoi", "Ben"}
    assert len({line.id for line in good}) < len(good)
    assert any(not line.value["text"].isascii() for line in good if line.value)
