"""What an operator sees: where each partition and each projection stands, how full the disk is.

Of a shared store also what every process of it said last. The owners are asked; where one does not answer, what it
said last stands in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from atomlog.consumers.capacity import days_to_full, log_bytes, recent_writes, revisions_per_day
from atomlog.consumers.indexes import OpenIndexes
from atomlog.consumers.parts import Parts
from atomlog.consumers.writing import Writing
from atomlog.kernel.errors import AtomlogError
from atomlog.kernel.ids import format_id
from atomlog.kernel.model import Positions
from atomlog.kernel.times import TIME_MAX_US, format_time

if TYPE_CHECKING:
    from atomlog.consumers.cluster.reports import Heard, PartitionReport

SERVES: Final = "owner"  # the phase of who serves a partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`to_dict` is the documented JSON."""

    log_id: str
    partitions: tuple[Mapping[str, Any], ...]
    projections: tuple[Mapping[str, Any], ...]
    disk: Mapping[str, Any]
    nodes: tuple[Mapping[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "log_id": self.log_id,
            "partitions": [dict(partition) for partition in self.partitions],
            "projections": [dict(projection) for projection in self.projections],
            "disk": dict(self.disk),
            "nodes": [dict(node) for node in self.nodes],
        }


async def store_status(parts: Parts, writing: Writing, indexes: OpenIndexes) -> Status:
    """The status as this process sees it. `owner` is null where nobody holds the store."""
    heard, places = await _told(parts, writing)
    ends = {number: await parts.log.end(number) for number in range(parts.config.partitions)}
    revisions = {number: place["revisions"] for number, place in places.items() if "revisions" in place}
    projections = await indexes.status(revisions)
    partitions = [
        partition_entry(parts, number, end, places.get(number, {}), serving(heard, number))
        for number, end in ends.items()
    ]
    return Status(
        log_id=format_id(parts.config.log_id),
        partitions=tuple(partitions),
        projections=tuple(projections),
        disk=await _disk(parts, ends, projections, sum(revisions.values())),
        nodes=tuple(node_entry(one, parts.machine.clock.monotonic_us()) for one in heard),
    )


async def _told(parts: Parts, writing: Writing) -> "tuple[Sequence[Heard], Mapping[int, Mapping[str, Any]]]":
    """What the nodes said last, and what the owners say now; as much of it as can be had."""
    try:
        return await writing.nodes(), await writing.places()
    except AtomlogError as error:
        parts.on_event({"event": "control_failed", "what": "follow", "error": error.to_dict()})
        return (), {}


def serving(heard: "Sequence[Heard]", partition: int) -> "PartitionReport | None":
    """What the owner of a partition said last: of those that say so, the one of the latest term."""
    found = [
        one for each in heard for one in each.report.partitions if one.partition == partition and one.phase == SERVES
    ]
    return max(found, key=lambda one: one.term, default=None)


def partition_entry(
    parts: Parts, number: int, end: int, place: Mapping[str, Any], said: "PartitionReport | None"
) -> Mapping[str, Any]:
    """One entry of `partitions`: what its owner answered, else what it said last."""
    owner: Mapping[str, Any] = place.get("owner") or {}
    note = owner if parts.embedded is None else parts.embedded.owner_note(number)
    holder = {"id": owner.get("owner"), "pid": note.get("pid"), "endpoint": note.get("endpoint")} if note else None
    claimed_at_us = owner.get("claimed_at_us")
    if said is not None and not place:
        claimed_at_us = said.last_claim_at_us
        place = {
            "term": said.term,
            "effective_batches": said.batches,
            "void": dict(said.voids),
            "chain": said.chain.hex(),
            "in_flight": said.in_flight,
        }
    return {
        "partition": number,
        "end": end,
        "durable_end": end,
        "term": place.get("term"),
        "owner": holder,
        "effective_batches": place.get("effective_batches"),
        "in_flight": place.get("in_flight"),
        "last_claim_at": _time(claimed_at_us),
        "void": place.get("void", {}),
        "chain": place.get("chain"),
    }


def node_entry(heard: "Heard", now_us: int) -> Mapping[str, Any]:
    """One entry of `nodes`: what a process said of itself, and how long ago."""
    return {**heard.report.to_dict(), "age_s": round(max(0, now_us - heard.at_us) / 1_000_000, 1)}


async def _disk(
    parts: Parts, ends: Positions, projections: Sequence[Mapping[str, Any]], revisions: int
) -> Mapping[str, Any]:
    """Bytes free, the reserve below which writes are refused, whether they are, and how long until then."""
    free = parts.machine.files.free_bytes(parts.directory)
    reserve = parts.settings.disk_reserve_bytes
    recent = [await recent_writes(parts.log, number, end) for number, end in ends.items()]
    days = days_to_full(
        free_bytes=free,
        reserve_bytes=reserve,
        bytes_per_revision=_bytes_per_revision(parts, projections, revisions),
        per_day=revisions_per_day(recent, parts.machine.clock.now_us()),
    )
    return {
        "free_bytes": free,
        "reserve_bytes": reserve,
        "accepting_writes": free >= reserve,
        "days_to_full": days,
    }


def _bytes_per_revision(parts: Parts, projections: Sequence[Mapping[str, Any]], revisions: int) -> float | None:
    """What a revision takes in this directory: in the projections that tell, and in the log where it is here."""
    known = [found for one in projections if (found := one["bytes_per_revision"]) is not None]
    log = 0.0
    if parts.embedded is not None and revisions:
        log = log_bytes(parts.machine.files, parts.directory, parts.config.partitions) / revisions
    return sum(known) + log or None


def _time(time_us: int | None) -> str | None:
    """Null where there was no Claim. What another process wrote may be no time."""
    return format_time(time_us) if time_us and 0 < time_us <= TIME_MAX_US else None
