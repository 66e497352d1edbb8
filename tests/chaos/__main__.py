"""`python -m tests.chaos`: runs drawn from seeds, one after the other, and a table of what they saw.

A run that fails keeps its folder; the others' are removed. Ends with 1 when one failed.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.faults import FAULTS, missing
from tests.chaos.run import Report, Schedule, run

FAULTS_A_RUN: Final = 6
HEADINGS: Final = (
    "seed",
    "acknowledged",
    "refused",
    "reads",
    "voids",
    "of them unreadable",
    "terms",
    "seconds",
    "slowest",
)


def main(arguments: Sequence[str]) -> int:
    asked = _parsed(arguments)
    for name in FAULTS:
        if (lack := missing(name)) is not None:
            print(f"NOT TRIED: {name}: {lack}", flush=True)
    rows: list[tuple[str, ...]] = [HEADINGS]
    slowest: dict[str, float] = {}
    failed = 0
    for schedule in _schedules(asked):
        started = time.monotonic()
        report = _run(schedule)
        if report is None:
            failed += 1
            rows.append((schedule.seed, "FAILED", *("" for _ in HEADINGS[2:])))
            continue
        rows.append(_row(report, time.monotonic() - started))
        slowest = {
            name: max(report.seconds.get(name, 0), slowest.get(name, 0)) for name in slowest | dict(report.seconds)
        }
    print("\n".join(["", *_table(rows), "", *_table([("fault", "answered again within"), *_bounds(slowest)])]))
    return 1 if failed else 0


def _run(schedule: Schedule) -> Report | None:
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{schedule.seed}-"))
    print(f"seed {schedule.seed}: {' '.join(schedule.faults)}", flush=True)
    try:
        report = asyncio.run(run(folder, schedule, lambda what: print(f"  {time.strftime('%T')} {what}", flush=True)))
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print(f"FAILED: everything is in {folder}; again: make chaos SCHEDULE={folder}/schedule.json", flush=True)
        return None
    shutil.rmtree(folder)
    return report


def _schedules(asked: argparse.Namespace) -> Iterator[Schedule]:
    if asked.schedule is not None:
        yield Schedule.load(asked.schedule)
        return
    first, _, last = asked.seeds.partition("-") if asked.seeds else (str(int(time.time())), "-", "")
    seed, end = int(first), time.monotonic() + asked.seconds
    while seed <= int(last or first) if asked.seeds else time.monotonic() < end:
        yield Schedule.drawn(str(seed), asked.faults)
        seed += 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", metavar="FIRST-LAST", help="one run for each")
    parser.add_argument("--seconds", type=float, default=600.0, help="without --seeds: runs are begun for so long")
    parser.add_argument("--faults", type=int, default=FAULTS_A_RUN, help="in each run")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="this run again")
    return parser.parse_args(arguments)


def _row(report: Report, seconds: float) -> tuple[str, ...]:
    slow = max(report.seconds, key=lambda name: report.seconds[name])
    return (
        report.seed,
        str(report.acknowledged),
        str(report.refused),
        str(report.reads),
        " ".join(f"{reason} {count}" for reason, count in sorted(report.voids.items())) or "0",
        str(report.unreadable),
        " ".join(str(count) for _, count in sorted(report.terms.items())),
        f"{seconds:.0f}",
        f"{report.seconds[slow]:.1f} s after {slow}",
    )


def _bounds(slowest: dict[str, float]) -> list[tuple[str, ...]]:
    return [(name, f"{slowest[name]:.1f} s") for name in sorted(slowest, key=lambda name: -slowest[name])]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
