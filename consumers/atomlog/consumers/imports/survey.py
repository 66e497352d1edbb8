"""What of a file was imported before: asked for once, before anything is written.

A line that changed nothing leaves no trace under its key. Imported again it must not be held against what came after
it: where a later line of the same id was accepted, the earlier one is **superseded** and passed over. So a file may be
imported twice, grow at its end or in its middle, and ends in the state that its last lines say.
"""

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.consumers.imports.heads import ImportStore
from atomlog.consumers.imports.lines import Line
from atomlog.consumers.imports.plan import Refused, Write

Plan = Callable[[], Iterator[Write | Refused]]
NEVER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`accepted[n]`: how many lines of the n-th write, from its first on, were accepted before."""

    accepted: Sequence[int] = ()
    _changed: dict[str, int] = field(default_factory=dict)
    _named: dict[str, int] = field(default_factory=dict)

    def is_accepted(self, ordinal: int, write: Write) -> bool:
        return ordinal < len(self.accepted) and self.accepted[ordinal] == len(write.lines)

    def is_begun(self, ordinal: int) -> bool:
        """True when an earlier import wrote the first lines of this write, as a write of their own."""
        return ordinal < len(self.accepted) and self.accepted[ordinal] > 0

    def is_superseded(self, ordinal: int, line: Line) -> bool:
        """True when a later write of the file was accepted that changed the line's atom.

        Or that named the group which the line deletes: the group may have been made then.
        """
        last = self._changed.get(line.id, NEVER)
        if line.delete:
            last = max(last, self._named.get(line.id, NEVER))
        return last > ordinal


async def survey(store: ImportStore, plan: Plan, passed: Callable[[int], None]) -> Survey:
    """Asks for every write of the plan. `passed` is told the bytes of each part of the plan, once."""
    accepted, sizes = array("I"), array("I")
    for item in plan():
        if isinstance(item, Write):
            accepted.append(await accepted_lines(store, item))
            sizes.append(len(item.lines))
        passed(item.size_bytes)
    last = max((n for n, lines in enumerate(accepted) if lines), default=NEVER)
    holes = any(accepted[n] < sizes[n] for n in range(last))
    return _with_superseding(plan, accepted, last) if holes else Survey(accepted=accepted)


async def accepted_lines(store: ImportStore, write: Write) -> int:
    """How many lines of a write, from its first on, are accepted: all, none, or those of a half of it."""
    if await store.accepted(write.key):
        return len(write.lines)
    if len(write.lines) == 1:
        return 0
    first, second = write.halves()
    found = await accepted_lines(store, first)
    return found + await accepted_lines(store, second) if found == len(first.lines) else found


def _with_superseding(plan: Plan, accepted: Sequence[int], last: int) -> Survey:
    """Notes the last accepted write of each id that an earlier, not accepted line has."""
    changed: dict[str, int] = {}
    named: dict[str, int] = {}
    writes = (item for item in plan() if isinstance(item, Write))
    for ordinal, write in enumerate(itertools.islice(writes, last + 1)):
        count = accepted[ordinal]
        for line in write.lines[:count]:
            if line.id in changed:
                changed[line.id] = ordinal
            named |= {group: ordinal for group in line.groups or () if group in named}
        for line in write.lines[count:]:
            changed.setdefault(line.id, NEVER)
            if line.delete:
                named.setdefault(line.id, NEVER)
    return Survey(accepted=accepted, _changed=_found(changed), _named=_found(named))


def _found(last_of: dict[str, int]) -> dict[str, int]:
    return {name: ordinal for name, ordinal in last_of.items() if ordinal != NEVER}
