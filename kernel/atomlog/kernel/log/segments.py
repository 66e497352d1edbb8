"""Reading groups from the segment files of one partition, below a durable end.

A group is found by hopping over group headers from the nearest known spot, which also checks that each one follows
the one before it; the records' crc is checked when they are read. What was found is kept as a sparse index.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from atomlog.kernel.errors import FatalError, fail
from atomlog.kernel.log.cache import Group, GroupCache
from atomlog.kernel.log.frames import (
    GROUP_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    GroupHeader,
    SegmentHeader,
    SegmentVersionError,
    decode_records,
    is_whole,
    link,
    parse_group_header,
    parse_segment_header,
)
from atomlog.kernel.log.places import Place, Spot, Window, corrupt
from atomlog.kernel.ports import File, Files, LogRecord
from atomlog.schemas.varint import WireError

CACHE_BYTES: Final = 8 * 1024 * 1024  # a partition: some hundred groups of a busy writer
OPEN_SEGMENTS_MAX: Final = 16  # a partition: open files and their indexes
_INDEX_STEP_BYTES: Final = 64 * 1024  # between two spots of the index: 2,000 spots a segment of 128 MiB
_HOP_BYTES: Final = 16 * 1024  # read at once while hopping: a few large groups, many small ones
_READ_BYTES_MIN: Final = 64 * 1024
_READ_BYTES_MAX: Final = 8 * 1024 * 1024
_NO_DURABLE_END: Final = "If the segments are known to be right, remove durable_end: the next owner rebuilds it."


def read_segment_header(file: File, path: str, place: Place, first: int) -> SegmentHeader:
    """The header of the segment of this name.

    Raises:
        CORRUPT: it is none, or another partition's or another position's; the file is misplaced.
        LOG_MISMATCH: another log's. STORE_TOO_NEW: of a later version.
    """
    try:
        header = parse_segment_header(file.read_at(0, SEGMENT_HEADER_BYTES))
    except SegmentVersionError as error:
        raise fail("STORE_TOO_NEW", f"{path}: {error}. Use the version of the program that made it.") from None
    except WireError as error:
        raise corrupt(path, 0, str(error)) from None
    if header.log_id != place.log_id:
        message = f"{path} belongs to log {header.log_id.hex()}, this store to {place.log_id.hex()}"
        raise fail("LOG_MISMATCH", message, details=[{"path": path, "code": "LOG_MISMATCH", "message": message}])
    if (header.partition, header.first) != (place.partition, first):
        what = f"the file is misplaced: it is partition {header.partition}'s, from position {header.first}"
        raise corrupt(path, 0, what, "Put the files of log/ back where they were.")
    return header


def first_spot(header: SegmentHeader) -> Spot:
    """Where the first group of a segment is."""
    return Spot(SEGMENT_HEADER_BYTES, header.first, link(header.to_bytes(), 0, SEGMENT_HEADER_BYTES))


class Segment:
    """One segment file and what is known of where its groups are."""

    def __init__(self, file: File, path: str, header: SegmentHeader) -> None:
        self.path = path
        self.header = header
        self.follows_its_predecessor = header.first == 0
        self._file = file
        self._spots = [first_spot(header)]
        self._frontier = self._spots[0]

    def read(self, position: int, end: int, bytes_max: int) -> Sequence[Group]:
        """The groups from the one that holds `position` on, up to `end`; none when the file ends before it.

        At least one group, then as many as fit into `bytes_max` and are undamaged. CORRUPT names the byte when the
        first one is not.
        """
        spot = self._locate(position)
        if spot is None:
            return []
        window = Window(self._file, max(bytes_max, _READ_BYTES_MIN))
        groups: list[Group] = []
        try:
            while spot.position < end and (bytes_max > GROUP_HEADER_BYTES or not groups):
                header = self._header(window, spot)
                if header is None or (groups and GROUP_HEADER_BYTES + header.length > bytes_max):
                    break
                groups.append(self._group(window, spot, header, end))
                bytes_max -= GROUP_HEADER_BYTES + header.length
                spot = self._after(spot, header, window)
        except FatalError:
            if not groups:
                raise  # else hand over what is whole; the next read starts at the damage
        return groups

    def finish(self) -> Spot:
        """The spot after the last group of a file that is complete."""
        window = Window(self._file, _HOP_BYTES)
        spot = self._frontier
        while header := self._header(window, spot):
            spot = self._after(spot, header, window)
        return spot

    def close(self) -> None:
        self._file.close()

    def _locate(self, position: int) -> Spot | None:
        """The spot before the group that holds `position`; None when the file ends before it."""
        known = bisect_right(self._spots, position, key=_position) - 1
        spot = self._frontier if self._frontier.position <= position else self._spots[known]
        window = Window(self._file, _HOP_BYTES)
        while header := self._header(window, spot):
            if position < spot.position + header.record_count:
                return spot
            spot = self._after(spot, header, window)
        return None

    def _header(self, window: Window, spot: Spot) -> GroupHeader | None:
        """The header of the group at `spot`; None at the end of the file."""
        buf, at = window.load(spot.offset, GROUP_HEADER_BYTES)
        header = parse_group_header(buf, at)
        if header is None:
            if spot.offset == self._file.size():
                return None
            raise corrupt(self.path, spot.offset, f"no group starts here, where position {spot.position} must be")
        if header.chain != spot.chain:
            what = f"the group of position {spot.position} does not follow what stands before it: it was exchanged"
            raise corrupt(self.path, spot.offset, what)
        return header

    def _group(self, window: Window, spot: Spot, header: GroupHeader, end: int) -> Group:
        if spot.position + header.record_count > end:
            what = f"durable_end says {end}, in the middle of the group of position {spot.position}"
            raise corrupt(self.path, spot.offset, what, "Open the store for writing: the owner sets durable_end right.")
        buf, at = window.load(spot.offset, GROUP_HEADER_BYTES + header.length)
        if not is_whole(buf, at, header):
            raise corrupt(self.path, spot.offset, f"the group of position {spot.position} is not what was written")
        try:
            records = decode_records(buf, at, header, spot.position)
        except WireError as error:
            raise corrupt(self.path, spot.offset, str(error)) from None
        return Group(first=spot.position, records=records, bytes=header.length)

    def _after(self, spot: Spot, header: GroupHeader, window: Window) -> Spot:
        buf, at = window.load(spot.offset, GROUP_HEADER_BYTES)
        offset = spot.offset + GROUP_HEADER_BYTES + header.length
        after = Spot(offset, spot.position + header.record_count, link(buf, at))
        if after.position > self._frontier.position:
            self._frontier = after
            if offset - self._spots[-1].offset >= _INDEX_STEP_BYTES:
                self._spots.append(after)
        return after


class PartitionReader:
    """Reads one partition's records from its files. Takes no lock and writes nothing."""

    def __init__(self, files: Files, place: Place) -> None:
        self.cache = GroupCache(CACHE_BYTES)
        self._files = files
        self._place = place
        self._firsts: Sequence[int] = []
        self._open: OrderedDict[int, Segment] = OrderedDict()

    def read(self, position: int, end: int, bytes_max: int) -> Sequence[LogRecord]:
        """Records from `position` (below `end`) on, in order; at least one, then no more than `bytes_max` of them.

        Raises:
            CORRUPT, LOG_MISMATCH, STORE_TOO_NEW: naming the file, and the byte.
        """
        room = min(bytes_max, _READ_BYTES_MAX)
        groups = self._cached(position, end, room)
        if not groups:
            groups = self._read_files(position, end, room)
            for group in groups:
                self.cache.put(group)
        records: list[LogRecord] = []
        for group in groups:
            part = group.records[position + len(records) - group.first :]
            records.extend(part if group.bytes <= room else _fitting(part, room, at_least_one=not records))
            room -= group.bytes
        return records

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def _cached(self, position: int, end: int, bytes_max: int) -> Sequence[Group]:
        """Groups without a gap from the one that holds `position` on, the last possibly over `bytes_max`."""
        groups: list[Group] = []
        while position < end and bytes_max > 0 and (group := self.cache.get(position)):
            groups.append(group)
            position = group.stop
            bytes_max -= group.bytes
        return groups

    def _read_files(self, position: int, end: int, bytes_max: int) -> Sequence[Group]:
        segment = self._segment(position)
        if segment is not None and (groups := segment.read(position, end, bytes_max)):
            return groups
        self._firsts = self._place.segments(self._files)  # a segment may have begun since
        following = self._segment(position)
        if following is None:
            raise corrupt(self._place.directory, None, f"the segment of position {position} is missing")
        if following is not segment and (groups := following.read(position, end, bytes_max)):
            return groups
        last = following.finish()
        if self._firsts[-1] > position:
            raise corrupt(self._place.segment(last.position), None, "the segment is missing")
        what = f"the log ends before position {last.position}, durable_end says {end}"
        raise corrupt(following.path, last.offset, what, f"Restore it from a backup. {_NO_DURABLE_END}")

    def _segment(self, position: int) -> Segment | None:
        """The last known segment that begins at or before `position`, checked against the one before it."""
        index = bisect_right(self._firsts, position) - 1
        if index < 0:
            return None
        segment = self._opened(self._firsts[index])
        if not segment.follows_its_predecessor:
            self._check_predecessor(segment, self._firsts[index - 1] if index > 0 else None)
        return segment

    def _check_predecessor(self, segment: Segment, first: int | None) -> None:
        if first is None:
            what = f"positions before {segment.header.first} are missing"
            raise corrupt(self._place.directory, None, what, "Restore the missing segments from a backup.")
        before = self._opened(first)
        last = before.finish()
        if (last.position, last.chain) != (segment.header.first, segment.header.chain):
            what = f"the segment does not follow {before.path}, which ends before position {last.position}"
            raise corrupt(segment.path, 0, what, "Restore the two files from one backup.")
        segment.follows_its_predecessor = True

    def _opened(self, first: int) -> Segment:
        if first in self._open:
            self._open.move_to_end(first)
            return self._open[first]
        path = self._place.segment(first)
        try:
            file = self._files.open(path, write=False)
        except FileNotFoundError:
            raise corrupt(path, None, "the segment is missing") from None
        try:
            segment = Segment(file, path, read_segment_header(file, path, self._place, first))
        except BaseException:
            file.close()
            raise
        self._open[first] = segment
        if len(self._open) > OPEN_SEGMENTS_MAX:
            self._open.popitem(last=False)[1].close()
        return segment


def _fitting(records: Sequence[LogRecord], room: int, *, at_least_one: bool) -> Sequence[LogRecord]:
    """The first of these records that fit into `room` bytes."""
    taken = 0
    for entry in records:
        room -= record_bytes(entry)
        if room < 0 and not (at_least_one and taken == 0):
            break
        taken += 1
    return records[:taken]


def record_bytes(entry: LogRecord) -> int:
    """What a record counts against `bytes_max`: its value, and about as much as its headers take."""
    return len(getattr(entry.record, "value", b"")) + 100


def _position(spot: Spot) -> int:
    return spot.position
