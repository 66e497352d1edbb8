"""What a commit means as import lines: sources for text files, collections for directories, one atom for the commit.

Keys are paths. A directory's path ends with `/`, the top is `/`. A path that is no UTF-8 in NFC, has control
characters, or looks like one of the importer's own keys is written as git quotes it: `"caf\\351.txt"`.
"""

import unicodedata
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atomlog.consumers.imports.git_log import BLOB_MODES, LINK_MODE, SUBMODULE_MODE, Change, Commit, Objects
from atomlog.consumers.imports.lines import GROUP_SCHEMA, WHO_BYTES_MAX, membership_key
from atomlog.kernel.bounds import KEY_BYTES_MAX
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.times import format_time, parse_time

TOP: Final = "/"
COMMIT_PREFIX: Final = "commit:"
POSITION_KEY: Final = "git:position"
COMMIT_SCHEMA: Final = "commit"
POSITION_SCHEMA: Final = "git-position"
FILE_BYTES_MAX: Final = 1024 * 1024
_QUOTED: Final = ('"', "/", "[", COMMIT_PREFIX, "git:")  # beginnings that a path as it is may not have
_ESCAPES: Final = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_EXAMPLES_MAX: Final = 3


@dataclass(slots=True)
class PassedOver:
    """File versions that were not taken in: how many by reason, with a few names each."""

    counts: dict[str, int]
    _examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, path: bytes) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        shown = self._examples.setdefault(reason, [])
        name = path.decode("utf-8", "backslashreplace")
        if len(shown) < _EXAMPLES_MAX and name not in shown:
            shown.append(name)

    def messages(self) -> Iterator[str]:
        """A sentence for each reason."""
        for reason, count in sorted(self.counts.items()):
            names = ", ".join(map(ascii, self._examples[reason]))
            yield f"passed over: {count} {reason} file version{'' if count == 1 else 's'}, e.g. {names}"


@dataclass(slots=True)
class CommitLines:
    """The lines of one commit."""

    commit: Commit
    batch: str
    objects: Objects
    passed_over: PassedOver
    file_bytes_max: int
    _directories: set[bytes] = field(default_factory=set)

    async def of_change(self, change: Change) -> AsyncIterator[Mapping[str, Any]]:
        """The lines of one changed path, those of directories that came or went with it included."""
        key = path_key(change.path)
        if key is None or not _fits(key, change.path):
            self.passed_over.add("too long named", change.path)
            return
        text = await self._text(change) if change.status != "D" else None
        if text is not None:
            if change.old_blob == change.new_blob and change.old_mode in BLOB_MODES:
                return  # only its mode changed
            for directory in _directories_of(change.path):
                for line in self._directory_came(directory):
                    yield line
            value = {"text": text, "path": key}  # keys are not stored, so a found text would not say where it is from
            yield {"id": key, "value": value, "groups": [_parent(change.path)], **self._signed()}
            return
        if change.status != "A":
            yield {"id": key, "op": "delete", "batch": self.batch}
        if change.status == "D":
            for directory in reversed(_directories_of(change.path)):
                async for line in self._directory_went(directory):
                    yield line

    def closing(self, parts: int, position: int) -> list[Mapping[str, Any]]:
        """The commit's own atom, and the note of how far the import has come; they end the commit's last part."""
        commit = self.commit
        value: dict[str, Any] = {"text": commit.message, "commit": commit.sha, "parents": list(commit.parents)}
        value["parts"] = parts
        authored = _time(commit.authored)
        if authored is not None:
            value["authored_at"] = authored
        own = {"id": f"{COMMIT_PREFIX}{commit.sha}", "schema": COMMIT_SCHEMA, "value": value, **self._signed()}
        reached = {"commit": commit.sha, "commits": position}
        return [own, {"id": POSITION_KEY, "schema": POSITION_SCHEMA, "value": reached, "batch": self.batch}]

    def _signed(self) -> dict[str, Any]:
        committed = _time(self.commit.committed)
        signed: dict[str, Any] = {"batch": self.batch}
        if committed is not None:
            signed["time"] = committed
        author = self.commit.author.strip().encode()[:WHO_BYTES_MAX].decode("utf-8", "ignore")
        return signed | ({"who": author} if author.strip() else {})

    async def _text(self, change: Change) -> str | None:
        """The text of the new version; None, counted, when it is none that can be taken in."""
        if change.new_mode not in BLOB_MODES:
            reasons = {LINK_MODE: "linked", SUBMODULE_MODE: "submodule"}
            self.passed_over.add(reasons.get(change.new_mode, "irregular"), change.path)
            return None
        raw = await self.objects.blob(change.new_blob, bytes_max=self.file_bytes_max)
        if raw is None:
            self.passed_over.add("too large", change.path)
            return None
        if b"\0" in raw:
            self.passed_over.add("binary", change.path)
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.passed_over.add("non-UTF-8", change.path)
            return None

    def _directory_came(self, directory: bytes) -> Iterator[Mapping[str, Any]]:
        """A collection for a directory that text files are in; it says nothing new when there is one."""
        key = path_key(directory)
        if key is None or directory in self._directories:
            return
        self._directories.add(directory)
        groups = [_parent(directory[:-1])]
        yield {"id": key, "schema": GROUP_SCHEMA, "value": {"title": key}, "groups": groups, "batch": self.batch}

    async def _directory_went(self, directory: bytes) -> AsyncIterator[Mapping[str, Any]]:
        key = path_key(directory)
        if key is None or directory in self._directories:
            return
        self._directories.add(directory)
        if await self.objects.has_directory(self.commit.sha, directory[:-1]) is False:
            yield {"id": key, "op": "delete", "batch": self.batch}


def path_key(path: bytes) -> str | None:
    """The key of a path, different for different paths; None when it would be too long."""
    try:
        key = path.decode()
        plain = unicodedata.is_normalized("NFC", key) and not key.startswith(_QUOTED)
        plain = plain and not any(unicodedata.category(character) == "Cc" for character in key)
    except UnicodeDecodeError:
        plain = False
    if not plain:
        key = f'"{"".join(map(_escaped, path))}"'
    return key if len(key.encode()) <= KEY_BYTES_MAX else None


def _escaped(byte: int) -> str:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def _fits(key: str, path: bytes) -> bool:
    """Whether all keys of this path's memberships are short enough."""
    names = [*(path_key(directory) for directory in _directories_of(path)), key]
    if None in names:
        return False
    pairs = zip((TOP, *names), names, strict=False)
    return all(len(membership_key(group or "", name or "").encode()) <= KEY_BYTES_MAX for group, name in pairs)


def _directories_of(path: bytes) -> list[bytes]:
    """`a/b/c.txt` → `a/`, `a/b/`."""
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[: n + 1]) + b"/" for n in range(len(parts))]


def _parent(path: bytes) -> str:
    """The key of the directory that a path is in."""
    above, slash, _ = path.rpartition(b"/")
    return (path_key(above + b"/") or TOP) if slash else TOP


def _time(text: str) -> str | None:
    """A time that git recorded; None for the nonsense that it also keeps."""
    try:
        return format_time(parse_time(text, "time"))
    except AtomlogError:
        return None
