"""What the owners of a process work with, and what one of them knows of its own term."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atomlog.kernel.commit_rule import INITIAL, CommitState, Genesis, after_record
from atomlog.kernel.content import ContentOpener
from atomlog.kernel.errors import fail
from atomlog.kernel.heads import Heads
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.plan import Rules
from atomlog.kernel.ports import BlobStore, Clock, Log, Meters, Randomness, Receipts, Workers
from atomlog.kernel.settings import Settings
from atomlog.schemas import codec
from atomlog.schemas.record import ZERO16, Record, next_record


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What owners work with; one for all partitions of a process.

    `say` is told what an operator may want to know. `admit` raises OVERLOADED when no more writes may come in.
    `clean_tail` is False for a partition whose log was cut at its end when it was opened: keys of what was cut must
    not be used again. `meters`, where there are any, are told how long writes take. `off_ms`: how far the own clock is
    ahead of the log's, which runs by itself on Kafka; None where it does not, or that is not known.
    """

    log: Log
    genesis: Mapping[int, Genesis]
    heads: Heads
    ring: KeyRing
    content: ContentOpener
    blobs: BlobStore
    receipts: Receipts | None
    clock: Clock
    randomness: Randomness
    workers: Workers
    rules: Rules
    settings: Settings
    node: str
    pid: int
    endpoint: str
    say: Callable[[Mapping[str, Any]], None]
    admit: Callable[[], None]
    clean_tail: Callable[[int], bool]
    meters: Meters | None = None
    off_ms: Callable[[], int | None] = lambda: None

    def started_us(self) -> int:
        """Now, for `measure`; nobody looks at the clock where nobody measures."""
        return 0 if self.meters is None else self.clock.monotonic_us()

    def measure(self, name: str, started_us: int) -> None:
        """Tell the meters, where there are any, how long something took."""
        if self.meters is not None:
            self.meters.observe(name, (self.clock.monotonic_us() - started_us) / 1_000_000)

    def check_clock(self, now_us: int, last_us: int) -> int:
        """How many milliseconds the own clock, at `now_us`, stands before the log's last time.

        CLOCK_SKEW: nothing may be written.

        Where the log has a clock of its own, that one says whether ours is right, and the log's last time does not:
        a node whose clock was ahead may have written it.
        """
        stop_ms = self.settings.clock_skew_stop_ms
        behind_ms = (last_us - now_us) // 1_000
        off_ms = self.off_ms()
        if off_ms is not None and abs(off_ms) > stop_ms:
            where = "ahead of" if off_ms > 0 else "behind"
            raise fail("CLOCK_SKEW", f"the clock stands {abs(off_ms)} ms {where} the brokers'; set it right")
        if off_ms is None and behind_ms > stop_ms:
            message = f"the clock stands {behind_ms} ms before the log's last time; set it right, then write again"
            raise fail("CLOCK_SKEW", message)
        return behind_ms

    @property
    def timeout_s(self) -> float:
        """How long a write, a claim or an append may take before its outcome is not known."""
        return self.settings.write_timeout_ms / 1_000


@dataclass(slots=True)
class Term:
    """The writer's own side of the log: who it is, and what its next record must be.

    `state` is the commit state after everything appended; `last_us` the recorded_at of the last batch.
    """

    owner: bytes = ZERO16
    state: CommitState = INITIAL
    last_us: int = 0

    def record(self, kind: str, value: bytes) -> Record:
        """The next record of the term; counts it."""
        state = self.state
        schema = codec.current(kind).fingerprint
        record = next_record(
            state.chain, kind=kind, term=state.term, owner=self.owner, seq=state.next_seq, schema=schema, value=value
        )
        self.state = after_record(state, record.chain)
        return record
