"""Dense numbers for atoms: the order of first mention in a partition's log, in encoded order.

Every projection that uses bitmaps numbers atoms by this one function, so that their sets can be intersected.
"""

from collections.abc import Iterable, Iterator, Sequence

from atomlog.kernel.kv import u16, u32
from atomlog.kernel.ports import Kv
from atomlog.schemas.revision import ATOM, Clear


def mentions(revision: bytes, clear: Clear) -> Iterator[bytes]:
    """The atom ids a revision mentions: itself, its slots' targets, the atoms and ranges it read."""
    yield revision[ATOM]
    for slot in clear.slots:
        yield slot.target
    for version in clear.inputs.versions:
        yield version.atom
    for read_range in clear.inputs.ranges:
        yield read_range.target


class Ordinals:
    """The map atom id ↔ ordinal of every partition, kept in a projection's own store.

    Keys: `prefix ‖ 'a' ‖ partition u16 ‖ atom` → u32, `prefix ‖ 'o' ‖ partition u16 ‖ u32` → atom and
    `prefix ‖ 'n' ‖ partition u16` → count. Behind an atom its user may keep more. New numbers become durable in the
    batch of the caller.
    """

    def __init__(self, kv: Kv, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix

    def count(self, partition: int) -> int:
        raw = self._kv.get(self._prefix + b"n" + u16(partition))
        return int.from_bytes(raw, "big") if raw else 0

    def of(self, partition: int, atoms: Sequence[bytes]) -> Sequence[int | None]:
        """The ordinal of each atom, None where it has none."""
        head = self._prefix + b"a" + u16(partition)
        found = self._kv.get_many([head + atom for atom in atoms])
        return [None if raw is None else int.from_bytes(raw, "big") for raw in found]

    def atoms(self, partition: int, ordinals: Sequence[int]) -> Sequence[bytes | None]:
        """The atom id of each ordinal."""
        head = self._prefix + b"o" + u16(partition)
        found = self._kv.get_many([head + u32(ordinal) for ordinal in ordinals])
        return [None if raw is None else raw[:16] for raw in found]

    def assign(self, partition: int, mentioned: Iterable[bytes], puts: list[tuple[bytes, bytes]]) -> dict[bytes, int]:
        """Ordinals of all mentioned atoms, numbering the new ones; the pairs to store are added to `puts`.

        `mentioned` is in encoded order. Call once per write batch: numbers handed out here are not yet visible.
        """
        order = list(dict.fromkeys(mentioned))
        known = self.of(partition, order)
        count = next_free = self.count(partition)
        result: dict[bytes, int] = {}
        by_atom, by_number = self._prefix + b"a" + u16(partition), self._prefix + b"o" + u16(partition)
        for atom, ordinal in zip(order, known, strict=True):
            if ordinal is None:
                ordinal, next_free = next_free, next_free + 1
                packed = u32(ordinal)
                puts.append((by_atom + atom, packed))
                puts.append((by_number + packed, atom))
            result[atom] = ordinal
        if next_free != count:
            puts.append((self._prefix + b"n" + u16(partition), u32(next_free)))
        return result
