"""The runner: rounds of ours and base, interleaved, and what they come to.

Within a round the two sides follow each other at once, in turns first, so that a machine that grows slower or is shared
weighs on both. A ratio is taken within its round; the result is the median over the rounds.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from atomlog.consumers.bench.ladder import Goal, Rung, Sample, Scale, Side
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    ours: Sample
    base: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a rung came to. Numbers are medians over `rounds`; `spread` is the least and the greatest ratio."""

    rung: Rung
    rounds: tuple[Round, ...]

    @property
    def ratios(self) -> list[float]:
        measure = self.rung.measure
        return [one.ours.measured(measure) / one.base.measured(measure) for one in self.rounds]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float:
        measure = self.rung.measure
        return statistics.median(one.ours.measured_cpu(measure) / one.base.measured_cpu(measure) for one in self.rounds)

    @property
    def ours(self) -> float:
        return statistics.median(one.ours.measured(self.rung.measure) for one in self.rounds)

    @property
    def base(self) -> float:
        return statistics.median(one.base.measured(self.rung.measure) for one in self.rounds)

    @property
    def figures(self) -> dict[str, float]:
        """Of ours, and of base with `base_` before the name."""
        sides = (("", [one.ours for one in self.rounds]), ("base_", [one.base for one in self.rounds]))
        return {
            prefix + name: statistics.median(sample.figures[name] for sample in samples)
            for prefix, samples in sides
            for name in samples[0].figures
        }

    def found(self, goal: Goal) -> float:
        """The number that a goal is about."""
        return {"ratio": self.ratio, "ours": self.ours}.get(goal.of) or self.figures[goal.of]

    @property
    def met(self) -> bool:
        return all(goal.is_met(self.found(goal)) for goal in self.rung.goals)

    def to_dict(self) -> dict[str, Any]:
        measure = self.rung.measure
        return {
            "ratio": self.ratio,
            "ours": self.ours,
            "base": self.base,
            "unit": self.rung.unit,
            "base_name": self.rung.base_name,
            "goal": "; ".join(goal.text for goal in self.rung.goals),
            "met": self.met,
            "rounds": len(self.rounds),
            "spread": [min(self.ratios), max(self.ratios)],
            "cpu_ratio": self.cpu_ratio,
            "cpu_ours": statistics.median(one.ours.measured_cpu(measure) for one in self.rounds),
            "cpu_base": statistics.median(one.base.measured_cpu(measure) for one in self.rounds),
            "figures": self.figures,
        }


class SideRunner(Protocol):
    """`child.run_side`, or something that stands in for it."""

    def __call__(self, rung: Rung, side: Side, directory: str, scale: Scale) -> Sample | None: ...


def chosen(rungs: Mapping[str, Rung], only: Sequence[str]) -> list[Rung]:
    """The rungs of these ids, in the registry's order; `P3` stands for all `P3-…`. INVALID_INPUT for an unknown one."""
    unknown = [name for name in only if not any(_is_of(rung_id, name) for rung_id in rungs)]
    if unknown:
        raise fail("INVALID_INPUT", f"--only: there is no {', '.join(unknown)}; there are {', '.join(rungs)}")
    return [rung for rung_id, rung in rungs.items() if not only or any(_is_of(rung_id, name) for name in only)]


def run_ladder(
    rungs: Sequence[Rung],
    *,
    directory: str,
    scale: Scale,
    rounds: int,
    files: Files,
    run_side: SideRunner,
    told: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run these rungs, one after the other, under `directory`. What they leave there is removed rung by rung."""
    results = []
    for rung in rungs:
        place = f"{directory}/{rung.id}"
        files.make_directory(place)
        try:
            run_side(rung, "prepare", place, scale)
            done = tuple(_round(rung, number, place, scale, run_side) for number in range(rounds))
        finally:
            files.remove_tree(place)
        results.append(Result(rung=rung, rounds=done))
        told(results[-1])
    return results


def _round(rung: Rung, number: int, directory: str, scale: Scale, run_side: SideRunner) -> Round:
    order: tuple[Side, Side] = ("ours", "base") if number % 2 == 0 else ("base", "ours")
    samples = {side: _checked(rung, side, run_side(rung, side, directory, scale)) for side in order}
    return Round(ours=samples["ours"], base=samples["base"])


def _checked(rung: Rung, side: Side, sample: Sample | None) -> Sample:
    """Work that cannot be found afterwards was not done."""
    if sample is None or sample.units <= 0 or sample.checked != sample.units:
        raise RuntimeError(f"{rung.id}, {side}: not all of the work was found afterwards: {sample}")
    return sample


def _is_of(rung_id: str, name: str) -> bool:
    return rung_id == name or rung_id.startswith(f"{name}-")
