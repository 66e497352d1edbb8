"""`atomlog bench`: choose rungs, look for what they need, run them in a temporary directory, write the page."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from atomlog.consumers.bench.child import check_peers, run_side
from atomlog.consumers.bench.kafka_nodes import VARIABLE, brokers
from atomlog.consumers.bench.ladder import Rung, Scale
from atomlog.consumers.bench.registry import BROKERS, RUNGS
from atomlog.consumers.bench.report import number, table, write_page
from atomlog.consumers.bench.run import Result, chosen, run_ladder
from atomlog.consumers.machine import Machine
from atomlog.kernel.errors import fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    results: Sequence[Result]

    def table(self) -> list[tuple[str, ...]]:
        return table(self.results)


def measure(names: Sequence[str], *, rounds: int, scale: str, page: str | None, say: Callable[[str], None]) -> Measured:
    """Measure these rungs, all when `names` is empty. INVALID_INPUT for an unknown rung, or what is missing."""
    machine = Machine()
    rungs = with_brokers(chosen(RUNGS, names), names, len(brokers(machine.environment)), say)
    for rung in rungs:
        check_peers(rung)
    with tempfile.TemporaryDirectory(prefix="atomlog-bench-") as directory:
        results = run_ladder(
            rungs,
            directory=directory,
            scale=cast(Scale, scale),
            rounds=rounds,
            files=machine.files,
            run_side=run_side,
            told=lambda result: say(f"{result.rung.id}: {number(result.ratio)} × {result.rung.base_name}"),
        )
    if page is not None:
        only = f" --only {','.join(names)}" if names else ""
        command = f"atomlog bench --rounds {rounds} --scale {scale}{only}"
        write_page(machine.files, page, results, command=command, now_us=machine.clock.now_us())
    return Measured(results=results)


def with_brokers(rungs: Sequence[Rung], names: Sequence[str], there: int, say: Callable[[str], None]) -> list[Rung]:
    """Those that can be measured with so many Kafka brokers; the others are left out, which is said.

    INVALID_INPUT when one of them was named, or nothing is left.
    """
    missing = [rung.id for rung in rungs if BROKERS.get(rung.id, there) != there]
    if not missing:
        return list(rungs)
    needs = ", ".join(f"{rung_id} ({BROKERS[rung_id]})" for rung_id in missing)
    why = f"{VARIABLE} names {there or 'no'} Kafka brokers, not as many as {needs}; `make bench-kafka` starts them"
    if len(missing) == len(rungs) or set(names) & set(missing):
        raise fail("INVALID_INPUT", why)
    say(f"left out: {why}")
    return [rung for rung in rungs if rung.id not in missing]
