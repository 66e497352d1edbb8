"""What a long-running process measures, as Prometheus reads it: the only module that knows prometheus_client.

`METRICS` is the whole list; docs/metrics.md describes it, and a test holds the two together. Nothing that a user wrote
is a label: partitions, projections, events and reasons are.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from atomlog.consumers.cluster.reports import SERVES, NodeReport
from atomlog.consumers.events import Event
from atomlog.kernel.keys import KeyRing
from atomlog.kernel.ports import ACK, READ_BACK

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
EVENTS_MAX: Final = 256  # different ones that are counted; the program has fewer

HEALTHS: Final = ("OK", "DEGRADED", "STOPPED")

Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[tuple[str, ...], float]
"""(values of the labels, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric. The name of a counter ends in `_total`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _metric(name: str, kind: Kind, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=f"atomlog_{name}", kind=kind, labels=labels, help=help)


_PLACE: Final = ("projection", "partition")
METRICS: Final[Mapping[str, MetricSpec]] = {
    spec.name.removeprefix("atomlog_"): spec
    for spec in (
        _metric("partition_end", "gauge", "Next position of the log.", "partition"),
        _metric("partition_position", "gauge", "Next position that the heads apply.", "partition"),
        _metric("partition_term", "gauge", "Term of the last effective Claim.", "partition"),
        _metric("partition_owned", "gauge", "1 while this process owns the partition.", "partition"),
        _metric("in_flight", "gauge", "Requests taken in and not answered.", "partition"),
        _metric("overlay_records", "gauge", "Records appended and not read back.", "partition"),
        _metric("batches_total", "counter", "Effective batches of the log.", "partition"),
        _metric("void_records_total", "counter", "Void records, by why.", "reader", "partition", "reason"),
        _metric("claims_total", "counter", "Times that this process became the owner.", "partition"),
        _metric("doubts_total", "counter", "Appends of which it was not known whether they worked.", "partition"),
        _metric("ack_seconds", "histogram", "From taking a write in to its acknowledgement."),
        _metric("read_back_seconds", "histogram", "From appending a group to having read it back whole."),
        _metric("key_waits_total", "counter", "Times that content waited for its key page."),
        _metric("key_wait_seconds_total", "counter", "How long it waited, in all."),
        _metric("projection_position", "gauge", "Next position that the projection applies.", *_PLACE),
        _metric("projection_lag_records", "gauge", "Records of the log that are not applied.", *_PLACE),
        _metric("projection_lag_seconds", "gauge", "Age of the first batch that is not applied.", *_PLACE),
        _metric("projection_quarantined", "gauge", "Records that the projection skipped.", "projection"),
        _metric("projection_health", "gauge", "1 for the health that it has.", "projection", "health"),
        _metric("projection_bytes_per_revision", "gauge", "On disk, where it is known.", "projection"),
        _metric("disk_free_bytes", "gauge", "Free on the disk of the directory."),
        _metric("disk_reserve_bytes", "gauge", "Below so many free bytes writes are refused."),
        _metric("disk_days_to_full", "gauge", "Until only the reserve is left, where it is known."),
        _metric("events_total", "counter", "What the process said.", "event"),
    )
}


@dataclass(slots=True)
class _Durations:
    """How many were at most as long as each bucket says; the last one has all that are longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        found, so_far = [], 0
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWaits:
    """How often, and how long in all, content waited for a key."""

    count: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, ring: KeyRing) -> "KeyWaits":
        return cls(count=ring.waits, seconds=ring.waited_ms / 1_000)


class Metrics:
    """Counts of one process. Implements the kernel's `Meters`; `heard` is to be told of every event."""

    def __init__(self) -> None:
        self._durations = {name: _Durations() for name in (ACK, READ_BACK)}
        self._events: Counter[str] = Counter()
        self._of_partition: Counter[tuple[str, str]] = Counter()

    def observe(self, name: str, seconds: float) -> None:
        self._durations[name].add(seconds)

    def heard(self, event: Event) -> None:
        name = str(event["event"])
        if name in self._events or len(self._events) < EVENTS_MAX:
            self._events[name] += 1
        if name in ("claimed", "in_doubt"):
            self._of_partition[(name, str(event["partition"]))] += 1

    def page(
        self,
        report: NodeReport,
        keys: KeyWaits,
        voids: Mapping[tuple[str, int], Mapping[str, int]] | None = None,
        *,
        overlay: Mapping[int, int] | None = None,
    ) -> bytes:
        """The page of this moment.

        `voids`: (reader, partition) → reason → records, beside those of the report. `overlay`: partition → records that
        are appended and not read back.
        """
        samples: dict[str, list[Sample]] = {
            **_of_partitions(report),
            **_of_projections(report),
            **_of_disk(report),
            "void_records_total": [*_of_voids(report, voids or {})],
            "overlay_records": [((str(number),), count) for number, count in sorted((overlay or {}).items())],
            "claims_total": self._counted("claimed"),
            "doubts_total": self._counted("in_doubt"),
            "events_total": [((name,), count) for name, count in sorted(self._events.items())],
            "key_waits_total": [((), keys.count)],
            "key_wait_seconds_total": [((), keys.seconds)],
        }
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families([*self._families(samples)]))
        return generate_latest(registry)

    def _counted(self, event: str) -> list[Sample]:
        found = sorted(self._of_partition.items())
        return [((partition,), count) for (name, partition), count in found if name == event]

    def _families(self, samples: Mapping[str, Sequence[Sample]]) -> Iterator[Metric]:
        for name, spec in METRICS.items():
            if spec.kind == "histogram":
                durations = self._durations[name.removesuffix("_seconds")]
                histogram = HistogramMetricFamily(spec.name, spec.help)
                histogram.add_metric([], buckets=durations.buckets(), sum_value=durations.total_s)
                yield histogram
                continue
            made = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
            family = made(spec.name, spec.help, labels=spec.labels)
            for labels, value in samples[name]:
                family.add_metric(labels, value)
            yield family


class _Families:
    """What a registry collects: made before, all at one moment."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_partitions(report: NodeReport) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {
        name: []
        for name in (
            "partition_end",
            "partition_position",
            "partition_term",
            "partition_owned",
            "in_flight",
            "batches_total",
        )
    }
    for one in report.partitions:
        values = (one.end, one.position, one.term, float(one.phase == SERVES), one.in_flight, one.batches)
        for name, value in zip(found, values, strict=True):
            found[name].append(((str(one.partition),), value))
    return found


def _of_projections(report: NodeReport) -> dict[str, list[Sample]]:
    places = [
        ((one.name, str(place.partition)), place.position, place.lag_records, place.lag_ms / 1_000)
        for one in report.projections
        for place in one.partitions
    ]
    return {
        "projection_position": [(labels, position) for labels, position, _, _ in places],
        "projection_lag_records": [(labels, records) for labels, _, records, _ in places],
        "projection_lag_seconds": [(labels, seconds) for labels, _, _, seconds in places],
        "projection_quarantined": [((one.name,), one.quarantined) for one in report.projections],
        "projection_health": [
            ((one.name, health), float(one.health == health)) for one in report.projections for health in HEALTHS
        ],
        "projection_bytes_per_revision": [
            ((one.name,), one.bytes_per_revision) for one in report.projections if one.bytes_per_revision >= 0
        ],
    }


def _of_disk(report: NodeReport) -> dict[str, list[Sample]]:
    days = report.disk_days_to_full
    return {
        "disk_free_bytes": [((), report.disk_free_bytes)],
        "disk_reserve_bytes": [((), report.disk_reserve_bytes)],
        "disk_days_to_full": [] if days < 0 else [((), days)],
    }


def _of_voids(report: NodeReport, others: Mapping[tuple[str, int], Mapping[str, int]]) -> Iterator[Sample]:
    """Of the heads since the log began; of a projection since this process did."""
    found = {**{("heads", one.partition): one.voids for one in report.partitions}, **others}
    for (reader, partition), reasons in sorted(found.items()):
        for reason, count in sorted(reasons.items()):
            yield (reader, str(partition), reason), count
