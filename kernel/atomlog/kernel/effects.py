"""What one batch changes in the head state: worked out once, staged in the overlay, applied when it is read back.

`heads` has the keys and values of that state.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from atomlog.kernel.kv import u16, u32, u64
from atomlog.schemas.batch import Batch
from atomlog.schemas.revision import Clear, Slot, decode_clear

PENDING: Final = 2**63  # position of what is appended and not read back: after everything that was read
NO_CHAIN: Final = bytes(16)


class Encoded(NamedTuple):
    """A revision as it stands in a batch; `data[:end]` is its clear part, `former` the slots of the one before it.

    `former` None: they are not known here and have to be looked up.
    """

    data: bytes
    end: int
    clear: Clear
    former: tuple[Slot, ...] | None


class RevisionEffects(NamedTuple):
    """Keys, and what stands in their values beside the position. `marks` have the position alone."""

    head_key: bytes
    head: bytes
    revision_key: bytes
    place: bytes
    marks: list[bytes]
    clear: Clear
    former_is_known: bool


@dataclass(frozen=True, slots=True)
class BatchEffects:
    """The effects of one batch, but for where it stands."""

    batch: Batch
    revisions: list[RevisionEffects]
    request_key: bytes
    digest_key: bytes

    def stage(self, changes: MutableMapping[bytes, bytes], position: int, term: int, chain: bytes) -> None:
        """All of it but the bitmaps of used keys, as of a position."""
        at = u64(position)
        for one in self.revisions:
            changes[one.head_key] = at + one.head
            changes[one.revision_key] = at + one.place
            for key in one.marks:
                changes[key] = at
        changes[self.request_key] = b"".join((self.batch.request_digest, at, u64(term), chain))
        changes[self.digest_key] = self.batch.digest_key_id

    def stage_pending(self, layer: MutableMapping[bytes, bytes]) -> None:
        """Put it into an overlay layer, before it is appended."""
        self.stage(layer, PENDING, 0, NO_CHAIN)

    def used_keys(self) -> list[bytes]:
        """Ids of the keys that it uses, the digest key's too."""
        keys = [one.clear.key_id for one in self.revisions if one.clear.key_id is not None]
        keys.append(self.batch.digest_key_id)
        return keys


def effects_of(partition: int, batch: Batch, revisions: Sequence[Encoded]) -> BatchEffects:
    """The effects of a batch whose revisions are parsed."""
    tag = u16(partition)
    space = sized(batch.space)
    head_tag, revision_tag, scope_tag = b"h" + tag, b"r" + tag, b"".join((b"s", tag, space))
    found: list[RevisionEffects] = []
    for index, (data, end, clear, former) in enumerate(revisions):
        marks = [scope_tag + sized(clear.schema)]
        if clear.slots or former:
            touched = dict.fromkeys((slot.role, slot.target) for slot in (*clear.slots, *(former or ())))
            marks += [range_key(tag, space, role, target) for role, target in touched]
        found.append(
            RevisionEffects(
                head_tag + clear.atom_id,
                space + data[:end],
                revision_tag + clear.revision_id,
                u32(index) + clear.atom_id,
                marks,
                clear,
                former is not None,
            )
        )
    digest_key = b"".join((b"d", tag, batch.space.encode()))
    return BatchEffects(batch, found, b"".join((b"i", tag, batch.request_key)), digest_key)


def decoded_effects(partition: int, batch: Batch) -> BatchEffects:
    """The effects of a batch of which nothing but its bytes is known. WireError when a revision is none."""
    return effects_of(partition, batch, [Encoded(data, *_parsed(data), None) for data in batch.revisions])


def _parsed(data: bytes) -> tuple[int, Clear]:
    clear, end = decode_clear(data)
    return end, clear


def range_key(tag: bytes, space: bytes, role: str, target: bytes) -> bytes:
    """`space` is sized, `tag` the partition."""
    return b"".join((b"v", tag, space, sized(role), target))


def sized(text: str) -> bytes:
    """A text inside a key or a value, one byte of length before it."""
    raw = text.encode()
    return bytes((len(raw),)) + raw
