"""Reads the history of a repository: commits along first parents, and what each changed."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from atomlog.consumers.imports.git_process import GitProcess, GitRepository, tokens
from atomlog.kernel.errors import fail

_COMMIT: Final = b"\x01"
_FORMAT: Final = "--format=%x01%H%x00%P%x00%cI%x00%aI%x00%an%x00%B%x00"
_DIFF: Final = ("--raw", "-r", "-z", "--no-renames", "--no-abbrev", "--no-ext-diff", "--no-textconv", "-O/dev/null")
_LOG: Final = (
    "log",
    "--first-parent",
    "-m",
    "--root",
    "--reverse",
    "--no-color",
    "--no-notes",
    "--no-mailmap",
    "--no-show-signature",
    "--encoding=UTF-8",
)
BLOB_MODES: Final = (b"100644", b"100755", b"100664")
LINK_MODE: Final = b"120000"
SUBMODULE_MODE: Final = b"160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """`committed`, `authored`: RFC 3339 as git gives them, possibly nonsense. Texts that are no UTF-8 are mended."""

    sha: str
    parents: tuple[str, ...]
    committed: str
    authored: str
    author: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path of a commit against the tree before it. Modes are octal digits, zeros = not there."""

    status: str
    old_mode: bytes
    new_mode: bytes
    old_blob: str
    new_blob: str
    path: bytes


class History:
    """One repository, asked about commits."""

    def __init__(self, repository: GitRepository) -> None:
        self._repository = repository

    async def resolve(self, ref: str) -> str:
        """The commit of a ref; INVALID_INPUT when the path is no repository, or the ref no commit."""
        if await self._repository.text("rev-parse", "--git-dir") is None:
            async with self._repository.start("rev-parse", "--git-dir"):
                pass  # raises what git says about it
        found = await self._repository.text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if not found:
            message = f"{self._repository.path} has no commit {ascii(ref)[:80]}; name another with --ref"
            raise fail("INVALID_INPUT", message)
        return found

    async def has_commit(self, sha: str) -> bool:
        return await self._repository.text("cat-file", "-e", f"{sha}^{{commit}}") is not None

    async def count(self, after: str | None, tip: str) -> int:
        """Commits to come along first parents."""
        found = await self._repository.text("rev-list", "--count", "--first-parent", *_range(after, tip))
        return int(found or 0)

    async def events(self, after: str | None, tip: str) -> AsyncGenerator[Commit | Change, None]:
        """Each commit, oldest first, followed by its changes against its first parent."""
        async with self._repository.start(*_LOG, *_DIFF, _FORMAT, *_range(after, tip)) as process:
            async for token in tokens(process):
                if token.startswith(_COMMIT):
                    yield await _commit(token[1:], process)
                elif token.strip(b"\n"):
                    yield await _change(token.lstrip(b"\n"), process)

    async def changes(self, before: str, after: str) -> AsyncGenerator[Change, None]:
        """What differs between the trees of two commits."""
        async with self._repository.start("diff-tree", *_DIFF, before, after) as process:
            async for token in tokens(process):
                yield await _change(token, process)


class Objects:
    """Contents of a repository, asked for one by one. Use it with `async with`, through `open_objects`."""

    def __init__(self, contents: GitProcess, names: GitProcess) -> None:
        self._contents = contents
        self._names = names

    async def blob(self, name: str, *, bytes_max: int) -> bytes | None:
        """The bytes of a blob; None when they are more than `bytes_max`."""
        await self._contents.ask(name.encode())
        header = (await self._contents.line()).split(b" ")
        if len(header) != 3:
            message = f"the object {name} is not in the repository; fetch it first, or complete the clone"
            raise fail("INVALID_INPUT", message)
        size = int(header[2])
        if size > bytes_max:
            await self._contents.skip(size + 1)
            return None
        return (await self._contents.exactly(size + 1))[:-1]

    async def has_directory(self, commit: str, path: bytes) -> bool | None:
        """Whether a commit has the directory; None when its name cannot be asked for."""
        if b"\n" in path:
            return None
        await self._names.ask(commit.encode() + b":" + path)
        header = (await self._names.line()).split(b" ")
        return len(header) == 3 and header[1] == b"tree"


def _range(after: str | None, tip: str) -> tuple[str, ...]:
    return ("--end-of-options", tip) if after is None else ("--end-of-options", f"{after}..{tip}")


async def _commit(sha: bytes, process: GitProcess) -> Commit:
    parts = [await process.token() for _ in range(5)]
    if None in parts:
        raise await process.ended()
    parents, committed, authored, author, message = ((part or b"").decode("utf-8", "replace") for part in parts)
    return Commit(
        sha=_name(sha),
        parents=tuple(parents.split()),
        committed=committed,
        authored=authored,
        author=author,
        message=message,
    )


async def _change(token: bytes, process: GitProcess) -> Change:
    """`:<old mode> <new mode> <old blob> <new blob> <status>`, then the path."""
    fields = token.removeprefix(b":").split(b" ")
    path = await process.token()
    if len(fields) != 5 or path is None:
        raise await process.ended()
    old_mode, new_mode, old_blob, new_blob, status = fields
    return Change(
        status=_name(status[:1]),
        old_mode=old_mode,
        new_mode=new_mode,
        old_blob=_name(old_blob),
        new_blob=_name(new_blob),
        path=path,
    )


def _name(raw: bytes) -> str:
    """An object's name or a status letter, which are ASCII."""
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise fail("INVALID_INPUT", f"git says {ascii(raw)[:80]} where the name of an object must be") from None
