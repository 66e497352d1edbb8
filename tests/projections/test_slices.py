"""What is sliced out of a revision is what the decoder of whole revisions reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.kernel.ordinals import mentions
from atomlog.projections.slices import (
    effective_time_us,
    is_retired,
    membership_slots,
    mentioned,
    order_key_of,
    pinned_at,
    slice_revision,
    slot_flags,
)
from atomlog.schemas.revision import (
    INCLUDE,
    REQUIRED,
    Clear,
    Inputs,
    ReadRange,
    ReadVersion,
    Slot,
    ValidTime,
    decode_clear,
    encode_clear,
    join_sealed,
)
from atomlog.schemas.varint import WireError

ids = st.binary(min_size=16, max_size=16).filter(any)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=70)
times = st.none() | st.integers(-(2**62), 2**62)
one_slot = st.builds(
    Slot,
    role=names,
    target=ids,
    at=st.none() | ids,
    include=st.booleans(),
    required=st.booleans(),
    order_key=st.binary(max_size=64),
)
some_inputs = st.builds(
    Inputs,
    versions=st.lists(st.builds(ReadVersion, atom=ids, revision=ids), max_size=3).map(tuple),
    ranges=st.lists(
        st.builds(ReadRange, role=names, target=ids, observed=st.just(((0, 5),)), complete=st.booleans()), max_size=2
    ).map(tuple),
)
clears = st.builds(
    Clear,
    atom_id=ids,
    revision_id=ids,
    previous=st.none() | ids,
    key_id=st.none(),
    recorded_at_us=st.integers(0, 2**62),
    retired=st.booleans(),
    schema=names,
    policy=names,
    valid_time=st.none() | st.builds(ValidTime, from_us=times, to_us=times),
    slots=st.lists(one_slot, max_size=70).map(tuple),
    inputs=st.just(Inputs()) | some_inputs,
)


@given(clear=clears)
def test_slices_are_what_the_decoder_reads(clear: Clear) -> None:
    revision = join_sealed(encode_clear(clear), b"sealed")
    schema, policy, slots, encoded, inputs_at = slice_revision(revision)
    assert (schema.decode(), policy.decode()) == (clear.schema, clear.policy)
    assert [
        Slot(
            role=role.decode(),
            target=target,
            at=pinned_at(rest),
            include=bool(slot_flags(rest) & INCLUDE),
            required=bool(slot_flags(rest) & REQUIRED),
            order_key=order_key_of(rest),
        )
        for role, target, rest in slots
    ] == list(clear.slots)
    assert revision[82:inputs_at] == encoded
    assert is_retired(revision) == clear.retired
    valid = clear.valid_time
    start = None if valid is None else valid.from_us
    assert effective_time_us(revision) == (clear.recorded_at_us if start is None else start)


@given(clear=clears)
def test_the_mentioned_atoms_are_those_of_the_shared_function(clear: Clear) -> None:
    revision = join_sealed(encode_clear(clear), b"sealed")
    assert list(mentioned(revision, slice_revision(revision))) == list(mentions(revision, decode_clear(revision)[0]))


@given(clear=clears, cut=st.integers(1, 400))
def test_a_revision_that_is_cut_off_before_its_inputs_is_refused(clear: Clear, cut: int) -> None:
    whole = encode_clear(clear)
    end = slice_revision(whole)[-1]
    with pytest.raises(WireError):
        slice_revision(whole[: max(end - cut, 0)])


def test_only_refer_slots_of_a_membership_state_one() -> None:
    slots = [
        (b"group", b"g" * 16, bytes(18)),
        (b"member", b"m" * 16, bytes(18)),
        (b"member", b"n" * 16, bytes(16) + bytes((INCLUDE, 0))),
        (b"about", b"m" * 16, bytes(18)),
    ]
    assert list(membership_slots(b"membership", slots)) == [(0, 1)]
    assert list(membership_slots(b"statement", slots)) == []
