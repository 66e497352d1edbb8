"""What a process says of its projections on the control topic: which partitions of which one it can be asked for."""

from collections.abc import Mapping, Sequence

from atomlog.consumers.attachment import Attachment
from atomlog.consumers.capacity import Recent, revisions_estimated
from atomlog.consumers.cluster.reports import ProjectionPlace, ProjectionReport
from atomlog.consumers.follower import Follower


async def projection_reports(
    views: Sequence[Follower | Attachment], recent: Mapping[int, Recent] | None = None
) -> tuple[ProjectionReport, ...]:
    """A report of each, as of now. `recent`: what was written lately, to estimate what a revision takes on the disk."""
    return tuple([await _report(view, recent or {}) for view in views])


async def _report(view: Follower | Attachment, recent: Mapping[int, Recent]) -> ProjectionReport:
    lags = await view.lag()
    known = [(recent[partition], lag.position + 1) for partition, lag in lags.items() if partition in recent]
    size = (await view.status(revisions_estimated(known)))["bytes_per_revision"]
    async with view.pinned() as projection:
        chains: Mapping[int, bytes] = {p: projection.checkpoint(p).state.chain for p in lags}
        return ProjectionReport(
            name=view.name,
            generation=view.generation,
            health=view.health,
            asof_kind="exact",
            asof_floor=max(projection.floors().values(), default=-1),
            quarantined=len(projection.quarantined()),
            bytes_per_revision=-1 if size is None else round(size),
            partitions=tuple(
                ProjectionPlace(
                    partition=partition,
                    position=lag.position + 1,
                    chain=chains[partition],
                    lag_records=lag.records,
                    lag_ms=int(lag.seconds * 1_000),
                )
                for partition, lag in sorted(lags.items())
            ),
        )
