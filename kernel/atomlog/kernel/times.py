"""Times: int64 microseconds since 1970 UTC inside, RFC 3339 outside. A time without an offset is refused."""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

from atomlog.kernel.ids import invalid, shown

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))?", re.ASCII
)
_MICROSECOND: Final = timedelta(microseconds=1)
DAY_US: Final = 86_400_000_000
TIME_MIN_US: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
TIME_MAX_US: Final = (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def format_time(time_us: int) -> str:
    """`2026-03-01T00:00:00.000000Z`; years 1 to 9999."""
    seconds, microseconds = divmod(time_us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return f"{_minute(minutes)}:{second:02d}.{microseconds:06d}Z"


@lru_cache(maxsize=4_096)
def _minute(minutes: int) -> str:
    """`2026-03-01T00:00` of minutes since 1970."""
    return (_EPOCH + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M").rjust(16, "0")


def parse_time(text: object, path: str) -> int:
    """Microseconds UTC of an RFC 3339 time with an offset; finer digits are cut. INVALID_INPUT otherwise."""
    match = _RFC3339.fullmatch(text) if isinstance(text, str) and len(text) <= 64 else None
    if match is None:
        raise invalid(path, f"{shown(text)} is no RFC 3339 time like 2026-03-01T09:00:00+09:00")
    year, month, day, hour, minute, second, fraction, zulu, sign, off_hour, off_minute = match.groups()
    if zulu is None and sign is None:
        raise invalid(path, f"{text!r} has no offset; add Z or one like +09:00")
    try:
        offset = timedelta(0)
        if sign is not None:
            if int(off_hour) > 23 or int(off_minute) > 59:
                raise ValueError("offset out of range")
            offset = timedelta(hours=int(off_hour), minutes=int(off_minute)) * (-1 if sign == "-" else 1)
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone(offset))
        time_us = (moment - _EPOCH) // _MICROSECOND + int((fraction or "").ljust(6, "0")[:6])
        if not TIME_MIN_US <= time_us <= TIME_MAX_US:
            raise ValueError("in UTC it is outside of the years 1 to 9999")
    except (ValueError, OverflowError) as error:
        raise invalid(path, f"{text!r} is no time: {error}") from None
    return time_us
