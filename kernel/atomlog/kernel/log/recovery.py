"""What a new owner does with the end of a partition before it may write.

The last group of the last segment may be there in part: its fsync had not returned, so nobody was told of it. It is
cut off whole. Two cases are no torn tail but damage, and are refused: a bad group below `durable_end` (somebody was
told of it), and a bad group with any whole group after it (it had been synced before that one was written).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.log.frames import (
    GROUP_HEADER_BYTES,
    GROUP_MAGIC,
    is_whole,
    link,
    parse_group_header,
)
from atomlog.kernel.log.places import DURABLE_END_BYTES, Place, Spot, Window, corrupt, read_durable_end
from atomlog.kernel.log.segments import first_spot, read_segment_header
from atomlog.kernel.ports import File, Files

_SCAN_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The open last segment, its last spot, the open `durable_end`, and how many bytes were cut off."""

    segment: File
    path: str
    spot: Spot
    durable_end: File
    cut_bytes: int

    def close(self) -> None:
        self.segment.close()
        self.durable_end.close()


def recover(files: Files, place: Place, sync: Callable[[File, str], None]) -> Recovered:
    """Make the end of a locked partition clean and durable, then publish it. Blocks; for a worker.

    Raises:
        CORRUPT, LOG_MISMATCH, STORE_TOO_NEW: naming the file, and the byte. Nothing was changed.
        OSError: of the file system.
    """
    # 1. The last segment, and what was acknowledged of it.
    firsts = place.segments(files)
    if not firsts or firsts[0] != 0:
        raise corrupt(place.segment(0), None, "the first segment is missing")
    path = place.segment(firsts[-1])
    segment = files.open(path, write=True)
    try:
        header = read_segment_header(segment, path, place, firsts[-1])
        published = read_durable_end(files, place.durable_end)
        # 2. Its last whole group.
        before, spot = last_group(segment, path, first_spot(header), acknowledged=published or 0)
        # 3. What comes after it goes. What stays may be in the page cache only: it must be durable before it is read.
        # If it is there because its owner's fsync failed, its pages count as clean, and a sync alone writes none of
        # them: so it is written again.
        cut_bytes = segment.size() - spot.offset
        if cut_bytes:
            segment.truncate(spot.offset)
        if published is None or published < spot.position:
            segment.write_at(before.offset, segment.read_at(before.offset, spot.offset - before.offset))
        sync(segment, path)
        # 4. Only now may readers see it.
        durable_end = _publish(files, place, spot.position, sync)
    except BaseException:
        segment.close()
        raise
    _remove_leftovers(files, place)
    return Recovered(segment=segment, path=path, spot=spot, durable_end=durable_end, cut_bytes=cut_bytes)


def find_end(file: File, path: str, begin: Spot, *, acknowledged: int) -> Spot:
    """The spot after the last whole group. CORRUPT when what follows it cannot be a torn tail."""
    return last_group(file, path, begin, acknowledged=acknowledged)[1]


def last_group(file: File, path: str, begin: Spot, *, acknowledged: int) -> tuple[Spot, Spot]:
    """The spots before and after the last whole group, one and the same when there is none. See `find_end`."""
    size = file.size()
    window = Window(file, _SCAN_BYTES)
    before = spot = begin
    while spot.offset < size and (after := _next(window, path, spot)):
        before, spot = spot, after
    if spot.position < acknowledged:
        raise corrupt(path, spot.offset, *_lost(spot, size, acknowledged))
    if spot.offset < size and (later := _find_group(window, spot.offset + 1)) is not None:
        what = f"no whole group of position {spot.position} stands here, but one follows at byte {later}"
        raise corrupt(path, spot.offset, what)
    return before, spot


def _next(window: Window, path: str, spot: Spot) -> Spot | None:
    """The spot after the whole group at `spot`; None when there is none."""
    buf, at = window.load(spot.offset, GROUP_HEADER_BYTES)
    header = parse_group_header(buf, at)
    if header is None:
        return None
    size = GROUP_HEADER_BYTES + header.length
    buf, at = window.load(spot.offset, size)
    if not is_whole(buf, at, header):
        return None
    if header.chain != spot.chain:
        what = f"the group of position {spot.position} does not follow what stands before it: it was exchanged"
        raise corrupt(path, spot.offset, what)
    return Spot(spot.offset + size, spot.position + header.record_count, link(buf, at))


def _lost(spot: Spot, size: int, acknowledged: int) -> tuple[str, str]:
    where = "the file ends here" if spot.offset == size else "no whole group stands here"
    return (
        f"{where}, at position {spot.position}, but positions below {acknowledged} were acknowledged",
        "Restore it from a backup. If it is durable_end that is wrong, remove it: the owner makes it anew.",
    )


def _find_group(window: Window, offset: int) -> int | None:
    """The first byte from `offset` on at which a whole group starts."""
    while True:
        buf, at = window.load(offset, GROUP_HEADER_BYTES)
        if len(buf) - at < GROUP_HEADER_BYTES:
            return None
        found = buf.find(GROUP_MAGIC, at)
        if found < 0:
            offset += len(buf) - at - len(GROUP_MAGIC) + 1
            continue
        offset += found - at
        buf, at = window.load(offset, GROUP_HEADER_BYTES)
        header = parse_group_header(buf, at)
        if header is not None:
            buf, at = window.load(offset, GROUP_HEADER_BYTES + header.length)
            if is_whole(buf, at, header):
                return offset
        offset += 1


def _publish(files: Files, place: Place, end: int, sync: Callable[[File, str], None]) -> File:
    """`durable_end`, open for writing and holding `end`. One that is missing or damaged is made anew."""
    is_new = not files.exists(place.durable_end)
    file = files.open(place.durable_end, write=True, create=True)
    try:
        file.write_at(0, end.to_bytes(DURABLE_END_BYTES, "little"))
        file.truncate(DURABLE_END_BYTES)
        sync(file, place.durable_end)
        if is_new:
            files.sync_directory(place.directory)
    except BaseException:
        file.close()
        raise
    return file


def _remove_leftovers(files: Files, place: Place) -> None:
    """Temporary files of an owner that was killed."""
    for name in files.list(place.directory):
        if name.endswith(".tmp"):
            files.remove(f"{place.directory}/{name}")
