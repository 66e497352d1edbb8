"""What an operator sees: where each partition and each projection stands, and how full the disk is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atomlog.consumers.indexes import OpenIndexes
from atomlog.consumers.parts import Parts
from atomlog.consumers.writing import Writing
from atomlog.kernel.ids import format_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`to_dict` is the documented JSON."""

    log_id: str
    partitions: tuple[Mapping[str, Any], ...]
    projections: tuple[Mapping[str, Any], ...]
    disk: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {
            "log_id": self.log_id,
            "partitions": [dict(partition) for partition in self.partitions],
            "projections": [dict(projection) for projection in self.projections],
            "disk": dict(self.disk),
        }


async def store_status(parts: Parts, writing: Writing, indexes: OpenIndexes) -> Status:
    """The status as this process sees it. `owner` is null where nobody holds the store."""
    places = await writing.places()
    revisions = sum(place.get("revisions", 0) for place in places.values()) if places else None
    partitions = [await _partition(parts, number, places.get(number, {})) for number in range(parts.config.partitions)]
    return Status(
        log_id=format_id(parts.config.log_id),
        partitions=tuple(partitions),
        projections=tuple(await indexes.status(revisions)),
        disk=_disk(parts),
    )


async def _partition(parts: Parts, number: int, place: Mapping[str, Any]) -> Mapping[str, Any]:
    end = await parts.log.end(number)
    owner = place.get("owner") or {}
    note = owner if parts.embedded is None else parts.embedded.owner_note(number)
    holder = {"id": owner.get("owner"), "pid": note.get("pid"), "endpoint": note.get("endpoint")} if note else None
    return {
        "partition": number,
        "end": end,
        "durable_end": end,
        "term": place.get("term"),
        "owner": holder,
        "effective_batches": place.get("effective_batches"),
        "void": place.get("void", {}),
        "chain": place.get("chain"),
    }


def _disk(parts: Parts) -> Mapping[str, Any]:
    """Bytes free, the reserve below which writes are refused, and whether they are."""
    free = parts.machine.files.free_bytes(parts.directory)
    reserve = parts.settings.disk_reserve_bytes
    return {"free_bytes": free, "reserve_bytes": reserve, "accepting_writes": free >= reserve}
