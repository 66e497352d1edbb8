"""Records of one partition, proper ones and ones with something changed, as a broker would hand them over."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from atomlog.kernel.commit_rule import FEATURE_LEVEL, CommitState, Genesis
from atomlog.kernel.ids import HASH_VERSION
from atomlog.schemas import codec
from atomlog.schemas.record import RULE, ZERO16, Record, chain_after, headers

LOG_ID = bytes(range(16))
GENESIS = Genesis(log_id=LOG_ID, partition=1, partitions=3)
ALICE, BOB = bytes([0xA1]) * 16, bytes([0xB2]) * 16
WORLD: dict[str, Any] = {
    "genesis": {"log_id": LOG_ID, "partition": 1, "partitions": 3, "hash_version": HASH_VERSION},
    "schemas": {kind: [codec.load(name).fingerprint for name in names] for kind, names in codec.KIND_SCHEMAS.items()},
    "level": FEATURE_LEVEL,
}

Pairs = list[tuple[str, bytes]]


def claim_value(**changes: Any) -> bytes:
    datum = {
        "log_id": LOG_ID,
        "partition": 1,
        "partitions": 3,
        "hash_version": HASH_VERSION,
        "feature_level": 1,
        "claimed_at": bytes(8),
        "endpoint": "",
        "node": "n",
        "pid": 7,
    }
    return codec.encode("Claim", datum | changes)


def value_of(kind: str) -> bytes:
    """A proper value of a record kind; of an unknown one, that of a Fence."""
    if kind == "Claim":
        return claim_value()
    if kind == "Upgrade":
        return codec.encode("Upgrade", {"feature_level": 1, "issued_by": "operator"})
    if kind == "Release":
        return codec.encode("Release", {"reason": "stop"})
    return codec.encode("Fence", {"requests": 1})


@dataclass(slots=True)
class Partition:
    """Makes records for the state that a fold has reached."""

    state: CommitState = dataclasses.field(default_factory=CommitState)

    def proper(self, kind: str = "Fence", *, owner: bytes | None = None, **changes: Any) -> Record:
        """The record that would count next, but for `changes`; the chain is right for what it says unless given."""
        claims = kind == "Claim"
        value = changes.get("value", value_of(kind))
        record = Record(
            rule=RULE,
            kind=kind,
            term=self.state.term + claims,
            owner=owner or (ALICE if claims else self.state.owner),
            seq=0 if claims else self.state.next_seq,
            schema=value[2:10].ljust(8, b"\x00"),
            chain=ZERO16,
            value=value,
        )
        record = dataclasses.replace(record, **changes)
        if claims or "chain" in changes:
            return record
        return dataclasses.replace(record, chain=chain_after(self.state.chain, record))


def pairs_of(record: Record) -> Pairs:
    return headers(record)
