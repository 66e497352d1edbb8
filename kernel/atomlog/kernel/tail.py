"""A reader's place in one partition: position and commit state, and the step that moves both.

The owner's own tail, every follower, rebuild and the log dump read through this one class.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from atomlog.kernel.commit_rule import INITIAL, CommitState, Effective, Genesis, Stop, Verdict, fold
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Log, LogRecord
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, decode_batch
from atomlog.schemas.record import Record
from atomlog.schemas.varint import WireError

READ_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """After everything before `position`, which is the next position to read."""

    position: int = 0
    state: CommitState = INITIAL

    def to_bytes(self) -> bytes:
        state = self.state
        return _CHECKPOINT.pack(
            1, self.position, state.term, state.owner, state.next_seq, state.chain, state.feature_level
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Checkpoint":
        """CORRUPT when the bytes are no checkpoint."""
        if len(raw) != _CHECKPOINT.size or raw[0] != 1:
            raise fail("CORRUPT", f"a checkpoint of {len(raw)} bytes is not readable")
        _, position, term, owner, next_seq, chain, level = _CHECKPOINT.unpack(raw)
        state = CommitState(term=term, owner=owner, next_seq=next_seq, chain=chain, feature_level=level)
        return cls(position=position, state=state)


_CHECKPOINT: Final = struct.Struct(">BQQ16sQ16sH")
START: Final = Checkpoint()


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRecord:
    """A record that counts, with the chain after it."""

    position: int
    record: Record
    chain: bytes

    @property
    def kind(self) -> str:
        return self.record.kind

    def batch(self) -> Batch:
        """The batch of a Batch record; CORRUPT when an effective record does not hold one."""
        try:
            return decode_batch(codec.unwrap(self.record.value)[1])
        except WireError as error:
            raise fail("CORRUPT", f"position {self.position}: {error}") from None

    def datum(self) -> codec.Datum:
        """The decoded value of a record of any other kind."""
        try:
            return codec.decode(self.record.value, self.record.kind)
        except WireError as error:
            raise fail("CORRUPT", f"position {self.position}: {error}") from None


@dataclass(slots=True)
class Tail:
    """Reads one partition from a checkpoint on. `voids` counts skipped records by reason."""

    log: Log
    genesis: Genesis
    checkpoint: Checkpoint = START
    voids: Counter[str] = field(default_factory=Counter)

    async def poll(self, *, until: int | None = None, bytes_max: int = READ_BYTES) -> Sequence[EffectiveRecord]:
        """The effective records among the next durable ones, moving the checkpoint past all that were read.

        `until` stops before that position. Nothing new: an empty list and an unmoved checkpoint.

        Raises:
            UPGRADE_REQUIRED, LOG_DIVERGED, LOG_MISMATCH: the checkpoint stands at the record that stops it,
                and the records before it have been returned by an earlier call.
        """
        partition = self.genesis.partition
        if until is not None and self.checkpoint.position >= until:
            return []
        found = await self.log.read(partition, self.checkpoint.position, bytes_max=bytes_max)
        effective: list[EffectiveRecord] = []
        for log_record in found:
            if until is not None and log_record.position >= until:
                break
            verdict = self.step(log_record)
            if isinstance(verdict, Stop):
                if effective:
                    break  # hand over what counts; the next call stops here again
                raise verdict.error
            if isinstance(verdict, Effective):
                assert isinstance(log_record.record, Record)
                effective.append(
                    EffectiveRecord(position=log_record.position, record=log_record.record, chain=verdict.state.chain)
                )
        return effective

    def step(self, log_record: LogRecord) -> Verdict:
        """Fold one record and move past it, except at a Stop."""
        place = self.checkpoint
        if log_record.position != place.position:
            raise fail("CORRUPT", f"position {place.position} is missing: the log gave {log_record.position}")
        verdict = fold(place.state, log_record.record, self.genesis, log_record.position)
        if isinstance(verdict, Effective):
            self.checkpoint = Checkpoint(position=place.position + 1, state=verdict.state)
        elif not isinstance(verdict, Stop):
            self.voids[verdict.reason] += 1
            self.checkpoint = Checkpoint(position=place.position + 1, state=place.state)
        return verdict
