"""One course of writes, again and again: each time the writer ends at its next call of a port, and starts anew."""

from random import Random

import pytest

from tests.statemachine.machine import EmbeddedLogMachine, MemoryLogMachine, StoreMachine
from tests.statemachine.requests import Requests

MACHINES = {"memory": MemoryLogMachine, "embedded": EmbeddedLogMachine}
CALLS_MAX = 400


def course(machine: StoreMachine) -> None:
    """Writes one after the other and at once, by a process that is started again where it ended."""
    chance = Random(7)
    for number in range(4):
        if machine.c.node(0) is None:
            machine.c.start(0)
        machine.change_hands("claim", 0)
        for _ in range(3 if number == 2 else 1):
            machine.c.look()
            machine.keys += 1
            machine.send(0, Requests(machine.course.model, chance.randrange).batch(f"k{machine.keys}"))
        machine.c.loop.pass_time(30_000)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["KILLED", "KILLED_AFTER"])
@pytest.mark.parametrize("log", MACHINES)
def test_a_restart_at_every_await_loses_nothing_and_repeats_nothing(log: str, fault: str) -> None:
    calls = 0
    for call in range(1, CALLS_MAX):
        machine = MACHINES[log]()
        machine.begin(call)
        machine.c.calls.faults[machine.c.calls.count + call] = fault
        course(machine)
        is_met = bool(machine.c.calls.met)
        machine.teardown()
        if not is_met:
            break
        calls = call
    assert 12 < calls < CALLS_MAX - 1, f"ended at {calls} calls"
