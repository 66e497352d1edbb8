"""Revisions, contents and batches at random, each beside the datum that fastavro would write for it."""

from typing import Any

from hypothesis import strategies as st

from atomlog.schemas.batch import Batch, Inbox
from atomlog.schemas.content import Content, Origin, Provenance, SuppliedVector
from atomlog.schemas.revision import (
    ZERO16,
    ZERO_KEY,
    Clear,
    Inputs,
    ReadRange,
    ReadScope,
    ReadVersion,
    Slot,
    ValidTime,
    encode_clear,
    join_sealed,
    time_bytes,
)


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def nonzero(size: int) -> st.SearchStrategy[bytes]:
    return fixed(size).filter(any)


ids = fixed(16)
texts = st.text(max_size=80)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
times = longs
few: dict[str, Any] = {"max_size": 4}

slots = st.builds(
    Slot,
    role=texts,
    target=ids,
    at=st.none() | nonzero(16),
    include=st.booleans(),
    required=st.booleans(),
    order_key=st.binary(max_size=64),
)
observed = st.lists(st.tuples(ints, longs), **few).map(tuple)
inputs = st.builds(
    Inputs,
    versions=st.lists(st.builds(ReadVersion, atom=ids, revision=ids), **few).map(tuple),
    ranges=st.lists(st.builds(ReadRange, role=texts, target=ids, observed=observed, complete=st.booleans()), **few).map(
        tuple
    ),
    scopes=st.lists(st.builds(ReadScope, selector_digest=fixed(32), observed=observed, empty=st.booleans()), **few).map(
        tuple
    ),
    encoders=st.lists(texts, **few).map(tuple),
    grant_generation=longs,
    generator=texts,
)
clears = st.builds(
    Clear,
    atom_id=ids,
    revision_id=ids,
    previous=st.none() | nonzero(16),
    key_id=st.none() | nonzero(9),
    recorded_at_us=times,
    retired=st.booleans(),
    schema=texts,
    policy=texts,
    valid_time=st.none() | st.builds(ValidTime, from_us=st.none() | times, to_us=st.none() | times),
    slots=st.lists(slots, max_size=70).map(tuple),
    inputs=st.just(Inputs()) | inputs,
)
contents = st.builds(
    Content,
    value=st.binary(max_size=300),
    origins=st.lists(
        st.builds(Origin, source=ids, revision=ids, start=longs, end=longs, sha256=fixed(32)), max_size=70
    ).map(tuple),
    provenance=st.builds(
        Provenance,
        kind=texts,
        activity=texts,
        receipts=st.lists(ids, **few).map(tuple),
        model=texts,
        prompt_digest=texts,
    ),
    vectors=st.lists(st.builds(SuppliedVector, space=texts, data=st.binary(max_size=64)), **few).map(tuple),
)
revisions = st.tuples(clears, st.binary(max_size=200)).map(lambda pair: join_sealed(encode_clear(pair[0]), pair[1]))
batches = st.builds(
    Batch,
    request_key=fixed(32),
    request_digest=fixed(32),
    digest_key_id=fixed(9),
    recorded_at_us=times,
    revision_schema=fixed(8),
    space=texts,
    principal=texts,
    inbox=st.none() | st.builds(Inbox, topic=texts.filter(bool), partition=ints, offset=longs),
    revisions=st.lists(revisions, **few).map(tuple),
)


def revision_datum(clear: Clear, sealed: bytes) -> dict[str, Any]:
    valid = clear.valid_time
    flags = clear.retired | (valid is not None) << 1
    if valid is not None:
        flags |= (valid.from_us is None) << 2 | (valid.to_us is None) << 3
    return {
        "atom_id": clear.atom_id,
        "revision_id": clear.revision_id,
        "previous_revision_id": clear.previous or ZERO16,
        "key_id": clear.key_id or ZERO_KEY,
        "recorded_at": time_bytes(clear.recorded_at_us),
        "valid_from": time_bytes((valid.from_us if valid else 0) or 0),
        "valid_to": time_bytes((valid.to_us if valid else 0) or 0),
        "flags": bytes([flags]),
        "schema": clear.schema,
        "policy": clear.policy,
        "slots": [
            {
                "role": slot.role,
                "target": slot.target,
                "at": slot.at or ZERO16,
                "flags": bytes([slot.include | slot.required << 1]),
                "order_key": slot.order_key,
            }
            for slot in clear.slots
        ],
        "inputs": {
            "versions": [{"atom": v.atom, "revision": v.revision} for v in clear.inputs.versions],
            "ranges": [
                {"role": r.role, "target": r.target, "observed": _observed(r.observed), "complete": r.complete}
                for r in clear.inputs.ranges
            ],
            "scopes": [
                {"selector_digest": s.selector_digest, "observed": _observed(s.observed), "empty": s.empty}
                for s in clear.inputs.scopes
            ],
            "encoders": list(clear.inputs.encoders),
            "grant_generation": clear.inputs.grant_generation,
            "generator": clear.inputs.generator,
        },
        "sealed": sealed,
    }


def content_datum(content: Content) -> dict[str, Any]:
    provenance = content.provenance
    return {
        "value": content.value,
        "origins": [
            {"source": o.source, "revision": o.revision, "start": o.start, "end": o.end, "sha256": o.sha256}
            for o in content.origins
        ],
        "provenance": {
            "kind": provenance.kind,
            "activity": provenance.activity,
            "receipts": list(provenance.receipts),
            "model": provenance.model,
            "prompt_digest": provenance.prompt_digest,
        },
        "vectors": [{"space": v.space, "data": v.data} for v in content.vectors],
    }


def batch_datum(batch: Batch) -> dict[str, Any]:
    inbox = batch.inbox
    return {
        "request_key": batch.request_key,
        "request_digest": batch.request_digest,
        "digest_key_id": batch.digest_key_id,
        "recorded_at": time_bytes(batch.recorded_at_us),
        "revision_schema": batch.revision_schema,
        "space": batch.space,
        "principal": batch.principal,
        "inbox_topic": inbox.topic if inbox else "",
        "inbox_partition": inbox.partition if inbox else 0,
        "inbox_offset": inbox.offset if inbox else 0,
        "revisions": list(batch.revisions),
    }


def _observed(pairs: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    return [{"partition": partition, "position": position} for partition, position in pairs]
