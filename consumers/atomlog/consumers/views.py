"""What a reader sees of a projection, whoever follows for it: `ProjectionView`, and what both forms share."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from atomlog.consumers.context import Lag
from atomlog.consumers.handles import Handle
from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.model import Positions
from atomlog.kernel.rocks import RocksKv
from atomlog.projections.base import KvProjection, Projection

Health = Literal["OK", "DEGRADED", "STOPPED"]


class ProjectionView(Protocol):
    """A projection to read, followed by this process (`Follower`) or by another one (`SecondaryView`).

    Read positions never go back: when a rebuilt generation takes over, the old one serves until the new one has
    come as far.
    """

    @property
    def name(self) -> str: ...
    @property
    def generation(self) -> str:
        """The name of the generation that `pinned` gives."""
        ...

    @property
    def held(self) -> tuple[int, ...]:
        """The partitions that it is followed for."""
        ...

    @property
    def health(self) -> Health: ...
    @property
    def error(self) -> AtomlogError | None:
        """Why it stopped, if it did."""
        ...

    def pin(self) -> Handle:
        """The handle of the projection, pinned: not to be closed or exchanged before its `unpin`."""
        ...

    def pinned(self) -> AbstractAsyncContextManager[Projection]:
        """The projection, not to be closed or exchanged inside; its position may move on between awaits."""
        ...

    def positions(self) -> Positions:
        """How far it can be read, by partition."""
        ...

    async def catch_up(self) -> None:
        """See what the following process has written; begin to go over to a generation that was published."""
        ...

    async def wait_for(self, positions: Positions, deadline_us: int) -> None:
        """Until it can be read at these positions. `deadline_us` is in the clock's `monotonic_us`.

        Raises INDEX_LAGGING with name, partition, wanted and reached position when it is not there by then.
        """
        ...

    async def wait_for_generation(self, generation: str, deadline_us: int) -> bool:
        """Until `pinned` gives this generation or a later one, or the deadline; says which."""
        ...

    async def lag(self) -> Mapping[int, Lag]: ...
    async def status(self, revisions: int | None = None) -> dict[str, Any]:
        """The projection's entry in `status`; `revisions` in the store, where the caller knows them."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Everything `describe` needs besides the projection itself."""

    generation: str
    health: Health
    error: AtomlogError | None
    lags: Mapping[int, Lag]
    follower: int | None
    restarts: int = 0


def is_behind(reached: Positions, wanted: Positions) -> bool:
    return any(reached.get(partition, -1) < position for partition, position in wanted.items())


def lagging(name: str, reached: Positions, wanted: Positions, cause: AtomlogError | None) -> AtomlogError:
    """INDEX_LAGGING naming every partition that is not there, and why where that is known."""
    details = [
        {
            "path": name,
            "code": "INDEX_LAGGING",
            "message": f"partition {partition}: {reached.get(partition, -1)} of {position}",
            "partition": partition,
            "position": reached.get(partition, -1),
            "wanted": position,
        }
        for partition, position in sorted(wanted.items())
        if reached.get(partition, -1) < position
    ]
    message = f"projection {name} has not reached {', '.join(str(detail['message']) for detail in details)}"
    if cause is not None:
        return fail("INDEX_LAGGING", f"{message}; it stopped: {cause}", details=details)
    return fail("INDEX_LAGGING", message, details=details, retry_after_ms=100)


def describe(projection: Projection, standing: Standing, revisions: int | None) -> dict[str, Any]:
    """One entry of `status.projections`. `bytes_per_revision` is null when size or revisions are not known."""
    floors = projection.floors()
    rows = sum(projection.rows(partition) for partition in standing.lags)
    size = _size_bytes(projection)
    return {
        "name": projection.name,
        "generation": standing.generation,
        "asof": {"kind": "exact", "floor": max(floors.values(), default=-1)},
        "partitions": [{"partition": number, **lag.to_dict()} for number, lag in sorted(standing.lags.items())],
        "health": standing.health,
        "quarantined": len(projection.quarantined()),
        "rows": rows,
        "size_bytes": size,
        "bytes_per_revision": round(size / revisions, 1) if size is not None and revisions else None,
        "follower": standing.follower,
        "restarts": standing.restarts,
        "error": None if standing.error is None else standing.error.to_dict(),
    }


def describe_broken(name: str, error: AtomlogError) -> dict[str, Any]:
    """The entry of a projection that could not be opened: nothing is known of it but why."""
    return {
        "name": name,
        "generation": None,
        "asof": None,
        "partitions": [],
        "health": "STOPPED",
        "quarantined": None,
        "rows": None,
        "size_bytes": None,
        "bytes_per_revision": None,
        "follower": None,
        "restarts": 0,
        "error": error.to_dict(),
    }


def health_of(projection: Projection, error: AtomlogError | None, *, troubled: bool = False) -> Health:
    """STOPPED with an error, DEGRADED with records in quarantine or work that keeps failing, else OK."""
    if error is not None:
        return "STOPPED"
    return "DEGRADED" if troubled or projection.quarantined() else "OK"


def _size_bytes(projection: Projection) -> int | None:
    """Bytes on disk of the key-value store, where it is one that can tell."""
    if isinstance(projection, KvProjection) and isinstance(projection.kv, RocksKv):
        return projection.kv.size_bytes()
    return None
