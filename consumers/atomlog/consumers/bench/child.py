"""Both ends of the process that runs one side of one rung: `python -m atomlog.consumers.bench.child`.

Its arguments are rung, side, directory and scale; it prints the sample as the last line of stdout, one line of JSON.
"""

import importlib.util
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

from atomlog.consumers.bench.ladder import SCALES, Bench, Rung, Sample, Scale, Side
from atomlog.consumers.processes import SAFE_PATH, interpreter
from atomlog.kernel import jsontext
from atomlog.kernel.errors import fail

MODULE: Final = "atomlog.consumers.bench.child"
SECONDS_MAX: Final = 3_600.0  # for one side of one round


def check_peers(rung: Rung) -> None:
    """INVALID_INPUT when a library is missing that only benchmarks need."""
    missing = [name for name in rung.peers if importlib.util.find_spec(name) is None]
    if missing:
        message = f"{rung.id} compares with {', '.join(missing)}, which is not installed; `make bench` installs it"
        raise fail("INVALID_INPUT", message)


def run_side(rung: Rung, side: Side, directory: str, scale: Scale) -> Sample | None:
    """Run one side in a fresh process; None for `prepare`. RuntimeError with its traceback when it fails."""
    command = [interpreter(), SAFE_PATH, "-m", MODULE, rung.id, side, directory, scale]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)
    if done.returncode != 0:
        text = done.stderr.decode("utf-8", "replace")
        raise RuntimeError(f"{rung.id}, {side}, ended with exit code {done.returncode}:\n{text}")
    found: dict[str, Any] | None = jsontext.loads(done.stdout.splitlines()[-1])
    return None if found is None else Sample(**found)


def main(rung_id: str, side: str, directory: str, scale: str) -> None:
    """The other end."""
    from atomlog.consumers.bench.registry import RUNGS  # the runner knows rungs that are in no registry

    rung = RUNGS[rung_id]
    bench = Bench(directory=directory, scale=next(known for known in SCALES if known == scale))
    match side:
        case "prepare":
            rung.prepare(bench)
            found = None
        case "ours":
            found = asdict(rung.ours(bench))
        case _:
            found = asdict(rung.base(bench))
    sys.stdout.buffer.write(jsontext.dumps(found) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
