"""Fuzzes targets of one group in a process of its own, whose memory is bounded: `python -m tests.fuzz.child …`.

The input that is being tried stands in the file `--trial` all the time, so that it is there after a crash.
Each target's result is one line of JSON on stdout.
"""

import argparse
import json
import mmap
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.engine import Fuzzer, Target, until
from tests.fuzz.mutations import LENGTH_MAX
from tests.fuzz.targets import targets

MEMORY_BYTES: int = 1 << 30  # beyond what the imports took
TRIAL_BYTES: int = 2 * LENGTH_MAX
HEAD = struct.Struct(">I64s")


class Trial:
    """The target and the input of the moment, in a file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(HEAD.size + TRIAL_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), HEAD.size + TRIAL_BYTES)

    def note(self, name: str) -> Callable[[bytes], None]:
        encoded = name.encode()

        def noted(data: bytes) -> None:
            data = data[:TRIAL_BYTES]
            self._map[: HEAD.size] = HEAD.pack(len(data), encoded)
            self._map[HEAD.size : HEAD.size + len(data)] = data

        return noted


def trial(path: Path) -> tuple[str, bytes]:
    """(target, input) that a process tried last."""
    raw = path.read_bytes()
    size, name = HEAD.unpack_from(raw)
    return name.rstrip(b"\0").decode(), raw[HEAD.size : HEAD.size + size]


def bound_memory() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, held + MEMORY_BYTES))


def goes_on(target: Target, seconds: float | None) -> Callable[[int], bool]:
    """As many executions as the target says, or until the time is up."""
    if seconds is None:
        return until(target.executions)
    end = time.monotonic() + seconds
    return lambda count: time.monotonic() < end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("group")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--trial", type=Path, required=True)
    given = parser.parse_args()
    chosen = targets(given.group)
    noted = Trial(given.trial)
    bound_memory()
    for name in given.names or chosen:
        report = Fuzzer(chosen[name], given.seed, noted.note(name)).run(goes_on(chosen[name], given.seconds))
        found = [{"what": each.what, "data": each.data.hex(), "trace": each.trace} for each in report.findings]
        counts = {"executions": report.executions, "refused": report.refused, "lines": report.lines}
        kept = [data.hex() for data in report.kept]
        print(json.dumps({"target": name, **counts, "kept": kept, "findings": found}), flush=True)


if __name__ == "__main__":
    main()
