"""The import of the demonstration's notes, in this process or in the one that is killed."""

from collections.abc import Callable
from importlib.resources import files
from typing import Final

from atomlog.consumers.imports.heads import Keys
from atomlog.consumers.imports.jsonl import JsonlImport
from atomlog.consumers.imports.plan import Write
from atomlog.consumers.imports.store_side import StoreSide
from atomlog.consumers.imports.summary import Summary
from atomlog.consumers.store import AsyncStore
from atomlog.kernel.ports import File
from atomlog.kernel.system import SystemClock, SystemFiles

NOTES: Final = "notes.jsonl"


def notes() -> bytes:
    """About 40 notes of two people, in English and Japanese, some revised, one deleted and written again."""
    return files("atomlog.consumers.demo").joinpath(NOTES).read_bytes()


async def import_file(directory: str, path: str, space: str, *, written: Callable[[], None] = lambda: None) -> Summary:
    """What `atomlog import jsonl PATH --space SPACE` does."""
    summary = Summary(space=space)
    file = SystemFiles().open(path, write=False)
    try:
        async with await AsyncStore.open(directory) as store:
            await _job(store, file, space, written).run(summary)
    finally:
        file.close()
    return summary


async def accepted_from_the_start(store: AsyncStore, path: str, space: str) -> tuple[int, int]:
    """(how many of the file's first writes are accepted without a gap, how many writes it has)."""
    file = SystemFiles().open(path, write=False)
    side = StoreSide(store, space)
    try:
        writes = [item for item in _job(store, file, space, lambda: None).plan() if isinstance(item, Write)]
    finally:
        file.close()
    count = 0
    while count < len(writes) and await side.accepted(writes[count].key):
        count += 1
    return count, len(writes)


def _job(store: AsyncStore, file: File, space: str, written: Callable[[], None]) -> JsonlImport:
    side, keys = StoreSide(store, space), Keys(space=space, policy=space)
    return JsonlImport(store=side, keys=keys, file=file, clock=SystemClock(), written=written)
