"""What can be made to happen to one call of an in-memory log.

A fault is scripted on the server, for one producer or for whoever comes next, and used up by one call. Each stands
for something a real log was seen to do; the caller of `append` sees only success, an exception, or nothing at all.
"""

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What becomes of one append. "Fails" means `LogFault` is raised, which tells nothing about the outcome."""

    NONE = "applied, acknowledged"
    ERROR_BEFORE = "fails before anything is sent"
    LOST_NOT_APPLIED = "sent, never applied; fails"
    LOST_APPLIED = "applied, the reply is lost; fails"
    DELAYED = "fails; stays in flight and is applied when the test delivers it, after a renew too"
    DUPLICATED = "applied twice in a row, acknowledged"
    DUPLICATED_LATER = "applied, acknowledged; a second copy stays in flight until the test delivers it"
    REORDERED = "held until another producer's append was applied, then applied and acknowledged"
    TORN = "the first half of the records (rounded down) is applied; fails"
    HANGS_NOT_APPLIED = "sent, never applied; no answer until the test lets go, then fails"
    HANGS_APPLIED = "applied; no answer until the test lets go, then fails"


class ReadFault(Enum):
    """What becomes of one `read`, `wait` or `end`."""

    NONE = "answered"
    ERROR = "fails"
    STALLS = "no answer until the test lets go, then answered"


class LogFault(ConnectionError):
    """A scripted failure; to the caller any exception means the same, an unknown outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A request that left its producer and has not arrived. `number` counts requests of the server."""

    number: int
    producer: str
    partition: int
    record_count: int
