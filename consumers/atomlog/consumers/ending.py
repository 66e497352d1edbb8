"""How a process that runs until it is told to stop learns of it."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from atomlog.kernel.errors import EXIT_INTERRUPTED


class Ending:
    """`event` is set when this process is to end, with the exit `code`."""

    def __init__(self, stop: asyncio.Event | None) -> None:
        self.event = stop or asyncio.Event()
        self.code = 0

    def listen(self) -> Callable[[], Any]:
        """Handle the signals; returns what undoes that."""
        loop = asyncio.get_running_loop()
        with suppress(ValueError, RuntimeError):  # not the main thread: somebody else decides
            loop.add_signal_handler(signal.SIGTERM, self._end, 0)
            loop.add_signal_handler(signal.SIGINT, self._end, EXIT_INTERRUPTED)
            return lambda: [loop.remove_signal_handler(number) for number in (signal.SIGTERM, signal.SIGINT)]
        return lambda: None

    def _end(self, code: int) -> None:
        self.code = code
        self.event.set()
