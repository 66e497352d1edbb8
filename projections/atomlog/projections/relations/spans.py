"""Every row that the index ever had at a position, closed ones too, with the positions it was valid from and until."""

from collections.abc import Iterator
from typing import NamedTuple

from atomlog.kernel.kv import prefix_end, u16
from atomlog.kernel.ports import Kv
from atomlog.projections.relations.layout import MEMBER, RELATION, MemberRow, RelationRow, member_row, relation_row


class RelationSpan(NamedTuple):
    """A slot that a revision opened; `died` is None while it stands. `key` is where to go on after it."""

    key: bytes
    row: RelationRow
    died: int | None


class MemberSpan(NamedTuple):
    """The same of a membership."""

    key: bytes
    row: MemberRow
    died: int | None


def relation_spans(kv: Kv, partition: int, position: int, *, after: bytes | None = None) -> Iterator[RelationSpan]:
    """The slots born at or before a read position, in the order of target, role, birth, atom."""
    for key, value in _rows(kv, RELATION, partition, after):
        row = relation_row(key[3:], value)
        if row.born <= position:
            yield RelationSpan(key, row, _died(value, position))


def member_spans(kv: Kv, partition: int, position: int, *, after: bytes | None = None) -> Iterator[MemberSpan]:
    """The memberships born at or before a read position, in the order of group, order key, member."""
    for key, value in _rows(kv, MEMBER, partition, after):
        row = member_row(key[3:], value)
        if row.born <= position:
            yield MemberSpan(key, row, _died(value, position))


def _rows(kv: Kv, tag: bytes, partition: int, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    prefix = tag + u16(partition)
    return kv.scan(prefix if after is None else after + b"\x00", prefix_end(prefix))


def _died(value: bytes, position: int) -> int | None:
    """When the row ended, as of a read position: what ended it later is not known there."""
    died = int.from_bytes(value[:8], "big")
    return died if died <= position else None
