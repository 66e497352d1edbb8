"""Builds logs by hand: effective records with real bytes, chain and all, and no kernel behind them.

    log = LogBuilder()                                   # partition 0, claimed by a first record
    record = log.batch("notes", [create("tea"), create("tea-1"), member("m", group="tea", of="tea-1")])
    log.batch("notes", [revise("tea", value={"text": "new"}), retire("m")])
    log.fence()                                          # an effective record without effects
    log.void()                                           # a record that does not count: only takes a position
    projection.apply(log.partition, log.records, log.checkpoint)

Atoms are named by text (`atom_id(name)` gives the 16 bytes) or by raw ids. Content is unsealed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from atomlog.kernel.commit_rule import Effective, Genesis, Void, fold
from atomlog.kernel.ids import keyed_id, uuid7
from atomlog.kernel.jsontext import canonical
from atomlog.kernel.model import KEEP, Keep
from atomlog.kernel.ports import LogRecord
from atomlog.kernel.tail import START, Checkpoint, EffectiveRecord
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, encode_batch
from atomlog.schemas.content import Content, Origin, Provenance, SuppliedVector, encode_content
from atomlog.schemas.record import RULE, ZERO16, Record, chain_after
from atomlog.schemas.revision import (
    NO_INPUTS,
    Clear,
    Inputs,
    Slot,
    ValidTime,
    encode_clear,
    join_sealed,
    time_bytes,
)

LOG_ID = bytes(range(16))
OWNER = bytes([7]) * 16
START_US = 1_700_000_000_000_000
STEP_US = 1_000_000

Name = str | bytes
T = TypeVar("T")
SOURCE = Provenance(kind="source")


def atom_id(name: Name) -> bytes:
    """The raw id of an atom name; raw ids pass through."""
    return keyed_id("test", "test", name) if isinstance(name, str) else name


def slot(
    role: str,
    target: Name,
    *,
    at: bytes | None = None,
    include: bool = False,
    required: bool = False,
    order_key: bytes = b"",
) -> Slot:
    target_id = atom_id(target)
    return Slot(role=role, target=target_id, at=at, include=include, required=required, order_key=order_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One revision to come. KEEP carries over from the head (a create has none)."""

    op: str
    atom: bytes
    schema: str | Keep = KEEP
    policy: str | None = None
    value: Any = None
    slots: tuple[Slot, ...] | Keep = KEEP
    valid_time: ValidTime | Keep | None = KEEP
    inputs: Inputs = NO_INPUTS
    origins: tuple[Origin, ...] = ()
    provenance: Provenance = SOURCE
    vectors: tuple[SuppliedVector, ...] = ()


def create(
    name: Name,
    *,
    schema: str = "source",
    policy: str | None = None,
    value: Any = "text",
    slots: Sequence[Slot] = (),
    valid_time: ValidTime | None = None,
    **rest: Any,
) -> Change:
    """A new atom; its policy is named like the space unless given. `rest`: inputs, origins, provenance, vectors."""
    atom = atom_id(name)
    return Change(
        op="create",
        atom=atom,
        schema=schema,
        policy=policy,
        value=value,
        slots=tuple(slots),
        valid_time=valid_time,
        **rest,
    )


def member(name: Name, *, group: Name, of: Name, order_key: bytes = b"", at: bytes | None = None) -> Change:
    """A membership atom: `of` is in `group`."""
    slots = (slot("group", group), slot("member", of, order_key=order_key, at=at))
    return create(name, schema="membership", value=None, slots=slots)


def revise(
    name: Name,
    *,
    value: Any = "text",
    slots: Sequence[Slot] | Keep = KEEP,
    valid_time: ValidTime | Keep | None = KEEP,
    **rest: Any,
) -> Change:
    kept = slots if isinstance(slots, Keep) else tuple(slots)
    return Change(op="revise", atom=atom_id(name), value=value, slots=kept, valid_time=valid_time, **rest)


def retire(name: Name) -> Change:
    return Change(op="retire", atom=atom_id(name))


@dataclass(slots=True, kw_only=True)
class LogBuilder:
    """One partition of a log, claimed for term 1 by its first record."""

    partition: int = 0
    partitions: int = 1
    log_id: bytes = LOG_ID
    owner: bytes = OWNER
    seed: int = 0  # another one draws other revision ids
    now_us: int = START_US
    records: list[EffectiveRecord] = field(default_factory=list)  # those that count
    log_records: list[LogRecord] = field(default_factory=list)  # every one, void ones too
    checkpoints: list[Checkpoint] = field(default_factory=lambda: [START])  # [n] = before position n
    heads: dict[bytes, Clear] = field(default_factory=dict)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self.claim()

    @property
    def checkpoint(self) -> Checkpoint:
        """After everything built so far."""
        return self.checkpoints[-1]

    @property
    def end(self) -> int:
        return self.checkpoint.position

    def head(self, name: Name) -> bytes:
        """The newest revision id of an atom."""
        return self.heads[atom_id(name)].revision_id

    def claim(self) -> EffectiveRecord:
        """The next term, with the same owner bytes."""
        datum = {
            "log_id": self.log_id,
            "partition": self.partition,
            "partitions": self.partitions,
            "hash_version": 1,
            "feature_level": 1,
            "claimed_at": time_bytes(self.now_us),
            "endpoint": "",
            "node": "test",
            "pid": 1,
        }
        return self._effective("Claim", codec.encode("Claim", datum))

    def fence(self) -> EffectiveRecord:
        return self.other("Fence", {"requests": 1})

    def other(self, kind: str, datum: Mapping[str, Any]) -> EffectiveRecord:
        """An effective record of any kind but Claim and Batch."""
        return self._effective(kind, codec.encode(kind, dict(datum)))

    def void(self) -> None:
        """A record of a stranger, which every reader skips."""
        stranger = replace(self.records[-1].record, kind="Fence", owner=bytes(15) + b"\x01", term=0)
        assert isinstance(self._append(stranger), Void)

    def batch(
        self, space: str, changes: Sequence[Change], *, recorded_at_us: int | None = None, principal: str = "local"
    ) -> EffectiveRecord:
        """One Batch record. Times go on by a second a batch unless given."""
        self.now_us = self.now_us + STEP_US if recorded_at_us is None else recorded_at_us
        batch = Batch(
            request_key=self._draw(32),
            request_digest=self._draw(32),
            digest_key_id=bytes(9),
            recorded_at_us=self.now_us,
            revision_schema=codec.load("RevisionV1").fingerprint,
            space=space,
            principal=principal,
            inbox=None,
            revisions=tuple(self._revision(space, change) for change in changes),
        )
        return self._effective("Batch", codec.wrap(codec.current("Batch").fingerprint, encode_batch(batch)))

    def _revision(self, space: str, change: Change) -> bytes:
        head = self.heads.get(change.atom)
        assert (head is None) == (change.op == "create"), f"{change.op} of {change.atom.hex()}"
        clear = Clear(
            atom_id=change.atom,
            revision_id=uuid7(self.now_us, self._draw(10)),
            previous=None if head is None else head.revision_id,
            key_id=None,
            recorded_at_us=self.now_us,
            retired=change.op == "retire",
            schema=_carried(change.schema, head.schema if head else "source"),
            policy=head.policy if head else change.policy or space,
            valid_time=_carried(change.valid_time, head.valid_time if head else None),
            slots=_carried(change.slots, head.slots if head else ()),
            inputs=change.inputs,
        )
        self.heads[change.atom] = clear
        content = Content(
            value=canonical(change.value),
            origins=change.origins,
            provenance=change.provenance,
            vectors=change.vectors,
        )
        return join_sealed(encode_clear(clear), encode_content(content))

    def _effective(self, kind: str, value: bytes) -> EffectiveRecord:
        state = self.checkpoint.state
        claims = kind == "Claim"
        record = Record(
            rule=RULE,
            kind=kind,
            term=state.term + 1 if claims else state.term,
            owner=self.owner,
            seq=0 if claims else state.next_seq,
            schema=codec.current(kind).fingerprint,
            chain=ZERO16,
            value=value,
        )
        chain = chain_after(state.chain, record)
        verdict = self._append(record if claims else replace(record, chain=chain))
        assert isinstance(verdict, Effective), verdict
        found = EffectiveRecord(position=self.end - 1, record=self._last(), chain=chain)
        self.records.append(found)
        return found

    def _append(self, record: Record) -> Effective | Void:
        genesis = Genesis(log_id=self.log_id, partition=self.partition, partitions=self.partitions)
        place = self.checkpoint
        verdict = fold(place.state, record, genesis, place.position)
        assert isinstance(verdict, Effective | Void), verdict
        state = verdict.state if isinstance(verdict, Effective) else place.state
        self.log_records.append(LogRecord(position=place.position, record=record))
        self.checkpoints.append(Checkpoint(position=place.position + 1, state=state))
        return verdict

    def _last(self) -> Record:
        record = self.log_records[-1].record
        assert isinstance(record, Record)
        return record

    def _draw(self, size: int) -> bytes:
        """Bytes that differ each time and are the same in every run."""
        self._drawn += 1
        return hashlib.sha256(f"{self.seed}/{self.partition}/{self._drawn}".encode()).digest()[:size]


def _carried(given: T | Keep, kept: T) -> T:
    return kept if isinstance(given, Keep) else given
