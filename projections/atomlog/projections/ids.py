"""The id index: atom → head, atom → every revision, revision → its bytes as they came, time → position.

Keys, each with the partition (u16) behind its tag. The layout of `H` never changes: `epoch` counts the moves of the
atom's space to another partition (0 today), and both it and the position are inverted, so that the newest revision
at or before a position is the first pair of a forward scan. The newest revision of all stands in `A` alone until
another follows it: most atoms are never revised, and their creation then costs one random write less. A reader looks
at `A` first, so that a secondary that catches up between two looks finds a revision in both rather than in neither.

=====  =====================================  ==================================================
``A``  atom                                   position u64 ‖ revision: the head
``H``  atom ‖ ~epoch u32 ‖ ~position u64      revision: every one that was superseded
``R``  revision                               position u64 ‖ space u32 ‖ the RevisionV1 bytes
``T``  recorded_at, 8 bytes that sort         position u64 of the batch
``S``  number u32                             space: spaces by order of first appearance
``s``  space                                  number u32
``n``  (nothing)                              count of spaces u32; not content
=====  =====================================  ==================================================
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import format_id
from atomlog.kernel.kv import Staged, prefix_end, u16, u32, u64
from atomlog.kernel.model import Positions
from atomlog.kernel.ports import Kv
from atomlog.kernel.tail import Checkpoint, EffectiveRecord
from atomlog.projections.base import KvProjection, batch_of
from atomlog.schemas.quick import quick
from atomlog.schemas.revision import ATOM, PREVIOUS, REVISION, ZERO16, time_bytes, time_of

HEAD: Final = b"A"
VERSION: Final = b"H"
REVISIONS: Final = b"R"
TIME: Final = b"T"
SPACE: Final = b"S"
SPACE_NUMBER: Final = b"s"
SPACE_COUNT: Final = b"n"
HOME_EPOCH: Final = u32(0xFFFF_FFFF)  # ~0: no space has moved
INVERTED: Final = 0xFFFF_FFFF_FFFF_FFFF
SPACES_CACHED: Final = 10_000


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One revision as it stands at `position` of `partition`; `data` is RevisionV1 bytes."""

    partition: int
    position: int
    space: str
    atom: bytes
    revision: bytes
    data: bytes


class Ids(KvProjection):
    """Reads take positions p ("after applying the record at p") that this index has reached: p < its checkpoint."""

    name = "ids"
    skips_poison = False
    content = (HEAD, VERSION, REVISIONS, TIME, SPACE, SPACE_NUMBER)

    def __init__(self, kv: Kv, partitions: int) -> None:
        super().__init__(kv, partitions)
        self._space_names: dict[tuple[int, bytes], str] = {}

    def head(self, atom: bytes, at: Positions) -> Row | None:
        """The newest revision at or before the position of its partition, a retired one too; None when absent."""
        for partition, position in at.items():
            head = self.kv.get(HEAD + u16(partition) + atom)
            revision = head and self._valid(partition, atom, position, head)
            if revision:
                return self._row(partition, revision, self.kv.get(REVISIONS + u16(partition) + revision))
        return None

    def heads(self, atoms: Sequence[bytes], at: Positions) -> list[Row | None]:
        """`head` of each, in the order of `atoms`."""
        found = self._in_force(atoms, at)
        rows = self._rows(list(found.values()))
        by_atom = dict(zip(found, rows, strict=True))
        return [by_atom.get(atom) for atom in atoms]

    def head_ids(self, atoms: Sequence[bytes], at: Positions) -> list[bytes | None]:
        """The revision ids of `heads`, at half their cost."""
        found = self._in_force(atoms, at)
        return [found[atom][1] if atom in found else None for atom in atoms]

    def _in_force(self, atoms: Sequence[bytes], at: Positions) -> dict[bytes, tuple[int, bytes]]:
        """Atom → partition and revision at these positions, for those that are there by then."""
        found: dict[bytes, tuple[int, bytes]] = {}
        for partition, position in at.items():
            left = [atom for atom in atoms if atom not in found] if found else atoms
            tag = HEAD + u16(partition)
            heads = self.kv.get_many([tag + atom for atom in left])
            for atom, head in zip(left, heads, strict=True):
                revision = head and self._valid(partition, atom, position, head)
                if revision:
                    found[atom] = partition, revision
        return found

    def revision(self, revision_id: bytes) -> Row | None:
        """A revision by its own id, whatever came after it; None when absent."""
        for partition in range(self.partitions):
            data = self.kv.get(REVISIONS + u16(partition) + revision_id)
            if data is not None:
                return self._row(partition, revision_id, data)
        return None

    def history(self, atom: bytes, at: Positions, *, after: int | None = None, limit: int) -> list[Row]:
        """Up to `limit` revisions of an atom, oldest first, beginning after the position `after`."""
        since = -1 if after is None else after
        for partition, position in at.items():
            head = self.kv.get(HEAD + u16(partition) + atom)
            if head is not None:
                newest = int.from_bytes(head[:8], "big")
                revisions = self._superseded(partition, atom, since, min(position, newest - 1), limit)
                if len(revisions) < limit and since < newest <= position:
                    revisions.append(head[8:])
                return self._rows([(partition, revision) for revision in revisions])
        return []

    def position_at(self, partition: int, time_us: int) -> int:
        """The position of the last batch recorded at or before a time; −1 when there is none."""
        prefix = TIME + u16(partition)
        for _, position in self.kv.scan_back(prefix, prefix + time_bytes(time_us) + b"\x00"):
            return int.from_bytes(position, "big")
        return -1

    def last_time_us(self, partition: int) -> int | None:
        """When the newest batch of a partition was recorded."""
        prefix = TIME + u16(partition)
        for key, _ in self.kv.scan_back(prefix, prefix_end(prefix)):
            return time_of(key[len(prefix) :])
        return None

    def scan_atoms(self, partition: int, after: bytes | None = None) -> Iterator[bytes]:
        """Every atom of a partition in the order of ids, retired ones too, beginning after one."""
        prefix = HEAD + u16(partition)
        start = prefix if after is None else prefix + after + b"\x00"
        for key, _ in self.kv.scan(start, prefix_end(prefix)):
            yield key[len(prefix) :]

    def _effects_of_all(
        self, partition: int, records: Sequence[EffectiveRecord], after: Checkpoint, staged: Staged
    ) -> None:
        """Each revision must follow its atom's head: anything else inside an effective record is the owner's bug."""
        head_of, row_of, tag = HEAD + u16(partition), REVISIONS + u16(partition), u16(partition)
        batches = [(record.position, batch_of(record)) for record in records]
        keys = list({head_of + data[ATOM]: None for _, batch in batches for data in batch.revisions})
        heads = dict(zip(keys, staged.get_many(keys), strict=True))
        created = sum(head is None for head in heads.values())
        spaces = dict.fromkeys(batch.space for _, batch in batches)  # numbered by first appearance
        numbers = {space: self._number_of(tag, space, staged) for space in spaces}
        rows: list[tuple[bytes, bytes]] = []
        for position, batch in batches:
            place = u64(position)
            origin = place + numbers[batch.space]
            rows.append((TIME + tag + time_bytes(batch.recorded_at_us), place))
            for index, data in enumerate(batch.revisions):
                key, revision = head_of + data[ATOM], data[REVISION]
                head = heads[key]
                if data[PREVIOUS] != (ZERO16 if head is None else head[8:]) or (head and head[:8] == place):
                    raise _broken(partition, position, index, data, head)
                if head is not None:
                    rows.append((_version(key, head), head[8:]))
                heads[key] = place + revision
                rows.append((row_of + revision, origin + data))
        staged.insert_all(rows)
        staged.put_all(heads.items())  # type: ignore[arg-type]  # by now each has one
        staged.rows += created

    def _number_of(self, tag: bytes, space: str, staged: Staged) -> bytes:
        key = SPACE_NUMBER + tag + space.encode()
        number = staged.get(key)
        if number is None:
            number = staged.get(SPACE_COUNT + tag) or u32(0)
            staged.put(SPACE_COUNT + tag, u32(int.from_bytes(number, "big") + 1))
            staged.insert(key, number)
            staged.insert(SPACE + tag + number, space.encode())
        return number

    def _valid(self, partition: int, atom: bytes, position: int, head: bytes) -> bytes | None:
        """The revision in force at a position, given the head."""
        if int.from_bytes(head[:8], "big") <= position:
            return head[8:]
        if position < 0:
            return None
        prefix = VERSION + u16(partition) + atom
        for _, revision in self.kv.scan(prefix + HOME_EPOCH + u64(INVERTED - position), prefix_end(prefix)):
            return revision
        return None

    def _superseded(self, partition: int, atom: bytes, after: int, until: int, limit: int) -> list[bytes]:
        """Up to `limit` superseded revisions at positions in (after, until], oldest first."""
        if until <= after:
            return []
        prefix = VERSION + u16(partition) + atom + HOME_EPOCH
        stop = prefix_end(prefix) if after < 0 else prefix + u64(INVERTED - after)
        found = self.kv.scan_back(prefix + u64(INVERTED - until), stop)
        return [revision for _, revision in islice(found, limit)]

    def _rows(self, revisions: Sequence[tuple[int, bytes]]) -> list[Row]:
        found = self.kv.get_many([REVISIONS + u16(partition) + revision for partition, revision in revisions])
        return [
            self._row(partition, revision, data) for (partition, revision), data in zip(revisions, found, strict=True)
        ]

    def _row(self, partition: int, revision: bytes, stored: bytes | None) -> Row:
        if stored is None:
            raise fail("CORRUPT", f"ids: revision {format_id(revision)} is indexed and not there; rebuild ids")
        data = stored[12:]
        return Row(
            partition=partition,
            position=int.from_bytes(stored[:8], "big"),
            space=self._space_name(partition, stored[8:12]),
            atom=data[ATOM],
            revision=revision,
            data=data,
        )

    def _space_name(self, partition: int, number: bytes) -> str:
        """Numbers never change their meaning, so that a name once read is kept."""
        name = self._space_names.get((partition, number))
        if name is None:
            raw = self.kv.get(SPACE + u16(partition) + number)
            if raw is None:
                raise fail("CORRUPT", f"ids: space number {number.hex()} has no name; rebuild ids")
            if len(self._space_names) >= SPACES_CACHED:
                self._space_names.clear()
            name = self._space_names[partition, number] = raw.decode()
        return name


def _version(head_key: bytes, head: bytes) -> bytes:
    """The key in `H` of a head that is superseded."""
    return b"".join((VERSION, head_key[1:], HOME_EPOCH, u64(INVERTED - int.from_bytes(head[:8], "big"))))


def _broken(partition: int, position: int, index: int, data: bytes, head: bytes | None) -> AtomlogError:
    """CORRUPT about a revision that does not follow its atom's head, or follows one of the same batch."""
    atom, claimed = format_id(data[ATOM]), format_id(data[PREVIOUS])
    if head is not None and head[:8] == u64(position):
        message = f"atom {atom} has two revisions"
    else:
        found = "which does not exist" if head is None else f"whose head is {format_id(head[8:])}"
        message = f"revisions[{index}] follows {claimed} of atom {atom}, {found}"
    return fail("CORRUPT", f"partition {partition}, position {position}: {message}")
