"""Time and memory of this process, and of those it waited for."""

import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from atomlog.kernel.ports import Clock


@dataclass(slots=True)
class Took:
    """Filled in when the block ends."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def stopwatch(clock: Clock) -> Iterator[Took]:
    """Measures what is done inside; what was garbage before is gone, so that nobody pays for others."""
    gc.collect()
    took = Took()
    began_us, cpu_s = clock.monotonic_us(), cpu_seconds()
    yield took
    took.wall_s = max(clock.monotonic_us() - began_us, 1) / 1_000_000
    took.cpu_s = max(cpu_seconds() - cpu_s, 0.000_001)


def cpu_seconds() -> float:
    """Of this process, its threads and the children it waited for, in user and system mode."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def rss_bytes() -> int:
    """Resident memory of this process now."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak_rss_bytes() -> int:
    """The most that this process ever had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def loopback_bytes() -> int:
    """Bytes that went over the loopback device so far, of every process of this machine."""
    with open("/proc/net/dev", encoding="ascii") as file:
        lines = [line.split(":", 1) for line in file if ":" in line]
    return next(int(numbers.split()[0]) for name, numbers in lines if name.strip() == "lo")
