"""The lines of a file as bytes, from any place on, a long one cut off; and a file of what cannot be read twice."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from atomlog.kernel.ports import File

CHUNK_BYTES: Final = 256 * 1024
BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLine:
    """`data` without its end of line, None when it was longer than allowed. `end` is the byte after it."""

    number: int
    data: bytes | None
    size_bytes: int
    end: int


def raw_lines(file: File, *, offset: int = 0, number: int = 1, line_bytes_max: int) -> Iterator[RawLine]:
    """Lines from byte `offset` on, the first of them numbered `number`; blank ones are counted, not given.

    A longer line than `line_bytes_max` comes without data, so that no line fills the memory.
    """
    for found in _cut(file, offset, line_bytes_max):
        data, size_bytes, end = found
        if data is not None:
            data = data.rstrip(b"\r")
            if end == size_bytes and data.startswith(BOM):  # the first line of the file
                data = data[len(BOM) :]
        if data is None or data.strip():
            yield RawLine(number=number, data=data, size_bytes=size_bytes, end=end)
        number += 1


def _cut(file: File, offset: int, line_bytes_max: int) -> Iterator[tuple[bytes | None, int, int]]:
    """(bytes without the line feed, size with it, end) of each line; the last may have no line feed."""
    start, at = offset, offset
    held = bytearray()
    too_long = False
    while chunk := file.read_at(at, CHUNK_BYTES):
        at += len(chunk)
        begin = 0
        while (feed := chunk.find(b"\n", begin)) >= 0:
            held += chunk[begin:feed]
            end = at - len(chunk) + feed + 1
            too_long = too_long or len(held) > line_bytes_max
            yield (None if too_long else bytes(held)), end - start, end
            held.clear()
            too_long, start, begin = False, end, feed + 1
        held += chunk[begin:]
        if len(held) > line_bytes_max:
            held.clear()
            too_long = True
    if at > start:
        yield (None if too_long else bytes(held)), at - start, at


def spool(source: BinaryIO, target: File) -> int:
    """Copy all of a stream that can be read only once; returns its size in bytes."""
    size_bytes = 0
    while chunk := source.read(CHUNK_BYTES):
        target.append(chunk)
        size_bytes += len(chunk)
    return size_bytes
