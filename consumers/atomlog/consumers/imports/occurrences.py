"""How often the same thing came before, over a stream of any length, in 8 bytes a thing."""

from array import array
from bisect import bisect_left
from typing import Final

RECENT_MAX: Final = 65_536


class Occurrences:
    """Counts digests by their first 64 bits.

    Two digests that agree in those are counted together, always alike for the same stream: what is made of the
    count (a part of a key that has the whole digest too) stays unique and repeatable.
    """

    def __init__(self, *, recent_max: int = RECENT_MAX) -> None:
        self._recent: set[int] = set()
        self._runs: list[array[int]] = []  # sorted, each longer than the next
        self._again: dict[int, int] = {}  # what came more than once → how often before its next coming
        self._recent_max = recent_max

    def count(self, digest: bytes) -> int:
        """How often `digest` was given before."""
        short = int.from_bytes(digest[:8], "big")
        if short in self._again:
            before = self._again[short]
        elif short in self._recent or any(_holds(run, short) for run in self._runs):
            before = 1
        else:
            self._add(short)
            return 0
        self._again[short] = before + 1
        return before

    def _add(self, short: int) -> None:
        self._recent.add(short)
        if len(self._recent) < self._recent_max:
            return
        run = array("Q", sorted(self._recent))
        self._recent.clear()
        while self._runs and len(self._runs[-1]) <= len(run):
            run = array("Q", sorted(self._runs.pop() + run))
        self._runs.append(run)


def _holds(run: "array[int]", short: int) -> bool:
    index = bisect_left(run, short)
    return index < len(run) and run[index] == short
