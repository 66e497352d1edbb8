"""Every bound of what a request or a record may be, with its reason. Configurable ones are in `settings`.

A bound protects a reader that comes later: what is accepted here must be readable everywhere, for ever.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on one write. Raising one later is safe; lowering one leaves old data readable."""

    batch_revisions_max: int = 1_000  # one record is applied as one unit by every projection
    batch_bytes_max: int = 1024 * 1024  # encoded and sealed; must fit a broker's message size
    slots_max: int = 64  # an atom's relations are rewritten as a whole by each revision
    origins_max: int = 64  # each is checked against its source's text at write
    value_bytes_max: int = 64 * 1024  # canonical JSON; larger text goes to the blob store
    blob_bytes_max: int = 64 * 1024 * 1024  # a blob is sealed and verified in memory
    depth_max: int = 32  # nesting of a value; far below any parser's limit
    vectors_max: int = 8  # vector spaces supplied with one atom
    inputs_max: int = 256  # versions, ranges, scopes that one revision records as read
    preconditions_max: int = 1_000
    receipts_max: int = 64  # cited by one atom; the rows of each are written into its inputs


ID_BYTES: Final = 16
KEY_BYTES_MAX: Final = 512  # of an atom's key or an idempotency key: hashed, never stored; long ones are mistakes
ORDER_KEY_BYTES_MAX: Final = 64  # stays in the clear part for ever
NAME_PATTERN: Final = r"[a-z0-9][a-z0-9._-]{0,63}"  # space, policy, role, schema
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024  # absolute cap before parsing: blobs arrive inside requests
REQUEST_DEPTH_MAX: Final = 64  # absolute cap on the JSON of a request before it is parsed
REQUEST_VALUES_MAX: Final = 2_000_000  # absolute cap on the values in it: what parsing may cost
PROVENANCE_TEXT_BYTES_MAX: Final = 1_024  # activity, model, prompt digest: names, not content
VECTOR_DIM_MAX: Final = 4_096
INTEGER_MAX: Final = 2**63 - 1  # of a JSON value; symmetric, so that negation is always possible
