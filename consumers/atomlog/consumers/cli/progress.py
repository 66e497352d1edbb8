"""How far long work is, and how fast it goes, on stderr: a bar on a terminal, elsewhere a line now and then."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import click

from atomlog.kernel.system import SystemClock

LINE_US: Final = 10_000_000  # between two lines where stderr is no terminal


class Progress(Protocol):
    def __call__(self, done: int, total: int) -> None: ...


class NamedProgress(Protocol):
    def __call__(self, name: str, done: int, total: int) -> None: ...


class Ticking(Protocol):
    def monotonic_us(self) -> int: ...


class Pace:
    """How many a second, since the first that was told of: what was there before it began is nobody's work."""

    def __init__(self, clock: Ticking) -> None:
        self._clock = clock
        self._begun: tuple[int, int] | None = None

    def told(self, done: int) -> float:
        now_us = self._clock.monotonic_us()
        if self._begun is None:
            self._begun = now_us, done
        begun_us, before = self._begun
        return (done - before) * 1_000_000 / max(1, now_us - begun_us)


@contextmanager
def progress_bar(label: str, *, is_shown: bool = True) -> Iterator[Progress]:
    """A callback that is told how much is done of how much in all."""
    pace = Pace(SystemClock())
    if not is_shown:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        yield _lines(label, pace)
        return
    with click.progressbar(
        length=1, label=label, file=sys.stderr, show_pos=False, item_show_func=lambda rate: rate
    ) as bar:

        def update(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(max(0, done - bar.pos), f"{pace.told(done):,.0f}/s")

        yield update


def _lines(label: str, pace: Pace) -> Progress:
    clock = SystemClock()
    said_us = clock.monotonic_us()

    def update(done: int, total: int) -> None:
        nonlocal said_us
        rate, now_us = pace.told(done), clock.monotonic_us()
        if now_us - said_us >= LINE_US:
            said_us = now_us
            click.echo(f"{label}: {done:,} of {total:,}, {rate:,.0f}/s", err=True)

    return update


@contextmanager
def progress_bars(label: str, *, is_shown: bool = True) -> Iterator[NamedProgress]:
    """One bar for several pieces of work, each under its name."""
    pieces: dict[str, tuple[int, int]] = {}
    with progress_bar(label, is_shown=is_shown) as bar:

        def update(name: str, done: int, total: int) -> None:
            pieces[name] = (done, total)
            bar(sum(one for one, _ in pieces.values()), sum(one for _, one in pieces.values()))

        yield update
