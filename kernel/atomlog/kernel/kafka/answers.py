"""What an error code of Kafka means here: ask again, or which of our errors it is."""

import asyncio
from typing import Final

from atomlog.kernel.errors import AtomlogError, fail
from atomlog.kernel.kafka.trust import unavailable
from atomlog.kernel.kafka.values import Refusal

OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
TIMED_OUT: Final = 7
TOPIC_EXISTS: Final = 36
_TOO_FEW_BROKERS: Final = 38
_DENIED: Final = (29, 30, 31)  # topic, group, cluster
_TOO_LARGE: Final = (10, 18)  # a record, a batch
_INVALID: Final = (17, 37, 38, 39, 40, 42, 44, 87)  # names, numbers, settings, a broker's policy, a record without key
# The broker did nothing: it does not lead, is starting or stopping, has too few replicas in sync, lacks news.
_NOT_NOW: Final = (5, 6, 8, 13, 14, 15, 16, 19, 41, 56, 74, 75, 78, 89)
_TOPIC_PATIENCE_S: Final = 2.0  # a broker may hear late of a topic that was just made
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5


class Patience:
    """How long one call asks again: until its deadline, and for a topic that is not there for a shorter time."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._topic_deadline = asyncio.get_running_loop().time() + _TOPIC_PATIENCE_S
        self.tries = 0

    @property
    def is_over(self) -> bool:
        return is_over(self._deadline)

    def with_refusal(self, refusal: Refusal, *, is_repeatable: bool) -> bool:
        """Whether to ask again. A request that timed out at the broker may have been carried out."""
        if refusal.code == UNKNOWN_TOPIC:
            return not self.is_over and not is_over(self._topic_deadline)
        return not self.is_over and (refusal.code in _NOT_NOW or (refusal.code == TIMED_OUT and is_repeatable))

    async def pause(self) -> None:
        """Longer each time, never past the deadline."""
        await asyncio.sleep(min(_PAUSE_MIN_S * 2**self.tries, _PAUSE_MAX_S, left(self._deadline)))
        self.tries += 1


def left(deadline: float) -> float:
    """Seconds until the deadline, never quite none."""
    return max(0.001, deadline - asyncio.get_running_loop().time())


def is_over(deadline: float) -> bool:
    return asyncio.get_running_loop().time() >= deadline


def error_of(refusal: Refusal, topic: str, partition: int | None = None) -> AtomlogError:
    """What the caller is told about a refusal."""
    where = f"topic {topic}" if partition is None else f"topic {topic}, partition {partition}"
    if refusal.code in _DENIED:
        return fail("ACCESS_DENIED", f"{where}: {refusal}; the user lacks the right for this at the brokers (ACL)")
    if refusal.code == UNKNOWN_TOPIC:
        return fail("STORE_NOT_FOUND", f"{where}: there is no such topic; it was deleted, or never made")
    if refusal.code in _TOO_LARGE:
        return fail("BOUND_EXCEEDED", f"{where}: {refusal}; raise its max.message.bytes, or write less at once")
    if refusal.code == _TOO_FEW_BROKERS:
        message = f"{where}: {str(refusal).rstrip('.')}"
        return fail("INVALID_INPUT", f"{message}; start more brokers, or ask for fewer copies with --replication")
    if refusal.code in _INVALID:
        return fail("INVALID_INPUT", f"{where}: {refusal}")
    return unavailable(f"{where}: {refusal}")
