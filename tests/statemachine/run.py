"""Runs a machine on its own: `python -m tests.statemachine.run memory --seed 3 --examples 40`.

Ends with 0, or with 3 and a line on what was found first: `caught by <checker>, which looked`, or `caught by <checker>`
where the program itself refused to go on. Nothing is shrunk; with `--shrink` the failing example is made small and
printed whole.
"""

import argparse
import sys
import traceback
import warnings
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.statemachine import checkers
from tests.statemachine.checkers import CheckFailed
from tests.statemachine.machine import EmbeddedLogMachine, KafkaLogMachine, MemoryLogMachine, StoreMachine
from tests.statemachine.world import KafkaCluster

MACHINES: Final[dict[str, type[StoreMachine]]] = {
    "memory": MemoryLogMachine,
    "embedded": EmbeddedLogMachine,
    "kafka": KafkaLogMachine,
}
CAUGHT: Final = 3
STEPS: Final = 50


def run(log: str, number: int, examples: int, *, shrink: bool) -> None:
    """So many examples from one seed; raises what the first that fails raises."""
    machine = seed(number)(type(f"{log}-{number}", (MACHINES[log],), {}))
    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if shrink else ()))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=phases,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", choices=MACHINES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--broker", metavar="HOST:PORT", default="localhost:9092", help="for the log on Kafka")
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--only", choices=checkers.CHECKERS, help="look with this checker alone")
    parser.add_argument("--shrink", action="store_true")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("error")
    print(f"{asked.log} log, seed {asked.seed}, {asked.examples} examples")
    checkers.ONLY.update([asked.only] if asked.only else [])
    StoreMachine.seen.clear()
    KafkaCluster.address = asked.broker
    try:
        run(asked.log, asked.seed, asked.examples, shrink=asked.shrink)
    except CheckFailed as error:
        if asked.shrink:
            traceback.print_exception(error)
        print(f"caught by {error.checker}{', which looked' if error.looked else ''}: {error}")
        return CAUGHT
    print(", ".join(f"{count} {what}" for what, count in sorted(StoreMachine.seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
