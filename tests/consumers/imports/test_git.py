"""The history of real repositories, made here with the git command."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atomlog.consumers.imports.git import GitImport
from atomlog.consumers.imports.git_lines import COMMIT_PREFIX, POSITION_KEY, path_key
from atomlog.consumers.imports.git_process import GitRepository
from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.summary import Summary
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError
from tests.consumers.imports.fake_store import FakeStore, Killed
from tests.consumers.imports.importing import StillClock

SPACE = "notes"


class Repository:
    """A repository whose commits have the times and authors they are given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, date: str = "2026-01-01T00:00:00Z", author: str = "Ada") -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": author,
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "C",
            "GIT_COMMITTER_EMAIL": "c@example.org",
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_DATE": date,
        }
        command = ["git", "-C", str(self.path), "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(self, files: Mapping[str, str | bytes | None], message: str = "m", **how: str) -> str:
        """Write files (None removes one), and commit everything."""
        for name, content in files.items():
            path = self.path / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message, **how)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo")


def run(store: FakeStore, path: Path, said: list[str] | None = None, **options: Any) -> Summary:
    summary = Summary(space=SPACE)
    job = GitImport(
        store=store,
        keys=Keys(space=SPACE, policy=SPACE),
        repository=GitRepository(path=str(path), environment=os.environ),
        clock=StillClock(),
        say=([] if said is None else said).append,
        **options,
    )
    asyncio.run(job.run(summary))
    return summary


def value(store: FakeStore, key: str) -> Any:
    return asyncio.run(store.value(store.atom(key)))


def test_files_are_sources_directories_collections_and_commits_atoms(repository: Repository) -> None:
    sha = repository.commit({"docs/api/a.md": "A", "top.txt": "T"}, message="First\n\nbody", author="Aoi")
    store = FakeStore()
    summary = run(store, repository.path)
    assert (store.text("docs/api/a.md"), store.text("top.txt")) == ("A", "T")
    assert store.groups("docs/api/a.md") == {"docs/api/"}
    assert store.groups("docs/api/") == {"docs/"}
    assert store.groups("docs/") == store.groups("top.txt") == {"/"}
    assert value(store, f"{COMMIT_PREFIX}{sha}") == {
        "text": "First\n\nbody\n",
        "commit": sha,
        "parents": [],
        "parts": 1,
        "authored_at": "2026-01-01T00:00:00.000000Z",
        "speaker": "Aoi",
    }
    assert value(store, "top.txt") == {"text": "T", "path": "top.txt", "speaker": "Aoi"}
    assert (summary.commits, summary.written, summary.batches) == (1, 1, 1)


def test_every_commit_is_one_batch_and_the_end_is_the_tree(repository: Repository) -> None:
    repository.commit({"a": "1", "b/c": "1"})
    repository.commit({"a": "2", "b/d": "1"})
    repository.commit({"b/c": None, "e": "1"})
    repository.commit({}, message="empty")
    store = FakeStore()
    run(store, repository.path)
    assert len(store.batches) == 4
    assert {name: store.text(name) for name in ("a", "b/c", "b/d", "e")} == {
        "a": "2",
        "b/c": None,
        "b/d": "1",
        "e": "1",
    }
    assert store.groups("b/c") == set()
    assert [revision.value["text"] for revision in store.atoms[store.atom("a")]] == ["1", "2"]


def test_times_are_those_of_the_commits_and_may_step_backwards(repository: Repository) -> None:
    repository.commit({"a": "1"}, date="2026-02-01T00:00:00Z")
    repository.commit({"a": "2"}, date="2026-01-01T09:00:00+09:00")
    repository.commit({"a": "3"}, date="1975-01-01T00:00:00Z")
    store = FakeStore()
    run(store, repository.path)
    times = [revision.valid_from_us for revision in store.atoms[store.atom("a")]]
    assert times == [1_769_904_000_000_000, 1_767_225_600_000_000, 157_766_400_000_000]


def test_a_rename_is_a_delete_and_a_put(repository: Repository) -> None:
    repository.commit({"old/a": "text\n" * 50})
    repository.git("mv", "old", "new")
    repository.commit({})
    store = FakeStore()
    run(store, repository.path)
    assert (store.text("old/a"), store.text("new/a")) == (None, "text\n" * 50)
    assert (store.text("old/"), store.text("new/")) == (None, "new/")


def test_a_directory_goes_with_its_last_file_and_comes_back(repository: Repository) -> None:
    repository.commit({"d/e/a": "1", "d/b": "1"})
    repository.commit({"d/e/a": None})
    store = FakeStore()
    run(store, repository.path)
    assert (store.text("d/e/"), store.text("d/")) == (None, "d/")
    repository.commit({"d/e/a": "2"})
    run(store, repository.path)
    assert store.text("d/e/") == "d/e/"
    assert store.groups("d/e/a") == {"d/e/"}


def test_a_file_that_becomes_a_directory_is_two_atoms(repository: Repository) -> None:
    repository.commit({"x": "file"})
    repository.commit({"x": None})
    repository.commit({"x/y": "inside"})
    store = FakeStore()
    run(store, repository.path)
    assert (store.text("x"), store.text("x/"), store.text("x/y")) == (None, "x/", "inside")


def test_what_is_no_text_is_passed_over_counted_and_named(repository: Repository) -> None:
    repository.commit({"logo.png": b"\x89PNG\0", "latin": b"caf\xe9", "big": "x" * 2_000, "a": "ok"})
    os.symlink("a", repository.path / "link")
    repository.commit({})
    store = FakeStore()
    said: list[str] = []
    summary = run(store, repository.path, said, file_bytes_max=1_000)
    assert summary.passed_over == {"binary": 1, "non-UTF-8": 1, "too large": 1, "linked": 1}
    assert "passed over: 1 binary file version, e.g. 'logo.png'" in said
    assert store.text("a") == "ok"
    assert all(store.atom(name) not in store.atoms for name in ("logo.png", "latin", "big", "link"))


def test_a_text_that_becomes_binary_is_no_longer_there_until_it_is_text_again(repository: Repository) -> None:
    store = FakeStore()
    for content, text in (("one", "one"), (b"\0", None), ("three", "three")):
        repository.commit({"a": content})
        run(store, repository.path)
        assert store.text("a") == text
    assert store.groups("a") == {"/"}


def test_a_change_of_mode_alone_is_none(repository: Repository) -> None:
    repository.commit({"a": "1"})
    (repository.path / "a").chmod(0o755)
    repository.commit({}, date="2026-03-01T00:00:00Z")
    store = FakeStore()
    run(store, repository.path)
    assert len(store.atoms[store.atom("a")]) == 1


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (b"docs/a b.md", "docs/a b.md"),
        ("茶/緑.md".encode(), "茶/緑.md"),
        (b"caf\xe9.txt", '"caf\\351.txt"'),
        (b"two\nlines", '"two\\nlines"'),
        (b'"quoted"', '"\\"quoted\\""'),
        ("cafe\u0301".encode(), '"cafe\\314\\201"'),
        (b"commit:1", '"commit:1"'),
        (b'["member","a"]', '"[\\"member\\",\\"a\\"]"'),
        (b"back\\slash", "back\\slash"),
        (b"x" * 513, None),
    ],
)
def test_paths_are_keys_and_unusual_ones_are_quoted(path: bytes, key: str | None) -> None:
    assert path_key(path) == key


def test_unusual_paths_are_imported(repository: Repository) -> None:
    names = [b"caf\xe9.txt", b"two\nlines/x", "茶.md".encode(), "cafe\u0301".encode(), "caf\u00e9".encode()]
    for n, name in enumerate(names):
        path = os.path.join(os.fsencode(repository.path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(str(n))
    repository.commit({})
    store = FakeStore()
    run(store, repository.path)
    assert [store.text(path_key(name) or "") for name in names] == ["0", "1", "2", "3", "4"]


def test_a_second_import_writes_nothing_and_a_later_one_goes_on(repository: Repository) -> None:
    repository.commit({"a": "1"})
    repository.commit({"a": "2"})
    store = FakeStore()
    run(store, repository.path)
    assert run(store, repository.path).batches == 0
    repository.commit({"a": "3"})
    summary = run(store, repository.path)
    assert (summary.commits, summary.written, store.text("a")) == (1, 1, "3")


def history(repository: Repository) -> None:
    for n in range(8):
        repository.commit({f"d{n % 3}/f{n}": f"{n}", "same": f"{n % 2}"}, date=f"2026-01-{8 - n:02}T00:00:00Z")
    repository.commit({"d0/f0": None, "d0/f3": None, "d0/f6": None})


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(batch_revisions_max=6)])
def test_kills_and_repeats_end_as_one_uninterrupted_import(
    repository: Repository, bounds: Bounds, before: bool
) -> None:
    history(repository)
    whole, broken = FakeStore(), FakeStore()
    run(whole, repository.path, bounds=bounds)

    def kill(batch: Any = None) -> None:
        if len(broken.batches) in (1, 4, 5, 7) and len(broken.batches) not in killed:
            killed.add(len(broken.batches))
            raise Killed

    killed: set[int] = set()
    broken.before_write, broken.after_write = (kill, lambda: None) if before else (lambda batch: None, kill)
    while True:
        try:
            run(broken, repository.path, bounds=bounds)
            break
        except Killed:
            continue
    assert len(killed) == 4
    assert broken.content_digest() == whole.content_digest()


def test_a_large_commit_is_cut_and_its_atom_comes_last_and_names_the_parts(repository: Repository) -> None:
    sha = repository.commit({f"f{n:02}": "x" for n in range(25)})
    store = FakeStore()
    said: list[str] = []
    summary = run(store, repository.path, said, bounds=Bounds(batch_revisions_max=21))
    assert len(store.batches) == 3
    assert value(store, f"{COMMIT_PREFIX}{sha}")["parts"] == 3
    assert [change.get("key") for change in store.batches[-1]["changes"]][-2:] == [
        f"{COMMIT_PREFIX}{sha}",
        POSITION_KEY,
    ]
    assert (summary.split, summary.commits) == (1, 1)
    assert "written in parts" in said[0]


def test_a_merge_is_one_commit_with_all_it_brought(repository: Repository) -> None:
    repository.commit({"a": "1"})
    repository.git("checkout", "-q", "-b", "side")
    repository.commit({"b": "1"})
    repository.commit({"b": "2"})
    repository.git("checkout", "-q", "main")
    repository.commit({"a": "2"})
    repository.git("merge", "-q", "--no-ff", "side", "-m", "merge")
    store = FakeStore()
    summary = run(store, repository.path)
    assert (summary.commits, len(store.batches)) == (3, 3)
    assert [revision.value["text"] for revision in store.atoms[store.atom("b")]] == ["2"]


def test_a_rewritten_history_goes_on_from_what_was_imported(repository: Repository) -> None:
    repository.commit({"a": "1", "keep": "k"})
    repository.commit({"a": "2", "gone": "g"})
    store = FakeStore()
    run(store, repository.path)
    repository.git("reset", "-q", "--hard", "HEAD~1")
    repository.commit({"a": "3", "new": "n"})
    summary = run(store, repository.path)
    assert summary.commits == 1
    assert [store.text(name) for name in ("a", "gone", "new", "keep")] == ["3", None, "n", "k"]


def test_going_back_and_forth_between_branches_ends_at_the_tree_of_the_last(repository: Repository) -> None:
    """The same commit is then imported several times, each time against another tree before it."""
    repository.commit({"a": "1"})
    repository.git("checkout", "-q", "-b", "side")
    repository.commit({"b": "side"})
    repository.git("checkout", "-q", "main")
    repository.commit({"a": "2"})
    store = FakeStore()
    for _ in range(3):
        for ref, texts in (("main", ("2", None)), ("side", ("1", "side"))):
            run(store, repository.path, ref=ref)
            assert (store.text("a"), store.text("b")) == texts


def test_an_older_commit_is_said_to_be_in_already(repository: Repository) -> None:
    repository.commit({"a": "1"})
    repository.commit({"a": "2"})
    store = FakeStore()
    run(store, repository.path)
    said: list[str] = []
    assert run(store, repository.path, said, ref="HEAD~1").batches == 0
    assert "was imported before" in said[0]


def test_another_repository_in_the_same_space_is_refused(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "1"})
    store = FakeStore()
    run(store, repository.path)
    other = Repository(tmp_path / "other")
    other.commit({"a": "else"})
    with pytest.raises(AtomlogError, match="a space of its own"):
        run(store, other.path)


def test_a_bare_repository_is_one(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "1"})
    repository.git("clone", "-q", "--bare", str(repository.path), str(tmp_path / "bare.git"))
    store = FakeStore()
    run(store, tmp_path / "bare.git")
    assert store.text("a") == "1"


def test_a_submodule_is_passed_over(repository: Repository, tmp_path: Path) -> None:
    inner = Repository(tmp_path / "inner")
    inner.commit({"a": "1"})
    repository.git("submodule", "--quiet", "add", str(inner.path), "sub")
    repository.commit({})
    store = FakeStore()
    assert run(store, repository.path).passed_over == {"submodule": 1}
    assert store.text(".gitmodules") is not None


@pytest.mark.parametrize(("make", "reason"), [(False, "not a git repository"), (True, "has no commit 'HEAD'")])
def test_what_is_no_repository_or_has_no_commit_is_said(tmp_path: Path, make: bool, reason: str) -> None:
    path = tmp_path / "r"
    if make:
        Repository(path)
    else:
        path.mkdir()
    with pytest.raises(AtomlogError, match=reason) as caught:
        run(FakeStore(), path)
    assert caught.value.code == "INVALID_INPUT"


def test_an_option_is_no_ref(repository: Repository) -> None:
    repository.commit({"a": "1"})
    with pytest.raises(AtomlogError, match="has no commit '--output=x'"):
        run(FakeStore(), repository.path, ref="--output=x")


def test_a_missing_git_is_said(tmp_path: Path) -> None:
    job = GitImport(
        store=FakeStore(),
        keys=Keys(space=SPACE, policy=SPACE),
        repository=GitRepository(path=str(tmp_path), environment={"PATH": str(tmp_path)}),
        clock=StillClock(),
    )
    with pytest.raises(AtomlogError, match="the command git was not found") as caught:
        asyncio.run(job.run(Summary(space=SPACE)))
    assert caught.value.code == "INVALID_INPUT"


def test_nothing_that_the_repository_configures_is_run(repository: Repository, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    sprung = tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\n")
    trap.chmod(0o755)
    repository.commit({"a": "1", ".gitattributes": "* diff=trap filter=trap\n"})
    repository.commit({"a": "2"})
    for name in (
        "core.fsmonitor",
        "core.pager",
        "pager.log",
        "diff.external",
        "diff.trap.textconv",
        "diff.trap.command",
        "filter.trap.smudge",
        "filter.trap.clean",
        "gpg.program",
        "core.sshCommand",
        "core.editor",
    ):
        repository.git("config", name, str(trap))
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "alias.log", f"!{trap}")
    hooks = repository.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        (hooks / name).symlink_to(trap)
    store = FakeStore()
    run(store, repository.path)
    assert store.text("a") == "2"
    assert not sprung.exists()


def test_output_settings_of_the_repository_change_nothing(repository: Repository) -> None:
    repository.commit({"b/old": "text\n" * 40, "a": "1"})
    repository.git("mv", "b/old", "b/new")
    repository.commit({"a": "2"})
    plain, configured = FakeStore(), FakeStore()
    run(plain, repository.path)
    order = repository.path.parent / "order"
    order.write_text("b/*\na\n")
    for name, setting in (
        ("diff.renames", "copies"),
        ("diff.orderFile", str(order)),
        ("diff.noprefix", "true"),
        ("core.quotePath", "false"),
        ("core.abbrev", "5"),
        ("log.date", "relative"),
        ("log.mailmap", "true"),
        ("log.follow", "true"),
        ("color.ui", "always"),
        ("i18n.logOutputEncoding", "Shift_JIS"),
        ("format.pretty", "oneline"),
    ):
        repository.git("config", name, setting)
    run(configured, repository.path)
    assert [batch["idempotency_key"] for batch in configured.batches] == [
        batch["idempotency_key"] for batch in plain.batches
    ]


def test_variables_of_git_in_the_environment_do_not_lead_elsewhere(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"a": "1"})
    other = Repository(tmp_path / "other")
    other.commit({"a": "other"})
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    store = FakeStore()
    run(store, repository.path)
    assert store.text("a") == "1"
