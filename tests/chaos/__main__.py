"""`python -m tests.chaos`: runs drawn from seeds, one after the other, and a table of what they saw.

A run that fails keeps its folder; the others' are removed. Ends with 1 when one failed.
"""

import argparse
import asyncio
import shutil
import signal
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
    "faults",
)


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is ended, and the table comes
    asked = _parsed(arguments)
    for name in FAULTS:
        if (lack := missing(name)) is not None:
            print(f"NOT TRIED: {name}: {lack}", flush=True)
    table = Table()
    try:
        for schedule in _schedules(asked):
            started = time.monotonic()
            table.add(schedule, _run(schedule), time.monotonic() - started)
    except KeyboardInterrupt:
        print("interrupted")
    table.show()
    return 1 if table.failed else 0


class Table:
    """Of runs, and of what each fault took at most."""

    def __init__(self) -> None:
        self.failed = 0
        self._rows: list[tuple[str, ...]] = [HEADINGS]
        self._slowest: dict[str, float] = {}

    def add(self, schedule: Schedule, report: Report | None, seconds: float) -> None:
        faults = " ".join(schedule.faults)
        if report is None:
            self.failed += 1
            self._rows.append((schedule.seed, "FAILED", *("" for _ in HEADINGS[3:]), faults))
            return
        self._rows.append((*_row(report, seconds), faults))
        for name, took in report.seconds.items():
            self._slowest[name] = max(took, self._slowest.get(name, 0.0))

    def show(self) -> None:
        bounds = sorted(self._slowest.items(), key=lambda pair: -pair[1])
        slowest = [("fault", "answered again within"), *((name, f"{took:.1f} s") for name, took in bounds)]
        print("\n".join(["", *_table(self._rows), "", *_table(slowest)]))


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


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
