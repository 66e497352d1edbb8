"""The exact bytes that an origin cites, checked against the digest that was taken when it was written."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from atomlog.consumers.indexes import OpenIndexes
from atomlog.kernel.content import ContentOpener, Sealed
from atomlog.kernel.errors import fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.text import slice_bytes
from atomlog.projections.ids import Ids
from atomlog.schemas.content import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """`text` is bytes [start, end) of the NFC UTF-8 text of the source revision."""

    source: bytes
    revision: bytes
    start: int
    end: int
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": format_id(self.source),
            "revision": format_id(self.revision),
            "start": self.start,
            "end": self.end,
            "text": self.text,
        }


async def source_of(
    views: OpenIndexes, revision: bytes, elsewhere: Callable[[bytes], Awaitable[bytes | None]] | None
) -> bytes:
    """The bytes of a cited revision, from ids, or from `elsewhere` where ids may lack its partition. INDEX_LAGGING."""
    found = None
    if "ids" in views or elsewhere is None:
        async with views.need("ids").pinned() as ids:
            assert isinstance(ids, Ids)
            row = ids.revision(revision)
        found = None if row is None else row.data
    if found is None and elsewhere is not None:
        found = await elsewhere(revision)
    if found is None:
        raise fail("INDEX_LAGGING", "the source revision is not indexed yet", retry_after_ms=100)
    return found


async def read_quote(content: ContentOpener, source: bytes, origin: Origin) -> Quote:
    """The quote of an origin, given the bytes of the source revision. KEY_UNAVAILABLE, PURGED, CORRUPT."""
    opened = await content.open(source)
    if isinstance(opened, Sealed):
        raise fail("KEY_UNAVAILABLE", f"the source cannot be read: {opened.reason}; give the store's master key")
    text = opened.text_bytes
    quoted = b"" if text is None else slice_bytes(text, origin.start, origin.end)
    if hashlib.sha256(quoted).digest() != origin.sha256:
        where = f"bytes {origin.start} to {origin.end} of revision {format_id(origin.revision)}"
        raise fail("CORRUPT", f"{where} are not those that were cited")
    return Quote(
        source=origin.source, revision=origin.revision, start=origin.start, end=origin.end, text=quoted.decode()
    )
