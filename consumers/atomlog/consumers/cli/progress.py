"""A progress bar on stderr for long work; nothing where stderr is no terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click


class Progress(Protocol):
    def __call__(self, done: int, total: int) -> None: ...


class NamedProgress(Protocol):
    def __call__(self, name: str, done: int, total: int) -> None: ...


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """A callback that is told how much is done of how much in all."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, show_pos=False) as bar:

        def update(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(max(0, done - bar.pos))

        yield update


@contextmanager
def progress_bars(label: str) -> Iterator[NamedProgress]:
    """One bar for several pieces of work, each under its name."""
    pieces: dict[str, tuple[int, int]] = {}
    with progress_bar(label) as bar:

        def update(name: str, done: int, total: int) -> None:
            pieces[name] = (done, total)
            bar(sum(one for one, _ in pieces.values()), sum(one for _, one in pieces.values()))

        yield update
