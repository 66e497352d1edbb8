"""The real kernel, indexes and reader, driven at random, against two oracles. See README.md here for longer runs."""

import os

import pytest

from tests.statemachine.machine import StoreMachine
from tests.statemachine.run import run
from tests.statemachine.world import KafkaCluster
from tests.support.kafka import SharedBroker

SCALE = int(os.environ.get("ATOMLOG_STATEMACHINE", "1"))  # 1 = what CI does
FIRST = int(os.environ.get("ATOMLOG_STATEMACHINE_SEED", "0"))
SHARES = 3  # test items a log, so that several workers share them
EXAMPLES = 150 * SCALE
ON_A_BROKER = 16 * SCALE  # each call of a log is a request
MET = ("batches", "claims", "accepted", "repeated", "receipts", "told as never", "REVISION_CONFLICT")


@pytest.mark.timeout(600 * SCALE)
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("log", ["memory", "embedded"])
def test_whatever_happens_what_was_told_and_read_agrees_with_the_log(log: str, share: int) -> None:
    seed = FIRST + share
    print(f"seed {seed}; again: python -m tests.statemachine.run {log} --seed {seed} --examples {EXAMPLES} --shrink")
    StoreMachine.seen.clear()
    run(log, seed, EXAMPLES, shrink=False)
    seen = StoreMachine.seen
    assert seen["examples"] >= EXAMPLES, seen
    assert seen["batches"] > 2 * EXAMPLES, f"hardly anything was written: {seen}"
    assert all(seen[what] for what in (*MET, "IN_DOUBT" if log == "memory" else "disk faults")), f"not met: {seen}"


@pytest.mark.timeout(600 * SCALE)
def test_so_it_does_on_a_real_broker(kafka: SharedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaCluster, "address", kafka.address)
    print(f"seed {FIRST}; again: python -m tests.statemachine.run kafka --seed {FIRST} --broker HOST:PORT --shrink")
    StoreMachine.seen.clear()
    run("kafka", FIRST, ON_A_BROKER, shrink=False)
    seen = StoreMachine.seen
    assert seen["examples"] >= ON_A_BROKER, seen
    assert all(seen[what] for what in ("batches", "claims", "accepted", "void records", "IN_DOUBT")), f"not met: {seen}"
