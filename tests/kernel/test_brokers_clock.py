"""The own clock beside the brokers', from records that were sent and read back."""

import pytest

from atomlog.kernel.brokers_clock import KNOWN_US, SENT_MAX, BrokersClock
from tests.support.kernel_world import START_US, SteppingClock


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


def stamp_ms(off_ms: int) -> int:
    """What a broker says whose clock is so far ahead of ours."""
    return START_US // 1_000 + off_ms


@pytest.mark.parametrize(("brokers_ms", "off_ms"), [(0, 0), (5, 0), (-90_000, 90_000), (90_000, -90_000)])
def test_the_difference_is_what_lies_outside_of_the_time_on_the_way(
    brokers_ms: int, off_ms: int, clock: SteppingClock
) -> None:
    compared = BrokersClock(clock)
    assert compared.off_ms() is None
    compared.sending(b"one")
    clock.us += 10_000  # on the way
    compared.heard(b"one", stamp_ms(brokers_ms))
    found = compared.off_ms()
    assert found is not None
    assert abs(found - off_ms) <= 11


def test_a_record_that_took_long_says_nothing_against_the_clock(clock: SteppingClock) -> None:
    compared = BrokersClock(clock)
    compared.sending(b"one")
    clock.us += 300_000_000
    compared.heard(b"one", stamp_ms(200_000))
    assert compared.off_ms() == 0


def test_records_of_others_and_forgotten_ones_say_nothing(clock: SteppingClock) -> None:
    compared = BrokersClock(clock)
    compared.heard(b"another's", stamp_ms(900_000))
    compared.heard(None, stamp_ms(900_000))
    for n in range(SENT_MAX + 1):
        compared.sending(b"%d" % n)
    compared.heard(b"0", stamp_ms(900_000))
    assert compared.off_ms() is None
    compared.heard(b"5", stamp_ms(900_000))
    compared.heard(b"4", stamp_ms(0))  # before the one that was heard: as good as forgotten
    assert (compared.off_ms() or 0) < -890_000


def test_a_comparison_is_forgotten_after_a_while(clock: SteppingClock) -> None:
    compared = BrokersClock(clock)
    compared.sending(b"one")
    compared.heard(b"one", stamp_ms(0))
    clock.us += KNOWN_US
    assert compared.off_ms() is None
