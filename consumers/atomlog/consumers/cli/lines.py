"""Lines of a stream on the event loop, so that projections follow while a pipe is quiet."""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from atomlog.consumers.imports.raw import BOM

CHUNK_BYTES: Final = 64 * 1024


async def lines(stream: BinaryIO, *, line_bytes_max: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """(number, line without its end), numbered from 1; blank ones are counted, not given.

    A line beyond `line_bytes_max` comes as None, and is not held in memory.
    """
    source = _Source(stream)
    held, too_long, number = bytearray(), False, 1

    def taken() -> bytes:
        return bytes(held.removeprefix(BOM) if number == 1 else held)

    while chunk := await source.chunk():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            held += end
            too_long = too_long or len(held) > line_bytes_max
            if too_long or taken().strip():
                yield number, None if too_long else taken()
            held.clear()
            too_long, number = False, number + 1
        held += rest
        if len(held) > line_bytes_max:
            held.clear()
            too_long = True
    if too_long or taken().strip():
        yield number, None if too_long else taken()


class _Source:
    """Reads what is there, waiting on the loop for pipes and terminals; a file never makes anybody wait."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = getattr(stream, "raw", stream)
        self._descriptor: int | None = None
        try:
            descriptor = stream.fileno()
            asyncio.get_running_loop().add_reader(descriptor, lambda: None)
            asyncio.get_running_loop().remove_reader(descriptor)
            self._descriptor = descriptor
        except (PermissionError, io.UnsupportedOperation):  # a regular file; a stream in memory
            pass

    async def chunk(self) -> bytes:
        """Some bytes; none at the end."""
        if self._descriptor is not None:
            await self._ready(self._descriptor)
        found: bytes | None = self._stream.read(CHUNK_BYTES)
        return found or b""

    async def _ready(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
