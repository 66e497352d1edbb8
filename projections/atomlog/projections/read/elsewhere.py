"""What a read needs of the log's partitions where the indexes of this process do not have all of them.

An index may be followed for some partitions only. What a read needs follows from what it asks for: atoms that are
known by id live in one partition each, a recall within spaces looks into the partitions of those, and everything that
asks who refers to an atom needs every partition, since any of them may. A read that needs more than is here is
refused with the index and the partitions named; whoever knows other nodes asks those.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from atomlog.kernel.errors import AtomlogError, CapabilityError
from atomlog.kernel.ids import partition_of
from atomlog.projections.read.gather import Resolved
from atomlog.projections.read.indexes import IndexSet
from atomlog.projections.read.plans import subjects
from atomlog.projections.read.selectors import ByIds, History, Recall, Selector

CODE: Final = "CONSISTENCY_UNAVAILABLE"
Lacking = Mapping[str, Sequence[int]]
"""Index → partitions that a read needs of it and that are not here."""


class NotHeld(CapabilityError):
    """CONSISTENCY_UNAVAILABLE: these indexes have not the partitions that the read needs.

    `needs`: index → every partition that the read needs of it, also those that are here. `why`: more about it.
    """

    def __init__(self, lacking: Lacking, needs: Lacking, why: str = "") -> None:
        said = [_said(name, partitions) for name, partitions in lacking.items()]
        message = f"{'; '.join(said)}{why}; ask a node that has them, or run `atomlog consume` with --partitions here"
        super().__init__(
            CODE,
            message,
            details=[
                {"path": name, "code": CODE, "message": text, "index": name, "partitions": list(partitions)}
                for (name, partitions), text in zip(lacking.items(), said, strict=True)
            ],
        )
        self.lacking = lacking
        self.needs = needs


def is_not_held(error: AtomlogError) -> bool:
    """Whether it is a `NotHeld`, also one that came from another process."""
    return error.code == CODE and any("partitions" in detail and "index" in detail for detail in error.details)


def absent(indexes: IndexSet, names: Sequence[str], selector: Selector, asked: Iterable[int]) -> NotHeld | None:
    """What a read needs and is not here. `asked`: the partitions whose positions the caller gave."""
    covered = indexes.held_by_all(names)
    if len(covered) == indexes.ids.partitions:
        return None
    return not_covered(indexes, names, {*_needed(selector, indexes, covered), *asked})


def not_covered(indexes: IndexSet, names: Sequence[str], partitions: Iterable[int]) -> NotHeld | None:
    """These partitions, index by index, as far as the index does not have them."""
    wanted = set(partitions)
    lacking = {name: sorted(wanted.difference(indexes.held_by(name))) for name in names}
    lacking = {name: missing for name, missing in lacking.items() if missing}
    return NotHeld(lacking, dict.fromkeys(names, sorted(wanted))) if lacking else None


def check_resolved(
    indexes: IndexSet, names: Sequence[str], rows: Sequence[Resolved], slots: Mapping[bytes, bytes]
) -> None:
    """Raises NotHeld where a row refers to an atom that may live in a partition that the read does not cover."""
    if all(slot.at is not None or slot.target in slots for row in rows for slot in row.clear.slots):
        return
    lacking = not_covered(indexes, names, range(indexes.ids.partitions))
    if lacking is not None:
        raise lacking


def can_lack(selector: Selector) -> bool:
    """Whether what is found in some partitions is right as far as it goes: not of atoms that are named."""
    return not isinstance(selector, ByIds | History)


def shown_lacking(lacking: Lacking) -> tuple[Mapping[str, Any], ...]:
    """As diagnostics and receipts name it."""
    return tuple(
        {"part": "partitions", "why": "unreachable", "index": name, "partitions": list(partitions)}
        for name, partitions in lacking.items()
    )


def _needed(selector: Selector, indexes: IndexSet, covered: Sequence[int]) -> Collection[int]:
    everywhere = range(indexes.ids.partitions)
    match selector:
        case Recall(scope=scope):
            is_local = scope.spaces and not scope.group_and and not scope.group_not
            return {partition_of(space, len(everywhere)) for space in scope.spaces} if is_local else everywhere
        case ByIds() | History():
            newest = {partition: indexes.ids.checkpoint(partition).position - 1 for partition in covered}
            rows = indexes.ids.heads(subjects(selector), newest)
            return everywhere if None in rows else {row.partition for row in rows if row is not None}
    return everywhere


def _said(name: str, partitions: Sequence[int]) -> str:
    plural = "s" if len(partitions) != 1 else ""
    return f"{name} is not followed here for partition{plural} {', '.join(map(str, partitions))}"
