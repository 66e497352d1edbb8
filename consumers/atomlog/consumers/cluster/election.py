"""Whether this node is to take a partition over, or to give it back: a pure decision, from what is known of its owner.

Who owns is decided by the log alone; this says only who tries, and when. A wrong guess costs a change of owner, never
a record. Times are microseconds of the own monotonic clock: no other node's clock is believed.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from atomlog.kernel.ports import Randomness
from atomlog.kernel.settings import Settings

RELEASE_SPREAD_US: Final = 30_000  # over which standbys spread the Claims that follow a Release
HEAD_START_US: Final = 100_000  # of those who are to have the partition, after a Release
FRESH_SPREAD_US: Final = 300_000  # over which the first Claims of a partition are spread
MINUTE_US: Final = 60_000_000
MOVE: Final = "move to "  # a Release with this reason names the endpoint of who is to claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The owner's endpoint was asked, from `began_us` on, whether it serves the partition in the term it claimed."""

    began_us: int
    serves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What this node knows of one partition.

    `chain`, `term`, `released`: of the last effective record, and of the last effective Claim, that the own tail
    applied; `released` is the reason of a Release that ended that Claim's term, else None. `is_own`: it is a Claim of
    this very process. `end_read_us`: when the partition's end was read last; the lag is measured against that.
    `heartbeat_us`: when the last heartbeat of the Claim's owner arrived here. `probed`: the last time that owner was
    asked. `trouble`: why this node cannot serve.
    """

    chain: bytes
    term: int
    released: str | None
    is_own: bool
    is_owner: bool
    is_standby: bool
    end_read_us: int
    lag_records: int
    lag_ms: int
    heartbeat_us: int | None
    probed: Probed | None
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before `until_us`, unless something new is known earlier."""

    until_us: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ask the owner's endpoint whether it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Take the partition, if its end is still what these facts say."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Release the partition: this node owns it and cannot serve."""

    why: str


Action = Wait | Probe | Claim | GiveBack


class Election:
    """One partition as this node sees it. `preferred`: it is meant for this node.

    Who is not meant to have a partition gives the others time first, in each case. Nobody takes one from an owner
    that serves.
    """

    def __init__(self, settings: Settings, randomness: Randomness, *, endpoint: str, preferred: bool) -> None:
        self._settings = settings
        self._randomness = randomness
        self._endpoint = endpoint
        self._preferred = preferred
        self._lease_us = settings.lease_ms * 1_000
        self._backoff_us = settings.standby_backoff_ms * 1_000
        self._chain: bytes | None = None
        self._term = 0
        self._moved_us = 0  # when the last effective record was seen
        self._watched_us = 0  # since when the end was read again and again
        self._end_read_us = 0
        self._served_us = 0  # when the owner was last asked and served
        self._not_before_us = 0
        self._share = 0.0  # of the random part, drawn anew for each state of the log
        self._terms: deque[int] = deque(maxlen=max(1, settings.terms_per_minute_max))

    def decide(self, facts: Facts, now_us: int) -> Action:
        """What to do now. Claims are for who follows live, and only over an owner that is silent in every way."""
        self._look(facts, now_us)
        if facts.is_owner and facts.trouble is not None:
            return GiveBack(why=facts.trouble)
        if (why := self.unfit(facts, now_us)) is not None:
            return Wait(until_us=now_us + self._lease_us, why=why)
        if (until_us := max(self._not_before_us, self._budget_us(now_us))) > now_us:
            return Wait(until_us=until_us, why="backing off")
        if facts.term == 0:
            return self._when(self._watched_us + self._spread_us(FRESH_SPREAD_US, self._lease_us), now_us, "unclaimed")
        if facts.released is not None:
            return self._when(self._moved_us + self._after_release_us(facts.released), now_us, "released")
        if facts.is_own:
            return Claim(why="the own term stands")
        return self._over_silence(facts, now_us)

    def unfit(self, facts: Facts, now_us: int) -> str | None:
        """Why this node may not claim at all."""
        if not facts.is_standby:
            return "not a standby"
        if facts.trouble is not None:
            return facts.trouble
        if now_us - facts.end_read_us > self._lease_us // 2:
            return "the partition's end cannot be read"
        if facts.lag_records > self._settings.claim_lag_records or facts.lag_ms > self._settings.claim_lag_ms:
            return "catching up"
        return None

    def claim_failed(self, now_us: int) -> None:
        """A Claim was not made, or came to nothing: others are to try before this node does again."""
        self._draw()
        self._not_before_us = now_us + self._backoff_us // 4 + round(self._share * self._backoff_us)

    def stand_back(self, now_us: int) -> None:
        """This node gave the partition up for another one to have it."""
        self._not_before_us = now_us + self._lease_us + round(self._share * self._backoff_us)

    def _look(self, facts: Facts, now_us: int) -> None:
        if facts.chain != self._chain:
            if self._chain is not None:
                self._terms.extend([now_us] * min(facts.term - self._term, self._terms.maxlen or 1))
            self._chain, self._term, self._moved_us = facts.chain, facts.term, now_us
            self._draw()
        # Silence counts only while somebody listened: not while this process, or the log, stood still.
        if self._watched_us == 0 or facts.end_read_us - self._end_read_us > self._lease_us:
            self._watched_us = now_us
        self._end_read_us = facts.end_read_us

    def _budget_us(self, now_us: int) -> int:
        """Until when this minute's terms are used up: a duel must end even where everything else is wrong."""
        if len(self._terms) < (self._terms.maxlen or 1):
            return now_us
        return self._terms[0] + MINUTE_US

    def _after_release_us(self, reason: str) -> int:
        if reason == MOVE + self._endpoint:
            return 0
        if reason.startswith(MOVE):
            return self._lease_us // 2 + round(self._share * self._backoff_us)  # time for who was named
        return self._spread_us(RELEASE_SPREAD_US, HEAD_START_US)

    def _over_silence(self, facts: Facts, now_us: int) -> Action:
        """The owner may have ended without a word: the lease, a random part, and then it is asked itself."""
        probed = facts.probed
        if probed is not None and probed.serves:
            self._served_us = max(self._served_us, probed.began_us)
        heard_us = [self._moved_us, self._watched_us, self._served_us, facts.heartbeat_us or 0]
        due_us = max(heard_us) + self._lease_us + self._spread_us(self._backoff_us, self._backoff_us)
        if now_us < due_us:
            return Wait(until_us=due_us, why="the owner was heard")
        if probed is None or probed.began_us < due_us:
            return Probe()
        if facts.end_read_us < probed.began_us:
            return Wait(until_us=now_us, why="the partition's end is to be read after the owner did not answer")
        return Claim(why="the owner is silent")

    def _spread_us(self, random_us: int, others_us: int) -> int:
        return round(self._share * random_us) + (0 if self._preferred else others_us)

    def _when(self, due_us: int, now_us: int, why: str) -> Action:
        return Claim(why=why) if now_us >= due_us else Wait(until_us=due_us, why=why)

    def _draw(self) -> None:
        self._share = int.from_bytes(self._randomness.token(4), "big") / 2**32
