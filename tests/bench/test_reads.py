"""P6 and P9 in small: both sides do all of the work, and what was read is what was written."""

from pathlib import Path

from atomlog.consumers.bench.growth import OPERATIONS
from atomlog.consumers.bench.ladder import Bench
from atomlog.consumers.bench.registry import RUNGS


def test_a_point_read_is_the_text_with_a_receipt_of_its_own_and_its_base_the_same_row(tmp_path: Path) -> None:
    bench = Bench(directory=str(tmp_path), scale="smoke")
    rung = RUNGS["P6"]
    rung.prepare(bench)
    for _ in range(2):  # a side may be called again
        ours, base = rung.ours(bench), rung.base(bench)
        assert (ours.checked, base.checked) == (ours.units, base.units)
        assert ours.units == base.units > 0
    assert base.figures["bytes_row"] > 300


def test_growth_is_the_worst_of_all_operations_and_each_was_right(tmp_path: Path) -> None:
    bench = Bench(directory=str(tmp_path), scale="smoke")
    rung = RUNGS["P9"]
    rung.prepare(bench)
    for _ in range(2):
        ours, base = rung.ours(bench), rung.base(bench)
        assert ours.checked == ours.units == base.units == 1
        growths = {name: ours.figures[f"growth_{name}"] for name in OPERATIONS}
        assert ours.measured("time") / base.measured("time") == max(growths.values())
        assert all(goal.of == "ratio" or goal.of in ours.figures for goal in rung.goals)
