"""`import git`: the history of a repository, one commit one batch.

The walk goes along first parents: a merge is one commit with everything it brought. What a commit changed is taken
against the tree that was imported last, so a rewritten or another branch continues from there. Renames are a delete
and a put.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from atomlog.consumers.imports.git_lines import FILE_BYTES_MAX, POSITION_KEY, CommitLines, PassedOver
from atomlog.consumers.imports.git_log import Change, Commit, History, Objects
from atomlog.consumers.imports.git_process import GitRepository
from atomlog.consumers.imports.heads import ImportStore, Keys
from atomlog.consumers.imports.lines import Line, line_of
from atomlog.consumers.imports.occurrences import Occurrences
from atomlog.consumers.imports.plan import Part, Write, write_key
from atomlog.consumers.imports.runner import Runner
from atomlog.consumers.imports.summary import Summary
from atomlog.kernel import jsontext
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Clock

ACTIVITY = "import git"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class GitStore(ImportStore, Protocol):
    async def value(self, atom: bytes) -> Any:
        """The value of an active atom's head; None when there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far earlier imports came: the commit, and the number of commits imported."""

    commit: str | None
    commits: int


@dataclass(slots=True, kw_only=True)
class GitImport:
    """One import of one repository. `commit_done` is told the number of commits done and to do."""

    store: GitStore
    keys: Keys
    repository: GitRepository
    clock: Clock
    ref: str = "HEAD"
    file_bytes_max: int = FILE_BYTES_MAX
    bounds: Bounds = field(default_factory=Bounds)
    say: Callable[[str], None] = lambda message: None
    commit_done: Callable[[int, int], None] = lambda done, total: None

    async def run(self, summary: Summary) -> None:
        """Import what is new since the last time. The summary counts while it runs."""
        history = History(self.repository)
        tip = await history.resolve(self.ref)
        await self.store.settle()  # nothing must be compared with what an index behind the log says
        reached = await self._reached(history)
        total = await history.count(reached.commit, tip)
        runner = Runner(
            store=self.store,
            keys=self.keys,
            activity=ACTIVITY,
            split=True,
            keep_going=False,
            clock=self.clock,
            summary=summary,
            say=self.say,
        )
        self.commit_done(0, total)
        if total == 0 and tip != reached.commit:
            self.say(f"{tip} was imported before; the space stays at the later commit {reached.commit}")
        async with open_objects(self.repository) as objects, aclosing(self._events(history, reached, tip)) as events:
            passed_over = PassedOver(summary.passed_over)
            try:
                await runner.run(self._writes(events, reached, _Source(objects, passed_over), summary, total))
            finally:
                for message in passed_over.messages():
                    self.say(message)

    async def _reached(self, history: History) -> Reached:
        found = await self.store.value(self.keys.atom(POSITION_KEY))
        if found is None:
            return Reached(commit=None, commits=0)
        reached = _noted(found, self.keys.space)
        if not await history.has_commit(str(reached.commit)):
            message = (
                f"space {self.keys.space} has this history up to commit {reached.commit}, which is not in "
                f"{self.repository.path}: import another repository into a space of its own"
            )
            raise fail("INVALID_INPUT", message)
        return reached

    async def _events(self, history: History, reached: Reached, tip: str) -> AsyncGenerator[Commit | Change, None]:
        """Commits and changes; those of the first commit against what was imported last, whatever that was."""
        own = True
        first = True
        async with aclosing(history.events(reached.commit, tip)) as events:
            async for event in events:
                if not isinstance(event, Commit):
                    if own:
                        yield event
                    continue
                own = not first or reached.commit is None or event.parents[:1] == (reached.commit,)
                first = False
                yield event
                if not own:
                    async with aclosing(history.changes(str(reached.commit), event.sha)) as changes:
                        async for change in changes:
                            yield change

    async def _writes(
        self,
        events: AsyncIterator[Commit | Change],
        reached: Reached,
        source: "_Source",
        summary: Summary,
        total: int,
    ) -> AsyncIterator[Write]:
        current: _CommitWrites | None = None
        async for event in events:
            if isinstance(event, Change):
                assert current is not None
                async for write in current.change(event):
                    yield write
                continue
            if current is not None:
                for write in current.finish():
                    yield write
                self._done(summary, total)
            current = self._begin(event, reached.commits + summary.commits + 1, source)
        if current is not None:
            for write in current.finish():
                yield write
            self._done(summary, total)

    def _done(self, summary: Summary, total: int) -> None:
        """The writes of a commit were given out, and the runner came back for more: they are done."""
        summary.commits += 1
        self.commit_done(summary.commits, total)

    def _begin(self, commit: Commit, position: int, source: "_Source") -> "_CommitWrites":
        lines = CommitLines(
            commit=commit,
            batch=f"{position}:{commit.sha}",
            objects=source.objects,
            passed_over=source.passed_over,
            file_bytes_max=self.file_bytes_max,
        )
        return _CommitWrites(lines=lines, position=position, bounds=self.bounds)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where file contents come from, and where those are noted that cannot be taken in."""

    objects: Objects
    passed_over: PassedOver


@dataclass(slots=True, kw_only=True)
class _CommitWrites:
    """Cuts the lines of one commit into writes. The commit's own atom comes in the last and names their number."""

    lines: CommitLines
    position: int
    bounds: Bounds
    number: int = 1
    _lines_made: int = 0
    _part: Part = field(init=False)

    def __post_init__(self) -> None:
        self._part = Part(self.bounds)

    async def change(self, change: Change) -> AsyncIterator[Write]:
        async for found in self.lines.of_change(change):
            line = self._line(found)
            if self._part.lines and (self._part.clash(line) is not None or not self._part.has_room(line)):
                yield self._cut()
            self._part.add(line)

    def finish(self) -> list[Write]:
        """The last part, and the one before it when the closing lines need one of their own."""
        made: list[Write] = []
        if not self._has_room_for(self._closing()):
            made.append(self._cut())
        for line in self._closing():
            self._part.add(line)
        return [*made, self._write(last=True)]

    def _closing(self) -> list[Line]:
        return [self._line(found) for found in self.lines.closing(self.number, self.position)]

    def _has_room_for(self, lines: list[Line]) -> bool:
        trial = Part(self.bounds)
        for line in (*self._part.lines, *lines):
            if trial.lines and not trial.has_room(line):
                return False
            trial.add(line)
        return True

    def _cut(self) -> Write:
        write = self._write(last=False)
        self.number += 1
        self._part = Part(self.bounds)
        return write

    def _write(self, *, last: bool) -> Write:
        lines = tuple(self._part.lines)
        return Write(
            key=write_key(lines, Occurrences()), lines=lines, batch=self.lines.batch, part=self.number, last=last
        )

    def _line(self, found: Mapping[str, Any]) -> Line:
        self._lines_made += 1
        where = f"commit {self.lines.commit.sha[:12]}, {ascii(found['id'])[:100]}"
        size_bytes = len(jsontext.dumps(found))
        line = line_of(found, self._lines_made, size_bytes=size_bytes, where=where, bounds=self.bounds)
        if not isinstance(line, Line):
            raise line.error
        return line


def _noted(found: Any, space: str) -> Reached:
    """What an earlier import noted. Anybody may write to that atom, and what it says becomes a git command's word."""
    note = found if isinstance(found, Mapping) else {}
    commit, commits = note.get("commit"), note.get("commits")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit) or type(commits) is not int or commits < 0:
        message = f"the atom {POSITION_KEY} of space {space} does not say how far the import has come"
        raise fail("INVALID_INPUT", f"{message}; put its former value back, or import into a space of its own")
    return Reached(commit=commit, commits=commits)


@asynccontextmanager
async def open_objects(repository: GitRepository) -> AsyncIterator[Objects]:
    """The contents of a repository, while the context is open."""
    async with (
        repository.start("cat-file", "--batch", feed=True) as contents,
        repository.start("cat-file", "--batch-check", feed=True) as names,
    ):
        yield Objects(contents, names)
