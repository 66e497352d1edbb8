"""Thousands of simulated lives of a store, each made from its seed."""

import pytest

from tests.simulation import seeds
from tests.simulation.simulation import Ended


@pytest.mark.parametrize("part", range(seeds.PARTS))
@pytest.mark.timeout(900)
def test_what_anybody_was_told_agrees_with_the_log(part: int) -> None:
    _all_end_well([seeds.run(seed) for seed in seeds.part(part)])


@pytest.mark.timeout(300)
def test_seeds_that_found_something_are_run_for_ever() -> None:
    _all_end_well([seeds.run(seed) for seed in seeds.kept()])


def _all_end_well(ended: list[Ended]) -> None:
    failed = [one for one in ended if one.error is not None]
    assert not failed, "\n".join(seeds.report(one) for one in failed)
