"""docs/benchmarks.md: what was measured, on what, by which command. What a person wrote around it stays.

The generated part stands between two markers. Rungs that were not run this time keep the rows of the time before.
"""

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

from atomlog.consumers.bench.run import Result
from atomlog.consumers.processes import processors
from atomlog.kernel.errors import fail
from atomlog.kernel.ports import Files
from atomlog.kernel.times import format_time

BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"
LIBRARIES: Final = (
    *("fastavro", "rocksdict", "hnswlib", "pyroaring", "numpy", "orjson", "cryptography", "aiokafka"),
    "eventsourcing",
)
HEADS: Final = (
    "| id | ours | base | ratio (least–greatest) | of CPU time | goal | met | measured |",
    "|---|" + "---|" * 7,
)
_ROW: Final = re.compile(r"^\| ([A-Z0-9][A-Za-z0-9-]*) \|.*\|$", re.MULTILINE)
_NOTE: Final = re.compile(r"^- \*\*([A-Z0-9][A-Za-z0-9-]*)\*\* .*$", re.MULTILINE)


def write_page(files: Files, path: str, results: Sequence[Result], *, command: str, now_us: int) -> None:
    """Rewrite the measured part of the page. INVALID_INPUT when the page has no markers."""
    page = files.read(path).decode()
    before, begin, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise fail("INVALID_INPUT", f"{path}: the page needs the lines {BEGIN} and {END}")
    measured = f"\n\n{_measured(old, results, command=command, now_us=now_us)}\n"
    files.write_atomic(path, f"{before}{BEGIN}{measured}{END}{after}".encode())


def table(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Cells for a person: id, ours, base, ratio, CPU ratio, goal, met."""
    return [_cells(result) for result in results]


def _measured(old: str, results: Sequence[Result], *, command: str, now_us: int) -> str:
    day = format_time(now_us)[:10]
    rows = {found.group(1): found.group(0) for found in _ROW.finditer(old) if found.group(1) != "id"}
    notes = {found.group(1): found.group(0) for found in _NOTE.finditer(old)}
    for result in results:
        rows[result.rung.id] = f"| {' | '.join(_cells(result))} | {day} |"
        notes[result.rung.id] = _note(result)
    lines = [*HEADS, *(rows[name] for name in sorted(rows, key=_order))]
    lines += ["", *(notes[name] for name in sorted(notes, key=_order))]
    lines += ["", f"The last run: `{command}`, {day}, on {_machine()}.", "", _versions()]
    return "\n".join(lines)


def _cells(result: Result) -> tuple[str, ...]:
    rung, ratios = result.rung, result.ratios
    return (
        rung.id,
        f"{number(result.ours)} {rung.unit}",
        f"{number(result.base)} {rung.unit}",
        f"{number(result.ratio)} ({number(min(ratios))}–{number(max(ratios))})",
        number(result.cpu_ratio),
        "; ".join(goal.text for goal in rung.goals) or "none",
        ("yes" if result.met else "no") if rung.goals else "–",
    )


def _note(result: Result) -> str:
    figures = "; ".join(f"{name} {number(value)}" for name, value in result.figures.items())
    text = f"- **{result.rung.id}** {result.rung.title}. Base: {result.rung.base_name}. {result.rung.notes}"
    return f"{text} Medians of {len(result.rounds)} rounds. {figures}".rstrip()


def number(value: float) -> str:
    """Three digits that matter, and every whole one: 12,345.6 → 12,346; 0.01234 → 0.0123."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _order(name: str) -> tuple[int, str]:
    return int(re.sub(r"\D.*", "", name[1:]) or 0), name


def _machine() -> str:
    model = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names: Mapping[str, str] = dict(line.split(":", 1) for line in map(str.strip, file) if ":" in line)
        model = next((value.strip() for name, value in names.items() if name.strip() == "model name"), model)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{processors()} cores ({model}), {platform.system()} {platform.release()}, load at the end {load}"


def _versions() -> str:
    installed = {found.metadata["Name"] for found in metadata.distributions()}
    named = [f"{name} {metadata.version(name)}" for name in LIBRARIES if name in installed]
    return f"Python {sys.version.split()[0]}, {', '.join(named)}."
