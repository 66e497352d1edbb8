"""docs/benchmarks.md: what was measured is written between the markers, what a person wrote stays."""

from pathlib import Path

import pytest

from atomlog.consumers.bench.ladder import Sample
from atomlog.consumers.bench.report import BEGIN, END, number, write_page
from atomlog.consumers.bench.run import Result, Round
from atomlog.kernel.errors import InvalidError
from atomlog.kernel.system import SystemFiles
from tests.bench.test_runner import Given

DAY_US = 86_400_000_000


def result(rung_id: str, *, wall_s: float) -> Result:
    ours = Sample(units=1_000, wall_s=wall_s, cpu_s=1, checked=1_000, figures={"rss_mib": 81.6})
    base = Sample(units=1_000, wall_s=1, cpu_s=1, checked=1_000)
    return Result(rung=Given(id=rung_id), rounds=(Round(ours=ours, base=base),))


def write(page: Path, *results: Result, day: int) -> str:
    write_page(SystemFiles(), str(page), results, command="atomlog bench", now_us=day * DAY_US)
    return page.read_text(encoding="utf-8")


def test_a_second_run_exchanges_its_rows_and_keeps_the_others_and_what_a_person_wrote(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{BEGIN}\n{END}\n\n## Why\n\n| P1 | a table of mine |\n", encoding="utf-8")
    first = write(page, result("P10", wall_s=1), result("P2", wall_s=2), result("P1", wall_s=4), day=0)
    second = write(page, result("P2", wall_s=0.5), day=1)
    for text in (first, second):
        assert text.startswith("# Mine\n")
        assert text.endswith(f"{END}\n\n## Why\n\n| P1 | a table of mine |\n")
    rows = [line for line in second.partition(END)[0].splitlines() if line.startswith("| P")]
    assert [row.split(" | ")[0] for row in rows] == ["| P1", "| P2", "| P10"]
    assert rows[0] == "| P1 | 250 units/s | 1,000 units/s | 0.25 (0.25–0.25) | 1 | ≥ 0.5 × | no | 1970-01-01 |"
    assert rows[1] == "| P2 | 2,000 units/s | 1,000 units/s | 2 (2–2) | 1 | ≥ 0.5 × | yes | 1970-01-02 |"
    assert second.count("**P2** nothing. Base: nothing, too.") == 1
    assert "rss_mib 81.6" in second
    assert "The last run: `atomlog bench`, 1970-01-02, on " in second
    assert "fastavro " in second


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n", encoding="utf-8")
    with pytest.raises(InvalidError, match="the page needs the lines"):
        write(page, result("P1", wall_s=1), day=0)
    assert page.read_text(encoding="utf-8") == "# Mine\n"


def test_numbers_have_three_digits_that_matter() -> None:
    assert [number(value) for value in (0, 0.012345, 9.876, 99.94, 12_345.6)] == [
        "0",
        "0.0123",
        "9.88",
        "99.9",
        "12,346",
    ]
