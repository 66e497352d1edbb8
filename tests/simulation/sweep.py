"""The Nth call fails, for every N: a short life of two processes, run again with one fault at each of its calls."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tests.simulation.ports import ENDS, ENOSPC
from tests.simulation.simulation import Ended, Plan, simulate

BASE: Final = Plan(
    seed=11,
    world="embedded",
    nodes=2,
    clients=1,
    ops=8,
    chaos=0,
    spread=1,
    names=("ids",),
    first_work_then_peace=True,
)
POLLS: Final = ("read_at /store/log/0/durable_end", "/CURRENT")  # hundreds, one as another
POLLS_TRIED: Final = 12


def baseline(plan: Plan = BASE) -> Ended:
    """The run without a fault; its calls are those that can fail."""
    return simulate(plan)


def cases(calls: Sequence[tuple[str, Sequence[str]]]) -> Iterator[tuple[int, str]]:
    """(N, fault) for each call and each fault it can have.

    The end of the process or of the machine only at calls that change something: at others it is as at the next of
    these.
    """
    polls = [number for number, (what, _) in enumerate(calls, 1) if what.endswith(POLLS)]
    skipped = set(polls) - set(Random(0).sample(polls, min(POLLS_TRIED, len(polls))))
    for number, (_, can) in enumerate(calls, 1):
        if number not in skipped:
            yield from ((number, fault) for fault in can)
        if ENOSPC in can:
            yield from ((number, fault) for fault in ENDS)


def with_fault(number: int, fault: str, plan: Plan = BASE) -> Ended:
    return simulate(replace(plan, faults={number: fault}))
