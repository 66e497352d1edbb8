"""How long work tells of itself where there is no terminal: lines now and then, with the pace of this run."""

import pytest

from atomlog.consumers.cli import progress
from atomlog.consumers.cli.progress import Pace, progress_bar, progress_bars


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def monotonic_us(self) -> int:
        return self.us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "SystemClock", lambda: clock)
    return clock


def test_a_pace_is_of_what_was_done_since_it_began() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.told(1_000) == 0, "what a killed one had done is nobody's work"
    clock.us = 2_000_000
    assert pace.told(1_500) == 250


def test_a_line_comes_every_ten_seconds_and_none_for_what_is_quick(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bars("exporting") as told:
        told("a", 0, 3_000)
        clock.us = 9_999_999
        told("a", 1_000, 3_000)
        assert capsys.readouterr().err == ""
        clock.us = 10_000_000
        told("b", 1_000, 1_500)
        clock.us = 11_000_000
        told("b", 1_200, 1_500)
        assert capsys.readouterr().err == "exporting: 2,000 of 4,500, 200/s\n"
        clock.us = 20_000_000
        told("b", 1_500, 1_500)
    assert capsys.readouterr().err == "exporting: 2,500 of 4,500, 125/s\n"


def test_nothing_is_said_where_it_would_stand_among_the_results(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("reading", is_shown=False) as told:
        clock.us = 60_000_000
        told(1, 2)
    assert capsys.readouterr().err == ""
