"""From a plan to the bytes of a batch: keys, sealing, encoding, and their size. Nothing here waits.

Order matters once: the clear part is encoded first, because it is the associated data of the seal.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.bounds import Bounds
from atomlog.kernel.content import seal_blob, seal_content
from atomlog.kernel.effects import BatchEffects, Encoded, effects_of
from atomlog.kernel.errors import fail
from atomlog.kernel.findings import detail
from atomlog.kernel.key_allocator import KeyAllocator
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.plan import PlannedRevision, Prepared
from atomlog.kernel.ports import Randomness
from atomlog.kernel.sealing import NONCE_BYTES
from atomlog.kernel.text import long_text, with_blob
from atomlog.schemas import codec
from atomlog.schemas.batch import Batch, encode_batch
from atomlog.schemas.content import Content, Provenance, SuppliedVector, encode_content
from atomlog.schemas.revision import Clear, encode_clear, join_sealed

REVISION_SCHEMA: Final = codec.load("RevisionV1").fingerprint


class KeyMissing(Exception):
    """The key of an atom that is changed left the cache since it was prepared: prepare again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A batch ready to be appended: its effects, a record's value, the sealed blobs that must be durable before it."""

    effects: BatchEffects
    value: bytes
    blobs: tuple[bytes, ...]


@dataclass(slots=True)
class Builder:
    """Builds the batches of one partition; keys come from `allocator`, which has them ready."""

    partition: int
    ring: KeyRing
    allocator: KeyAllocator
    randomness: Randomness
    bounds: Bounds

    def build(self, prepared: Prepared, plan: Sequence[PlannedRevision], recorded_at_us: int) -> Built:
        """Takes a key for each new atom; none when it raises.

        Raises KeyMissing, and BOUND_EXCEEDED when the sealed batch is too large.
        """
        known = [None if planned.key_id is None else self._known_key(planned.key_id) for planned in plan]
        taken: list[tuple[bytes, bytes]] = []
        blobs: list[bytes] = []
        revisions: list[Encoded] = []
        try:
            for planned, key in zip(plan, known, strict=True):
                if key is None:
                    key = self.allocator.take()
                    taken.append(key)
                value = self._value(planned, key[1], blobs, simple=prepared.request.levels is not None)
                revisions.append(self._revision(planned, *key, recorded_at_us, value))
            batch = self._batch(prepared, revisions, recorded_at_us)
            wrapped = codec.wrap(codec.current("Batch").fingerprint, encode_batch(batch))
            self._check_size(wrapped)
        except BaseException:
            self.allocator.give_back(taken)
            raise
        return Built(effects=effects_of(self.partition, batch, revisions), value=wrapped, blobs=tuple(blobs))

    def _batch(self, prepared: Prepared, revisions: Sequence[Encoded], recorded_at_us: int) -> Batch:
        return Batch(
            request_key=prepared.request_key,
            request_digest=prepared.request_digest,
            digest_key_id=prepared.digest_key_id,
            recorded_at_us=recorded_at_us,
            revision_schema=REVISION_SCHEMA,
            space=prepared.request.space,
            principal=prepared.principal,
            inbox=prepared.request.inbox,
            revisions=tuple([revision.data for revision in revisions]),
        )

    def _check_size(self, value: bytes) -> None:
        limit = self.bounds.batch_bytes_max
        if len(value) > limit:
            message = f"{len(value)} bytes sealed are more than {limit}; split the batch"
            found = detail("changes", "BOUND_EXCEEDED", message, found=len(value), limit=limit)
            raise fail("BOUND_EXCEEDED", f"changes: {message}", details=[found])

    def _known_key(self, key_id: bytes) -> tuple[bytes, bytes]:
        key = self.ring.key_now(key_id)
        if key is None:
            raise KeyMissing
        return key_id, key

    def _revision(
        self, planned: PlannedRevision, key_id: bytes, key: bytes, recorded_at_us: int, value: bytes
    ) -> Encoded:
        clear = Clear(
            atom_id=planned.atom_id,
            revision_id=planned.revision_id,
            previous=planned.previous,
            key_id=key_id,
            recorded_at_us=recorded_at_us,
            retired=planned.retired,
            schema=planned.schema,
            policy=planned.policy,
            valid_time=planned.valid_time,
            slots=planned.slots,
            inputs=planned.inputs,
        )
        encoded = encode_clear(clear)
        content = encode_content(_content(planned, value))
        sealed = seal_content(key, self.randomness.token(NONCE_BYTES), content, encoded)
        return Encoded(join_sealed(encoded, sealed), len(encoded), clear, planned.former)

    def _value(self, planned: PlannedRevision, key: bytes, blobs: list[bytes], *, simple: bool) -> bytes:
        value = self._moved_to_blob(planned, key, blobs)
        return jsontext.simple_json(value) if simple else jsontext.canonical(value)

    def _moved_to_blob(self, planned: PlannedRevision, key: bytes, blobs: list[bytes]) -> Any:
        """The value as it is stored: a text that is too long for it stands in the blob store."""
        text = long_text(planned.value, self.bounds.value_bytes_max)
        if text is None:
            return planned.value
        blob = seal_blob(key, self.randomness.token(NONCE_BYTES), planned.atom_id, text)
        blobs.append(blob.sealed)
        return with_blob(planned.value, blob.reference)


def _content(planned: PlannedRevision, value: bytes) -> Content:
    provenance = planned.provenance
    return Content(
        value=value,
        origins=planned.origins,
        provenance=Provenance(
            kind=planned.provenance_kind,
            activity=provenance.activity,
            receipts=provenance.receipts,
            model=provenance.model,
            prompt_digest=provenance.prompt_digest,
        ),
        vectors=tuple([SuppliedVector(space=space, data=f32_bytes(vector)) for space, vector in planned.vectors]),
    )


def f32_bytes(vector: Sequence[float]) -> bytes:
    """float32 little-endian."""
    raw = array("f", vector)
    if sys.byteorder == "big":
        raw.byteswap()
    return raw.tobytes()
