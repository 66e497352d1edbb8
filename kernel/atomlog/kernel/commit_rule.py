"""The commit rule, version 1: which records of a partition count. Pure, frozen, used by every reader.

docs/commit-rule.md says the same for an implementer in another language. `tests/oracle/commit_model.py` is a
separate model that the tests hold against this one.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.ids import HASH_VERSION, format_id
from atomlog.schemas import codec
from atomlog.schemas.record import RULE, ZERO16, Malformed, Record, chain_after
from atomlog.schemas.varint import WireError

FEATURE_LEVEL: Final = 1  # the highest level this program reads and, after an Upgrade, writes
LEVEL_AT_GENESIS: Final = 1

VoidReason = Literal["claim_lost", "stale_term", "future_term", "foreign_owner", "seq_repeated", "seq_gap", "malformed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """What every Claim of a partition repeats."""

    log_id: bytes
    partition: int
    partitions: int
    hash_version: int = HASH_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitState:
    """A partition's state after its records so far. The first Claim has term 1."""

    term: int = 0
    owner: bytes = ZERO16
    next_seq: int = 0
    chain: bytes = ZERO16
    feature_level: int = LEVEL_AT_GENESIS


INITIAL: Final = CommitState()


class Effective(NamedTuple):
    """The record counts; `state` is the state after it."""

    state: CommitState


class Void(NamedTuple):
    """The record does not count and changes nothing."""

    reason: VoidReason


class Stop(NamedTuple):
    """The reader may not go on past this record."""

    error: AtomlogError


Verdict = Effective | Void | Stop


def fold(state: CommitState, record: Record | Malformed, genesis: Genesis, position: int) -> Verdict:
    """The verdict on the next record of a partition.

    Headers alone decide between effective and void. A Stop concerns only records that would count:
    UPGRADE_REQUIRED (unknown rule, kind or schema, malformed under the current owner, a higher feature level),
    LOG_DIVERGED (another chain), LOG_MISMATCH (another genesis).
    """
    # 1. Whom it comes from: the current owner, a claimer of the next term, or a stranger.
    claims_next = record.kind == "Claim" and record.term == state.term + 1
    is_owner = record.term == state.term and record.owner == state.owner and state.term > 0
    if not claims_next and not is_owner:
        return Void(_stranger(state, record))
    # 2. What concerns the reader must be understood.
    if isinstance(record, Malformed):
        return _upgrade(position, f"a record of term {record.term} is malformed: {record.reason}")
    if record.rule != RULE:
        return _upgrade(position, f"rule {record.rule} is not known")
    if record.kind == "Claim" and (record.seq or record.chain != ZERO16):
        return _upgrade(position, "a Claim with a seq or a chain is malformed")
    # 3. Order inside the term. A second Claim of a term has lost.
    if record.kind == "Claim":
        if not claims_next:
            return Void("claim_lost")
        return _claim(state, record, genesis, position)
    if record.seq != state.next_seq:
        return Void("seq_repeated" if record.seq < state.next_seq else "seq_gap")
    # 4. It counts: kind and schema must be known, and the chain must be the writer's.
    unknown = _unknown_schema(record)
    if unknown is not None:
        return _upgrade(position, unknown)
    chain = chain_after(state.chain, record)
    if chain != record.chain:
        message = f"position {position}: the chain is {record.chain.hex()}, this history gives {chain.hex()}"
        return Stop(fail("LOG_DIVERGED", message))
    after = after_record(state, chain)
    return _upgraded(after, record, position) if record.kind == "Upgrade" else Effective(after)


def after_record(state: CommitState, chain: bytes) -> CommitState:
    """The state after a record that counts and is no Claim."""
    return CommitState(
        term=state.term,
        owner=state.owner,
        next_seq=state.next_seq + 1,
        chain=chain,
        feature_level=state.feature_level,
    )


def _stranger(state: CommitState, record: Record | Malformed) -> VoidReason:
    if isinstance(record, Malformed) and (record.term is None or record.owner is None or record.kind is None):
        return "malformed"
    if record.kind == "Claim":
        return "claim_lost"
    assert record.term is not None
    if record.term < state.term:
        return "stale_term"
    return "future_term" if record.term > state.term else "foreign_owner"


def _unknown_schema(record: Record) -> str | None:
    if record.schema not in codec.kind_fingerprints(record.kind):
        return f"kind {record.kind} with schema {record.schema.hex()} is not known"
    if not record.value.startswith(codec.MARKER + record.schema):
        return "the value does not begin with the schema that its header names"
    return None


def _claim(state: CommitState, record: Record, genesis: Genesis, position: int) -> Verdict:
    unknown = _unknown_schema(record)
    if unknown is not None:
        return _upgrade(position, unknown)
    try:
        claim = codec.decode(record.value, "Claim")
    except WireError as error:
        return _upgrade(position, f"the Claim cannot be read: {error}")
    found = Genesis(
        log_id=claim["log_id"],
        partition=claim["partition"],
        partitions=claim["partitions"],
        hash_version=claim["hash_version"],
    )
    if found != genesis:
        message = f"position {position}: the Claim is of {_named(found)}; this store is {_named(genesis)}"
        return Stop(fail("LOG_MISMATCH", f"{message}. Look at which log it is connected to"))
    if claim["feature_level"] > FEATURE_LEVEL:
        return _upgrade(position, f"feature level {claim['feature_level']} is above {FEATURE_LEVEL}")
    chain = chain_after(state.chain, record)
    return Effective(replace(state, term=record.term, owner=record.owner, next_seq=0, chain=chain))


def _upgraded(state: CommitState, record: Record, position: int) -> Verdict:
    try:
        level = codec.decode(record.value, "Upgrade")["feature_level"]
    except WireError as error:
        return _upgrade(position, f"the Upgrade cannot be read: {error}")
    if level > FEATURE_LEVEL:
        return _upgrade(position, f"feature level {level} is above {FEATURE_LEVEL}")
    return Effective(replace(state, feature_level=max(level, state.feature_level)))


def _named(genesis: Genesis) -> str:
    place = f"partition {genesis.partition} of {genesis.partitions}"
    return f"log {format_id(genesis.log_id)}, {place}, hash version {genesis.hash_version}"


def _upgrade(position: int, why: str) -> Stop:
    return Stop(fail("UPGRADE_REQUIRED", f"position {position}: {why}; use a newer version of the program"))
