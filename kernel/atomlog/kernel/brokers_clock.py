"""How far the own clock is off the brokers', as records tell that this node wrote and read back.

A broker stamps each record with its own time. That lies between the moment at which it was sent and the one at which it
was read back, if the two clocks agree; by how much it lies outside is by how much they differ at least.
"""

from collections import deque
from typing import Final

from atomlog.kernel.ports import Clock

KNOWN_US: Final = 60_000_000  # a comparison counts for so long
SENT_MAX: Final = 64  # records that are waited for; older ones are forgotten
STAMP_US: Final = 1_000  # a stamp is cut to milliseconds


class BrokersClock:
    """Compares the own wall clock with the brokers'. Say `sending` before a record goes, `heard` when it comes back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent: deque[tuple[bytes, int]] = deque(maxlen=SENT_MAX)
        self._off_us = 0
        self._compared_us: int | None = None  # monotonic

    def sending(self, value: bytes) -> None:
        """`value`: of a record that is no other's."""
        self._sent.append((value, self._clock.now_us()))

    def heard(self, value: bytes | None, stamp_ms: int) -> None:
        """A record with the broker's time, just read. Those that were not said to be sent tell nothing."""
        sent_us = next((at_us for sent, at_us in self._sent if sent == value), None)
        if sent_us is None:
            return
        while self._sent.popleft()[0] != value:
            pass
        stamp_us = stamp_ms * 1_000
        ahead_us, behind_us = sent_us - stamp_us - STAMP_US, stamp_us - self._clock.now_us()
        self._off_us = ahead_us if ahead_us > 0 else -max(0, behind_us)
        self._compared_us = self._clock.monotonic_us()

    def off_ms(self) -> int | None:
        """By how much the own clock is ahead of the brokers' at least, negative when behind; None: not known now."""
        if self._compared_us is None or self._clock.monotonic_us() - self._compared_us > KNOWN_US:
            return None
        return round(self._off_us / 1_000)
