"""The `git` command, run so that nothing of the repository's own is executed: no hook, no pager, no configured program.

Only object reading commands are used. Variables `GIT_*` of the environment are taken out, and settings that name
programs or change output are overridden.
"""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from atomlog.kernel.errors import AtomlogError, fail

TOKEN_BYTES_MAX: Final = 16 * 1024 * 1024  # of one commit message or path
_CHUNK_BYTES: Final = 256 * 1024
_STDERR_BYTES_MAX: Final = 64 * 1024

# What a repository's configuration could run or change, and a value under which it does not.
_OVERRIDES: Final = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.useReplaceRefs=false",
    "diff.external=",
    "diff.ignoreSubmodules=none",
    "gc.auto=0",
    "log.showSignature=false",
    "maintenance.auto=false",
    "protocol.allow=never",
)
_ENVIRONMENT: Final = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRepository:
    """A repository on disk, bare or not. `environment` is that of this process."""

    path: str
    environment: Mapping[str, str]

    def start(self, *arguments: str, feed: bool = False) -> "GitProcess":
        """A git command to read from, and to write to with `feed`. Use it with `async with`."""
        return GitProcess(self, arguments, feed)

    async def text(self, *arguments: str) -> str | None:
        """What a git command prints, stripped; None when it fails."""
        try:
            async with self.start(*arguments) as process:
                raw = await process.rest()
        except AtomlogError as error:
            if error.code != "INVALID_INPUT":
                raise
            return None
        return raw.decode("utf-8", "replace").strip()

    async def spawn(self, arguments: tuple[str, ...], feed: bool) -> Process:
        command = ["git", "-C", self.path, "--no-pager", *(word for pair in _OVERRIDES for word in ("-c", pair))]
        environment = {name: value for name, value in self.environment.items() if not name.startswith("GIT_")}
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                stdin=PIPE if feed else DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=environment | _ENVIRONMENT,
                limit=TOKEN_BYTES_MAX,
            )
        except FileNotFoundError:
            message = "the command git was not found; `atomlog import git` needs it: install git, or put it on the PATH"
            raise fail("INVALID_INPUT", message) from None


class GitProcess:
    """One running git command. Leaving the context waits for its end, and raises what it complained about."""

    def __init__(self, repository: GitRepository, arguments: tuple[str, ...], feed: bool) -> None:
        self._repository = repository
        self._arguments = arguments
        self._feed = feed
        self._complaint: asyncio.Task[bytes]
        self._process: Process

    async def __aenter__(self) -> "GitProcess":
        self._process = await self._repository.spawn(self._arguments, self._feed)
        self._complaint = asyncio.create_task(self._read_complaint())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._process.returncode is None:
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = await self._process.wait()
        complaint = await self._complaint
        if code != 0 and kind is None:
            raise self._failure(code, complaint)

    async def line(self) -> bytes:
        """The next line without its end."""
        found = await self._stdout.readline()
        if not found.endswith(b"\n"):
            raise await self.ended()
        return found[:-1]

    async def token(self) -> bytes | None:
        """The bytes up to the next NUL; None at the end."""
        try:
            return (await self._stdout.readuntil(b"\0"))[:-1]
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise await self.ended() from None
            return None
        except asyncio.LimitOverrunError:
            message = f"git: a path or a message of more than {TOKEN_BYTES_MAX} bytes"
            raise fail("BOUND_EXCEEDED", message) from None

    async def exactly(self, size: int) -> bytes:
        try:
            return await self._stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            raise await self.ended() from None

    async def skip(self, size: int) -> None:
        while size > 0:
            found = await self._stdout.read(min(size, _CHUNK_BYTES))
            if not found:
                raise await self.ended()
            size -= len(found)

    async def ended(self) -> AtomlogError:
        """The error for a command that ended before it had said everything."""
        return self._failure(await self._process.wait(), await self._complaint)

    async def rest(self) -> bytes:
        """All that is still to come, of a command with little to say."""
        return await self._stdout.read()

    async def ask(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    async def _read_complaint(self) -> bytes:
        assert self._process.stderr is not None
        kept = b""
        while found := await self._process.stderr.read(_CHUNK_BYTES):
            kept = (kept + found)[-_STDERR_BYTES_MAX:]
        return kept

    def _failure(self, code: int, complaint: bytes) -> AtomlogError:
        said = complaint.decode("utf-8", "replace").strip() or f"exit code {code}"
        return fail("INVALID_INPUT", f"git {self._arguments[0]} in {self._repository.path}: {said}")


async def tokens(process: GitProcess) -> AsyncIterator[bytes]:
    """Every NUL-terminated token of a command's output."""
    while (token := await process.token()) is not None:
        yield token
