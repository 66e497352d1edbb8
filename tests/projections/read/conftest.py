"""A world for each test, closed at its end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.projections.read.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(directory=tmp_path)


@pytest.fixture
def new_world(tmp_path: Path) -> Callable[..., World]:
    """`new_world(logs=…)`: a world of another kind."""
    made = 0

    def make(**parts: object) -> World:
        nonlocal made
        made += 1
        return World(directory=tmp_path / str(made), **parts)  # type: ignore[arg-type]

    return make
