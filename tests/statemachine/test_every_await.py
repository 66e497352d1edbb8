"""One course of writes, again and again: each time the writer ends at its next call of a port, and starts anew."""

from random import Random

import pytest

from tests.statemachine.machine import StoreMachine
from tests.statemachine.requests import Requests
from tests.statemachine.run import MACHINES
from tests.statemachine.world import KafkaCluster
from tests.support.kafka import SharedBroker

FAULTS = ("KILLED", "KILLED_AFTER")
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


def is_met(log: str, fault: str, call: int) -> bool:
    """Whether there was such a call. Everything is checked at the end of the course."""
    machine = MACHINES[log]()
    machine.begin(call)
    machine.c.calls.faults[machine.c.calls.count + call] = fault
    course(machine)
    met = bool(machine.c.calls.met)
    machine.teardown()
    return met


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("log", ["memory", "embedded"])
def test_a_restart_at_every_await_loses_nothing_and_repeats_nothing(log: str, fault: str) -> None:
    calls = next(call for call in range(1, CALLS_MAX) if not is_met(log, fault, call)) - 1
    assert 12 < calls < CALLS_MAX - 2, f"ended at {calls} calls"


@pytest.mark.timeout(300)
def test_so_does_one_at_some_awaits_on_a_real_broker(kafka: SharedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaCluster, "address", kafka.address)
    met = [is_met("kafka", FAULTS[number % 2], call) for number, call in enumerate(range(3, 60, 7))]
    assert all(met), "as many calls as the log in memory has"
