"""What nodes say of themselves on the control topic, and the table of what was heard last. A hint, never the truth.

Ages are of the own monotonic clock, from the moment a report arrived: what another node's clock says is only shown.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from atomlog.kernel.ids import format_id
from atomlog.kernel.times import format_time
from atomlog.schemas import codec
from atomlog.schemas.record import ZERO16
from atomlog.schemas.revision import time_bytes, time_of
from atomlog.schemas.varint import WireError

SCHEMA: Final = "NodeReportV1"
NODES_MAX: Final = 1_024  # that are remembered; then the one heard longest ago is forgotten
HEARTBEATS_MAX: Final = 8_192
REPORT_BYTES_MAX: Final = 512 * 1024
TIME_US_MAX: Final = 253_402_300_800_000_000  # the year 10000
SERVES: Final = "owner"  # the phase of a partition whose owner serves it: a heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition as a kernel sees it. `position` is the next one to be applied; `owner` 16 bytes.

    `phase` is `owner` only while it serves. `last_claim_at_us` is 0 when there was no Claim.
    """

    partition: int
    phase: str
    term: int = 0
    owner: bytes = ZERO16
    next_seq: int = 0
    position: int = 0
    chain: bytes = ZERO16
    end: int = 0
    in_flight: int = 0
    batches: int = 0
    voids: Mapping[str, int]
    last_claim_at_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionPlace:
    """How far a projection has come in one partition; `position` is the next one to be applied."""

    partition: int
    position: int
    chain: bytes
    lag_records: int
    lag_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionReport:
    """One projection of a consumer. `bytes_per_revision` is -1, `asof_kind` empty, where they are not known."""

    name: str
    generation: str
    health: str
    asof_kind: str = ""
    asof_floor: int = -1
    quarantined: int = 0
    bytes_per_revision: int = -1
    partitions: tuple[ProjectionPlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One process of the cluster. `node` is 16 random bytes of this run of it; `role` kernel, consumer or store."""

    node: bytes
    name: str
    role: str
    endpoint: str
    pid: int
    at_us: int
    partitions: tuple[PartitionReport, ...] = ()
    projections: tuple[ProjectionReport, ...] = ()
    disk_free_bytes: int
    disk_reserve_bytes: int
    disk_days_to_full: int = -1

    def to_bytes(self) -> bytes:
        """Single-object form of NodeReportV1."""
        datum = asdict(self)
        datum["at"] = time_bytes(datum.pop("at_us"))
        for one in datum["partitions"]:
            one["last_claim_at"] = time_bytes(one.pop("last_claim_at_us"))
            one["voids"] = [{"reason": reason, "count": count} for reason, count in sorted(one["voids"].items())]
        for one in datum["projections"]:
            one["partitions"] = list(one["partitions"])
        datum["partitions"], datum["projections"] = list(datum["partitions"]), list(datum["projections"])
        return codec.encode_as(SCHEMA, datum)

    @classmethod
    def from_bytes(cls, value: bytes) -> "NodeReport":
        """WireError when it is none."""
        if len(value) > REPORT_BYTES_MAX:
            raise WireError(f"a report of {len(value)} bytes is longer than {REPORT_BYTES_MAX}")
        datum = codec.decode_as(SCHEMA, value)
        for time_us in map(time_of, [datum["at"], *(one["last_claim_at"] for one in datum["partitions"])]):
            if not 0 <= time_us < TIME_US_MAX:
                raise WireError(f"{time_us} is no time")
        return cls(
            **{
                **{name: item for name, item in datum.items() if name != "at"},
                "at_us": time_of(datum["at"]),
                "partitions": tuple(_partition(one) for one in datum["partitions"]),
                "projections": tuple(_projection(one) for one in datum["projections"]),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON of it, as `status` shows it."""
        return {
            "node": format_id(self.node),
            "name": self.name,
            "role": self.role,
            "endpoint": self.endpoint or None,
            "pid": self.pid,
            "at": format_time(self.at_us),
            "partitions": [_shown(asdict(one)) for one in self.partitions],
            "projections": [
                {**_shown(asdict(one)), "partitions": [_shown(asdict(place)) for place in one.partitions]}
                for one in self.projections
            ],
            "disk": {
                "free_bytes": self.disk_free_bytes,
                "reserve_bytes": self.disk_reserve_bytes,
                "days_to_full": None if self.disk_days_to_full < 0 else self.disk_days_to_full,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A node's last report, and when it arrived by the own monotonic clock."""

    report: NodeReport
    at_us: int


class Reports:
    """The last report of each node. Bounded, whatever comes; what is no report is counted and passed over."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[bytes, Heard] = OrderedDict()
        self._heartbeats: OrderedDict[tuple[int, int, bytes], int] = OrderedDict()
        self.not_understood = 0

    def take(self, value: bytes | None, now_us: int) -> None:
        """A record of the control topic arrived."""
        try:
            report = NodeReport.from_bytes(value or b"")
        except (WireError, OverflowError):
            self.not_understood += 1
            return
        _put(self._nodes, report.node, Heard(report=report, at_us=now_us), NODES_MAX)
        for one in report.partitions:
            if one.phase == SERVES:
                _put(self._heartbeats, (one.partition, one.term, one.owner), now_us, HEARTBEATS_MAX)

    def heartbeat_us(self, partition: int, term: int, owner: bytes) -> int | None:
        """When the owner of a term last said that it serves the partition."""
        return self._heartbeats.get((partition, term, owner))

    def heard(self) -> Sequence[Heard]:
        """Every node's last report, by name."""
        return sorted(self._nodes.values(), key=lambda heard: (heard.report.name, heard.report.node))

    def endpoint_of(self, name: str) -> str | None:
        """Where the kernel of this name listens; the one heard last, when there were several."""
        for heard in reversed(self._nodes.values()):
            if heard.report.name == name and heard.report.role == "kernel" and heard.report.endpoint:
                return heard.report.endpoint
        return None


def _put(table: "OrderedDict[Any, Any]", key: Any, value: Any, limit: int) -> None:
    table.pop(key, None)
    while len(table) >= limit:
        table.popitem(last=False)
    table[key] = value


def _partition(datum: Mapping[str, Any]) -> PartitionReport:
    fields = {name: item for name, item in datum.items() if name != "last_claim_at"}
    voids = {one["reason"]: one["count"] for one in datum["voids"]}
    return PartitionReport(**{**fields, "voids": voids, "last_claim_at_us": time_of(datum["last_claim_at"])})


def _projection(datum: Mapping[str, Any]) -> ProjectionReport:
    return ProjectionReport(**{**datum, "partitions": tuple(ProjectionPlace(**one) for one in datum["partitions"])})


def _shown(fields: dict[str, Any]) -> dict[str, Any]:
    """Bytes as hexadecimal text; the owner of nothing, and the time of no Claim, as null."""
    shown: dict[str, Any] = {name: item.hex() if isinstance(item, bytes) else item for name, item in fields.items()}
    if "owner" in shown:
        shown["owner"] = None if fields["owner"] == ZERO16 else shown["owner"]
        at_us = shown.pop("last_claim_at_us")
        shown["last_claim_at"] = format_time(at_us) if at_us else None
    return shown
