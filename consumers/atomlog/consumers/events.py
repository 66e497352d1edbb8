"""What a consumer says while it works: JSON-ready events, for a log line, a status bar or a test."""

from collections.abc import Callable, Mapping
from typing import Any

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Nobody listens."""
