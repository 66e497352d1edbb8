"""The indexes of one read, and where each of them stands when it begins."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.model import Positions
from atomlog.kernel.tail import Checkpoint
from atomlog.projections.base import Projection
from atomlog.projections.ids import Ids
from atomlog.projections.postings import Postings
from atomlog.projections.relations import Relations

if TYPE_CHECKING:  # numpy and hnswlib come with them, which only a recall needs
    from atomlog.projections.vectors import Vectors

VECTORS: Final = "vectors"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSet:
    """One build of each index, None = this process has no such index. `generations`: name → which build.

    `broken`: why an index is not here although this process wanted it. `held`: the partitions of each index that does
    not have all of the log.
    """

    ids: Ids
    relations: Relations | None
    postings: Postings | None
    vectors: "Vectors | None"
    generations: Mapping[str, str]
    broken: Mapping[str, AtomlogError] = field(default_factory=dict)
    held: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def held_by(self, name: str) -> Sequence[int]:
        """The partitions that an index is followed for here."""
        return self.held[name] if name in self.held else range(self.ids.partitions)

    def held_by_all(self, names: Sequence[str]) -> Sequence[int]:
        """The partitions that each of these indexes has."""
        if not self.held:
            return range(self.ids.partitions)
        return sorted(set.intersection(*(set(self.held_by(name)) for name in names)))

    def has(self, names: Sequence[str], positions: Positions | None) -> bool:
        """Whether positions were given, and all of partitions that each of these indexes has."""
        return bool(positions) and set(positions or ()).issubset(self.held_by_all(names))

    def builds(self) -> dict[str, str]:
        """Name → which build; of vectors also the generation of its manifest, `g000001/3`."""
        found = dict(self.generations)
        if self.vectors is not None:
            found[VECTORS] = f"{found[VECTORS]}/{self.vectors.generation}"
        return found

    def named(self, names: Sequence[str]) -> dict[str, Projection]:
        """The indexes that a read needs; CONSISTENCY_UNAVAILABLE naming one that is not here, or its own error."""
        found: dict[str, Projection] = {}
        for name in names:
            index: Projection | None = getattr(self, name)
            if index is None:
                if name in self.broken:
                    raise self.broken[name]
                message = f"this read needs the index {name}, which this process does not have; rebuild or start it"
                raise fail("CONSISTENCY_UNAVAILABLE", message)
            found[name] = index
        return found


def needed(index: T | None) -> T:
    """An index of the plan, whose presence was checked when the positions were chosen."""
    assert index is not None, "an index is used that the plan does not name"
    return index


class Indexes(Protocol):
    """Hands out the indexes. A build that is handed out stays open until the read gives it back."""

    def lease(self, names: Sequence[str]) -> AbstractAsyncContextManager[IndexSet]:
        """Those of the named indexes that there are; ids is always among the names."""
        ...


class CatchUp(Protocol):
    """Waits until the named indexes have applied these positions, or until the deadline; then just returns."""

    async def __call__(self, names: Sequence[str], positions: Positions, deadline_us: int) -> None:
        """`deadline_us` is a time of the clock's `monotonic_us`."""
        ...


@dataclass(slots=True, kw_only=True)
class Standing:
    """One index at the beginning of a read, by partition."""

    checkpoints: Mapping[int, Checkpoint]
    floors: Mapping[int, int]

    def applied(self, partition: int) -> int:
        """The last position whose effects it has; −1 = none."""
        return self.checkpoints[partition].position - 1

    def is_of(self, index: Projection) -> bool:
        """Whether an index stands there still."""
        for partition, checkpoint in self.checkpoints.items():
            now = index.checkpoint(partition)
            if now is not checkpoint and now != checkpoint:
                return False
        return index.floors() == self.floors

    @property
    def has_floor(self) -> bool:
        """False when it can be read as of any position it has applied, in every partition."""
        return max(self.floors.values()) >= 0

    def lag(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Records it is behind these ends of the log, by partition."""
        return {p: max(ends[p] - checkpoint.position, 0) for p, checkpoint in self.checkpoints.items()}


def standing_of(index: Projection, partitions: Sequence[int]) -> Standing:
    """Where an index stands in some partitions that it is followed for."""
    return Standing(
        checkpoints={partition: index.checkpoint(partition) for partition in partitions},
        floors=index.floors(),
    )
