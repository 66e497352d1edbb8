"""What a decision is made of and what comes out of it: values that `prepare`, `decide` and `build` hand on.

What is made for every change is a named tuple: it costs a third of a frozen class.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from atomlog.kernel import model
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.errors import AtomlogError, Detail
from atomlog.kernel.heads import Accepted
from atomlog.kernel.vector_spaces import VectorSpace
from atomlog.schemas.content import Origin
from atomlog.schemas.revision import Inputs, Slot, ValidTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every write of this process."""

    bounds: Bounds
    spaces: Mapping[str, VectorSpace]
    rights: frozenset[str]
    strict: bool = False


class Assigned(NamedTuple):
    """Ids drawn for a change: the atom of a create without a key, and the new revision."""

    atom: bytes
    revision: bytes


class Prepared(NamedTuple):
    """A request with every fact about it that cannot change.

    `texts` holds the NFC bytes of each source revision that origins name and that was known then, None where it has
    no text.
    `inputs` holds what the receipts of a change read, by the change's path. `failures` are receipts and handles
    that could not be resolved.
    """

    request: model.WriteRequest
    principal: str
    request_key: bytes
    request_digest: bytes
    digest_key_id: bytes
    assigned: tuple[Assigned, ...]
    texts: Mapping[bytes, bytes | None]
    inputs: Mapping[str, Inputs]
    handles: Mapping[model.Handle, bytes]
    failures: tuple[Detail, ...] = ()


class PlannedRevision(NamedTuple):
    """A revision that may be written; only times, keys and bytes are missing.

    `key_id` None = a new key. `former` are the slots of the revision before it.
    """

    atom_id: bytes
    revision_id: bytes
    previous: bytes | None
    key_id: bytes | None
    retired: bool
    schema: str
    policy: str
    valid_time: ValidTime | None
    slots: tuple[Slot, ...]
    inputs: Inputs
    value: Any
    origins: tuple[Origin, ...]
    provenance_kind: str
    provenance: model.ProvenanceRequest
    vectors: tuple[tuple[str, tuple[float, ...]], ...]
    former: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Accepted, if nothing that was decided before it turns out void."""

    revisions: tuple[PlannedRevision, ...]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same request was accepted before, or stands in the overlay (position PENDING)."""

    accepted: Accepted


@dataclass(frozen=True, slots=True)
class Refused:
    error: AtomlogError


Decision = Plan | Duplicate | Refused
