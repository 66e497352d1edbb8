"""Who tries to take a partition, and when: the decision alone, fed with facts."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.consumers.cluster.election import (
    HEAD_START_US,
    MOVE,
    RELEASE_SPREAD_US,
    Action,
    Claim,
    Election,
    Facts,
    GiveBack,
    Probe,
    Probed,
    Wait,
)
from atomlog.kernel.settings import Settings
from tests.support.sealed import CountedRandomness

MS: Final = 1_000
LEASE_US: Final = 5_000 * MS
HERE: Final = "tls:here:1"
THERE: Final = "tls:there:1"
SETTINGS: Final = Settings(terms_per_minute_max=5)
BACKOFF_US: Final = SETTINGS.standby_backoff_ms * MS


def facts(**changes: Any) -> Facts:
    """A live standby that knows of an owner, and has the end read at the moment of asking."""
    base = Facts(
        chain=b"a" * 16,
        term=1,
        released=None,
        is_own=False,
        is_owner=False,
        is_standby=True,
        end_read_us=0,
        lag_records=0,
        lag_ms=0,
        heartbeat_us=None,
        probed=None,
        trouble=None,
    )
    return replace(base, **changes)


class Watcher:
    """Asks an election every 100 ms with the end just read, as a node does."""

    def __init__(self, *, preferred: bool = True, seed: str = "one", **known: Any) -> None:
        self.election = Election(SETTINGS, CountedRandomness(seed), endpoint=HERE, preferred=preferred)
        self.known = facts(**known)
        self.now_us = 1_000_000

    def ask(self, **changes: Any) -> Action:
        self.known = replace(self.known, **changes)
        return self.election.decide(replace(self.known, end_read_us=self.now_us), self.now_us)

    def watch(self, seconds: float, **changes: Any) -> Action:
        """The first action that is not to wait, or the last one."""
        stop_us = self.now_us + round(seconds * 1_000_000)
        action = self.ask(**changes)
        while isinstance(action, Wait) and self.now_us < stop_us:
            self.now_us += 100 * MS
            action = self.ask()
        return action

    def watch_a_dead_owner(self, seconds: float, **changes: Any) -> Action:
        """As `watch`, where the owner's endpoint never answers."""
        action = self.watch(seconds, **changes)
        if not isinstance(action, Probe):
            return action
        self.now_us += 1
        return self.ask(probed=self.failed_probe())

    def failed_probe(self) -> Probed:
        return Probed(began_us=self.now_us, serves=False)


def test_a_silent_owner_is_asked_after_the_lease_and_lost_only_when_it_does_not_answer() -> None:
    watcher = Watcher()
    began_us = watcher.now_us
    assert isinstance(watcher.watch(60), Probe)
    assert began_us + LEASE_US <= watcher.now_us <= began_us + LEASE_US + BACKOFF_US + 100 * MS
    assert isinstance(watcher.ask(probed=watcher.failed_probe()), Claim)


def test_an_owner_that_answers_keeps_the_partition_although_it_writes_nothing_and_sends_no_heartbeat() -> None:
    watcher = Watcher()
    for _ in range(5):
        assert isinstance(watcher.watch(60), Probe)
        answered = Probed(began_us=watcher.now_us, serves=True)
        assert isinstance(watcher.watch(4.9, probed=answered), Wait)


def test_an_owner_whose_heartbeats_arrive_keeps_the_partition_although_its_endpoint_is_dead() -> None:
    watcher = Watcher(probed=Probed(began_us=1, serves=False))
    for _ in range(20):
        assert isinstance(watcher.watch(2, heartbeat_us=watcher.now_us), Wait)


def test_an_owner_whose_records_count_keeps_the_partition() -> None:
    watcher = Watcher(probed=Probed(began_us=1, serves=False))
    for n in range(20):
        assert isinstance(watcher.watch(2, chain=bytes([n]) * 16), Wait)


def test_a_probe_from_before_the_silence_was_long_enough_does_not_count() -> None:
    watcher = Watcher()
    watcher.watch(3)
    assert isinstance(watcher.watch(60, probed=watcher.failed_probe()), Probe)


def test_the_end_is_read_after_the_owner_did_not_answer() -> None:
    watcher = Watcher()
    assert isinstance(watcher.watch(60), Probe)
    before_us = watcher.now_us
    probed = Probed(began_us=before_us + 1, serves=False)
    late = replace(watcher.known, end_read_us=before_us, probed=probed)
    assert isinstance(watcher.election.decide(late, before_us + 50 * MS), Wait)
    late = replace(late, end_read_us=before_us + 60 * MS)
    assert isinstance(watcher.election.decide(late, before_us + 60 * MS), Claim)


@pytest.mark.parametrize("late", [{"lag_records": 1_001}, {"lag_ms": 2_001}, {"trouble": "the disk is full"}])
@pytest.mark.parametrize("state", [{"term": 0}, {"released": "planned"}, {"is_own": True}, {}])
def test_who_is_behind_or_not_well_never_claims(late: dict[str, Any], state: dict[str, Any]) -> None:
    watcher = Watcher(**state, **late)
    assert isinstance(watcher.watch_a_dead_owner(60), Wait)
    assert isinstance(watcher.watch_a_dead_owner(60, lag_records=0, lag_ms=0, trouble=None), Claim)


def test_a_node_that_stood_still_listens_for_a_whole_lease_again() -> None:
    watcher = Watcher()
    watcher.watch(1)
    watcher.now_us += 60_000_000  # it was stopped; what the owner wrote meanwhile it has not read yet
    continued_us = watcher.now_us
    assert isinstance(watcher.watch_a_dead_owner(60), Claim)
    assert watcher.now_us >= continued_us + LEASE_US


def test_while_the_end_cannot_be_read_nobody_claims_and_silence_does_not_count() -> None:
    watcher = Watcher()
    watcher.watch(1)
    read_us = watcher.now_us
    for _ in range(200):
        watcher.now_us += 100 * MS
        assert isinstance(watcher.election.decide(replace(watcher.known, end_read_us=read_us), watcher.now_us), Wait)
    back_us = watcher.now_us
    assert isinstance(watcher.watch_a_dead_owner(60), Claim)
    assert watcher.now_us >= back_us + LEASE_US


def test_a_release_is_followed_at_once_and_not_by_all_at_the_same_moment() -> None:
    waits = []
    for n in range(20):
        watcher = Watcher(seed=str(n))
        watcher.ask()
        action = watcher.ask(chain=b"b" * 16, released="planned")
        assert isinstance(action, Wait)
        waits.append(action.until_us - watcher.now_us)
    assert max(waits) <= RELEASE_SPREAD_US
    assert len(set(waits)) > 15


def test_a_release_that_names_a_node_is_followed_by_that_one_first() -> None:
    named, other = Watcher(), Watcher()
    for watcher in (named, other):
        watcher.ask()
    assert isinstance(named.ask(chain=b"b" * 16, released=MOVE + HERE), Claim)
    began_us = other.now_us
    assert isinstance(other.watch(60, chain=b"b" * 16, released=MOVE + THERE), Claim), "the named one may be dead"
    assert other.now_us - began_us >= LEASE_US // 2


def test_who_is_meant_to_have_a_partition_comes_before_the_others() -> None:
    for state, head_start_us in (({"released": "planned"}, HEAD_START_US), ({"term": 0}, LEASE_US)):
        meant, other = Watcher(**state), Watcher(preferred=False, **state)
        began_us = meant.now_us
        for watcher in (meant, other):
            assert isinstance(watcher.watch(60), Claim)
        assert meant.now_us - began_us < head_start_us + 100 * MS
        assert other.now_us - began_us >= head_start_us


def test_an_owner_in_doubt_whose_term_stands_claims_at_once_and_then_backs_off() -> None:
    watcher = Watcher(is_own=True)
    assert isinstance(watcher.ask(), Claim)
    watcher.election.claim_failed(watcher.now_us)
    began_us = watcher.now_us
    assert isinstance(watcher.watch(60), Claim)
    assert watcher.now_us - began_us >= BACKOFF_US // 4


def test_who_lost_to_a_higher_term_waits_for_the_lease_and_a_random_part() -> None:
    watcher = Watcher(is_own=True, is_owner=True, is_standby=False)
    watcher.watch(1)
    lost_us = watcher.now_us
    lost = watcher.watch(60, chain=b"b" * 16, term=2, is_own=False, is_owner=False, is_standby=True)
    assert isinstance(lost, Probe)
    assert watcher.now_us >= lost_us + LEASE_US


def test_who_gave_a_partition_up_for_others_lets_them_have_it() -> None:
    watcher = Watcher(is_own=True)
    watcher.ask()
    watcher.election.stand_back(watcher.now_us)
    began_us = watcher.now_us
    assert isinstance(watcher.watch(60, released="move", chain=b"b" * 16), Claim), "when nobody took it"
    assert watcher.now_us - began_us >= LEASE_US


def test_an_owner_that_cannot_serve_gives_the_partition_back() -> None:
    watcher = Watcher(is_own=True, is_owner=True, is_standby=False)
    assert isinstance(watcher.watch(5), Wait)
    assert watcher.ask(trouble="the disk is full") == GiveBack(why="the disk is full")


def test_terms_in_a_minute_are_bounded_whatever_else_is_wrong() -> None:
    watcher = Watcher(term=1, released="x")
    claims = 0
    began_us = watcher.now_us
    while watcher.now_us < began_us + 60_000_000:
        if isinstance(watcher.ask(), Claim):
            claims += 1
            watcher.known = replace(watcher.known, term=watcher.known.term + 1, chain=claims.to_bytes(16, "big"))
        watcher.now_us += 100 * MS
    assert 3 <= claims <= SETTINGS.terms_per_minute_max
    assert isinstance(watcher.watch(61), Claim), "and then it goes on"


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3_000),  # milliseconds until then
        st.sampled_from(["nothing", "record", "heartbeat", "answer", "no answer", "blind", "lag"]),
    ),
    max_size=80,
)


@given(STEPS, st.booleans(), st.integers(0, 1_000))
def test_nobody_claims_over_an_owner_that_was_heard_within_the_lease(
    steps: list[tuple[int, str]], preferred: bool, seed: int
) -> None:
    election = Election(SETTINGS, CountedRandomness(str(seed)), endpoint=HERE, preferred=preferred)
    now_us, known = 1_000_000, facts(end_read_us=1_000_000)
    heard_us = now_us
    for n, (after_ms, what) in enumerate(steps):
        now_us += after_ms * MS
        known = replace(known, lag_records=5_000 if what == "lag" else 0)
        if what != "blind":
            known = replace(known, end_read_us=now_us)
        if what == "record":
            known, heard_us = replace(known, chain=n.to_bytes(16, "big")), now_us
        elif what == "heartbeat":
            known, heard_us = replace(known, heartbeat_us=now_us), now_us
        elif what in ("answer", "no answer"):
            known = replace(known, probed=Probed(began_us=now_us, serves=what == "answer"))
            heard_us = now_us if what == "answer" else heard_us
        action = election.decide(known, now_us)
        if isinstance(action, Claim):
            assert now_us - heard_us >= LEASE_US
            assert known.probed is not None
            assert known.probed.began_us <= known.end_read_us, "the end is read after the owner did not answer"
            assert now_us - known.end_read_us <= LEASE_US // 2
            assert not known.probed.serves
            assert known.probed.began_us - heard_us >= LEASE_US
            assert not known.lag_records
        if isinstance(action, Wait):
            assert action.until_us >= now_us
