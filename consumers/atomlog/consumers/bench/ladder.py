"""What a rung of the ladder is: the same work by this store and by something else, side by side.

Each side of a rung runs in a process of its own, started anew for every round, so that neither the interpreter's lock
nor memory is shared. What both need is made once by `prepare` and left in files under the rung's directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from atomlog.consumers.machine import Machine

Scale = Literal["smoke", "small", "normal", "large"]
SCALES: Final[tuple[Scale, ...]] = ("smoke", "small", "normal", "large")
Side = Literal["prepare", "ours", "base"]
Measure = Literal["rate", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement. `units` of work took `wall_s` seconds and `cpu_s` seconds of processors, children included.

    `seconds` are times of single units, if they were taken. `figures` are numbers beside (`rss_mib`, `recall`, …),
    named with their unit. `checked` units were found where they belong afterwards, after the clock had stopped.
    """

    units: float
    wall_s: float
    cpu_s: float
    checked: float
    seconds: Sequence[float] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def measured(self, measure: Measure) -> float:
        """Units a second, or seconds a unit."""
        return self.units / self.wall_s if measure == "rate" else self.wall_s / self.units

    def measured_cpu(self, measure: Measure) -> float:
        return self.units / self.cpu_s if measure == "rate" else self.cpu_s / self.units


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`of` is `ratio`, `ours`, or a figure of ours by name; it must be at least, or at most, `value`."""

    text: str
    of: str
    value: float
    better: Literal["higher", "lower"]

    def is_met(self, found: float) -> bool:
        return found >= self.value if self.better == "higher" else found <= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how large. `directory` belongs to the rung alone and outlives its processes, until the run ends."""

    directory: str
    scale: Scale
    machine: Machine = field(default_factory=Machine)

    def scratch(self) -> str:
        """A fresh directory for one round."""
        path = f"{self.directory}/round-{self.machine.randomness.token(8).hex()}"
        self.machine.files.make_directory(path)
        return path


class Rung(Protocol):
    """One comparison. `ours` and `base` may be called any number of times, in any order, each in a fresh process."""

    @property
    def id(self) -> str:
        """`P1`, `P3-ids`; `--only P3` chooses every rung whose id begins with `P3-`."""
        ...

    @property
    def title(self) -> str: ...
    @property
    def unit(self) -> str:
        """Of `ours` and `base`: `writes/s`, `s/read`."""
        ...

    @property
    def measure(self) -> Measure:
        """`rate`: units a second; `time`: seconds a unit. The ratio is ours / base of it."""
        ...

    @property
    def base_name(self) -> str: ...
    @property
    def goals(self) -> Sequence[Goal]: ...
    @property
    def peers(self) -> Sequence[str]:
        """Modules that only benchmarks need; `make bench` installs them."""
        ...

    @property
    def notes(self) -> str:
        """What exactly is compared, for docs/benchmarks.md."""
        ...

    def prepare(self, bench: Bench) -> None:
        """Once a run, before the first round, in a process of its own."""
        ...

    def ours(self, bench: Bench) -> Sample: ...
    def base(self, bench: Bench) -> Sample: ...


class KafkaRung(Rung, Protocol):
    """A rung that is measured on Apache Kafka."""

    @property
    def nodes(self) -> int:
        """How many brokers it needs; each of its partitions has as many replicas."""
        ...
