"""The runner of the ladder, on rungs whose samples are given: what is run when, and what it comes to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atomlog.consumers.bench.child import check_peers, run_side
from atomlog.consumers.bench.ladder import Bench, Goal, Measure, Rung, Sample, Scale, Side
from atomlog.consumers.bench.run import Result, chosen, run_ladder
from atomlog.kernel.errors import InvalidError
from atomlog.kernel.system import SystemFiles

AT_LEAST_HALF = Goal(text="≥ 0.5 ×", of="ratio", value=0.5, better="higher")


@dataclass(kw_only=True)
class Given:
    """A rung that does nothing."""

    id: str = "P0"
    title: str = "nothing"
    unit: str = "units/s"
    measure: Measure = "rate"
    base_name: str = "nothing, too"
    goals: Sequence[Goal] = (AT_LEAST_HALF,)
    peers: Sequence[str] = ()
    notes: str = ""

    def prepare(self, bench: Bench) -> None: ...

    def ours(self, bench: Bench) -> Sample:
        raise NotImplementedError

    def base(self, bench: Bench) -> Sample:
        raise NotImplementedError


@dataclass(kw_only=True)
class Sides:
    """Stands in for the processes: gives the samples of each side in turn, and remembers who was asked."""

    ours: list[Sample]
    base: list[Sample]
    asked: list[tuple[str, Side]] = field(default_factory=list)

    def __call__(self, rung: Rung, side: Side, directory: str, scale: Scale) -> Sample | None:
        assert Path(directory).is_dir()
        self.asked.append((rung.id, side))
        if side == "prepare":
            return None
        return (self.ours if side == "ours" else self.base).pop(0)


def took(
    wall_s: float, *, units: float = 100, checked: float | None = None, cpu_s: float = 1, **figures: float
) -> Sample:
    found = units if checked is None else checked
    return Sample(units=units, wall_s=wall_s, cpu_s=cpu_s, checked=found, figures=figures)


def run(tmp_path: Path, sides: Sides, *rungs: Rung, rounds: int) -> list[Result]:
    return run_ladder(rungs, directory=str(tmp_path), scale="smoke", rounds=rounds, files=SystemFiles(), run_side=sides)


def test_rounds_are_interleaved_and_each_side_goes_first_in_turn(tmp_path: Path) -> None:
    sides = Sides(ours=[took(1)] * 3, base=[took(1)] * 3)
    run(tmp_path, sides, Given(), rounds=3)
    order = ["prepare", "ours", "base", "base", "ours", "ours", "base"]
    assert sides.asked == [("P0", side) for side in order]
    assert not list(tmp_path.iterdir()), "what a rung leaves is removed"


def test_a_ratio_is_taken_within_its_round_and_the_median_counts(tmp_path: Path) -> None:
    # The machine is ten times slower in the second round, for both: ratios 2, 2, 8; medians of speeds 100 and 50.
    sides = Sides(ours=[took(1), took(10), took(1)], base=[took(2), took(20), took(8)])
    (found,) = run(tmp_path, sides, Given(), rounds=3)
    assert found.ratio == 2
    assert (found.ours, found.base) == (100, 12.5)
    assert found.to_dict()["spread"] == [2, 8]


def test_a_time_is_better_when_it_is_less_and_a_rate_when_it_is_more(tmp_path: Path) -> None:
    at_most_ten = Goal(text="≤ 10 ×", of="ratio", value=10, better="lower")
    slow = Sides(ours=[took(11)], base=[took(1)])
    fast = Sides(ours=[took(9)], base=[took(1)])
    rung = Given(measure="time", goals=(at_most_ten,))
    (missed,), (met,) = run(tmp_path, slow, rung, rounds=1), run(tmp_path, fast, rung, rounds=1)
    assert (missed.ratio, missed.met) == (11, False)
    assert (met.ratio, met.met) == (9, True)
    assert run(tmp_path, Sides(ours=[took(9)], base=[took(1)]), Given(), rounds=1)[0].met is False


def test_every_goal_must_be_met_those_of_figures_too(tmp_path: Path) -> None:
    small = Goal(text="RSS ≤ 500 MiB", of="rss_mib", value=500, better="lower")
    rung = Given(goals=(AT_LEAST_HALF, small))
    sides = Sides(ours=[took(1, rss_mib=501), took(1, rss_mib=499)], base=[took(1), took(1)])
    assert [run(tmp_path, sides, rung, rounds=1)[0].met for _ in range(2)] == [False, True]


def test_processor_time_has_a_ratio_of_its_own(tmp_path: Path) -> None:
    (found,) = run(tmp_path, Sides(ours=[took(1, cpu_s=1)], base=[took(1, cpu_s=4)]), Given(), rounds=1)
    assert (found.ratio, found.cpu_ratio) == (1, 4)


@pytest.mark.parametrize("side", ["ours", "base"])
def test_work_that_is_not_found_afterwards_is_an_error(tmp_path: Path, side: str) -> None:
    samples = {"ours": [took(1)], "base": [took(1)], side: [took(1, checked=99)]}
    with pytest.raises(RuntimeError, match=f"P0, {side}: not all of the work was found"):
        run(tmp_path, Sides(ours=samples["ours"], base=samples["base"]), Given(), rounds=1)
    assert not list(tmp_path.iterdir())


def test_the_json_has_what_was_promised(tmp_path: Path) -> None:
    (found,) = run(tmp_path, Sides(ours=[took(1, mib=3)], base=[took(4, mib=5)]), Given(), rounds=1)
    assert found.to_dict() == {
        "ratio": 4,
        "ours": 100,
        "base": 25,
        "unit": "units/s",
        "base_name": "nothing, too",
        "goal": "≥ 0.5 ×",
        "met": True,
        "rounds": 1,
        "spread": [4, 4],
        "cpu_ratio": 1,
        "cpu_ours": 100,
        "cpu_base": 100,
        "figures": {"mib": 3, "base_mib": 5},
    }


def test_a_prefix_chooses_its_family_and_nothing_that_only_looks_like_it() -> None:
    rungs: dict[str, Rung] = {name: Given(id=name) for name in ("P1", "P3-ids", "P3-postings", "P10")}
    assert [rung.id for rung in chosen(rungs, ["P3", "P1"])] == ["P1", "P3-ids", "P3-postings"]
    assert [rung.id for rung in chosen(rungs, ["P3-ids"])] == ["P3-ids"]
    assert len(chosen(rungs, [])) == 4
    with pytest.raises(InvalidError, match="there is no P7; there are P1, P3-ids, P3-postings, P10"):
        chosen(rungs, ["P7", "P1"])


def test_a_missing_peer_says_what_installs_it() -> None:
    check_peers(Given(peers=("json",)))
    with pytest.raises(InvalidError, match="P0 compares with no_such_peer, which is not installed; `make bench`"):
        check_peers(Given(peers=("json", "no_such_peer")))


def test_a_side_that_fails_is_told_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)P0, ours, ended with exit code 1:.*KeyError: 'P0'"):
        run_side(Given(), "ours", str(tmp_path), "smoke")
