"""Which seeds are run, and what is printed of one that fails."""

import os
from pathlib import Path
from typing import Final

from tests.simulation.simulation import Ended, plan_of, simulate

COUNT: Final = int(os.environ.get("ATOMLOG_SIMULATIONS", "2000"))
PARTS: Final = 10  # test items, so that several workers share them
KEPT: Final = Path(__file__).parent / "kept_seeds.txt"


def kept() -> list[int]:
    """Seeds that failed once."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def part(number: int) -> range:
    """The seeds of one test item."""
    return range(number * COUNT // PARTS, (number + 1) * COUNT // PARTS)


def run(seed: int) -> Ended:
    return simulate(plan_of(seed))


def report(ended: Ended) -> str:
    """What went wrong, and the command that shows it again."""
    plan = ended.plan
    faults = "; ".join(ended.calls.met[:5]) or "no call failed"
    return (
        f"seed {plan.seed} ({plan.world}, {ended.steps} steps, {ended.seconds:.3f} s of its time): {ended.error!r}\n"
        f"  {faults}\n"
        f"  again, with its trace: make simulate SEED={plan.seed}"
    )
