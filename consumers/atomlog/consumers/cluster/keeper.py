"""One partition of one node: gathers what is known of its owner, asks `election`, and does what that says."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from atomlog.consumers.cluster.election import Claim, Election, Facts, GiveBack, Probe, Probed, Wait
from atomlog.consumers.cluster.reports import TIME_US_MAX, PartitionReport
from atomlog.consumers.events import OnEvent
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.heads import Place
from atomlog.kernel.owner import Owner
from atomlog.kernel.ports import Clock, Log
from atomlog.kernel.settings import Settings

LOOKS_IN_A_LEASE: Final = 10  # at the partition's end
LOOK_S_MIN: Final = 0.005  # between two looks, however much happens
_FAILURES: Final = (AtomlogError, OSError, TimeoutError)

ProbeOwner = Callable[[int, Mapping[str, Any]], Awaitable[bool]]
Heartbeat = Callable[[int, int, bytes], int | None]


class Keeper:
    """Run `run`; it ends by cancellation, or with what made following the partition impossible.

    `trouble` says why this node cannot serve, or None. `heartbeat` is of (partition, term, owner), `probe` asks the
    maker of a Claim whether it serves the partition, within the time that it is given.
    """

    def __init__(
        self,
        owner: Owner,
        partition: int,
        election: Election,
        *,
        log: Log,
        clock: Clock,
        settings: Settings,
        trouble: Callable[[], str | None],
        heartbeat: Heartbeat,
        probe: ProbeOwner,
        on_event: OnEvent,
    ) -> None:
        self.owner = owner
        self.partition = partition
        self.end = 0  # as it was read last
        self._election = election
        self._log = log
        self._clock = clock
        self._lease_s = settings.lease_ms / 1_000
        self._trouble = trouble
        self._heartbeat = heartbeat
        self._probe_owner = probe
        self._on_event = on_event
        self._end_read_us = -(2**62)
        self._caught_up_us = -(2**62)
        self._claiming_us: int | None = None
        self._probed: tuple[int, Probed] | None = None  # of the owner of this term
        self._giving_back = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self._look()
            facts = self._facts()
            now_us = self._clock.monotonic_us()
            action = self._election.decide(facts, now_us)
            if isinstance(action, Claim):
                await self._claim(facts, action.why)
            elif isinstance(action, Probe):
                await self._probe(facts.term)
            elif isinstance(action, GiveBack):
                await self.give_back(action.why)
            else:
                await self._pause(action, now_us)

    @property
    def serves(self) -> bool:
        """Whether this node owns the partition and could reach the log within the lease."""
        now_us, lease_us = self._clock.monotonic_us(), round(self._lease_s * 1_000_000)
        if self.owner.phase == "claiming":
            self._claiming_us = now_us if self._claiming_us is None else self._claiming_us
            is_own = self._is_own(self.owner.place()) and now_us - self._claiming_us <= lease_us
        else:
            self._claiming_us = None
            is_own = self.owner.phase in ("owner", "releasing")
        return is_own and now_us - self._end_read_us <= lease_us

    @property
    def phase(self) -> str:
        """That of the owner; `stuck` where it owns the partition and does not reach the log."""
        return "stuck" if self.owner.phase == "owner" and not self.serves else self.owner.phase

    @property
    def is_leaving(self) -> bool:
        """The partition is being given back: what comes now is for the next owner."""
        return self._giving_back.locked()

    async def unfit(self) -> str | None:
        """Why this node could not take the partition now; None when it could."""
        await self._look()
        return self._election.unfit(self._facts(), self._clock.monotonic_us())

    def report(self) -> PartitionReport:
        """Where it stands, for the other nodes."""
        place = self.owner.place()
        state = place.checkpoint.state
        return PartitionReport(
            partition=self.partition,
            phase=self.phase,
            term=state.term,
            owner=state.owner,
            next_seq=state.next_seq,
            position=place.checkpoint.position,
            chain=state.chain,
            end=self.end,
            in_flight=self.owner.in_flight,
            batches=place.batches,
            voids=place.voids,
            last_claim_at_us=max(0, min(place.claim.get("claimed_at_us", 0), TIME_US_MAX - 1)),
        )

    async def give_back(self, reason: str) -> bool:
        """Answer what is in hand, then Release, and leave the partition to others for a while; whether it was done."""
        async with self._giving_back:
            if self.owner.phase not in ("owner", "claiming"):
                return False
            self._election.stand_back(self._clock.monotonic_us())
            try:
                await self.owner.release(reason)
            except _FAILURES as error:
                self._say("release_failed", error=f"{type(error).__name__}: {error}")
                return False
            self._election.stand_back(self._clock.monotonic_us())
            released = self.owner.place().claim.get("released") == reason
            if released:
                self._say("released", term=self.owner.term, reason=reason)
            return released

    async def _look(self) -> None:
        """Read the partition's end, so that the lag is measured right before anything is decided."""
        began_us = self._clock.monotonic_us()
        try:
            async with asyncio.timeout(self._lease_s / 4):
                self.end = await self._log.end(self.partition)
        except _FAILURES:
            return  # silence does not count meanwhile; the owner's own following says what is wrong
        self._end_read_us = began_us
        if self.owner.applied >= self.end:
            self._caught_up_us = self._clock.monotonic_us()

    def _facts(self) -> Facts:
        place, phase = self.owner.place(), self.owner.phase
        state = place.checkpoint.state
        lag = max(0, self.end - place.checkpoint.position)
        lag_us = self._clock.monotonic_us() - self._caught_up_us if lag else 0
        return Facts(
            chain=state.chain,
            term=state.term,
            released=place.claim.get("released"),
            is_own=self._is_own(place),
            is_owner=phase == "owner",
            is_standby=phase == "standby",
            end_read_us=self._end_read_us,
            lag_records=lag,
            lag_ms=lag_us // 1_000,
            heartbeat_us=self._heartbeat(self.partition, state.term, state.owner),
            probed=self._probed[1] if self._probed is not None and self._probed[0] == state.term else None,
            trouble=self._trouble(),
        )

    def _is_own(self, place: Place) -> bool:
        return self.owner.is_own(place.checkpoint.state.owner)

    async def _claim(self, facts: Facts, why: str) -> None:
        """Become the owner of the state that was decided on, and of no later one."""
        try:
            await self.owner.claim(after=facts.chain)
        except _FAILURES as error:
            self._election.claim_failed(self._clock.monotonic_us())
            code = error.code if isinstance(error, AtomlogError) else type(error).__name__
            if code != "NOT_OWNER":  # to come second is no trouble
                self._say("claim_failed", why=why, error=f"{code}: {error}")

    async def _probe(self, term: int) -> None:
        claim = self.owner.place().claim
        began_us = self._clock.monotonic_us()
        try:
            async with asyncio.timeout(self._lease_s / 4):
                serves = await self._probe_owner(self.partition, claim)
        except _FAILURES:
            serves = False
        self._probed = (term, Probed(began_us=began_us, serves=serves))
        self._say("owner_asked", term=term, endpoint=claim.get("endpoint"), serves=serves)

    async def _pause(self, action: Wait, now_us: int) -> None:
        """Until the next look, which a Claim or a Release brings forward."""
        seconds = min(self._lease_s / LOOKS_IN_A_LEASE, max(LOOK_S_MIN, (action.until_us - now_us) / 1_000_000))
        known, phase = self.owner.place().claim, self.owner.phase
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.owner.until(lambda: self.owner.place().claim != known or self.owner.phase != phase)
        await self._clock.sleep(LOOK_S_MIN)

    def _say(self, event: str, **fields: Any) -> None:
        self._on_event({"event": event, "partition": self.partition, **fields})
