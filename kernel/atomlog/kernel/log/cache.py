"""Groups that were appended or read a moment ago, so that several followers parse each only once."""

from bisect import bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass

from atomlog.kernel.ports import LogRecord

_RECORD_OVERHEAD_BYTES = 500  # what the objects of a parsed record take beside its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The parsed records of one group. `bytes`: their packed size."""

    first: int
    records: tuple[LogRecord, ...]
    bytes: int

    @property
    def stop(self) -> int:
        return self.first + len(self.records)


class GroupCache:
    """Whole groups of one partition by position; the least recently used go first. Holds at least one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._groups: OrderedDict[int, Group] = OrderedDict()
        self._firsts: list[int] = []

    def get(self, position: int) -> Group | None:
        """The group that holds `position`."""
        index = bisect_right(self._firsts, position) - 1
        if index < 0:
            return None
        group = self._groups[self._firsts[index]]
        if position >= group.stop:
            return None
        self._groups.move_to_end(group.first)
        return group

    def put(self, group: Group) -> None:
        if group.first in self._groups:
            return
        insort(self._firsts, group.first)
        self._groups[group.first] = group
        self._bytes += _cost(group)
        while self._bytes > self._bytes_max and len(self._groups) > 1:
            first, oldest = self._groups.popitem(last=False)
            self._bytes -= _cost(oldest)
            del self._firsts[bisect_right(self._firsts, first) - 1]


def _cost(group: Group) -> int:
    return group.bytes + _RECORD_OVERHEAD_BYTES * len(group.records)
