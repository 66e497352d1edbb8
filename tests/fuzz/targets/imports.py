"""Files that are imported: their lines, what belongs together, and what git says."""

import asyncio
import io
from collections.abc import Iterator

from atomlog.consumers.cli.lines import lines as stream_lines
from atomlog.consumers.imports.git_lines import path_key
from atomlog.consumers.imports.git_log import Change, Commit, History
from atomlog.consumers.imports.lines import BadLine, Line, parse_line
from atomlog.consumers.imports.plan import Refused, Write, plan
from atomlog.consumers.imports.raw import raw_lines
from atomlog.consumers.imports.runs import Item, Mark
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.jsontext import parse_json
from tests.fuzz.engine import Target, agree
from tests.fuzz.memory_files import memory_file

_LONGEST = 2_000
_BOUNDS = Bounds(batch_revisions_max=20, batch_bytes_max=20_000)


def line(data: bytes) -> None:
    found = parse_line(data, 7)
    agree(found.number == 7 and found.size_bytes == len(data), "a line is another line")
    if isinstance(found, BadLine):
        agree(bool(found.error.details), "a refused line without a reason")
        raise found.error
    agree(isinstance(parse_line(found.canonical, 7), Line), "a line is refused in its canonical form")
    agree(parse_json(found.canonical) == parse_json(data), "the canonical form says something else")


def whole_file(data: bytes) -> None:
    """Both readers of lines agree, and every line ends up in exactly one write or refusal."""
    whole = list(raw_lines(memory_file(data), line_bytes_max=_LONGEST))
    from_stream = asyncio.run(_streamed(data))
    agree([raw.number for raw in whole] == [number for number, _ in from_stream], "other lines from a stream")
    for raw, (_, taken) in zip(whole, from_stream, strict=True):
        agree(raw.data == (None if taken is None else taken.rstrip(b"\r")), "another line from a stream")
    for place, raw in enumerate(whole):
        behind = raw_lines(memory_file(data), offset=raw.end, number=raw.number + 1, line_bytes_max=_LONGEST)
        agree(next(behind, None) == next(iter(whole[place + 1 :]), None), "another line from a mark on")
    for split in (False, True):
        _all_planned(data, split)


async def _streamed(data: bytes) -> list[tuple[int, bytes | None]]:
    return [each async for each in stream_lines(io.BytesIO(data), line_bytes_max=_LONGEST)]


def _all_planned(data: bytes, split: bool) -> None:
    def read(mark: Mark) -> Iterator[tuple[Item, Mark]]:
        found = raw_lines(memory_file(data), offset=mark.offset, number=mark.number, line_bytes_max=_LONGEST)
        for raw in found:
            yield (
                parse_line(raw.data or b"", raw.number, size_bytes=raw.size_bytes),
                Mark(offset=raw.end, number=raw.number + 1),
            )

    items = [item for item, _ in read(Mark(offset=0, number=1))]
    written: list[int] = []
    refused: set[int] = set()
    for part in plan(read, split=split, bounds=_BOUNDS):
        if isinstance(part, Write):
            written += [each.number for each in part.lines]
        else:
            agree(isinstance(part, Refused), "neither written nor refused")
            refused |= set(range(part.first, part.last + 1))
    numbers = {item.number for item in items}
    agree(written == sorted(set(written)), "a line is written twice, or out of order")
    agree(numbers <= set(written) | refused and not set(written) & refused, "a line is lost")
    bad = {item.number for item in items if isinstance(item, BadLine)}
    agree(bad <= refused, "a line that cannot be read is written")


class _Git:
    """A git command that says these bytes."""

    def __init__(self, data: bytes) -> None:
        self.said = data.split(b"\0")[:-1]

    def start(self, *arguments: str) -> "_Git":
        return self

    async def __aenter__(self) -> "_Git":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def token(self) -> bytes | None:
        return self.said.pop(0) if self.said else None

    async def ended(self) -> Exception:
        return EndedEarly()


class EndedEarly(Exception):
    pass


def git_log(data: bytes) -> None:
    found = asyncio.run(_events(data))
    agree(all(isinstance(each, Commit | Change) for each in found), "git said something else")


async def _events(data: bytes) -> list[Commit | Change]:
    history = History(_Git(data))  # type: ignore[arg-type]
    return [event async for event in history.events(None, "tip")]


def git_paths(data: bytes) -> None:
    """Different paths have different keys."""
    paths = set(data.split(b"\n"))
    keys = [key for path in paths if (key := path_key(path)) is not None]
    agree(len(keys) == len(set(keys)), "two paths have one key")
    agree(all(0 < len(key.encode()) <= 512 or not key for key in keys), "a key that is none")


def _lines() -> list[bytes]:
    return [
        b'{"id": "n-1", "text": "Sencha", "groups": ["tea", "green"], "time": "2026-01-01T00:00:00Z"}',
        b'{"id": "n-1", "op": "delete", "batch": "b-1"}',
        b'{"id": "n-2", "value": {"text": "x", "n": 1}, "schema": "source", "who": "me", "batch": "b-1"}',
        '{"id": "日本", "text": "煎茶", "groups": []}'.encode(),
    ]


def _files() -> list[bytes]:
    return [b"\n".join(_lines()), b"\xef\xbb\xbf" + b"\r\n\n".join(_lines() * 3), b"x" * 3_000 + b"\n" + _lines()[0]]


def _said() -> list[bytes]:
    head = b"\x01" + b"a" * 40 + b"\0" + b"b" * 40 + b"\0" + b"2026-01-01T00:00:00+09:00\0" * 2 + b"me\0message\n\0"
    diff = b"\n:100644 100644 " + b"c" * 40 + b" " + b"d" * 40 + b" M\0a/b.txt\0"
    return [head + diff + diff.lstrip(b"\n"), head * 2]


REFUSED = frozenset({"INVALID_INPUT", "BOUND_EXCEEDED"})
_WORDS = tuple(
    word.encode()
    for word in (
        *('"id": ', '"op": "delete"', '"text": ', '"value": {', '"groups": [', '"batch": "b"', '"who": "x"', "\n"),
        *(
            '"blob": 1',
            '["member",',
            '"time": ',
            '"schema": "membership"',
            "\r\n",
            "\ufeff",
            '{"id": "a", "text": "b"}\n',
        ),
    )
)
TARGETS = [
    Target(name="import-line", json=True, decode=line, seeds=_lines, codes=REFUSED, words=_WORDS, bytes_per_byte=1_500),
    Target(
        name="import-file",
        decode=whole_file,
        seeds=_files,
        codes=REFUSED,
        words=_WORDS,
        executions=600,
        lines_per_byte=400,
        lines_base=20_000,
        bytes_per_byte=3_000,
    ),
    Target(name="git-log", decode=git_log, seeds=_said, refusals=(EndedEarly,), codes=REFUSED, executions=5_000),
    Target(name="git-paths", decode=git_paths, seeds=lambda: [b"a/b.txt\ncaf\xe9.txt\n\xc3\xa9\ncommit:a\n[x"]),
]
