"""What nodes say of themselves: survives its encoding, is bounded, and a stranger's bytes are passed over."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomlog.consumers.cluster import reports
from atomlog.consumers.cluster.reports import NodeReport, PartitionReport, ProjectionPlace, ProjectionReport, Reports
from atomlog.schemas import codec
from atomlog.schemas.varint import WireError

AT_US = 1_700_000_000_000_000


def partition(number: int = 0, **changes: Any) -> PartitionReport:
    fields: dict[str, Any] = {
        "partition": number,
        "phase": "owner",
        "term": 3,
        "owner": b"o" * 16,
        "next_seq": 7,
        "position": 20,
        "chain": b"c" * 16,
        "end": 21,
        "in_flight": 1,
        "batches": 9,
        "voids": {"seq_gap": 2, "claim_lost": 1},
        "last_claim_at_us": AT_US - 5,
    }
    return PartitionReport(**{**fields, **changes})


def report(node: int = 1, **changes: Any) -> NodeReport:
    fields: dict[str, Any] = {
        "node": node.to_bytes(16, "big"),
        "name": f"node-{node}",
        "role": "kernel",
        "endpoint": f"tls:host-{node}:9",
        "pid": 77,
        "at_us": AT_US,
        "partitions": (partition(),),
        "disk_free_bytes": 5,
        "disk_reserve_bytes": 4,
    }
    return NodeReport(**{**fields, **changes})


def indexes() -> tuple[ProjectionReport, ...]:
    place = ProjectionPlace(partition=1, position=5, chain=b"p" * 16, lag_records=2, lag_ms=30)
    return (ProjectionReport(name="ids", generation="g000001", health="ok", partitions=(place,)),)


def test_a_report_survives_its_encoding() -> None:
    said = report(projections=indexes(), partitions=(partition(0), partition(1, phase="standby", voids={})))
    assert NodeReport.from_bytes(said.to_bytes()) == said


def test_what_is_shown_of_a_report_is_json() -> None:
    shown = report(projections=indexes(), partitions=(partition(0, owner=bytes(16), last_claim_at_us=0),)).to_dict()
    assert shown["at"] == "2023-11-14T22:13:20.000000Z"
    assert (shown["partitions"][0]["owner"], shown["partitions"][0]["last_claim_at"]) == (None, None)
    assert shown["projections"][0]["partitions"][0]["chain"] == (b"p" * 16).hex()
    assert shown["disk"] == {"free_bytes": 5, "reserve_bytes": 4, "days_to_full": None}


def test_a_heartbeat_is_of_one_owner_in_one_term_while_it_serves() -> None:
    table = Reports()
    table.take(report(partitions=(partition(0), partition(1, phase="claiming"))).to_bytes(), 50)
    assert table.heartbeat_us(0, 3, b"o" * 16) == 50
    assert table.heartbeat_us(0, 4, b"o" * 16) is None
    assert table.heartbeat_us(0, 3, b"x" * 16) is None
    assert table.heartbeat_us(1, 3, b"o" * 16) is None
    table.take(report(partitions=(partition(0, phase="standby"),)).to_bytes(), 60)
    assert table.heartbeat_us(0, 3, b"o" * 16) == 50


def test_a_kernel_is_found_by_its_name() -> None:
    table = Reports()
    table.take(report(1).to_bytes(), 1)
    table.take(report(2, name="node-1", endpoint="tls:newer:9").to_bytes(), 2)
    table.take(report(3, name="indexes", role="consumer", endpoint="").to_bytes(), 3)
    assert table.endpoint_of("node-1") == "tls:newer:9"
    assert table.endpoint_of("indexes") is None
    assert table.endpoint_of("nobody") is None


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "NODES_MAX", 3)
    monkeypatch.setattr(reports, "HEARTBEATS_MAX", 3)
    table = Reports()
    for n in range(10):
        table.take(report(n, partitions=(partition(n),)).to_bytes(), n)
    assert [heard.report.name for heard in table.heard()] == ["node-7", "node-8", "node-9"]
    assert [table.heartbeat_us(n, 3, b"o" * 16) for n in (6, 7)] == [None, 7]


@given(st.binary(max_size=300), st.booleans())
def test_what_is_no_report_is_counted_and_passed_over(raw: bytes, is_wrapped: bool) -> None:
    table = Reports()
    value = codec.wrap(codec.load(reports.SCHEMA).fingerprint, raw) if is_wrapped else raw
    table.take(value, 1)
    table.take(None, 1)
    assert table.not_understood >= 1
    for heard in table.heard():
        assert heard.report.to_dict()


def test_a_report_that_is_too_long_or_from_no_year_is_refused() -> None:
    with pytest.raises(WireError, match="longer"):
        NodeReport.from_bytes(bytes(reports.REPORT_BYTES_MAX + 1))
    with pytest.raises(WireError, match="no time"):
        NodeReport.from_bytes(report(at_us=2**62).to_bytes())
