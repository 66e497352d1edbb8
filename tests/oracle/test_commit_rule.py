"""The commit rule, each sentence of it, and the program's fold held against the separate model."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from atomlog.kernel.commit_rule import INITIAL, CommitState, Effective, Stop, Verdict, Void, fold
from atomlog.schemas import codec
from atomlog.schemas.record import Malformed, Record, chain_after, parse
from tests.oracle import commit_model
from tests.oracle.histories import ALICE, BOB, GENESIS, LOG_ID, WORLD, Pairs, Partition, claim_value, pairs_of, value_of


def judge(state: CommitState, record: Record | Malformed) -> Verdict:
    return fold(state, record, GENESIS, 5)


def begun(*kinds: str) -> Partition:
    """A partition claimed by Alice, with a proper record of each kind after the Claim."""
    partition = Partition()
    for kind in ("Claim", *kinds):
        verdict = judge(partition.state, partition.proper(kind))
        assert isinstance(verdict, Effective)
        partition.state = verdict.state
    return partition


def reason(state: CommitState, record: Record | Malformed) -> str:
    verdict = judge(state, record)
    assert isinstance(verdict, Void), verdict
    return verdict.reason


def stop(state: CommitState, record: Record | Malformed) -> str:
    verdict = judge(state, record)
    assert isinstance(verdict, Stop), verdict
    assert "position 5" in verdict.error.message
    return verdict.error.code


# --- what counts


def test_the_first_claim_has_term_one_and_sets_the_owner() -> None:
    record = Partition().proper("Claim")
    verdict = judge(INITIAL, record)
    assert verdict == Effective(CommitState(term=1, owner=ALICE, next_seq=0, chain=chain_after(bytes(16), record)))


def test_records_of_the_owner_count_in_the_order_of_their_numbers() -> None:
    partition = begun("Fence", "Release", "Fence")
    assert partition.state.next_seq == 3


def test_a_claim_is_not_counted_and_restarts_the_numbers() -> None:
    partition = begun("Fence", "Fence")
    verdict = judge(partition.state, partition.proper("Claim", owner=BOB))
    assert isinstance(verdict, Effective)
    assert (verdict.state.term, verdict.state.owner, verdict.state.next_seq) == (2, BOB, 0)


def test_an_owner_may_claim_the_next_term_itself() -> None:
    partition = begun("Fence")
    assert isinstance(judge(partition.state, partition.proper("Claim", owner=ALICE)), Effective)


def test_the_first_record_after_a_claim_proves_the_chain_through_the_claim() -> None:
    partition = begun()
    claim = Partition().proper("Claim", value=claim_value(node="another"))
    other = replace(partition.state, chain=chain_after(bytes(16), claim))
    assert stop(other, partition.proper("Fence")) == "LOG_DIVERGED"


def test_an_upgrade_to_a_known_level_is_kept_and_never_goes_back() -> None:
    partition = begun()
    lower = codec.encode("Upgrade", {"feature_level": 0, "issued_by": "operator"})
    verdict = judge(partition.state, partition.proper("Upgrade", value=lower))
    assert isinstance(verdict, Effective)
    assert verdict.state.feature_level == 1


def test_a_void_record_leaves_the_chain_as_it_was() -> None:
    partition = begun("Fence")
    first = judge(partition.state, partition.proper("Fence"))
    assert isinstance(judge(partition.state, partition.proper("Fence", owner=BOB)), Void)
    assert judge(partition.state, partition.proper("Fence")) == first


# --- what is void, by reason


@pytest.mark.parametrize("term", [0, 1, 3, 2**64 - 1])
def test_a_claim_of_any_term_but_the_next_has_lost(term: int) -> None:
    partition = begun("Fence")
    assert reason(partition.state, partition.proper("Claim", owner=BOB, term=term)) == "claim_lost"


def test_a_claim_of_the_owner_for_its_own_term_again_has_lost() -> None:
    partition = begun("Fence")
    assert reason(partition.state, partition.proper("Claim", owner=ALICE, term=1)) == "claim_lost"


def test_a_record_of_an_earlier_term_is_stale() -> None:
    partition = begun("Fence")
    late = partition.proper("Fence")
    claimed = judge(partition.state, partition.proper("Claim", owner=BOB))
    assert isinstance(claimed, Effective)
    assert reason(claimed.state, late) == "stale_term"


def test_a_record_of_a_term_that_nobody_claimed_is_of_the_future() -> None:
    partition = begun("Fence")
    assert reason(partition.state, partition.proper("Fence", term=2)) == "future_term"


def test_a_record_of_this_term_by_another_owner_is_foreign() -> None:
    partition = begun("Fence")
    assert reason(partition.state, partition.proper("Fence", owner=BOB)) == "foreign_owner"


def test_nobody_owns_the_term_before_the_first_claim() -> None:
    assert reason(INITIAL, Partition().proper("Fence", owner=bytes(16), term=0)) == "foreign_owner"


@pytest.mark.parametrize(
    ("seq", "why"), [(0, "seq_repeated"), (1, "seq_repeated"), (3, "seq_gap"), (2**64 - 1, "seq_gap")]
)
def test_a_record_out_of_its_turn_is_void(seq: int, why: str) -> None:
    partition = begun("Fence", "Fence")
    assert reason(partition.state, partition.proper("Fence", seq=seq)) == why


@pytest.mark.parametrize("name", ["kind", "term", "owner"])
def test_a_record_whose_writer_cannot_be_read_is_malformed(name: str) -> None:
    partition = begun("Fence")
    pairs = [
        (header, b"\xff" if header == name else raw) for header, raw in pairs_of(partition.proper("Fence", owner=BOB))
    ]
    assert reason(partition.state, parse(pairs, b"")) == "malformed"


def test_a_strangers_record_stops_nobody_whatever_it_is() -> None:
    partition = begun("Fence")
    odd = partition.proper("Odd", owner=BOB, rule=9, schema=bytes(8), value=b"")
    assert reason(partition.state, odd) == "foreign_owner"
    lost = partition.proper("Claim", owner=BOB, term=9, rule=9, schema=bytes(8), value=b"")
    assert reason(partition.state, lost) == "claim_lost"


@pytest.mark.parametrize(
    "changes", [{"kind": "Odd"}, {"schema": bytes(8)}, {"value": b"no avro"}, {"chain": bytes(16)}], ids=str
)
def test_a_repeated_record_is_void_before_its_kind_schema_or_chain_matter(changes: dict[str, Any]) -> None:
    partition = begun("Fence", "Fence")
    assert reason(partition.state, replace(partition.proper("Fence", seq=0), **changes)) == "seq_repeated"


# --- what stops a reader


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "Odd"},
        {"kind": "fence"},
        {"rule": 0},
        {"rule": 2},
        {"schema": bytes(8)},
        {"schema": codec.load("ReleaseV1").fingerprint},
        {"value": b""},
        {"value": b"\xc3\x01"},
        {"value": b"\xc3\x02" + value_of("Fence")[2:]},
        {"value": value_of("Release")},
    ],
    ids=str,
)
def test_a_record_of_the_owner_that_is_not_understood_stops_the_reader(changes: dict[str, Any]) -> None:
    partition = begun("Fence")
    record = replace(partition.proper("Fence"), **changes)
    record = replace(record, chain=chain_after(partition.state.chain, record))
    assert stop(partition.state, record) == "UPGRADE_REQUIRED"


@pytest.mark.parametrize("name", ["rule", "seq", "schema", "chain"])
@pytest.mark.parametrize("change", ["drop", "resize", "twice"])
def test_malformed_headers_under_the_current_owner_stop_the_reader(name: str, change: str) -> None:
    partition = begun("Fence")
    pairs: Pairs = []
    for header, raw in pairs_of(partition.proper("Fence")):
        if header != name:
            pairs.append((header, raw))
        elif change != "drop":
            pairs += [(header, raw + b"\x00")] if change == "resize" else [(header, raw)] * 2
    assert stop(partition.state, parse(pairs, value_of("Fence"))) == "UPGRADE_REQUIRED"


def test_headers_in_another_order_are_malformed() -> None:
    partition = begun("Fence")
    pairs = pairs_of(partition.proper("Fence"))
    assert stop(partition.state, parse([pairs[1], pairs[0], *pairs[2:]], value_of("Fence"))) == "UPGRADE_REQUIRED"


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": 2},
        {"seq": 1},
        {"chain": bytes([1]) * 16},
        {"schema": bytes(8)},
        {"value": b"\xc3\x01" + value_of("Claim")[2:10] + b"\x00"},
        {"value": value_of("Claim") + b"\x00"},
        {"value": value_of("Fence")},
    ],
    ids=str,
)
def test_a_next_claim_that_is_not_understood_stops_the_reader(changes: dict[str, Any]) -> None:
    partition = begun("Fence")
    assert stop(partition.state, replace(partition.proper("Claim", owner=BOB), **changes)) == "UPGRADE_REQUIRED"


def test_a_malformed_next_claim_stops_the_reader_whoever_sent_it() -> None:
    partition = begun("Fence")
    pairs = [pair for pair in pairs_of(partition.proper("Claim", owner=BOB)) if pair[0] != "owner"]
    assert stop(partition.state, parse(pairs, value_of("Claim"))) == "UPGRADE_REQUIRED"


@pytest.mark.parametrize(
    "changes", [{"log_id": bytes(16)}, {"partition": 0}, {"partitions": 4}, {"hash_version": 2}], ids=str
)
def test_a_claim_of_another_log_stops_the_reader(changes: dict[str, Any]) -> None:
    record = Partition().proper("Claim", value=claim_value(**changes))
    assert stop(INITIAL, record) == "LOG_MISMATCH"


def test_a_claim_of_another_log_is_named_by_the_id_that_people_see() -> None:
    verdict = judge(INITIAL, Partition().proper("Claim", value=claim_value(log_id=bytes(16), partitions=4)))
    assert isinstance(verdict, Stop)
    assert "log 00000000-0000-0000-0000-000000000000" in verdict.error.message
    assert " of 4," in verdict.error.message
    assert "\\x" not in repr(verdict.error.message)


def test_a_claim_of_another_log_that_has_lost_is_only_void() -> None:
    partition = begun("Fence")
    record = partition.proper("Claim", owner=BOB, term=1, value=claim_value(log_id=bytes(16)))
    assert reason(partition.state, record) == "claim_lost"


def test_a_claim_of_a_higher_feature_level_stops_the_reader() -> None:
    assert stop(INITIAL, Partition().proper("Claim", value=claim_value(feature_level=2))) == "UPGRADE_REQUIRED"


@pytest.mark.parametrize("datum", [b"\x04\x00", b"", b"\x02\x00\x00"], ids=["a higher level", "nothing", "a tail"])
def test_an_upgrade_that_is_too_high_or_unreadable_stops_the_reader(datum: bytes) -> None:
    partition = begun("Fence")
    value = codec.wrap(codec.load("UpgradeV1").fingerprint, datum)
    assert stop(partition.state, partition.proper("Upgrade", value=value)) == "UPGRADE_REQUIRED"


@pytest.mark.parametrize("at", range(16))
def test_another_chain_stops_the_reader(at: int) -> None:
    partition = begun("Fence")
    record = partition.proper("Fence")
    wrong = bytearray(record.chain)
    wrong[at] ^= 1
    assert stop(partition.state, replace(record, chain=bytes(wrong))) == "LOG_DIVERGED"


@pytest.mark.parametrize("kind", ["Fence", "Release"])
def test_a_changed_value_or_an_exchanged_history_shows_in_the_chain(kind: str) -> None:
    partition = begun("Fence")
    record = partition.proper(kind)
    assert stop(partition.state, replace(record, value=record.value + b"\x00")) == "LOG_DIVERGED"
    assert stop(replace(partition.state, chain=bytes(16)), record) == "LOG_DIVERGED"


# --- against the model


TERMS = st.sampled_from([0, 1, 2, 3, 2**64 - 1])
GARBAGE = st.binary(max_size=12)
CLAIM_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "log_id": st.sampled_from([LOG_ID, bytes(16)]),
        "partition": st.sampled_from([1, 0, -1]),
        "partitions": st.sampled_from([3, 4]),
        "hash_version": st.sampled_from([1, 2]),
        "feature_level": st.sampled_from([1, 0, -1, 2]),
        "node": st.text(max_size=3),
        "pid": st.integers(-(2**63), 2**63 - 1),
    },
)
KNOWN = st.sampled_from([codec.load(f"{kind}V1").fingerprint for kind in ("Claim", "Fence", "Release", "Upgrade")])


def values(kind: str) -> st.SearchStrategy[bytes]:
    """Values that a record of this kind may come with, mostly proper ones."""
    proper = st.just(value_of(kind))
    head = value_of(kind)[:10]
    broken = GARBAGE | GARBAGE.map(lambda tail: head + tail) | GARBAGE.map(lambda tail: value_of(kind) + tail)
    own = proper
    if kind == "Claim":
        own = CLAIM_CHANGES.map(lambda changes: claim_value(**changes))
    if kind == "Upgrade":
        own = st.integers(-1, 2).map(lambda level: codec.encode("Upgrade", {"feature_level": level, "issued_by": "o"}))
    return st.one_of(proper, proper, own, broken)


@st.composite
def records(draw: st.DrawFn, partition: Partition) -> Record:
    """A record for this state: proper, or with up to two parts changed."""
    kinds = ["Claim", "Batch", "Odd", "Upgrade", *["Fence", "Release"] * 4]
    kind = draw(st.sampled_from(kinds))
    count = draw(st.sampled_from([0, 0, 0, 1, 1, 1, 2]))
    parts = draw(st.permutations(["seq", "owner", "term", "rule", "schema", "chain", "value"]))[:count]
    changes: dict[str, Any] = {}
    if "value" in parts:
        changes["value"] = draw(values(kind))
    if "owner" in parts:
        changes["owner"] = draw(st.sampled_from([ALICE, BOB, bytes(16)]))
    if "term" in parts:
        changes["term"] = draw(TERMS)
    if "seq" in parts:
        changes["seq"] = max(0, partition.state.next_seq + draw(st.integers(-2, 2)))
    if "rule" in parts:
        changes["rule"] = draw(st.sampled_from([0, 1, 2]))
    if "schema" in parts:
        changes["schema"] = draw(KNOWN | st.just(bytes(8)))
    if "chain" in parts:
        changes["chain"] = draw(st.sampled_from([bytes(16), partition.state.chain]))
    return partition.proper(kind, **changes)


@st.composite
def shapes(draw: st.DrawFn, pairs: Pairs) -> Pairs:
    """The headers as they are, or with one dropped, doubled, moved, resized or renamed."""
    if draw(st.integers(0, 5)) > 0:
        return pairs
    at = draw(st.integers(0, len(pairs) - 1))
    name, raw = pairs[at]
    rest = pairs[:at] + pairs[at + 1 :]
    return draw(
        st.sampled_from(
            [
                rest,
                [*pairs, (name, raw)],
                [(name, raw), *rest],
                [(other, raw[:-1] if other == name else part) for other, part in pairs],
                [(other, raw + b"\x01" if other == name else part) for other, part in pairs],
                [(other, b"" if other == name else part) for other, part in pairs],
                [(other, b"\xff" * len(part) if other == name else part) for other, part in pairs],
                [("x" if other == name else other, part) for other, part in pairs],
            ]
        )
    )


@given(data=st.data())
def test_the_fold_agrees_with_the_model_on_every_record_of_any_history(data: st.DataObject) -> None:
    partition = begun() if data.draw(st.integers(0, 3)) > 0 else Partition()
    model: dict[str, Any] = as_model(partition.state)
    history: list[tuple[Pairs, bytes]] = []
    for position in range(data.draw(st.integers(1, 30))):
        if history and data.draw(st.integers(0, 3)) == 0:
            pairs, value = data.draw(st.sampled_from(history))  # a duplicate, or one that comes late
        else:
            record = data.draw(records(partition))
            pairs, value = data.draw(shapes(pairs_of(record))), record.value
        history.append((pairs, value))
        found = fold(partition.state, parse(pairs, value), GENESIS, position)
        said, what = commit_model.verdict(model, pairs, value, WORLD)
        event(f"{said} {'' if said == 'effective' else what}")
        if isinstance(found, Effective):
            assert (said, what) == ("effective", as_model(found.state))
            partition.state, model = found.state, what
        elif isinstance(found, Void):
            assert (said, what) == ("void", found.reason)
        else:
            assert (said, what) == ("stop", found.error.code)


def as_model(state: CommitState) -> dict[str, Any]:
    return {
        "term": state.term,
        "owner": state.owner,
        "next_seq": state.next_seq,
        "chain": state.chain,
        "level": state.feature_level,
    }


def test_the_model_begins_where_the_program_begins() -> None:
    assert as_model(INITIAL) == commit_model.START


def test_the_model_is_small_and_shares_nothing_with_the_program() -> None:
    with open(commit_model.__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if line.startswith(("import ", "from "))] == [
        "import hashlib",
        "from typing import Any",
    ]
