"""One digest over what a store says, for comparing two stores that were fed the same content.

It does not see what may differ between such stores: revision ids, positions, times of recording, content keys.

SHA-256 over the atoms in ascending order of their 16 raw bytes, and of each atom its revisions from the oldest on,
each as `u32 BE length ‖ canonical JSON` (docs/formats.md) of one object::

    {"atom": UUID, "n": 0, "state": "active" | "retired", "schema": name, "policy": name,
     "valid_time": null | {"from": µs | null, "to": µs | null},
     "slots": [{"role", "target": UUID, "at": null | n, "include": bool, "required": bool, "order_key": hex}],
     "value": any, "origins": [{"source": UUID, "revision": n, "start", "end", "sha256": hex}]}

`n` counts an atom's revisions from 0; where a slot or an origin names a revision, its `n` stands (−1: not in this
store). Slots and origins keep their order. A text in the blob store stands as text. A revision whose content was
erased has `"erased": true` instead of `value` and `origins`.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from heapq import merge
from typing import Any, Final

from atomlog.kernel.content import ContentOpener, Opened, Sealed
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.jsontext import canonical
from atomlog.kernel.kv import u32
from atomlog.kernel.model import Positions
from atomlog.projections.ids import Ids, Row
from atomlog.schemas.revision import Clear, Slot, decode_clear

Progress = Callable[[int, int | None], None]
"""(done, total or None when it is not known)."""

_PAGE: Final = 256  # revisions of one atom read at once
_NUMBERS_CACHED_MAX: Final = 65_536
_YIELD_EVERY: Final = 64  # atoms; the event loop serves others in between
_DEPTH_MAX: Final = 128  # a value may be nested as deep as it was accepted, a few levels down in its entry
MISSING: Final = -1


async def content_digest(ids: Ids, opener: ContentOpener, at: Positions, *, progress: Progress | None = None) -> str:
    """The digest, in hex, of everything at the read positions `at`. Memory does not grow with the store.

    `ids` must stay open meanwhile; it may move on.

    Raises:
        KEY_UNAVAILABLE: no master key, or another one. CORRUPT: content is not what was written.
    """
    digest, numbers, done = hashlib.sha256(), _Numbers(ids), 0
    for atom in _atoms(ids, at):
        number, after = 0, None
        while rows := ids.history(atom, at, after=after, limit=_PAGE):
            for row in rows:
                entry = canonical(await _entry(row, number, opener, numbers), depth_max=_DEPTH_MAX)
                digest.update(u32(len(entry)) + entry)
                number, after = number + 1, row.position
        done += 1
        if done % _YIELD_EVERY == 0:
            if progress is not None:
                progress(done, None)
            await asyncio.sleep(0)
    if progress is not None:
        progress(done, done)
    return digest.hexdigest()


def _atoms(ids: Ids, at: Positions) -> Iterator[bytes]:
    """All atoms of all partitions in one ascending order."""
    return merge(*(ids.scan_atoms(partition) for partition in sorted(at)))


async def _entry(row: Row, number: int, opener: ContentOpener, numbers: "_Numbers") -> dict[str, Any]:
    clear, _ = decode_clear(row.data)
    entry: dict[str, Any] = {
        "atom": format_id(row.atom),
        "n": number,
        "state": "retired" if clear.retired else "active",
        "schema": clear.schema,
        "policy": clear.policy,
        "valid_time": _valid_time(clear),
        "slots": [_slot(slot, numbers) for slot in clear.slots],
    }
    opened = await _opened(row, opener)
    if opened is None:
        return {**entry, "erased": True}
    origins = [
        {
            "source": format_id(origin.source),
            "revision": numbers.of(origin.revision),
            "start": origin.start,
            "end": origin.end,
            "sha256": origin.sha256.hex(),
        }
        for origin in opened.origins
    ]
    return {**entry, "value": opened.value, "origins": origins}


async def _opened(row: Row, opener: ContentOpener) -> Opened | None:
    """The content; None when it was erased."""
    try:
        opened = await opener.open(row.data)
    except AtomlogError as error:
        if error.code == "PURGED":
            return None
        raise
    if isinstance(opened, Sealed):
        message = f"the content cannot be read: {opened.reason}; give the store's master key (--master-key FILE)"
        raise fail("KEY_UNAVAILABLE", message)
    return opened


def _valid_time(clear: Clear) -> dict[str, int | None] | None:
    valid = clear.valid_time
    return None if valid is None else {"from": valid.from_us, "to": valid.to_us}


def _slot(slot: Slot, numbers: "_Numbers") -> dict[str, Any]:
    return {
        "role": slot.role,
        "target": format_id(slot.target),
        "at": None if slot.at is None else numbers.of(slot.at),
        "include": slot.include,
        "required": slot.required,
        "order_key": slot.order_key.hex(),
    }


class _Numbers:
    """Which revision of its atom a revision is, by its id."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._known: dict[bytes, int] = {}

    def of(self, revision: bytes) -> int:
        number = self._known.get(revision)
        if number is None:
            if len(self._known) >= _NUMBERS_CACHED_MAX:
                self._known.clear()
            number = self._known[revision] = self._count(revision)
        return number

    def _count(self, revision: bytes) -> int:
        """The revisions of the atom before this one; a batch holds one revision of an atom at most."""
        row = self._ids.revision(revision)
        if row is None:
            return MISSING
        count, after = 0, None
        while rows := self._ids.history(row.atom, {row.partition: row.position - 1}, after=after, limit=_PAGE):
            count, after = count + len(rows), rows[-1].position
        return count
