"""Runs a jsonl import of lines given as Python values."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.summary import Summary
from atomlog.kernel.bounds import Bounds
from tests.consumers.imports.fake_store import FakeStore


class BytesFile:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_at(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def size(self) -> int:
        return len(self.data)

    def append(self, data: bytes) -> None:
        self.data += data

    def write_at(self, offset: int, data: bytes) -> None:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        pass

    def is_at(self, path: str) -> bool:
        return True

    def lock(self) -> bool:
        return True

    def close(self) -> None:
        pass


class StillClock:
    """Nobody waits."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_us(self) -> int:
        return 0

    def monotonic_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def jsonl(*lines: Mapping[str, Any] | str) -> bytes:
    return b"".join((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n" for line in lines)


def run(
    store: FakeStore,
    lines: Sequence[Mapping[str, Any] | str] | bytes,
    *,
    split: bool = False,
    keep_going: bool = False,
    bounds: Bounds | None = None,
    said: list[str] | None = None,
) -> Summary:
    summary = Summary(space=store.space)
    job = JsonlImport(
        store=store,
        keys=Keys(space=store.space, policy=store.space),
        file=BytesFile(lines if isinstance(lines, bytes) else jsonl(*lines)),
        clock=StillClock(),
        split=split,
        keep_going=keep_going,
        bounds=bounds or Bounds(),
        say=([] if said is None else said).append,
    )
    asyncio.run(job.run(summary))
    return summary
