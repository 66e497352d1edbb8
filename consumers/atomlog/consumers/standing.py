"""Where the followers of this process stand, in the form in which nodes report it and metrics show it."""

from collections.abc import Sequence

from atomlog.consumers.capacity import Recent, days_to_full, recent_writes, revisions_estimated, revisions_per_day
from atomlog.consumers.cluster.reports import NodeReport, ProjectionPlace, ProjectionReport
from atomlog.consumers.follower import Follower
from atomlog.consumers.parts import Parts
from atomlog.consumers.processes import process_id


async def consumer_report(
    parts: Parts, followers: Sequence[Follower], *, node: bytes, name: str, endpoint: str = ""
) -> NodeReport:
    """Of a process that does nothing but follow."""
    now_us = parts.machine.clock.now_us()
    ends = {number: await parts.log.end(number) for number in sorted({n for one in followers for n in one.held})}
    recent = {number: await recent_writes(parts.log, number, end) for number, end in ends.items()}
    found = [await _projection(follower, recent) for follower in followers]
    per_revision = [report.bytes_per_revision for report in found]
    free = parts.machine.files.free_bytes(parts.directory)
    days = days_to_full(
        free_bytes=free,
        reserve_bytes=parts.settings.disk_reserve_bytes,
        bytes_per_revision=None if -1 in per_revision else sum(per_revision),
        per_day=revisions_per_day(recent.values(), now_us),
    )
    return NodeReport(
        node=node,
        name=name,
        role="consumer",
        endpoint=endpoint,
        pid=process_id(),
        at_us=now_us,
        projections=tuple(found),
        disk_free_bytes=free,
        disk_reserve_bytes=parts.settings.disk_reserve_bytes,
        disk_days_to_full=-1 if days is None else int(days),
    )


async def _projection(follower: Follower, recent: dict[int, Recent]) -> ProjectionReport:
    """Bytes a revision as estimated from those that were written lately: a consumer does not count them."""
    lags = await follower.lag()
    revisions = revisions_estimated((recent[number], lag.position + 1) for number, lag in lags.items())
    entry = await follower.status(revisions)
    async with follower.pinned() as projection:
        chains = {number: projection.checkpoint(number).state.chain for number in lags}
    size = entry["bytes_per_revision"]
    return ProjectionReport(
        name=follower.name,
        generation=follower.generation,
        health=follower.health,
        asof_kind=entry["asof"]["kind"],
        asof_floor=entry["asof"]["floor"],
        quarantined=entry["quarantined"],
        bytes_per_revision=-1 if size is None else round(size),
        partitions=tuple(
            ProjectionPlace(
                partition=number,
                position=lag.position + 1,
                chain=chains[number],
                lag_records=lag.records,
                lag_ms=int(lag.seconds * 1_000),
            )
            for number, lag in sorted(lags.items())
        ),
    )
