"""Fuzz for longer: `python -m tests.fuzz [--seconds 60] [--seed N] [NAME …]`, each target that many seconds.

The seed is drawn unless given, and printed. Inputs that break something go to the corpus as `found-…`; commit them
with the fix. With `--keep`, inputs that reached new lines of the program go there too.
"""

import argparse
import sys
from random import SystemRandom

from tests.fuzz.engine import CORPUS, Finding
from tests.fuzz.running import Run, fuzz
from tests.fuzz.targets import GROUPS, targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", help="targets; all of them unless given")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    found = 0
    for group in GROUPS:
        for name in targets(group):
            if given.names and name not in given.names:
                continue
            (run,) = fuzz(group, given.seed, seconds=given.seconds, names=[name])
            print(run.summary, flush=True)
            found += len(run.findings)
            _keep(run, run.kept if given.keep else [])
    return min(found, 1)


def _keep(run: Run, kept: list[bytes]) -> None:
    folder = CORPUS / run.target
    folder.mkdir(parents=True, exist_ok=True)
    for finding in run.findings:
        (folder / finding.name).write_bytes(finding.data)
        print(f"{finding.what}\n{finding.trace}\nkept as {folder / finding.name}")
    for data in kept:
        (folder / f"new-{Finding(what='', data=data, trace='').name.removeprefix('found-')}").write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
