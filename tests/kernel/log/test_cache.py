"""The cache of recent groups: found by any of their positions, the least recently used dropped first."""

from atomlog.kernel.log.cache import Group, GroupCache
from atomlog.kernel.ports import LogRecord
from tests.kernel.log.support import record


def group(first: int, count: int) -> Group:
    entries = tuple(LogRecord(position=n, record=record(n)) for n in range(first, first + count))
    return Group(first=first, records=entries, bytes=100 * count)


def test_a_group_is_found_by_each_of_its_positions_and_by_no_other() -> None:
    cache = GroupCache(1_000_000)
    late, early = group(10, 3), group(2, 4)
    cache.put(late)
    cache.put(early)
    found = [cache.get(position) for position in range(15)]
    assert found == [None] * 2 + [early] * 4 + [None] * 4 + [late] * 3 + [None] * 2


def test_the_group_that_was_not_used_for_longest_goes_first() -> None:
    cache = GroupCache(3 * 600)  # a group of one record costs 600
    for first in range(3):
        cache.put(group(first, 1))
    cache.get(0)
    cache.put(group(3, 1))
    assert [cache.get(position) is not None for position in range(4)] == [True, False, True, True]


def test_a_group_larger_than_the_cache_is_held_until_the_next() -> None:
    cache = GroupCache(1_000)
    cache.put(group(0, 50))
    assert cache.get(49) is not None
    cache.put(group(50, 1))
    assert cache.get(49) is None
    assert cache.get(50) is not None
