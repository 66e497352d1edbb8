"""The page for Prometheus: it says what is so, and what is documented."""

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atomlog.consumers.cluster.reports import NodeReport, PartitionReport, ProjectionPlace, ProjectionReport
from atomlog.consumers.metrics import EVENTS_MAX, METRICS, KeyWaits, Metrics
from atomlog.kernel.ports import ACK, READ_BACK
from tests.house.tree import ROOT

ROW = re.compile(r"^\| `(atomlog_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


def report(**more: Any) -> NodeReport:
    partitions = (
        PartitionReport(
            partition=0,
            phase="owner",
            term=3,
            position=17,
            end=19,
            in_flight=4,
            batches=11,
            voids={"stale_term": 2, "malformed": 1},
        ),
        PartitionReport(partition=1, phase="standby", term=7, position=5, end=5, batches=2, voids={}),
    )
    place = ProjectionPlace(partition=0, position=16, chain=bytes(16), lag_records=3, lag_ms=1_500)
    ids = ProjectionReport(
        name="ids", generation="g1", health="DEGRADED", quarantined=2, bytes_per_revision=321, partitions=(place,)
    )
    given: dict[str, Any] = {
        "node": bytes(16),
        "name": "n",
        "role": "kernel",
        "endpoint": "",
        "pid": 1,
        "at_us": 0,
        "partitions": partitions,
        "projections": (ids,),
        "disk_free_bytes": 1_000,
        "disk_reserve_bytes": 100,
        "disk_days_to_full": 12,
    }
    return NodeReport(**{**given, **more})


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(page: bytes, name: str, **labels: str) -> float:
    return samples(page)[(f"atomlog_{name}", tuple(sorted(labels.items())))]


def test_the_page_says_what_the_report_says() -> None:
    page = Metrics().page(report(), KeyWaits(count=3, seconds=0.25), overlay={0: 6})
    assert value(page, "overlay_records", partition="0") == 6
    assert value(page, "partition_end", partition="0") == 19
    assert value(page, "partition_position", partition="0") == 17
    assert value(page, "partition_term", partition="1") == 7
    assert [value(page, "partition_owned", partition=number) for number in "01"] == [1, 0]
    assert value(page, "in_flight", partition="0") == 4
    assert value(page, "batches_total", partition="0") == 11
    assert value(page, "void_records_total", reader="heads", partition="0", reason="stale_term") == 2
    assert value(page, "projection_position", projection="ids", partition="0") == 16
    assert value(page, "projection_lag_records", projection="ids", partition="0") == 3
    assert value(page, "projection_lag_seconds", projection="ids", partition="0") == 1.5
    assert value(page, "projection_quarantined", projection="ids") == 2
    shown = [value(page, "projection_health", projection="ids", health=one) for one in ("OK", "DEGRADED", "STOPPED")]
    assert shown == [0, 1, 0]
    assert value(page, "projection_bytes_per_revision", projection="ids") == 321
    assert value(page, "disk_free_bytes") == 1_000
    assert value(page, "disk_reserve_bytes") == 100
    assert value(page, "disk_days_to_full") == 12
    assert (value(page, "key_waits_total"), value(page, "key_wait_seconds_total")) == (3, 0.25)


def test_what_is_not_known_is_absent_rather_than_a_number() -> None:
    page = Metrics().page(report(disk_days_to_full=-1, projections=()), KeyWaits())
    names = {name for name, _ in samples(page)}
    assert "atomlog_disk_days_to_full" not in names
    assert "atomlog_projection_bytes_per_revision" not in names


def test_durations_are_counted_in_buckets() -> None:
    metrics = Metrics()
    for seconds in (0.0004, 0.0005, 0.02, 100.0):
        metrics.observe(ACK, seconds)
    metrics.observe(READ_BACK, 0.003)
    page = metrics.page(report(), KeyWaits())
    assert value(page, "ack_seconds_bucket", le="0.0005") == 2
    assert value(page, "ack_seconds_bucket", le="0.025") == 3
    assert value(page, "ack_seconds_bucket", le="30.0") == 3
    assert value(page, "ack_seconds_bucket", le="+Inf") == value(page, "ack_seconds_count") == 4
    assert value(page, "ack_seconds_sum") == pytest.approx(100.0209)
    assert value(page, "read_back_seconds_count") == 1


def test_claims_and_doubts_are_counted_from_what_is_said() -> None:
    metrics = Metrics()
    for event in ("claimed", "in_doubt", "claimed"):
        metrics.heard({"event": event, "partition": 5})
    metrics.heard({"event": "swept", "projection": "ids", "removed": []})
    page = metrics.page(report(), KeyWaits())
    assert value(page, "claims_total", partition="5") == 2
    assert value(page, "doubts_total", partition="5") == 1
    assert value(page, "events_total", event="swept") == 1


def test_events_of_any_number_take_bounded_room() -> None:
    metrics = Metrics()
    for number in range(10 * EVENTS_MAX):
        metrics.heard({"event": f"e{number}"})
    page = metrics.page(report(), KeyWaits())
    assert sum(name == "atomlog_events_total" for name, _ in samples(page)) == EVENTS_MAX


def test_voids_of_a_projection_stand_beside_those_of_the_heads() -> None:
    page = Metrics().page(report(), KeyWaits(), {("ids", 0): {"seq_gap": 9}})
    assert value(page, "void_records_total", reader="ids", partition="0", reason="seq_gap") == 9
    assert value(page, "void_records_total", reader="heads", partition="0", reason="malformed") == 1


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    documented = [(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(text)]
    assert documented == [(spec.name, spec.kind, spec.labels) for spec in METRICS.values()]


def test_every_metric_is_on_the_page() -> None:
    page = Metrics().page(report(), KeyWaits()).decode()
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    assert families == {spec.name for spec in METRICS.values()}
