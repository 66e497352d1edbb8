"""Who claimed a partition last, read from the end of the log: where owners are when nobody has said so lately."""

from collections.abc import Sequence
from typing import Final

from atomlog.consumers.cluster.channel import is_endpoint
from atomlog.kernel.ports import Clock, Log, LogRecord
from atomlog.schemas import codec
from atomlog.schemas.record import Record
from atomlog.schemas.varint import WireError

SPAN: Final = 256  # records that are looked at first; then twice as many before them, and so on
RECORDS_MAX: Final = 65_536  # a Claim further back is not looked for
READ_BYTES: Final = 4 * 1024 * 1024
KNOWN_US: Final = 5_000_000  # for which an answer is given again


class LastClaims:
    """The endpoint in the last Claim of each partition. A hint: a Claim may be void, or its owner gone."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._known: dict[int, tuple[int, str | None]] = {}

    async def endpoint(self, partition: int) -> str | None:
        """None when there is none within reach. Raises what the log raises."""
        now_us = self._clock.monotonic_us()
        asked_us, found = self._known.get(partition, (now_us - KNOWN_US, None))
        if now_us - asked_us >= KNOWN_US:
            found = await self._find(partition)
            self._known[partition] = (now_us, found)
        return found

    async def _find(self, partition: int) -> str | None:
        stop = await self._log.end(partition)
        lowest, span = max(0, stop - RECORDS_MAX), SPAN
        while stop > lowest:
            start = max(lowest, stop - span)
            for one in reversed(await self._between(partition, start, stop)):
                endpoint = _endpoint(one)
                if endpoint is not None:
                    return endpoint
            stop, span = start, span * 2
        return None

    async def _between(self, partition: int, start: int, stop: int) -> Sequence[LogRecord]:
        """The Claims at start ≤ position < stop."""
        claims: list[LogRecord] = []
        while start < stop:
            found = await self._log.read(partition, start, bytes_max=READ_BYTES)
            if not found:
                break
            claims += [one for one in found if one.position < stop and one.record.kind == "Claim"]
            start = found[-1].position + 1
        return claims


def _endpoint(claim: LogRecord) -> str | None:
    if not isinstance(claim.record, Record):
        return None
    try:
        endpoint = codec.decode(claim.record.value, "Claim")["endpoint"]
    except WireError:
        return None  # anybody may have written it
    return endpoint if is_endpoint(endpoint) else None
