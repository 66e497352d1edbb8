"""Set algebra over postings: atoms in all of some sets, in any of others, in none of the rest.

Inside one partition sets are bitmaps. Over several an atom has another ordinal in each that mentions it, so that
sets meet as sorted ids: the smallest is listed and its atoms are looked up in the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.kernel.errors import fail
from atomlog.kernel.model import Positions
from atomlog.projections.bitmaps import Bitmap
from atomlog.projections.postings.index import Postings

LOOKUP_ATOMS: Final = 4_096  # ids or ordinals looked up with one call


@dataclass(frozen=True, slots=True)
class InGroup:
    """Atoms that an active membership puts into a group."""

    group: bytes


@dataclass(frozen=True, slots=True)
class Refers:
    """Atoms with a slot of this role and target."""

    role: str
    target: bytes


@dataclass(frozen=True, slots=True)
class Has:
    """Atoms whose head has a value of a facet, e.g. `Has("schema", "source")`; see `Postings.facet`."""

    kind: str
    value: str | int


Term = InGroup | Refers | Has
ACTIVE: Final = Has("state", "active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Atoms in every set of `all_of`, in one of `any_of` (when there are any) and in none of `none_of`, at `at`.

    `at` has a position for each partition of the log. Sets are read once, when first needed.
    """

    postings: Postings
    at: Positions
    all_of: tuple[Term, ...] = ()
    any_of: tuple[Term, ...] = ()
    none_of: tuple[Term, ...] = ()
    _sets: dict[Term, Mapping[int, Bitmap]] = field(init=False, default_factory=dict)

    def test(self, atoms: Sequence[bytes]) -> list[bool]:
        """Whether each atom is selected."""
        inside = [self._having(term, atoms) for term in self.all_of]
        outside = [self._having(term, atoms) for term in self.none_of]
        either = [self._having(term, atoms) for term in self.any_of]
        return [
            all(atom in found for found in inside)
            and (not either or any(atom in found for found in either))
            and not any(atom in found for found in outside)
            for atom in atoms
        ]

    def atoms(self) -> list[bytes]:
        """Every selected atom, in the order of ids. INVALID_INPUT when nothing says where to begin."""
        if not self.all_of and not self.any_of:
            raise fail("INVALID_INPUT", "a selection needs a set to begin with; only what to leave out was given")
        if len(self.at) == 1:
            return self._within_one_partition()
        ids = self._listed()
        kept = (
            atom
            for start in range(0, len(ids), LOOKUP_ATOMS)
            for atom, selected in _tested(self, ids[start : start + LOOKUP_ATOMS])
            if selected
        )
        return list(kept)

    def _within_one_partition(self) -> list[bytes]:
        (partition,) = self.at
        sets = [self._set(term)[partition] for term in self.all_of]
        if self.any_of:
            sets.append(Bitmap.union([self._set(term)[partition] for term in self.any_of]))
        sets.sort(key=len)
        found = sets[0]
        for one in sets[1:]:
            found = found & one
        for term in self.none_of:
            found = found - self._set(term)[partition]
        return sorted(self._ids({partition: found}))

    def _listed(self) -> list[bytes]:
        """The ids of the smallest set that holds every selected atom."""
        candidates = [[self._set(term)] for term in self.all_of]
        if self.any_of:
            candidates.append([self._set(term) for term in self.any_of])
        smallest = min(candidates, key=lambda sets: sum(len(one) for by in sets for one in by.values()))
        return sorted({atom for by_partition in smallest for atom in self._ids(by_partition)})

    def _having(self, term: Term, atoms: Sequence[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for partition, members in self._set(term).items():
            if members:
                ordinals = self.postings.ordinals.of(partition, atoms)
                pairs = zip(atoms, ordinals, strict=True)
                found.update(atom for atom, ordinal in pairs if ordinal is not None and ordinal in members)
        return found

    def _set(self, term: Term) -> Mapping[int, Bitmap]:
        if term not in self._sets:
            self._sets[term] = {partition: self._read(term, partition, p) for partition, p in self.at.items()}
        return self._sets[term]

    def _read(self, term: Term, partition: int, position: int) -> Bitmap:
        match term:
            case InGroup(group):
                return self.postings.members(group, partition, position)
            case Refers(role, target):
                return self.postings.referring(role, target, partition, position)
            case Has(kind, value):
                return self.postings.facet(kind, value, partition, position)

    def _ids(self, by_partition: Mapping[int, Bitmap]) -> list[bytes]:
        ids: list[bytes] = []
        for partition, members in by_partition.items():
            ordinals = list(members)
            for start in range(0, len(ordinals), LOOKUP_ATOMS):
                for atom in self.postings.ordinals.atoms(partition, ordinals[start : start + LOOKUP_ATOMS]):
                    if atom is None:
                        raise fail("CORRUPT", f"postings: an ordinal of partition {partition} has no atom; rebuild")
                    ids.append(atom)
        return ids


def _tested(selection: Selection, atoms: Sequence[bytes]) -> list[tuple[bytes, bool]]:
    return list(zip(atoms, selection.test(atoms), strict=True))
