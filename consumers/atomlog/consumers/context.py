"""What every consumer works with, and the shapes its parts hand to one another."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from atomlog.consumers.events import OnEvent, log_event
from atomlog.consumers.store_config import StoreConfig
from atomlog.kernel.commit_rule import Genesis
from atomlog.kernel.ports import Clock, Log, Workers
from atomlog.kernel.settings import Settings
from atomlog.projections.base import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The log of one store, and the ports to follow it with."""

    log: Log
    config: StoreConfig
    clock: Clock
    workers: Workers
    settings: Settings = field(default_factory=Settings)
    on_event: OnEvent = log_event

    def genesis(self, partition: int) -> Genesis:
        return self.config.genesis(partition)


class ProjectionKind(Protocol):
    """How the projection of one name is opened and kept going. `directory` is a generation's.

    Two generations may be open at once, in one process or in two: what they share must allow it.
    """

    @property
    def name(self) -> str: ...
    def open_primary(self, directory: str) -> Projection:
        """To follow with, creating what is not there. Blocks. STORE_LOCKED, CORRUPT, STORE_TOO_NEW."""
        ...

    def open_secondary(self, directory: str, scratch: str) -> Projection:
        """To read with, beside a primary of another process. Blocks. CORRUPT, STORE_TOO_NEW."""
        ...

    async def prepare(self, projection: Projection) -> None:
        """What would make the next read slow, done off the event loop. Called after opening and catching up."""
        ...

    async def step(self, projection: Projection) -> bool:
        """One bounded piece of the work behind applied rows (embedding, sealing); False: nothing to do for now."""
        ...

    def unfinished(self, projection: Projection) -> int:
        """Applied rows that still wait for such work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far one partition of a projection is behind.

    `position` is the read position, `end` the log's next position; `records` counts void records too. `seconds` is
    the age of the first batch that is not applied, by its `recorded_at` and this process's clock: 0 when there is
    none.
    """

    position: int
    end: int
    records: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {"position": self.position, "lag_records": self.records, "lag_s": self.seconds}
