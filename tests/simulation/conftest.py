"""Dead processes leave coroutines behind, which the collector ends when it likes: inside the test that left them."""

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.loop import last_words_reach_nobody


@pytest.fixture(autouse=True)
def _ended_with_the_test() -> Iterator[None]:
    with last_words_reach_nobody():
        yield
        gc.collect()
