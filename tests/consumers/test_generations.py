"""Generations on disk: which one counts, what is swept, who holds what."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.generations import Generation, GenerationDirectory
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.system import SystemFile, SystemFiles

HOLD = """
import sys
from atomlog.consumers.generations import GenerationDirectory
from atomlog.kernel.system import SystemFiles
held = getattr(GenerationDirectory(SystemFiles(), sys.argv[1], "ids"), sys.argv[2])()
scratch = GenerationDirectory(SystemFiles(), sys.argv[1], "ids").scratch()
print("held" if held else "not held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def events() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def directory(tmp_path: Path, events: list[dict[str, Any]]) -> GenerationDirectory:
    return GenerationDirectory(SystemFiles(), str(tmp_path), "ids", lambda event: events.append(dict(event)))


def first(directory: GenerationDirectory) -> Generation:
    generation, fresh = directory.current_or_new()
    assert fresh
    directory.publish(generation)
    return generation


def names(directory: GenerationDirectory) -> list[str]:
    return [path.name for path in sorted(Path(directory.directory).iterdir())]


def write_current(directory: GenerationDirectory, text: str) -> None:
    (Path(directory.directory) / "CURRENT").write_text(text)


def test_a_new_projection_starts_with_its_first_generation_and_says_nothing_is_lost(
    directory: GenerationDirectory, events: list[dict[str, Any]]
) -> None:
    assert directory.current() is None
    generation = first(directory)
    assert generation.name == "g000001"
    assert directory.current() == generation
    assert [event["event"] for event in events] == ["generation_published"]


def test_an_unpublished_generation_does_not_count(directory: GenerationDirectory) -> None:
    current = first(directory)
    later = directory.new_generation()
    assert later.name == "g000002"
    assert directory.current() == current
    directory.publish(later)
    assert directory.current() == later


@pytest.mark.parametrize("content", ["", "g1", "../elsewhere", "g000009", "\x00\xff", "g000001 and more"])
def test_a_current_that_leads_nowhere_is_said_and_replaced_by_a_fresh_generation(
    directory: GenerationDirectory, events: list[dict[str, Any]], content: str
) -> None:
    first(directory)
    write_current(directory, content)
    assert directory.current() is None
    fresh, is_new = directory.current_or_new()
    assert is_new
    assert fresh.name == "g000002"
    lost = [event for event in events if event["event"] == "generation_lost"]
    assert len(lost) == 1
    assert lost[0]["found"] == ["g000001"]
    assert "CURRENT" in lost[0]["reason"]


def test_a_missing_current_beside_generations_is_said(
    directory: GenerationDirectory, events: list[dict[str, Any]]
) -> None:
    first(directory)
    (Path(directory.directory) / "CURRENT").unlink()
    fresh, is_new = directory.current_or_new()
    assert (fresh.name, is_new) == ("g000002", True)
    assert [event["reason"] for event in events if event["event"] == "generation_lost"] == [
        "CURRENT is missing although there are generations"
    ]


def test_numbers_are_not_used_again_while_a_later_generation_is_there(directory: GenerationDirectory) -> None:
    first(directory)
    assert directory.new_generation().name == "g000002"
    assert directory.new_generation().name == "g000003"


def test_sweeping_removes_older_generations_and_what_a_killed_rebuild_left(directory: GenerationDirectory) -> None:
    first(directory)
    second = directory.new_generation()
    directory.publish(second)
    directory.new_generation()  # a rebuild that was killed
    assert directory.sweep() == ["g000001", "g000003"]
    assert directory.current() == second


def test_sweeping_leaves_what_readers_of_this_process_use(directory: GenerationDirectory) -> None:
    first(directory)
    directory.publish(directory.new_generation())
    assert directory.sweep({"g000001"}) == []
    assert "g000001" in names(directory)


def test_sweeping_leaves_the_generation_of_a_rebuild_that_runs(directory: GenerationDirectory) -> None:
    first(directory)
    rebuild = directory.rebuild_lock()
    coming = directory.new_generation()
    assert directory.sweep() == []
    rebuild.release()
    assert directory.sweep() == [coming.name]


def test_sweeping_without_a_current_generation_removes_nothing(directory: GenerationDirectory) -> None:
    directory.new_generation()
    assert directory.sweep() == []
    assert "g000001" in names(directory)


def test_a_lock_is_exclusive_inside_a_process_and_free_after_release(directory: GenerationDirectory) -> None:
    held = directory.lock()
    assert directory.try_lock() is None
    with pytest.raises(AtomlogError, match="STORE_LOCKED"):
        directory.lock()
    held.release()
    held.release()
    second = directory.try_lock()
    assert second is not None
    second.release()


@pytest.mark.parametrize("which", ["lock", "rebuild_lock"])
def test_another_process_is_named_and_its_death_frees_the_lock_and_its_scratch(
    directory: GenerationDirectory, tmp_path: Path, which: str
) -> None:
    first(directory)
    command = [sys.executable, "-c", HOLD, str(tmp_path), which]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AtomlogError) as caught:
            getattr(directory, which)()
        assert caught.value.code == "STORE_LOCKED"
        assert caught.value.details[0]["pid"] == holder.pid
        assert str(holder.pid) in caught.value.message
        assert directory.sweep() == []
        assert f"secondary-{holder.pid}-0" in names(directory)
        holder.kill()
        holder.wait()
        getattr(directory, which)().release()
        assert directory.sweep() == [f"secondary-{holder.pid}-0"]


def test_scratch_directories_of_one_process_differ_and_go_when_dropped(directory: GenerationDirectory) -> None:
    first(directory)
    one, other = directory.scratch(), directory.scratch()
    assert one.directory != other.directory
    assert directory.sweep() == []
    directory.drop(one)
    assert not Path(one.directory).exists()
    directory.drop(other)


def test_a_note_on_health_survives_and_damage_to_it_does_not_matter(directory: GenerationDirectory) -> None:
    assert directory.noted_health() == {}
    first(directory)
    directory.note_health({"health": "STOPPED"})
    assert directory.noted_health() == {"health": "STOPPED"}
    (Path(directory.directory) / "health.json").write_bytes(b"{")
    assert directory.noted_health() == {}


class UnwritableFiles(SystemFiles):
    """A directory that turned read-only. `error` is what a write meets."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def make_directory(self, path: str) -> None:
        raise self.error

    def open(self, path: str, *, write: bool, create: bool = False) -> SystemFile:
        raise self.error


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("call", ["lock", "scratch", "new_generation"])
def test_a_directory_that_cannot_be_written_is_told_as_that(tmp_path: Path, number: int, call: str) -> None:
    directory = GenerationDirectory(UnwritableFiles(OSError(number, "no")), str(tmp_path), "ids")
    with pytest.raises(AtomlogError, match=r"STORE_READ_ONLY: .*/projections/ids cannot be written"):
        getattr(directory, call)()


def test_another_fault_of_the_disk_is_not_called_read_only(tmp_path: Path) -> None:
    directory = GenerationDirectory(UnwritableFiles(OSError(errno.EIO, "bad")), str(tmp_path), "ids")
    with pytest.raises(OSError, match="bad"):
        directory.lock()


class Full(SystemFiles):
    """A disk on which nothing more can be written."""

    def open(self, path: str, *, write: bool, create: bool = False) -> SystemFile:
        return FullFile(super().open(path, write=write, create=create)._descriptor, path)


class FullFile(SystemFile):
    def write_at(self, offset: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", self._path)


def test_a_lock_whose_file_cannot_be_written_is_not_held_by_nobody_for_ever(
    directory: GenerationDirectory, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="No space"):
        GenerationDirectory(Full(), str(tmp_path), "ids").try_lock()
    held = directory.try_lock()
    assert held is not None
    held.release()
