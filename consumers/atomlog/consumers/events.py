"""What a consumer says while it works: JSON-ready events, for a log line, a status bar or a test."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from atomlog.kernel import jsontext
from atomlog.kernel.times import format_time

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]

TEXT_CHARACTERS_MAX: Final = 1_000  # of one text in a line
LOGGER: Final = logging.getLogger("atomlog")
TROUBLES: Final = frozenset(
    {
        "background_failed",
        "clock_behind",
        "closed_under_a_reader",
        "damage_found",
        "follower_failed",
        "generation_lost",
        "heads_failed",
        "heads_sync_failed",
        "in_doubt",
        "inbox_failed",
        "inbox_gap",
        "key_audit_failed",
        "key_records_ignored",
        "keys_stopped",
        "keys_unavailable",
        "log_check_failed",
        "log_unavailable",
        "ownership_lost",
        "projection_broken",
        "promotion_failed",
        "quarantined",
        "receipt_records_ignored",
        "receipts_lost",
        "receipts_unavailable",
        "repair_search_failed",
        "stopped",
        "swap_failed",
        "watchdog_restart",
        "writes_stopped",
    }
)


def is_trouble(event: Event) -> bool:
    """Something that an operator should see although nobody asked."""
    return event["event"] in TROUBLES


def stamped(event: Event, now_us: int) -> Event:
    """The event as a line of a log: when, how bad, what, and the rest of it. A long text of an error is cut."""
    level = "warning" if is_trouble(event) else "info"
    return {"time": format_time(now_us), "level": level, **{name: _bounded(value) for name, value in event.items()}}


def _bounded(value: Any) -> Any:
    """What a library says of bytes that it cannot read may be as long as they are."""
    if isinstance(value, Mapping):
        return {name: _bounded(item) for name, item in value.items()}
    if not isinstance(value, str) or len(value) <= TEXT_CHARACTERS_MAX:
        return value
    return f"{value[:TEXT_CHARACTERS_MAX]}…"


def log_event(event: Event) -> None:
    """The default: a line of JSON to the logger `atomlog`, troubles as warnings, which Python shows on stderr."""
    level = logging.WARNING if is_trouble(event) else logging.INFO
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, "%s", jsontext.dumps(event).decode())


def ignore(event: Event) -> None:
    """Nobody listens."""
