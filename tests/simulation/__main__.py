"""`make simulate SEED=1441`, `make soak-simulation SECONDS=600`, and traces for another process to compare."""

import argparse
import secrets
import sys
import time
import traceback
from pathlib import Path

from tests.simulation import seeds
from tests.simulation.loop import last_words_reach_nobody


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="run this one, and print its trace")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="run seeds from a fresh start")
    parser.add_argument("--traces", nargs=3, metavar=("FIRST", "COUNT", "DIRECTORY"), help="write traces to files")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return one(arguments.seed)
    if arguments.traces is not None:
        first, count, directory = arguments.traces
        return traces(int(first), int(count), Path(directory))
    return soak(arguments.soak or 60.0)


def one(seed: int) -> int:
    ended = seeds.run(seed)
    print("\n".join(ended.trace.lines))
    print(f"{ended.plan}\ntrace {ended.trace.digest()}, {ended.batches} batches")
    if ended.error is None:
        return 0
    traceback.print_exception(ended.error)
    print(seeds.report(ended), file=sys.stderr)
    return 1


def soak(seconds: float) -> int:
    """Until the time is over; every seed that fails is printed, and kept by whoever reads it."""
    first = seed = secrets.randbelow(2**40)
    until, failed = time.monotonic() + seconds, 0
    print(f"seeds from {first} on", flush=True)
    while time.monotonic() < until:
        ended = seeds.run(seed)
        if ended.error is not None:
            failed += 1
            print(seeds.report(ended), flush=True)
        seed += 1
    print(f"{seed - first} seeds from {first} on, {failed} failed; those that fail belong into {seeds.KEPT.name}")
    return 1 if failed else 0


def traces(first: int, count: int, directory: Path) -> int:
    for seed in range(first, first + count):
        (directory / f"{seed}.trace").write_text("\n".join(seeds.run(seed).trace.lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    with last_words_reach_nobody():
        sys.exit(main())
